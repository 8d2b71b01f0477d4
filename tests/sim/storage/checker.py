"""The invariants of docs/reliability.md 5 that can be seen in one store after a crash.

Judges an `Outcome` by what the history says must, may and must not be there. Each function returns
sentences; no sentence, no fault. I11 to I14 concern other parts, I10 is what the marks in the
history are: a message counts as acknowledged from the moment the store said so, and a crash is
tried at that very moment.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.sim.disk.crash_model import State
from tests.sim.storage.history import Expected, Queue, Sent
from tests.sim.storage.raw_store import (
    BLANK,
    BLANK_HEAD,
    RawLog,
    RawUnit,
    checkpoint_times,
    key_hash,
    offsets_file,
    parse_index,
    parse_log,
    parse_queues,
    stored_entries,
)
from tests.sim.storage.recovered import ROOT, Outcome, QueueView


class Fault(NamedTuple):
    """A broken invariant."""

    invariant: str
    text: str


def count_invariants(explored: Iterable[list[Fault]]) -> dict[str, int]:
    """How many of the states or lives explored broke each invariant, by the faults of each."""
    count = Counter(name for faults in explored for name in {fault.invariant for fault in faults})
    return dict(sorted(count.items()))


class DiskPlan(NamedTuple):
    """The layout of the files, as far as a checker needs it."""

    segment_bytes: int
    index_slots: int
    # The run of the machine the start belongs to; marks of the same run were never cut off.
    boot: str


def check(outcome: Outcome, expected: Expected, index_slots: int) -> list[Fault]:
    """Everything that is wrong with what a start made of a state."""
    if outcome.error is not None:
        return [Fault("I1", f"the store does not open: {outcome.error!r} {outcome.error}")]
    log = parse_log(outcome.image, ROOT, expected.damaged)
    present = [
        sent
        for sent in expected.records
        if sent.end <= log.end and sent.log_offset not in expected.damaged
    ]
    faults = list(check_log(log, outcome, expected))
    faults += check_times(log)
    faults += check_pulls(outcome, present, expected)
    faults += check_slots(outcome.image, present, expected)
    faults += check_seen(outcome, present, expected)
    faults += check_index(outcome, present, expected, index_slots)
    faults += check_again(outcome)
    faults += check_rebuilt(outcome, expected, index_slots)
    return faults


def check_disk(state: State, expected: Expected, plan: DiskPlan) -> list[Fault]:
    """I10 for marks on the disk: what they say is synced must be there before any recovery."""
    physic_ms = checkpoint_times(state, ROOT)[0]
    faults = [
        Fault("I10", f"the checkpoint says {physic_ms} is synced, message {sent.number} is not")
        for sent in _times_grow(expected.records)
        if sent.store_ms < physic_ms and not _stands(state, sent, expected, plan)
    ]
    offsets = offsets_file(state, ROOT)
    if offsets is None:
        return faults
    faults += [
        Fault("I10", f"{offsets['flushed']} is called flushed, message {sent.number} is not there")
        for sent in expected.records
        if sent.end <= offsets["flushed"] and not _stands(state, sent, expected, plan)
    ]
    kept = plan.boot == offsets["identity"]["boot_id"] and not offsets["poisoned"]
    dispatched = offsets["live" if kept else "synced"]["log_offset"]
    units = parse_queues(state, ROOT)
    keys = stored_entries(state, ROOT, plan.index_slots)
    # A start that misses one of these files does not believe the mark.
    indexed = offsets["indexed"]
    if not all(f"{ROOT}/index/{name}" in state for name in offsets["index_files"]):
        indexed = 0
    for sent in expected.records:
        queue = expected.queue_of(sent)
        if sent.end > dispatched or queue is None or sent.topic in expected.deleted:
            continue
        if units.get(queue, {}).get(sent.queue_offset, (-1,))[0] != sent.log_offset:
            faults.append(
                Fault("I10", f"{dispatched} is called dispatched, {sent.number} has no unit")
            )
        if sent.end <= indexed:
            faults += [
                Fault("I10", f"{indexed} is called indexed, {sent.number} is not")
                for key in sent.keys
                if (key_hash(sent.topic, key), sent.log_offset) not in keys
            ]
    return faults


def _times_grow(records: list[Sent]) -> Iterator[Sent]:
    """The messages that no earlier message is younger than: the checkpoint's times say nothing of
    others."""
    newest_ms = 0
    for sent in sorted(records, key=lambda sent: sent.log_offset):
        if sent.store_ms >= newest_ms:
            newest_ms = sent.store_ms
            yield sent


def stands(state: State, sent: Sent, segment_bytes: int) -> bool:
    """Whether the message is in the log of that state, whatever is before it."""
    begin = sent.log_offset // segment_bytes * segment_bytes
    data = state.get(f"{ROOT}/commitlog/{begin:020d}") or b""
    return data[sent.log_offset - begin : sent.end - begin] == sent.record


def lost_blanks(state: State, records: list[Sent], segment_bytes: int) -> list[tuple[int, int]]:
    """Where blanks would be that are not in that state's log: (log offset, end of the segment).

    A blank is between a record and the next one, which begins a segment.
    """
    ends = {sent.end for sent in records}
    following = {sent.log_offset for sent in records}
    places = [
        (end, -(-end // segment_bytes) * segment_bytes) for end in ends if end not in following
    ]
    return [
        (begin, behind)
        for begin, behind in sorted(places)
        if behind in following and not _is_blank(state, begin, behind, segment_bytes)
    ]


def _is_blank(state: State, begin: int, behind: int, segment_bytes: int) -> bool:
    segment = behind - segment_bytes
    data = state.get(f"{ROOT}/commitlog/{segment:020d}") or b""
    head = data[begin - segment : begin - segment + BLANK_HEAD.size]
    return head == BLANK_HEAD.pack(behind - begin, BLANK)


def _stands(state: State, sent: Sent, expected: Expected, plan: DiskPlan) -> bool:
    return sent.log_offset in expected.damaged or stands(state, sent, plan.segment_bytes)


def check_log(log: RawLog, outcome: Outcome, expected: Expected) -> Iterator[Fault]:
    """I1, I2, I3, I8: the log is what was sent, in that order, up to an end that is allowed."""
    sent_at = {sent.log_offset: sent for sent in expected.records}
    for record in log.records:
        sent = sent_at.get(record.log_offset)
        if sent is None:
            yield Fault("I2", f"a record at {record.log_offset} that nobody sent: {record.data!r}")
        elif sent.record != record.data and record.log_offset not in expected.damaged:
            yield Fault("I2", f"message {sent.number} at {record.log_offset} has other bytes")
    there = {record.log_offset for record in log.records}
    for sent in expected.records:
        if sent.log_offset in there or sent.log_offset in expected.damaged:
            continue
        if sent.end <= expected.must_end:
            yield Fault("I1", f"message {sent.number} at {sent.log_offset} was acked and is lost")
        elif sent.end <= log.end:
            yield Fault("I1", f"message {sent.number} at {sent.log_offset} is lost, no suffix")
    if outcome.log_end != log.end:
        yield Fault("I9", f"the store ends at {outcome.log_end}, its records at {log.end}")
    if log.stale_bytes:
        yield Fault("I9", f"{log.stale_bytes} bytes behind the log's end {log.end} are not zero")


def check_times(log: RawLog) -> Iterator[Fault]:
    """I7: store times within a segment never go back."""
    size = log.segments[1] - log.segments[0] if len(log.segments) > 1 else 1 << 62
    last: tuple[int, int] = (-1, 0)
    for record in log.records:
        segment = record.log_offset // size
        if segment == last[0] and record.store_ms < last[1]:
            yield Fault("I7", f"the store time goes back at {record.log_offset}")
        last = (segment, record.store_ms)


def check_pulls(outcome: Outcome, present: list[Sent], expected: Expected) -> Iterator[Fault]:
    """I1 to I5 as consumers see them: each message once, in order, under its offset."""
    must: dict[Queue, dict[int, Sent]] = {}
    may: dict[Queue, dict[int, list[Sent]]] = {}
    for sent in present:
        if sent.queue is not None:
            may.setdefault(sent.queue, {}).setdefault(sent.queue_offset, []).append(sent)
        if (queue := expected.queue_of(sent)) is not None:
            must.setdefault(queue, {})[sent.queue_offset] = sent
    for queue in sorted(must.keys() | outcome.queues.keys()):
        view = outcome.queues.get(queue) or QueueView(0, 0)
        wanted = must.get(queue, {})
        yield from _check_pulled(queue, view.pulled, wanted, may.get(queue, {}), expected)
        if view.max_offset <= max(wanted, default=-1):
            yield Fault("I7", f"{queue} ends at {view.max_offset}, below its last message")
        if queue in outcome.queues and outcome.next_offsets.get(queue) != view.max_offset:
            yield Fault("I3", f"{queue} numbers on at another place than its end")


def _check_pulled(
    queue: Queue,
    pulled: list[tuple[int, bytes]],
    must: dict[int, Sent],
    may: dict[int, list[Sent]],
    expected: Expected,
) -> Iterator[Fault]:
    for queue_offset, sent in must.items():
        if (queue_offset, sent.record) not in pulled:
            yield Fault("I1", f"message {sent.number} of {queue} at {queue_offset}: no pull")
    if expected.damaged:
        return  # damage that no start has read yet may be pulled as it is
    offsets = [queue_offset for queue_offset, _ in pulled]
    # Any part of the old numbering of a deleted topic may be back.
    whole = sorted(set(offsets)) if queue[0] in expected.deleted else list(range(len(offsets)))
    if offsets != whole:
        yield Fault("I4", f"{queue} pulls out of order, twice or with gaps: {offsets}")
    for queue_offset, record in pulled:
        if all(record != sent.record for sent in may.get(queue_offset, [])):
            yield Fault("I3", f"{queue} offset {queue_offset} is not the message sent there")


def check_seen(outcome: Outcome, present: list[Sent], expected: Expected) -> Iterator[Fault]:
    """I3, I10: an offset that a consumer saw names the same message, or none, for ever."""
    numbers = {sent.number: sent for sent in present}
    for seen in expected.seen:
        sent = numbers.get(seen.number)
        if sent is not None:
            continue
        if any(
            one.number == seen.number
            for one in expected.records
            if one.log_offset in expected.damaged
        ):
            continue
        yield Fault("I10", f"{seen.queue} offset {seen.queue_offset} was seen and is gone")


def check_slots(image: State, present: list[Sent], expected: Expected) -> Iterator[Fault]:
    """I5: each record of the log has exactly one slot, which names it and nothing else."""
    slots = parse_queues(image, ROOT)
    wanted: dict[Queue, dict[int, RawUnit]] = {}
    for sent in present:
        queue = expected.queue_of(sent)
        if queue is not None:
            unit = RawUnit(sent.log_offset, len(sent.record), sent.tags_code)
            wanted.setdefault(queue, {})[sent.queue_offset] = unit
    for queue in sorted(wanted.keys() | slots.keys()):
        if slots.get(queue, {}) == wanted.get(queue, {}):
            continue
        for slot, unit in sorted(wanted.get(queue, {}).items()):
            if slots.get(queue, {}).get(slot) != unit:
                yield Fault(
                    "I5", f"{queue} slot {slot} is {slots.get(queue, {}).get(slot)}, not {unit}"
                )
        if queue[0] not in expected.deleted:
            extra = slots.get(queue, {}).keys() - wanted.get(queue, {}).keys()
            for slot in sorted(extra):
                if slots[queue][slot].log_offset in expected.damaged:
                    continue
                yield Fault("I5", f"{queue} slot {slot} names what is not in the log")


def check_index(
    outcome: Outcome, present: list[Sent], expected: Expected, slots: int
) -> Iterator[Fault]:
    """Every message of the log is found by its keys, once; nothing else is indexed.

    Keys of damaged records may stay; who follows them finds nothing.
    """
    entries = _undamaged(parse_index(outcome.image, ROOT, slots), expected)
    wanted = [(key_hash(sent.topic, key), sent.log_offset) for sent in present for key in sent.keys]
    if sorted(entries) != sorted(wanted):
        missing = sorted(set(wanted) - set(entries))
        extra = sorted(set(entries) - set(wanted))
        doubled = len(entries) - len(set(entries))
        yield Fault("I6", f"index: missing {missing}, not in the log {extra}, {doubled} doubled")
    for (topic, key), hits in outcome.hits.items():
        there = {s.log_offset for s in present if s.topic == topic and key in s.keys}
        if hits - expected.damaged.keys() != there:
            yield Fault("I6", f"query {topic} {key} gives {sorted(hits)}, not {sorted(there)}")


def check_again(outcome: Outcome) -> Iterator[Fault]:
    """I9: a second start changes nothing; a clean stop counts as a start."""
    if not outcome.closed_clean:
        yield Fault("I9", "the store did not close cleanly")
    yield from _same(outcome.image, outcome.again, "a second start")
    yield from _same(outcome.image, outcome.after_cut, "a start after a power cut")


def check_rebuilt(outcome: Outcome, expected: Expected, slots: int) -> Iterator[Fault]:
    """I6: queues made again from the log equal the files; so does the index, as a set."""
    before, after = [
        {
            queue: {slot: unit for slot, unit in units.items() if unit[0] not in expected.damaged}
            for queue, units in parse_queues(image, ROOT).items()
        }
        for image in (outcome.image, outcome.rebuilt)
    ]
    for queue in sorted(before.keys() | after.keys()):
        if queue[0] not in expected.deleted and before.get(queue, {}) != after.get(queue, {}):
            yield Fault("I6", f"{queue} rebuilt from the log differs")
    index, again = [
        sorted(_undamaged(parse_index(image, ROOT, slots), expected))
        for image in (outcome.image, outcome.rebuilt)
    ]
    if index != again:
        yield Fault("I6", "the index rebuilt from the log differs")


def _undamaged(entries: list[tuple[int, int]], expected: Expected) -> list[tuple[int, int]]:
    return [entry for entry in entries if entry[1] not in expected.damaged]


def same_bytes(one: State, other: State, expected: Expected) -> list[Fault]:
    """I9: two ways through a recovery come to the same end.

    How much comes back of a topic that was deleted is not promised.
    """
    deleted = tuple(f"{ROOT}/consumequeue/{topic}" for topic in expected.deleted)
    first, second = [
        {path: data for path, data in image.items() if not path.startswith(deleted)}
        for image in (one, other)
    ]
    return list(_same(first, second, "a recovery that was interrupted"))


def _same(one: State, other: State, what: str) -> Iterator[Fault]:
    first, second = comparable(one), comparable(other)
    for name in sorted(first.keys() | second.keys()):
        if first.get(name) != second.get(name):
            yield Fault("I9", f"{what} leaves another {name}")


def comparable(image: State) -> dict[str, bytes]:
    """The files on which recoveries have to agree; index files by number, their names are times."""
    found: dict[str, bytes] = {}
    index = 0
    for path, data in sorted(image.items()):
        name = path[len(ROOT) + 1 :]
        if data is None or not name.startswith(("commitlog/", "consumequeue/", "index/")):
            continue
        if name.startswith("index/"):
            name = f"index {index}"
            index += 1
        found[name] = data
    return found
