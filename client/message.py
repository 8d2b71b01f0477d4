"""Messages as a program sees them: what it sends and what it receives.

A `Message` is checked before anything is sent (`check`), so that a wrong one costs no round trip.
The body of a large message is compressed here, not by the broker, and a received body is made plain
here, with a bound for all bodies of one answer together: a few kilobytes may claim to be gigabytes.
A message whose body cannot be made plain (LZ4 or ZSTD without their packages, a broken stream, over
the bound) is an `UnreadableMessage`: it is there, since dropping it would lose it for want of a
package, and asking for its body is an error that says why. Nobody gets compressed bytes as if they
were plain. Sources: protocol/WIRE.md 6.1-6.4, 6.8.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from aerobee.client.errors import BadMessage, UnreadableBody
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.message import properties as names
from aerobee.protocol.message.compression import CannotInflate, TooLarge, inflate, is_compressed
from aerobee.protocol.message.ids import offset_msg_id
from aerobee.protocol.message.record import Message as StoredMessage
from aerobee.protocol.message.record_layout import SYS_COMPRESSED, pack_host
from aerobee.protocol.names import check_topic_name

COMPRESS_FROM_BYTES: Final = 4096
MAX_BODY_BYTES: Final = 4 * 1024 * 1024
#: Most bytes that the compressed bodies of one answer may become, one or all together: a compressed
#: 4 MiB body of plain text seldom exceeds ten times.
MAX_INFLATED_BYTES: Final = 64 * 1024 * 1024
MAX_DELAY_LEVEL: Final = 18
#: The most that our broker takes; it may be set to less.
MAX_DELAY_S: Final = 40 * 86_400
# The year 9999.
_LAST_MS: Final = 253_402_300_799_999

_COMPRESS_LEVEL: Final = 5
_DELAY: Final = re.compile(r"[+-]?[0-9]{1,10}")


def queue_text(queue: MessageQueue) -> str:
    """`topic/broker/number`, for logs and task names."""
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


@dataclass(slots=True)
class Message:
    """A message to be sent.

    `keys` find it again (`Admin.query_by_key`), `tags` is the one tag consumers filter on,
    `delay_level` 1-18 asks the broker to hold it back, `deliver_at_ms` (since 1970) or `delay_s`
    until a time of its own, which RocketMQ before 5.0 does not know: it delivers such a message at
    once. `wait_store` false waives the wait for a disk flush on a broker with SYNC_FLUSH. `flag`
    and `properties` are the program's own.
    """

    topic: str
    body: bytes
    tags: str = ""
    keys: tuple[str, ...] | str = ()
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0
    delay_level: int = 0
    wait_store: bool = True
    deliver_at_ms: int = 0
    delay_s: float = 0

    def __post_init__(self) -> None:
        # Here already, where the program's own line is the last of the traceback.
        _check_body_type(self.body)

    def check(self, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        """Raise BadMessage if no broker could take this message."""
        try:
            check_topic_name(self.topic)
        except BadRequest as error:
            raise BadMessage(error.remark) from error
        _check_body_type(self.body)
        if not self.body:
            raise BadMessage(f"the body of a message for topic {self.topic!r} is empty")
        if len(self.body) > max_body_bytes:
            raise BadMessage(f"body of {len(self.body)} bytes is over the limit {max_body_bytes}")
        self._check_delay()
        for key in () if isinstance(self.keys, str) else self.keys:
            if not key or any(letter.isspace() for letter in key):
                raise BadMessage(f"a key must be a word without blanks, got {key!r}")

    @property
    def is_delayed(self) -> bool:
        """Whether it asks to be held back, by a level or until a time."""
        return bool(self.delay_level or self.deliver_at_ms or self.delay_s)

    def _check_delay(self) -> None:
        _check_number("delay_level", self.delay_level, whole=True)
        _check_number("deliver_at_ms", self.deliver_at_ms, whole=True)
        _check_number("delay_s", self.delay_s, whole=False)
        if not 0 <= self.delay_level <= MAX_DELAY_LEVEL:
            raise BadMessage(f"delay_level must be 0 to {MAX_DELAY_LEVEL}, got {self.delay_level}")
        if (self.delay_level > 0) + (self.deliver_at_ms != 0) + (self.delay_s != 0) > 1:
            raise BadMessage("of delay_level, deliver_at_ms and delay_s one can be given")
        if not 0 <= self.deliver_at_ms <= _LAST_MS:
            raise BadMessage(
                f"deliver_at_ms must be 0 to {_LAST_MS} (the year 9999), in milliseconds since "
                f"1970, got {self.deliver_at_ms}"
            )
        if not 0 <= self.delay_s <= MAX_DELAY_S:
            raise BadMessage(f"delay_s must be 0 to {MAX_DELAY_S} (40 days), got {self.delay_s}")

    def all_properties(self) -> dict[str, str]:
        """The program's properties and those that carry the other fields; BadMessage if illegal."""
        result = dict(self.properties)
        keys = self.keys if isinstance(self.keys, str) else " ".join(self.keys)
        if keys:
            result[names.PROPERTY_KEYS] = keys
        if self.tags:
            result[names.PROPERTY_TAGS] = self.tags
        if self.delay_level:
            result[names.PROPERTY_DELAY] = str(self.delay_level)
        if self.deliver_at_ms:
            result[names.PROPERTY_TIMER_DELIVER_MS] = str(self.deliver_at_ms)
        if self.delay_s:
            result[names.PROPERTY_TIMER_DELAY_MS] = str(max(1, round(self.delay_s * 1000)))
        if not self.wait_store:
            result[names.PROPERTY_WAIT] = "false"
        for name, value in result.items():
            _check_property(name, value)
        return result


