"""Makes a store of a backup: tables and log are copied and checked, queues and index made again.

All is copied to `restoring/` first, and takes its place when it is whole, the log as the last. So a
restore that is broken off leaves nothing that looks like a store with messages; run again, it
begins anew. Then the queues get their ends, so that numbering goes on where it was, the offsets
file gets the mark, and the rebuild of a store at rest makes queues and index of the log.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec

from aerobee.config.model import Settings
from aerobee.store.at_rest.backup import manifest as layout
from aerobee.store.at_rest.backup.backup import check_apart
from aerobee.store.at_rest.backup.copying import (
    Pace,
    copy_checked,
    make_directory,
    naming,
    opened,
    read_whole,
)
from aerobee.store.at_rest.backup.manifest import OFFSETS, QUEUES, CopiedSegment, Manifest, Snapshot
from aerobee.store.at_rest.backup.store_source import QueueEnd
from aerobee.store.at_rest.repair.at_rest import StoreAtRest
from aerobee.store.at_rest.repair.rebuild import RebuildReport, rebuild
from aerobee.store.disk.files import Clock, Files
from aerobee.store.disk.offsets_file import DerivedMarks, Offsets, OffsetsFile, decode
from aerobee.store.disk.segment_names import segment_name
from aerobee.store.errors import BackupDamaged, BackupRefused
from aerobee.store.log.compiled import Compiled
from aerobee.store.queues.queue_view import ENTRY_BYTES, PRE_BLANK
from aerobee.store.recovery.recovery_report import Progress

RESTORING = "restoring"
# A restore that was broken off may have put these in place; the log comes last.
_BEFORE_LOG = ("config", "namesrv", "consumequeue")
_SIZES = {
    "consume_queue_segment_bytes": "queue_bytes",
    "index_slots": "index_slots",
    "index_entries": "index_entries",
    "consume_queue_ext_segment_bytes": "extension_bytes",
}


@dataclass
class RestoreReport:
    """The restored store: its log has all records of the old one in [`log_begins`, `mark`)."""

    root: str
    mark: int
    log_begins: int
    time_ms: int
    copied_bytes: int = 0
    rebuilt: RebuildReport | None = None
    #: Queues that had messages and have none now: settings are missing (multi-dispatch), or the
    #: records are damaged.
    emptied: list[str] = field(default_factory=list)


def restore(
    target: str,
    settings: Settings,
    given: Collection[str] = (),
    files: Files | None = None,
    clock: Clock | None = None,
    *,
    compiled: Compiled | None = None,
    progress: Progress | None = None,
) -> RestoreReport:
    """Make the store `settings.store_path`, which is empty or not there, of the backup `target`.

    Sizes of files that nobody has `given` are those of the backup. Raises BackupRefused,
    BackupDamaged, StoreError of the rebuild, OSError; without a whole log in place nothing that
    looks like a store is left.
    """
    files, clock, target = files or Files(), clock or Clock(), os.path.abspath(target)
    manifest = layout.load(files, target)
    snapshot = manifest.snapshot
    if snapshot is None:
        raise BackupRefused(
            f"{target} is the beginning of a backup that has not come to its end; run 'aerobee "
            "store backup' again"
        )
    settings, given = _with_sizes(settings, given, manifest)
    root = settings.store_path
    check_apart(target, (root,))
    _check_root(files, settings)
    run = manifest.restorable()
    if (run[-1].end if run else snapshot.mark) < snapshot.mark:
        raise BackupDamaged(f"{target} has no segment that reaches its mark {snapshot.mark}")
    begins = run[0].start if run else snapshot.mark
    report = RestoreReport(root, snapshot.mark, begins, snapshot.time_ms)
    pace = Pace(clock, progress=progress, what="copying the backup")
    copy = _Copy(files, target, manifest, snapshot, pace)
    copy.run(root, run)
    report.copied_bytes = pace.done
    if run:
        with StoreAtRest(settings, given, files, clock, compiled=compiled) as rest:
            OffsetsFile(files, root).save(copy.offsets(root, run[0].start))
            rest.look()
            report.rebuilt = rebuild(rest, progress=progress)
            _forget_notes(rest, report.rebuilt)
            rest.look()
            report.emptied = [one for one in copy.with_messages if not _has_messages(rest, one)]
            rest.store.close()
    return report


def _has_messages(rest: StoreAtRest, name: str) -> bool:
    topic, _, queue_id = name.rpartition("/")
    queue = rest.store.queues.get((topic, int(queue_id)))
    return queue is not None and queue.first_named(0, queue.max_offset) is not None


def _forget_notes(rest: StoreAtRest, rebuilt: RebuildReport) -> None:
    """Remove what the rebuild has put aside: the notes of where the queues end."""
    if rebuilt.aside is not None:
        rest.files.remove_tree(rebuilt.aside)
        rest.files.sync_directory(rest.root)
        rebuilt.aside = None


def _with_sizes(
    settings: Settings, given: Collection[str], manifest: Manifest
) -> tuple[Settings, Collection[str]]:
    """The settings with the sizes of the backup where nobody chose others; all count as given."""
    sizes = {
        name: getattr(manifest.sizes, ours) for name, ours in _SIZES.items() if name not in given
    }
    sizes["commit_log_segment_bytes"] = manifest.sizes.segment_bytes
    return settings.with_changes(**sizes), {*given, *sizes, *_SIZES}


def _check_root(files: Files, settings: Settings) -> None:
    root = settings.store_path
    if settings.commit_log_directories != (os.path.join(root, "commitlog"),):
        raise BackupRefused(
            "a restore puts the log into DIR/commitlog. Leave storePathCommitLog out, and move "
            "the segments to their directories afterwards."
        )
    if files.exists(root) and not files.is_directory(root):
        raise BackupRefused(f"{root} is a file; name an empty or new directory")
    names = set(files.names(root)) - {"lost+found"}
    broken_off = RESTORING in names and "commitlog" not in names
    if names - ({RESTORING, *_BEFORE_LOG} if broken_off else set()):
        raise BackupRefused(
            f"{root} is not empty, and a restore overwrites nothing. Name an empty or new "
            "directory, or move away what is there."
        )


class _Copy:
    """Copies a backup to a store's directory."""

    def __init__(
        self, files: Files, target: str, manifest: Manifest, snapshot: Snapshot, pace: Pace
    ) -> None:
        self._files = files
        self._target = target
        self._sizes = manifest.sizes
        self._snapshot = snapshot
        self._pace = pace
        self._known: Offsets | None = None
        #: The queues that had messages, as TOPIC/ID.
        self.with_messages: list[str] = []

    def run(self, root: str, segments: tuple[CopiedSegment, ...]) -> None:
        """Copy and check all, then put it in place."""
        files, staged = self._files, os.path.join(root, RESTORING)
        make_directory(files, root)
        for name in (RESTORING, *_BEFORE_LOG):
            files.remove_tree(os.path.join(root, name))
        make_directory(files, os.path.join(staged, "commitlog"))
        self._pace.total = sum(one.bytes for one in self._snapshot.files)
        self._pace.total += sum(one.bytes for one in segments)
        try:
            self._copy_tables(staged)
            for segment in segments:
                self._copy_segment(staged, segment)
            files.sync_directory(os.path.join(staged, "commitlog"))
        except BaseException:
            files.remove_tree(staged)
            raise
        names = [name for name in files.names(staged) if name in _BEFORE_LOG]
        for name in (*names, *(["commitlog"] if segments else [])):
            files.rename(os.path.join(staged, name), os.path.join(root, name))
            files.sync_directory(root)
        files.remove_tree(staged)
        files.sync_directory(root)

    def _copy_tables(self, staged: str) -> None:
        files = self._files
        for one in self._snapshot.files:
            source = os.path.join(self._target, self._snapshot.directory, one.name)
            copy = os.path.join(staged, one.name)
            make_directory(files, os.path.dirname(copy))
            copy_checked(files, source, copy, (one.bytes, one.crc32c), self._pace)
            files.sync_directory(os.path.dirname(copy))
        for name in (one.name for one in self._snapshot.files):
            copy = os.path.join(staged, name)
            if name == OFFSETS:
                self._known = decode(read_whole(files, copy))
            elif name == QUEUES:
                ends = msgspec.json.decode(read_whole(files, copy), type=list[QueueEnd])
                self.with_messages = [
                    f"{one.topic}/{one.queue_id}" for one in ends if one.has_messages
                ]
                for end in ends:
                    self._note_end(staged, end)

    def _copy_segment(self, staged: str, segment: CopiedSegment) -> None:
        copy_checked(
            self._files,
            os.path.join(self._target, segment.name),
            os.path.join(staged, "commitlog", segment_name(segment.start)),
            (segment.bytes, segment.crc32c),
            self._pace,
            up_to=self._snapshot.mark - segment.start,
            size=self._sizes.segment_bytes,
        )

    def _note_end(self, staged: str, queue: QueueEnd) -> None:
        """Make the queue's last file, with nothing but its end: the rebuild lets no queue end lower
        than it did, also if all its messages are gone."""
        files, size = self._files, self._sizes.queue_bytes
        last = (queue.end - 1) * ENTRY_BYTES
        directory = os.path.join(staged, "consumequeue", queue.topic, str(queue.queue_id))
        make_directory(files, directory)
        path = os.path.join(directory, segment_name(last // size * size))
        with opened(files, path, create=True) as fd, naming(path):
            files.set_size(fd, size)
            files.write(fd, 0, PRE_BLANK * (last % size // ENTRY_BYTES + 1))
            files.sync(fd)
        files.sync_directory(directory)

    def offsets(self, root: str, log_begins: int) -> Offsets:
        """The content of the new store's offsets file: its log reaches the mark."""
        known, mark = self._known, self._snapshot.mark
        nothing = DerivedMarks(0, 0)
        return Offsets(
            flushed=mark,
            last_store_ms=known.last_store_ms if known else 0,
            synced=nothing,
            live=nothing,
            indexed=-1,
            index_files=(),
            gaps=tuple(gap for gap in known.gaps if gap[0] < mark) if known else (),
            identity=OffsetsFile(self._files, root).identity(),
            log_begins=log_begins,
            segment_bytes=self._sizes.segment_bytes,
            renumbered=tuple(one for one in known.renumbered if one[1] <= mark) if known else (),
        )
