"""Reports and heads of blocks, however their bytes arrive."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.protocol.replication import (
    HEAD_BYTES,
    MOST_BLOCK_BYTES,
    MOST_TAKEN_BYTES,
    BadReplication,
    BlockHead,
    ReportDecoder,
    decode_head,
    encode_head,
    encode_report,
)

OFFSETS = st.integers(0, 2**56 - 1)


@given(st.lists(OFFSETS, min_size=1, max_size=20), st.data())
def test_the_last_whole_report_counts_wherever_the_stream_is_cut(
    reports: list[int], data: st.DataObject
) -> None:
    stream = b"".join(encode_report(one) for one in reports)
    decoder = ReportDecoder()
    at = last = 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream) - at))
        found = decoder.feed(stream[at : at + size])
        at += size
        if at // 8 > last:
            last = at // 8
            assert found == reports[last - 1]
        else:
            assert found is None


@pytest.mark.parametrize("rest", [b"", bytes(8)])
@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\xff" * 8, "no slave"),
        (b"GET / HT", "no slave"),
        (b"\x16\x03\x01\x00\x01\x02\x03\x04", "that is TLS"),
    ],
)
def test_the_first_bytes_of_others_are_no_slaves_report(data: bytes, why: str, rest: bytes) -> None:
    """They decide, though a hello of TLS may end with zeros, as the report of 0 does."""
    with pytest.raises(BadReplication, match=why):
        ReportDecoder().feed(data + rest)


@given(OFFSETS, st.integers(0, MOST_TAKEN_BYTES))
def test_heads_come_back(log_offset: int, size: int) -> None:
    data = encode_head(log_offset, size)
    assert len(data) == HEAD_BYTES
    assert decode_head(data) == BlockHead(log_offset, size)


@given(st.binary(min_size=HEAD_BYTES, max_size=HEAD_BYTES))
def test_rubbish_is_refused_or_a_head_within_bounds(data: bytes) -> None:
    log_offset, size = struct.unpack(">qi", data)
    if log_offset >= 0 and 0 <= size <= MOST_TAKEN_BYTES:
        assert decode_head(data) == (log_offset, size)
    else:
        with pytest.raises(BadReplication, match="HA port"):
            decode_head(data)


def test_our_blocks_fit_a_buffer_of_rocketmqs_slaves() -> None:
    assert MOST_BLOCK_BYTES + HEAD_BYTES == 4 << 20
