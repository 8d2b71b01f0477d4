"""How far the timer has come (`config/timerProgress.json`, store/FORMAT.md 12.5).

A cursor: the action time and the log offset of the last record that was done. All records that come
before it in that order are done, because what is stored later never has an earlier time
(`timer.py`). When the wall clock is set back, the cursor goes back with it, and what was done up to
its old place is remembered as a *past*: records below a log offset, up to a cursor.

The file never says more than what is durable, as that of the delay levels (`progress.py`). Loop
thread only, but for `save`, which may run on any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from aerobee.broker.delay.progress import DurableProgress
from aerobee.broker.tables.state_file import members, pretty, read_document

# A clock that is set back more often than this before it has caught up: the oldest past is
# forgotten, and its messages come twice.
_MOST_PASTS = 64


class Cursor(NamedTuple):
    """The last record that was done."""

    action_ms: int
    log_offset: int


class Past(NamedTuple):
    """The records below the log offset `below` are done up to `cursor`."""

    below: int
    cursor: Cursor
    #: How many below `below` of the cursor's own hour are not, where that is known.
    left: int | None = None


class Done(NamedTuple):
    """What is done."""

    cursor: Cursor
    pasts: tuple[Past, ...] = ()

    def has(self, action_ms: int, log_offset: int) -> bool:
        """Whether that record is done."""
        one = (action_ms, log_offset)
        if one <= self.cursor:
            return True
        return any(log_offset < past.below and one <= past.cursor for past in self.pasts)

    def at(self, cursor: Cursor) -> Done:
        """The cursor has come further; pasts that it has reached are forgotten."""
        pasts = self.pasts
        if pasts:
            pasts = tuple([past for past in pasts if past.cursor > cursor])
        return Done(cursor, pasts)

    def back_to(self, now_ms: int, written: int) -> Done:
        """The clock was set back, and all records so far are below the log offset `written`."""
        kept = [past for past in self.pasts if past.cursor > self.cursor]
        kept.append(Past(written, self.cursor))
        return Done(Cursor(now_ms, -1), tuple(kept[-_MOST_PASTS:]))


# Nothing was ever done, and the number of the timer's only position.
_NOTHING = Done(Cursor(0, -1))
_ONLY = 0


class TimerProgress(DurableProgress[Done]):
    """How far the timer is."""

    name = "timer progress"

    @property
    def stored(self) -> Done | None:
        """What the file said at the start; None without a file."""
        return self._stored.get(_ONLY)

    @property
    def done(self) -> Done:
        """What is done, durable or not."""
        position = self._positions.get(_ONLY)
        return _NOTHING if position is None else position.offset

    def moved(self, done: Done, end: int | None = None) -> None:
        """That is done now; what was stored for it last ends at the log offset `end`."""
        self._move(_ONLY, done, _NOTHING, end)

    @staticmethod
    def parse(content: bytes) -> dict[int, Done]:
        """What the file says is done."""
        table = members(read_document(content))
        pasts = [_past(one) for one in map(members, table.get("pasts", []))]
        return {_ONLY: Done(_cursor(table), tuple(pasts))}

    @staticmethod
    def text(values: Mapping[int, Done]) -> str:
        """The cursor and the pasts."""
        done = values[_ONLY]
        pasts = [
            {
                "below": past.below,
                **_shown(past.cursor),
                **({} if past.left is None else {"left": past.left}),
            }
            for past in done.pasts
        ]
        return pretty({**_shown(done.cursor), "pasts": pasts})


def _shown(cursor: Cursor) -> dict[str, int]:
    return {"actionMs": cursor.action_ms, "logOffset": cursor.log_offset}


def _cursor(table: Mapping[str, Any]) -> Cursor:
    return Cursor(int(table["actionMs"]), int(table["logOffset"]))


def _past(table: Mapping[str, Any]) -> Past:
    left = table.get("left")
    return Past(int(table["below"]), _cursor(table), None if left is None else int(left))
