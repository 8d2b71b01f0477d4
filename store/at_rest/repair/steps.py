"""Single changes that a repair makes to files. `repair_plan.py` decides which, and in which order.

Every function can be broken off and done again: it leaves a sound file, and copies bytes to
lost+found before it overwrites them.
"""

import os
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import closing

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.filler import SMALLEST, fillers
from aerobee.protocol.message.record import encode_blank
from aerobee.protocol.message.record_check import CHECK_BODY, CHECK_NOTHING, RecordHead
from aerobee.protocol.message.record_layout import BLANK_BYTES
from aerobee.store.at_rest.repair.at_rest import StoreAtRest
from aerobee.store.disk.files import Files
from aerobee.store.disk.segment_names import segment_name
from aerobee.store.inspect.log_files import reader_of
from aerobee.store.inspect.store_layout import FoundFile
from aerobee.store.log.scan.sources import Source, Window
from aerobee.store.queues.queue_view import ENTRY, ENTRY_BYTES, PRE_BLANK, names_record


def put_in_places(rest: StoreAtRest, moves: Sequence[tuple[str, int]]) -> None:
    """Give segment files their own names: (path, its right start).

    All are moved out first, because they may hold each other's names. Broken off in between, the
    next repair finds them in lost+found under the names they are to have.
    """
    waiting: list[tuple[str, str]] = []
    for path, start in moves:
        target = os.path.join(os.path.dirname(path), segment_name(start))
        waiting.append((rest.take_out(path, target), target))
    for aside, target in waiting:
        put_back(rest, aside, target)


def put_back(rest: StoreAtRest, aside: str, target: str) -> None:
    """Bring a file from lost+found back to its place."""
    rest.files.rename(aside, target)
    rest.files.sync_directory(os.path.dirname(target))
    rest.files.sync_directory(os.path.dirname(aside))


def make_blank_segment(rest: StoreAtRest, path: str) -> None:
    """Make an empty segment, which begins with a blank, so that numbering is kept."""
    files, size = rest.files, rest.store.sizes.segment_bytes
    with rest.changing(path, create=not files.exists(path)) as fd:
        files.set_size(fd, size)
        files.write(fd, 0, encode_blank(size))
    files.sync_directory(os.path.dirname(path))


def set_length(rest: StoreAtRest, path: str) -> None:
    """Lengthen a segment with zeros, or cut it off; the bytes cut are kept."""
    files, wanted = rest.files, rest.store.sizes.segment_bytes
    found = files.size_of(path)
    with rest.changing(path) as fd:
        if found > wanted and files.last_nonzero(fd, wanted, found) > wanted:
            rest.keep_bytes(path, wanted, found)
        files.set_size(fd, wanted)


def blank_entries(rest: StoreAtRest, ranges: Sequence[tuple[int, int]]) -> None:
    """Make a pre-blank of each entry that leads into one of these ranges of log offsets, whatever
    slot of whatever queue it is in."""
    ordered = sorted(ranges)
    starts = [start for start, _ in ordered]
    if not ordered:
        return
    for queue in rest.store.queues.values():
        slots: dict[str, list[int]] = {}
        for first, entries in queue.chunks():
            for slot, (log_offset, size, _) in enumerate(ENTRY.iter_unpack(entries), first):
                index = bisect_right(starts, log_offset) - 1
                if index >= 0 and log_offset < ordered[index][1] and names_record(log_offset, size):
                    path, position = queue.place(slot)
                    slots.setdefault(path, []).append(position)
        for path, positions in slots.items():
            _blank_entries_of(rest, path, positions)
    rest.store.close()


def _blank_entries_of(rest: StoreAtRest, path: str, positions: Sequence[int]) -> None:
    end = positions[-1] + ENTRY_BYTES
    # Not at the place where the rebuild will put the whole directory.
    rest.keep_bytes(path, positions[0], end, below="overwritten")
    with rest.changing(path) as fd:
        for position in positions:
            rest.files.write(fd, position, PRE_BLANK)


def fill(rest: StoreAtRest, path: str, start: int, end: int, store_ms: int) -> None:
    """Put sound records that concern nobody over log offsets [start, end) of one segment.

    At the segment's end a blank is enough.
    """
    files, size = rest.files, rest.store.sizes.segment_bytes
    first = start // size * size
    position, stop = start - first, end - first
    with rest.changing(path) as fd:
        high = files.last_nonzero(fd, position, stop)
        if high > position:
            rest.keep_bytes(path, position, high)
        if stop == size:
            files.zero(fd, position + BLANK_BYTES, size)
            files.write(fd, position, encode_blank(size - position))
        else:
            for log_offset, record in fillers(start, end, store_ms):
                files.write(fd, log_offset - first, record)


def can_fill(start: int, end: int, segment_bytes: int) -> bool:
    """Whether there is room for a record, or for a blank at the end of the segment."""
    if end % segment_bytes == 0:
        return end - start >= BLANK_BYTES
    return end - start >= SMALLEST


def zero(rest: StoreAtRest, path: str, position: int, high: int) -> None:
    """Overwrite bytes above the log's end with zeros."""
    rest.keep_bytes(path, position, high)
    with rest.changing(path) as fd:
        rest.files.zero(fd, position, high)


def restore_table(rest: StoreAtRest, path: str, backup: str) -> None:
    """Put a table's backup in its place; the damaged one is kept, and the backup stays."""
    files = rest.files
    temporary = f"{path}.tmp"
    take_out_all(rest, (path, temporary))
    rest.copy(backup, temporary)
    files.rename(temporary, path)
    files.sync_directory(os.path.dirname(path))


def take_out_all(rest: StoreAtRest, paths: Sequence[str]) -> None:
    """Take out those of the files that are there."""
    for path in paths:
        if rest.files.exists(path):
            rest.take_out(path)


def in_lost_and_found(rest: StoreAtRest, start: int) -> str | None:
    """A whole segment of that start that an earlier command has taken out, None without one."""
    files, name = rest.files, segment_name(start)
    for directory in rest.asides():
        path = os.path.join(directory, "commitlog", name)
        if files.exists(path) and files.size_of(path) == rest.store.sizes.segment_bytes:
            file = FoundFile(path, start, rest.store.sizes.segment_bytes)
            if head_at(files, file, rest.store.sizes.segment_bytes, 0) is not None:
                return path
    return None


def head_at(files: Files, file: FoundFile, segment_bytes: int, position: int) -> RecordHead | None:
    """The head of the record or blank there, None without one."""
    with closing(Source(files, file.path)) as source:
        reader = reader_of(file, segment_bytes, Window(source))
        try:
            return reader.head(file.start + position, CHECK_NOTHING)
        except CorruptRecord:
            return None


def holds_records_from(files: Files, file: FoundFile, position: int) -> bool:
    """Whether a sound record begins at or after `position`, if the segment were the whole file."""
    with closing(Source(files, file.path)) as source:
        reader = reader_of(file, file.size, Window(source))
        written = file.start + reader.written_end(position)
        return any(
            place is not None and reader.is_sound(place, CHECK_BODY)
            for place in reader.magics(file.start + position, written)
        )


def same_bytes(files: Files, one: str, other: str) -> bool:
    """Whether two files hold the same bytes."""
    with closing(Source(files, one)) as first, closing(Source(files, other)) as second:
        return first.size == second.size and all(
            first.read(position, 4 << 20) == second.read(position, 4 << 20)
            for position in range(0, first.size, 4 << 20)
        )


def written(files: Files, path: str) -> int:
    """The position after a file's last byte that is not zero."""
    with closing(Source(files, path)) as source:
        return source.last_nonzero(0, source.size)
