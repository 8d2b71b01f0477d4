"""Round robin, failed brokers, and which failures are worth another broker."""

from __future__ import annotations

import pytest

from aerobee.client.errors import BadMessage, CallTimeout, ConnectFailed, NoRoute, RequestRefused
from aerobee.client.producing.queue_choice import QueueChooser, queue_by_key, worth_retrying
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.hashing import java_hash

QUEUES = [MessageQueue("T", broker, number) for broker in "ab" for number in range(2)]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def chooser(clock: Clock | None = None) -> QueueChooser:
    return QueueChooser(10.0, clock or Clock(), start=lambda count: 0)


def test_queues_take_turns() -> None:
    choose = chooser()
    assert [choose.choose("T", QUEUES) for _ in range(5)] == [*QUEUES, QUEUES[0]]


def test_topics_take_turns_apart_from_each_other() -> None:
    choose = chooser()
    choose.choose("T", QUEUES)
    assert choose.choose("U", QUEUES) == QUEUES[0]


def test_a_broker_already_tried_is_passed_over() -> None:
    assert chooser().choose("T", QUEUES, tried={"a"}) == QUEUES[2]


def test_a_tried_broker_is_used_when_there_is_no_other() -> None:
    assert chooser().choose("T", QUEUES[:2], tried={"a"}) == QUEUES[0]


def test_a_failed_broker_is_passed_over_for_a_while_only() -> None:
    clock = Clock()
    choose = chooser(clock)
    choose.failed("a")
    assert {choose.choose("T", QUEUES).broker_name for _ in range(8)} == {"b"}
    clock.now = 10.0
    assert {choose.choose("T", QUEUES).broker_name for _ in range(4)} == {"a", "b"}


def test_a_failed_broker_that_works_again_is_used_at_once() -> None:
    choose = chooser()
    choose.failed("a")
    choose.succeeded("a")
    assert choose.choose("T", QUEUES) == QUEUES[0]


def test_with_every_broker_failing_one_not_tried_yet_is_preferred() -> None:
    choose = chooser()
    choose.failed("a")
    choose.failed("b")
    assert choose.choose("T", QUEUES, tried={"a"}).broker_name == "b"


def test_a_list_that_grew_shorter_is_no_trouble() -> None:
    choose = chooser()
    for _ in range(4):
        choose.choose("T", QUEUES)
    assert choose.choose("T", QUEUES[:1]) == QUEUES[0]


@pytest.mark.parametrize("code", [17, 14, 1, 16, 204, 205])
def test_codes_that_another_broker_may_cure_are_retried(code: int) -> None:
    assert worth_retrying(RequestRefused("", address="x", code=code, remark=None))


@pytest.mark.parametrize("code", [2, 3, 13, 26, 215])
def test_other_codes_are_not_retried(code: int) -> None:
    assert not worth_retrying(RequestRefused("", address="x", code=code, remark=None))


def test_network_errors_are_retried_and_faults_of_the_caller_are_not() -> None:
    assert worth_retrying(ConnectFailed(""))
    assert worth_retrying(CallTimeout(""))
    assert not worth_retrying(BadMessage(""))
    assert not worth_retrying(NoRoute(""))


def test_one_key_always_gets_one_queue() -> None:
    # "polygenelubricants" has the hash -2**31, whose absolute value no Java int can hold.
    for key in ("", "order-7", "polygenelubricants"):
        assert queue_by_key(QUEUES, java_hash(key)) == QUEUES[abs(java_hash(key)) % 4]
