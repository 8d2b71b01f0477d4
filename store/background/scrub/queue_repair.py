"""Judges and repairs the differences that the scrub found, for the owner of the consume queues.

An entry is repaired only if it names no record that names it back, and the record that claims its
slot lies between those of the nearest sound entries on both sides. So a record of a topic that was
deleted and used again gets no slot of the new numbering, nor does a record whose queue offset a
flipped bit has changed. Where a queue begins there is no neighbour before, and an old numbering may
fit as well: a claim there waits until a whole pass has shown which other records claim the slot.
The last claim in the log wins.

Wrong places of the index are repaired here too: its entries, links and slots follow from the log
and from each other, and each is written only while it is still as it was found.

When all differences in a segment are repaired, or turned out to be in order, and no record in it
was damaged, its reads need no check any more.

Threads: findings come in on the scrub's thread; the store's caller does the rest, a few
milliseconds at a time.
"""

import logging
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aerobee.store.background.scrub.entry_scrub import Orphan, is_same
from aerobee.store.disk.files import is_full
from aerobee.store.flush.offsets_keeper import OffsetsKeeper
from aerobee.store.flush.services import ConsumeQueueFlushService
from aerobee.store.index.index_file import IndexFile, WrongEntry, WrongLink, WrongSlot
from aerobee.store.index.index_service import IndexService
from aerobee.store.log.scan.sequence import Gap, Run, nearest_sound
from aerobee.store.log.store_core import StoreCore
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.queue_view import ENTRY, PRE_BLANK, PRE_BLANK_SIZE, QueueEntry
from aerobee.store.reading.damage import DamageKind, DamageReports, ScrubRequests, Verdict
from aerobee.store.segments.mapped_file import MappedFile

log = logging.getLogger("aerobee.store.background.scrub")

# One call's share of the caller's time.
_TURN_S = 0.003
# Slots in which a sound neighbour is looked for: a damaged page holds 205 entries.
_NEIGHBOURS = 512
_MOST_HELD = 65_536


@dataclass(slots=True)
class Findings:
    """Differences and damage in a segment that had this `unchecked_below`.

    `complete`: all of it could be compared. `in_pass`: the other segments are read as well.
    """

    segment: MappedFile
    unchecked_below: int
    runs: list[tuple[ConsumeQueue, Run]]
    orphans: list[Orphan]
    gaps: list[Gap]
    complete: bool
    in_pass: bool


class IndexFindings(NamedTuple):
    """Wrong entries, links and slots of an index file."""

    file: IndexFile
    wrong: Sequence[WrongEntry | WrongLink | WrongSlot]


