"""The findings of an audit: kinds, rows, and one finding for one fault.

A single fault shows in several places: a record whose queue id was changed leaves a hole in one
queue, is out of place in another, and the entry that names it is wrong. `without_symptoms` keeps
what says most and drops what follows from it, so that the report counts faults, not symptoms.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from aerobee.store.inspect.finding_kinds import Level


class FindingKind(NamedTuple):
    """A class of findings: what it means."""

    level: Level
    meaning: str


KINDS: Final = {
    "record-damaged": FindingKind(
        Level.DAMAGE, "the message cannot be read, or is not what was stored"
    ),
    "queue-offset": FindingKind(
        Level.DAMAGE, "a record's number does not fit its place in its queue"
    ),
    "queue-gap": FindingKind(
        Level.DAMAGE, "numbers of a queue are missing, and no damage explains it"
    ),
    "queue-repeat": FindingKind(Level.DAMAGE, "numbers of a queue were given twice"),
    "unit-nowhere": FindingKind(
        Level.DAMAGE, "a consume queue entry names a place without a record"
    ),
    "unit-other": FindingKind(
        Level.DAMAGE, "a consume queue entry names another message than its own"
    ),
    "unit-size": FindingKind(
        Level.DAMAGE, "a consume queue entry has another size than its record"
    ),
    "unit-tags": FindingKind(
        Level.DAMAGE, "an entry has a wrong tags code: filters miss the message"
    ),
    "record-without-unit": FindingKind(Level.DAMAGE, "consumers never see the message"),
    "key-twice": FindingKind(
        Level.WARNING, "one unique key in two messages: a producer sent it again"
    ),
    "queue-restart": FindingKind(Level.NOTE, "numbering began anew; the topic was deleted before"),
    "queue-deleted": FindingKind(
        Level.NOTE, "records of a queue that has no files; it was deleted"
    ),
    "not-dispatched": FindingKind(Level.NOTE, "records at the end of the log have no entry yet"),
}


class Finding(NamedTuple):
    """One row of an audit. `amount` is how many slots, entries or records it stands for."""

    kind: str
    topic: str | None
    queue_id: int | None
    slot: int | None
    log_offset: int | None
    amount: int
    what: str

    @property
    def level(self) -> Level:
        """The level of its kind."""
        return KINDS[self.kind].level


FINDINGS_DDL: Final = (
    "kind string, topic string, queueId int, queueOffset bigint, commitLogOffset bigint, "
    "amount bigint, what string"
)

_OUT_OF_PLACE = ("queue-offset", "queue-repeat")
_ENTRY_KINDS = ("unit-nowhere", "unit-other", "unit-size", "unit-tags")


def without_symptoms(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that no other explains; ordered by kind, queue and place."""
    found = list(dict.fromkeys(findings))
    symptoms = _Symptoms(found)
    return sorted([one for one in found if not symptoms.has(one)], key=_order)


class _Symptoms:
    """Recognises findings that follow from another finding."""

    def __init__(self, findings: list[Finding]) -> None:
        self._out_of_place = {one.log_offset for one in findings if one.kind in _OUT_OF_PLACE}
        others = [one for one in findings if one.kind == "unit-other"]
        # Places where entries name a record that says it is another: that record may be the fault.
        self._named = {one.log_offset for one in others}
        self._named_by = {_slot(one) for one in others}
        # Slots that such a record claims besides their own messages.
        self._doubly = {
            (_slot(one), one.log_offset)
            for one in findings
            if one.kind == "record-without-unit" and one.log_offset in self._named
        }
        self._doubled = {slot for slot, _ in self._doubly}
        self._with_entry = {_slot(one) for one in findings if one.kind in _ENTRY_KINDS}

    def has(self, one: Finding) -> bool:
        """Whether the finding follows from another."""
        place = one.log_offset
        if one.kind in ("unit-other", "unit-tags"):
            return place in self._out_of_place
        if one.kind == "record-without-unit":
            changed = place in self._out_of_place or place in self._named
            return changed or _slot(one) in self._with_entry
        if one.kind == "queue-repeat":
            is_other = _slot(one) in self._doubled and (_slot(one), place) not in self._doubly
            return one.amount == 1 and is_other
        if one.kind == "queue-gap":
            return place in self._named or self._all_named(one)
        return False

    def _all_named(self, gap: Finding) -> bool:
        """Whether each slot of the gap has an entry that leads to another message."""
        assert gap.slot is not None
        if gap.amount > len(self._named_by):
            return False
        slots = range(gap.slot, gap.slot + gap.amount)
        return all((gap.topic, gap.queue_id, slot) in self._named_by for slot in slots)


def _slot(one: Finding) -> tuple[str | None, int | None, int | None]:
    return one.topic, one.queue_id, one.slot


def _order(one: Finding) -> tuple[int, str, int, int]:
    place = one.log_offset if one.slot is None else one.slot
    return list(KINDS).index(one.kind), one.topic or "", one.queue_id or 0, place or 0
