"""Requests as bytes, made from a template, and the bodies and keys of their messages.

The generator must cost less than the broker.

A template is a whole request as `protocol/` writes it, with marks where a message differs from the
next one: opaque, times, unique id, key, signature. All of these always have the same number of
characters, so the lengths of the frame and of its parts stay as they are.

The text to be signed is a template too: the values of the fields, one after the other. So signing
costs a hash and one more fill, and no field is looked at again.
"""

import base64
import functools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from aerobee.cli.bench.generator.security import Account
from aerobee.protocol.codes import PROTOCOL_VERSION, RequestCode
from aerobee.protocol.frames.command import OUR_LANGUAGE, Command
from aerobee.protocol.frames.signature import ACCESS_KEY, SIGNATURE, Signer, signed_values
from aerobee.protocol.headers.client import PULL_SUBSCRIPTION, PULL_SUSPEND, PullMessageHeader
from aerobee.protocol.headers.send import SendMessageHeader
from aerobee.protocol.message.batch import BatchItem, encode_batch
from aerobee.protocol.message.properties import (
    PROPERTY_KEYS,
    PROPERTY_UNIQUE_KEY,
    encode_properties,
)

#: Opaques have ten digits each, and there are enough of them for a connection.
FIRST_OPAQUE: Final = 1_000_000_000
LAST_OPAQUE: Final = 0x7FFFFFFF
#: By this property a consumer knows when a message should have been sent: monotonic ns, in hex.
STAMP: Final = "AEROBEE_BENCH"
#: This stands before the sixteen digits of a stamp, in a stored record.
STAMP_HEAD: Final = f"{STAMP}\x01".encode()
STAMP_DIGITS: Final = 16
PRODUCER_GROUP: Final = "AEROBEE_BENCH_PRODUCER"
#: Every broker of the protocol has this group from its start, so no group has to be made.
CONSUMER_GROUP: Final = "TOOLS_CONSUMER"

_KEYS: Final = 10_000
_KEY_BYTES: Final = 7

_OPAQUE_MARK: Final = 2_123_456_789
_BORN_MARK: Final = "9876543210123"
_OFFSET_MARK: Final = 8_765_432_109_876_543_210
_ID_MARK: Final = "<unique id of thirty-two digits>"
_KEY_MARK: Final = "<the key.>"
_STAMP_MARK: Final = "<sixteen digits>"
# It has the length of SHA-1 in base64.
_SIGNATURE_MARK: Final = "<the signature of all of it>"


class Payload(msgspec.Struct, frozen=True):
    """The bodies of messages: that of a file, or `pool` different ones of `size` bytes.

    The share `random_ratio` of each is random, the rest zeros; it decides how well they compress.
    """

    size: int
    file: str = ""
    pool: int = 1
    random_ratio: float = 1.0

    def bodies(self, seed: int) -> list[bytes]:
        """All bodies, at least one. Raises OSError when the file cannot be read."""
        if self.file:
            return [Path(self.file).read_bytes()]
        source = random.Random(seed)
        count = int(self.size * self.random_ratio)
        rest = bytes(self.size - count)
        return [source.randbytes(count) + rest for _ in range(self.pool)]


class Keys:
    """The keys of messages, in turn: 10,000 different keys, all of ten characters."""

    def __init__(self, *, shuffled: bool, seed: int) -> None:
        source = random.Random(seed)
        self._keys = [
            base64.urlsafe_b64encode(source.randbytes(_KEY_BYTES)).rstrip(b"=")
            for _ in range(_KEYS)
        ]
        self._source = source if shuffled else None
        self._next = 0

    def next(self) -> bytes:
        """The key of the next message."""
        if self._source is not None:
            return self._keys[self._source.randrange(_KEYS)]
        self._next = (self._next + 1) % _KEYS
        return self._keys[self._next]


class Shape(NamedTuple):
    """The properties that messages of one load have besides a body."""

    keyed: bool = False
    stamped: bool = False


class MessageValues(NamedTuple):
    """The source of a message's values: unique ids of 32 characters, keys of ten."""

    unique_id: Callable[[], str]
    key: Callable[[], bytes]

    def of(self, shape: Shape, stamp_ns: int) -> list[bytes]:
        """The values of one message, in the order of its properties."""
        values = [self.unique_id().encode()]
        if shape.keyed:
            values.append(self.key())
        if shape.stamped:
            values.append(b"%016x" % stamp_ns)
        return values


def _properties(shape: Shape) -> str:
    properties = {PROPERTY_UNIQUE_KEY: _ID_MARK}
    if shape.keyed:
        properties[PROPERTY_KEYS] = _KEY_MARK
    if shape.stamped:
        properties[STAMP] = _STAMP_MARK
    return encode_properties(properties)


def _message_marks(shape: Shape) -> list[bytes]:
    marks = [_ID_MARK.encode()]
    if shape.keyed:
        marks.append(_KEY_MARK.encode())
    if shape.stamped:
        marks.append(_STAMP_MARK.encode())
    return marks


