"""How far each delay level has been delivered (`config/delayOffset.json`, store/FORMAT.md 11.2).

Level (from 1) -> the next queue offset of that level's queue. What is delivered is stored a second
time without a wait for its sync, so the file never says more than what is durable: a
level's place is written when the log is synced behind the last message that was delivered before
it. The reference writes it at once, and a power cut then loses the messages that the file calls
delivered. A stop or kill in between delivers the last ones twice; none gets lost.

A level keeps two earlier places beside the present one: the last that is known to be durable, and
one that waits for the durable mark. The present place takes the waiting one's turn when that has
become durable.

Under ASYNC_FLUSH a few messages may wait seconds for their sync, and a broker that is killed before
would deliver them again in each of its lives. So who asks for changes has the log synced, where
places wait for it; the next one to ask gets them.

Loop thread only, but for `save`, which may run on any.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from aerobee.broker.tables.state_file import JsonStateFile, members, pretty, read_document
from aerobee.protocol.names import SCHEDULE_GROUP, SCHEDULE_TOPIC

V = TypeVar("V")


class Place(Generic[V]):
    """Of one level: `offset` is where it is, with all before it below the log offset `end`."""

    __slots__ = ("durable_offset", "end", "offset", "pending", "pending_end")

    def __init__(self, offset: V) -> None:
        self.offset = offset
        self.end = 0
        self.durable_offset = self.pending = offset
        self.pending_end = 0

    def advance(self, durable: int) -> V:
        """The newest place known to be durable."""
        if self.end <= durable:
            self.durable_offset = self.pending = self.offset
            return self.offset
        if self.pending_end <= durable:
            self.durable_offset = self.pending
            self.pending, self.pending_end = self.offset, self.end
        return self.durable_offset


class DurableProgress(Generic[V]):
    """What the progress of delay levels and that of the timer have in common: places that are saved
    when they are durable. `durable()` is the store's mark, `sync_soon` has it moved to what is
    written now."""

    def __init__(
        self,
        file: JsonStateFile,
        durable: Callable[[], int],
        sync_soon: Callable[[], None] = lambda: None,
    ) -> None:
        self._file = file
        self._durable = durable
        self._sync_soon = sync_soon
        # The end of what the last sync was asked for.
        self._asked_end = 0
        # The newest text; one that waits for its turn while another was taken is not written.
        self._newest = ""
        self._saving = threading.Lock()

    def save(self, text: str) -> None:
        """Write a text of `take_changes`, unless a newer one was taken. Any thread; OSError."""
        with self._saving:
            if text is self._newest:
                self._file.save(text)

    def _have_synced(self, durable: int, places: Collection[Place[V]]) -> None:
        """Ask for a sync if a place waits for it, and remember the places that it will cover."""
        end = max((one.end for one in places if one.offset != one.durable_offset), default=0)
        if end <= durable:
            return
        if self._asked_end <= durable:
            self._asked_end = end
            for place in places:
                place.pending, place.pending_end = place.offset, place.end
        self._sync_soon()


class DelayProgress(DurableProgress[int]):
    """The places of all levels. Raises StateFileError if the file and its backup are damaged."""

    def __init__(
        self,
        file: JsonStateFile,
        durable: Callable[[], int],
        sync_soon: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(file, durable, sync_soon)
        stored: dict[int, int] = file.load(_parse, {})
        #: The file's backup was read, which is older and may lack levels.
        self.from_backup = file.loaded_from == file.backup
        self._places = {level: Place(offset) for level, offset in stored.items()}
        self._saved = stored

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    def of(self, level: int) -> int | None:
        """The next queue offset of a level, None if nothing is known of it."""
        place = self._places.get(level)
        return None if place is None else place.offset

    def moved(self, level: int, offset: int, end: int | None = None) -> None:
        """A level has come to `offset`; what was delivered last ends at the log offset `end`."""
        place = self._places.get(level)
        if place is None:
            place = self._places[level] = Place(0)
        place.offset = offset
        if end is not None:
            place.end = end
        place.advance(self._durable())

    def table(self) -> dict[int, int]:
        """The place of each level, durable or not."""
        return {level: place.offset for level, place in sorted(self._places.items())}

    def tables(self) -> list[tuple[tuple[str, str], Mapping[int, int]]]:
        """The places as a group's offsets, ((topic, group), offsets by queue id)."""
        queues = {level - 1: place.offset for level, place in self._places.items()}
        return [((SCHEDULE_TOPIC, SCHEDULE_GROUP), queues)]

    def take_changes(self) -> str | None:
        """The file's new text when it has changed since the last call, else None. Places that are
        not durable yet are had so."""
        durable = self._durable()
        offsets = {level: place.advance(durable) for level, place in sorted(self._places.items())}
        self._have_synced(durable, self._places.values())
        if offsets == self._saved:
            return None
        self._saved = offsets
        self._newest = pretty({"offsetTable": offsets})
        return self._newest

    def mark_unsaved(self) -> None:
        """A `save` failed: the next `take_changes` gives the table again."""
        self._saved = {}

    def mark_lost(self) -> None:
        """The file is gone: the same."""
        self._saved = {}


def _parse(content: bytes) -> dict[int, int]:
    table = members(members(read_document(content))["offsetTable"])
    return {int(level): int(offset) for level, offset in table.items()}
