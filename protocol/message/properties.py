"""Message properties: names and the text form `name U+0001 value U+0002 name U+0001 value`.

Clients up to 4.9.0 end the text with U+0002, later clients and the 4.9.8 broker do not. Both forms
are read, and the form without U+0002 at the end is written (protocol/WIRE.md 6.3). Entries that
other readers skip, with an empty value for example, are skipped here too, so that stored properties
mean the same to every client.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

from aerobee.protocol.errors import CorruptRecord

NAME_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
KEY_SEPARATOR = " "
#: Separates the names of INNER_MULTI_DISPATCH, and its numbers.
LIST_SEPARATOR = ","
MAX_PROPERTIES_BYTES = 32767

PROPERTY_KEYS = "KEYS"
PROPERTY_TAGS = "TAGS"
PROPERTY_WAIT = "WAIT"
PROPERTY_DELAY = "DELAY"
PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
PROPERTY_REAL_TOPIC = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID = "REAL_QID"
PROPERTY_TRANSACTION_PREPARED = "TRAN_MSG"
PROPERTY_PRODUCER_GROUP = "PGROUP"
PROPERTY_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
PROPERTY_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
PROPERTY_CHECK_IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
PROPERTY_RECONSUME_TIME = "RECONSUME_TIME"
PROPERTY_MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
PROPERTY_MSG_REGION = "MSG_REGION"
PROPERTY_TRACE_ON = "TRACE_ON"
PROPERTY_UNIQUE_KEY = "UNIQ_KEY"
PROPERTY_CLUSTER = "CLUSTER"
PROPERTY_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
PROPERTY_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
PROPERTY_CRC = "__CRC32#"
#: A property of messages that must keep their order.
PROPERTY_SHARDING_KEY = "__SHARDINGKEY"
PROPERTY_CORRELATION_ID = "CORRELATION_ID"
PROPERTY_REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
PROPERTY_TTL = "TTL"
PROPERTY_MESSAGE_TYPE = "MSG_TYPE"
PROPERTY_PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
PROPERTY_ARRIVE_TIME = "ARRIVE_TIME"
#: The MSG_TYPE of a reply; no other message has one.
REPLY_TYPE = "reply"
#: The delivery time of a message: seconds from now, milliseconds from now, ms since 1970; another
#: SDK sets the last property, which is ms since 1970 too.
PROPERTY_TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
PROPERTY_TIMER_DELAY_MS = "TIMER_DELAY_MS"
PROPERTY_TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
PROPERTY_START_DELIVER_TIME = "__STARTDELIVERTIME"
#: The broker's own: the time when the waiting record is to be looked at (store/FORMAT.md 12.4).
PROPERTY_TIMER_OUT_MS = "TIMER_OUT_MS"
#: A recall's property: the UNIQ_KEY of the message that is not to be delivered.
PROPERTY_TIMER_DEL_UNIQUE_KEY = "TIMER_DEL_UNIQKEY"
#: The properties by which a client asks for a time; the first that is given counts.
TIMER_PROPERTIES = (
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_START_DELIVER_TIME,
)

#: Properties that the store writes for a single record: its places in further queues, the CRC of
#: its bytes. A client that forwards a message or sends it back brings them along, but they would be
#: wrong for another record.
OF_ONE_RECORD = (PROPERTY_MULTI_QUEUE_OFFSET, PROPERTY_CRC)

#: Names that clients and brokers use among themselves, those of 5.x included (protocol/WIRE.md
#: 6.8); all others belong to applications.
SYSTEM_PROPERTIES = frozenset(
    """
    KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET
    BUYER_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG ORIGIN_MESSAGE_ID RECONSUME_TIME
    MAX_RECONSUME_TIMES MSG_REGION TRACE_ON UNIQ_KEY CONSUME_START_TIME TRAN_PREPARED_QUEUE_OFFSET
    TRANSACTION_CHECK_TIMES CHECK_IMMUNITY_TIME_IN_SECONDS INSTANCE_ID CORRELATION_ID
    REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME MSG_TYPE CLUSTER INNER_MULTI_DISPATCH
    INNER_MULTI_QUEUE_OFFSET __SHARDINGKEY TIMER_DELAY_SEC TIMER_DELAY_MS TIMER_DELIVER_MS
    TIMER_OUT_MS TIMER_DEL_UNIQKEY
    __BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID POP_CK 1ST_POP_TIME INNER_NUM
    INNER_BASE __CRC32# TRACE_CONTEXT
    """.split()  # noqa: SIM905  read as a table of words
)

_UNIQUE_KEY_ENTRY = PROPERTY_UNIQUE_KEY.encode() + b"\x01"
# Up to this product of bytes and names each name is looked for by itself, which takes 60 us.
_MOST_LOOKED_AT = 65_536
_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)
_MOST_QUEUE_ID = (1 << 31) - 1
# A queue's entries of 20 bytes have 64-bit positions.
_MOST_QUEUE_OFFSETS = (1 << 63) // 20
# Longer properties are not remembered: a message may have 16,000 key words, which take a megabyte.
_REMEMBERED_BYTES = 1024


def decode_properties(text: str | bytes | memoryview) -> dict[str, str]:
    """The properties in `text` by name; of duplicate names the last one counts.

    It skips, like all readers, entries without U+0001, with an empty name or with an empty value.
    Raises UnicodeDecodeError when bytes are not UTF-8.
    """
    if not isinstance(text, str):
        text = str(text, "utf-8")
    properties: dict[str, str] = {}
    for entry in text.split("\x02"):
        name, _, value = entry.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def property_marks(names: Iterable[str]) -> tuple[tuple[str, bytes], ...]:
    """The marks by which `chosen_properties` finds these properties."""
    return tuple([(name, b"\x02%b\x01" % name.encode()) for name in names])


def chosen_properties(
    encoded: bytes, marks: Collection[tuple[str, bytes]]
) -> Mapping[str, str | None]:
    """The properties that `marks` name, and perhaps others. For readers of many records, which want
    a few properties among many. Bytes that are not UTF-8 are replaced, as Java readers do."""
    if len(encoded) * len(marks) <= _MOST_LOOKED_AT:
        text = b"\x02" + encoded
        chosen: dict[str, str] = {}
        for name, mark in marks:
            # The last of several properties with this name counts.
            start = text.rfind(mark)
            if start < 0:
                continue
            start += len(mark)
            end = text.find(b"\x02", start)
            value = text[start:] if end < 0 else text[start:end]
            if not value:  # an empty value does not count, and an earlier value may
                break
            chosen[name] = value.decode("utf-8", "replace")
        else:
            return chosen
    return decode_properties(encoded.decode("utf-8", "replace"))


def real_queue(properties: Mapping[str, str]) -> tuple[str, int]:
    """The (topic, queue id) to which a message was sent that now waits in a topic of the broker.

    Raises CorruptRecord if its properties do not name them.
    """
    topic = properties.get(PROPERTY_REAL_TOPIC, "")
    queue_id = properties.get(PROPERTY_REAL_QUEUE_ID, "")
    if not topic or _NUMBER.fullmatch(queue_id) is None or int(queue_id) > _MOST_QUEUE_ID:
        raise CorruptRecord(
            f"it names no queue to go to: {PROPERTY_REAL_TOPIC} is {topic[:127]!r}, "
            f"{PROPERTY_REAL_QUEUE_ID} is {queue_id[:32]!r}"
        )
    return topic, int(queue_id)


def encode_properties(properties: Mapping[str, str]) -> str:
    """The text form, without a final U+0002.

    The caller has checked that no name or value holds U+0001 or U+0002 (`is_clean_text`).
    """
    return "\x02".join([f"{name}\x01{value}" for name, value in properties.items()])


def further_queues(properties: Mapping[str, str]) -> list[tuple[str, int]]:
    """(queue name, queue offset) of each queue that a stored message was multi-dispatched to.

    Impossible numbers are passed over; the list is empty if there are not as many numbers as names.
    Empty parts at the end do not count, as in Java's lists (store/FORMAT.md 2.8).
    """
    names = split_list(properties.get(PROPERTY_MULTI_DISPATCH, ""))
    numbers = split_list(properties.get(PROPERTY_MULTI_QUEUE_OFFSET, ""))
    if len(names) != len(numbers):
        return []
    return [
        (name, int(number))
        for name, number in zip(names, numbers, strict=True)
        if _NUMBER.fullmatch(number) and int(number) < _MOST_QUEUE_OFFSETS
    ]


def split_list(text: str) -> list[str]:
    """The parts of a list of queue names or offsets."""
    return text.rstrip(LIST_SEPARATOR).split(LIST_SEPARATOR)


def is_clean_text(text: str) -> bool:
    """Whether `text` can be a property's name or value without breaking the text form apart."""
    return "\x01" not in text and "\x02" not in text


