"""Filters spare queues and offsets, and never more than surely cannot match."""

from datetime import UTC, datetime
from typing import Any

from aerobee.pipeline.decode.selection import Selection, selection_of


def one(kind: str, column: str, value: Any) -> Any:
    return type(kind, (), {"attribute": (column,), "value": value})()


def selected(*filters: Any) -> Selection:
    return selection_of(filters, "queueOffset")


def test_names_prune_queues() -> None:
    selection = selected(one("EqualTo", "topic", "t"), one("In", "queueId", (1, 2)))
    assert selection.has_queue("t", "b", 2)
    assert not selection.has_queue("t", "b", 3)
    assert not selection.has_queue("u", "b", 2)


def test_two_filters_of_one_column_both_hold() -> None:
    selection = selected(one("In", "queueId", (1, 2)), one("In", "queueId", (2, 3)))
    assert [number for number in range(5) if selection.has_queue("t", "b", number)] == [2]


def test_offsets_bound_both_ends_exactly() -> None:
    selection = selected(one("GreaterThan", "queueOffset", 9), one("LessThan", "queueOffset", 20))
    assert (selection.start_offset, selection.end_offset) == (10, 20)
    selection = selected(
        one("EqualTo", "queueOffset", 5), one("GreaterThanOrEqual", "queueOffset", 2)
    )
    assert (selection.start_offset, selection.end_offset) == (5, 6)


def test_times_are_whole_milliseconds_that_keep_every_match() -> None:
    moment = datetime(1970, 1, 1, 0, 0, 1, 234_567, UTC)
    selection = selected(
        one("GreaterThan", "storeTimestamp", moment), one("LessThan", "storeTimestamp", moment)
    )
    assert (selection.start_ms, selection.end_ms) == (1234, 1235)


def test_a_time_without_a_zone_and_other_filters_bound_nothing() -> None:
    naive = datetime(2020, 1, 1)
    filters = [
        one("GreaterThan", "storeTimestamp", naive),
        one("StringContains", "topic", "x"),
        one("Not", "queueId", 1),
        one("EqualTo", "tags", "a"),
        object(),
    ]
    selection = selected(*filters)
    assert selection == Selection()
