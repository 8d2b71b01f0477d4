"""The checker itself: each invariant, broken by hand in an outcome that was sound, is reported."""

import copy
import struct
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.sim.disk.crash_model import State
from tests.sim.storage.checker import (
    DiskPlan,
    check,
    check_disk,
    check_times,
    lost_blanks,
    same_bytes,
)
from tests.sim.storage.explore import states_at
from tests.sim.storage.history import Expected, Seen, Sent
from tests.sim.storage.plans import plan_named
from tests.sim.storage.raw_store import RawLog, RawRecord
from tests.sim.storage.recovered import ROOT, Machine, Outcome, recover
from tests.sim.storage.stepped_store import SteppedClock
from tests.sim.storage.workload import Runner

PLAN = plan_named("sync")
SLOTS = PLAN.store_settings().index_slots
SEGMENT = f"{ROOT}/commitlog/{0:020d}"
ON_DISK = DiskPlan(PLAN.segment, SLOTS, "boot 1")
Case = tuple[State, Outcome, Expected]


@pytest.fixture(scope="module")
def sound() -> Case:
    """A state of a clean stop, what a start made of it, and what had to be there."""
    recorded = Runner(PLAN, 1).run()[0]
    (built,) = states_at(recorded, len(recorded.journal), ["kill"])
    keys = [(sent.topic, sent.keys[0]) for sent in built.expected.records if sent.keys][:2]
    machine = Machine(PLAN.store_settings(), SteppedClock(recorded.time_ms), recorded.boot)
    return built.state, recover(built.state, machine, keys), built.expected


@pytest.fixture
def case(sound: Case) -> Case:
    return copy.deepcopy(sound)


def found(case: Case) -> set[str]:
    """The invariants that are broken."""
    _, outcome, expected = case
    return {fault.invariant for fault in check(outcome, expected, SLOTS)}


def found_on_disk(case: Case) -> set[str]:
    state, _, expected = case
    return {fault.invariant for fault in check_disk(state, expected, ON_DISK)}


def last_queued(expected: Expected) -> Sent:
    return [sent for sent in expected.records if sent.queue][-1]


def without_last_record(case: Case) -> None:
    """Remove the last record as if it had never been there."""
    _, outcome, expected = case
    last = expected.records[-1]
    begin = last.log_offset // PLAN.segment * PLAN.segment
    path = f"{ROOT}/commitlog/{begin:020d}"
    data = bytearray(outcome.image[path] or b"")
    data[last.log_offset - begin : last.end - begin] = bytes(len(last.record))
    outcome.image[path] = bytes(data)
    outcome.log_end = last.log_offset


def overwrite(state: State, path: str, position: int, data: bytes) -> None:
    content = bytearray(state[path] or b"")
    content[position : position + len(data)] = data
    state[path] = bytes(content)


def test_a_sound_outcome_passes(case: Case) -> None:
    assert found(case) == set()
    assert found_on_disk(case) == set()
    assert len(case[2].records) > 30
    assert all(case[1].hits.values())


def test_a_store_that_does_not_open_is_a_loss(case: Case) -> None:
    case[1].error = OSError("no")
    assert found(case) == {"I1"}


def test_i1_an_acked_message_is_missing(case: Case) -> None:
    without_last_record(case)
    assert "I1" in found(case)


def test_i1_an_unacked_message_may_be_missing_from_the_end(case: Case) -> None:
    _, outcome, expected = case
    without_last_record(case)
    expected.must_end = expected.records[-1].log_offset
    assert not any(fault.text.endswith("lost") for fault in check(outcome, expected, SLOTS))


def test_i1_what_is_missing_must_be_a_suffix(case: Case) -> None:
    _, _, expected = case
    gone = expected.records[3]
    expected.must_end = 0
    expected.records.insert(4, replace(gone, number=999, log_offset=gone.log_offset + 1))
    assert "I1" in found(case)


def test_i1_an_acked_message_cannot_be_pulled(case: Case) -> None:
    _, outcome, expected = case
    last = last_queued(expected)
    assert last.queue is not None
    outcome.queues[last.queue].pulled.pop()
    assert "I1" in found(case)


def test_i2_a_record_nobody_sent(case: Case) -> None:
    del case[2].records[5]
    assert "I2" in found(case)


def test_i2_a_record_with_other_bytes(case: Case) -> None:
    sent = case[2].records[5]
    sent.record = sent.record[:-1] + b"?"
    assert "I2" in found(case)


def test_i3_a_queue_offset_names_another_message(case: Case) -> None:
    pulled = case[1].queues["Orders", 0].pulled
    pulled[0], pulled[1] = (0, pulled[1][1]), (1, pulled[0][1])
    assert "I3" in found(case)


def test_i3_numbering_goes_on_at_another_place(case: Case) -> None:
    case[1].next_offsets["Orders", 0] += 1
    assert "I3" in found(case)


def test_i4_pulls_out_of_order(case: Case) -> None:
    case[1].queues["Orders", 0].pulled.reverse()
    assert found(case) == {"I4"}


def test_i5_a_message_pulled_twice(case: Case) -> None:
    pulled = case[1].queues["Orders", 0].pulled
    pulled.append(pulled[-1])
    assert found(case) == {"I4"}


def queue_file(case: Case, sent: Sent) -> tuple[str, int]:
    """Path and position of the unit of a message among the first ten of its queue."""
    return f"{ROOT}/consumequeue/{sent.topic}/{sent.queue_id}/{0:020d}", sent.queue_offset * 20


