"""The strict reader believes nothing; the trusting one never reads past a record's end."""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message import record, record_layout
from aerobee.protocol.message.record import StoreMessage, decode_record
from aerobee.protocol.message.record_check import check_record

PEER = record_layout.pack_host("192.0.2.7", 54321)
BROKER = record_layout.pack_host("127.0.0.1", 10911)
PROPERTIES = b"KEYS\x01k1\x02TAGS\x01TagA"


def message(
    body: bytes = b"body", properties: bytes = PROPERTIES, topic: str = "T", sys_flag: int = 0
) -> StoreMessage:
    return StoreMessage(topic, 1, 2, sys_flag, 3, PEER, BROKER, 0, 0, body, properties)


def encoded(made: StoreMessage | None = None, log_offset: int = 500) -> bytes:
    return record.encode_record(made or message(), 7, log_offset, 1700000000000)


hosts = st.sampled_from(
    [PEER, BROKER, record_layout.pack_host("2001:db8::7", 1), record_layout.pack_host("::1", 65535)]
)


@given(
    st.from_regex(r"[%|a-zA-Z0-9_-]{1,127}", fullmatch=True),
    st.binary(max_size=300),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=100),
    hosts,
    hosts,
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**62),
)
def test_a_message_survives_its_record(
    topic: str,
    body: bytes,
    value: str,
    born: bytes,
    store: bytes,
    sys_flag: int,
    queue_id: int,
    offset: int,
) -> None:
    properties = f"TAGS\x01{value}".encode()
    made = StoreMessage(topic, queue_id, -1, sys_flag, 5, born, store, 1, 2, body, properties)
    data = record.encode_record(made, offset, offset, 9)
    assert len(data) == record.record_size(made)
    framed = b"head" + data + b"more"
    assert record_layout.properties_in(framed, 4, 4 + len(data)) == properties
    decoded = decode_record(b"xx" + data + b"yy", 2)
    assert (decoded.topic, decoded.body, decoded.queue_id) == (topic, body, queue_id)
    assert decoded.tags == (value or None)
    assert record_layout.pack_host(*decoded.born_host) == born
    assert record_layout.pack_host(*decoded.store_host) == store
    assert decoded.sys_flag & ~0x30 == sys_flag & ~0x30
    head = check_record(b"xx" + data + b"yy", 2, offset, 4 + len(data))
    assert (head.size, head.queue_offset, head.topic) == (len(data), offset, topic)
    assert head.store_timestamp_ms == 9


def test_records_of_a_pull_are_read_one_after_the_other() -> None:
    data = encoded() + encoded(message(b""), 600) + encoded(message(b"x" * 1000), 700)
    assert [m.log_offset for m in record.decode_records(memoryview(data))] == [500, 600, 700]
    assert record.decode_records(b"") == []


def test_client_cannot_set_the_host_bits() -> None:
    assert decode_record(encoded(message(sys_flag=0x31))).sys_flag == 0x01


def test_store_time_lies_where_the_layout_says() -> None:
    for host in (PEER, record_layout.pack_host("::1", 1)):
        made = StoreMessage("T", 1, 2, 0, 3, host, BROKER, 0, 0, b"", b"")
        data = record.encode_record(made, 0, 0, 1700000000000)
        position = record_layout.store_timestamp_position(decode_record(data).sys_flag)
        assert int.from_bytes(data[position : position + 8], "big") == 1700000000000


def refused(data: bytes, log_offset: int = 500, limit: int | None = None) -> str:
    with pytest.raises(CorruptRecord) as caught:
        check_record(data, 0, log_offset, len(data) if limit is None else limit)
    return str(caught.value)


def test_each_cut_record_is_refused() -> None:
    data = encoded()
    for length in range(len(data)):
        refused(data[:length])
        with pytest.raises(CorruptRecord):
            decode_record(data[:length])


def test_a_record_beyond_its_limit_is_refused() -> None:
    data = encoded()
    assert "claims" in refused(data, limit=len(data) - 1)
    assert "cannot hold" in refused(data, limit=len(data) + 1)


def test_a_record_at_another_place_is_refused() -> None:
    assert "names 500" in refused(encoded(), log_offset=501)


@pytest.mark.parametrize("size", [-1, 0, 90, 2**31 - 1, -(2**31)])
def test_impossible_sizes_are_refused_before_anything_is_read(size: int) -> None:
    refused(size.to_bytes(4, "big", signed=True) + encoded()[4:])


