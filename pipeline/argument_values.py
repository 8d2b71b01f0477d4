"""Values of arguments: what argparse calls for each, with an error in one line."""

from __future__ import annotations

import argparse
from typing import Final

#: The modes for bad records; the first is the default.
MODES: Final = ("permissive", "dropmalformed", "failfast")
_SIZES: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def size(text: str) -> int:
    """A number of bytes, such as 8G; argparse makes an error of ValueError."""
    digits, unit = text[:-1], _SIZES.get(text[-1:].lower())
    value = int(text) if unit is None else int(float(digits) * unit)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return value


def whole(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text}") from None


def number(text: str) -> int:
    """A whole number that is not negative."""
    value = whole(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative: {text}")
    return value


def count(text: str) -> int:
    """A whole number of at least 1."""
    value = whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return value


def hours(text: str) -> float:
    """A time in hours that is not negative."""
    value = float(text)
    if not 0 <= value <= 1e9:
        raise argparse.ArgumentTypeError(f"must not be negative: {text}")
    return value


def seconds(text: str) -> float:
    """A time in seconds that is not negative, at most a day."""
    value = float(text)
    if not 0 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"must be 0 to 86400: {text}")
    return value


def rate(text: str) -> float:
    """Messages a second."""
    value = float(text)
    if not 0 < value <= 1e9:
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return value
