"""Messages that may be sent, and how received bodies come out."""

from __future__ import annotations

import os
import sys
import zlib
from typing import Any

import pytest

from aerobee.client import message as messages
from aerobee.client.errors import BadMessage, UnreadableBody
from aerobee.client.message import (
    Message,
    UnreadableMessage,
    compress_body,
    property_text,
    received,
    received_until_full,
)
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.message.record import decode_record
from aerobee.protocol.message.record_layout import SYS_COMPRESSED

QUEUE = MessageQueue("T", "a", 0)


@pytest.mark.parametrize(
    "wrong",
    [
        Message("no/slash", b"x"),
        Message("", b"x"),
        Message("t" * 128, b"x"),
        Message("T", b""),
        Message("T", bytes(5 * 1024 * 1024)),
        Message("T", b"x", delay_level=19),
        Message("T", b"x", deliver_at_ms=-1),
        Message("T", b"x", deliver_at_ms=1.5),  # type: ignore[arg-type]
        Message("T", b"x", deliver_at_ms=1 << 60),
        Message("T", b"x", delay_s=-1),
        Message("T", b"x", delay_s=40 * 86_400 + 1),
        Message("T", b"x", delay_s=float("nan")),
        Message("T", b"x", delay_s=1, delay_level=1),
        Message("T", b"x", delay_s=1, deliver_at_ms=1_700_000_000_000),
        Message("T", b"x", keys=("two words",)),
        Message("T", b"x", keys=("",)),
    ],
)
def test_what_no_broker_takes_is_refused_before_it_is_sent(wrong: Message) -> None:
    with pytest.raises(BadMessage):
        wrong.check()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"deliver_at_ms": 1795441996021.75},
            "deliver_at_ms must be an int, got the float 1795441996021.75: int() makes it one",
        ),
        ({"deliver_at_ms": "soon"}, "deliver_at_ms must be an int, got the str 'soon'"),
        (
            {"deliver_at_ms": 10**15},
            "deliver_at_ms must be 0 to 253402300799999 (the year 9999), in milliseconds since "
            "1970, got 1000000000000000",
        ),
        ({"delay_s": "5"}, "delay_s must be a number, got the str '5'"),
        ({"delay_s": None}, "delay_s must be a number, got the NoneType None"),
        ({"delay_level": 1.5}, "delay_level must be an int, got the float 1.5: int() makes it one"),
        ({"delay_level": True}, "delay_level must be an int, got the bool True"),
        ({"delay_level": "3"}, "delay_level must be an int, got the str '3'"),
    ],
)
def test_a_wrong_delay_is_named_before_it_is_sent(fields: Any, said: str) -> None:
    with pytest.raises(BadMessage) as caught:
        Message("T", b"x", **fields).check()
    assert str(caught.value) == said


@pytest.mark.parametrize(("name", "value"), [("", "x"), ("x", ""), ("a\x01", "x"), ("a", "x\x02")])
def test_properties_that_would_not_survive_are_refused(name: str, value: str) -> None:
    with pytest.raises(BadMessage):
        Message("T", b"x", properties={name: value}).all_properties()


@pytest.mark.parametrize("level", ["abc", "1.5", "4294967296", " 3"])
def test_a_delay_that_every_broker_refuses_is_not_sent(level: str) -> None:
    with pytest.raises(BadMessage, match="must be a delay level, a number"):
        Message("T", b"x", properties={"DELAY": level}).all_properties()
    assert Message("T", b"x", properties={"DELAY": "+3"}).all_properties() == {"DELAY": "+3"}


def test_properties_too_long_for_the_store_are_refused() -> None:
    with pytest.raises(BadMessage, match="32767"):
        property_text({"name": "ä" * 20_000})


def test_fields_travel_as_properties() -> None:
    message = Message(
        "T", b"x", "TagA", ("k1", "k2"), {"own": "1"}, delay_level=3, wait_store=False
    )
    assert message.all_properties() == {
        "own": "1",
        "KEYS": "k1 k2",
        "TAGS": "TagA",
        "DELAY": "3",
        "WAIT": "false",
    }


def test_times_travel_as_properties() -> None:
    at = Message("T", b"x", deliver_at_ms=1_700_000_000_000)
    assert at.all_properties() == {"TIMER_DELIVER_MS": "1700000000000"}
    assert Message("T", b"x", delay_s=1.5).all_properties() == {"TIMER_DELAY_MS": "1500"}
    assert Message("T", b"x", delay_s=0.0001).all_properties() == {"TIMER_DELAY_MS": "1"}
    assert not Message("T", b"x").is_delayed


def test_large_bodies_are_compressed_and_small_ones_are_not() -> None:
    assert compress_body(b"x" * 4095) == (b"x" * 4095, 0)
    packed, flag = compress_body(b"x" * 4096)
    assert (zlib.decompress(packed), flag) == (b"x" * 4096, SYS_COMPRESSED)


def test_a_body_that_does_not_shrink_is_sent_as_it_is() -> None:
    noise = os.urandom(8192)
    assert compress_body(noise) == (noise, 0)


