"""The audit's rules find each planted fault, call it by its name, and say nothing else."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from aerobee.pipeline.files.directory import find_stores
from aerobee.pipeline.jobs.audit import damage_finding, damaged_places, following_records
from aerobee.pipeline.jobs.derived.cross_check import StoreFacts, cross_check
from aerobee.pipeline.jobs.derived.entries import DELAY_LEVELS, ENTRIES, derived_rows
from aerobee.pipeline.jobs.derived.findings import Finding, without_symptoms
from aerobee.pipeline.jobs.derived.numbering import (
    OffsetRun,
    check_numbering,
    collect_runs,
    restarts_of,
)
from aerobee.pipeline.jobs.derived.queue_files import queue_files, read_entries
from aerobee.store.inspect.finding_kinds import Level
from aerobee.store.log.scan.sequence import Gap
from aerobee.store.queues.delay_levels import DelayLevels
from tests.unit.pipeline.job_stores import log_rows
from tests.unit.store.at_rest import audit_support as at

LEVELS = DelayLevels(DELAY_LEVELS)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return at.make(tmp_path_factory.mktemp("audit") / "template")


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    return at.copy(template, tmp_path / "store")


def damaged_in(batches: list[pa.RecordBatch]) -> list[Gap]:
    """The damaged places of what was derived; each batch stands for a task."""
    rows = pa.Table.from_batches(batches)
    bad = rows.filter(pc.is_valid(rows.column("error"))).sort_by("logOffset")
    starts = bad.column("logOffset").to_numpy()
    following: dict[int, int] = {}
    for batch in batches:
        places = batch.filter(pc.is_null(batch.column("error"))).column("logOffset")
        for number, place in following_records(starts, places.to_numpy()):
            following[number] = min(place, following.get(number, place))
    reasons = bad.column("error").to_pylist()
    return damaged_places(list(zip(starts.tolist(), reasons, strict=True)), following)


def audit(root: Path) -> list[Finding]:
    """All the rules on one machine; the job does the same, a piece of the log at a time."""
    batches = [derived_rows(batch, LEVELS) for batch in log_rows(root)]
    expected = [
        batch.filter(pc.is_null(batch.column("error"))).select(ENTRIES.names) for batch in batches
    ]
    runs = [run for batch in expected for run in collect_runs([batch])]
    damaged = damaged_in(batches)
    numbering = check_numbering(runs, damaged)
    files = queue_files(find_stores([str(root)])[0])
    places = pa.Table.from_batches(batches).column("logOffset")
    log_min, log_end = pc.min(places).as_py(), pc.max(places).as_py() + 1
    units = pa.Table.from_batches([b for f in files for b in read_entries(f, log_min)], ENTRIES)
    within = [row for row in units.to_pylist() if row["logOffset"] < log_end]
    known = StoreFacts(
        damaged,
        restarts_of(numbering),
        frozenset((file.topic, file.queue_id) for file in files),
        max(row["logOffset"] + row["size"] for row in within),
    )
    found = [*numbering, *cross_check(pa.Table.from_batches(expected), units, known)]
    found += map(damage_finding, damaged)
    return without_symptoms(found)


def faults(root: Path) -> list[tuple[str, int | None]]:
    return [(one.kind, one.slot) for one in audit(root) if one.level is not Level.NOTE]


def test_a_sound_store_has_no_fault(root: Path) -> None:
    assert audit(root) == []


Plant = Callable[[Path, at.Stored], None]


def field(position: int, value: bytes) -> Plant:
    return lambda root, one: at.overwrite_log(root, one.log_offset + position, value)


def unit_field(make: Callable[[tuple[int, int, int]], tuple[int, int, int]]) -> Plant:
    def plant(root: Path, one: at.Stored) -> None:
        unit = make(at.unit(root, one.queue_id, one.queue_offset))
        at.set_unit(root, one.queue_id, one.queue_offset, at.UNIT.pack(*unit))

    return plant


def i32(value: int) -> bytes:
    return struct.pack(">i", value)


def i64(value: int) -> bytes:
    return struct.pack(">q", value)


PLANTS: dict[str, tuple[Plant, str]] = {
    # The record itself. Its slot is not known any more, the message at its place is damaged.
    "a bit of the body": (lambda r, o: at.flip_log(r, o.log_offset + 90), "record-damaged"),
    "the stored CRC": (field(8, i32(12345)), "record-damaged"),
    "a size of nothing": (field(0, i32(7)), "record-damaged"),
    "a size beyond the segment": (field(0, i32(1 << 30)), "record-damaged"),
    "a negative size": (field(0, i32(-1)), "record-damaged"),
    "another magic": (field(4, i32(1)), "record-damaged"),
    "another place": (field(28, i64(4)), "record-damaged"),
    "a body length too long": (field(84, i32(5000)), "record-damaged"),
    "a body length below zero": (field(84, i32(-5)), "record-damaged"),
    # Its number.
    "a number too high": (field(20, i64(500)), "queue-offset"),
    "a number given before": (field(20, i64(1)), "queue-repeat"),
    # The unit.
    "a unit of nothing": (unit_field(lambda u: (0, 0, 0)), "record-without-unit"),
    "a pre-blank unit": (unit_field(lambda u: (0, 0x7FFFFFFF, 0)), "record-without-unit"),
    "a unit into a record": (unit_field(lambda u: (u[0] + 10, u[1], u[2])), "unit-nowhere"),
    "a unit behind the end": (unit_field(lambda u: (1 << 40, u[1], u[2])), "unit-nowhere"),
    "a unit of another message": (
        lambda r, o: at.set_unit(r, o.queue_id, o.queue_offset, at.UNIT.pack(*at.unit(r, 0, 0))),
        "unit-other",
    ),
    "a unit with a wrong size": (unit_field(lambda u: (u[0], u[1] + 1, u[2])), "unit-size"),
    "a unit with a wrong tag": (unit_field(lambda u: (u[0], u[1], u[2] ^ 1)), "unit-tags"),
}
# Early, in the middle, across a segment's begin, and the last but one of a queue.
PLACES = ((0, 3), (1, 9), (2, 20), (0, 32))
CASES = [(name, *place) for name in PLANTS for place in PLACES]


# The kind and place tell a finding of this fault from others.
Fault = tuple[str, int | None, int | None]


def as_fault(kind: str, queue_id: int | None, slot: int | None, log_offset: int | None) -> Fault:
    """Faults of units have a slot, those of records a place in the log."""
    is_record = kind == "record-damaged" or kind.startswith("queue-")
    return (kind, None, log_offset) if is_record else (kind, queue_id, slot)


def plant_anywhere(root: Path, per_queue: int, count: int, dice: random.Random) -> list[Fault]:
    """Plants that many faults of all kinds at random places of a store of audit_support.make.

    Two records side by side are left alone, which would be one damaged place, and so are
    neighbours in a queue that would both say a wrong number, which no one can tell apart.
    """
    known = {
        number * at.QUEUES + queue_id: one
        for queue_id in range(at.QUEUES)
        for number, one in enumerate(at.of_queue(root, queue_id))
    }
    kinds = list(PLANTS.values())
    chosen = [kinds[place % len(kinds)] for place in range(count)]
    dice.shuffle(chosen)
    taken: dict[int, str] = {}
    # The first two of each queue stay: other faults point at them.
    numbers = list(range(2 * at.QUEUES, at.QUEUES * (per_queue - 1)))
    dice.shuffle(numbers)
    planted = []
    for plant, kind in chosen:
        number = next(one for one in numbers if _is_free(one, kind, taken))
        taken[number] = kind
        one = known[number]
        plant(root, one)
        planted.append(as_fault(kind, one.queue_id, one.queue_offset, one.log_offset))
    return planted


def _is_free(number: int, kind: str, taken: dict[int, str]) -> bool:
    if any(number + step in taken for step in (-1, 0, 1)):
        return False
    beside = [taken.get(number + step, "") for step in (-at.QUEUES, at.QUEUES)]
    return not (kind.startswith("queue-") and any(one.startswith("queue-") for one in beside))


@pytest.mark.parametrize(("name", "queue_id", "slot"), CASES)
def test_a_planted_fault_is_found_and_nothing_else(
    root: Path, name: str, queue_id: int, slot: int
) -> None:
    plant, kind = PLANTS[name]
    one = STORED[queue_id, slot]
    plant(root, one)
    found = audit(root)
    assert [finding.kind for finding in found] == [kind], found
    if kind == "record-damaged":
        assert found[0].log_offset == one.log_offset
    elif kind.startswith("queue"):
        assert (found[0].queue_id, found[0].log_offset) == (queue_id, one.log_offset)
    else:
        assert (found[0].queue_id, found[0].slot) == (queue_id, slot)


def test_fifty_faults_at_once_are_fifty_findings(root: Path) -> None:
    planted = []
    kinds = list(PLANTS.values())
    # Every other record: neighbours that are damaged are one damaged place.
    for number in range(1, at.QUEUES * at.PER_QUEUE - 2, 2):
        plant, kind = kinds[len(planted) % len(kinds)]
        plant(root, STORED[number % at.QUEUES, number // at.QUEUES])
        planted.append(kind)
    assert len(planted) == 50
    found = faults(root)
    assert sorted(kind for kind, _ in found) == sorted(planted)


def test_fifty_faults_at_random_places_are_found_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, seed: int
) -> None:
    template = at.make(tmp_path_factory.mktemp("many") / "template", 150)
    for number in range(4):
        root = at.copy(template, tmp_path / str(number))
        planted = plant_anywhere(root, 150, 50, random.Random(seed + number))
        found = [as_fault(one.kind, one.queue_id, one.slot, one.log_offset) for one in audit(root)]
        assert sorted(found, key=str) == sorted(planted, key=str), seed + number


@pytest.mark.parametrize("seed", [981456789, 1018, 1022])
def test_wrong_numbers_with_nothing_but_damage_between_them_are_each_named(
    tmp_path: Path, seed: int
) -> None:
    root = at.make(tmp_path / "store", 60)
    planted = plant_anywhere(root, 60, 50, random.Random(seed))
    found = [as_fault(one.kind, one.queue_id, one.slot, one.log_offset) for one in audit(root)]
    assert sorted(found, key=str) == sorted(planted, key=str)


STORED: dict[tuple[int, int], at.Stored] = {}


@pytest.fixture(autouse=True)
def _stored(template: Path) -> None:
    if not STORED:
        for queue_id in range(at.QUEUES):
            for one in at.of_queue(template, queue_id):
                STORED[queue_id, one.queue_offset] = one


def test_a_unit_that_names_another_message_is_one_fault(root: Path) -> None:
    other = at.UNIT.pack(*at.unit(root, 1, 6))
    at.set_unit(root, 0, 4, other)
    assert faults(root) == [("unit-other", 4)]


def test_a_record_that_says_another_queue_is_one_fault(root: Path) -> None:
    one = STORED[0, 7]
    at.overwrite_log(root, one.log_offset + 12, i32(1))
    assert len(faults(root)) == 1
    assert audit(root)[0].log_offset == one.log_offset


def test_two_records_that_say_the_same_wrong_number_are_two_faults(root: Path) -> None:
    places = [STORED[0, slot].log_offset for slot in (7, 12)]
    for place in places:
        at.overwrite_log(root, place + 20, i64(1))
    assert [(one.kind, one.log_offset) for one in audit(root)] == [
        ("queue-repeat", place) for place in places
    ]


def test_a_wrong_number_beside_damage_in_its_queue_is_two_faults(root: Path) -> None:
    for slot in (9, 20):
        at.overwrite_log(root, STORED[1, slot].log_offset + 20, i64(500 if slot == 9 else 1))
    # The damage lies behind the first, before the second.
    for slot in (10, 19):
        at.flip_log(root, STORED[1, slot].log_offset + 90)
    wanted = ["queue-offset", "queue-repeat", "record-damaged", "record-damaged"]
    assert sorted(one.kind for one in audit(root)) == wanted


def test_the_last_record_of_a_queue_with_another_number_is_one_fault(root: Path) -> None:
    one = STORED[0, at.PER_QUEUE - 1]
    at.overwrite_log(root, one.log_offset + 20, i64(500))
    assert faults(root) == [("unit-other", at.PER_QUEUE - 1)]


def test_records_at_the_end_without_units_are_a_note() -> None:
    claims = table([("t", 0, 0, 0, 100, 0), ("t", 0, 1, 100, 100, 0)])
    units = table([("t", 0, 0, 0, 100, 0)])
    known = StoreFacts(queues=frozenset({("t", 0)}), dispatched=100)
    assert [one.kind for one in cross_check(claims, units, known)] == ["not-dispatched"]


def table(rows: list[tuple[object, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * 6
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, ENTRIES, strict=True)], ENTRIES)


def runs(*numbers: int, begin: int = 0) -> list[OffsetRun]:
    rows = [("t", 0, slot, begin + 100 * n, 100, 0) for n, slot in enumerate(numbers)]
    return collect_runs(table(rows).to_batches())


@pytest.mark.parametrize(
    ("numbers", "kinds"),
    [
        ((5, 6, 7), []),
        ((0, 1, 3, 4), [("queue-gap", 2)]),
        ((0, 1, 2, 2, 3, 4), [("queue-repeat", 2)]),
        ((0, 1, 2, 1, 3, 4), [("queue-repeat", 1)]),
        ((0, 1, 9, 3, 4), [("queue-offset", 9)]),
        ((9, 1, 2, 3), [("queue-offset", 9)]),
        ((0, 1, 2, 3, 2, 3, 4, 5), [("queue-repeat", 2)]),
        ((0, 1, 2, 0, 1), [("queue-restart", 0)]),
        ((7, 0, 1), [("queue-restart", 0)]),
    ],
)
def test_numbers_of_a_queue_are_judged_by_their_order(
    numbers: tuple[int, ...], kinds: list[tuple[str, int]]
) -> None:
    found = check_numbering(runs(*numbers), [])
    assert [(one.kind, one.slot) for one in found] == kinds
    # However the log is divided.
    cut = len(numbers) // 2
    parts = runs(*numbers[:cut]) + runs(*numbers[cut:], begin=100 * cut)
    assert check_numbering(parts, []) == found


def test_a_hole_that_damage_explains_is_none() -> None:
    parts = runs(0, 1) + runs(3, begin=300)
    assert not check_numbering(parts, [Gap(200, 300, "is no record")])
    assert check_numbering(parts, [Gap(400, 500, "is no record")])


def test_damage_at_the_end_of_a_part_reaches_to_the_next_record(root: Path) -> None:
    batches = log_rows(root)
    one = batches[0].slice(0, 2)
    column = one.schema.get_field_index("error")
    broken = one.set_column(column, "error", pa.array([None, "is no record"]))
    found = damaged_in([derived_rows(batch, LEVELS) for batch in (broken, batches[1])])
    begin = batches[0].column("commitLogOffset")[1].as_py()
    assert found == [Gap(begin, 4096, "is no record")]
