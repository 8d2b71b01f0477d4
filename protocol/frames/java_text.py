"""Broken text of headers is read as Java reads it: replaced, not refused (protocol/WIRE.md 1.2).

A title that a program cut in the middle of an emoji, or wrote in Latin-1, arrives as bytes that are
no UTF-8 or as half of a surrogate pair. RocketMQ's servers read the first as U+FFFD, as every Java
program does, and write the second as "?" when they turn text into bytes. What is left holds no
surrogate, so it can be stored, compared and sent back.
"""

import re

# Half a surrogate pair as if in UTF-8. To Java it is one fault, to Python one for each byte.
_HALF_PAIR = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def decode_as_java(data: bytes) -> str:
    """The text of `data`; what is no UTF-8 becomes U+FFFD, as often as in Java."""
    return _HALF_PAIR.sub(b"\xff", data).decode("utf-8", "replace")


def without_half_pairs(text: str) -> str:
    """`text` with its surrogate pairs joined and "?" for each half of a pair."""
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return joined.encode("utf-8", "replace").decode()