class Template:
    """A request up to its body, as a format for `%`. The values come in the order of its marks:
    first the opaque, then those that `send_template` and its like name."""

    def __init__(self, request: bytes, body_bytes: int, marks: Sequence[bytes]) -> None:
        head = request[: len(request) - body_bytes].replace(b"%", b"%%")
        places = sorted((head.index(mark), number) for number, mark in enumerate(marks))
        for mark in marks:
            assert head.count(mark) == 1, f"{mark!r} does not stand alone"
            head = head.replace(mark, b"%b")
        self._head = head
        self._order = [number for _, number in places]

    def fill(self, parts: Sequence[bytes], body: bytes = b"") -> bytes:
        """The request with its body; each part is as long as its mark."""
        return self._head % tuple([parts[number] for number in self._order]) + body


class SignedTemplate(Template):
    """A request whose signature is filled in last. `values` is its signed part, with all of its
    marks but the opaque's, which is no field."""

    def __init__(
        self, request: bytes, body_bytes: int, marks: Sequence[bytes], values: bytes, signer: Signer
    ) -> None:
        super().__init__(request, body_bytes, [*marks, _SIGNATURE_MARK.encode()])
        self._values = Template(values, 0, marks[1:])
        self._sign = signer.sign

    def fill(self, parts: Sequence[bytes], body: bytes = b"") -> bytes:
        signature = self._sign(self._values.fill(parts[1:], body))
        return super().fill([*parts, signature], body)


def digits(opaque: int) -> bytes:
    """An opaque as it is filled in."""
    return b"%d" % opaque


def _request(code: RequestCode, ext: dict[str, str], body_bytes: int = 0) -> bytes:
    command = Command(
        code=int(code),
        ext=ext,
        language=OUR_LANGUAGE,
        opaque=_OPAQUE_MARK,
        version=PROTOCOL_VERSION,
        body=bytes(body_bytes),
    )
    return command.encode()


def _template(
    code: RequestCode,
    ext: dict[str, str],
    body_bytes: int,
    marks: Sequence[bytes],
    account: Account | None,
) -> Template:
    """Requests with these fields, signed where there is an account."""
    if account is None:
        return Template(_request(code, ext, body_bytes), body_bytes, marks)
    ext = {**ext, ACCESS_KEY: account.access_key, SIGNATURE: _SIGNATURE_MARK}
    request = _request(code, ext, body_bytes)
    return SignedTemplate(request, body_bytes, marks, signed_values(ext), account.signer)


def _send_ext(topic: str, queue_id: int, properties: str, *, batch: bool) -> dict[str, str]:
    header = SendMessageHeader(
        producer_group=PRODUCER_GROUP,
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=int(_BORN_MARK),
        flag=0,
        properties=properties,
        batch=batch,
    )
    return header.to_ext()


@functools.cache
def send_template(
    topic: str, queue_id: int, body_bytes: int, shape: Shape, account: Account | None = None
) -> Template:
    """Sends of one message to a queue: opaque, born time in ms, values of the message."""
    ext = _send_ext(topic, queue_id, _properties(shape), batch=False)
    marks = [digits(_OPAQUE_MARK), _BORN_MARK.encode(), *_message_marks(shape)]
    return _template(RequestCode.SEND_MESSAGE_V2, ext, body_bytes, marks, account)


@functools.cache
def batch_template(
    topic: str, queue_id: int, body_bytes: int, account: Account | None = None
) -> Template:
    """Batches to a queue, of `body_bytes` in all: opaque, born time in ms."""
    ext = _send_ext(topic, queue_id, "", batch=True)
    marks = [digits(_OPAQUE_MARK), _BORN_MARK.encode()]
    return _template(RequestCode.SEND_BATCH_MESSAGE, ext, body_bytes, marks, account)


@functools.cache
def pull_template(
    topic: str, queue_id: int, messages: int, suspend_ms: int, account: Account | None = None
) -> Template:
    """Pulls of a queue: opaque, offset. With `suspend_ms` the broker waits that long for
    messages."""
    header = PullMessageHeader(
        consumer_group=CONSUMER_GROUP,
        topic=topic,
        queue_id=queue_id,
        queue_offset=_OFFSET_MARK,
        max_msg_nums=messages,
        sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if suspend_ms else 0),
        commit_offset=0,
        suspend_timeout_millis=suspend_ms,
        sub_version=0,
        subscription="*",
        expression_type="TAG",
    )
    marks = [digits(_OPAQUE_MARK), digits(_OFFSET_MARK)]
    return _template(RequestCode.PULL_MESSAGE, header.to_ext(), 0, marks, account)


def offset_digits(offset: int) -> bytes:
    """A queue offset as it is filled in."""
    return b"%019d" % offset


class BatchBody:
    """The body of batches of some messages."""

    def __init__(self, bodies: Sequence[bytes], shape: Shape) -> None:
        self._shape = shape
        properties = _properties(shape).encode()
        # The values of each message follow its body, which may hold anything.
        self._pieces: list[tuple[bytes, Template]] = []
        self.size = 0
        for body in bodies:
            item = encode_batch([BatchItem(0, body, properties)])
            front = len(item) - len(properties)
            self._pieces.append((item[:front], Template(item[front:], 0, _message_marks(shape))))
            self.size += len(item)

    def fill(self, stamp_ns: int, values: MessageValues) -> bytes:
        """The body; all its messages have the same stamp."""
        parts = []
        for front, tail in self._pieces:
            parts.append(front)
            parts.append(tail.fill(values.of(self._shape, stamp_ns)))
        return b"".join(parts)
