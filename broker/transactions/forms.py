"""A transactional message in its forms (store/FORMAT.md 12.2): values in, values out.

    half     as it waits: queue 0 of the half topic, its own topic and queue id among its properties
    copy     the half message stored again, when its producer is asked or progress needs it
    final    as it is delivered: in its own topic, marked as committed
    aside    what was asked about too often: in TRANS_CHECK_MAX_TIME_TOPIC
    op       not the message: "the half message at that queue offset is decided"

All but the op message keep body, properties and birth. A copy says in TRAN_PREPARED_QUEUE_OFFSET
which half message the transaction began with, so that whoever decides that one decides the copy.
RocketMQ gives that property to copies made during immunity only, and looks at it nowhere else.

An op message is RocketMQ's but for its user flag, 0 there: it says here how was decided, COMMIT,
ROLLBACK or ASIDE; and of a copy it says in TRAN_PREPARED_QUEUE_OFFSET what the copy does. RocketMQ
looks at neither.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from aerobee.protocol.codes import RequestCode
from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.frames.command import Command, make_request
from aerobee.protocol.hashing import tag_code
from aerobee.protocol.headers.transactions import COMMIT, CheckTransactionStateHeader
from aerobee.protocol.message.demands import CHECKS
from aerobee.protocol.message.ids import offset_msg_id
from aerobee.protocol.message.properties import (
    PROPERTY_CHECK_IMMUNITY,
    PROPERTY_CHECK_TIMES,
    PROPERTY_PREPARED_QUEUE_OFFSET,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT,
    decode_properties,
    encode_properties,
    real_queue,
)
from aerobee.protocol.message.record import (
    Message,
    StoreMessage,
    decode_record,
    encode_record,
    stored_again,
)
from aerobee.protocol.message.record_layout import SYS_TRANSACTION_MASK
from aerobee.protocol.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from aerobee.store.segments.results import PutResult

QUEUE = 0
#: Beside COMMIT and ROLLBACK: it was asked about too often, or is too old, and was put aside.
ASIDE = 4
#: Decided, by a broker that did not note how.
DECIDED = 0
_OP_TAG = "d"
_OP_TAG_CODE = tag_code(_OP_TAG)
_OP_NAMES = {PROPERTY_TAGS: _OP_TAG, PROPERTY_WAIT: "true"}
_OP_PROPERTIES = encode_properties(_OP_NAMES)
_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)

#: The values that all copies of a half message share: group, unique key, birth.
Fingerprint = tuple[str, str, int]


class Half(NamedTuple):
    """A half message, also a half message that was put aside, as it was read."""

    message: Message
    # Where it would be delivered.
    topic: str
    queue_id: int

    @classmethod
    def read(cls, record: bytes) -> Half:
        """Raises CorruptRecord if the record belongs to no transaction."""
        return cls.of(decode_record(record))

    @classmethod
    def of(cls, message: Message) -> Half:
        """Make it from a decoded record (see `read`)."""
        if message.topic not in (HALF_TOPIC, CHECK_MAX_TIME_TOPIC):
            raise CorruptRecord(f"it is of topic {message.topic}, and no half message")
        return cls(message, *real_queue(message.properties))

    @property
    def is_half(self) -> bool:
        """Whether it lies in the half queue."""
        return self.message.topic == HALF_TOPIC

    @property
    def group(self) -> str:
        """The producer group that decides."""
        return self.message.properties.get(PROPERTY_PRODUCER_GROUP, "")

    @property
    def checks(self) -> int:
        """How often the group was asked."""
        return _number(self.message.properties.get(PROPERTY_CHECK_TIMES, "")) or 0

    @property
    def origin(self) -> int | None:
        """The queue offset of the half message that the transaction began with; None: it is not
        known, the message was put aside."""
        link = _number(self.message.properties.get(PROPERTY_PREPARED_QUEUE_OFFSET, ""))
        if not self.is_half:
            return link
        own = self.message.queue_offset
        return own if link is None or link > own else link

    @property
    def fingerprint(self) -> Fingerprint | None:
        """By which copies are found that have no link; None without a unique key."""
        key = self.message.properties.get(PROPERTY_UNIQUE_KEY, "")
        return (self.group, key, self.message.born_timestamp_ms) if key else None

    @property
    def is_copy(self) -> bool:
        """Whether it was stored again at a check, or to let progress pass."""
        properties = self.message.properties
        return PROPERTY_CHECK_TIMES in properties or PROPERTY_PREPARED_QUEUE_OFFSET in properties

    def check_after_ms(self, timeout_ms: int, now_ms: int) -> int:
        """When its producer may be asked, in wall time: by when the message was stored, since its
        birth is of the producer's clock. Of a copy the first time is not known. What is in the
        future, after a clock was set back, counts as now."""
        since_ms = min(self.message.store_timestamp_ms, now_ms)
        if self.is_copy:
            since_ms = min(self.message.born_timestamp_ms, since_ms)
        return since_ms + immunity_ms(self.message.properties, timeout_ms)


def immunity_ms(properties: dict[str, str], timeout_ms: int) -> int:
    """How long after it was stored a message is not asked about."""
    own = _number(properties.get(PROPERTY_CHECK_IMMUNITY, ""))
    return timeout_ms if own is None else own * 1000


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def half_form(message: StoreMessage) -> StoreMessage:
    """The message as it waits. Text that is no UTF-8 becomes question marks, as with delayed
    ones."""
    properties = decode_properties(str(message.properties, "utf-8", "surrogatepass"))
    for name in CHECKS.names:
        properties.pop(name, None)
    properties[PROPERTY_REAL_TOPIC] = message.topic
    properties[PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
    return msgspec.structs.replace(
        message,
        topic=HALF_TOPIC,
        queue_id=QUEUE,
        sys_flag=message.sys_flag & ~SYS_TRANSACTION_MASK,
        properties=encode_properties(properties).encode("utf-8", "replace"),
    )


def copy_form(half: Half, checks: int | None) -> StoreMessage:
    """The half message stored again; `checks` is how often its producer was asked, None: as before.

    A message that was put aside becomes a half message again.
    """
    properties = dict(half.message.properties)
    if half.origin is not None:
        properties[PROPERTY_PREPARED_QUEUE_OFFSET] = str(half.origin)
    if checks is not None:
        properties[PROPERTY_CHECK_TIMES] = str(checks)
    return stored_again(half.message, HALF_TOPIC, QUEUE, properties)


def aside_form(half: Half) -> StoreMessage:
    """The message as it is kept when nobody is asked about it any more."""
    properties = dict(half.message.properties)
    properties[PROPERTY_PREPARED_QUEUE_OFFSET] = str(half.origin)
    return stored_again(half.message, CHECK_MAX_TIME_TOPIC, QUEUE, properties)


def final_form(half: Half) -> StoreMessage:
    """The message as consumers get it, the half message's properties included."""
    message = half.message
    final = stored_again(message, half.topic, half.queue_id, message.properties)
    final.sys_flag = message.sys_flag & ~SYS_TRANSACTION_MASK | COMMIT
    final.prepared_transaction_offset = message.log_offset
    return final


