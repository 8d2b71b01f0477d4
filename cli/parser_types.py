"""What arguments may be. ValueError and ArgumentTypeError become usage errors."""

import argparse


def port(text: str) -> int:
    """A port; 0 is one."""
    value = int(text)
    if not 0 <= value <= 65_535:
        raise argparse.ArgumentTypeError(f"a port is 0 to 65535, not {text}")
    return value


def count(text: str) -> int:
    """A whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
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
