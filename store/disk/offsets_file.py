"""Our own file beside RocketMQ's checkpoint: up to which log offset what is safe
(docs/reliability.md 4).

`<root>/offsets` lets a start begin at an offset instead of a time, and tells damage from a torn
tail: a bad record below `flushed` was once whole on the disk. RocketMQ ignores the file, and having
run on the directory makes it worthless: it rewrites `lock`, whose inode and time we note.

Two sets of marks for what is derived from the log. `synced` holds after a power cut: entries and
keys of records below it were synced. `live` holds while the machine has not gone down since
(`boot_id`), because what a killed process has written is still there; it is never more than a
moment old. `entries` is the sum of all queues' ends when the mark was taken: fewer at a start mean
that somebody took queues away, which no mark would show. What is taken away in front shows in
`log_begins` and `queues_begin`, which deletion moves before its files go. `renumbered` names topics
whose queues were taken out: from there on their numbers may begin at 0 again, which no record says.

One line of JSON and one with its CRC-32C, so that an operator can read it. It is written to a
temporary name, synced, renamed, and the directory synced: after a crash there is the old one or the
new one, and both are true. The marks it names were synced before.
"""

import logging
import os

import msgspec

from aerobee.protocol.checksum import crc32c
from aerobee.store.disk.files import Files, is_full

log = logging.getLogger("aerobee.store")

NAME = "offsets"
_VERSION = 1
#: More than gaps, topics taken out and the names of all index files come to.
MOST_BYTES = 64 << 20
#: Gaps that are remembered; the log file has all of them.
MOST_GAPS = 4096
#: Topics taken out that are remembered; the file is written once a second.
MOST_RENUMBERED = 256


class DerivedMarks(msgspec.Struct, frozen=True):
    """Records below `log_offset` have their entries; their queues' ends add up to `entries`."""

    log_offset: int = 0
    entries: int = msgspec.field(default=0, name="units")


class Identity(msgspec.Struct, frozen=True):
    """Sets the directory and the machine's run apart from a copy and from another run."""

    boot_id: str
    lock_inode: int
    lock_mtime_ns: int


class ClockNote(msgspec.Struct, frozen=True):
    """The wall clock when it was last noted, 0 if not known; see `steady_time.py`."""

    wall_ms: int = 0
    #: Steps forward that do not count yet: by how many ms, and for how many more.
    held: tuple[tuple[int, int], ...] = ()


class Offsets(msgspec.Struct, frozen=True):
    """The content. Log offsets in bytes; `gaps` are [start, end) without a usable record."""

    flushed: int
    last_store_ms: int
    synced: DerivedMarks
    live: DerivedMarks
    #: Records below have their keys synced; -1 while there is no index.
    indexed: int
    index_files: tuple[str, ...]
    gaps: tuple[tuple[int, int], ...]
    identity: Identity
    #: Log offset of the last record with keys in the index, as of `live`; -1 if not known.
    index_end: int = -1
    poisoned: bool = False
    #: Log offset of the first segment; the sum of the queues' first slots. -1 if not known.
    log_begins: int = -1
    queues_begin: int = -1
    #: Length of a segment; 0 if not known. One file alone cannot tell whether somebody changed it.
    segment_bytes: int = 0
    #: A recovery has begun to take entries of the queues back, and has not come to its end.
    rewriting: bool = False
    clock: ClockNote = ClockNote()
    #: Topics whose queues were taken out, oldest first, and the log's end when they last were.
    renumbered: tuple[tuple[str, int], ...] = ()
    version: int = _VERSION


class OffsetsFile:
    """The file of one store directory."""

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self._root = root
        self._lock_path = os.path.join(root, "lock")
        self.path = os.path.join(root, NAME)
        self._temporary = self.path + ".tmp"
        self._stored: Offsets | None = None
        # The last save found no room.
        self._refused = False

    def identity(self) -> Identity:
        """The identity of the directory now and of this run of the machine. Raises OSError."""
        inode, mtime_ns = self._files.identity(self._lock_path)
        return Identity(self._files.boot_id(), inode, mtime_ns)

    def load(self) -> Offsets | None:
        """The stored content; None without a file, or if its bytes are not as they were written.

        Whether it speaks of this directory is the caller's to judge, by `identity`.
        """
        if not self._files.exists(self.path) or self._files.is_directory(self.path):
            return None
        with self._files.opened(self.path, read_only=True) as fd:
            data = self._files.read(fd, 0, MOST_BYTES)
        found = decode(data)
        if found is None:
            log.warning("offsets file is damaged, recovering without it path=%s", self.path)
        return found

    def save(self, offsets: Offsets) -> None:
        """Put `offsets` in the place of what is stored, unless they are the same.

        Raises OSError; the file that was there stays then.
        """
        if offsets == self._stored:
            return
        is_new = not self._files.exists(self._temporary)
        with self._files.opened(self._temporary, create=is_new) as fd:
            self._files.set_size(fd, 0)
            self._files.write(fd, 0, encode(offsets))
            self._files.sync(fd)
        self._files.rename(self._temporary, self.path)
        self._files.sync_directory(self._root)
        self._stored = offsets

    def save_if_room(self, offsets: Offsets) -> None:
        """Save (see `save`), but on a full disk leave the older marks. They are as true as before,
        the next start only has more to read; and nobody has to wait for a block."""
        try:
            self.save(offsets)
        except OSError as error:
            if not is_full(error):
                raise
            if not self._refused:
                log.warning("not written, the disk is full path=%s", self.path)
            self._refused = True
        else:
            self._refused = False


def encode(offsets: Offsets) -> bytes:
    """The file's bytes."""
    line = msgspec.json.encode(offsets) + b"\n"
    return line + b"crc32c=%08x\n" % crc32c(line)


def decode(data: bytes) -> Offsets | None:
    """The content of the file's bytes, None if they are not whole."""
    line, newline, checksum = data.partition(b"\n")
    line += newline
    if checksum != b"crc32c=%08x\n" % crc32c(line):
        return None
    try:
        found = msgspec.json.decode(line, type=Offsets)
    except msgspec.DecodeError:
        return None
    return found if found.version == _VERSION else None
