"""Checks with which a start refuses files that are wrong or misplaced, before it changes anything.

Going on would misread them, write over what somebody else may still bring back, or fail in the
middle of the recovery. Each refusal names the file and says what to do; even if a single file is in
a wrong place, and derived files can be made again, a person has to decide.

Damage inside of files is not checked here (recovery and scrub deal with it), nor are sizes, which
loading compares.
"""

import os
import struct
from collections.abc import Iterable, Iterator
from itertools import chain

from aerobee.config.model import Settings
from aerobee.protocol.message.record_layout import (
    LOG_OFFSET_POSITION,
    MESSAGE_MAGIC,
    MIN_RECORD_BYTES,
)
from aerobee.store.disk.files import Files
from aerobee.store.disk.segment_names import segment_name
from aerobee.store.errors import StoreLayoutError, StoreNotWritable
from aerobee.store.index.index_service import IndexService
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.queue_table import ConsumeQueueTable
from aerobee.store.segments.mapped_file import MappedFile
from aerobee.store.segments.mapped_file_queue import MappedFileQueue

SMALL_FILES = ("abort", "checkpoint", "offsets", "offsets.tmp")
#: Tables of the broker below config/.
TOPICS, OFFSETS, DELAYS = "topics.json", "consumerOffset.json", "delayOffset.json"
LMQ_OFFSETS = "lmqConsumerOffset.json"
BACKUP, TEMPORARY = ".bak", ".tmp"
#: A part of the names of damaged tables that a start has kept aside (aerobee/file_replacement.py).
DAMAGED = ".damaged"
_HEAD = struct.Struct(">iI")
_OWN_OFFSET = struct.Struct(">q")
_HEAD_BYTES = LOG_OFFSET_POSITION + _OWN_OFFSET.size


def check_small_files(files: Files, root: str) -> None:
    """Refuse anything but a file in the place of a file. Raises StoreLayoutError."""
    names = files.names(root)
    for name in SMALL_FILES:
        path = os.path.join(root, name)
        if name not in names:
            continue
        if files.is_directory(path):
            raise StoreLayoutError(f"{path} is a directory, a file is needed; move it away")
        if not files.exists(path):
            raise StoreLayoutError(
                f"{path} is a link to nothing. Is its volume not mounted? If it is gone for good, "
                "remove the link: the store starts without that file."
            )


def tables_read(files: Files, settings: Settings) -> list[str]:
    """Paths of the tables below the store that a start with these settings reads, if they are
    there; nothing reads any others."""
    config = os.path.join(settings.store_path, "config")
    light = os.path.join(config, LMQ_OFFSETS)
    # A broker that gets light queues for the first time goes on from the ordinary table.
    is_light = settings.lmq_enabled and (files.exists(light) or files.exists(light + BACKUP))
    names = (
        *(TOPICS, "subscriptionGroup.json", "consumerFilter.json", DELAYS, "stages.json"),
        *("deletedTopics.json", LMQ_OFFSETS if is_light else OFFSETS),
    )
    paths = [os.path.join(config, name) for name in names]
    if settings.nameserver_enabled and not settings.nameserver_kv_path:
        paths.append(settings.kv_file)
    return paths


def check_log(
    segments: MappedFileQueue, queues: ConsumeQueueTable, flushed: int | None, *, clean_stop: bool
) -> None:
    """Refuse a log that is not whole, or ends below `flushed`. Raises StoreLayoutError.

    Without a known mark: all records that queues name were on the disk if a clean stop ended the
    run.
    """
    end = segments.segments[-1].end if segments.segments else 0
    if flushed is not None and flushed > end:
        last = segments.segments[-1].path if segments.segments else ""
        directory = os.path.dirname(last) or segments.paths.writable[0]
        missing = os.path.join(directory, segment_name(end))
        raise StoreLayoutError(
            f"the commit log in {segments.paths} ends at {end}, but messages up to {flushed} were "
            f"on the disk: segments are missing at its end, from {missing} on. Restore them, or "
            "run 'aerobee store repair' to see what is left. Nothing was changed."
            + segments.paths.absent()
        )
    if segments.segments:
        if flushed is None and clean_stop:
            _check_end(segments, queues)
        return
    for queue in queues:
        if queue.first_named(queue.first_offset, queue.max_offset) is not None:
            raise StoreLayoutError(
                f"{queue.directory} names messages, but {segments.paths} holds no commit log. Is "
                "its volume not mounted? To start empty, move consumequeue and index away as well."
            )


def entries_beyond(queues: ConsumeQueueTable, log_offset: int) -> dict[ConsumeQueue, int]:
    """The number of entries of each queue that name records at or above `log_offset`. Raises
    OSError."""
    found = {}
    for queue in queues:
        last = queue.entry(queue.max_offset - 1) if queue.max_offset else None
        if last is not None and last.log_offset >= log_offset:
            found[queue] = queue.max_offset - queue.first_at(log_offset)
    return found


