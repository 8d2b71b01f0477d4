"""The manifest of a backup: what its directory holds, with a CRC-32C for each file.

A backup is a directory with the file `manifest`, the copied segments below `log/`, and the small
files of one moment below `tables-<number>/` (store/FORMAT.md 14). Nothing in it is believed that
the manifest does not name: a file is synced first, and its directory, then the manifest is
replaced. So a backup that is broken off anywhere is the backup that it was before, with more
segments perhaps, which the next run goes on from.

The file is JSON, indented, and a last line with the CRC-32C of all before it.
"""

import os

import msgspec

from aerobee.protocol.checksum import crc32c
from aerobee.store.disk.files import Files
from aerobee.store.disk.segment_names import segment_name
from aerobee.store.errors import BackupDamaged, BackupRefused

NAME, TEMPORARY, LOCK = "manifest", "manifest.tmp", "backup.lock"
LOG, TABLES = "log", "tables-"
#: Files among the tables that a restore reads, and does not put into the store: the ends of the
#: queues, and what the broker's offsets file said.
QUEUES, OFFSETS = "queues.json", "offsets"
#: Bytes at a segment's beginning whose CRC tells the segments of two brokers apart.
HEAD_BYTES = 4096
#: More than the entries of a million segments come to.
MOST_BYTES = 256 << 20
_VERSION = 1


class CopiedSegment(msgspec.Struct, frozen=True):
    """The first `bytes` of the segment that begins at log offset `start`."""

    start: int
    bytes: int
    crc32c: int
    #: The sum of the first HEAD_BYTES, or of all if there are fewer.
    head_crc32c: int

    @property
    def name(self) -> str:
        """Its path below the backup."""
        return os.path.join(LOG, segment_name(self.start))

    @property
    def end(self) -> int:
        """The log offset up to which it is copied."""
        return self.start + self.bytes


class CopiedFile(msgspec.Struct, frozen=True):
    """A small file; `name` is its path below the directory of the tables."""

    name: str
    bytes: int
    crc32c: int


class FileSizes(msgspec.Struct, frozen=True):
    """The sizes of files that the broker works with, in bytes; of the index in slots and
    entries."""

    segment_bytes: int
    queue_bytes: int
    index_slots: int
    index_entries: int
    extension_bytes: int


class Snapshot(msgspec.Struct, frozen=True):
    """A backup that came to its end: tables that need no record at or above log offset `mark`."""

    mark: int
    time_ms: int
    directory: str
    files: tuple[CopiedFile, ...]


class Manifest(msgspec.Struct, frozen=True):
    """The content. Segments are in the order of their starts; `snapshot` is None until a first
    backup has come to its end."""

    sizes: FileSizes
    segments: tuple[CopiedSegment, ...] = ()
    snapshot: Snapshot | None = None
    version: int = _VERSION

    @property
    def end(self) -> int:
        """The log offset up to which segments are copied; 0 without any."""
        return self.segments[-1].end if self.segments else 0

    def with_segment(self, copied: CopiedSegment) -> "Manifest":
        """With that segment, in the place of an earlier copy of it."""
        others = [one for one in self.segments if one.start != copied.start]
        kept = sorted([*others, copied], key=lambda one: one.start)
        return msgspec.structs.replace(self, segments=tuple(kept))

    def restorable(self) -> tuple[CopiedSegment, ...]:
        """The segments of a log without a hole that ends at the snapshot's mark."""
        below = [one for one in self.segments if self.snapshot and one.start < self.snapshot.mark]
        first = len(below)
        while first and (first == len(below) or below[first - 1].end == below[first].start):
            first -= 1
        return tuple(below[first:])


def encode(manifest: Manifest) -> bytes:
    """The file's bytes."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    return text + b"crc32c=%08x\n" % crc32c(text)


def decode(data: bytes) -> Manifest | None:
    """The content of the file's bytes; None if they are not as they were written."""
    text, found, _ = data.rpartition(b"crc32c=")
    if not found or data != text + b"crc32c=%08x\n" % crc32c(text):
        return None
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except msgspec.DecodeError:
        return None
    if manifest.version != _VERSION or not all(map(_is_below, _names(manifest))):
        return None
    return manifest


def _names(manifest: Manifest) -> list[str]:
    """The names that the manifest gives itself; those of segments follow from numbers."""
    snapshot = manifest.snapshot
    return [] if snapshot is None else [snapshot.directory, *(one.name for one in snapshot.files)]


def _is_below(name: str) -> bool:
    """Whether a path stays below the directory that it is joined to."""
    return bool(name) and {"", ".", ".."}.isdisjoint(name.split("/"))


def is_there(files: Files, target: str) -> bool:
    """Whether the directory has a manifest."""
    return files.exists(os.path.join(target, NAME))


def load(files: Files, target: str) -> Manifest:
    """The manifest of a backup. Raises BackupRefused without one, BackupDamaged if it cannot be
    believed, OSError."""
    path = os.path.join(target, NAME)
    if not files.exists(path):
        raise BackupRefused(
            f"{target} is no backup: it has no file {NAME!r}. Name the directory that 'aerobee "
            "store backup' wrote to."
        )
    with files.opened(path, read_only=True) as fd:
        manifest = decode(files.read(fd, 0, MOST_BYTES))
    if manifest is None:
        raise BackupDamaged(
            f"{path} is not as it was written, so nothing in the backup can be believed. Take "
            "another backup, or begin a new one in an empty directory."
        )
    return manifest


def save(files: Files, target: str, manifest: Manifest) -> None:
    """Put `manifest` in the place of what is there. Raises OSError; the old one stays then."""
    temporary = os.path.join(target, TEMPORARY)
    is_new = not files.exists(temporary)
    with files.opened(temporary, create=is_new) as fd:
        files.set_size(fd, 0)
        files.write(fd, 0, encode(manifest))
        files.sync(fd)
    files.rename(temporary, os.path.join(target, NAME))
    files.sync_directory(target)
