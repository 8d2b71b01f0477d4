"""The two forms of a delayed message: as it waits, and as it is given out (store/FORMAT.md 12.1).

It waits in queue `level - 1` of SCHEDULE_TOPIC_XXXX, its own topic and queue id among its
properties. When it is due it is stored a second time, where it was sent to. It keeps its properties
then, also REAL_TOPIC, REAL_QID and DELAY, as in the reference: nothing reads DELAY again, because a
message that was given out is put without a delay.

Pure: values in, values out.
"""

import msgspec

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.properties import (
    PROPERTY_DELAY,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    decode_properties,
    encode_properties,
    index_keys,
    real_queue,
)
from aerobee.protocol.message.record import Message, StoreMessage, stored_again
from aerobee.protocol.message.record_layout import SYS_TRANSACTION_PREPARED
from aerobee.protocol.names import HALF_TOPIC, SCHEDULE_TOPIC


def waiting_form(message: StoreMessage, highest_level: int) -> StoreMessage | None:
    """The message as it waits, None if it asks for no delay.

    The level is its property DELAY, at most the highest level. Half messages and rollbacks do not
    wait. Text that is not UTF-8 (half of a surrogate pair) becomes question marks, as in the
    reference.
    """
    properties = decode_properties(str(message.properties, "utf-8", "surrogatepass"))
    level = min(asked_level(properties.get(PROPERTY_DELAY, "")), highest_level)
    if level <= 0 or message.sys_flag & SYS_TRANSACTION_PREPARED:
        return None
    properties[PROPERTY_DELAY] = str(level)
    properties[PROPERTY_REAL_TOPIC] = message.topic
    properties[PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
    stored = encode_properties(properties).encode("utf-8", "replace")
    return msgspec.structs.replace(
        message,
        topic=SCHEDULE_TOPIC,
        queue_id=level - 1,
        properties=stored,
        keys=index_keys(decode_properties(stored)),
    )


def asked_level(text: str) -> int:
    """The DELAY property as a number; other text counts as 0."""
    try:
        return int(text)
    except ValueError:
        return 0


def due_form(message: Message, *, without: tuple[str, ...] = ()) -> StoreMessage:
    """The message to put when a waiting message is due, `without` properties of these names.

    Raises CorruptRecord if it does not name its target, or names the topic of half messages.
    """
    topic, queue_id = real_queue(message.properties)
    if topic == HALF_TOPIC:
        raise CorruptRecord(f"its topic would be {topic}, which is for half messages only")
    properties = {name: text for name, text in message.properties.items() if name not in without}
    return stored_again(message, topic, queue_id, properties)
