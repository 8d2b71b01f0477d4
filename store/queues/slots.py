"""Which consume queue slots a record says are its own: the record's side of "named back".

A record has one slot, that of its topic, queue id and queue offset. A multi-dispatched one has
further slots in the queues that its properties list (`multi_dispatch.py`). Half messages and
rollbacks have none.
"""

from aerobee.protocol.message.properties import (
    PROPERTY_MULTI_QUEUE_OFFSET,
    decode_properties,
    further_queues,
)
from aerobee.protocol.message.record_check import RecordHead
from aerobee.protocol.message.record_layout import SYS_TRANSACTION_PREPARED
from aerobee.protocol.names import is_light

#: Part of the properties of each record that has further slots.
OFFSETS_MARK = PROPERTY_MULTI_QUEUE_OFFSET.encode() + b"\x01"


def names_slot(
    buffer: bytes | bytearray | memoryview,
    position: int,
    head: RecordHead,
    topic: str,
    queue_id: int,
    queue_offset: int,
) -> bool:
    """Whether the checked record at `position` is that queue's message of that offset.

    A light queue that is listed has id 0 or the record's own, by a setting that may have changed
    since: either is accepted.
    """
    if head.sys_flag & SYS_TRANSACTION_PREPARED:
        return False
    if head.topic == topic and head.queue_id == queue_id:
        return head.queue_offset == queue_offset
    if queue_id != head.queue_id and (queue_id or not is_light(topic)):
        return False
    start = position + head.properties_position
    properties = bytes(buffer[start : start + head.properties_length])
    if OFFSETS_MARK not in properties:
        return False
    return (topic, queue_offset) in further_queues(decode_properties(properties))
