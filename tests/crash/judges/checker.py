"""Whether what is found after a fault agrees with what clients were told (docs/reliability.md 5).

`check` returns one `Violation` for each thing wrong, with the invariant's number; an empty list is
the only good answer. A field of `Found` that is None is not judged. The rules follow Jepsen's
checker for Kafka: (topic, queue, queue offset) names one message for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from tests.crash.judges.history import FAIL, Found, History, Promise, Queue, Sent
from tests.crash.judges.records import PRE_BLANK_SIZE, Record, Unit, java_hash

# Properties that the broker adds or takes of its own account (protocol/WIRE.md 3.1).
_ADDED, _TAKEN = {"CLUSTER"}, {"WAIT"}


class Violation(NamedTuple):
    """`rule` is I1 to I10, or "config"."""

    rule: str
    text: str


# Five pages: four full ones lie in there, wherever the first begins.
_FOUR_PAGES_SURE = 5 * 4096


def check(history: History, found: Found, promise: Promise) -> list[Violation]:
    """Everything that is wrong with `found`."""
    return [
        *_acked_loss(history, found, promise),
        *_invention(history, found),
        *_order(history, found),
        *_duplicates(found),
        *_derived(found),
        *_monotone(found, promise),
        *_contained(found, promise),
        *_seen(history, found, promise),
        *_topics(history, found),
    ]


def _places(found: Found) -> dict[tuple[str, int, int], Record]:
    return {
        (topic, queue_id, one.queue_offset): one
        for (topic, queue_id), records in found.pulled.items()
        for one in records
    }


def _acked_loss(history: History, found: Found, promise: Promise) -> list[Violation]:
    there = _places(found)
    wrong: list[Violation] = []
    lost: list[Sent] = []
    young: list[Sent] = []
    for one in history.acked():
        record = there.get(one.place)
        if promise.expiry and one.log_offset < found.log_start:
            continue
        if record is not None and record.body == one.body:
            if record.log_offset != one.log_offset:
                text = f"{one.name} was stored at {one.log_offset}, is at {record.log_offset}"
                wrong.append(Violation("I3", text))
            continue
        if record is not None:
            text = f"{one.name}: its offset {one.queue_offset} names another message"
            wrong.append(Violation("I3", text))
        is_behind = found.log_end is not None and one.log_offset >= found.log_end
        may_go = is_behind or (promise.holes and found.gaps)
        (young if may_go and not promise.durable else lost).append(one)
    newest = max(history.acked(), key=lambda one: one.log_offset, default=None)
    if promise.expiry and newest is not None and newest.log_offset < found.log_start:
        lost.append(newest)  # the segment that is written to never expires
    if len(lost) > promise.damaged:
        wrong += [Violation("I1", f"{one.name} was acked and is gone") for one in lost]
    return wrong + _beyond_bound(history, young, promise)


def _beyond_bound(history: History, young: list[Sent], promise: Promise) -> list[Violation]:
    """Messages that ASYNC_FLUSH lost must have been acked within the flush interval's bound."""
    if not young:
        return []
    first = min(young, key=lambda one: one.log_offset)
    # It was promised to be synced a loss bound after this much stood behind it.
    followers = [
        one.at
        for one in history.acked()
        if one.log_offset - first.log_offset >= _FOUR_PAGES_SURE and one.at
    ]
    wrong = []
    for since, bound in ((first.at, promise.tail_s), *((at, promise.loss_s) for at in followers)):
        down = min(promise.down[1], promise.cut_at) - max(promise.down[0], since)
        age = promise.cut_at - since - max(down, 0.0)
        if age > bound:
            text = f"{first.name} was lost {age:.3f} s after it should have begun, {bound} allowed"
            wrong.append(Violation("I1", text))
            break
    return wrong


def _invention(history: History, found: Found) -> list[Violation]:
    known = {one.body: one for one in history.sends}
    wrong: list[Violation] = []
    for record in _all_records(found):
        sent = known.get(record.body)
        where = f"{record.topic}/{record.queue_id}/{record.queue_offset} at {record.log_offset}"
        if sent is None:
            wrong.append(Violation("I2", f"{where} holds a body that nobody sent"))
        elif sent.outcome == FAIL:
            wrong.append(Violation("I2", f"{where} holds {sent.name}, which was refused"))
        elif (sent.topic, sent.queue_id) != (record.topic, record.queue_id):
            wrong.append(Violation("I2", f"{where} holds {sent.name}"))
        elif not _same_properties(sent.properties, record.properties):
            wrong.append(Violation("I2", f"{where}: {sent.name} has other properties"))
    return wrong


def _all_records(found: Found) -> Iterable[Record]:
    for records in found.pulled.values():
        yield from records
    yield from found.records or ()


def _same_properties(sent: dict[str, str], stored: bytes) -> bool:
    parts = [pair.partition("\1") for pair in stored.decode("utf-8", "replace").split("\2") if pair]
    if not all(between for _, between, _ in parts):
        return False  # a torn record: its end is zeros
    is_kept = {key: value for key, _, value in parts if key not in _ADDED}
    return is_kept == {key: value for key, value in sent.items() if key not in _TAKEN}