def index_keys(properties: Mapping[str, str]) -> tuple[str, ...]:
    """The words by which a message is found, from its decoded properties; see `key_words`."""
    return key_words(properties.get(PROPERTY_UNIQUE_KEY, ""), properties.get(PROPERTY_KEYS, ""))


def tags_and_keys(encoded: bytes) -> tuple[str, tuple[str, ...]]:
    """TAGS and the index words of stored properties, for readers of millions of records.

    The result equals that of `decode_properties`. Messages of a producer differ mostly in their
    UNIQ_KEY, so the text around it is remembered, unless it is long. Raises UnicodeDecodeError.
    """
    if len(encoded) > _REMEMBERED_BYTES:
        properties = decode_properties(encoded)
        return properties.get(PROPERTY_TAGS, ""), index_keys(properties)
    start = encoded.find(_UNIQUE_KEY_ENTRY)
    if start < 0:
        tags, _, words = _tags_and_words(encoded)
        return tags, words
    end = encoded.find(b"\x02", start)
    if end < 0:
        end = len(encoded)
    unique_key = encoded[start + len(_UNIQUE_KEY_ENTRY) : end]
    tags, has_another, words = _tags_and_words(encoded[:start] + encoded[end:])
    if has_another or not unique_key or (start and encoded[start - 1] != 2):
        properties = decode_properties(encoded)
        return properties.get(PROPERTY_TAGS, ""), index_keys(properties)
    return tags, (unique_key.decode(), *words)


@lru_cache(maxsize=1024)
def _tags_and_words(encoded: bytes) -> tuple[str, bool, tuple[str, ...]]:
    """TAGS, whether there is a UNIQ_KEY, and the words of properties."""
    properties = decode_properties(encoded)
    has_unique_key = PROPERTY_UNIQUE_KEY in properties
    return properties.get(PROPERTY_TAGS, ""), has_unique_key, index_keys(properties)


def key_words(unique_key: str, keys: str) -> tuple[str, ...]:
    """The words by which a message is found: UNIQ_KEY first, then each word of KEYS (FORMAT.md
    6.3).

    Words are split at single spaces; empty words are dropped, repeated words kept, as in the index
    files.
    """
    if not keys:
        return (unique_key,) if unique_key else ()
    words = [word for word in keys.split(KEY_SEPARATOR) if word]
    return (unique_key, *words) if unique_key else tuple(words)
