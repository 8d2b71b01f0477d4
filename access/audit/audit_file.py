"""The files of audit events, and what of them a crash may leave.

    audit/events-00000001.jsonl   events, one line each (protocol/bodies/audit.py), oldest first
    audit/begun.jsonl             changes that have begun, while any is under way

Two files of events are kept, the newest and the one before it, with half of `most_bytes` each. A
change is in `begun.jsonl` before it is made, and in the newest file before it is answered. So a
change whose process ended in between is found at the next start: it becomes an event whose outcome
is unknown. A last line that is not whole was being written then; nobody was answered for it. The
next line begins behind it, and readers pass over it.

One thread at a time. Every method raises OSError.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from aerobee.access.audit.sink import Page, Place
from aerobee.file_replacement import replace_file, sync_directory
from aerobee.protocol.bodies.audit import LINE_BYTES, UNKNOWN, AuditEvent, parse_event

_NAME: Final = re.compile(r"events-([0-9]{8})\.jsonl")
_BEGUN: Final = "begun.jsonl"
_KEPT_FILES: Final = 2
_MODE: Final = 0o640
# A smaller file of begun changes is not worth writing anew.
_BEGUN_BYTES: Final = 256 * 1024
# Events that may have been written since `begun.jsonl` was empty last lie in this much of the end.
_TAIL_BYTES: Final = 1024 * 1024
# Read for one page of an answer; the lines of the page are a part of it.
_PAGE_BYTES: Final = 256 * 1024


class _Open(NamedTuple):
    number: int
    fd: int


class AuditFile:
    """Writes and reads the events of one process."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        most_bytes: int,
        sync: Callable[[int], None] = os.fdatasync,
        *,
        root: str | os.PathLike[str] | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`folder` is made when it is needed, but not without `root`, a folder above it: what was
        taken away is not begun anew. `check` raises OSError where nothing may be written any
        more."""
        self._root = None if root is None else Path(root)
        self._check = check
        self.folder = Path(folder)
        self._file_bytes = max(most_bytes // _KEPT_FILES, 4 * LINE_BYTES)
        self._sync = sync
        self._open: _Open | None = None
        # The end of the last whole line; what a failed append has left lies behind it.
        self._size = 0
        self._begun_size = 0
        self._is_recovered = False

    def write(self, events: Sequence[bytes]) -> None:
        """Append lines of events; returns once they are on the disk."""
        self._check()
        self._recover()
        if events:
            self._append(events)

    def begin(self, lines: Sequence[bytes], under_way: int) -> None:
        """Note changes that begin; returns once that is on the disk. While none is `under_way` the
        notes before these are of no use any more."""
        self._check()
        self._recover()
        self._append_begun(b"".join(lines), is_first=not under_way)

    def page(self, place: Place, since_ms: int) -> Page:
        """Some lines from `place` on that are of `since_ms` or later, and the place behind them."""
        # A full disk keeps nobody from reading.
        with suppress(OSError):
            self._check()
            self._recover()
        numbers = self._numbers()
        if not numbers:
            return Page(b"", place, False, 0)
        number, position = place
        if number not in numbers:
            later = [one for one in numbers if one > number]
            number, position = (later or numbers)[0], 0
        path = self._path(number)
        if number != numbers[-1] and path.stat().st_mtime * 1000 < since_ms:
            # All of its events are older.
            return Page(b"", Place(number + 1, 0), True, 0)
        with path.open("rb") as file:
            file.seek(position)
            data = file.read(_PAGE_BYTES)
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) == _PAGE_BYTES:
            # No line of ours is as long as this.
            whole = len(data)
        lines, damaged = _chosen(data[:whole].splitlines(keepends=True), since_ms)
        if len(data) == _PAGE_BYTES:
            return Page(lines, Place(number, position + whole), True, damaged)
        if number != numbers[-1]:
            return Page(lines, Place(number + 1, 0), True, damaged)
        return Page(lines, Place(number, position + whole), False, damaged)

    def close(self) -> None:
        """Close the file; a later call opens it again."""
        if self._open is not None:
            os.close(self._open.fd)
            self._open = None

    # --- events

    def _append(self, events: Sequence[bytes]) -> None:
        data = b"".join(events)
        fd = self._file_for(len(data))
        try:
            _write_at(fd, self._size, data)
            self._sync(fd)
        except OSError:
            _cut_off(fd, self._size)
            raise
        self._size += len(data)

    def _file_for(self, size: int) -> int:
        """The newest file, or a new one when the newest is full."""
        found = self._open
        if found is not None and not _is_at(found.fd, self._path(found.number)):
            # Somebody has taken the file away.
            self.close()
            found = None
        if found is None:
            numbers = self._numbers()
            found = self._opened(numbers[-1] if numbers else 1)
        if self._size and self._size + size > self._file_bytes:
            self.close()
            found = self._opened(found.number + 1)
            self._remove_old()
        return found.fd

    def _opened(self, number: int) -> _Open:
        path = self._path(number)
        self._make_folder()
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
        try:
            self._size = os.fstat(fd).st_size
            if not self._size:
                sync_directory(self.folder)
            elif os.pread(fd, 1, self._size - 1) != b"\n":
                _write_at(fd, self._size, b"\n")
                self._size += 1
        except OSError:
            os.close(fd)
            raise
        self._open = _Open(number, fd)
        return self._open

    def _remove_old(self) -> None:
        for number in self._numbers()[:-_KEPT_FILES]:
            self._path(number).unlink(missing_ok=True)

    def _numbers(self) -> list[int]:
        """The files of events that are there, the oldest first."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))

    def _path(self, number: int) -> Path:
        return self.folder / f"events-{number:08}.jsonl"

    def _make_folder(self) -> None:
        if self.folder.is_dir():
            return
        if self._root is not None and not self._root.is_dir():
            raise FileNotFoundError(f"{self._root} is not there any more")
        self.folder.mkdir(parents=True)
        sync_directory(self.folder.parent)

    # --- changes that have begun

    def _append_begun(self, lines: bytes, *, is_first: bool) -> None:
        path = self.folder / _BEGUN
        self._make_folder()
        if not is_first and self._begun_size > _BEGUN_BYTES:
            ended = self._ended()
            kept = [line for line, event in _events_of(path) if event.id not in ended]
            content = b"".join(kept) + lines
            replace_file(path, content, mode=_MODE)
            self._begun_size = len(content)
            return
        at = 0 if is_first else self._begun_size
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
        try:
            os.ftruncate(fd, at)
            _write_at(fd, at, lines)
            self._sync(fd)
        finally:
            os.close(fd)
        self._begun_size = at + len(lines)

    def _recover(self) -> None:
        """Make events of the changes that a process before this one has begun and not ended."""
        if self._is_recovered:
            return
        path = self.folder / _BEGUN
        ended = self._ended()
        lost = [event for _, event in _events_of(path) if event.id not in ended]
        if lost:
            why = "the process ended before the outcome was written: look at the object itself"
            events = [replace(one, outcome=UNKNOWN, why=why) for one in lost]
            self._append([event.encode() for event in events])
        self._is_recovered = True

    def _ended(self) -> set[str]:
        """The ids of the newest events."""
        found: set[str] = set()
        for number in self._numbers()[-_KEPT_FILES:]:
            with self._path(number).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
                found.update(event.id for _, event in _parsed(file.read().splitlines()))
        return found


def _chosen(lines: Iterable[bytes], since_ms: int) -> tuple[bytes, int]:
    """The lines that are of `since_ms` or later, and how many cannot be read."""
    chosen, damaged = [], 0
    for line in lines:
        event = parse_event(line)
        if event is None:
            damaged += bool(line.strip())
        elif event.timestamp_ms >= since_ms:
            chosen.append(line)
    return b"".join(chosen), damaged


def _events_of(path: Path) -> list[tuple[bytes, AuditEvent]]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    return list(_parsed(content.splitlines(keepends=True)))


def _parsed(lines: Iterable[bytes]) -> Iterable[tuple[bytes, AuditEvent]]:
    for line in lines:
        event = parse_event(line)
        if event is not None:
            yield line, event


def _write_at(fd: int, position: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, position)
        view, position = view[written:], position + written


def _cut_off(fd: int, size: int) -> None:
    """Take away what a failed append has left; where that fails too, the next one does it."""
    try:
        os.ftruncate(fd, size)
    except OSError:
        return


def _is_at(fd: int, path: Path) -> bool:
    """Whether the file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
