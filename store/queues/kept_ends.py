"""The first and the last entries of each queue, while a start judges them: it opens each file once.

A store may have more queue files than descriptors, and the start comes to each queue several times.
All is kept in one buffer, which the kernel takes back once no queue refers to it; of
ten thousand small objects the room would stay with the process.

Threads: the store's caller only.
"""

import struct
from typing import Final

from aerobee.store.disk.descriptors import QueueFile
from aerobee.store.queues.queue_view import ENTRY_BYTES, FEW_ENTRIES

#: First byte of the file in its queue, how often it had been written, first slot, bytes of entries.
_RECORD: Final = struct.Struct(f"<qqqq{FEW_ENTRIES * ENTRY_BYTES}s")
_ENDS = 2


class KeptEnds:
    """Room for the ends of `queues` queues, two for each."""

    def __init__(self, queues: int) -> None:
        self._buffer = bytearray(queues * _ENDS * _RECORD.size)
        self._used = 0

    def add(self, ends: list[tuple[QueueFile, int, bytes]]) -> int:
        """Keep at most two ends of a queue: file, first slot, entries; where they are, for `find`.

        Of entries at most eight each.
        """
        assert len(ends) <= _ENDS
        at = self._used
        for place, (file, first, data) in enumerate(ends):
            position = at + place * _RECORD.size
            _RECORD.pack_into(
                self._buffer, position, file.start, file.writes, first, len(data), data
            )
        self._used += _ENDS * _RECORD.size
        return at

    def find(self, at: int, file: QueueFile, position: int, size: int) -> bytes | None:
        """`size` bytes of entries from byte `position` of the queue on, of the ends that `add` put
        there; None if they are not all kept, or the file has been written since."""
        for place in range(at, at + _ENDS * _RECORD.size, _RECORD.size):
            start, writes, first, kept, data = _RECORD.unpack_from(self._buffer, place)
            begin = position - first * ENTRY_BYTES
            if (start, writes) == (file.start, file.writes) and begin >= 0 and begin + size <= kept:
                found: bytes = data[begin : begin + size]
                return found
        return None
