"""The ledger of an archive: log ranges, each written once however often a run is killed.

    <target>/topic=.../date=.../<start>-<n>.parquet    the rows, in their places
    <target>/_archive/entries/<start>.json             a range that is decided: its files, its rows
    <target>/_archive/done/<start>                     its files are all in place
    <target>/_archive/staging/<uuid>/...               rows that no entry names yet, or not in place

A range goes four steps: its rows are written to a staging directory; the entry that names them
appears in one act (the decision, made once for each start: a second run gives way); its files get
their places; it is marked done. Whichever step a run dies in, `recover` of the next run finishes
decided ranges by the same steps, which may be done twice, and throws undecided ones away.

A reader of the ledger (`files`) sees a range whole from its decision on, wherever its files are. A
reader of the directory alone, which passes over names that begin with an underscore, sees nothing
undecided, and a range that was just decided file by file. On object stores a file gets its place by
a copy, and the staged file stays until the next run begins, for readers that began with it.

Ranges follow each other without a hole: each begins where the last ends, at the end of a record or
of a full segment. If retention was quicker than the archive, the entry says which log offsets were
missed. A range without rows has an entry too, so that nothing looks at it again.

An archive of a selection of messages has that selection in each entry, so that the first entry
decides it, and a run for another selection is refused. Such entries have version 2, which programs
that know of no selection do not read; other entries have version 1, as always.
"""

from __future__ import annotations

import json
import posixpath
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final, NamedTuple, Self

from aerobee.pipeline.jobs.common.job_result import USAGE, JobFailed
from aerobee.pipeline.jobs.targets.staging import Staging
from aerobee.pipeline.jobs.targets.target import Target

FOLDER: Final = "_archive"
_ENTRIES, _DONE = f"{FOLDER}/entries", f"{FOLDER}/done"
_VERSION, _SELECTION_VERSION = 1, 2
# The files of a range are renamed in milliseconds, except on a disk that is very busy.
_RENAMING_S: Final = 5.0
_POLL_S: Final = 0.05


class LedgerError(Exception):
    """The archive is not what its ledger says; the text says what to do."""


class ArchiveSelection(NamedTuple):
    """The part of a log that an archive holds: topics (empty: all), and store times [begin, end) in
    ms.

    The ledger counts log offsets, not messages, so an archive has one selection for ever: with
    another, messages would be missing from the offsets that count as archived.
    """

    topics: tuple[str, ...] = ()
    begin_ms: int | None = None
    end_ms: int | None = None

    @classmethod
    def of(cls, topics: Sequence[str], begin_ms: int | None, end_ms: int | None) -> Self:
        """The selection, equal for any order in which topics are named."""
        return cls(tuple(sorted(set(topics))), begin_ms, end_ms)

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """From the fields of `_asdict`. Raises KeyError and TypeError."""
        return cls(tuple(fields["topics"]), fields["begin_ms"], fields["end_ms"])

    @property
    def is_everything(self) -> bool:
        """Whether no message is left aside."""
        return self == ALL

    def __str__(self) -> str:
        found = f"messages of {', '.join(self.topics)}" if self.topics else "all messages"
        for word, time_ms in (("from", self.begin_ms), ("before", self.end_ms)):
            if time_ms is not None:
                time = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(
                    timespec="milliseconds"
                )
                found += f" {'' if ' stored ' in found else 'stored '}{word} {time}"
        return found


ALL = ArchiveSelection()


class ArchivedFile(NamedTuple):
    """A file of rows: where it was staged, where it belongs, and its length in bytes."""

    aside: str
    place: str
    bytes: int


class LedgerEntry(NamedTuple):
    """A range of log offsets [start, end) and the files of its rows. `missed`: log offsets before
    it that were deleted unarchived; `bad`: damaged places in it; `facts`: further values of the
    archiver, such as times; `selection`: the part of the log that the archive holds."""

    start: int
    end: int
    rows: int
    bad: int
    missed: tuple[int, int] | None
    files: tuple[ArchivedFile, ...]
    facts: dict[str, Any]
    selection: ArchiveSelection = ALL

    @property
    def name(self) -> str:
        """Its name in the ledger."""
        return f"{self.start:020d}"

    @property
    def bytes(self) -> int:
        """The length of its files together."""
        return sum(file.bytes for file in self.files)


