"""The Bloom filter of consumer groups, as RocketMQ keeps it: the bit map of a message says which
groups' filters it met when it was stored (store/FORMAT.md 5.6).

A group has, for each topic, as many positions in the map as there are hash functions; it was met if
all of them are set. Others may have set them, so "met" is to be looked at again and "not met" is
not. The size follows from the share of false ones that is allowed and the number of groups that is
expected. Positions come of the 64 lower bits of MurmurHash3 (x64, 128 bits, seed 0).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

_MASK: Final = (1 << 64) - 1
_I32: Final = 0xFFFFFFFF
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


class BloomFilter:
    """The sizes for `groups` groups and at most `error_percent` false answers of a hundred: `bits`
    is the size of a map, `hashes` the number of bits that each group sets."""

    __slots__ = ("bits", "hashes")

    def __init__(self, error_percent: int, groups: int) -> None:
        share = error_percent / 100
        self.hashes = math.ceil(math.log(share) / math.log(0.5))
        bits = math.ceil(groups * _log2(1 / share) * _log2(math.e))
        self.bits = -(-bits // 8) * 8

    @property
    def map_bytes(self) -> int:
        """The bytes of a map."""
        return self.bits // 8

    def positions(self, group: str, topic: str) -> tuple[int, ...]:
        """Where the map says that a message of the topic met the group's filter."""
        lower = murmur3_lower(f"{group}#{topic}".encode())
        first, second = lower & _I32, lower >> 32
        found = []
        for number in range(1, self.hashes + 1):
            combined = (first + number * second) & _I32
            # Java has a signed number of 32 bits here, and turns it over when it is negative.
            found.append((combined ^ _I32 if combined >> 31 else combined) % self.bits)
        return tuple(found)

    def bit_map(self, met: Iterable[tuple[int, ...]]) -> bytes:
        """The map of a message that met filters with these positions."""
        bits = bytearray(self.bits // 8)
        for positions in met:
            for position in positions:
                bits[position >> 3] |= 1 << (position & 7)
        return bytes(bits)


def is_hit(bit_map: bytes, positions: tuple[int, ...]) -> bool:
    """Whether all of these positions are set."""
    return all(bit_map[position >> 3] >> (position & 7) & 1 for position in positions)


def map_mask(positions: Iterable[int]) -> int:
    """The positions as bits of a number; maps are such numbers, the lowest byte first."""
    mask = 0
    for position in positions:
        mask |= 1 << position
    return mask


def _log2(number: float) -> float:
    return math.log(number) / math.log(2)


@lru_cache(maxsize=1024)
def murmur3_lower(data: bytes) -> int:
    """The lower 64 bits of MurmurHash3, x64 variant of 128 bits, seed 0."""
    h1 = h2 = 0
    whole = len(data) & ~15
    for place in range(0, whole, 16):
        h1 ^= _mixed_1(int.from_bytes(data[place : place + 8], "little"))
        h1 = (_rotated(h1, 27) + h2) * 5 + 0x52DCE729 & _MASK
        h2 ^= _mixed_2(int.from_bytes(data[place + 8 : place + 16], "little"))
        h2 = (_rotated(h2, 31) + h1) * 5 + 0x38495AB5 & _MASK
    tail = data[whole:]
    h2 ^= _mixed_2(int.from_bytes(tail[8:], "little"))
    h1 ^= _mixed_1(int.from_bytes(tail[:8], "little"))
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return (_finished(h1) + _finished(h2)) & _MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _mixed_1(value: int) -> int:
    return _rotated(value * _C1 & _MASK, 31) * _C2 & _MASK


def _mixed_2(value: int) -> int:
    return _rotated(value * _C2 & _MASK, 33) * _C1 & _MASK


def _finished(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33
