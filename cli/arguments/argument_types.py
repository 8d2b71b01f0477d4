"""Types of arguments. ValueError and ArgumentTypeError become usage errors."""

import argparse
from typing import TypeVar

from aerobee.pipeline.argument_values import count, whole
from aerobee.shards import SHARDS_MAX

# Those of client/message.py, which no command opens before it runs; a test compares them.
MAX_DELAY_S = 40 * 86_400
MAX_DELAY_LEVEL = 18
_Number = TypeVar("_Number", int, float)
_SPANS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def port(text: str) -> int:
    """A port; 0 is allowed."""
    value = whole(text)
    if not 0 <= value <= 65_535:
        raise argparse.ArgumentTypeError(f"a port is 0 to 65535, not {text}")
    return value


def shards(text: str) -> int:
    """The number of brokers that a supervisor runs."""
    value = count(text)
    if value > SHARDS_MAX:
        raise argparse.ArgumentTypeError(
            f"must be at most {SHARDS_MAX}, not {text}: run several supervisors"
        )
    return value


def seconds(text: str) -> float:
    """A time of more than 0 and at most an hour."""
    value = float(text)
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 3600, not {text}")
    return value


def text(argument: str) -> str:
    """A text that can be sent: bytes that are not UTF-8 arrive here as lone surrogates."""
    try:
        argument.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"{argument!r} is not valid UTF-8") from error
    return argument


def assignment(argument: str) -> tuple[str, str]:
    """KEY=VALUE, without the blanks around both."""
    key, equals, value = text(argument).partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"must be KEY=VALUE, not {argument}")
    return key.strip(), value.strip()


def duration(argument: str) -> float:
    """A time span in seconds: a number, followed by s, m, h or d; without a unit it is seconds."""
    factor = _SPANS.get(argument[-1:], 0)
    try:
        value = float(argument[:-1] if factor else argument) * (factor or 1)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be seconds, or a number followed by s, m, h or d, such as 90s, 15m, 2h or "
            f"3d: {argument}"
        ) from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, such as 90s, 15m, 2h or 3d: {argument}")
    return value


def at_most(value: _Number, most: float, argument: str, shown: str = "") -> _Number:
    """`value`, which an argument has, if it is not above `most`, or what that is called."""
    if value > most:
        raise argparse.ArgumentTypeError(f"must be at most {shown or most}, not {argument}")
    return value


def delay(argument: str) -> float:
    """A time span that a broker may be asked to keep a message for."""
    return at_most(duration(argument), MAX_DELAY_S, argument, "40 days (40d)")


def delay_level(argument: str) -> int:
    """One of RocketMQ's levels; 0 stands for no level."""
    value = count(argument)
    if value > MAX_DELAY_LEVEL:
        raise argparse.ArgumentTypeError(f"must be 0 to {MAX_DELAY_LEVEL}, not {argument}")
    return value