class StagedRows(NamedTuple):
    """Rows that were written aside: up to where the log was read, and as in LedgerEntry."""

    end: int
    rows: int
    bad: int
    facts: dict[str, Any]


#: Writes the rows of [start, end) as files below a directory of the target; None: the range had no
#: record, so it has to be looked at again.
Write = Callable[[int, int, str], StagedRows | None]


class Ledger:
    """The ledger of one target. One run at a time; a second one fails or gives way, no row is
    written twice."""

    def __init__(self, target: Target, selection: ArchiveSelection = ALL) -> None:
        self._target = target
        self._selection = selection
        self._staging = Staging(target, f"{FOLDER}/staging")

    def check_selection(self, name: str) -> bool:
        """Whether there is no entry yet. Raises JobFailed, which calls the archive `name`, if it is
        for another selection than this ledger was opened with; LedgerError if its last entry cannot
        be read."""
        paths = self._entry_paths()
        if not paths:
            return True
        known = _decoded(self._target.read(paths[-1]), paths[-1]).selection
        if known != self._selection:
            raise JobFailed(
                f"{name} holds {known}; this run is for {self._selection}: of what the ledger "
                "counts as archived some would be missing, so use another target, or the same "
                "--topic, --begin and --end as before",
                USAGE,
            )
        return False

    def entries(self) -> list[LedgerEntry]:
        """All decided ranges in order. Raises LedgerError if they do not follow each other."""
        paths = self._entry_paths()
        found = [
            _decoded(data, path)
            for data, path in zip(self._target.read_all(paths), paths, strict=True)
        ]
        for one, following in pairwise(found):
            begun = following.start if following.missed is None else following.missed[0]
            if begun != one.end:
                raise LedgerError(
                    f"the archive's ledger has a range to {one.end} and then one from {begun}: "
                    f"an entry in {_ENTRIES} is gone or of another store"
                )
        return found

    def recover(self) -> int:
        """Finish what a killed run began; how many ranges that were. Raises LedgerError."""
        done = self._done()
        left = [entry for entry in self.entries() if entry.name not in done]
        for entry in left:
            self._publish(entry)
        self._staging.clear()
        return len(left)

    def files(self) -> list[str]:
        """Where the rows of all decided ranges are: every file, each once. Raises LedgerError when
        a file is gone, and where nothing was ever archived."""
        if not self._target.exists(FOLDER):
            raise LedgerError(f"it is no archive: it has no {FOLDER} directory")
        until = time.monotonic() + _RENAMING_S
        while True:
            entries = self.entries()
            done = self._done()
            # A run that renames is through in a moment; a run that was killed meanwhile never is.
            is_settled = all(entry.name in done for entry in entries)
            if is_settled or not self._target.renames or time.monotonic() > until:
                break
            time.sleep(_POLL_S)
        return [
            file.place if entry.name in done else self._found(entry, file)
            for entry in entries
            for file in entry.files
        ]

    def _entry_paths(self) -> list[str]:
        return sorted(path for path in self._target.sizes(_ENTRIES) if path.endswith(".json"))

    def _done(self) -> set[str]:
        return {posixpath.basename(path) for path in self._target.sizes(_DONE)}

    def _found(self, entry: LedgerEntry, file: ArchivedFile) -> str:
        for path in (file.place, file.aside, file.place):
            if self._target.exists(path):
                return path
        raise _gone(entry, file)

    def check(self) -> list[str]:
        """The files that the archive lacks, or has with another length; call `recover` before."""
        sizes = self._target.sizes("")
        wrong: list[str] = []
        for entry in self.entries():
            for _, place, size in entry.files:
                if sizes.get(place) != size:
                    found = "is gone" if place not in sizes else f"has {sizes[place]} bytes"
                    wrong.append(f"{place} {found}, the ledger says {size}")
        return wrong

    def archive(
        self, start: int, end: int, write: Write, missed: tuple[int, int] | None = None
    ) -> LedgerEntry | None:
        """One range: its rows written by `write`, decided, put in place. None if that had none.

        Raises LedgerError when another run decided a range from `start` on meanwhile.
        """
        aside = self._staging.new()
        staged = write(start, end, aside)
        if staged is None:
            self._target.remove_tree(aside)
            return None
        entry = LedgerEntry(
            start, staged.end, staged.rows, staged.bad, missed, self._files(aside, start),
            staged.facts, self._selection,
        )  # fmt: skip
        self._target.sync([file.aside for file in entry.files])
        if not self._target.write_new(f"{_ENTRIES}/{entry.name}.json", _encoded(entry)):
            self._target.remove_tree(aside)
            raise LedgerError(
                f"another run archived the log from {start} on meanwhile; nothing of this one was "
                "kept. Run one archive job for a target at a time"
            )
        self._publish(entry)
        if self._target.renames:
            self._target.remove_tree(aside)
        return entry

    def _files(self, aside: str, start: int) -> tuple[ArchivedFile, ...]:
        """The staged files and their places: the same `name=value` folders, named by the range."""
        found = []
        staged = sorted(self._staging.files(aside).items())
        for number, (path, size) in enumerate(staged):
            folder = "/".join(one for one in posixpath.dirname(path).split("/") if "=" in one)
            name = f"{start:020d}-{number:05d}.parquet"
            place = posixpath.normpath(posixpath.join(folder, name))
            found.append(ArchivedFile(path, place, size))
        return tuple(found)

    def _publish(self, entry: LedgerEntry) -> None:
        for file in entry.files:
            if self._target.exists(file.aside):
                self._target.publish(file.aside, file.place)
            elif not self._target.exists(file.place):
                raise _gone(entry, file)
        self._target.sync([file.place for file in entry.files])
        self._target.write_new(f"{_DONE}/{entry.name}", b"")


