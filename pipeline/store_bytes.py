"""Gives the bytes of one segment to who walks it: read into memory, or mapped.

Reading is the rule: a mapped file that somebody truncates kills the process with SIGBUS at the next
access. Only segments that are full and on this machine are mapped, when that is asked for, and
their length is compared before each look; what is left of the risk is said in the manual.

A file that is shorter than it was when the read was planned is an error in every mode: what is
missing is not damage of a record, it was taken away.
"""

from __future__ import annotations

import mmap
import os
from typing import Self

from aerobee.pipeline.store_files import Place, Reader, StoreReadError
from aerobee.pipeline.store_plan import Piece


class SegmentBytes:
    """Bytes of the segment of a piece, by log offset; a context manager."""

    def __init__(self, place: Place, piece: Piece, mapped: bool) -> None:
        self._piece = piece
        self._reader: Reader | None = None
        self._map: mmap.mmap | None = None
        if mapped and piece.is_sealed and place.is_local:
            self._map_file()
        else:
            self._reader = place.open(piece.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._map is not None:
            os.close(self._descriptor)
            # Whoever still holds a chunk keeps the mapping; it goes with the last of them.
            self._map = None

    def read(self, log_offset: int, count: int) -> bytes | memoryview:
        """All of the `count` bytes from there on. Raises StoreReadError if they are not there."""
        position = log_offset - self._piece.file_start
        if self._map is not None:
            self._compare(os.fstat(self._descriptor).st_size)
            return memoryview(self._map)[position : position + count]
        assert self._reader is not None
        data = self._reader.read(position, count)
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
