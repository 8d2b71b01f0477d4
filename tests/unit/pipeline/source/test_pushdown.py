"""Filters spare queues and offsets, and never more than surely cannot match."""

from datetime import UTC, datetime
from typing import Any

from aerobee.pipeline.brokers.offsets import Queue
from aerobee.pipeline.source.pushdown import prune


def one(kind: str, column: str, value: Any) -> Any:
    return type(kind, (), {"attribute": (column,), "value": value})()


def test_names_prune_queues() -> None:
    pruning = prune([one("EqualTo", "topic", "t"), one("In", "queueId", (1, 2))])
    assert pruning.wants(Queue("t", "b", 2))
    assert not pruning.wants(Queue("t", "b", 3))
    assert not pruning.wants(Queue("u", "b", 2))


def test_two_filters_of_one_column_both_hold() -> None:
    pruning = prune([one("In", "queueId", (1, 2)), one("In", "queueId", (2, 3))])
    assert [number for number in range(5) if pruning.wants(Queue("t", "b", number))] == [2]


def test_offsets_bound_both_ends_inclusively() -> None:
    pruning = prune([one("GreaterThan", "queueOffset", 9), one("LessThan", "queueOffset", 20)])
    assert (pruning.lowest, pruning.highest) == (10, 19)
    pruning = prune([one("EqualTo", "queueOffset", 5), one("GreaterThanOrEqual", "queueOffset", 2)])
    assert (pruning.lowest, pruning.highest) == (5, 5)


def test_times_are_whole_milliseconds_that_keep_every_match() -> None:
    moment = datetime(1970, 1, 1, 0, 0, 1, 234_567, UTC)
    pruning = prune(
        [one("GreaterThan", "storeTimestamp", moment), one("LessThan", "storeTimestamp", moment)]
    )
    assert (pruning.from_ms, pruning.to_ms) == (1234, 1234)


def test_a_time_without_a_zone_and_other_filters_bound_nothing() -> None:
    naive = datetime(2020, 1, 1)
    filters = [
        one("GreaterThan", "storeTimestamp", naive),
        one("StringContains", "topic", "x"),
        one("Not", "queueId", 1),
        one("EqualTo", "tags", "a"),
        object(),
    ]
    pruning = prune(filters)
    assert pruning == prune([])
