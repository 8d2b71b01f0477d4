"""One line of log for the first event of a kind, and one a minute that counts those that follow.

What a peer can make happen again and again (a refused request, a dead letter, a reply that nobody
takes) must not write a line each time, and none of it may vanish: so the first event of a kind is
logged as it is; those after it are counted, and when the minute is over the last of them is logged
with `unlogged=N`, the number of those since that had no line. Then the next minute begins, until a
minute has no event; the event after that is a first again.

A kind is what the caller says: a group, a reason. Kinds are bounded; of more, those that share a
text are counted as one kind. Where the order of a few events matters, `at_once` of them get lines
of their own. Every line here is logged with `each`: the log's own suppression of repeated events
would take the counts away.

Not safe for several threads: an object belongs to one of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Protocol

EVERY_S: Final = 60.0
#: Kinds that are known at a time, each with its last event.
MOST_KINDS: Final = 1_000
# How often a timer looks in that time.
_LOOKS: Final = 4
# Characters of a text from outside that a line shows.
_SHOWN: Final = 512
_EACH: Final = {"each": True}
_COUNTED: Final = " unlogged=%d"


@dataclass(slots=True)
class _Sum:
    """The events of a kind since its last line."""

    said_at: float
    logger: logging.Logger
    level: int
    text: str
    last: tuple[object, ...] = ()
    unlogged: int = 0
    # How many more get a line of their own in this minute.
    free: int = 0


class Timer(Protocol):
    """The handle that a loop's `call_later` returns."""

    def cancel(self) -> object:
        """It will not be called."""


class SummedLog:
    """The lines of several kinds of events. `clock` is in seconds and does not go back; with the
    `call_later` of its loop nobody has to call `report`."""

    def __init__(
        self,
        clock: Callable[[], float],
        every_s: float = EVERY_S,
        call_later: Callable[[float, Callable[[], None]], Timer] | None = None,
        at_once: int = 1,
    ) -> None:
        self._clock = clock
        self._every_s = every_s
        self._call_later = call_later
        self._at_once = at_once
        self._timer: Timer | None = None
        self._sums: dict[tuple[str, Hashable], _Sum] = {}

    def __len__(self) -> int:
        return len(self._sums)

    def add(
        self,
        logger: logging.Logger,
        level: int,
        kind: Hashable,
        text: str,
        *values: object,
        count: int = 1,
    ) -> None:
        """An event of that kind has happened, or `count` of them; `values` are those of the last.
        `text` and `values` are as in `logger.log`."""
        key = text, kind
        found = self._sums.get(key)
        if found is None and len(self._sums) >= MOST_KINDS:
            key = text, None
            found = self._sums.get(key)
        if found is not None:
            if found.free > 0 and count == 1:
                found.free -= 1
                logger.log(level, text, *_short(values), extra=_EACH)
            else:
                found.last = _short(values)
                found.unlogged += count
            return
        one = self._sums[key] = _Sum(self._clock(), logger, level, text, _short(values), count - 1)
        if one.unlogged:
            self._log(one)
        else:
            logger.log(level, text, *one.last, extra=_EACH)
        one.last, one.unlogged, one.free = (), 0, self._at_once - 1
        self._arm()

    def _arm(self) -> None:
        if self._call_later is not None and self._timer is None and self._sums:
            self._timer = self._call_later(self._every_s / _LOOKS, self._look)

    def _look(self) -> None:
        self._timer = None
        self.report()
        self._arm()

    def report(self) -> None:
        """Log the events without a line, of each kind whose minute is over. Called now and then."""
        now = self._clock()
        over = [key for key, one in self._sums.items() if now - one.said_at >= self._every_s]
        for key in over:
            one = self._sums.pop(key)
            if one.unlogged:
                self._log(one)
                one.said_at, one.last, one.unlogged = now, (), 0
                self._sums[key] = one

    def close(self) -> None:
        """Log the events that had no line until now: nobody calls `report` any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for one in self._sums.values():
            if one.unlogged:
                self._log(one)
        self._sums.clear()

    def _log(self, one: _Sum) -> None:
        text = one.text + _COUNTED
        one.logger.log(one.level, text, *one.last, one.unlogged, extra=_EACH)


def _short(values: tuple[object, ...]) -> tuple[object, ...]:
    """The values with texts cut to what a line shows: they are kept for a minute."""
    return tuple(
        value[:_SHOWN] if isinstance(value, str) and len(value) > _SHOWN else value
        for value in values
    )
