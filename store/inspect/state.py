"""The small files of a store directory: checkpoint, our offsets file, abort, lock."""

import os
from dataclasses import dataclass

from aerobee.store.disk.checkpoint import CHECKPOINT_BYTES, TIMES
from aerobee.store.disk.files import Files
from aerobee.store.disk.offsets_file import MOST_BYTES, NAME, Offsets, OffsetsFile, decode
from aerobee.store.inspect.audit_report import Findings
from aerobee.store.log.scan.sources import Source

LOCK_CONTENT = b"lock"


def was_left_open(files: Files, root: str) -> bool:
    """Whether the last run did not end in order."""
    return files.exists(os.path.join(root, "abort"))


@dataclass(frozen=True, slots=True)
class KnownMarks:
    """The marks in our offsets file, as far as a start would believe them.

    `ours`: it belongs to this directory (otherwise it is a copy, or RocketMQ ran since).
    `same_boot`: besides, the machine has not gone down since.
    """

    offsets: Offsets | None = None
    damaged: bool = False
    ours: bool = False
    same_boot: bool = False

    @property
    def believed(self) -> Offsets | None:
        """The offsets in the file, if it belongs to this directory."""
        return self.offsets if self.ours else None

    @property
    def flushed(self) -> int:
        """The log offset up to which the log was surely on the disk; 0 if that is not known."""
        return 0 if self.believed is None else self.believed.flushed

    @property
    def nothing_lost(self) -> bool:
        """Whether every write of the last run is there, however it ended."""
        return self.believed is not None and self.same_boot and not self.believed.poisoned

    @property
    def entered(self) -> int | None:
        """The log offset below which all records had their entries on the disk; a copy of a store
        has the same entries. None if that is not known."""
        if self.offsets is None:
            return None
        return (self.offsets.live if self.same_boot else self.offsets.synced).log_offset

    def knows_gap(self, start: int, end: int) -> bool:
        """Whether a recovery has met this damaged range before."""
        gaps = () if self.believed is None else self.believed.gaps
        return any(first <= start and end <= last for first, last in gaps)


def read_marks(files: Files, root: str) -> KnownMarks:
    """Read the offsets file and compare it with the directory."""
    path = os.path.join(root, NAME)
    if not files.exists(path) or files.is_directory(path):
        return KnownMarks()
    offsets = decode(read_small(files, path, MOST_BYTES))
    if offsets is None:
        return KnownMarks(damaged=True)
    if not files.exists(os.path.join(root, "lock")):
        return KnownMarks(offsets)
    now = OffsetsFile(files, root).identity()
    then = offsets.identity
    ours = (now.lock_inode, now.lock_mtime_ns) == (then.lock_inode, then.lock_mtime_ns)
    return KnownMarks(
        offsets, False, ours, ours and bool(now.boot_id) and now.boot_id == then.boot_id
    )


def check_marks(
    marks: KnownMarks, root: str, log_start: int, log_end: int, findings: Findings
) -> None:
    """Report the statements of the offsets file that are wrong."""
    path = os.path.join(root, NAME)
    if marks.damaged:
        findings.add("offsets-damaged", path, None, "is not as it was written")
    elif marks.offsets is not None and not marks.ours:
        findings.add(
            "offsets-foreign",
            path,
            None,
            "was written for another directory, or RocketMQ ran on this one since",
        )
    begins = -1 if marks.believed is None else marks.believed.log_begins
    if 0 <= begins < log_start:
        findings.add(
            "log-front-missing",
            path,
            None,
            f"the log began at {begins}, its first file begins at {log_start}: "
            f"{log_start - begins} bytes are missing that deletion has not taken",
            log_offset=begins,
        )
    if marks.flushed > log_end:
        findings.add(
            "log-short",
            path,
            None,
            f"messages up to log offset {marks.flushed} were on the disk, the log ends at "
            f"{log_end}: {marks.flushed - log_end} bytes are lost",
            log_offset=log_end,
        )
    if marks.believed is not None and marks.believed.poisoned:
        findings.add("poisoned", path, None, "the last run stopped because a write or sync failed")


def check_lock(files: Files, root: str, findings: Findings) -> None:
    """Check the content of the file whose lock keeps a second broker out."""
    path = os.path.join(root, "lock")
    if not files.exists(path):
        return
    content = read_small(files, path, 64)
    if content != LOCK_CONTENT:
        findings.add("lock-content", path, None, f"holds {content!r} instead of {LOCK_CONTENT!r}")


def read_checkpoint(files: Files, root: str) -> tuple[int, ...] | None:
    """The three times; None without a file that has them."""
    path = os.path.join(root, "checkpoint")
    if not files.exists(path) or files.is_directory(path):
        return None
    data = read_small(files, path, TIMES.size)
    return TIMES.unpack(data) if len(data) == TIMES.size else None


def check_checkpoint(files: Files, root: str, newest_ms: int, findings: Findings) -> None:
    """Check the length, the unused rest, and times that no message of the log has reached.

    `newest_ms` is the newest message's store time, 0 if that is not known.
    """
    path = os.path.join(root, "checkpoint")
    if files.is_directory(path):
        return  # already reported
    if not files.exists(path):
        findings.add("checkpoint-damaged", path, None, "is not there")
        return
    data = read_small(files, path, CHECKPOINT_BYTES + 1)
    if len(data) != CHECKPOINT_BYTES:
        findings.add(
            "checkpoint-damaged", path, None, f"has not the {CHECKPOINT_BYTES} bytes it should have"
        )
    # RocketMQ 5 keeps two more values after the three times.
    rest = data[TIMES.size + 16 :]
    if rest.count(0) != len(rest):
        findings.add("checkpoint-tail", path, TIMES.size, "holds something behind its times")
    if len(data) < TIMES.size:
        return
    for name, position, time_ms in zip(
        ("commit log", "consume queues", "index"), (0, 8, 16), TIMES.unpack_from(data), strict=True
    ):
        if time_ms < 0:
            findings.add(
                "checkpoint-damaged", path, position, f"the time of the {name} is {time_ms}"
            )
        elif time_ms > newest_ms > 0:
            findings.add(
                "checkpoint-ahead",
                path,
                position,
                f"says the {name} is on disk up to {time_ms}, the newest message was stored at "
                f"{newest_ms}",
            )


def read_small(files: Files, path: str, most: int) -> bytes:
    """The first `most` bytes of a file. Raises OSError, except for blocks the disk refuses."""
    source = Source(files, path)
    try:
        return source.read(0, most)
    finally:
        source.close()
