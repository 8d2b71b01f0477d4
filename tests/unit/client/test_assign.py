"""Which queues belong to whom; the figures are what Java's average strategy gives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aerobee.client.assign import assign, average, average_by_circle
from aerobee.protocol.bodies.common import MessageQueue


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("T", "b", number) for number in range(count)]


def numbers(found: list[MessageQueue]) -> list[int]:
    return [queue.queue_id for queue in found]


def test_average_gives_contiguous_runs_and_the_rest_to_the_first() -> None:
    ids = ["a", "b", "c"]
    assert [numbers(average(ids, queues(8), own)) for own in ids] == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_average_leaves_late_clients_without_queues_when_there_are_too_few() -> None:
    ids = ["a", "b", "c"]
    assert [numbers(average(ids, queues(2), own)) for own in ids] == [[0], [1], []]


def test_circle_deals_queues_out_one_by_one() -> None:
    ids = ["a", "b"]
    assert [numbers(average_by_circle(ids, queues(5), own)) for own in ids] == [[0, 2, 4], [1, 3]]


def test_a_client_that_is_not_listed_owns_nothing() -> None:
    assert average(["a"], queues(4), "x") == []
    assert average_by_circle(["a"], queues(4), "x") == []


def test_order_of_the_lists_does_not_matter() -> None:
    shuffled = [queues(4)[index] for index in (2, 0, 3, 1)]
    assert numbers(assign(average, ["b", "a"], shuffled, "b")) == [2, 3]


def test_queues_sort_by_topic_then_broker_then_number() -> None:
    mixed = [MessageQueue("T", "b", 1), MessageQueue("T", "a", 10), MessageQueue("T", "a", 9)]
    assert assign(average, ["x"], mixed, "x") == [mixed[2], mixed[1], mixed[0]]


@given(st.integers(1, 20), st.integers(0, 60))
def test_every_queue_goes_to_exactly_one_client(clients: int, count: int) -> None:
    ids = [f"c{number}" for number in range(clients)]
    for strategy in (average, average_by_circle):
        parts = [assign(strategy, ids, queues(count), own) for own in ids]
        assert sorted(queue for part in parts for queue in part) == queues(count)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
