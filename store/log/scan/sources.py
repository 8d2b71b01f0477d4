"""Reads files with pread, in pieces, and past places that the disk refuses.

Mappings are faster, but a bad sector, or a file that shrinks, kills a process that touches them
(signal 7), and a page that is not in memory is fetched with the interpreter lock held. So readers
that doubt the disk, or read much in the background, read through a source. Blocks that the disk
refuses read as zeros, which are no record, and are remembered.

Threads: each source has one reader.
"""

import errno
import logging
from collections import OrderedDict
from collections.abc import Iterable

from aerobee.store.disk.files import Files

log = logging.getLogger("aerobee.store.background.scrub")

_BLOCK = 4096
_OPEN_MOST = 64
WINDOW_BYTES = 4 << 20


class Source:
    """One open file of `size` bytes.

    `size` is given if the file surely has that length and its reader has to go on, whatever
    happens: bytes that are missing, or cannot be read for any reason, count as refused.
    """

    def __init__(self, files: Files, path: str, size: int | None = None) -> None:
        self._files = files
        self.path = path
        self._fd = files.open(path, read_only=True)
        self._goes_on = size is not None
        self.size = files.size(self._fd) if size is None else size
        self.bytes_read = 0
        # Numbers of the blocks that could not be read.
        self.unreadable: set[int] = set()

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes at `position`; fewer only at the end of the file.

        Raises OSError for anything but a block that the disk refuses.
        """
        if self._goes_on:
            size = min(size, self.size - position)
        try:
            data = self._read(position, size)
        except OSError as error:
            if not self._is_refused(error):
                raise
            if self._goes_on:
                log.warning("log not readable path=%s at=%d %s", self.path, position, error)
            data = self._read_around(position, min(size, self.size - position))
        self.bytes_read += len(data)
        return data

    def _read(self, position: int, size: int) -> bytes:
        data = self._files.read(self._fd, position, size)
        if self._goes_on and len(data) < size:
            # Somebody has shortened the file; a mapping of it would fault there.
            raise OSError(f"{self.path} ends at {position + len(data)}, it had {self.size} bytes")
        return data

    def _is_refused(self, error: OSError) -> bool:
        return self._goes_on or error.errno == errno.EIO

    def _read_around(self, position: int, size: int) -> bytes:
        """Read block by block, with zeros for blocks that cannot be read."""
        parts: list[bytes] = []
        end = position + max(0, size)
        while position < end:
            stop = min(end, (position // _BLOCK + 1) * _BLOCK)
            try:
                parts.append(self._read(position, stop - position))
            except OSError as error:
                if not self._is_refused(error):
                    raise
                parts.append(bytes(stop - position))
                self.unreadable.add(position // _BLOCK)
            position = stop
        return b"".join(parts)

    def last_nonzero(self, start: int, end: int) -> int:
        """Position after the last byte of [start, end) that is not zero; `start` if all are zero.

        `end` when the disk refuses to say.
        """
        if start >= end:
            return start
        try:
            return self._files.last_nonzero(self._fd, start, end)
        except OSError as error:
            if not self._is_refused(error):
                raise
            return end

    def forget_cached(self) -> None:
        """Let the kernel drop pages of this file that nobody has mapped: they are not read
        again."""
        self._files.forget_cached(self._fd)

    def close(self) -> None:
        """Give the descriptor back."""
        self._files.close(self._fd)


class Window:
    """A moving part of a source: `buffer` holds its bytes from `start` on, `least` or more."""

    __slots__ = ("_least", "buffer", "source", "start")

    def __init__(self, source: Source, least: int | None = None) -> None:
        self.source = source
        self._least = WINDOW_BYTES if least is None else least
        self.buffer = b""
        self.start = 0

    def locate(self, position: int, size: int) -> int:
        """The index in `buffer` of the byte at `position`, with `size` bytes from there on.

        Fewer only at the end of the file. Forgets earlier bytes when it has to read on.
        """
        index = position - self.start
        if index < 0 or index + size > len(self.buffer):
            self.buffer = self.source.read(position, max(size, self._least))
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
        """Take back a source that `own` gave."""
        self._close(source)

    def close(self) -> None:
        """Close all of them."""
        while self._open:
            self._close(self._open.popitem()[1])

    def bytes_read(self) -> int:
        """The number of bytes that all sources have read so far."""
        return self._bytes_read + sum(source.bytes_read for source in self._open.values())

    def unreadable(self) -> list[tuple[str, int, int]]:
        """(path, start, end) of all that the closed sources could not read."""
        return [
            (path, start, end)
            for path in sorted(self._unreadable)
            for start, end in ranges_of(self._unreadable[path])
        ]

    def _close(self, source: Source) -> None:
        self._bytes_read += source.bytes_read
        if source.unreadable:
            self._unreadable.setdefault(source.path, set()).update(source.unreadable)
        source.close()


def ranges_of(blocks: Iterable[int]) -> list[tuple[int, int]]:
    """The ranges [start, end) of bytes that the blocks of these numbers cover."""
    found: list[tuple[int, int]] = []
    for block in sorted(blocks):
        start = block * _BLOCK
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], start + _BLOCK)
        else:
            found.append((start, start + _BLOCK))
    return found
