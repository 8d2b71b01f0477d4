"""Points in time and in a queue, as people write and read them."""

import re
from datetime import datetime
from typing import Final

from aerobee.cli.printing.output import USAGE, CommandFailed

# Digits alone are milliseconds since 1970 from the year 2000 on. Below that somebody means an
# offset, seconds, a date without hyphens or a time span, and no time of 1970.
_FIRST_MS: Final = 946_684_800_000

_DIGITS: Final = re.compile(r"[0-9]{1,18}")
_FORMS: Final = "a time such as 2025-03-01T12:30, or milliseconds since 1970"


def parse_time(text: str, others: str = "") -> int:
    """Milliseconds since 1970 of an ISO time (local unless it says otherwise) or of digits.

    Raises CommandFailed for anything else, with `others`, what may stand there besides a time.
    """
    forms = f"give {others}, {_FORMS}" if others else f"give {_FORMS}"
    if is_offset(text):
        raise CommandFailed(
            f"not a time: {text!r}, as milliseconds since 1970, is before the year 2000 ({forms})",
            USAGE,
        )
    if _DIGITS.fullmatch(text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise CommandFailed(f"not a time: {text!r} ({forms})", USAGE) from None
    # It goes by microseconds: a float that is a little too small (such as that of 4338653458386, in
    # 2107) would be cut to the millisecond before.
    return round(moment.timestamp() * 1_000_000) // 1000


def exact_time(timestamp_ms: int) -> str:
    """A time that `parse_time` takes back to the millisecond, wherever that is: local, one word,
    with its distance from UTC. The digits of a number that is no time of the calendar."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000).astimezone()
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    moment = moment.replace(microsecond=timestamp_ms % 1000 * 1000)
    return moment.isoformat(timespec="milliseconds")


def is_offset(text: str) -> bool:
    """Whether `text` is a number too small for a time: where both may stand, it is an offset."""
    return _DIGITS.fullmatch(text) is not None and int(text) < _FIRST_MS


def time_text(timestamp_ms: int) -> str:
    """A time for people, local, to the millisecond; "" for none."""
    if timestamp_ms <= 0:
        return ""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{timestamp_ms % 1000:03d}"


def span_text(seconds: float | None) -> str:
    """A span for people, in its largest unit but one; `?` if nobody knows it."""
    if seconds is None:
        return "?"
    if seconds < 120:
        return f"{seconds:.0f} s"
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size or unit == "min":
            return f"{seconds // size:.0f} {unit}"
    raise AssertionError(seconds)


def long_span_text(seconds: float) -> str:
    """A span of time for people, in its two largest units: 3 h 20 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if days < 1000 else f"{days} d"