def _gone(entry: LedgerEntry, file: ArchivedFile) -> LedgerError:
    return LedgerError(
        f"the range from {entry.start} to {entry.end} was decided, but its file {file.place} is "
        f"neither in its place nor in {file.aside}: it was removed from outside. Remove "
        f"{_ENTRIES}/{entry.name}.json and later ones to archive from there again"
    )


def _encoded(entry: LedgerEntry) -> bytes:
    fields = entry._asdict() | {"version": _VERSION}
    selection = fields.pop("selection")
    if selection != ALL:
        fields |= {"version": _SELECTION_VERSION, "selection": selection._asdict()}
    return json.dumps(fields, ensure_ascii=False, indent=1).encode()


def _decoded(data: bytes, path: str) -> LedgerEntry:
    try:
        fields = json.loads(data)
        version = fields.pop("version")
        if version not in (_VERSION, _SELECTION_VERSION):
            raise LedgerError(
                f"{path} has version {version}; this program knows {_SELECTION_VERSION}"
            )
        if version == _SELECTION_VERSION:
            fields["selection"] = ArchiveSelection.parse(fields["selection"])
        fields["files"] = tuple(ArchivedFile(*file) for file in fields["files"])
        fields["missed"] = None if fields["missed"] is None else tuple(fields["missed"])
        return LedgerEntry(**fields)
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"{path} cannot be read ({error}); restore it from a backup") from error


class ArchivePlan(NamedTuple):
    """The ranges to archive, of about one size, and the log offsets that were missed."""

    ranges: tuple[tuple[int, int], ...]
    missed: tuple[int, int] | None


def plan_ranges(
    archived_to: int | None, segments: Sequence[tuple[int, int]], range_bytes: int
) -> ArchivePlan:
    """Ranges after `archived_to` (None: nothing yet) through the segments, (start, end) each.

    A range ends where a segment does, or not at all where that is not worth it.
    """
    if not segments:
        return ArchivePlan((), None)
    log_min = segments[0][0]
    begin = log_min if archived_to is None else max(archived_to, log_min)
    missed = (archived_to, log_min) if archived_to is not None and archived_to < log_min else None
    ranges: list[tuple[int, int]] = []
    for _, end in segments:
        if end <= begin:
            continue
        if ranges and end - ranges[-1][0] <= range_bytes:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((ranges[-1][1] if ranges else begin, end))
    return ArchivePlan(tuple(ranges), missed)
