"""A disk in memory that writes down, in order, everything that changed on it.

The journal is what `crash_model.py` replays: which pages changed, which sizes, which names, what
was synced. Stores through a mapping are no calls; they are found by comparing the mapped files
before each recorded call and whenever `observe` is called (the runner does after each step), so
between two entries of the journal lies at most one step's worth of stores.

A sync covers what was there when it began. `during_sync` runs between its beginning and its end,
as another thread might.

`note` puts a mark of the test's own in the same order: "this message was acknowledged now".
"""

import errno
import mmap
import os
import weakref
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from tests.sim.disk.memory_files import (
    Image,
    MemoryDirectory,
    MemoryFile,
    MemoryFiles,
    Node,
    absolute,
)

PAGE = 4096


class Stored(NamedTuple):
    """A page of a file has other bytes now (zeros behind the end of the file)."""

    file: int
    page: int
    data: bytes


class Sized(NamedTuple):
    """A file has another length now."""

    file: int
    size: int


class SyncBegan(NamedTuple):
    """The sync that follows is about the file's content of now."""

    file: int


class Synced(NamedTuple):
    """Everything of the file as of the last `SyncBegan` is on the disk."""

    file: int


class SyncFailed(NamedTuple):
    """The sync reported an error: what was unsynced will never be written (reliability.md 3.2)."""

    file: int


class Forgotten(NamedTuple):
    """The pages of a failed sync were dropped from the cache: the disk's older bytes appeared."""

    file: int


class Linked(NamedTuple):
    """A name was made in a directory."""

    directory: int
    name: str
    node: int
    is_directory: bool


class Renamed(NamedTuple):
    """A name took the place of another one, in one directory."""

    directory: int
    source: str
    target: str
    node: int


class Unlinked(NamedTuple):
    """A name was removed."""

    directory: int
    name: str


class DirectorySynced(NamedTuple):
    """The directory's names are on the disk."""

    directory: int


class Note(NamedTuple):
    """Something the test wants to know the place of."""

    what: object


Event: TypeAlias = (
    Stored
    | Sized
    | SyncBegan
    | Synced
    | SyncFailed
    | Forgotten
    | Linked
    | Renamed
    | Unlinked
    | DirectorySynced
    | Note
)


class Start(NamedTuple):
    """The disk before the first entry, all of it durable: files and names, by number."""

    root: int
    root_path: str
    files: dict[int, bytes]
    directories: dict[int, dict[str, int]]


