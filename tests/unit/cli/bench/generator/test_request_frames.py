"""Requests from templates are those that `protocol/` would have written."""

from collections.abc import Iterator
from itertools import count

import pytest

from aerobee.cli.bench.generator.request_frames import (
    CONSUMER_GROUP,
    FIRST_OPAQUE,
    LAST_OPAQUE,
    STAMP,
    BatchBody,
    Keys,
    MessageValues,
    Payload,
    Shape,
    batch_template,
    digits,
    offset_digits,
    pull_template,
    send_template,
)
from aerobee.cli.bench.generator.security import Account
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.protocol.frames.signature import ACCESS_KEY, Signer
from aerobee.protocol.headers.client import PullMessageHeader
from aerobee.protocol.headers.send import SendMessageHeader
from aerobee.protocol.message.batch import decode_batch
from aerobee.protocol.message.properties import decode_properties

BORN_MS = 1_764_000_000_123
STAMP_NS = 123_456_789_012_345
# Bytes that mean something to `%`, and the marks of the templates themselves.
BODY = b"%b 100 % %% <the key.> <sixteen digits> 2123456789"
# Texts that JSON writes otherwise than they are signed, or that mean something to `%`.
ACCESS_KEYS = ["bench-sender", 'a "k\u00fcy" of 100 %b']
SHAPES = [Shape(keyed, stamped) for keyed in (False, True) for stamped in (False, True)]


@pytest.fixture
def values() -> MessageValues:
    ids: Iterator[int] = count(1)
    return MessageValues(lambda: f"{next(ids):032X}", Keys(shuffled=False, seed=1).next)


def decoded(frame: bytes) -> Command:
    decoder = FrameDecoder()
    [command] = decoder.feed(frame)
    assert decoder.buffered == 0
    return command


def check_properties(text: str, shape: Shape) -> None:
    properties = decode_properties(text)
    assert len(properties["UNIQ_KEY"]) == 32
    assert ("KEYS" in properties) == shape.keyed
    if shape.keyed:
        assert len(properties["KEYS"]) == 10
    if shape.stamped:
        assert int(properties[STAMP], 16) == STAMP_NS
    else:
        assert STAMP not in properties


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("opaque", [FIRST_OPAQUE, LAST_OPAQUE])
def test_a_send_is_one(shape: Shape, opaque: int, values: MessageValues) -> None:
    template = send_template("Orders", 12, len(BODY), shape)
    parts = [digits(opaque), b"%d" % BORN_MS, *values.of(shape, STAMP_NS)]
    command = decoded(template.fill(parts) + BODY)
    assert (command.code, command.opaque) == (RequestCode.SEND_MESSAGE_V2, opaque)
    assert (command.is_response, command.is_oneway) == (False, False)
    header = SendMessageHeader.from_command(command)
    assert (header.topic, header.queue_id, header.batch) == ("Orders", 12, False)
    assert header.born_timestamp == BORN_MS
    check_properties(header.properties, shape)
    assert command.body == BODY


@pytest.mark.parametrize("shape", SHAPES)
def test_a_batch_is_one(shape: Shape, values: MessageValues) -> None:
    bodies = [BODY, BODY[::-1], BODY]
    body = BatchBody(bodies, shape)
    filled = body.fill(STAMP_NS, values)
    assert len(filled) == body.size
    template = batch_template("Orders", 0, body.size)
    command = decoded(template.fill([digits(FIRST_OPAQUE), b"%d" % BORN_MS]) + filled)
    assert command.code == RequestCode.SEND_BATCH_MESSAGE
    header = SendMessageHeader.from_command(command)
    assert (header.batch, header.born_timestamp, header.properties) == (True, BORN_MS, "")
    items = decode_batch(command.body)
    assert [item.body for item in items] == bodies
    for item in items:
        check_properties(item.properties.decode(), shape)
    assert len({item.properties for item in items}) == 3  # unique ids


