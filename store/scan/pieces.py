"""A segment's bytes read a piece at a time, with pread through a descriptor of its own.

For reading all of a segment in the background. Read through the mapping, a page that is not in
memory would be fetched with the interpreter lock held and stop every other thread meanwhile, and a
page that the disk cannot give would end the process. Here a page that cannot be read is noted and
stands as zeros, which is no record.
"""

import logging

from aerobee.store.disk.files import Files

log = logging.getLogger("aerobee.store.scrub")

PIECE_BYTES = 64 << 10
_PAGE_BYTES = 4096


class LogPieces:
    """The file at `path`, which has `size` bytes. Raises OSError when it cannot be opened."""

    def __init__(self, files: Files, path: str, size: int) -> None:
        self._files = files
        self._path = path
        self._size = size
        self._fd = files.open(path, read_only=True)
        self._data = b""
        self._piece = memoryview(self._data)
        self._start = 0
        #: Bytes read so far, and ranges of the file that the disk did not give.
        self.bytes_read = 0
        self.unreadable: list[tuple[int, int]] = []

    def at(self, position: int, least: int) -> tuple[memoryview, int]:
        """A buffer, and where in it `position` is: `least` bytes follow, fewer only at the end."""
        end = min(position + least, self._size)
        if position < self._start or end > self._start + len(self._piece):
            self._start = position
            self._data = self._read(position, max(least, PIECE_BYTES))
            self._piece = memoryview(self._data)
        return self._piece, position - self._start

    def find(self, wanted: bytes, position: int) -> tuple[int | None, int]:
        """(where `wanted` stands next, None if not within a piece of bytes; where to look on)."""
        if position + len(wanted) > self._size:
            return None, self._size + len(wanted)
        _, at = self.at(position, PIECE_BYTES)
        found = self._data.find(wanted, at)
        if found >= 0:
            return self._start + found, self._start + found + 1
        # It may lie across the end of this piece.
        return None, max(position + 1, self._start + len(self._data) - len(wanted) + 1)

    def forget_cached(self) -> None:
        """Let the kernel drop pages of this file that nobody has mapped: we shall not be back."""
        self._files.forget_cached(self._fd)

    def close(self) -> None:
        """Close the descriptor."""
        self._files.close(self._fd)

    def _read(self, position: int, size: int) -> bytes:
        size = min(size, self._size - position)
        self.bytes_read += size
        try:
            return self._whole(position, size)
        except OSError as error:
            log.warning("log not readable path=%s at=%d %s", self._path, position, error)
        pages: list[bytes] = []
        end = position + size
        while position < end:
            stop = min(end, (position // _PAGE_BYTES + 1) * _PAGE_BYTES)
            try:
                pages.append(self._whole(position, stop - position))
            except OSError:
                self.unreadable.append((position, stop))
                pages.append(bytes(stop - position))
            position = stop
        return b"".join(pages)

    def _whole(self, position: int, size: int) -> bytes:
        data = self._files.read(self._fd, position, size)
        if len(data) < size:
            # Somebody has shortened the file; the mapping of it would fault there.
            raise OSError(f"{self._path} ends at {position + len(data)}, it had {self._size} bytes")
        return data
