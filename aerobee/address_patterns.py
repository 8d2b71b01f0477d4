"""Patterns of addresses, in a file of accounts (upstream: RemoteAddressStrategyFactory) and in
settings.

    *   *.*.*.*   *:*:*:*:*:*:*:*            every address
    10.1.2.3   2001:db8::7                   one
    10.1.2.3,10.1.2.4                        those
    10.1.2.{3,4}   2001:db8::{7,8}           those
    10.1.2.*   10.1.*.*   10.1.2.5-20        a range in the first part that is not a number
    2001:db8:*   2001:db8::5-20:*            the same; what follows the range may be anything

As in the reference, a range stands in the second part or later, and everything behind it is free:
10.*.1.1 means 10.*.*.*, which `means_more` says.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Final

_EVERY: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
_V4_PARTS, _V6_PARTS = 4, 8
# The numbers of a part, by their base, and how the highest is shown.
_DIGITS: Final = {10: re.compile("[0-9]{1,3}"), 16: re.compile("[0-9a-fA-F]{1,4}")}
_SHOWN: Final = {10: "d", 16: "x"}

#: The parts of an address as numbers: four of an IPv4 one, eight of an IPv6 one.
Parts = tuple[int, ...]
Matches = Callable[[Parts], bool]


def parts_of(address: str) -> Parts | None:
    """An address as numbers, None for a text that is no address. A zone (`%eth0`) does not
    count."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    size = 1 if found.version == 4 else 2
    packed = found.packed
    return tuple(int.from_bytes(packed[at : at + size]) for at in range(0, len(packed), size))


class AddressPattern:
    """One pattern of a file. Raises ValueError with what is wrong with its text."""

    def __init__(self, text: str | None) -> None:
        self.text = (text or "").strip()
        self._matches = _matcher(self.text)

    def __repr__(self) -> str:
        return f"AddressPattern({self.text!r})"

    @property
    def is_every(self) -> bool:
        """Whether every address is meant."""
        return self.text in _EVERY

    @property
    def means_more(self) -> str:
        """The pattern as it is meant, where that is more than it reads: behind its first range
        something else than stars stands. Empty where it means what it reads."""
        if not _is_range(self.text):
            return ""
        pieces, at = _range_pieces(self.text)
        free = ["*"] * (len(pieces) - at - 1)
        if pieces[at + 1 :] == free:
            return ""
        return (":" if ":" in self.text else ".").join([*pieces[: at + 1], *free])

    def matches(self, address: str) -> bool:
        """Whether an address is meant; an empty pattern means none."""
        if not self.text:
            return False
        parts = parts_of(address)
        return parts is not None and self._matches(parts)


def address_patterns(text: str) -> tuple[AddressPattern, ...]:
    """The patterns of a setting, which `;` separates, blanks and empty parts taken out. Raises
    ValueError with what is wrong with a pattern."""
    return tuple(AddressPattern(part) for part in text.split(";") if part.strip())


def _matcher(text: str) -> Matches:
    if not text:
        return lambda _parts: False
    if text in _EVERY:
        return lambda _parts: True
    if text.endswith("}"):
        return _one_of(_expanded(text))
    if "," in text:
        return _one_of(text.split(","))
    if _is_range(text):
        return _range(text)
    return _one_of([text])


def _is_range(text: str) -> bool:
    """Whether a text is a pattern with a range, right or wrong."""
    is_other = text in _EVERY or text.endswith("}") or "," in text
    return not is_other and ("*" in text or "-" in text)


def _expanded(text: str) -> list[str]:
    head, brace, tail = text.partition("{")
    if not brace or not head.endswith((".", ":")):
        raise ValueError(
            f"address pattern {text!r}: braces stand for the last part, as 10.1.2.{{3,4}}"
        )
    return [head + one.strip() for one in tail[:-1].split(",")]


def _one_of(texts: list[str]) -> Matches:
    found = set()
    for text in texts:
        parts = parts_of(text.strip())
        if parts is None:
            raise ValueError(f"{text.strip()!r} is no IP address{_hint(text)}")
        found.add(parts)
    return found.__contains__


def _hint(text: str) -> str:
    """How what somebody wanted is written here."""
    if "/" in text:
        return "; a network is written as a range: 10.*.*.*, 10.1.2.5-20, or 2001:db8:* of IPv6"
    if "*" in text or "-" in text:
        return "; a range stands alone, in no list"
    return ""


def _range(text: str) -> Matches:
    pieces, at = _range_pieces(text)
    base, most = (16, 0xFFFF) if ":" in text else (10, 255)
    if at == 0:
        raise ValueError(f"address pattern {text!r}: the first part must be a number")
    head = tuple(_number(piece, base, most, text) for piece in pieces[:at])
    if pieces[at] == "*":
        low, high = 0, most
    else:
        first, dash, last = pieces[at].partition("-")
        if not dash:
            raise ValueError(f"address pattern {text!r}: {pieces[at]!r} is no range such as 5-20")
        low, high = _number(first, base, most, text), _number(last, base, most, text)
    if low > high:
        raise ValueError(f"address pattern {text!r}: {low} is above {high}")
    size = len(pieces)
    return lambda parts: len(parts) == size and parts[:at] == head and low <= parts[at] <= high


def _range_pieces(text: str) -> tuple[list[str], int]:
    """The parts of a pattern with a range, and which of them is the first one."""
    pieces = _pieces(text, ":", _V6_PARTS) if ":" in text else _pieces(text, ".", _V4_PARTS)
    return pieces, next(n for n, piece in enumerate(pieces) if "*" in piece or "-" in piece)


def _pieces(text: str, separator: str, count: int) -> list[str]:
    """The parts of a pattern; `::` stands for as many zeros as there is room for, and a pattern of
    IPv6 may end early with its range."""
    head, double, tail = text.partition("::")
    left = [piece.strip() for piece in head.split(separator)] if head else []
    right = [piece.strip() for piece in tail.split(separator)] if tail else []
    if double:
        left += ["0"] * (count - len(left) - len(right))
    pieces = left + right
    if separator == ":" and len(pieces) < count and pieces[-1] == "*":
        pieces += ["*"] * (count - len(pieces))
    if len(pieces) != count:
        raise ValueError(f"address pattern {text!r} has {len(pieces)} parts, not {count}")
    return pieces


def _number(text: str, base: int, most: int, pattern: str) -> int:
    # Python's own reading takes more: 1_0, +1, 0x1, and digits of other scripts.
    found = int(text, base) if _DIGITS[base].fullmatch(text) else most + 1
    if found > most:
        raise ValueError(
            f"address pattern {pattern!r}: {text!r} is no number up to {most:{_SHOWN[base]}}"
        )
    return found