def first_queued(case: Case) -> Sent:
    return next(sent for sent in case[2].records if sent.queue)


def test_i5_a_record_without_its_slot(case: Case) -> None:
    path, position = queue_file(case, first_queued(case))
    overwrite(case[1].image, path, position, bytes(20))
    assert "I5" in found(case)


def test_i5_a_slot_that_names_what_is_not_there(case: Case) -> None:
    path, _ = queue_file(case, first_queued(case))
    overwrite(case[1].image, path, 180, struct.pack(">qiq", 17, 100, 0))
    assert "I5" in found(case)


def test_i5_a_unit_with_another_tags_code(case: Case) -> None:
    path, position = queue_file(case, first_queued(case))
    overwrite(case[1].image, path, position + 12, b"?")
    assert "I5" in found(case)


def test_i6_queues_rebuilt_otherwise(case: Case) -> None:
    path, position = queue_file(case, first_queued(case))
    overwrite(case[1].rebuilt, path, position + 12, b"?")
    assert found(case) == {"I6"}


def index_path(image: State) -> str:
    return min(path for path in image if path.startswith(f"{ROOT}/index/"))


@pytest.mark.parametrize(("which", "broken"), [("image", {"I6", "I9"}), ("rebuilt", {"I6"})])
def test_i6_an_entry_of_the_index_is_missing(case: Case, which: str, broken: set[str]) -> None:
    image = getattr(case[1], which)
    path = index_path(image)
    slots = [at for at in range(40, 40 + 4 * SLOTS, 4) if (image[path] or b"")[at + 3]]
    overwrite(image, path, slots[0], bytes(4))
    assert found(case) == broken


def test_i6_a_query_that_finds_nothing(case: Case) -> None:
    case[1].hits = {key: set() for key in case[1].hits}
    assert found(case) == {"I6"}


def test_i7_a_store_time_that_goes_back() -> None:
    records = [RawRecord(at, b"x", "T", 0, at, 0, 100 - at) for at in range(2)]
    assert [fault.invariant for fault in check_times(RawLog(records, 0, 2, 0, [0]))] == ["I7"]
    apart = RawLog(records, 0, 2, 0, [0, 1])
    assert list(check_times(apart)) == []


def test_i7_a_queue_that_ends_below_its_last_message(case: Case) -> None:
    view = case[1].queues["Orders", 0]
    view.max_offset -= 1
    assert {"I3", "I7"} == found(case)


def test_i8_more_is_lost_than_was_damaged(case: Case) -> None:
    _, outcome, expected = case
    damaged = expected.records[4]
    overwrite(outcome.image, SEGMENT, damaged.log_offset, bytes(8))
    expected.damaged = {damaged.log_offset: damaged.end}
    # Only it may be gone; here a neighbour is, too.
    neighbour = expected.records[5]
    overwrite(outcome.image, SEGMENT, neighbour.log_offset, bytes(8))
    assert "I1" in found(case)


@pytest.mark.parametrize("which", ["again", "after_cut"])
def test_i9_a_second_start_changes_something(case: Case, which: str) -> None:
    overwrite(getattr(case[1], which), SEGMENT, 10, b"?")
    assert found(case) == {"I9"}


def test_i9_stale_bytes_behind_the_end(case: Case) -> None:
    path = max(path for path in case[1].image if "/commitlog/" in path)
    overwrite(case[1].image, path, PLAN.segment - 3, b"?")
    assert "I9" in found(case)


def test_i9_a_clean_stop_that_was_none(case: Case) -> None:
    case[1].closed_clean = False
    assert found(case) == {"I9"}


def test_a_blank_that_is_gone_is_named(case: Case) -> None:
    state, _, expected = case
    before, after = next(
        (one, other)
        for one, other in pairwise(expected.records)
        if other.log_offset == PLAN.segment and one.end < other.log_offset
    )
    assert lost_blanks(state, expected.records, PLAN.segment) == []
    overwrite(state, SEGMENT, before.end, bytes(8))
    assert lost_blanks(state, expected.records, PLAN.segment) == [(before.end, after.log_offset)]


def test_i9_two_recoveries_that_differ(case: Case) -> None:
    other = dict(case[1].image)
    assert same_bytes(case[1].image, other, case[2]) == []
    overwrite(other, SEGMENT, 10, b"?")
    assert [fault.invariant for fault in same_bytes(case[1].image, other, case[2])] == ["I9"]


def test_i10_a_message_that_was_seen_is_gone(case: Case) -> None:
    case[2].seen.append(Seen(0, ("Orders", 0), 99, 999))
    assert found(case) == {"I10"}


@pytest.mark.parametrize("mark", ["dispatched", "flushed", "indexed"])
def test_i10_a_mark_ahead_of_what_is_there(case: Case, mark: str) -> None:
    state = case[0]
    path, position = queue_file(case, first_queued(case))
    places = {
        "dispatched": (path, position, 20),
        "flushed": (SEGMENT, 0, 8),
        "indexed": (index_path(state), 300, 60),
    }
    path, position, size = places[mark]
    overwrite(state, path, position, bytes(size))
    assert found_on_disk(case) == {"I10"}
    assert mark in " ".join(fault.text for fault in check_disk(state, case[2], ON_DISK))
