"""How far the timer has come (`config/timerProgress.json`, store/FORMAT.md 12.5).

A cursor: the action time and the log offset of the last record that was done. All records that come
before it in that order are done, because what is stored later never has an earlier time
(`timer.py`). When the wall clock is set back, the cursor goes back with it, and what was done up to
its old place is remembered as a *past*: records below a log offset, up to a cursor.

As for the delay levels the file never says more than what is durable: what is delivered is stored a
second time without a wait for its sync. Loop thread only, but for `save`, which may run on any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from aerobee.broker.delay.progress import DurableProgress, Place
from aerobee.broker.tables.state_file import JsonStateFile, members, pretty, read_document

# A clock that is set back more often than this before it has caught up: the oldest past is
# forgotten, and its messages come twice.
_MOST_PASTS = 64


class Cursor(NamedTuple):
    """The last record that was done."""

    action_ms: int
    log_offset: int


class Past(NamedTuple):
    """Of the records below the log offset `below`, those up to `cursor` are done."""

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


class TimerProgress(DurableProgress[Done]):
    """The timer's place. Raises StateFileError if the file and its backup are damaged."""

    def __init__(
        self,
        file: JsonStateFile,
        durable: Callable[[], int],
        sync_soon: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(file, durable, sync_soon)
        #: What the file said; None without one.
        self.stored: Done | None = file.load(_parse, None)
        self._place = Place(self.stored or Done(Cursor(0, -1)))
        self._saved = self.stored

    @property
    def done(self) -> Done:
        """What is done, durable or not."""
        return self._place.offset

    def moved(self, done: Done, end: int | None = None) -> None:
        """So much is done; what was stored for it last ends at the log offset `end`."""
        self._place.offset = done
        if end is not None:
            self._place.end = end
        self._place.advance(self._durable())

    def take_changes(self) -> str | None:
        """The file's new text when it has changed since the last call, else None."""
        place, durable = self._place, self._durable()
        done = place.advance(durable)
        self._have_synced(durable, (place,))
        if done == self._saved or done.cursor == Cursor(0, -1):
            return None
        self._saved = done
        self._newest = _text(done)
        return self._newest

    def mark_unsaved(self) -> None:
        """A `save` failed: the next `take_changes` gives the place again."""
        self._saved = None

    def mark_lost(self) -> None:
        """The file is gone: the same."""
        self._saved = None


def _text(done: Done) -> str:
    def shown(cursor: Cursor) -> dict[str, int]:
        return {"actionMs": cursor.action_ms, "logOffset": cursor.log_offset}

    def shown_past(past: Past) -> dict[str, int]:
        left = {} if past.left is None else {"left": past.left}
        return {"below": past.below, **shown(past.cursor), **left}

    pasts = [shown_past(past) for past in done.pasts]
    return pretty({**shown(done.cursor), "pasts": pasts})


def _parse(content: bytes) -> Done | None:
    table = members(read_document(content))

    def cursor(value: Any) -> Cursor:
        return Cursor(int(value["actionMs"]), int(value["logOffset"]))

    def past(one: Mapping[str, Any]) -> Past:
        left = one.get("left")
        return Past(int(one["below"]), cursor(one), None if left is None else int(left))

    pasts = [past(one) for one in map(members, table.get("pasts", []))]
    return Done(cursor(table), tuple(pasts))
