"""Bodies of RocketMQ's clients made plain: each kind within its bound, and never in part."""

from __future__ import annotations

import zlib

import lz4.frame
import pytest
import zstandard

from aerobee.protocol.message.compression import CannotInflate, TooLarge, inflate

PLAIN = b"abcdefgh" * 1000


def _zstd_stream(plain: bytes) -> bytes:
    """A stream as Java writes it: the frame does not tell its size."""
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(plain) + stream.flush()


KINDS = {
    "zlib of old clients": (0x001, zlib.compress(PLAIN)),
    "zlib": (0x301, zlib.compress(PLAIN)),
    "lz4": (0x101, lz4.frame.compress(PLAIN)),
    "lz4 without its size": (0x101, lz4.frame.compress(PLAIN, store_size=False)),
    "zstd": (0x201, zstandard.compress(PLAIN)),
    "zstd without its size": (0x201, _zstd_stream(PLAIN)),
}
each_kind = pytest.mark.parametrize(("sys_flag", "packed"), KINDS.values(), ids=KINDS)


@each_kind
def test_a_body_comes_out_as_its_producer_gave_it(sys_flag: int, packed: bytes) -> None:
    assert inflate(packed, sys_flag, len(PLAIN)) == PLAIN


@each_kind
def test_a_body_above_the_limit_is_refused(sys_flag: int, packed: bytes) -> None:
    with pytest.raises(TooLarge, match="larger than 7999 bytes"):
        inflate(packed, sys_flag, len(PLAIN) - 1)


@each_kind
def test_a_body_that_is_cut_off_or_no_body_is_refused(sys_flag: int, packed: bytes) -> None:
    for body in (b"", packed[:-3], b"no such thing at all"):
        with pytest.raises(CannotInflate, match=r"cut off|damaged"):
            inflate(body, sys_flag, 1 << 20)


@pytest.mark.parametrize(
    "name", [name for name, (flag, _) in KINDS.items() if flag & 0x300 < 0x300 and flag > 1]
)
def test_a_second_frame_is_not_dropped_in_silence(name: str) -> None:
    sys_flag, packed = KINDS[name]
    with pytest.raises(CannotInflate, match="bytes behind its end"):
        inflate(packed + packed, sys_flag, 1 << 20)


def test_a_zstd_frame_cannot_ask_for_more_memory_than_its_window_may_have() -> None:
    with pytest.raises(CannotInflate, match="too much memory"):
        inflate(bytes.fromhex("28b52ffde0") + b"\xff" * 8 + b"x" * 20, 0x201, 1 << 20)
