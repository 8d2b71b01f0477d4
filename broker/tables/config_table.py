"""The base of the tables of topics and of groups: named configurations in a state file.

A worker thread writes the file, as a group commit: changes are collected, one save at a time writes
them, and changes that come meanwhile are in the next save, so a hundred changes cost two saves. A
change is visible when it is on the disk, and then the version moves, once for each save: a change
that was answered survives a restart, and a change that cannot be written changes nothing. Entries
that can be made again in the same way (`_add_unsaved`) are visible at once; each save tries those
too that are not in the file yet.

On the loop nothing here costs more the more entries there are, but the answer that lists the
table, which is made in steps. The worker keeps the text of each entry as the file has it, and makes
that of changed entries only (`entry_text.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from aerobee.broker.background.scheduler import SaveFailure
from aerobee.broker.tables.files.entry_text import NamedConfig, TableText, entry_text
from aerobee.broker.tables.files.state_file import JsonStateFile, members, read_document
from aerobee.protocol.bodies.topics import DataVersion
from aerobee.protocol.frames.fastjson import dumps, quote

log = logging.getLogger("aerobee.broker.state")

# Entries whose JSON is made in one step of a listing: 3 us each.
_STEP = 64

C = TypeVar("C", bound=NamedConfig)


class _Batch(Generic[C]):
    """Changes that one save writes; an entry of None is a deletion."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.changes: dict[str, C | None] = {}
        # A future for each who waits: whoever is cancelled while it waits takes only its own along.
        self._waiting: list[asyncio.Future[None]] = []
        #: Names that the observers are told by themselves, and whether anything else has changed.
        self.told: dict[str, None] = {}
        self.other = False
        #: How many entries, and how much by `_weight`, these changes may add.
        self.new = 0
        self.weight = 0

    def saved(self) -> asyncio.Future[None]:
        """Done when the changes are on the disk, and visible; or with what was in the way."""
        waiting: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(waiting)
        return waiting

    def end(self, error: BaseException | None) -> None:
        """The save is done, or it has failed."""
        for waiting in self._waiting:
            if waiting.done():
                continue
            if error is None:
                waiting.set_result(None)
                continue
            waiting.set_exception(error)
            # Those who wait raise it; without any it is no error that nobody saw.
            waiting.exception()


