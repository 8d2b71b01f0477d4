"""The bytes of one segment, read into memory or mapped.

Reading is the rule, because a mapped file that somebody truncates kills the process with SIGBUS at
the next access. A segment is mapped only if the user asks for it and it is full and on this
machine, and its length is compared before each look; the manual says which risk remains.

A file that is shorter than it was when the read was planned is an error in every mode: its end was
taken away, which is no damage of a record.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Self

from aerobee.pipeline.errors import StoreReadError
from aerobee.pipeline.files.directory import FileReader, FileSystemPlace
from aerobee.pipeline.files.store_plan import LogPiece

#: Reads in flight at once where each costs a round trip.
AHEAD: Final = 4


class SegmentBytes:
    """The bytes of a piece's segment, by log offset; a context manager.

    A caller that reads the piece from its start to its end gives `ahead_bytes`, the size of a read.
    Where a read costs a round trip, the next pieces are then under way while this piece is decoded.
    """

    def __init__(
        self, place: FileSystemPlace, piece: LogPiece, mapped: bool, *, ahead_bytes: int = 0
    ) -> None:
        self._piece = piece
        self._reader: FileReader | None = None
        self._ahead: ReadAhead | None = None
        self._map: mmap.mmap | None = None
        if mapped and piece.is_sealed and place.is_local:
            self._map_file()
            return
        self._reader = place.open(piece.path)
        if ahead_bytes and not place.is_local:
            end = min(piece.end, max(piece.known_end, piece.start + ahead_bytes))
            self._ahead = ReadAhead(self._reader.read, end - piece.file_start, ahead_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ahead is not None:
            self._ahead.close()
        if self._reader is not None:
            self._reader.close()
        if self._map is not None:
            os.close(self._descriptor)
            # Chunks that are still held keep the mapping, which goes with the last of them.
            self._map = None

    def read(self, log_offset: int, count: int) -> bytes | memoryview:
        """All of the `count` bytes from that offset on. Raises StoreReadError if some are gone."""
        position = log_offset - self._piece.file_start
        if self._map is not None:
            self._compare(os.fstat(self._descriptor).st_size)
            return memoryview(self._map)[position : position + count]
        assert self._reader is not None
        data = (self._ahead or self._reader).read(position, count)
        if len(data) < count:
            self._compare(position + len(data))
        return data

    def _map_file(self) -> None:
        try:
            self._descriptor = os.open(self._piece.path, os.O_RDONLY)
        except FileNotFoundError:
            raise StoreReadError(f"{self._piece.path} is gone since it was planned") from None
        size = os.fstat(self._descriptor).st_size
        if size < self._piece.file_bytes:
            os.close(self._descriptor)
            self._compare(size)
        self._map = mmap.mmap(self._descriptor, self._piece.file_bytes, access=mmap.ACCESS_READ)

    def _compare(self, size: int) -> None:
        if size < self._piece.file_bytes:
            raise StoreReadError(
                f"{self._piece.path} had {self._piece.file_bytes} bytes when the read was planned "
                f"and ends at {size} now: somebody truncates it while it is read. Read a copy, or "
                "load() again when that is over"
            )


class ReadAhead:
    """Reads a file in order up to `end`, several reads of `size` bytes ahead of its caller.

    `read` is called in threads. A read out of order is done by itself.
    """

    def __init__(self, read: Callable[[int, int], bytes], end: int, size: int) -> None:
        self._read = read
        self._end = end
        self._size = size
        self._pool = ThreadPoolExecutor(AHEAD)
        self._kept = b""
        self._kept_at = -1
        self._coming: deque[tuple[int, Future[bytes]]] = deque()
        self._asked = 0

    def read(self, position: int, count: int) -> bytes:
        """The bytes from there on; fewer than `count` only at the end of the file."""
        kept_end = self._kept_at + len(self._kept)
        if not self._kept_at <= position <= kept_end:
            if self._kept_at >= 0:
                return self._read(position, count)
            kept_end = self._kept_at = self._asked = position
        data = self._kept[position - self._kept_at :]
        while len(data) < count:
            self._ask()
            if not self._coming:
                return data + self._read(position + len(data), count - len(data))
            asked, coming = self._coming.popleft()
            more = coming.result()
            data += more
            if len(more) < asked:
                # The file ends here, so bytes that were read further on do not follow these.
                self._coming.clear()
                self._end = 0
        self._kept, self._kept_at = data, position
        self._ask()
        return data[:count] if len(data) > count else data

    def close(self) -> None:
        """Wait for the reads that are under way, and forget them."""
        self._pool.shutdown(cancel_futures=True)

    def _ask(self) -> None:
        while len(self._coming) < AHEAD and self._asked < self._end:
            count = min(self._size, self._end - self._asked)
            self._coming.append((count, self._pool.submit(self._read, self._asked, count)))
            self._asked += count
