"""A large batch made ready beside the put lock: records that lack their place and time only.

Encoding a record takes some microseconds, and a batch may have 190,000. They are encoded in steps,
with nobody waiting; what is left for the moment of the append is two numbers and a time in each.
"""

from __future__ import annotations

import struct

from aerobee.protocol.message.record import StoreMessage
from aerobee.protocol.message.record_layout import BORN_HOST_POSITION, SYS_TRANSACTION_MASK
from aerobee.store.errors import MessageIllegal
from aerobee.store.log.encoding import Encoding, body_too_large, too_large

# Where a record has queue offset and log offset, and behind born timestamp and born host the store
# time (store/FORMAT.md 2.1).
_PLACE = struct.Struct(">qq")
_PLACE_AT = 20
_TIME = struct.Struct(">q")
_TIME_AT_BEHIND_HOST = BORN_HOST_POSITION


class PreparedBatch:
    """Messages of one queue, encoded one after the other; `CommitLog.put_prepared` stores them."""

    def __init__(self, max_message_bytes: int, encoding: Encoding) -> None:
        self.messages: list[StoreMessage] = []
        self._records: list[bytearray] = []
        self._max_message_bytes = max_message_bytes
        self._encoding = encoding
        self._body_bytes = 0

    def add(self, message: StoreMessage) -> None:
        """Check and encode one more. Raises StoreError: then the batch cannot be stored."""
        if self.messages:
            first = self.messages[0]
            if message.topic != first.topic or message.queue_id != first.queue_id:
                raise MessageIllegal("a batch has one topic and one queue")
        if message.sys_flag & SYS_TRANSACTION_MASK:
            raise MessageIllegal("a batch cannot be transactional")
        self._body_bytes += len(message.body)
        error = too_large(message, self._max_message_bytes, self._encoding) or body_too_large(
            self._body_bytes, self._max_message_bytes
        )
        if error is not None:
            raise error
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
