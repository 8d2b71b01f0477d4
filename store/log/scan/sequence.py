"""Judges which slot a record read from the log may have, because nothing guards its number.

The CRC covers a record's body only. A flipped bit in its topic, queue id or queue offset leaves a
record that looks sound and claims a slot that is not its own; believing it would displace a good
message, or fill a disk with slots up to a number that never was. But numbers of a queue follow each
other in the log, so a claim is believed if one of these holds:
- it is in sequence;
- the queue's own entry agrees with it;
- it goes on from entries whose records are later than those of the entries that it displaces (a new
  numbering whose first records are damaged);
- the records known to be lost explain what is missing;
- the next record of the queue goes on from it.
A single claim that none of this supports is set aside: reported as damage, its slot kept free.

Numbers that begin anew, as they do when a topic was deleted and used again, come in sequence too,
and the old numbering gives way to them. Where the log offset is known from which on this may happen
(`renumbered`), lost records explain a first number there that is not 0.

A queue whose end lies before the place where reading began misses entries that were not read;
`Lagging` says from where to read again. A queue without any file, whose first number would be 0,
misses them too, unless all former queues are known to be there (`complete`). With `read_from` None
everything is believed: this process has written the records a moment ago (a reput that is late).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from aerobee.protocol.message.record_layout import MIN_RECORD_BYTES
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.queue_view import ENTRY, ENTRY_BYTES, PRE_BLANK_SIZE, QueueEntry

# Slots that may be missing for a reason that nobody noticed, a flipped transaction bit for example.
_SLACK = 16
# The distance from an entry up to which a sound entry is looked for.
_NEIGHBOURS = 5


class Run(NamedTuple):
    """Records that claim slots without a gap between them: the first slot, and their entries."""

    first: int
    entries: bytes

    @property
    def length(self) -> int:
        """How many records claim a slot."""
        return len(self.entries) // ENTRY_BYTES

    @property
    def end(self) -> int:
        """The slot after the last claimed slot."""
        return self.first + self.length

    @property
    def entry(self) -> QueueEntry:
        """The entry of the first record."""
        return QueueEntry.parse(self.entries)

    @property
    def log_offset(self) -> int:
        """The log offset of the first record."""
        return self.entry.log_offset

    @property
    def log_end(self) -> int:
        """Log offset after the last record."""
        return QueueEntry.parse(self.entries, len(self.entries) - ENTRY_BYTES).end

    def part(self, low: int, high: int) -> "Run":
        """Its claims to slots of [low, high)."""
        low = max(low, self.first)
        begin, end = low - self.first, max(low, high) - self.first
        return Run(low, self.entries[begin * ENTRY_BYTES : end * ENTRY_BYTES])

    def parts(self, most: int) -> "Iterator[Run]":
        """All of it, in parts of at most `most` claims."""
        for low in range(self.first, self.end, most):
            yield self.part(low, low + most)


def runs_of(offsets: list[int], entries: bytes) -> list[Run]:
    """The runs of one queue's claims in log order; `entries` has one entry for each offset."""
    first = offsets[0]
    if offsets == list(range(first, first + len(offsets))):
        return [Run(first, entries)]
    runs: list[Run] = []
    start = 0
    for position in range(1, len(offsets) + 1):
        if position == len(offsets) or offsets[position] != offsets[position - 1] + 1:
            part = entries[start * ENTRY_BYTES : position * ENTRY_BYTES]
            runs.append(Run(offsets[start], part))
            start = position
    return runs