def test_other_magic_is_refused() -> None:
    data = bytearray(encoded())
    data[7] ^= 1
    assert "magic" in refused(bytes(data))
    assert "magic" in refused(bytes(200))


@pytest.mark.parametrize("size", [7, 0, -8, 201])
def test_impossible_blanks_are_refused(size: int) -> None:
    blank = size.to_bytes(4, "big", signed=True) + record.encode_blank(8)[4:]
    assert "blank" in refused(blank + bytes(192))


def test_every_flipped_bit_of_body_and_lengths_is_seen() -> None:
    data = encoded()
    head = check_record(data, 0, 500, len(data))
    topic_length = head.body_position + head.body_length
    covered = [
        *range(12),  # size, magic, CRC
        *range(28, 36),  # own place
        *range(84, topic_length + 1),  # body and its length, topic length
        head.properties_position - 2,
        head.properties_position - 1,
    ]
    for position in covered:
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            refused(bytes(damaged))


def test_body_is_believed_without_a_checksum_only_when_told() -> None:
    data = bytearray(encoded())
    data[90] ^= 1
    assert "CRC" in refused(bytes(data))
    assert check_record(bytes(data), 0, 500, len(data), check_crc=False).size == len(data)


@pytest.mark.parametrize("zeroed", ["topic", "properties"])
def test_pages_that_never_reached_the_disk_are_seen(zeroed: str) -> None:
    made = message(properties=b"A\x01" + b"v" * 2000, topic="T" * 100)
    data = bytearray(encoded(made))
    head = check_record(data, 0, 500, len(data))
    start = head.properties_position if zeroed == "properties" else head.properties_position - 60
    end = start + (512 if zeroed == "properties" else 20)
    for first, last in ((start, end), (start + 100, end + 100), (len(data) - 3, len(data))):
        damaged = bytearray(data)
        damaged[first:last] = bytes(last - first)
        refused(bytes(damaged))


def test_texts_of_other_brokers_are_accepted() -> None:
    for topic in ("a.b", "größe", "x y"):
        data = encoded(message(topic=topic))
        assert check_record(data, 0, 500, len(data)).topic == topic
    data = encoded(message(properties=b"key\x01a\0b\x02__CRC32#\x011234567890\x02"))
    assert check_record(data, 0, 500, len(data)).size == len(data)


@pytest.mark.parametrize("topic", [b"a/b", b"a\nb", b"\xff\xfe", b"\0"])
def test_topics_that_cannot_be_one_are_refused(topic: bytes) -> None:
    data = encoded(message(topic="T" * len(topic)))
    assert "topic" in refused(data.replace(b"T" * len(topic) + b"\0", topic + b"\0", 1))


def test_damaged_records_never_raise_anything_else(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(3000):
        data = bytearray(encoded(message(b"b" * source.randrange(40))))
        for _ in range(source.randint(1, 4)):
            data[source.randrange(len(data))] = source.choice([0, 1, 0x7F, 0x80, 0xFF])
        with contextlib.suppress(CorruptRecord):
            check_record(data, 0, 500, len(data))
        with contextlib.suppress(CorruptRecord):
            decode_record(data)


@given(st.binary(max_size=300), st.integers(0, 300))
def test_arbitrary_bytes_are_corrupt_or_a_record(data: bytes, position: int) -> None:
    position = min(position, len(data))
    try:
        head = check_record(data, position, 0, len(data))
    except CorruptRecord:
        return
    assert 8 <= head.size <= len(data) - position


def test_mapped_ipv4_hosts_are_stored_as_ipv4() -> None:
    assert record_layout.pack_host("::ffff:192.0.2.7", 5) == record_layout.pack_host("192.0.2.7", 5)
    assert len(record_layout.pack_host("fe80::1%eth0", 5)) == 20


@pytest.mark.parametrize("ip", ["", "localhost", "1.2.3", "1.2.3.4.5", "::g"])
def test_what_is_no_address_is_not_packed(ip: str) -> None:
    with pytest.raises(ValueError, match="IP address"):
        record_layout.pack_host(ip, 1)


def test_properties_are_not_read_past_a_record_whose_lengths_are_wrong() -> None:
    data = encoded()
    inside = 0
    for position in range(len(data)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[position] = value
            found = record_layout.properties_in(bytes(damaged) + b"behind", 0, len(data))
            assert found is None or len(found) <= len(data)
            assert b"behind" not in (found or b"")
            inside += found is not None
    assert inside
