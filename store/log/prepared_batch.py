"""A large batch made ready beside the put lock: records that lack their place and time only.

Encoding a record takes some microseconds, and a batch may have 190,000. They are encoded in steps,
with nobody waiting; what is left for the moment of the append is two numbers and a time in each.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from aerobee.protocol.message.record import StoreMessage
from aerobee.protocol.message.record_layout import BORN_HOST_POSITION
from aerobee.store.errors import StoreError
from aerobee.store.log.encoding import BatchCheck, Encoding

# Where a record has queue offset and log offset, and behind born timestamp and born host the store
# time (store/FORMAT.md 2.1).
_PLACE = struct.Struct(">qq")
_PLACE_AT = 20
_TIME = struct.Struct(">q")
_TIME_AT_BEHIND_HOST = BORN_HOST_POSITION


class PreparedBatch:
    """Messages of one queue, encoded one after the other; `CommitLog.put_prepared` stores them.

    `counted` counts a refusal, as of any other put, and gives it back.
    """

    def __init__(
        self,
        max_message_bytes: int,
        encoding: Encoding,
        counted: Callable[[StoreError], StoreError],
    ) -> None:
        self.messages: list[StoreMessage] = []
        self._records: list[bytearray] = []
        self._encoding = encoding
        self._check = BatchCheck(max_message_bytes, encoding)
        self._counted = counted

    def add(self, message: StoreMessage) -> None:
        """Check and encode one more. Raises StoreError: then the batch cannot be stored."""
        try:
            self._check.add(message)
            self._check.check_total()
        except StoreError as error:
            raise self._counted(error) from None
        self.messages.append(message)
        self._records.append(bytearray(self._encoding.encode(message, 0, 0, 0)))

    def placed(self, queue_offset: int, log_offset: int, store_ms: int) -> list[bytearray]:
        """The records for the place where the first begins; they may be placed again."""
        place, time, end = _PLACE.pack_into, _TIME.pack_into, log_offset
        seal, sealed = self._encoding.seal, self._encoding.seal_bytes
        time_at = _TIME_AT_BEHIND_HOST + len(self.messages[0].born_host)
        for number, record in enumerate(self._records, queue_offset):
            place(record, _PLACE_AT, number, end)
            time(record, time_at, store_ms)
            if seal is not None:
                record[-sealed:] = seal(memoryview(record)[:-sealed])
            end += len(record)
        return self._records
