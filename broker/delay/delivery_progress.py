"""How far each delay level, and the timer, has delivered.

A level: the next queue offset of its queue, by the level's number from 1
(`config/delayOffset.json`, store/FORMAT.md 11.2).

The timer (`config/timerProgress.json`, store/FORMAT.md 12.5): a cursor, which is the action time
and the log offset of the last record that was done. All records that come before it in that order
are done, because what is stored later never has an earlier time (`timer.py`). When the wall clock
is set back, the cursor goes back with it, and what was done up to its old place is remembered as a
*past*: records below a log offset, up to a cursor.

A delivered message is stored a second time without a wait for its sync, so a file never says more
than what is durable: a position is written when the log is synced past the last message that was
delivered before it. RocketMQ writes it at once, and a power cut then loses the messages that the
file calls delivered. A stop or kill in between delivers the last ones twice; none gets lost.

There are two earlier positions beside the present position: the last that is known to be durable,
and another that waits for the durable mark. The present position is the next to wait when the
waiting position has become durable.

Under ASYNC_FLUSH a few messages may wait seconds for their sync, and a broker that is killed before
would deliver them again in each of its lives. So asking for changes has the log synced, where
positions wait for it; the next question gets them.

Loop thread only, but for `save`, which may run on any.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from aerobee.broker.tables.files.state_file import JsonStateFile, members, pretty, read_document
from aerobee.protocol.names import SCHEDULE_GROUP, SCHEDULE_TOPIC

V = TypeVar("V")

# Levels that are taken from a master: those of a setting are some dozens.
_MOST_LEVELS = 1_000


class Position(Generic[V]):
    """How far a level is: at `offset`, with all before it stored below the log offset `end`."""

    __slots__ = ("durable_offset", "end", "offset", "pending", "pending_end")

    def __init__(self, offset: V) -> None:
        self.offset = offset
        self.end = 0
        self.durable_offset = self.pending = offset
        self.pending_end = 0

    def advance(self, durable: int) -> V:
        """The newest position known to be durable."""
        if self.end <= durable:
            self.durable_offset = self.pending = self.offset
            return self.offset
        if self.pending_end <= durable:
            self.durable_offset = self.pending
            self.pending, self.pending_end = self.offset, self.end
        return self.durable_offset


class DurableProgress(ABC, Generic[V]):
    """Positions by number, saved when they are durable. `durable()` is the store's mark,
    `sync_soon` has it moved to what is written now. Raises StateFileError if the file and its
    backup are damaged."""

    #: For the log.
    name = "progress"

    def __init__(
        self,
        file: JsonStateFile,
        durable: Callable[[], int],
        sync_soon: Callable[[], None] = lambda: None,
    ) -> None:
        self._file = file
        self._durable = durable
        self._sync_soon = sync_soon
        self._saved: dict[int, V] = file.load(self.parse, {})
        self._positions = {number: Position(value) for number, value in self._saved.items()}
        # The end of what the last sync was asked for.
        self._asked_end = 0
        # The newest text; an older text that still waits for its turn is not written.
        self._newest = ""
        self._saving = threading.Lock()

    @staticmethod
    @abstractmethod
    def parse(content: bytes) -> dict[int, V]:
        """The values by number that a file has. Raises ValueError, KeyError or TypeError."""

    @staticmethod
    @abstractmethod
    def text(values: Mapping[int, V]) -> str:
        """The file that has these values."""

    def _move(self, number: int, value: V, first: V, end: int | None) -> None:
        position = self._positions.get(number)
        if position is None:
            position = self._positions[number] = Position(first)
        position.offset = value
        if end is not None:
            position.end = end
        position.advance(self._durable())

    def replace(self, values: Mapping[int, V]) -> None:
        """Take another broker's positions, all of them durable here: on a slave, whose log has by
        now what its master had delivered at these positions."""
        self._positions = {number: Position(value) for number, value in values.items()}

    def take_changes(self) -> str | None:
        """The file's new text when it has changed since the last call, else None. A sync is asked
        for where positions are not durable yet."""
        durable = self._durable()
        values = {n: position.advance(durable) for n, position in sorted(self._positions.items())}
        self._have_synced(durable)
        if values == self._saved:
            return None
        self._saved = values
        self._newest = self.text(values)
        return self._newest

    def save(self, text: str) -> None:
        """Write a text of `take_changes`, unless a newer one was taken. Any thread; OSError."""
        with self._saving:
            if text is self._newest:
                self._file.save(text)

    def mark_unsaved(self) -> None:
        """A `save` failed: the next `take_changes` gives everything again."""
        self._saved = {}

    def mark_lost(self) -> None:
        """The file is gone: the next `take_changes` gives everything again."""
        self._saved = {}

    def _have_synced(self, durable: int) -> None:
        """Ask for a sync if a position waits for it, and remember which it will cover."""
        positions = self._positions.values()
        end = max((one.end for one in positions if one.offset != one.durable_offset), default=0)
        if end <= durable:
            return
        if self._asked_end <= durable:
            self._asked_end = end
            for position in positions:
                position.pending, position.pending_end = position.offset, position.end
        self._sync_soon()


class DelayProgress(DurableProgress[int]):
    """The next queue offset of each level."""

    name = "delay progress"

    @property
    def from_backup(self) -> bool:
        """Whether the file's backup was read, which is older and may lack levels."""
        return self._file.loaded_from == self._file.backup

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    def of(self, level: int) -> int | None:
        """The next queue offset of a level, None if nothing is known of it."""
        position = self._positions.get(level)
        return None if position is None else position.offset

    def moved(self, level: int, offset: int, end: int | None = None) -> None:
        """A level has come to `offset`; what was delivered last ends at the log offset `end`."""
        self._move(level, offset, 0, end)

    def table(self) -> dict[int, int]:
        """The next queue offset of each level, durable or not."""
        return {level: position.offset for level, position in sorted(self._positions.items())}

    def tables(self) -> list[tuple[tuple[str, str], Mapping[int, int]]]:
        """The positions as a group's offsets, ((topic, group), offsets by queue id)."""
        queues = {level - 1: offset for level, offset in self.table().items()}
        return [((SCHEDULE_TOPIC, SCHEDULE_GROUP), queues)]

    @classmethod
    def read(cls, content: bytes) -> dict[int, int]:
        """Offsets by level of the answer to GET_ALL_DELAY_OFFSET. Raises as `parse`, and ValueError
        for what no broker has."""
        values = cls.parse(content)
        if len(values) > _MOST_LEVELS or any(n < 1 or at < 0 for n, at in values.items()):
            raise ValueError("there are too many delay levels, or numbers that none has")
        return values

    @staticmethod
    def parse(content: bytes) -> dict[int, int]:
        """Offsets by level."""
        table = members(members(read_document(content))["offsetTable"])
        return {int(level): int(offset) for level, offset in table.items()}

    @staticmethod
    def text(values: Mapping[int, int]) -> str:
        """The file in RocketMQ's form."""
        return pretty({"offsetTable": values})


# The timer

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
    """The records that are done."""

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
    def known(self) -> Done | None:
        """The records that are done; None if there was no file, and nothing is done since."""
        position = self._positions.get(_ONLY)
        return None if position is None else position.offset

    @property
    def done(self) -> Done:
        """The records that are done, durable or not."""
        return self.known or _NOTHING

    def take(self, done: Done) -> None:
        """See `replace`."""
        self.replace({_ONLY: done})

    def copy(self) -> bytes:
        """The records that are done, durable or not, as the file has them, for `parse`."""
        return self.text({_ONLY: self.done}).encode()

    @classmethod
    def read(cls, content: bytes) -> Done:
        """The records that are done, by a `copy`. Raises as `parse`."""
        return cls.parse(content)[_ONLY]

    def moved(self, done: Done, end: int | None = None) -> None:
        """That is done now; what was stored for it last ends at the log offset `end`."""
        self._move(_ONLY, done, _NOTHING, end)

    @staticmethod
    def parse(content: bytes) -> dict[int, Done]:
        """The records that are done, by the file."""
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
