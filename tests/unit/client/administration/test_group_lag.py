"""Questions about groups to brokers of ours, of RocketMQ, and to brokers that are away."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aerobee.client.admin import Admin
from aerobee.client.administration.group_lag import GroupQuestions
from aerobee.client.administration.offset_changes import put_group_offsets
from aerobee.client.errors import BadAnswer, CallerError, NetworkError, RequestRefused
from aerobee.client.options import ClientOptions
from aerobee.protocol.bodies.clients import BROADCASTING
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.group_lag import (
    GroupState,
    QueueLagState,
    encode_group_lag,
    encode_queue,
)
from aerobee.protocol.bodies.statistics import ConsumeStats, GroupProgress
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import encode_response
from tests.inline_loop import drive


@pytest.fixture
async def questions(name_server: str):
    async with Admin(name_server, ClientOptions(call_timeout_s=5)) as admin:
        yield GroupQuestions(admin)


@pytest.fixture
async def two(cluster):
    """Brokers `a`, which is ours, and `b`, which is RocketMQ's, both with topic `T`."""
    brokers = {name: await cluster.add_broker(name) for name in "ab"}
    cluster.add_topic("T")
    queue = QueueLagState(topic="T", queue_id=0, committed=2, begin=2, end=5, lag=3, given_out=1)
    state = GroupState(group="g", now_ms=1, members=1, clients=["c1"], retries=4, dead=0)
    answers(brokers["a"], RequestCode.GROUP_LAG, encode_group_lag(state, [encode_queue(queue)]))
    tells(brokers["b"])
    return brokers


def answers(broker, code: int, body: bytes, answer: int = 0) -> None:
    broker.answers[code] = lambda _, command: encode_response(command, answer, body=body)


def tells(broker, model: str = "CLUSTERING") -> None:
    """Let it answer as RocketMQ's broker does: progress in one topic, and members."""
    queues = {MessageQueue("T", "b", 0): GroupProgress(9, 4, 1000)}
    answers(broker, RequestCode.GET_CONSUME_STATS, drive(ConsumeStats(queues).encode()))
    subscriptions = {"T": {"subString": "red"}, "Unread": {"subString": "*"}}
    connections: list[Any] = [
        {"clientId": name, "clientAddr": "a", "language": "JAVA", "version": 1}
        for name in ("c2", "c1")
    ]  # fmt: skip
    body = {
        "connectionSet": connections, "subscriptionTable": subscriptions, "messageModel": model,
        "consumeType": "CONSUME_PASSIVELY",
    }  # fmt: skip
    answers(broker, RequestCode.GET_CONSUMER_CONNECTION_LIST, json.dumps(body).encode())
    table = {"subscriptionGroupTable": {"g": {"groupName": "g", "retryMaxTimes": 7}}}
    answers(broker, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, json.dumps(table).encode())


async def test_ours_tell_all_and_those_of_rocketmq_are_asked_for_progress_and_members(
    two, questions
) -> None:
    answers(two["a"], RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, b"{}")
    found = await questions.of("g")
    ours, java = found["a"], found["b"]
    assert (ours.is_full, java.is_full) == (True, False)
    [queue] = ours.lag.queues
    assert (queue.lag, queue.given_out, ours.lag.state.retries) == (3, 1, 4)
    [queue] = java.lag.queues
    assert (queue.lag, queue.begin, queue.end, queue.last_consumed_ms) == (5, 4, 9, 1000)
    # The rest is not known.
    state = java.lag.state
    assert (queue.given_out, queue.stands_s, state.retries, state.dead) == (None,) * 4
    assert (state.members, state.clients, state.settings.retry_max_times) == (2, ["c1", "c2"], 7)
    said = {one.topic: one.statements[0].expression for one in state.topics}
    assert said == {"T": "red", "Unread": "*"}
    # It gives nothing of topics that the group has not consumed, unless they are named.
    asked = [one.ext["topic"] for one in two["b"].of(RequestCode.GET_CONSUME_STATS)]
    assert asked == ["", "Unread"]
    await questions.of("g", "T")
    assert len(two["b"].of(RequestCode.GROUP_LAG)) == 1


async def test_members_that_keep_their_offsets_have_no_queues_at_rocketmqs(two, questions) -> None:
    answers(two["a"], RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, b"{}")
    tells(two["b"], BROADCASTING)
    assert (await questions.of("g"))["b"].lag.queues == []


async def test_a_broker_that_is_away_is_named_and_not_asked_again(two, questions) -> None:
    await two["b"].stop()
    assert list(await questions.of("g")) == ["a"]
    assert list(questions.unanswered) == ["b"]
    answers(two["a"], RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, b"{}")
    error = questions.unanswered["b"]
    assert await questions.groups() == {}
    assert questions.unanswered["b"] is error
    await two["a"].stop()
    with pytest.raises(NetworkError):
        await questions.of("g")


async def test_an_answer_that_cannot_be_read_is_the_brokers_fault(two, questions) -> None:
    for body in (b"{}", b'{"state":{},"queues":[]}', b"[", b'{"state":{"group":"g","nowMs":"x"}}'):
        answers(two["a"], RequestCode.GROUP_LAG, body)
        with pytest.raises(BadAnswer):
            await questions.of("g")


async def test_a_refusal_is_no_broker_that_is_away(two, questions) -> None:
    answers(two["a"], RequestCode.GROUP_LAG, b"", ResponseCode.NO_PERMISSION)
    with pytest.raises(RequestRefused):
        await questions.of("g")


async def test_offsets_are_never_asked_of_a_broker_that_would_reset_by_a_time(
    two, name_server: str
) -> None:
    """RocketMQ's would read over them, and reset the group to the ends of its queues."""
    async with Admin(name_server, ClientOptions(call_timeout_s=5)) as admin:
        queue = MessageQueue("T", "b", 0)
        with pytest.raises(CallerError, match="b can reset a group that is online by a time alone"):
            await put_group_offsets(admin, "g", {queue: 3}, online={"b"}, cannot={"b"})
        assert two["b"].of(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET) == []
        await put_group_offsets(admin, "g", {queue: 3}, online=())
        assert two["b"].committed == {("g", "T", 0): 3}