def _check_body_type(body: object) -> None:
    if not isinstance(body, bytes | bytearray | memoryview):
        hint = ": .encode() the text" if isinstance(body, str) else ""
        raise BadMessage(f"the body of a message must be bytes, not {type(body).__name__}{hint}")


def _check_number(name: str, value: object, *, whole: bool) -> None:
    if isinstance(value, int if whole else int | float) and not isinstance(value, bool):
        return
    wanted = "an int" if whole else "a number"
    hint = ": int() makes it one" if isinstance(value, float) else ""
    raise BadMessage(f"{name} must be {wanted}, got the {type(value).__name__} {value!r}{hint}")


def _check_property(name: str, value: str) -> None:
    # Both separators end a field, and readers drop a property whose value is empty (WIRE.md 6.3).
    if not name or not value:
        raise BadMessage(f"property {name!r} must have a name and a value")
    if name == names.PROPERTY_DELAY and not _is_delay(value):
        raise BadMessage(f"property {name!r} must be a delay level, a number, got {value!r}")
    if not names.is_clean_text(name + value):
        raise BadMessage(f"property {name!r} holds U+0001 or U+0002, which separate properties")


def _is_delay(text: str) -> bool:
    """Whether brokers take a DELAY: they refuse others in a way after which sends are retried."""
    return _DELAY.fullmatch(text) is not None and -1 << 31 <= int(text) < 1 << 31


def property_text(properties: dict[str, str]) -> str:
    """The text a send header carries; BadMessage when longer than the broker stores."""
    text = names.encode_properties(properties)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise BadMessage(_not_utf8(properties)) from error
    if size > names.MAX_PROPERTIES_BYTES:
        limit = names.MAX_PROPERTIES_BYTES
        raise BadMessage(f"properties of {size} bytes are over the limit {limit}")
    return text


def _not_utf8(properties: dict[str, str]) -> str:
    fields = {names.PROPERTY_KEYS: "keys", names.PROPERTY_TAGS: "tags"}
    wrong = next(name for name, value in properties.items() if not _is_utf8(name + value))
    what = fields.get(wrong, f"property {wrong!r}")
    return f"{what} of a message must be text that UTF-8 can hold: {properties[wrong]!r} is not"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def compress_body(body: bytes) -> tuple[bytes, int]:
    """(body to send, sysFlag bits): zlib from 4096 bytes on, when that makes it smaller.

    Only bit 0 is set, not the compression type of newer clients: every consumer ever released
    reads that as zlib (protocol/WIRE.md 6.4).
    """
    if len(body) < COMPRESS_FROM_BYTES:
        return body, 0
    packed = zlib.compress(body, _COMPRESS_LEVEL)
    return (packed, SYS_COMPRESSED) if len(packed) < len(body) else (body, 0)


class Inflater:
    """Makes the bodies of one answer plain, within MAX_INFLATED_BYTES for all of them together."""

    def __init__(self) -> None:
        self._used = 0

    def plain(self, body: bytes, sys_flag: int) -> bytes:
        """The body as its producer gave it; raises CannotInflate.

        `TooLarge` when the bodies before it left too little room; `is_used` distinguishes that from
        a body that is over the limit by itself.
        """
        if not is_compressed(sys_flag):
            return body
        left = MAX_INFLATED_BYTES - self._used
        if left <= 0:
            raise TooLarge(f"what an answer's bodies become is over {MAX_INFLATED_BYTES} bytes")
        plain = inflate(body, sys_flag, left)
        self._used += len(plain)
        return plain

    @property
    def is_used(self) -> bool:
        """Whether another body of the same answer was made plain already."""
        return self._used > 0


@dataclass(slots=True)
class ReceivedMessage:
    """A message as it came from a broker.

    `msg_id` is the sender's unique id where it gave one, else `offset_msg_id`, the address of the
    record in the broker's log. For a message on its way through a retry topic, `topic` is the
    original topic, `queue` the retry queue it was read from and `reconsume_times` how often it
    failed before. Times are milliseconds since 1970, hosts are (ip, port), `size` is that of the
    stored record in bytes. `compressed` is true for an `UnreadableMessage` alone.
    """

    topic: str
    body: bytes
    tags: str
    keys: tuple[str, ...]
    properties: dict[str, str]
    msg_id: str
    queue: MessageQueue
    queue_offset: int
    log_offset: int
    flag: int
    sys_flag: int
    compressed: bool
    reconsume_times: int
    born_timestamp_ms: int
    born_host: tuple[str, int]
    store_timestamp_ms: int
    store_host: tuple[str, int]
    size: int

    @property
    def offset_msg_id(self) -> str:
        """The id by which the broker itself knows the message (protocol/WIRE.md 6.6)."""
        return offset_msg_id(pack_host(*self.store_host), self.log_offset)

    @property
    def held_bytes(self) -> int:
        """Bytes that it holds: a body that was made plain is more than its record."""
        return max(self.size, len(self.body))