class ConfigTable(Generic[C]):
    """Entries by name, the built-in ones among them. Loop thread only; the saves run in `pool`.

    Invariants: what `_entries` holds is in the file, but for the names in `_unsaved`; `_saving` is
    the batch that the worker writes, `_pending` the one after it; `weight` is the sum over
    `_entries`. `_text` belongs to the worker.
    """

    def __init__(
        self,
        file: JsonStateFile,
        *,
        key: str,
        built_in: Mapping[str, C],
        parse: Callable[[str, Mapping[str, Any]], C | None],
        clock_ms: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
        pool: Executor | None = None,
    ) -> None:
        """`key` is where the file has the table; `parse` makes an entry of a name and its members,
        None of one to be left out. Raises StateFileError."""
        self._file = file
        self._key = key
        self._clock_ms = clock_ms
        self._loop = loop
        self._pool = pool
        nothing: tuple[DataVersion | None, dict[str, C]] = (None, {})
        version, stored = file.load(lambda content: self._parse(content, parse), nothing)
        self._entries: dict[str, C] = {**built_in, **stored}
        self.weight = sum(map(self._weight, self._entries.values()))
        self.data_version: DataVersion = version or DataVersion(clock_ms(), 0)
        self._observers: list[Callable[[list[C]], None]] = []
        self._unsaved: dict[str, C] = {}
        self._pending: _Batch[C] = _Batch(loop)
        self._saving: _Batch[C] | None = None
        # Whether a save is to begin at the end of this turn, or after the save that is under way;
        # and how many callers hold it up.
        self._is_due = self._more = False
        self._held = 0
        self._is_lost = False
        #: Why the last save failed; None when it did not.
        self.failure: SaveFailure | None = None
        self._text = TableText(key)
        for name, entry in self._entries.items():
            self._text.put(name, entry_text(entry))
        # The JSON of entries that were listed, and of the whole table as it is now; counts states.
        self._listed: dict[str, tuple[C, bytes]] = {}
        self._listing: bytes | None = None
        self._state = 0

    @property
    def state(self) -> int:
        """Moves with each change of an entry: who remembers what one said looks at this first."""
        return self._state

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def all(self) -> list[C]:
        return list(self._entries.values())

    @property
    def expected(self) -> int:
        """How many entries there are when all that was asked for is done."""
        return len(self._entries) + self._pending.new + (self._saving.new if self._saving else 0)

    @property
    def expected_weight(self) -> int:
        """The most that `weight` comes to when all that was asked for is done."""
        return self.weight + self._pending.weight + (self._saving.weight if self._saving else 0)

    def subscribe(self, observer: Callable[[list[C]], None]) -> None:
        """Call `observer` after each save: with the entries that are new or changed, and then with
        an empty list if something else about the table has changed."""
        self._observers.append(observer)

    def under_way(self, name: str) -> asyncio.Future[None] | None:
        """The change of this entry that is not done yet; None without such a change."""
        for batch in (self._pending, self._saving):
            if batch is not None and name in batch.changes:
                return batch.saved()
        return None

    def update(self, entry: C) -> asyncio.Future[None]:
        """Store an entry, new or changed. The future is done when it is on the disk, and visible.

        It raises StoreNotWritable when the disk is full, OSError; then nothing has changed.
        """
        self._pending.told[entry.name] = None
        return self._change(entry.name, entry)

    def delete(self, name: str) -> asyncio.Future[None]:
        """Remove an entry. The future is as that of `update`."""
        self._pending.other = True
        return self._change(name, None)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Changes inside, in several turns of the loop, are in one save."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            self._save_soon()

    def listing(self) -> Generator[None, None, bytes]:
        """The table as the wire has it (GET_ALL_TOPIC_CONFIG and its kin), made in steps.

        An entry's JSON is made once, the whole once for each state of the table.
        """
        return self._listing if self._listing is not None else (yield from self._list())

    def listing_steps(self) -> Iterator[None]:
        """The steps of `listing` alone; `listed` has it then, unless the table has changed."""
        yield from self.listing()

    @property
    def listed(self) -> bytes | None:
        """The listing of the present state, if it was made."""
        return self._listing

    def _list(self) -> Generator[None, None, bytes]:
        state, version, entries = self._state, self.data_version, dict(self._entries)
        texts: list[bytes] = []
        for number, name in enumerate(sorted(entries)):
            if number and number % _STEP == 0:
                yield None
                if self._listing is not None:  # made for another request meanwhile
                    return self._listing
            texts.append(self._listed_text(name, entries[name]))
        listing = b'{"dataVersion":%b,"%b":{%b}}' % (
            dumps(version.to_json()),
            self._key.encode(),
            b",".join(texts),
        )
        if state == self._state:
            self._listing = listing
        return listing

    def retry(self) -> None:
        """Save again, if the last save failed: entries may wait for that, and whether changes are
        taken again is to be known before somebody asks. Called each second."""
        if self.failure is not None:
            self._save_next()

    def save_again(self) -> None:
        """The file is gone: save the table, although nothing has changed."""
        self._is_lost = True
        self._save_soon()

    async def flush(self) -> None:
        """Wait until all that was asked for has been written, or could not be."""
        self._save_next()
        while self._saving is not None:
            await asyncio.wait([self._saving.saved()])

    # --- for tables ---------------------------------------------------------------------------

    def _weight(self, _entry: C) -> int:
        """The number of an entry whose sum the table keeps."""
        return 0

    def _change(self, name: str, entry: C | None) -> asyncio.Future[None]:
        batch, known = self._pending, self._entries.get(name)
        if name not in batch.changes:
            batch.new += known is None and entry is not None
        if entry is not None:
            before = self._weight(known) if known is not None else 0
            batch.weight += max(0, self._weight(entry) - before)
        batch.changes[name] = entry
        saved = batch.saved()
        self._save_soon()
        return saved

    def _add_unsaved(self, entry: C) -> None:
        """Take an entry that is visible at once, and made again when a crash comes before its
        save: nobody waits for that."""
        self._put(entry)
        self._unsaved[entry.name] = entry
        self._save_soon()

    def _now_kept(self, _names: list[str]) -> None:
        """Entries that were visible before (`_add_unsaved`) are on the disk now."""

    def _put(self, entry: C) -> None:
        known = self._entries.get(entry.name)
        self.weight += self._weight(entry) - (self._weight(known) if known is not None else 0)
        self._entries[entry.name] = entry
        self._changed()

    def _remove(self, name: str) -> None:
        known = self._entries.pop(name, None)
        if known is not None:
            self.weight -= self._weight(known)
            self._listed.pop(name, None)
            self._changed()

    def _changed(self) -> None:
        """Drop the list that was made: it is of an earlier state."""
        self._state += 1
        self._listing = None

    def _move_version(self) -> None:
        """The table is another one than its version said, in memory alone."""
        self.data_version = DataVersion(self._clock_ms(), self.data_version.counter + 1)

    def _tell(self, changed: list[C]) -> None:
        for observer in self._observers:
            observer(changed)

    # --- saving -------------------------------------------------------------------------------

    def _save_soon(self) -> None:
        """Begin a save at the end of this turn, or after the save that is under way: all changes of
        a request are in the same save."""
        if self._saving is not None:
            self._more = True
        elif not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._save_due)

    def _save_due(self) -> None:
        self._is_due = False
        if not self._held:
            self._save_next()

    def _save_next(self) -> None:
        batch = self._pending
        wanted = batch.changes or self._unsaved or self._is_lost or self.failure is not None
        if self._saving is not None or not wanted:
            return
        unsaved = {name: one for name, one in self._unsaved.items() if name not in batch.changes}
        batch.changes = {**unsaved, **batch.changes}
        self._saving, self._pending = batch, _Batch(self._loop)
        self._more = self._is_lost = False
        version = DataVersion(self._clock_ms(), self.data_version.counter + 1)
        write = partial(self._write, batch.changes, version)
        running = self._loop.run_in_executor(self._pool, write)
        running.add_done_callback(partial(self._saved, batch, version, len(unsaved)))

    def _write(self, changes: Mapping[str, C | None], version: DataVersion) -> None:
        """Worker: save the table with these changes."""
        text = self._text
        before = {
            name: text.put(name, None if entry is None else entry_text(entry))
            for name, entry in changes.items()
        }
        saved = False
        try:
            self._file.save_or_refuse(text.document(version))
            saved = True
        finally:
            if not saved:
                for name, known in before.items():
                    text.put(name, known)

    def _saved(
        self, batch: _Batch[C], version: DataVersion, unsaved: int, done: asyncio.Future[None]
    ) -> None:
        """The worker is done: make the changes visible, or say what was in the way."""
        self._saving = None
        error, before = done.exception(), self.failure
        self.failure = None if error is None else SaveFailure.of(str(self._file.path), error)
        if error is None:
            self._apply(batch, version)
        elif unsaved and self.failure != before:
            log.warning(
                "entries not written, the next change will path=%s count=%d why=%s",
                self._file.path,
                unsaved,
                error,
            )
        batch.end(error)
        if self._more and not self._held:
            self._save_next()

    def _apply(self, batch: _Batch[C], version: DataVersion) -> None:
        # It may have moved beyond the file's (`_move_version`); it never goes back.
        counter = max(version.counter, self.data_version.counter + 1)
        self.data_version = DataVersion(version.timestamp_ms, counter)
        self._changed()
        kept = []
        for name, entry in batch.changes.items():
            if entry is None:
                self._unsaved.pop(name, None)
                self._remove(name)
                continue
            if self._unsaved.get(name) is entry:
                del self._unsaved[name]
                kept.append(name)
            self._put(entry)
        if kept:
            self._now_kept(kept)
        changed = [entry for name in batch.told if (entry := batch.changes[name]) is not None]
        if changed:
            self._tell(changed)
        if batch.other:
            self._tell([])

    # --- text ---------------------------------------------------------------------------------

    def _listed_text(self, name: str, entry: C) -> bytes:
        known = self._listed.get(name)
        if known is None or known[0] is not entry:
            text = b"%b:%b" % (quote(name).encode(), _wire_text(entry))
            known = self._listed[name] = (entry, text)
        return known[1]

    def _parse(
        self, content: bytes, parse: Callable[[str, Mapping[str, Any]], C | None]
    ) -> tuple[DataVersion | None, dict[str, C]]:
        document = read_document(content)
        entries = {
            name: entry
            for name, value in members(members(document)[self._key]).items()
            if (entry := parse(name, members(value))) is not None
        }
        return _version(document.get("dataVersion"), self._clock_ms()), entries


def done(loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
    """A change that needs no save."""
    change: asyncio.Future[None] = loop.create_future()
    change.set_result(None)
    return change


def _wire_text(entry: NamedConfig) -> bytes:
    """An entry as `dumps` writes it, natively where both agree: all but text that is escaped."""
    text = msgspec.json.encode(entry.to_json())
    plain = text.isascii() and b"\\" not in text and b"\x7f" not in text
    return text if plain else dumps(entry.to_json())


def _version(value: Mapping[str, Any] | None, now_ms: int) -> DataVersion:
    """The version in a file; a missing one is of now, unchanged. Raises ValueError, TypeError."""
    if not value:
        return DataVersion(now_ms, 0)
    if not isinstance(value, Mapping):
        raise ValueError("the data version is not an object")
    return DataVersion(int(value.get("timestamp", now_ms)), int(value.get("counter", 0)))
