"""Times as users of the pipeline write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

_INTEGER: Final = re.compile(r"[+-]?\d+")
#: Behind the last millisecond that ISO 8601 can say, of the year 9999.
_END_MS: Final = 253_402_300_800_000


def parse_time_ms(text: str) -> int:
    """Milliseconds since 1970, given so or as ISO 8601; a time without a zone is UTC.

    Raises ValueError with what the text is, to be put behind it.
    """
    if _INTEGER.fullmatch(text):
        time_ms = int(text)
        if time_ms < 0:
            raise ValueError("is less than 0: no message is older than 1970")
        if time_ms >= _END_MS:
            raise ValueError("is behind the year 9999: it counts milliseconds since 1970")
        return time_ms
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            "is no time: milliseconds since 1970, or like 2026-11-21T10:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