class UnreadableMessage(ReceivedMessage):
    """A message whose body cannot be made plain here: reading `body` raises UnreadableBody.

    `why` is that error, `stored_body` the broker's bytes. The rest of it is as usual, so it can be
    printed, given back and passed over. A push consumer's listener never gets such a message: it is
    given back like a message that failed.
    """

    __slots__ = ("stored_body", "why")

    stored_body: bytes
    why: UnreadableBody

    @property
    def body(self) -> bytes:
        """Raises UnreadableBody."""
        # Else it would keep the frames of each caller.
        raise self.why.with_traceback(None)

    @body.setter
    def body(self, stored: bytes) -> None:
        self.stored_body = stored

    @property
    def held_bytes(self) -> int:
        """Bytes that it holds."""
        return self.size

    def __repr__(self) -> str:
        return f"<message {self.msg_id} of {self.topic} that cannot be read: {self.why}>"

    # Messages are compared by identity: a comparison of the fields would read the body.
    __eq__ = object.__eq__
    __hash__ = object.__hash__


def received(
    stored: StoredMessage, broker_name: str, inflater: Inflater | None = None
) -> ReceivedMessage:
    """A decoded record as the program sees it; `broker_name` is where it was read.

    `inflater` is that of the answer, where others come with it.
    """
    try:
        body = (inflater or Inflater()).plain(stored.body, stored.sys_flag)
    except CannotInflate as error:
        return unreadable(stored, broker_name, error)
    return _made(ReceivedMessage, stored, broker_name, body)


def received_until_full(
    records: Iterable[StoredMessage], queue: MessageQueue, most: int
) -> tuple[list[ReceivedMessage], int | None]:
    """The messages of a pull from `queue`, `most` of them, and the offset there to go on from when
    more came.

    What the bodies of one answer become is bounded as well, and those that are left over are no
    worse than the first: the next pull brings them. At least one message comes, readable or not.
    """
    assert most > 0
    messages: list[ReceivedMessage] = []
    inflater = Inflater()
    for stored in records:
        if len(messages) == most:
            return messages, _offset_in(queue, stored)
        if not stored.sys_flag & SYS_COMPRESSED:
            messages.append(_made(ReceivedMessage, stored, queue.broker_name, stored.body))
            continue
        try:
            body = inflater.plain(stored.body, stored.sys_flag)
        except CannotInflate as error:
            if isinstance(error, TooLarge) and inflater.is_used:
                return messages, _offset_in(queue, stored)
            messages.append(unreadable(stored, queue.broker_name, error))
        else:
            messages.append(_made(ReceivedMessage, stored, queue.broker_name, body))
    return messages, None


def _offset_in(queue: MessageQueue, stored: StoredMessage) -> int:
    """The place of a message in the queue that it was read from, which may be a further one."""
    if stored.topic == queue.topic:
        return stored.queue_offset
    further = dict(names.further_queues(stored.properties))
    return further.get(queue.topic, stored.queue_offset)


def unreadable(stored: StoredMessage, broker_name: str, why: CannotInflate) -> UnreadableMessage:
    """The message of a record whose body cannot be made plain."""
    message = _made(UnreadableMessage, stored, broker_name, stored.body)
    message.why = UnreadableBody(f"message {message.msg_id} of {message.topic}: {why}")
    return message


ReceivedT = TypeVar("ReceivedT", bound=ReceivedMessage)


def _made(kind: type[ReceivedT], stored: StoredMessage, broker_name: str, body: bytes) -> ReceivedT:
    properties = stored.properties
    return kind(
        topic=stored.topic,
        body=body,
        tags=properties.get(names.PROPERTY_TAGS, ""),
        keys=tuple(properties.get(names.PROPERTY_KEYS, "").split()),
        properties=properties,
        msg_id=properties.get(names.PROPERTY_UNIQUE_KEY) or stored.msg_id,
        queue=MessageQueue(stored.topic, broker_name, stored.queue_id),
        queue_offset=stored.queue_offset,
        log_offset=stored.log_offset,
        flag=stored.flag,
        sys_flag=stored.sys_flag,
        compressed=kind is UnreadableMessage,
        reconsume_times=stored.reconsume_times,
        born_timestamp_ms=stored.born_timestamp_ms,
        born_host=stored.born_host,
        store_timestamp_ms=stored.store_timestamp_ms,
        store_host=stored.store_host,
        size=stored.size,
    )
