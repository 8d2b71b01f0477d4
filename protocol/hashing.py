"""Java's String.hashCode, which the consume queues and the index files hold (protocol/WIRE.md 6.7).

h = 31*h + c over the UTF-16 code units, wrapped to 32 bits. A loop in Python costs 3.7 us for a key
of 48 characters. Written to base 31 the sum is an ordinary number: a character c <= 255 is
31*q + r with r < 31 and q < 9, so with one digit r and one digit q for each character

    hash = int(digits of r, base 31) + 31 * int(digits of q, base 31)   (mod 2**32)

and C code makes both the digits (bytes.translate) and the number (int): 0.42 us for 48 characters.
Characters beyond U+00FF take the plain sum over UTF-16 units.
"""

import struct
from functools import lru_cache

_DIGITS = b"0123456789abcdefghijklmnopqrstu"
_LOW_DIGIT = bytes(_DIGITS[c % 31] for c in range(256))
_HIGH_DIGIT = bytes(_DIGITS[c // 31] for c in range(256))
# int() is quadratic in the digits and refuses more than 4,300 of them.
_CHUNK = 512
# Longer tags are hashed anew each time: a tag may have 32 KiB, and the cache holds thousands.
_REMEMBERED_CHARS = 255
_POWERS = [pow(31, exponent, 2**32) for exponent in range(_CHUNK + 1)]
_CHUNK_POWER = pow(31, _CHUNK, 2**32)


def java_hash(text: str) -> int:
    """The signed 32-bit hash of the text."""
    value = _unsigned(text)
    return value - 0x100000000 if value & 0x80000000 else value


def java_hash_with_prefix(prefix_hash: int, text: str) -> int:
    """The hash of prefix + text, from the prefix's own hash (`topic#` before index keys)."""
    if text.isascii() and 0 < len(text) <= _CHUNK:  # index keys nearly always
        data = text.encode()
        digits = int(data.translate(_LOW_DIGIT), 31) + 31 * int(data.translate(_HIGH_DIGIT), 31)
        value = (prefix_hash * _POWERS[len(data)] + digits) & 0xFFFFFFFF
    else:
        units = len(text.encode("utf-16-le", "surrogatepass")) // 2
        value = (prefix_hash * _power(units) + _unsigned(text)) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


def tag_code(tags: str) -> int:
    """The tagsCode of a message's whole TAGS text; 0 for an empty one."""
    return _remembered_hash(tags) if len(tags) <= _REMEMBERED_CHARS else java_hash(tags)


@lru_cache(maxsize=4096)
def _remembered_hash(tags: str) -> int:
    return java_hash(tags)


@lru_cache(maxsize=512)
def _power(exponent: int) -> int:
    return pow(31, exponent, 2**32)


def _unsigned(text: str) -> int:
    try:
        data = text.encode("latin-1")
    except UnicodeEncodeError:
        return _unsigned_wide(text)
    if len(data) <= _CHUNK:
        return _of_bytes(data)
    value = 0
    end = len(data) - len(data) % _CHUNK
    for start in range(0, end, _CHUNK):
        value = value * _CHUNK_POWER + _of_bytes(data[start : start + _CHUNK]) & 0xFFFFFFFF
    rest = data[end:]
    return (value * _power(len(rest)) + _of_bytes(rest)) & 0xFFFFFFFF


def _of_bytes(data: bytes) -> int:
    if not data:
        return 0
    low = int(data.translate(_LOW_DIGIT), 31)
    return (low + 31 * int(data.translate(_HIGH_DIGIT), 31)) & 0xFFFFFFFF


def _unsigned_wide(text: str) -> int:
    encoded = text.encode("utf-16-le", "surrogatepass")
    value = 0
    for unit in struct.unpack(f"<{len(encoded) // 2}H", encoded):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value