@pytest.fixture
def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra `compression` is not installed."""
    for name in ("lz4", "lz4.frame", "zstandard"):
        monkeypatch.setitem(sys.modules, name, None)


def test_a_bomb_is_not_inflated_beyond_the_bound(stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_INFLATED_BYTES", 10_000)
    for size in (10_000, 10_001):
        record = stored("T", 0, 0, zlib.compress(bytes(size)), sys_flag=1)
        message = received(decode_record(record), "a")
        assert isinstance(message, UnreadableMessage) == (size > 10_000)


@pytest.mark.parametrize(
    ("body", "sys_flag", "why"),
    [
        (b"no zlib", 1, "zlib is damaged"),
        (b"packed", 0x101, r"LZ4, .* lz4 is not installed: pip install 'aerobee\[compression\]'"),
        (b"packed", 0x201, r"ZSTD, .* zstandard is not installed: .*aerobee\[compression\]"),
        (b"?", 0x501, "type 0x500"),
    ],
)
def test_a_body_that_cannot_be_read_is_never_given_out_as_if_it_were_plain(
    stored, without_packages, body: bytes, sys_flag: int, why: str
) -> None:
    record = stored("T", 0, 0, body, sys_flag=sys_flag, properties="KEYS\x01k")
    message = received(decode_record(record), "a")
    assert isinstance(message, UnreadableMessage)
    assert (message.stored_body, message.compressed, message.keys) == (body, True, ("k",))
    assert body not in repr(message).encode()
    with pytest.raises(UnreadableBody, match=why):
        _ = message.body


def test_asking_again_for_a_body_that_cannot_be_read_keeps_no_more_frames(stored) -> None:
    message = received(decode_record(stored("T", 0, 0, b"no zlib", sys_flag=1)), "a")
    assert isinstance(message, UnreadableMessage)
    for _ in range(3):
        with pytest.raises(UnreadableBody) as raised:
            _ = message.body
        assert len(raised.traceback) == 2


def test_an_answers_bodies_have_one_bound_and_the_rest_is_left_for_the_next_pull(
    stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MAX_INFLATED_BYTES", 10_000)
    packed = zlib.compress(bytes(6_000))
    records = [decode_record(stored("T", 0, offset, packed, sys_flag=1)) for offset in (5, 6, 7)]
    found, left_at = received_until_full(records, QUEUE, 32)
    assert ([len(one.body) for one in found], left_at) == ([6_000], 6)
    found, left_at = received_until_full(records[2:], QUEUE, 32)
    assert ([one.queue_offset for one in found], left_at) == ([7], None)


def test_a_pull_brings_no_more_messages_than_were_asked_for(stored) -> None:
    records = [decode_record(stored("T", 0, offset, b"x")) for offset in range(5)]
    found, left_at = received_until_full(records, QUEUE, 3)
    assert ([one.queue_offset for one in found], left_at) == ([0, 1, 2], 3)


def test_what_is_left_of_a_light_queue_has_its_place_there(stored) -> None:
    """Its messages carry the offsets of the queues that they were sent to: the next pull would have
    begun at one of those, and passed over messages."""
    lists = "INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02INNER_MULTI_QUEUE_OFFSET\x019,{}"
    records = [
        decode_record(stored("T", 0, 70 - offset, b"x", properties=lists.format(offset)))
        for offset in range(3)
    ]
    light = MessageQueue("%LMQ%b", "a", 0)
    found, left_at = received_until_full(records, light, 2)
    assert ([one.queue_offset for one in found], left_at) == ([70, 69], 2)


def test_a_compressed_body_comes_out_plain(stored) -> None:
    record = stored("T", 0, 0, zlib.compress(b"plain"), sys_flag=1)
    message = received(decode_record(record), "a")
    assert (message.body, message.compressed) == (b"plain", False)


def test_the_senders_id_wins_over_the_brokers(stored) -> None:
    with_id = received(decode_record(stored("T", 0, 7, b"x", properties="UNIQ_KEY\x01U")), "a")
    without = received(decode_record(stored("T", 0, 7, b"x")), "a")
    assert (with_id.msg_id, with_id.offset_msg_id) == ("U", "7F00000100002A9F0000000000000007")
    assert without.msg_id == without.offset_msg_id


def test_an_error_text_is_one_line_whatever_a_remark_holds() -> None:
    assert str(BadMessage("two\nlines\tand more")) == "two lines and more"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("text", "the body of a message must be bytes, not str: .encode() the text"),
        (5, "the body of a message must be bytes, not int"),
        (None, "the body of a message must be bytes, not NoneType"),
    ],
)
def test_a_body_that_is_no_bytes_is_refused_where_the_message_is_made(body: Any, said: str) -> None:
    with pytest.raises(BadMessage) as caught:
        Message("T", body)
    assert str(caught.value) == said
    message = Message("T", b"x")
    message.body = body
    with pytest.raises(BadMessage, match="must be bytes"):
        message.check()


def test_other_kinds_of_bytes_are_bodies() -> None:
    for body in (bytearray(b"x"), memoryview(b"x")):
        Message("T", body).check()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tags": "cut \ud83d"}, "tags"),
        ({"keys": ("a", "\ud83d")}, "keys"),
        ({"keys": "\ud83d"}, "keys"),
        ({"properties": {"a": "\ud83d"}}, "property 'a'"),
        ({"properties": {"\ud83d": "a"}}, "property '.ud83d'"),
    ],
)
def test_text_that_utf8_cannot_hold_is_refused_by_field(fields: Any, said: str) -> None:
    with pytest.raises(BadMessage, match=f"^{said} of a message must be text"):
        property_text(Message("T", b"x", **fields).all_properties())