def op_form(
    half_offset: int, origin: int | None, decision: int, host: bytes, now_ms: int
) -> StoreMessage:
    """The note that the half message at that queue offset is decided, and so the transaction that
    began with the one at `origin`."""
    properties = _OP_PROPERTIES
    if origin is not None and origin != half_offset:
        properties = encode_properties({**_OP_NAMES, PROPERTY_PREPARED_QUEUE_OFFSET: str(origin)})
    return StoreMessage(
        OP_HALF_TOPIC,
        QUEUE,
        decision,
        0,
        now_ms,
        host,
        host,
        0,
        0,
        str(half_offset).encode(),
        properties.encode(),
        _OP_TAG_CODE,
    )


def decided_offsets(body: bytes) -> list[int]:
    """The queue offsets that an op message names: one, or as many as RocketMQ 5.1 gave it."""
    numbers = [_number(part) for part in str(body, "ascii", "replace").split(",")]
    return [number for number in numbers if number is not None]


def decided_origin(message: Message) -> int | None:
    """The queue offset of the half message with which the transaction began that an op message is
    about; None: the op message names it, or does not say."""
    return _number(message.properties.get(PROPERTY_PREPARED_QUEUE_OFFSET, ""))


def check_request(half: Half, copy: StoreMessage, place: PutResult) -> Command:
    """CHECK_TRANSACTION_STATE about the copy that lies at `place`."""
    unique_key = half.message.properties.get(PROPERTY_UNIQUE_KEY)
    header = CheckTransactionStateHeader(
        place.queue_offset,
        place.log_offset,
        unique_key,
        unique_key,
        offset_msg_id(copy.store_host, place.log_offset),
    )
    shown = msgspec.structs.replace(copy, topic=half.topic, queue_id=half.queue_id)
    body = encode_record(shown, place.queue_offset, place.log_offset, place.store_timestamp_ms)
    return make_request(RequestCode.CHECK_TRANSACTION_STATE, header.to_ext(), body, oneway=True)
