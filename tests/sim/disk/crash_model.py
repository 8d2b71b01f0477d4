"""The possible states of a disk after a crash: the journal of `recorded_files.py`, replayed.

It is pessimistic on purpose, more than any single file system is. After a crash

- a page of 4 KiB that was not synced holds any of the contents it had since its last sync;
- it may be torn: each of its sectors of 512 bytes of another one of them;
- a file has any length it had since its last sync, whatever became of its pages;
- each name made, renamed or removed since the directory's last sync is there or not, on its own;
- after a failed sync its pages and names are in doubt for good, unless written again: a later sync
  that succeeds says nothing about them (docs/reliability.md 3.2).

Everything that may be one way or another is a `Doubt`. A state of the disk is one version picked
for each doubt; version 0 is the oldest (what the disk had for certain), the last one what the
running store saw.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from tests.sim.disk.recorded_files import (
    PAGE,
    DirectorySynced,
    Event,
    Forgotten,
    Linked,
    Note,
    Renamed,
    Sized,
    Start,
    Stored,
    SyncBegan,
    Synced,
    SyncFailed,
    Unlinked,
)

SECTOR = 512
SECTORS = PAGE // SECTOR
_SIZE = -1  # a file's length among its pages

#: A version of a doubt; for a torn page one of each sector.
Pick: TypeAlias = int | tuple[int, ...]
#: A built state: as `memory_files.Image`, but a plain dict.
State: TypeAlias = dict[str, bytes | None]
_NameChange: TypeAlias = Linked | Renamed | Unlinked


class Doubt(NamedTuple):
    """Something that is one way or another after a crash."""

    kind: str  # "name", "size" or "page"
    number: int  # of the directory or file
    index: int  # of the pending change of names, or of the page
    versions: int
    # The last version was the matter of a sync that failed.
    stuck: bool = False


class _FileModel:
    """A file: what is durable of it, and the versions of what is not."""

    def __init__(self, content: bytes = b"") -> None:
        self.size = len(content)
        self.pages: dict[int, bytes] = {
            number: content[at : at + PAGE].ljust(PAGE, b"\0")
            for number, at in enumerate(range(0, len(content), PAGE))
        }
        # Versions of each page in doubt (lengths under _SIZE); the first is the durable one.
        self.versions: dict[int, list[bytes | int]] = {}
        self._began: dict[int, int] = {}
        self._stuck: dict[int, int] = {}
        self._built: dict[tuple[tuple[int, Pick], ...], bytes] = {}

    def change(self, item: int, value: bytes | int) -> None:
        durable = self.size if item == _SIZE else self.pages.get(item, bytes(PAGE))
        self.versions.setdefault(item, [durable]).append(value)
        self._built.clear()

    def sync_began(self) -> None:
        self._began = {item: len(versions) - 1 for item, versions in self.versions.items()}

    def sync_failed(self) -> None:
        # Pages count as clean afterwards; the length is no page, a later sync brings it.
        self._stuck |= {item: at for item, at in self._began.items() if item != _SIZE}

    def synced(self) -> None:
        for item, version in self._began.items():
            if self._stuck.get(item, -1) >= version:
                continue
            self._stuck.pop(item, None)
            versions = self.versions[item] = self.versions[item][version:]
            value = versions[0]
            if isinstance(value, int):
                self.size = value
            else:
                self.pages[item] = value
            if len(versions) == 1:
                del self.versions[item]
        self._began = {}
        self._built.clear()

    def forgotten(self) -> None:
        for item in list(self.versions):
            if self.is_stuck(item):
                del self.versions[item]
                del self._stuck[item]
        self._built.clear()

    def newest(self) -> bytes:
        """The content that a process sees."""
        picks = [(item, len(versions) - 1) for item, versions in sorted(self.versions.items())]
        return self.content(tuple(picks))

    def is_stuck(self, item: int) -> bool:
        """Whether its newest version was the matter of a sync that failed."""
        return self._stuck.get(item, -1) >= len(self.versions[item]) - 1

    def content(self, picks: tuple[tuple[int, Pick], ...]) -> bytes:
        """The bytes with those versions; what is not mentioned is durable."""
        known = self._built.get(picks)
        if known is None:
            known = self._built[picks] = self._build(dict(picks))
        return known

    def _build(self, picks: dict[int, Pick]) -> bytes:
        size = self.size
        pages = dict(self.pages)
        for item, pick in picks.items():
            versions = self.versions[item]
            if isinstance(pick, tuple):
                pages[item] = b"".join(
                    _page(versions[version])[sector * SECTOR : (sector + 1) * SECTOR]
                    for sector, version in enumerate(pick)
                )
                continue
            value = versions[pick]
            if isinstance(value, int):
                size = value
            else:
                pages[item] = value
        count = -(-size // PAGE)
        data = b"".join([pages.get(number) or bytes(PAGE) for number in range(count)])
        return data[:size]


class _DirectoryModel:
    """A directory: its durable names, and the changes since."""

    def __init__(self, entries: dict[str, int] | None = None) -> None:
        self.entries = dict(entries or {})
        self.pending: list[_NameChange] = []

    def synced(self) -> None:
        for change in self.pending:
            _apply(change, self.entries)
        self.pending = []

    def names(self, picked: Sequence[_NameChange]) -> dict[str, int]:
        """The names with those changes."""
        if not picked:
            return self.entries
        entries = dict(self.entries)
        for change in picked:
            _apply(change, entries)
        return entries


class CrashModel:
    """One disk, moved forward entry by entry with `apply`."""

    def __init__(self, start: Start) -> None:
        self._root = start.root
        self._root_path = start.root_path
        self._files = {number: _FileModel(data) for number, data in start.files.items()}
        self._directories = {
            number: _DirectoryModel(entries) for number, entries in start.directories.items()
        }

    @classmethod
    def at(cls, start: Start, journal: Sequence[Event]) -> "CrashModel":
        """The disk after all of `journal`."""
        model = cls(start)
        for event in journal:
            model.apply(event)
        return model

    def apply(self, event: Event) -> None:
        """The next entry of the journal has happened."""
        match event:
            case Stored(file, page, data):
                self._files[file].change(page, data)
            case Sized(file, size):
                self._files[file].change(_SIZE, size)
            case SyncBegan(file):
                self._files[file].sync_began()
            case Synced(file):
                self._files[file].synced()
            case SyncFailed(file):
                self._files[file].sync_failed()
            case Forgotten(file):
                self._files[file].forgotten()
            case Linked(directory, _, node, is_directory):
                self._directories[directory].pending.append(event)
                if is_directory:
                    self._directories[node] = _DirectoryModel()
                else:
                    self._files[node] = _FileModel()
            case Renamed(directory) | Unlinked(directory):
                self._directories[directory].pending.append(event)
            case DirectorySynced(directory):
                self._directories[directory].synced()
            case Note():
                pass

    def doubts(self) -> list[Doubt]:
        """All that a crash right now leaves open, in an order that is always the same."""
        found: list[Doubt] = []
        reachable: set[int] = set()
        for number, directory in sorted(self._directories.items()):
            reachable.update(directory.entries.values())
            for index, change in enumerate(directory.pending):
                found.append(Doubt("name", number, index, 2))
                if not isinstance(change, Unlinked):
                    reachable.add(change.node)
        for number, file in sorted(self._files.items()):
            if number not in reachable:
                continue
            for item, versions in sorted(file.versions.items()):
                kind = "size" if item == _SIZE else "page"
                stuck = file.is_stuck(item)
                found.append(Doubt(kind, number, item, len(versions), stuck))
        return found

    def build(self, doubts: Sequence[Doubt], picks: Sequence[Pick]) -> State:
        """The state with that version of each doubt."""
        of_files: dict[int, list[tuple[int, Pick]]] = {}
        of_directories: dict[int, list[_NameChange]] = {}
        for (kind, number, index, _, _), pick in zip(doubts, picks, strict=True):
            if pick == 0:
                continue
            if kind == "name":
                change = self._directories[number].pending[index]
                of_directories.setdefault(number, []).append(change)
            else:
                of_files.setdefault(number, []).append((index, pick))
        state: State = {}
        self._fill(state, self._root_path, self._root, of_files, of_directories)
        return state

    def newest(self) -> tuple[State, dict[str, int]]:
        """The state that a process killed now leaves with the kernel, and the number of each
        path."""
        doubts = self.doubts()
        numbers: dict[str, int] = {}
        self._number(numbers, self._root_path, self._root)
        return self.build(doubts, [doubt.versions - 1 for doubt in doubts]), numbers

    def forget(self, file: int) -> bytes | None:
        """The content of a file that appears when the cache forgets it; None if that changes
        nothing.

        No page of a failed sync had been written.
        """
        model = self._files[file]
        if not any(model.is_stuck(item) for item in model.versions):
            return None
        model.forgotten()
        return model.newest()

    def describe(self, doubt: Doubt, pick: Pick) -> str:
        """The meaning of that version of the doubt, for people."""
        if doubt.kind == "name":
            change = self._directories[doubt.number].pending[doubt.index]
            return f"{'done' if pick else 'not done'}: {change}"
        path = self._path_of(doubt.number)
        if doubt.kind == "size":
            size = self._files[doubt.number].versions[_SIZE]
            return f"length of {path}: {[size[pick]] if isinstance(pick, int) else pick} of {size}"
        return f"page {doubt.index} of {path}: version {pick} of 0..{doubt.versions - 1}"

    def _fill(
        self,
        state: State,
        path: str,
        number: int,
        of_files: dict[int, list[tuple[int, Pick]]],
        of_directories: dict[int, list[_NameChange]],
    ) -> None:
        entries = self._directories[number].names(of_directories.get(number, ()))
        for name, node in entries.items():
            below = f"{path}/{name}"
            if node in self._directories:
                state[below] = None
                self._fill(state, below, node, of_files, of_directories)
            else:
                state[below] = self._files[node].content(tuple(of_files.get(node, ())))

    def _number(self, numbers: dict[str, int], path: str, number: int) -> None:
        directory = self._directories[number]
        for name, node in directory.names(directory.pending).items():
            numbers[f"{path}/{name}"] = node
            if node in self._directories:
                self._number(numbers, f"{path}/{name}", node)

    def _path_of(self, node: int) -> str:
        for directory in self._directories.values():
            names = dict(directory.entries)
            for change in directory.pending:
                if not isinstance(change, Unlinked):
                    names[change.target if isinstance(change, Renamed) else change.name] = (
                        change.node
                    )
            for name, number in names.items():
                if number == node:
                    return name
        return f"file {node}"


def _apply(change: _NameChange, entries: dict[str, int]) -> None:
    if isinstance(change, Linked):
        entries[change.name] = change.node
    elif isinstance(change, Renamed):
        if entries.get(change.source) == change.node:
            del entries[change.source]
        entries[change.target] = change.node
    else:
        entries.pop(change.name, None)


def _page(value: bytes | int) -> bytes:
    assert isinstance(value, bytes)
    return value
