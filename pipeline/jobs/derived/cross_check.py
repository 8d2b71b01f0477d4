"""The cross-check of consume queue entries and the records they name, for a piece of the log.

The entries that are there and those that follow from the records, of one range of log offsets, are
put side by side: each expected entry must be there, and each entry there must be expected. An entry
that was changed to name another place turns up in that place's piece; its record turns up in its
own piece, without an entry; `findings.without_symptoms` sees both and counts one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aerobee.pipeline.jobs.derived.findings import Finding
from aerobee.store.inspect.log_files import gap_at
from aerobee.store.log.scan.sequence import Gap
from aerobee.store.queues.consume_queue_ext import MOST_ADDRESS

_PLACE = ["logOffset", "topic", "queueId", "slot"]


@dataclass(frozen=True)
class StoreFacts:
    """Facts about the whole store: damaged places, where queues began anew, which queues have
    files, and up to which log offset records were dispatched."""

    damaged: Sequence[Gap] = ()
    restarts: Mapping[tuple[str, int], int] = field(default_factory=dict)
    queues: frozenset[tuple[str, int]] = frozenset()
    dispatched: int = 0


def cross_check(expected: pa.Table, entries: pa.Table, facts: StoreFacts) -> list[Finding]:
    """Compare the two (both of schema ENTRIES, of one range of offsets)."""
    check = _Check(facts, np.sort(expected.column("logOffset").to_numpy()))
    placed = expected.filter(pc.greater_equal(expected.column("slot"), 0))
    both = placed.append_column("expected", pa.repeat(True, placed.num_rows)).join(
        entries.append_column("there", pa.repeat(True, entries.num_rows)),
        _PLACE,
        join_type="full outer",
        right_suffix="There",
    )
    is_expected, there = both.column("expected").is_valid(), both.column("there").is_valid()
    check.pairs(both.filter(pc.and_(is_expected, there)))
    check.unexpected(both.filter(pc.invert(is_expected)))
    check.missing(both.filter(pc.invert(there)))
    return check.findings


class _Check:
    """`offsets` are the log offsets of all records of the piece, ascending."""

    def __init__(self, facts: StoreFacts, offsets: np.ndarray) -> None:
        self._facts = facts
        self._offsets = offsets
        self._damaged = sorted(facts.damaged)
        self.findings: list[Finding] = []

    def pairs(self, both: pa.Table) -> None:
        """Check the size and the tags code of entries that name their own records."""
        sizes = pc.not_equal(both.column("size"), both.column("sizeThere"))
        for row in both.filter(sizes).to_pylist():
            text = f"says the record has {row['sizeThere']} bytes; it has {row['size']}"
            self._say("unit-size", row, text)
        code = both.column("tagsCodeThere")
        # An address of an extension entry, whose tags are elsewhere (FORMAT.md 5.6), is no code.
        plain = pc.greater(code, MOST_ADDRESS)
        tags = pc.and_(plain, pc.not_equal(code, both.column("tagsCode")))
        for row in both.filter(tags).to_pylist():
            text = f"has tags code {row['tagsCodeThere']}; the record's is {row['tagsCode']}"
            self._say("unit-tags", row, text)

    def unexpected(self, entries: pa.Table) -> None:
        """Report entries that do not follow from any record."""
        for row in entries.to_pylist():
            place = row["logOffset"]
            if self._is_old(row) or gap_at(self._damaged, place) is not None:
                continue
            at = int(np.searchsorted(self._offsets, place))
            if at < len(self._offsets) and self._offsets[at] == place:
                self._say("unit-other", row, f"names {place}, which is another message")
            else:
                self._say("unit-nowhere", row, f"names {place}, where no record begins")

    def missing(self, expected: pa.Table) -> None:
        """Report records whose entry is not there."""
        late: list[dict[str, object]] = []
        deleted: dict[tuple[str, int], list[dict[str, object]]] = {}
        for row in expected.to_pylist():
            key = (row["topic"], row["queueId"])
            if self._is_old(row):
                continue
            if row["logOffset"] >= self._facts.dispatched:
                late.append(row)
            elif key not in self._facts.queues:
                deleted.setdefault(key, []).append(row)
            else:
                text = f"the record at {row['logOffset']} has no entry in its queue"
                self._say("record-without-unit", row, text)
        if late:
            self._say(
                "not-dispatched", late[0], f"{len(late)} records have no entry yet", len(late)
            )
        for rows in deleted.values():
            text = f"{len(rows)} records of a queue without files"
            self._say("queue-deleted", rows[0], text, len(rows))

    def _is_old(self, row: Mapping[str, object]) -> bool:
        """Whether the record or entry is older than the last beginning of its queue's numbering."""
        restart = self._facts.restarts.get((str(row["topic"]), int(str(row["queueId"]))), 0)
        return int(str(row["logOffset"])) < restart

    def _say(self, kind: str, row: Mapping[str, object], what: str, count: int = 1) -> None:
        place = (row["topic"], row["queueId"], row["slot"], row["logOffset"])
        self.findings.append(Finding(kind, *place, count, what))  # type: ignore[arg-type]