@pytest.mark.parametrize("suspend_ms", [0, 15_000])
@pytest.mark.parametrize("offset", [0, 9_223_372_036_854_775_807])
def test_a_pull_is_one(suspend_ms: int, offset: int) -> None:
    template = pull_template("Orders", 3, 32, suspend_ms)
    command = decoded(template.fill((digits(LAST_OPAQUE), offset_digits(offset))))
    assert (command.code, command.opaque) == (RequestCode.PULL_MESSAGE, LAST_OPAQUE)
    header = PullMessageHeader.from_ext(command.ext)
    assert (header.topic, header.queue_id, header.queue_offset) == ("Orders", 3, offset)
    assert (header.max_msg_nums, header.suspend_timeout_millis) == (32, suspend_ms)
    # The subscription comes along, and no offset is committed: nobody need know the group.
    assert header.sys_flag == (4 | 2 if suspend_ms else 4)
    assert (header.consumer_group, header.subscription) == (CONSUMER_GROUP, "*")


# Signed


def account(access_key: str) -> Account:
    return Account(access_key, Signer("secret"))


def check_signed(command: Command, access_key: str) -> None:
    """A broker would let it in; neither fields nor body could have been others."""
    assert command.ext[ACCESS_KEY] == access_key
    signer = Signer("secret")
    assert signer.has_signed(command.ext, command.body, command.version)
    assert not signer.has_signed(command.ext, command.body + b"x", command.version)
    assert not Signer("other").has_signed(command.ext, command.body, command.version)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("access_key", ACCESS_KEYS)
def test_a_signed_send_is_one(access_key: str, shape: Shape, values: MessageValues) -> None:
    template = send_template("Orders", 12, len(BODY), shape, account(access_key))
    for opaque in (FIRST_OPAQUE, LAST_OPAQUE):
        parts = [digits(opaque), b"%d" % BORN_MS, *values.of(shape, STAMP_NS)]
        command = decoded(template.fill(parts, BODY))
        assert (command.code, command.opaque) == (RequestCode.SEND_MESSAGE_V2, opaque)
        header = SendMessageHeader.from_command(command)
        assert (header.topic, header.born_timestamp, command.body) == ("Orders", BORN_MS, BODY)
        check_properties(header.properties, shape)
        check_signed(command, access_key)


@pytest.mark.parametrize("access_key", ACCESS_KEYS)
def test_a_signed_batch_is_one(access_key: str, values: MessageValues) -> None:
    body = BatchBody([BODY, BODY[::-1]], SHAPES[-1])
    template = batch_template("Orders", 0, body.size, account(access_key))
    parts = [digits(FIRST_OPAQUE), b"%d" % BORN_MS]
    command = decoded(template.fill(parts, body.fill(STAMP_NS, values)))
    assert SendMessageHeader.from_command(command).batch
    assert [item.body for item in decode_batch(command.body)] == [BODY, BODY[::-1]]
    check_signed(command, access_key)


@pytest.mark.parametrize("access_key", ACCESS_KEYS)
@pytest.mark.parametrize("offset", [0, 9_223_372_036_854_775_807])
def test_a_signed_pull_is_one(access_key: str, offset: int) -> None:
    template = pull_template("Orders", 3, 32, 15_000, account(access_key))
    command = decoded(template.fill((digits(LAST_OPAQUE), offset_digits(offset))))
    assert PullMessageHeader.from_ext(command.ext).queue_offset == offset
    check_signed(command, access_key)


def test_what_is_signed_for_one_account_is_not_for_another() -> None:
    one, other, nobody = (
        send_template("Orders", 0, 0, Shape(), by) for by in (account("a"), account("b"), None)
    )
    parts = [digits(FIRST_OPAQUE), b"%d" % BORN_MS, b"A" * 32]
    fields = [decoded(template.fill(parts)).ext for template in (one, other, nobody)]
    assert [ext.get(ACCESS_KEY) for ext in fields] == ["a", "b", None]
    assert "Signature" not in fields[2]


def test_bodies_are_the_same_for_the_same_seed() -> None:
    payload = Payload(100, pool=3, random_ratio=0.25)
    bodies = payload.bodies(5)
    assert bodies == payload.bodies(5) != payload.bodies(6)
    assert len(set(bodies)) == 3
    assert all(len(body) == 100 and body.endswith(bytes(75)) for body in bodies)
    assert any(body[:25] != bytes(25) for body in bodies)


def test_keys_go_round_or_are_drawn() -> None:
    keys = Keys(shuffled=False, seed=1)
    first = [keys.next() for _ in range(10_000)]
    assert len(set(first)) == 10_000
    assert [keys.next() for _ in range(10_000)] == first
    drawn = Keys(shuffled=True, seed=1)
    assert {drawn.next() for _ in range(1000)} <= set(first)
    assert {len(key) for key in first} == {10}
