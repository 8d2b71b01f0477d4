"""The Bloom filter of groups: sizes, positions and maps as RocketMQ makes them."""

from __future__ import annotations

import pytest

from aerobee.protocol.filters.bloom import BloomFilter, is_hit, murmur3_lower


@pytest.mark.parametrize(
    ("data", "lower"),
    [
        (b"", 0),
        (b"hello", 0xCBD8A7B341BD9B02),
        (b"hello, world", 0x342FAC623A5EBC8E),
        (b"19 Jan 2038 at 3:14:07 AM", 0xB89E5988B737AFFC),
        (b"The quick brown fox jumps over the lazy dog.", 0xCD99481F9EE902C9),
    ],
)
def test_the_hash_is_murmur3(data: bytes, lower: int) -> None:
    assert murmur3_lower(data) == lower


@pytest.mark.parametrize(
    ("error_percent", "groups", "bits", "hashes"),
    [
        (20, 32, 112, 3),
        (20, 64, 216, 3),
        (10, 128, 616, 4),
        (1, 1, 16, 7),
        (50, 8, 16, 1),
        (20, 1_000, 3_352, 3),
    ],
)
def test_the_sizes_follow_from_error_and_groups(
    error_percent: int, groups: int, bits: int, hashes: int
) -> None:
    bloom = BloomFilter(error_percent, groups)
    assert (bloom.bits, bloom.hashes) == (bits, hashes)


def test_positions_lie_in_the_map_and_hit() -> None:
    bloom = BloomFilter(20, 32)
    for number in range(500):
        positions = bloom.positions(f"g{number}", "T")
        assert len(positions) == 3
        assert all(0 <= position < 112 for position in positions)
        bit_map = bloom.bit_map([positions])
        assert len(bit_map) == 14
        assert is_hit(bit_map, positions)
    assert not is_hit(bloom.bit_map([]), (0,))


def test_bit_i_is_bit_i_of_its_byte_from_below() -> None:
    assert BloomFilter(1, 1).bit_map([(0, 9), (15,)]) == bytes((0x01, 0x82))
