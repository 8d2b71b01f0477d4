"""A message that waits for its own time: its demand and its forms (store/FORMAT.md 12.4).

It waits in the topic TIMER_TOPIC, in the queue of the hour in which it is to be looked at next: its
*action time*, TIMER_OUT_MS. That is its delivery time, or, if that is further ahead than its record
will be kept, the time at which it is stored again (rolled). The delivery time stays the same, in
TIMER_DELIVER_MS, whatever way the client asked for it.

Pure: values in, values out.
"""

import random
import re
from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.properties import (
    PROPERTY_DELAY,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_START_DELIVER_TIME,
    PROPERTY_TIMER_DEL_UNIQUE_KEY,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_UNIQUE_KEY,
    TIMER_PROPERTIES,
    decode_properties,
    encode_properties,
    index_keys,
)
from aerobee.protocol.message.record import Message, StoreMessage, stored_again
from aerobee.protocol.names import TIMER_TOPIC
from aerobee.store.errors import MessageIllegal
from aerobee.store.queues.delay_levels import out_ms
from aerobee.store.reading.delayed_messages import asked_level, due_form

HOUR_MS = 3_600_000
#: Queues that hours have in turn: more hours than the 40 days that a message may wait.
BUCKETS = 1024
#: The first queue id of recalls, which are in order of the hour of the recalled delivery.
RECALLS_FROM = BUCKETS

# A number of at most 18 digits, more than any time has; longer text is refused.
_NUMBER = re.compile(r"\+?[0-9]{1,18}", re.ASCII)
_FACTORS = {PROPERTY_TIMER_DELAY_SEC: 1000, PROPERTY_TIMER_DELAY_MS: 1}
_SHOWN = 64


def bucket_of(action_ms: int) -> int:
    """The queue of an action time's hour."""
    return action_ms // HOUR_MS % BUCKETS


def asked_ms(properties: Mapping[str, str], now_ms: int, max_delay_ms: int) -> int | None:
    """The delivery time that the message asks for, in ms since 1970; None if it asks for no time.

    A delay level counts before a time. Raises MessageIllegal for a text that is not a time, and for
    a time too far ahead.
    """
    name = next((one for one in TIMER_PROPERTIES if properties.get(one)), None)
    if name is None or asked_level(properties.get(PROPERTY_DELAY, "")) > 0:
        return None
    text = properties[name]
    if not _NUMBER.fullmatch(text):
        shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
        raise MessageIllegal(
            f"timer message illegal: {name} is {shown!r}, it has to be {_meaning(name)}, a whole "
            "number of 0 or more"
        )
    factor = _FACTORS.get(name)
    deliver_ms = int(text) if factor is None else now_ms + int(text) * factor
    if deliver_ms - now_ms > max_delay_ms:
        raise MessageIllegal(
            f"timer message illegal: it is to wait {(deliver_ms - now_ms) // 1000} s, the most is "
            f"{max_delay_ms // 1000} s (timerMaxDelaySec, delivery.timer_max_delay_seconds); "
            f"{name} is {text}, {_meaning(name)}"
        )
    return deliver_ms


def _meaning(name: str) -> str:
    return {
        PROPERTY_TIMER_DELAY_SEC: "the delay in seconds",
        PROPERTY_TIMER_DELAY_MS: "the delay in milliseconds",
    }.get(name, "the time of delivery in milliseconds since 1970")


def next_action_ms(deliver_ms: int, now_ms: int, window_ms: int) -> int:
    """The time at which a record that is stored now is to be looked at: its delivery, or, if that
    is more than the window ahead, a moment in the window's last quarter.

    The moment in the quarter is drawn at random, so that messages sent in a burst do not come back
    in a burst each time. A rest of an eighth stays for the next record at least.
    """
    if deliver_ms - now_ms <= window_ms:
        return deliver_ms
    action_ms = now_ms + window_ms - random.randrange(max(1, window_ms // 4))
    return min(action_ms, deliver_ms - window_ms // 8)


def _queue_id(properties: Mapping[str, str], action_ms: int) -> int:
    """The queue in which a record waits: a recall that need not be stored again lies beside the
    messages."""
    bucket = bucket_of(action_ms)
    is_recall = PROPERTY_TIMER_DEL_UNIQUE_KEY in properties
    if is_recall and properties[PROPERTY_TIMER_DELIVER_MS] == str(action_ms):
        return RECALLS_FROM + bucket
    return bucket


def recalled_digest(properties: Mapping[str, str]) -> bytes | None:
    """The digest that a recall and the recalled message have in common; None without an id."""
    recalled = properties.get(PROPERTY_TIMER_DEL_UNIQUE_KEY)
    unique_id = recalled or properties.get(PROPERTY_UNIQUE_KEY)
    if not unique_id:
        return None
    names = (
        properties.get(PROPERTY_REAL_TOPIC, ""),
        properties.get(PROPERTY_TIMER_DELIVER_MS, ""),
        unique_id,
    )
    return blake2b("\x01".join(names).encode("utf-8", "replace"), digest_size=16).digest()


def waiting_form(message: StoreMessage, deliver_ms: int, action_ms: int) -> StoreMessage:
    """The message as it waits. Text that is not UTF-8 becomes question marks, as for delay levels;
    of the properties that ask for a time only the time itself is kept."""
    properties = decode_properties(str(message.properties, "utf-8", "surrogatepass"))
    for name in (PROPERTY_TIMER_DELAY_SEC, PROPERTY_TIMER_DELAY_MS, PROPERTY_START_DELIVER_TIME):
        properties.pop(name, None)
    properties[PROPERTY_TIMER_DELIVER_MS] = str(deliver_ms)
    properties[PROPERTY_TIMER_OUT_MS] = str(action_ms)
    properties[PROPERTY_REAL_TOPIC] = message.topic
    properties[PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
    stored = encode_properties(properties).encode("utf-8", "replace")
    return msgspec.structs.replace(
        message,
        topic=TIMER_TOPIC,
        queue_id=_queue_id(properties, action_ms),
        tags_code=action_ms,
        properties=stored,
        keys=index_keys(decode_properties(stored)),
    )


def rolled_form(message: Message, action_ms: int) -> StoreMessage:
    """The form in which a waiting message goes on waiting."""
    properties = {**message.properties, PROPERTY_TIMER_OUT_MS: str(action_ms)}
    rolled = stored_again(message, TIMER_TOPIC, _queue_id(properties, action_ms), properties)
    rolled.tags_code = action_ms
    return rolled


def deliver_ms_of(message: Message) -> int:
    """The delivery time of a waiting message. Raises CorruptRecord without one."""
    text = message.properties.get(PROPERTY_TIMER_DELIVER_MS, "")
    deliver_ms = int(text) if _NUMBER.fullmatch(text) else 0
    if not deliver_ms or not out_ms(message.properties):
        raise CorruptRecord(f"{PROPERTY_TIMER_DELIVER_MS} of a waiting message is {text!r}")
    return deliver_ms


def delivered_form(message: Message) -> StoreMessage:
    """The message to put when a waiting message is due. Its time stays among its properties: it has
    passed, so it asks for nothing. Raises CorruptRecord like `due_form`."""
    return due_form(message, without=(PROPERTY_TIMER_OUT_MS,))