class Gap(NamedTuple):
    """Log offsets [start, end) that hold no usable record, and why."""

    start: int
    end: int
    reason: str

    @property
    def records(self) -> int:
        """How many records may have been there, at most."""
        return max(1, (self.end - self.start) // MIN_RECORD_BYTES)


class Lagging(Exception):
    """A queue misses slots before a record: reading has to begin at `log_offset` instead."""

    def __init__(self, log_offset: int) -> None:
        super().__init__(log_offset)
        self.log_offset = log_offset


#: Whether the record that an entry names is there and names the entry back: (queue, offset, entry).
Sound = Callable[[ConsumeQueue, int, QueueEntry], bool]


#: Whether the record at a log offset has this queue as its own, not as a further one.
Owner = Callable[[ConsumeQueue, int], bool]


def nearest_sound(queue: ConsumeQueue, slots: range, sound: Sound) -> tuple[int, int | None]:
    """(slot where the search through `slots` ended, log offset that its sound entry names).

    The log offset is None if no slot has a sound entry; the search does not leave the queue.
    """
    for slot in slots:
        if not queue.first_offset <= slot < queue.max_offset:
            return slot, None
        entry = queue.entry(slot)
        if entry is not None and sound(queue, slot, entry):
            return slot, entry.log_offset
    return slots.stop, None


def nothing_is_sound(_queue: ConsumeQueue, _offset: int, _entry: QueueEntry) -> bool:
    """Call no entry sound, for readers of records that need no judgement."""
    return False


@dataclass(slots=True)
class _State:
    """The state of a queue in a scan: whether it had nothing before the scan, the number expected
    next, a claim that waits for its successor, the slot and log offset of the last entry whose
    record is later than the record that claims its slot, and the log offset after the last record
    that was believed."""

    rebuilt: bool
    expected: int | None = None
    suspect: Run | None = None
    later: tuple[int, int] | None = None
    log_end: int = -1


class Sequences:
    """Gives the records of one scan their slots. `sound` judges entries that stand in the way;
    `renumbered` are topics whose queues were taken out, with the log's end at that time."""

    def __init__(
        self,
        read_from: int | None,
        log_min: int,
        sound: Sound,
        owns: Owner = lambda _queue, _log_offset: True,
        *,
        complete: bool = True,
        renumbered: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._read_from = read_from
        self._log_min = log_min
        self._sound = sound
        self._owns = owns
        self._complete = complete
        self._renumbered = renumbered
        self._states: dict[ConsumeQueue, _State] = {}
        # Records that are known to be missing so far; the owner of the scan adds its gaps.
        self.lost = 0
        self.strays: list[Gap] = []
        # Claims to further queues that are not believed; their records stay what they are.
        self.further_strays = 0
        self.written = 0
        self.conflicts = 0

    def feed(self, queue: ConsumeQueue, offsets: list[int], entries: bytes) -> None:
        """The queue's next claims in log order, with an entry each. Raises OSError or Lagging."""
        self.feed_runs(queue, runs_of(offsets, entries))

    def feed_runs(self, queue: ConsumeQueue, runs: Iterable[Run]) -> None:
        """Do `feed` for claims that are runs already."""
        state = self._states.get(queue)
        if state is None:
            state = self._states[queue] = _State(queue.max_offset == 0)
        for run in runs:
            self._run(queue, state, run)

    def finish(self) -> None:
        """End the scan: decide on claims that nothing followed. Raises OSError or Lagging."""
        for queue, state in self._states.items():
            claim = state.suspect
            if claim is None:
                continue
            state.suspect = None
            self._check_lag(queue, claim.first)
            if self._likely(queue, state, claim):
                self._accept(queue, state, claim)
            else:
                self._set_aside(queue, claim)

    def _run(self, queue: ConsumeQueue, state: _State, run: Run) -> None:
        if run.first > run.log_offset // MIN_RECORD_BYTES:
            # The log before it has no room for that number of records. Two damaged alike follow
            # each other, and slots up to their number would fill the disk.
            for one in run.parts(1):
                self._set_aside(queue, one)
            return
        if run.first < queue.max_offset or run.first != state.expected:
            run = self._without_displaced(queue, run)
            if not run.entries:
                return
        suspect = state.suspect
        if suspect is not None:
            state.suspect = None
            if run.first == suspect.first + 1:
                run = Run(suspect.first, suspect.entries + run.entries)
            elif self._is_first_of(state, suspect, run):
                self._accept(queue, state, suspect)
            else:
                self._set_aside(queue, suspect)
        if self._is_double(queue, state, run):
            self._set_aside(queue, run)
            run = run.part(run.first + 1, run.end)
        if run.length > 1 or self._read_from is None or self._in_place(queue, state, run):
            self._accept(queue, state, run)
        else:
            state.suspect = run

    def _is_first_of(self, state: _State, claim: Run, following: Run) -> bool:
        """Whether the first claim of a queue made anew is to be believed because of the next one.

        Nothing tells its expected number: the beginning of the log may have been deleted. But the
        next claim goes on from it, if lost records explain the missing numbers in between.
        """
        if not state.rebuilt or state.expected is not None:
            return False
        return 0 < following.first - claim.end <= self.lost

    def _without_displaced(self, queue: ConsumeQueue, run: Run) -> Run:
        """The run without the first records that the queue's own entries name in other slots.

        Neighbours that are damaged alike, by a bit that is stuck somewhere on their way, follow
        each other like those of a new numbering. But a new numbering's entries name its records.
        """
        while self._read_from is not None and run.entries and self._is_displaced(queue, run):
            self._set_aside(queue, run)
            run = run.part(run.first + 1, run.end)
        return run

    def _is_displaced(self, queue: ConsumeQueue, run: Run) -> bool:
        log_offset, size, _ = run.entry
        there = queue.entry(run.first)
        if there is not None and there.is_of_record(log_offset, size):
            return False
        slot = queue.first_at(log_offset)
        named = queue.entry(slot)
        if slot == run.first or named is None or not named.is_of_record(log_offset, size):
            return False
        # An entry that is wrong itself, in a file that was swapped, does not stand among sound
        # ones.
        low, high = slot - _NEIGHBOURS, slot + _NEIGHBOURS
        _, before = nearest_sound(queue, range(slot - 1, low, -1), self._sound)
        _, after = nearest_sound(queue, range(slot + 1, high), self._sound)
        if (before is None and low >= queue.first_offset) or (
            after is None and high <= queue.max_offset
        ):
            return False
        return (before is not None or after is not None) and (
            (before is None or before < log_offset) and (after is None or log_offset < after)
        )

    def _is_double(self, queue: ConsumeQueue, state: _State, run: Run) -> bool:
        """Whether the first claim is to a slot just given, and the next goes on with the sequence.

        Of two claims to one slot the first is kept, unless the queue's own entry names the second.
        For slot 0 it is a new beginning instead, of a topic that had one message. For another slot
        it is a new beginning if the topic was taken out and lost records explain the missing
        numbers.
        """
        if run.length < 2 or self._read_from is None or run.first == 0:
            return False
        if state.expected != run.first + 1 or self._may_begin_anew(queue, state, run):
            return False
        entry = queue.entry(run.first)
        return entry is None or entry.log_offset != run.log_offset

    def _in_place(self, queue: ConsumeQueue, state: _State, claim: Run) -> bool:
        expected = queue.max_offset if state.expected is None else state.expected
        if 0 <= claim.first - expected <= self.lost:
            return claim.first == expected or state.expected is not None
        if self._may_begin_anew(queue, state, claim):
            return True
        if state.later is not None:
            # The numbering began anew, and its first records are damaged: their entries say so.
            slot, log_offset = state.later
            if claim.first == slot + 1 and claim.log_offset > log_offset:
                return True
        entry = queue.entry(claim.first)
        return entry is not None and entry.log_offset == claim.log_offset

    def _may_begin_anew(self, queue: ConsumeQueue, state: _State, claim: Run) -> bool:
        """Whether the claim is the queue's first since its topic's queues were taken out, and lost
        records explain that its number is not 0."""
        taken_out_at = self._renumbered.get(queue.topic)
        if taken_out_at is None or claim.first > self.lost:
            return False
        return state.log_end <= taken_out_at <= claim.log_offset

    def _likely(self, queue: ConsumeQueue, state: _State, claim: Run) -> bool:
        """Whether to believe a single claim that nothing followed."""
        offset = claim.first
        if offset == 0 and (state.rebuilt or state.expected == queue.max_offset):
            # The claim is a first one again, after its topic was deleted: the scan has passed all
            # entries of the queue; a recovery that was broken off may have made them.
            return True
        expected = queue.max_offset if state.expected is None else state.expected
        if 0 < offset - expected <= self.lost + _SLACK:
            return True
        entry = queue.entry(offset)
        if state.expected is None and offset < queue.max_offset:
            return entry is None or not self._sound(queue, offset, entry)
        # Earlier messages may have been deleted with the beginning of the log.
        return not queue.segments and self._read_from == self._log_min > 0

    def _set_aside(self, queue: ConsumeQueue, claim: Run) -> None:
        """Do not believe the first claim of `claim`."""
        self.lost += 1
        if not self._owns(queue, claim.log_offset):
            self.further_strays += 1
            return
        self.strays.append(
            Gap(
                claim.log_offset,
                claim.entry.end,
                f"the record at {claim.log_offset} claims to be message {claim.first} of "
                f"queue {queue.queue_id} of {queue.topic}, which does not fit that queue",
            )
        )

    def _accept(self, queue: ConsumeQueue, state: _State, run: Run) -> None:
        self._check_lag(queue, run.first)
        if state.expected is None:
            begins_anew = self._read_from is None and _begins_anew(queue, run)
        else:
            begins_anew = run.first < state.expected
        if begins_anew:
            # All that the queue has from there on belongs to the old numbering.
            self.conflicts += 1
            queue.restart_at(run.first)
        self._write(queue, run)
        state.expected = run.end
        state.log_end = run.log_end

    def _check_lag(self, queue: ConsumeQueue, first: int) -> None:
        if self._read_from is None or first <= queue.max_offset:
            return
        for offset in range(queue.max_offset - 1, queue.first_offset - 1, -1):
            entry = queue.entry(offset)
            if entry is not None:
                # There is nothing to read before the log's beginning, whatever is missing.
                start = max(entry.log_offset, self._log_min)
                if start < self._read_from:
                    raise Lagging(start)
                return
        if not self._complete and not queue.segments and self._log_min < self._read_from:
            raise Lagging(self._log_min)

    def _write(self, queue: ConsumeQueue, run: Run) -> None:
        """Write the entries of the run that are not there already."""
        first, data = run
        there = b""
        if first >= queue.first_offset:
            there = queue.read_over_files(first, run.end)
        for offset, wanted, present in differences(first, data, there):
            if not present:
                queue.write_entries(offset, data[(offset - first) * ENTRY_BYTES :])
                self.written += run.end - offset
                return
            self._replace(queue, offset, wanted, present)

    def _replace(self, queue: ConsumeQueue, offset: int, wanted: bytes, present: bytes) -> None:
        """Replace an entry by another, unless it soundly names a later record."""
        entry = QueueEntry.parse(present)
        if 0 < entry.size < PRE_BLANK_SIZE:
            self.conflicts += 1
            log_offset = ENTRY.unpack(wanted)[0]
            if entry.log_offset > log_offset:
                self._states[queue].later = offset, entry.log_offset
                if self._sound(queue, offset, entry):
                    return
        queue.write_entries(offset, wanted)
        self.written += 1


def _begins_anew(queue: ConsumeQueue, run: Run) -> bool:
    """Whether a queue's first number comes with a record that is later than all that the queue has:
    on a slave, whose master deleted the topic and made it again. A single number other than 0 might
    be damaged, and does not end a numbering."""
    if run.first or not queue.max_offset:
        return False
    last = queue.last_named(queue.max_offset)
    return last is not None and last.log_offset < run.log_offset


class Difference(NamedTuple):
    """A queue offset whose entry is not the `expected` one; `found` is empty above the end."""

    offset: int
    expected: bytes
    found: bytes


def differences(first: int, expected: bytes, found: bytes) -> Iterator[Difference]:
    """The differences of the entries from the queue offset `first` on."""
    if expected == found:
        return
    for position in range(0, len(expected), ENTRY_BYTES):
        one = expected[position : position + ENTRY_BYTES]
        other = found[position : position + ENTRY_BYTES]
        if one != other:
            yield Difference(first + position // ENTRY_BYTES, one, other)