def _check_end(segments: MappedFileQueue, queues: ConsumeQueueTable) -> None:
    last = segments.segments[-1]
    beyond = entries_beyond(queues, last.end)
    count = sum(beyond.values())
    if count == 1:  # perhaps an entry with a flipped bit, unless it fits
        (queue,) = beyond
        first = queue.entry(queue.max_offset - 1)
        count = int(first is not None and first.log_offset == last.end)
    if count:
        missing = os.path.join(os.path.dirname(last.path), segment_name(last.end))
        raise StoreLayoutError(
            f"the commit log in {segments.paths} ends at {last.end}, but {count} entries "
            f"of {len(beyond)} consume queues name messages beyond that, and the last run was "
            f"stopped in order: segments are missing at the end of the log, from {missing} on. "
            "Restore them, or accept the loss with 'aerobee store repair'; nothing was changed."
            + segments.paths.absent()
        )


def check_segment_names(files: Files, segments: MappedFileQueue) -> None:
    """Refuse a segment under the name of another one. Raises StoreLayoutError, OSError.

    Recovery would take it for damage, zero its bytes above the log's end, and write on there.
    """
    for segment in segments.segments:
        own = _own_start(files, segment)
        if own == segment.start or own % segment.size:
            continue
        raise StoreLayoutError(
            f"{segment.path} holds the segment {segment_name(own)} of the commit log: files were "
            "swapped, or one was copied over another. Give them their own names, or look with "
            "'aerobee store repair', which does; nothing was changed."
        )


def _own_start(files: Files, segment: MappedFile) -> int:
    """The start of a segment by its first two records; its named start if they do not agree."""
    with files.opened(segment.path, read_only=True) as fd:
        first = _head_at(files, fd, 0)
        if first is None or first[1] == segment.start:
            return segment.start
        size, own = first
        if not MIN_RECORD_BYTES <= size <= segment.size - _HEAD_BYTES:
            return segment.start
        second = _head_at(files, fd, size)
    # Two, because one flipped bit can make the first name the beginning of another segment.
    agree = second is not None and second[1] == own + size
    return own if agree else segment.start


def _head_at(files: Files, fd: int, position: int) -> tuple[int, int] | None:
    """(size, log offset) in a record's own fields; None without a record."""
    data = files.read(fd, position, _HEAD_BYTES)
    if len(data) < _HEAD_BYTES:
        return None
    size, magic = _HEAD.unpack_from(data)
    (own,) = _OWN_OFFSET.unpack_from(data, LOG_OFFSET_POSITION)
    return (size, own) if magic == MESSAGE_MAGIC else None


def _derived(queues: ConsumeQueueTable, index: IndexService | None) -> Iterator[str]:
    """Directories and files of queues and index, one by one: they may be a hundred thousand."""
    yield queues.directory
    yield queues.ext_directory
    yield from sorted({os.path.dirname(queue.directory) for queue in queues})
    for queue in queues:
        yield queue.directory
        for file in queue.segments:
            yield file.path
    if index is not None:
        yield index.directory
        yield from index.paths


def check_rights(
    files: Files,
    root: str,
    segments: MappedFileQueue,
    queues: ConsumeQueueTable,
    index: IndexService | None,
    tables: Iterable[str],
) -> None:
    """Refuse files without the needed permission: made by another user, most often root, or on a
    read-only file system. Later they would stop the store. Raises StoreNotWritable."""
    paths = segments.paths
    # (path, whether it is written) of all existing files.
    used = [(root, True), (os.path.join(root, "checkpoint"), True)]
    used += [(os.path.join(root, "offsets"), False)]
    used += [(directory, directory in paths.writable) for directory in paths.all]
    last = segments.last
    for segment in segments.segments:
        # Any of the last segments may be in use by the writer: those after it are empty.
        is_young = last is not None and segment.start >= last.start - 2 * segment.size
        used.append((segment.path, is_young and not paths.is_read_only(segment.path)))
    for table in tables:  # replaced as a whole, by its temporary file
        used += [(os.path.dirname(table), True), (table, False)]
        used += [(table + BACKUP, True), (table + TEMPORARY, True)]
    derived = ((path, True) for path in _derived(queues, index))
    for path, write in chain(used, derived):
        if files.exists(path) and not files.may_use(path, write=write):
            raise StoreNotWritable(
                f"{path} cannot be {'written' if write else 'read'} by this user: look at its "
                "owner and mode (was the broker started as root once?), and whether its file "
                "system is mounted read-only. Nothing was changed."
            )
