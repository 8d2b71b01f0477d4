"""Limits of what may be stored (store/FORMAT.md 2.5, 3.2), checked before the put lock is taken.

The body limit is a setting, and may be changed under a running broker one day; the others belong to
the format: a length that does not fit its field would be cut off silently (the reference casts the
properties' length of batches to 16 bits).
"""

from collections.abc import Sequence

from aerobee.protocol.message.record import MAX_PROPERTIES_BYTES, SYS_TRANSACTION_MASK, StoreMessage
from aerobee.store.errors import MessageIllegal, PropertiesTooLarge, StoreError
from aerobee.store.log.encoding import Encoding
from aerobee.store.queues.table import check_topic


def too_large(
    message: StoreMessage, max_message_bytes: int, encoding: Encoding
) -> StoreError | None:
    """What is wrong with the size of the message's parts, None when nothing is."""
    if len(message.properties) > encoding.safe_properties:
        size = encoding.properties_size(message.properties)
        if size > MAX_PROPERTIES_BYTES:
            return PropertiesTooLarge(
                f"the properties have {size} bytes, {MAX_PROPERTIES_BYTES} are allowed"
            )
    return body_too_large(len(message.body), max_message_bytes)


def body_too_large(body_bytes: int, max_message_bytes: int) -> StoreError | None:
    """What is wrong with a body, or a batch's bodies together, of that length."""
    if body_bytes <= max_message_bytes:
        return None
    return MessageIllegal(
        f"the body has {body_bytes} bytes, {max_message_bytes} (maxMessageSize) are allowed"
    )


def batch_sizes(
    messages: Sequence[StoreMessage], max_message_bytes: int, encoding: Encoding
) -> list[int]:
    """The record size of each message of a batch. Raises StoreError when it cannot be one."""
    if not messages:
        raise MessageIllegal("the batch holds no message")
    first = messages[0]
    check_topic(first.topic)
    sizes: list[int] = []
    body_bytes = 0
    for message in messages:
        if message.topic != first.topic or message.queue_id != first.queue_id:
            raise MessageIllegal("a batch has one topic and one queue")
        if message.sys_flag & SYS_TRANSACTION_MASK:
            raise MessageIllegal("a batch cannot be transactional")
        error = too_large(message, max_message_bytes, encoding)
        if error is not None:
            raise error
        body_bytes += len(message.body)
        sizes.append(encoding.size(message))
    error = body_too_large(body_bytes, max_message_bytes)
    if error is not None:
        raise error
    return sizes