def _order(history: History, found: Found) -> list[Violation]:
    acked = {one.body: one for one in history.acked()}
    wrong: list[Violation] = []
    for queue, records in found.pulled.items():
        offsets = [one.queue_offset for one in records]
        low, high = found.ranges.get(queue, (0, 0))
        if not found.gaps and offsets != list(range(low, high)):
            text = f"{queue} has offsets {low}..{high - 1}, pulls gave {_short(offsets)}"
            wrong.append(Violation("I4", text))
        last: dict[int, int] = {}
        for record in records:
            sent = acked.get(record.body)
            if sent is not None:
                if sent.sequence < last.get(sent.producer, -1):
                    wrong.append(Violation("I4", f"{sent.name} stands behind a later one"))
                last[sent.producer] = sent.sequence
    return wrong


def _short(numbers: list[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:20])
    return f"[{shown}{', ...' if len(numbers) > 20 else ''}]"


def _duplicates(found: Found) -> list[Violation]:
    wrong: list[Violation] = []
    pulled = Counter(one.body for records in found.pulled.values() for one in records)
    stored = Counter(one.body for one in found.records or ())
    for what, counts in (("pulls", pulled), ("log", stored)):
        wrong += [
            Violation("I5", f"the {what} hold {body[:20]!r} {count} times")
            for body, count in counts.items()
            if count > 1
        ]
    slots = Counter((one.topic, one.queue_id, one.queue_offset) for one in found.records or ())
    wrong += [
        Violation("I3", f"{count} records of the log claim slot {slot}")
        for slot, count in slots.items()
        if count > 1
    ]
    return wrong


def _derived(found: Found) -> list[Violation]:
    """Queues and index must be what the log makes them."""
    wrong: list[Violation] = []
    if found.records is not None and found.units is not None:
        expected: dict[Queue, dict[int, Unit]] = {}
        for one in found.records:
            unit = (one.log_offset, one.size, java_hash(one.property("TAGS")))
            expected.setdefault((one.topic, one.queue_id), {})[one.queue_offset] = unit
        for queue in expected.keys() | found.units.keys():
            wrong += _differing_units(
                queue, expected.get(queue, {}), found.units.get(queue, {}), found
            )
    for (topic, key), offsets in (found.hits or {}).items():
        right = [
            one.log_offset
            for one in found.records or ()
            if one.topic == topic and one.property("UNIQ_KEY") == key
        ]
        if sorted(offsets) != right:
            wrong.append(Violation("I6", f"key {key} finds {offsets}, the log has {right}"))
    return wrong


def _differing_units(
    queue: Queue, expected: dict[int, Unit], units: dict[int, Unit], found: Found
) -> list[Violation]:
    wrong: list[Violation] = []
    for offset in sorted(expected.keys() | units.keys()):
        right, unit = expected.get(offset), units.get(offset)
        if unit == right:
            continue
        if right is None and unit is not None:
            is_expired = unit[0] < found.log_start
            is_blank = unit[1] == PRE_BLANK_SIZE and found.gaps
            if is_expired or is_blank:
                continue
        wrong.append(Violation("I6", f"slot {queue}/{offset} has {unit}, the log says {right}"))
    return wrong


def _monotone(found: Found, promise: Promise) -> list[Violation]:
    wrong: list[Violation] = []
    size = promise.segment_bytes
    for before, after in pairwise(found.records or ()):
        is_same_file = size and before.log_offset // size == after.log_offset // size
        if is_same_file and after.store_ms < before.store_ms:
            text = f"store time goes back from {before.store_ms} to {after.store_ms} at "
            wrong.append(Violation("I7", text + str(after.log_offset)))
    for queue, offset in found.committed.items():
        end = found.ranges.get(queue, (0, 0))[1]
        if promise.commits and offset > end:
            wrong.append(Violation("I7", f"{queue}: offset {offset} committed, it ends at {end}"))
    return wrong


def _contained(found: Found, promise: Promise) -> list[Violation]:
    if found.gaps > promise.damaged and not promise.holes:
        text = f"{found.gaps} gaps reported, {promise.damaged} records were damaged"
        return [Violation("I8", text)]
    return []


def _seen(history: History, found: Found, promise: Promise) -> list[Violation]:
    """No consumer saw what the fault could take back."""
    if not promise.durable:
        return []
    there = _places(found)
    wrong: list[Violation] = []
    for one in history.seen:
        low = found.ranges.get((one.topic, one.queue_id), (0, 0))[0]
        if promise.expiry and one.queue_offset < low:
            continue
        record = there.get((one.topic, one.queue_id, one.queue_offset))
        where = f"{one.topic}/{one.queue_id}/{one.queue_offset}"
        if record is None:
            wrong.append(Violation("I10", f"a consumer saw {where}, which is gone"))
        elif record.body != one.body:
            wrong.append(Violation("I3", f"a consumer saw another message at {where}"))
    return wrong


def _topics(history: History, found: Found) -> list[Violation]:
    if found.topics is None:
        return []
    return [
        Violation("config", f"topic {name} was answered for and is not in topics.json")
        for name in history.topics
        if name not in found.topics
    ]


def differing(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> list[Violation]:
    """I9: two runs of recovery must leave the same bytes."""
    return [
        Violation("I9", f"{name} is not the same after a second recovery")
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]