class QueueRepair:
    """Repairs the entries that findings show to be wrong, and reports those that it may not repair.

    Records in the gaps that `offsets` knows are not believed. `flusher` syncs the files of repaired
    entries: no start after a kill would do that.
    """

    def __init__(
        self,
        *,
        core: StoreCore,
        index: IndexService | None,
        damage: DamageReports,
        offsets: OffsetsKeeper,
        flusher: ConsumeQueueFlushService,
        requests: ScrubRequests,
    ) -> None:
        self._segments = core.segments
        self._queues = core.queues
        self._index = index
        self._damage = damage
        self._health = core.health
        self._stats = core.stats
        self._clock = core.clock
        self._offsets = offsets
        self._flusher = flusher
        self._judge = damage.judge
        # None: a pass over the whole log has ended.
        self._findings: deque[Findings | IndexFindings | None] = deque()
        self._work: Iterator[None] | None = None
        self._held: dict[tuple[ConsumeQueue, int], Run] = {}
        # The last result of `_after`: a queue, the range of slots it holds for, and the result.
        self._last_after: tuple[ConsumeQueue | None, int, int, int | None] = (None, 0, 0, None)
        self._requests = requests

    def take(self, findings: Findings | IndexFindings | None) -> None:
        """Resolve this at one of the next turns; None: a whole pass has ended. Any thread."""
        self._findings.append(findings)

    def repair(self) -> int:
        """Resolve findings, for a few milliseconds at most; return how many entries were repaired.

        The store's caller calls it again and again. It is cheap when there is nothing to do, and
        does not raise: a queue that cannot be written breaks the store, as when dispatching.
        """
        if self._work is None and not self._findings:
            return 0
        before = self._stats.repaired_entries
        end = self._clock.monotonic() + _TURN_S
        try:
            while self._step() and self._clock.monotonic() < end:
                pass
        except OSError as error:
            self._work = None
            if not is_full(error):
                self._health.poison("mending consume queues", error)
        return self._stats.repaired_entries - before

    def _step(self) -> bool:
        if self._work is None:
            if not self._findings or self._health.broken is not None:
                return False
            findings = self._findings.popleft()
            if isinstance(findings, IndexFindings):
                self._work = self._repair_index(findings)
            else:
                self._work = self._resolve_held() if findings is None else self._resolve(findings)
        if next(self._work, self) is self:
            self._work = None
        return True

    def _repair_index(self, findings: IndexFindings) -> Iterator[None]:
        repaired = 0
        for wrong in findings.wrong:
            assert self._index is not None
            repaired += self._index.repair(findings.file, wrong)
            yield
        if repaired:
            self._flusher.hurry()
            log.warning("index entries mended path=%s places=%d", findings.file.path, repaired)

    # --- one segment ------------------------------------------------------------------------

    def _resolve(self, findings: Findings) -> Iterator[None]:
        segment = findings.segment
        resolved = findings.complete and not findings.gaps
        repaired = self._stats.repaired_entries
        for queue, run in findings.runs:
            resolved &= yield from self._resolve_run(queue, run)
        for orphan in findings.orphans:
            resolved &= self._report_orphan(orphan, findings.gaps)
            yield
        repaired = self._stats.repaired_entries - repaired
        if repaired:
            self._flusher.hurry()
            log.warning("queue entries mended segment=%s units=%d", segment.path, repaired)
        if resolved and segment.unchecked_below == findings.unchecked_below:
            segment.unchecked_below = 0
        if self._held and not findings.in_pass:
            self._requests.ask_pass()

    def _resolve_run(self, queue: ConsumeQueue, run: Run) -> Generator[None, None, bool]:
        if self._is_other_numbering(queue, run):
            return True
        resolved = True
        for claim in run.parts(1):
            resolved &= self._resolve_claim(queue, claim)
            yield
        return resolved

    def _is_other_numbering(self, queue: ConsumeQueue, run: Run) -> bool:
        """Whether the slots belong to later messages, after the topic was deleted.

        It looks at both ends only, because there may be millions of such slots.
        """
        first, last = run.first, run.end - 1
        begins, ends = queue.entry(first), queue.entry(last)
        return (
            last > first
            and begins is not None
            and ends is not None
            and run.part(last, run.end).log_offset < begins.log_offset < ends.log_offset
            and self._judge.is_sound(queue, first, begins)
            and self._judge.is_sound(queue, last, ends)
        )

    def _resolve_claim(self, queue: ConsumeQueue, claim: Run) -> bool:
        """Repair the slot if it has to be and may be; return whether it is in order now."""
        slot, log_offset = claim.first, claim.log_offset
        found = queue.read_entries(slot, 1)
        if not self._is_wrong(queue, claim, found):
            return True
        if self._segments.find(log_offset) is None or self._is_known_gap(log_offset):
            return True
        reason = f"it is {ENTRY.unpack(found)}, of its message it would be {tuple(claim.entry)}"
        verdict = Verdict(DamageKind.ENTRY, log_offset, claim.entry.end, reason)
        before, after = self._before(queue, slot), self._after(queue, slot)
        if (before is not None and before > log_offset) or (
            after is not None and after < log_offset
        ):
            return True  # the record is of an old numbering, or damaged itself
        self._damage.note(verdict, (queue.topic, queue.queue_id, slot))
        if before is None and not _is_alike(found, claim.entries):
            self._hold(queue, claim)
            return False
        self._repair_slot(queue, claim)
        return True

    def _is_wrong(self, queue: ConsumeQueue, claim: Run, found: bytes) -> bool:
        slot, expected = claim.first, claim.entry
        if self._queues.get(queue.topic, queue.queue_id) is not queue or not found:
            return False
        if not queue.first_offset <= slot < queue.max_offset:
            return False
        present = QueueEntry.parse(found)
        if is_same(queue, expected, present):
            return False
        if present.is_of_record(expected.log_offset, expected.size):
            return True
        if not 0 < present.size < PRE_BLANK_SIZE:
            return True
        # In a gap its own message is lost, whatever claims the slot now.
        return not self._is_known_gap(present.log_offset) and not self._judge.is_sound(
            queue, slot, present
        )

    def _before(self, queue: ConsumeQueue, slot: int) -> int | None:
        """Log offset of the nearest sound entry before the slot, None without one near."""
        if (queue, slot - 1) in self._held:
            return None
        slots = range(slot - 1, slot - _NEIGHBOURS, -1)
        return nearest_sound(queue, slots, self._judge.is_sound)[1]

    def _after(self, queue: ConsumeQueue, slot: int) -> int | None:
        """Log offset of the nearest sound entry after the slot. It is looked for once for many
        slots that follow each other."""
        known, first, last, log_offset = self._last_after
        if known is queue and first <= slot < last:
            return log_offset
        slots = range(slot + 1, slot + _NEIGHBOURS)
        last, log_offset = nearest_sound(queue, slots, self._judge.is_sound)
        if log_offset is None:
            last -= _NEIGHBOURS // 2  # from there on another sound entry may be near
        self._last_after = (queue, slot, last, log_offset)
        return log_offset

    def _repair_slot(self, queue: ConsumeQueue, claim: Run) -> None:
        queue.write_entries(*claim)
        if claim.first < queue.min_offset:
            queue.correct_min_offset(self._segments.min_offset)
        self._damage.forget((queue.topic, queue.queue_id, claim.first))
        self._stats.repaired_entries += 1

    def _report_orphan(self, orphan: Orphan, gaps: list[Gap]) -> bool:
        """Report an entry whose record is not there or does not name it back; False if so."""
        queue, slot, _ = orphan
        if self._queues.get(queue.topic, queue.queue_id) is not queue:
            return True
        entry = queue.entry(slot)
        verdict = None if entry is None else self._damage.judge.judge(queue, slot, entry)
        if verdict is None:
            return True
        if verdict.kind is DamageKind.UNCLEAR and not any(
            gap.start < verdict.end and verdict.start < gap.end for gap in gaps
        ):
            verdict = verdict._replace(kind=DamageKind.ENTRY)  # all records there are sound
        self._damage.note(verdict, (queue.topic, queue.queue_id, slot))
        return False

    def _is_known_gap(self, log_offset: int) -> bool:
        return any(start <= log_offset < end for start, end in self._offsets.gaps)

    # --- where queues begin -----------------------------------------------------------------

    def _hold(self, queue: ConsumeQueue, claim: Run) -> None:
        key = (queue, claim.first)
        known = self._held.get(key)
        if known is None and len(self._held) >= _MOST_HELD:
            log.error(
                "too many wrong entries to mend queue=%s advice=%s",
                queue.directory,
                "stop, move that directory away, start: it is made again from the log",
            )
            return
        if known is None or known.log_offset < claim.log_offset:
            self._held[key] = claim

    def _resolve_held(self) -> Iterator[None]:
        held, self._held = self._held, {}
        for queue, slot in sorted(held, key=lambda key: (key[0].directory, key[1])):
            claim, found = held[queue, slot], queue.read_entries(slot, 1)
            after = self._after(queue, slot)
            # A single blank is the place where the queue's own message was lost.
            lonely = found == PRE_BLANK and (queue, slot + 1) not in held
            if (
                self._is_wrong(queue, claim, found)
                and not lonely
                and (after is None or claim.log_offset < after)
            ):
                self._repair_slot(queue, claim)
                self._flusher.hurry()
                self._requests.ask(claim.log_offset)
            yield


def _is_alike(found: bytes, entry: bytes) -> bool:
    """Whether two entries name the same place, or differ in one bit."""
    size = ENTRY.unpack(found)[1]
    same_place = found[:8] == entry[:8] and 0 < size < PRE_BLANK_SIZE
    differing = int.from_bytes(found, "big") ^ int.from_bytes(entry, "big")
    return same_place or differing.bit_count() == 1
