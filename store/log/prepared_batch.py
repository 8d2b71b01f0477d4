"""A large batch that is made ready outside the put lock: its records lack only place and time.

Encoding a record takes some microseconds, and a batch may have 190,000. They are encoded in steps,
with nobody waiting; the append itself only adds two numbers and a time to each. Where many records
have one size these stand at equal distances, and each of their bytes is set in all records by one
native call. The compiled form completes and copies each in one go.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import TypeAlias

from aerobee.protocol.message.record import StoreMessage
from aerobee.protocol.message.record_layout import BORN_HOST_POSITION
from aerobee.store.errors import StoreError
from aerobee.store.log.encoding import BatchCheck, Encoding

#: Completes and copies records: the records, their sizes, the memory and the position in it, queue
#: offset and log offset of the first record, store time and its position in a record
#: (`native/placing.pyx`).
Place: TypeAlias = Callable[[bytearray, list[int], memoryview, int, int, int, int, int], None]

# The fields queue offset and log offset of a record; the store time comes after born timestamp and
# born host (store/FORMAT.md 2.1).
_PLACE = struct.Struct(">qq")
_PLACE_AT = 20
_TIME = struct.Struct(">q")
_TIME_AT_BEHIND_HOST = BORN_HOST_POSITION
_FIELD_BYTES = 8
# With at least this number of records of one size the native calls are quicker.
_LEAST_RUN = 16
# This number of records at a time stays in the processor's cache.
_MOST_RUN = 512


class PreparedBatch:
    """Messages of one queue, encoded one after the other; `CommitLog.put_prepared` stores them.

    `counted` counts a refusal, like that of any other put, and returns it.
    """

    def __init__(
        self,
        max_message_bytes: int,
        encoding: Encoding,
        counted: Callable[[StoreError], StoreError],
    ) -> None:
        self._first: StoreMessage | None = None
        # The values for the entries of each message.
        self.sizes: list[int] = []
        self.tags_codes: list[int] = []
        self.keys: list[tuple[str, ...]] = []
        self._records = bytearray()
        # First byte, count and size of records of one size.
        self._runs: list[list[int]] = []
        self._encoding = encoding
        self._check = BatchCheck(max_message_bytes, encoding)
        self._counted = counted

    @property
    def first(self) -> StoreMessage:
        """The first message, which has the values that all share. The batch must not be empty."""
        assert self._first is not None
        return self._first

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return len(self._records)

    def add(self, message: StoreMessage) -> None:
        """Check and encode a message. Raises StoreError: then the batch cannot be stored."""
        try:
            self._check.add(message)
            self._check.check_total()
        except StoreError as error:
            raise self._counted(error) from None
        self._first = self._first or message
        record = self._encoding.encode(message, 0, 0, 0)
        size = len(record)
        if self._runs and self._runs[-1][2] == size:
            self._runs[-1][1] += 1
        else:
            self._runs.append([len(self._records), 1, size])
        self._records += record
        self.sizes.append(size)
        self.tags_codes.append(message.tags_code)
        self.keys.append(message.keys)

    def placed(self, queue_offset: int, log_offset: int, store_ms: int) -> Iterable[memoryview]:
        """The records for the place where the first begins; they may be placed again."""
        time_at = _TIME_AT_BEHIND_HOST + len(self.first.born_host)
        records, place, set_time = self._records, _PLACE.pack_into, _TIME.pack_into
        for start, count, size in self._runs:
            end = start + count * size
            while count >= _LEAST_RUN:
                some = min(count, _MOST_RUN)
                self._set(start + _PLACE_AT, size, range(queue_offset, queue_offset + some))
                places = range(log_offset + start, log_offset + start + some * size, size)
                self._set(start + _PLACE_AT + _FIELD_BYTES, size, places)
                self._set(start + time_at, size, [store_ms] * some)
                queue_offset += some
                start += some * size
                count -= some
            for at in range(start, end, size):
                place(records, at + _PLACE_AT, queue_offset, log_offset + at)
                set_time(records, at + time_at, store_ms)
                queue_offset += 1
        if self._encoding.seal is not None:
            self._seal_all(self._encoding.seal, self._encoding.seal_bytes)
        view = memoryview(records)
        ends = list(accumulate(self.sizes))
        return map(view.__getitem__, map(slice, [0, *ends], ends))

    @property
    def sealed(self) -> bool:
        """Whether a record's last bytes follow from its place."""
        return self._encoding.seal is not None

    def copy(
        self,
        place: Place,
        queue_offset: int,
        log_offset: int,
        store_ms: int,
        memory: memoryview,
        at: int,
    ) -> int:
        """Do `placed`, copied to byte `at` of `memory`; return the bytes. Not for sealed
        records."""
        time_at = _TIME_AT_BEHIND_HOST + len(self.first.born_host)
        place(self._records, self.sizes, memory, at, queue_offset, log_offset, store_ms, time_at)
        return len(self._records)

    def _set(self, at: int, size: int, values: Sequence[int]) -> None:
        """Set the field at `at` of the first of these records, and of all others, each `size` bytes
        further on."""
        fields = array("q", values)
        if sys.byteorder == "little":
            fields.byteswap()
        columns, end = fields.tobytes(), at + (len(values) - 1) * size
        for number in range(_FIELD_BYTES):
            self._records[at + number : end + number + 1 : size] = columns[number::_FIELD_BYTES]

    def _seal_all(self, seal: Callable[[memoryview], bytes], seal_bytes: int) -> None:
        view, end = memoryview(self._records), 0
        for size in self.sizes:
            start, end = end, end + size
            view[end - seal_bytes : end] = seal(view[start : end - seal_bytes])
