"""Consume queue entries against the records they name, for a piece of the log.

Entries and claims (what the records say their entries are) of one range of log offsets are put side
by side: each claim needs an entry, each entry a record that claims it. An entry that was changed to
name another place turns up in that place's piece, and its record, in its own, as one without an
entry; `findings.merged` sees both and counts one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aerobee.pipeline.jobs.derived.findings import Finding
from aerobee.pipeline.jobs.derived.runs import Range

#: Tags codes below are addresses of extension entries, whose tags are elsewhere (FORMAT.md 5.6).
_FIRST_TAGS_CODE: Final = -(1 << 31)
_PLACE = ["logOffset", "topic", "queueId", "slot"]


@dataclass(frozen=True)
class Known:
    """What is known of the whole store: damaged places, where queues began anew, which queues have
    files, and up to which log offset records were dispatched."""

    damaged: Sequence[Range] = ()
    restarts: Mapping[tuple[str, int], int] = field(default_factory=dict)
    queues: frozenset[tuple[str, int]] = frozenset()
    dispatched: int = 0


def compare(claims: pa.Table, entries: pa.Table, known: Known) -> list[Finding]:
    """What is wrong between the two (both of schema claims.ENTRIES, of one range of offsets)."""
    check = _Check(known)
    check.offsets = np.sort(claims.column("logOffset").to_numpy())
    placed = claims.filter(pc.greater_equal(claims.column("slot"), 0))
    both = placed.append_column("claimed", pa.repeat(True, placed.num_rows)).join(
        entries.append_column("there", pa.repeat(True, entries.num_rows)),
        _PLACE,
        join_type="full outer",
        right_suffix="Unit",
    )
    claimed, there = both.column("claimed").is_valid(), both.column("there").is_valid()
    check.pairs(both.filter(pc.and_(claimed, there)))
    check.entries(both.filter(pc.invert(claimed)))
    check.claims(both.filter(pc.invert(there)))
    return check.findings


class _Check:
    def __init__(self, known: Known) -> None:
        self._known = known
        self.findings: list[Finding] = []
        self.offsets = np.zeros(0, np.int64)
        self._damaged = sorted(known.damaged)
        self._begins = [one.start for one in self._damaged]

    def pairs(self, both: pa.Table) -> None:
        """Entries of the right records: what else they say of them."""
        sizes = pc.not_equal(both.column("size"), both.column("sizeUnit"))
        for row in both.filter(sizes).to_pylist():
            text = f"says the record has {row['sizeUnit']} bytes; it has {row['size']}"
            self._say("unit-size", row, text)
        code = both.column("tagsCodeUnit")
        plain = pc.greater_equal(code, _FIRST_TAGS_CODE)
        tags = pc.and_(plain, pc.not_equal(code, both.column("tagsCode")))
        for row in both.filter(tags).to_pylist():
            text = f"has tags code {row['tagsCodeUnit']}; the record's is {row['tagsCode']}"
            self._say("unit-tags", row, text)

    def entries(self, entries: pa.Table) -> None:
        """Entries that no record claims."""
        for row in entries.to_pylist():
            place = row["logOffset"]
            if self._is_old(row) or self._is_damaged(place):
                continue
            at = int(np.searchsorted(self.offsets, place))
            if at < len(self.offsets) and self.offsets[at] == place:
                self._say("unit-other", row, f"names {place}, which is another message")
            else:
                self._say("unit-nowhere", row, f"names {place}, where no record begins")

    def claims(self, claims: pa.Table) -> None:
        """Records whose entry is not there."""
        late: list[dict[str, object]] = []
        deleted: dict[tuple[str, int], list[dict[str, object]]] = {}
        for row in claims.to_pylist():
            key = (row["topic"], row["queueId"])
            if self._is_old(row):
                continue
            if row["logOffset"] >= self._known.dispatched:
                late.append(row)
            elif key not in self._known.queues:
                deleted.setdefault(key, []).append(row)
            else:
                text = f"the record at {row['logOffset']} has no unit in its queue"
                self._say("record-without-unit", row, text)
        if late:
            self._say("not-dispatched", late[0], f"{len(late)} records have no unit yet", len(late))
        for rows in deleted.values():
            text = f"{len(rows)} records of a queue without files"
            self._say("queue-deleted", rows[0], text, len(rows))

    def _is_old(self, row: Mapping[str, object]) -> bool:
        """Whether it is of a time before the queue's numbering began anew."""
        restart = self._known.restarts.get((str(row["topic"]), int(str(row["queueId"]))), 0)
        return int(str(row["logOffset"])) < restart

    def _is_damaged(self, place: int) -> bool:
        at = int(np.searchsorted(self._begins, place, side="right")) - 1
        return at >= 0 and place < self._damaged[at].end

    def _say(self, kind: str, row: Mapping[str, object], what: str, count: int = 1) -> None:
        place = (row["topic"], row["queueId"], row["slot"], row["logOffset"])
        self.findings.append(Finding(kind, *place, count, what))  # type: ignore[arg-type]