class RecordedFiles(MemoryFiles):
    """`start` and `journal` together are every state the disk went through."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        image: Image | None = None,
        boot: str = "boot 1",
        numbers: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(root, image, boot, numbers)
        self.journal: list[Event] = []
        self.start = self._snapshot()
        # Files mapped for writing, and what was written down of each file last.
        self._mapped: dict[MemoryFile, None] = {}
        self._known: dict[MemoryFile, bytes] = {}
        self._maps: dict[MemoryFile, list[weakref.ref[mmap.mmap]]] = {}
        self.during_sync: Callable[[str], None] | None = None
        # The next sync of a path with that part fails.
        self.fail_sync = ""

    def go_on_from(self, start: Start, journal: list[Event]) -> None:
        """Take over another disk's past, which led to this one's image.

        A file that was removed in it still has a number of its own: a crash may undo the removal.
        """
        self.start = start
        self.journal = list(journal)
        made = [event.node for event in journal if isinstance(event, Linked)]
        self._next_number = max([self._next_number, *start.files, *start.directories, *made])

    def note(self, what: object) -> None:
        """Put a mark of the test's own into the journal."""
        self.observe()
        self.journal.append(Note(what))

    def observe(self) -> None:
        """Write down what was stored through mappings since the last time."""
        for file in self._mapped:
            self._compare(file)

    # --- recorded operations ----------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        fd = super().open(path, create=create, read_only=read_only)
        file = self._open[fd][0]
        if file not in self._known:
            self._known[file] = file.content()
        return fd

    def map(self, fd: int, size: int, *, read_only: bool = False) -> mmap.mmap:
        if not read_only:
            self._mapped[self._open[fd][0]] = None
        memory = super().map(fd, size, read_only=read_only)
        self._maps.setdefault(self._open[fd][0], []).append(weakref.ref(memory))
        return memory

    def is_mapped(self, file: MemoryFile) -> bool:
        """Whether some mapping of the file is still there."""
        maps = [reference() for reference in self._maps.get(file, [])]
        return any(memory is not None and not memory.closed for memory in maps)

    def set_size(self, fd: int, size: int) -> None:
        self.observe()
        super().set_size(fd, size)
        self._compare(self._open[fd][0])

    def reserve(self, fd: int, position: int, length: int) -> None:
        self.observe()
        super().reserve(fd, position, length)
        self._compare(self._open[fd][0])

    def write(self, fd: int, position: int, data: bytes | bytearray | memoryview) -> None:
        self.observe()
        try:
            super().write(fd, position, data)
        finally:  # a write that failed may have written a part
            self._compare(self._open[fd][0])

    def data_sync(self, fd: int) -> None:
        self._record_sync(fd, super().data_sync)

    def sync(self, fd: int) -> None:
        self._record_sync(fd, super().sync)

    def sync_directory(self, path: str) -> None:
        self.observe()
        super().sync_directory(path)
        self.journal.append(DirectorySynced(self._nodes[absolute(path)].number))

    def rename(self, source: str, target: str) -> None:
        self.observe()
        super().rename(source, target)
        directory, name = os.path.split(absolute(source))
        same, new_name = os.path.split(absolute(target))
        assert directory == same, "the model knows renames within one directory only"
        self.journal.append(
            Renamed(
                self._nodes[directory].number, name, new_name, self._nodes[absolute(target)].number
            )
        )

    def _link(self, path: str, node: Node) -> None:
        self.observe()
        super()._link(path, node)
        directory, name = os.path.split(path)
        self.journal.append(
            Linked(
                self._nodes[directory].number, name, node.number, isinstance(node, MemoryDirectory)
            )
        )

    def _unlink(self, path: str) -> None:
        self.observe()
        super()._unlink(path)
        directory, name = os.path.split(path)
        self.journal.append(Unlinked(self._nodes[directory].number, name))

    # --- the rest ---------------------------------------------------------------------------

    def _record_sync(self, fd: int, call: Callable[[int], None]) -> None:
        file, path = self._open[fd]
        self.observe()
        self.journal.append(SyncBegan(file.number))
        meanwhile, self.during_sync = self.during_sync, None
        if meanwhile is not None:
            meanwhile(path)
            self.observe()
        try:
            if self.fail_sync and self.fail_sync in path:
                self.fail_sync = ""
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            call(fd)
        except OSError:
            self.journal.append(SyncFailed(file.number))
            raise
        self.journal.append(Synced(file.number))

    def _compare(self, file: MemoryFile) -> None:
        """Write down the pages and the length that differ from what is known of the file."""
        now = file.content()
        before = self._known[file]
        if now == before:
            return
        self._known[file] = now
        if len(now) != len(before):
            self.journal.append(Sized(file.number, len(now)))
        for page, at in enumerate(range(0, max(len(now), len(before)), PAGE)):
            data = now[at : at + PAGE].ljust(PAGE, b"\0")
            if data != before[at : at + PAGE].ljust(PAGE, b"\0"):
                self.journal.append(Stored(file.number, page, data))

    def _snapshot(self) -> Start:
        files: dict[int, bytes] = {}
        directories: dict[int, dict[str, int]] = {}
        for path, node in self._nodes.items():
            if path != self.root and not path.startswith(self.root + "/"):
                continue
            if isinstance(node, MemoryFile):
                files[node.number] = node.content()
            else:
                directories[node.number] = {
                    name: entry.number for name, entry in node.entries.items()
                }
        return Start(self._nodes[self.root].number, self.root, files, directories)
