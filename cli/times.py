"""Points in time and in a queue, as people write and read them."""

import re
from datetime import datetime
from typing import Final

from aerobee.cli.output import USAGE, CommandFailed

# Digits alone are an offset below this and milliseconds since 1970 from it on (that is March 1973).
FIRST_TIME_MS: Final = 100_000_000_000

_DIGITS: Final = re.compile(r"[0-9]{1,18}")


def parse_time(text: str) -> int:
    """Milliseconds since 1970 of an ISO time (local unless it says otherwise) or of digits."""
    if _DIGITS.fullmatch(text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise CommandFailed(
            f"not a time: {text!r} (such as 2025-03-01T12:30, or milliseconds since 1970)", USAGE
        ) from None
    # By way of microseconds: a float that is a little too small would be cut to the millisecond
    # before (4338653458386, of 2107, is one).
    return round(moment.timestamp() * 1_000_000) // 1000


def exact_time(timestamp_ms: int) -> str:
    """A time that `parse_time` takes back to the millisecond, wherever that is: local, one word,
    with its distance from UTC."""
    moment = datetime.fromtimestamp(timestamp_ms // 1000).astimezone()
    moment = moment.replace(microsecond=timestamp_ms % 1000 * 1000)
    return moment.isoformat(timespec="milliseconds")


def time_text(timestamp_ms: int) -> str:
    """A time for people, local, to the millisecond; "" for none."""
    if timestamp_ms <= 0:
        return ""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{timestamp_ms % 1000:03d}"
