"""Claims about the CRC of a whole record that closes it."""

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.properties import decode_properties
from aerobee.protocol.message.record import (
    StoreMessage,
    decode_record,
    encode_record,
    encode_sealed_record,
    sealed_record_size,
)
from aerobee.protocol.message.record_check import CHECK_BODY, CHECK_WHOLE, check_record
from aerobee.protocol.message.record_layout import pack_host
from aerobee.protocol.message.record_seal import SEAL_BYTES, is_sealed, sealable

HOST = pack_host("192.0.2.1", 10911)
LOG_OFFSET = 5000


def message(properties: bytes = b"TAGS\x01a\x02UNIQ_KEY\x01U") -> StoreMessage:
    return StoreMessage("Orders", 3, 0, 0, 1, HOST, HOST, 0, 0, b"body", properties)


def sealed(made: StoreMessage | None = None) -> bytes:
    return encode_sealed_record(made or message(), 77, LOG_OFFSET, 1_700_000_000_000)


def is_damaged(data: bytes | bytearray, check: int) -> bool:
    try:
        check_record(data, 0, LOG_OFFSET, len(data), check)
    except CorruptRecord:
        return True
    return False


def test_the_seal_is_the_masked_crc_with_its_digits_backwards() -> None:
    data = sealed()
    crc = zlib.crc32(data[:-SEAL_BYTES]) & 0x7FFFFFFF
    assert data[-SEAL_BYTES:-11] == b"__CRC32#\x01"
    assert data[-1:] == b"\x02"
    digits = data[-11:-1].decode()
    assert int(digits[::-1]) == crc
    assert decode_record(data).properties == {"TAGS": "a", "UNIQ_KEY": "U", "__CRC32#": digits}


def test_small_crcs_are_filled_up_with_zeros_at_the_end() -> None:
    seen = set()
    for n in range(3000):
        data = sealed(message(b"N\x01%d" % n))
        crc = zlib.crc32(data[:-SEAL_BYTES]) & 0x7FFFFFFF
        seen.add(len(str(crc)))
        assert data[-11:-1].rstrip(b"0") == str(crc)[::-1].encode().rstrip(b"0")
    assert len(seen) > 2


@pytest.mark.parametrize("properties", [b"", b"A\x01b", b"A\x01b\x02"])
def test_other_properties_end_in_a_separator_before_the_seal(properties: bytes) -> None:
    made = message(properties)
    data = sealed(made)
    assert len(data) == sealed_record_size(made)
    found = decode_record(data).properties
    assert list(found) == ([*decode_properties(properties), "__CRC32#"])
    assert not is_damaged(data, CHECK_WHOLE)


@pytest.mark.parametrize(
    ("properties", "kept"),
    [
        (b"__CRC32#\x010123456789\x02", b""),
        (b"A\x01b\x02__CRC32#\x010123456789\x02", b"A\x01b\x02"),
        (b"__CRC32#\x010123456789\x02A\x01b", b"A\x01b\x02"),
        (b"__CRC32#\x01x\x02A\x01b\x02__CRC32#\x01y", b"A\x01b\x02"),
        (b"A\x01b\x01__CRC32#\x01x", b"A\x01b\x01__CRC32#\x01x\x02"),
        (b"B__CRC32#\x01x\x02", b"B__CRC32#\x01x\x02"),
    ],
)
def test_an_older_seal_gives_way(properties: bytes, kept: bytes) -> None:
    assert sealable(properties) == kept
    made = message(properties)
    data = sealed(made)
    assert len(data) == sealed_record_size(made)
    assert data.endswith(kept + data[-SEAL_BYTES:])
    assert not is_damaged(data, CHECK_WHOLE)


def test_every_flipped_bit_of_a_sealed_record_is_found() -> None:
    data = bytearray(sealed())
    unseen_by_body_crc = 0
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        assert is_damaged(data, CHECK_WHOLE), f"bit {bit % 8} of byte {bit // 8}"
        unseen_by_body_crc += not is_damaged(data, CHECK_BODY)
        data[bit // 8] ^= 1 << bit % 8
    assert not is_damaged(data, CHECK_WHOLE)
    # The control: born time, queue id, queue offset, topic and more escape the body's CRC.
    assert unseen_by_body_crc > 500


@given(st.data())
def test_a_run_of_zeros_in_a_sealed_record_is_found(source: st.DataObject) -> None:
    whole = sealed(message(b"A\x01" + b"v" * 600))
    start = source.draw(st.integers(0, len(whole) - 1))
    data = bytearray(whole)
    end = min(len(data), start + 512)
    data[start:end] = bytes(end - start)
    assert data == whole or is_damaged(data, CHECK_WHOLE)


def test_records_without_a_seal_are_checked_by_their_body() -> None:
    data = bytearray(encode_record(message(), 77, LOG_OFFSET, 9))
    assert not is_sealed(data)
    assert not is_damaged(data, CHECK_WHOLE)
    data[data.index(b"body")] ^= 1
    assert is_damaged(data, CHECK_WHOLE)


def test_a_property_that_only_begins_like_a_seal_is_none(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(2000):
        value = bytes(source.choices(b"_#CR32 abcdef0123456789", k=30))
        data = encode_record(message(b"A\x01" + value + b"\x02CLUSTER\x01c"), 1, LOG_OFFSET, 9)
        assert not is_sealed(data)
