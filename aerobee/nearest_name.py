"""The known name that was probably meant by an unknown name."""

from __future__ import annotations

from collections.abc import Iterable


def nearest_name(given: str, known: Iterable[str]) -> str | None:
    """The known name that resembles the given name most, without regard to case; else None."""
    import difflib  # only a mistake pays for it

    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(given.lower(), by_lower, n=1)
    return by_lower[close[0]] if close else None
