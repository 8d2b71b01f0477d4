"""The bulk reader believes exactly what the strict reader believes."""

from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.properties import (
    PROPERTY_TAGS,
    decode_properties,
    index_keys,
    tags_and_keys,
)
from aerobee.protocol.message.record import StoreMessage, encode_record
from aerobee.protocol.message.record_check import (
    CHECK_BODY,
    CHECK_NOTHING,
    CHECK_WHOLE,
    MOST_RECORDS,
    RECORD,
    Checked,
    check_record,
    scan_records,
)
from aerobee.protocol.message.record_layout import pack_host

V4, V6 = pack_host("192.0.2.7", 54321), pack_host("2001:db8::7", 1)
START = 4096


def log_of(messages: list[StoreMessage]) -> bytes:
    data = b""
    for number, message in enumerate(messages):
        data += encode_record(message, number, START + len(data), 1700000000000)
    return data


def one_by_one(data: bytes, check_crc: int) -> list[Checked]:
    """The result of the strict reader for the same bytes."""
    found: list[Checked] = []
    position = 0
    while True:
        try:
            head = check_record(data, position, START + position, len(data), check_crc)
        except CorruptRecord:
            return found
        if head.kind != RECORD:
            return found
        at = position + head.properties_position
        found.append(
            (
                START + position, head.size, head.queue_id, head.queue_offset, head.sys_flag,
                head.store_timestamp_ms, head.topic, head.body_position, head.body_length,
                head.properties_position, data[at : at + head.properties_length],
            )
        )  # fmt: skip
        position += head.size


texts = st.one_of(
    st.sampled_from(["TAGS\x01a", "UNIQ_KEY\x01AC11\x02TAGS\x01a", "KEYS\x01k\u00e9", ""]),
    st.integers(100, 300).map(lambda length: "P\x01" + "x" * length),
)
messages = st.builds(
    StoreMessage,
    st.sampled_from(["Orders", "Orders", "Other"]), st.integers(0, 3), st.just(2),
    st.sampled_from([0, 0, 1, 4, 12]), st.just(3), st.sampled_from([V4, V4, V6]), st.just(V4),
    st.just(0), st.just(0), st.binary(max_size=40), texts.map(str.encode),
)  # fmt: skip
changes = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3)


@settings(max_examples=400)
@given(st.lists(messages, min_size=1, max_size=5), changes)
def test_both_readers_agree_on_damaged_logs(
    written: list[StoreMessage], changed: list[tuple[int, int]]
) -> None:
    data = bytearray(log_of(written))
    for position, value in changed:
        data[position % len(data)] = value
    for check_crc in (CHECK_NOTHING, CHECK_BODY, CHECK_WHOLE):
        expected = one_by_one(bytes(data), check_crc)
        assert scan_records(data, 0, START, len(data), check_crc) == expected


def test_readers_agree_on_each_changed_byte_of_the_second_record() -> None:
    written = StoreMessage(
        "Orders", 1, 2, 0, 3, V4, V4, 0, 0, b"body", b"UNIQ_KEY\x01AC11\x02TAGS\x01TagA"
    )
    sound = log_of([written] * 3)
    size = len(sound) // 3
    for position in range(size, 2 * size):
        for value in (0, 1, 0x7F, 0x80, 0xFF, sound[position] ^ 0x10):
            data = bytearray(sound)
            data[position] = value
            for check_crc in (CHECK_NOTHING, CHECK_BODY):
                found = scan_records(data, 0, START, len(data), check_crc)
                assert found == one_by_one(bytes(data), check_crc), (position - size, value)


def test_a_cut_log_is_read_to_the_cut() -> None:
    sound = log_of([StoreMessage("T", 1, 2, 0, 3, V4, V4, 0, 0, b"body", b"")] * 3)
    for length in range(len(sound)):
        data = sound[:length]
        assert scan_records(data, 0, START, length) == one_by_one(data, CHECK_BODY)


def test_one_call_reads_no_more_than_it_says() -> None:
    sound = log_of([StoreMessage("T", 1, 2, 0, 3, V4, V4, 0, 0, b"", b"")] * (MOST_RECORDS + 1))
    found = scan_records(sound, 0, START, len(sound))
    assert len(found) == MOST_RECORDS
    position = found[-1][0] + found[-1][1] - START
    assert len(scan_records(sound, position, START + position, len(sound))) == 1


entries = st.lists(
    st.sampled_from(
        ["UNIQ_KEY\x01A1", "UNIQ_KEY\x01", "UNIQ_KEY\x01B2", "UNIQ_KEY", "XUNIQ_KEY\x01C3",
         "K\x01UNIQ_KEY\x01D4", "KEYS\x01a b  c", "KEYS\x01d", "TAGS\x01t", "TAGS\x01\u00fc", ""]
    ),
    max_size=6,
)  # fmt: skip


@settings(max_examples=400)
@given(entries)
def test_tags_and_keys_are_those_of_the_decoded_properties(parts: list[str]) -> None:
    encoded = "\x02".join(parts).encode()
    properties = decode_properties(encoded)
    expected = (properties.get(PROPERTY_TAGS, ""), index_keys(properties))
    assert tags_and_keys(encoded) == expected
