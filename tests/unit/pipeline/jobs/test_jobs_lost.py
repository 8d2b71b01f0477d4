"""The lost messages of damaged ranges are derived from entries and numbers, each message once."""

from __future__ import annotations

import pyarrow as pa
import pytest

from aerobee.pipeline.jobs.derived.entries import ENTRIES, ENTRIES_DDL, batch_of
from aerobee.pipeline.jobs.derived.lost_messages import (
    DamagedRange,
    Losses,
    damaged_stretches,
    entries_within,
    still_missing,
)
from aerobee.pipeline.jobs.derived.lost_report import lost_text
from aerobee.pipeline.jobs.derived.numbering import MissingNumbers, OffsetRun, missing_numbers
from aerobee.store.log.scan.sequence import Gap

RANGES = [Gap(1000, 2000, "is no record"), Gap(5000, 6000, "is no record")]


def run(first: int, length: int, begin: int, queue_id: int = 0, topic: str = "t") -> OffsetRun:
    return OffsetRun(topic, queue_id, first, length, begin, begin + 100 * (length - 1))


def test_damaged_places_without_a_sound_record_between_are_one_range() -> None:
    damaged = [Gap(100, 400, "a"), Gap(200, 400, "b"), Gap(500, 600, "c"), Gap(900, 1 << 62, "d")]
    found = damaged_stretches(damaged, 1200)
    assert found == [Gap(100, 400, "a"), Gap(500, 600, "c"), Gap(900, 1200, "d")]


def test_entries_that_point_into_a_range_are_its_messages() -> None:
    rows = [("t", 0, slot, place, 100, 0) for slot, place in enumerate((900, 1000, 1950, 2000))]
    rows.append(("u", 1, 0, 5900, 1 << 30, 0))
    found = entries_within(batch_of(rows, ENTRIES_DDL), RANGES)
    assert found.column("range").to_pylist() == [0, 0, 1]
    assert found.column("logOffset").to_pylist() == [1000, 1950, 5900]
    # An entry's size is at most the rest of the range.
    assert found.column("size").to_pylist() == [100, 50, 100]
    assert not entries_within(pa.RecordBatch.from_pylist([], schema=ENTRIES), RANGES).num_rows


@pytest.mark.parametrize(
    ("runs", "missing"),
    [
        # In the first range, in both, and a hole that no damage explains.
        ([run(0, 2, 0), run(5, 2, 3000)], [(2, 5, 3)]),
        ([run(0, 2, 0), run(5, 2, 7000)], [(2, 5, 3)]),
        ([run(0, 2, 2500), run(5, 2, 3000)], []),
        # A remaining message has a wrong number.
        ([run(0, 2, 0), run(99, 1, 3000), run(6, 2, 3500)], [(2, 6, 3)]),
        # Nothing is known before the first record and behind the last.
        ([run(3, 2, 7000)], []),
    ],
)
def test_numbers_tell_how_many_are_missing_between_records(
    runs: list[OffsetRun], missing: list[tuple[int, int, int]]
) -> None:
    found = missing_numbers(runs, RANGES)
    assert [(one.first, one.end, one.messages) for one in found] == missing


def test_a_message_counts_once_and_where_it_can_have_been() -> None:
    first = MissingNumbers("t", 0, 10, 20, 10, 500, 2500)
    both = MissingNumbers("t", 0, 30, 34, 4, 2600, 7000)
    wide = MissingNumbers("t", 0, 40, 44, 4, 0, 7000)
    # Six of the first have an entry, and one behind it.
    known = [run(12, 6, 1000), run(20, 1, 1900)]
    found = list(still_missing([first, both, wide], known, RANGES))
    assert found == [
        (1000, 2000, 1, "t", 0, 4, None, "numbers"),
        (5000, 6000, 1, "t", 0, 4, None, "numbers"),
        (1000, 6000, 2, "t", 0, 4, None, "numbers"),
    ]
    assert not list(still_missing([first], [run(10, 10, 1000)], RANGES))


def test_messages_of_light_queues_count_as_their_own_topics() -> None:
    light = MissingNumbers("%LMQ%q", 0, 10, 20, 10, 500, 2500)
    assert not list(still_missing([light], [], RANGES))


def test_what_is_not_known_is_said() -> None:
    exact = DamagedRange(0, 100, 100, 1, True, {"t": 1}, "is no record")
    assert lost_text(Losses([exact], [], {"t": 1})) == "1 message lost"
    more = exact._replace(is_exact=False)
    assert lost_text(Losses([exact, more], [], {"t": 2})) == "at least 2 messages lost"
    unknown = "nothing tells how many messages were lost"
    assert lost_text(Losses([more], [], {})) == unknown
