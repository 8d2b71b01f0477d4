"""Reads files for an audit: by pread, read-only, in pieces, and past places the disk refuses.

Mappings are faster, but a bad sector, or a file that shrinks, kills a process that touches them
(signal 7). An audit is run when the disk is in doubt, so it reads. What the disk refuses reads as
zeros and is remembered block by block.

Threads: the audit's own.
"""

import errno
from collections import OrderedDict

from aerobee.store.disk.files import Files

_BLOCK = 4096
_OPEN_MOST = 64
WINDOW_BYTES = 4 << 20


class Source:
    """One open file of `size` bytes."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self.path = path
        self._fd = files.open(path, read_only=True)
        self.size = files.size(self._fd)
        self.bytes_read = 0
        # Numbers of the blocks that could not be read.
        self.unreadable: set[int] = set()

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes at `position`; fewer only at the end of the file.

        Raises OSError for anything but a block the disk refuses.
        """
        try:
            data = self._files.read(self._fd, position, size)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = self._read_around(position, min(size, self.size - position))
        self.bytes_read += len(data)
        return data

    def _read_around(self, position: int, size: int) -> bytes:
        """Block by block, with zeros for those that cannot be read."""
        parts: list[bytes] = []
        end = position + max(0, size)
        while position < end:
            stop = min(end, (position // _BLOCK + 1) * _BLOCK)
            try:
                parts.append(self._files.read(self._fd, position, stop - position))
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                parts.append(bytes(stop - position))
                self.unreadable.add(position // _BLOCK)
            position = stop
        return b"".join(parts)

    def last_nonzero(self, start: int, end: int) -> int:
        """Position behind the last byte of [start, end) that is not zero; `start` if all are.

        `end` when the disk refuses to say.
        """
        if start >= end:
            return start
        try:
            return self._files.last_nonzero(self._fd, start, end)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return end

    def close(self) -> None:
        """Give the descriptor back."""
        self._files.close(self._fd)


class Window:
    """A moving part of a source: `buffer` holds its bytes from `start` on."""

    __slots__ = ("buffer", "source", "start")

    def __init__(self, source: Source) -> None:
        self.source = source
        self.buffer = b""
        self.start = 0

    def locate(self, position: int, size: int) -> int:
        """The index in `buffer` of the byte at `position`, with `size` bytes there behind it.

        Fewer only at the end of the file. Forgets earlier bytes when it has to read on.
        """
        index = position - self.start
        if index < 0 or index + size > len(self.buffer):
            self.buffer = self.source.read(position, max(size, WINDOW_BYTES))
            self.start = position
            return 0
        return index


class Sources:
    """A bounded number of open files, by path. Sources go away when others need the room."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._open: OrderedDict[str, Source] = OrderedDict()
        self._bytes_read = 0
        self._unreadable: dict[str, set[int]] = {}

    def get(self, path: str) -> Source:
        """The open file; valid until the next call. Raises OSError."""
        source = self._open.get(path)
        if source is None:
            if len(self._open) >= _OPEN_MOST:
                self._close(self._open.popitem(last=False)[1])
            source = self._open[path] = Source(self._files, path)
        else:
            self._open.move_to_end(path)
        return source

    def own(self, path: str) -> Source:
        """A source for one reader alone, which gives it back with `give_back`."""
        return Source(self._files, path)

    def give_back(self, source: Source) -> None:
        """Take a source of `own` back."""
        self._close(source)

    def close(self) -> None:
        """Close all of them."""
        while self._open:
            self._close(self._open.popitem()[1])

    def bytes_read(self) -> int:
        """What all sources have read so far."""
        return self._bytes_read + sum(source.bytes_read for source in self._open.values())

    def unreadable(self) -> list[tuple[str, int, int]]:
        """(path, start, end) of all that the closed sources could not read."""
        found: list[tuple[str, int, int]] = []
        for path in sorted(self._unreadable):
            for block in sorted(self._unreadable[path]):
                start = block * _BLOCK
                if found and found[-1][0] == path and found[-1][2] == start:
                    found[-1] = (path, found[-1][1], start + _BLOCK)
                else:
                    found.append((path, start, start + _BLOCK))
        return found

    def _close(self, source: Source) -> None:
        self._bytes_read += source.bytes_read
        if source.unreadable:
            self._unreadable.setdefault(source.path, set()).update(source.unreadable)
        source.close()
