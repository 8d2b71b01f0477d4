"""Decides how messages become records, and which messages cannot become a record.

Records are encoded plainly, or sealed with a CRC of the whole record at their end. The choice is
made once, when the store is opened (`enabledAppendPropCRC`); the append path calls the encoding
that it was given. Limits belong to the choice, because a seal takes room of the properties.

The limits (store/FORMAT.md 2.5, 3.2) are checked before the put lock is taken. The body limit is a
setting, and may be changed under a running broker one day; the others belong to the format: a
length that does not fit its field would be cut off silently (the reference casts the properties'
length of batches to 16 bits).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from aerobee.protocol.message.properties import MAX_PROPERTIES_BYTES
from aerobee.protocol.message.record import StoreMessage, encode_record, encode_sealed_record
from aerobee.protocol.message.record_check import CHECK_BODY, CHECK_NOTHING, CHECK_WHOLE
from aerobee.protocol.message.record_layout import SYS_TRANSACTION_MASK
from aerobee.protocol.message.record_seal import MOST_SEALED_PROPERTIES, SEAL_BYTES, seal, sealable
from aerobee.store.errors import MessageIllegal, PropertiesTooLarge, StoreError
from aerobee.store.queues.queue_table import check_topic


class Encoding(NamedTuple):
    """A way to encode.

    `encode` takes (message, queue offset, log offset, store time in ms); `properties_size` gives
    the length of a text's stored properties, which is at most 32,767 if the text is not longer than
    `safe_properties`.
    """

    encode: Callable[[StoreMessage, int, int, int], bytes]
    properties_size: Callable[[bytes], int]
    safe_properties: int
    #: Bytes at a record's end that follow from all before them, and the function; 0 and None
    #: without.
    seal_bytes: int = 0
    seal: Callable[[memoryview], bytes] | None = None


def _sealed_properties_size(properties: bytes) -> int:
    return len(sealable(properties)) + SEAL_BYTES


PLAIN = Encoding(encode_record, len, MAX_PROPERTIES_BYTES)
SEALED = Encoding(
    encode_sealed_record, _sealed_properties_size, MOST_SEALED_PROPERTIES, SEAL_BYTES, seal
)


def crc_checks(*, verify_property_crc: bool, check_crc: bool = True) -> int:
    """The argument of `check_record` that says which CRCs to check."""
    if verify_property_crc:
        return CHECK_WHOLE
    return CHECK_BODY if check_crc else CHECK_NOTHING


def too_large(
    message: StoreMessage, max_message_bytes: int, encoding: Encoding
) -> StoreError | None:
    """The error of the size of the message's parts, None without one."""
    if len(message.properties) > encoding.safe_properties:
        size = encoding.properties_size(message.properties)
        if size > MAX_PROPERTIES_BYTES:
            return PropertiesTooLarge(
                f"the properties have {size} bytes, {MAX_PROPERTIES_BYTES} are allowed"
            )
    return body_too_large(len(message.body), max_message_bytes)


def body_too_large(body_bytes: int, max_message_bytes: int) -> StoreError | None:
    """The error of a body, or of a batch's bodies together, of that length; None without one."""
    if body_bytes <= max_message_bytes:
        return None
    return MessageIllegal(
        f"the body has {body_bytes} bytes, {max_message_bytes} (maxMessageSize) are allowed"
    )


class BatchCheck:
    """The rules of a batch, one message after the other; `body_bytes` counts all bodies so far."""

    def __init__(self, max_message_bytes: int, encoding: Encoding) -> None:
        self._max_message_bytes = max_message_bytes
        self._encoding = encoding
        self._first: StoreMessage | None = None
        self.body_bytes = 0

    def add(self, message: StoreMessage) -> None:
        """Raise StoreError unless the message can be the next one."""
        first = self._first = self._first or message
        if message.topic != first.topic or message.queue_id != first.queue_id:
            raise MessageIllegal("a batch has one topic and one queue")
        if message.sys_flag & SYS_TRANSACTION_MASK:
            raise MessageIllegal("a batch cannot be transactional")
        error = too_large(message, self._max_message_bytes, self._encoding)
        if error is not None:
            raise error
        self.body_bytes += len(message.body)

    def check_total(self) -> None:
        """Raise StoreError when the bodies together are too large."""
        error = body_too_large(self.body_bytes, self._max_message_bytes)
        if error is not None:
            raise error


def check_batch(
    messages: Sequence[StoreMessage], max_message_bytes: int, encoding: Encoding
) -> None:
    """Raise StoreError unless the messages can be one batch."""
    if not messages:
        raise MessageIllegal("the batch holds no message")
    check_topic(messages[0].topic)
    check = BatchCheck(max_message_bytes, encoding)
    for message in messages:
        check.add(message)
    check.check_total()
