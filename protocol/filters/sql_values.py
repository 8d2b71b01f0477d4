"""Values as SQL92 filters compare them: numbers in texts and their order, by Java's rules.

Properties are texts. A filter that compares one with a number reads it as the number's own type,
by Java's `Integer.valueOf`, `Long.valueOf` or `Double.valueOf`; these differ from `int` and `float`
in blanks, underscores, suffixes, digits of other scripts, and in having bounds.
"""

import math
import operator
import re
from collections.abc import Callable
from enum import Enum, auto
from functools import cache, lru_cache, partial
from typing import Any, Final

Pair = Callable[[Any, Any], bool]
Reader = Callable[[Any], Any]

#: The bits of Java's Integer and Long.
INTEGER_BITS: Final = 32
LONG_BITS: Final = 64

# A decimal digit of any script in the basic plane: Java looks at single UTF-16 units here.
_DIGIT = "[^\\D\U00010000-\U0010ffff]"
# Values are a client's: no pattern here can match the same text in two ways, or a value of 32 KiB
# that is no number would cost a second.
_INTEGER = re.compile(f"([+-]?)0*({_DIGIT}{{1,20}})")
_DECIMAL = re.compile(
    r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?|[+-]?(?:NaN|Infinity)"
)
_HEXADECIMAL = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
)
# Longer texts are read once for all that an expression compares them with: 512 readings of one of
# 32 KiB would take 30 ms. So many of them have room in the properties of a message.
_LONG = 256
_LONG_TEXTS = 128
# The characters that Java's trim takes off.
_BLANKS = "".join(map(chr, range(33)))


class ValueKind(Enum):
    """The type of a node's value, where it is not null."""

    TEXT = auto()
    INTEGER = auto()
    LONG = auto()
    DOUBLE = auto()
    BOOLEAN = auto()
    NOTHING = auto()  # always null


class Incomparable(Exception):
    """A text is no number of the wanted kind. The message does not match, whatever else is asked
    of it."""


def integer(text: str, bits: int) -> int:
    """The integer of `bits` bits that Java reads. Raises Incomparable."""
    return _integer(text, bits) if len(text) <= _LONG else _long_integer(text, bits)


def _integer(text: str, bits: int) -> int:
    found = _INTEGER.fullmatch(text)
    if found is None:
        raise Incomparable(text)
    value = int(found[1] + found[2])
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise Incomparable(text)
    return value


def double(text: str) -> float:
    """The double that Java reads. Raises Incomparable."""
    return _double(text) if len(text) <= _LONG else _long_double(text)


def _double(text: str) -> float:
    plain = text.strip(_BLANKS)
    if found := _DECIMAL.fullmatch(plain):
        return float(found[1] or found[0])
    if (found := _HEXADECIMAL.fullmatch(plain)) is None:
        raise Incomparable(text)
    try:
        return float.fromhex(found[1])
    except OverflowError:
        return -math.inf if plain[0] == "-" else math.inf


_long_integer = lru_cache(_LONG_TEXTS)(_integer)
_long_double = lru_cache(_LONG_TEXTS)(_double)


def double_order(value: float) -> tuple[bool, float, float]:
    """A key in the order of Java's `Double.compareTo`: -0.0 is below 0.0, NaN equal to itself and
    above all others."""
    if value != value:
        return (True, 0.0, 0.0)
    return (False, value, math.copysign(1.0, value))


@cache
def sameness(left: ValueKind, right: ValueKind) -> Pair:
    """Whether two values that are not null are equal."""
    if left == right and left in (ValueKind.TEXT, ValueKind.BOOLEAN):
        return operator.eq
    if ValueKind.BOOLEAN not in (left, right):
        read_left, read_right = readers(left, right)
        return lambda one, other: bool(read_left(one) == read_right(other))
    if left is ValueKind.TEXT:
        return lambda one, other: (one.lower() == "true") == other
    return _fails if right is ValueKind.TEXT else lambda one, other: False


def _fails(one: object, other: object) -> bool:
    raise Incomparable(other)


@cache
def readers(left: ValueKind, right: ValueKind) -> tuple[Reader, Reader]:
    """Return the functions that make values of these kinds, texts and numbers, comparable."""
    if ValueKind.DOUBLE in (left, right) or left == right == ValueKind.TEXT:
        return _as_double(left), _as_double(right)
    bits = LONG_BITS if ValueKind.LONG in (left, right) else INTEGER_BITS
    return _as_integer(left, bits), _as_integer(right, bits)


def _as_double(kind: ValueKind) -> Reader:
    if kind is ValueKind.TEXT:
        return lambda text: double_order(double(text))
    return lambda number: double_order(float(number))


def _as_integer(kind: ValueKind, bits: int) -> Reader:
    return partial(integer, bits=bits) if kind is ValueKind.TEXT else operator.index
