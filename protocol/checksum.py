"""The two checksums of this project.

Bodies of messages and registrations carry CRC-32 (IEEE), masked to 31 bits so that Java reads it as
a positive number. zlib computes it in C at several times the speed of crcmod. Our own state files
carry CRC-32C, which zlib does not have. The C extension of crcmod computes it; where the extension
is missing, crcmod's Python code gives the same sums.
"""

import zlib
from collections.abc import Callable
from functools import cache

#: Leaves 31 bits of a CRC.
CRC_MASK = 0x7FFFFFFF
_crc32 = zlib.crc32


def body_crc(body: bytes | memoryview) -> int:
    """CRC-32 of a stored body, masked to 31 bits; 0 for an empty one (protocol/WIRE.md 6.1)."""
    return _crc32(body) & CRC_MASK


def crc32c(data: bytes | bytearray | memoryview, before: int = 0) -> int:
    """CRC-32C (Castagnoli) of our own files, 0..2**32-1; of all bytes so far, if `before` is the
    sum of those before `data`."""
    return _crc32c_function()(bytes(data), before)


@cache
def _crc32c_function() -> Callable[[bytes, int], int]:
    # Made at the first use: crcmod takes 15 ms to load, and most processes never need this sum.
    import crcmod.predefined

    function: Callable[[bytes, int], int] = crcmod.predefined.mkCrcFun("crc-32c")
    return function
