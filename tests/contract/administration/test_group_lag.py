"""GROUP_LAG says what the test knows about a group, in every state that a group can be in; the
metrics say the same numbers."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import aerobee.broker.core
import aerobee.testing
from aerobee.protocol.bodies.group_lag import GroupLag, QueueLagState
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.message.record import decode_records
from aerobee.protocol.names import dlq_topic, retry_topic
from aerobee.testing import RunningBroker
from tests.contract.conftest import TIMEOUT_S, Wire
from tests.contract.members import Member
from tests.ports import free_port

LAG = RequestCode.GROUP_LAG


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    """A broker that says after a moment, and not after a minute, that a queue is stuck."""
    with ExitStack() as stack:
        # It has read these when it runs: other tests see them no more.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(aerobee.broker.core, "STUCK_LOOK_S", 0.05)
            patch.setattr(aerobee.broker.core, "STUCK_S", 0.2)
            broker = stack.enter_context(
                aerobee.testing.broker(http_enabled=True, http_port=free_port())
            )
        yield broker


@pytest.fixture
async def joined(running: RunningBroker) -> AsyncIterator[Any]:
    """Makes members, and closes them."""
    members: list[Member] = []

    async def join(group: str, *topics: str, **options: Any) -> Member:
        members.append(await Member.join(running.broker, group, topics, **options))
        return members[-1]

    yield join
    for member in members:
        member.close()


async def filled(wire: Wire, topic: str, messages: int = 5, **fields: Any) -> None:
    """A topic of one queue with these messages, whose unique ids are `topic-number`."""
    ext = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1,
        "perm": 6, "topicFilterType": "SINGLE_TAG",
    }  # fmt: skip
    assert (await wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)).code == 0
    more = fields.pop("properties", "")
    for number in range(messages):
        properties = f"UNIQ_KEY\x01{topic}-{number}\x02WAIT\x01true\x02{more}"
        assert (await wire.send(topic, b"%d" % number, properties=properties, **fields)).code == 0


async def commit(wire: Wire, group: str, topic: str, offset: int) -> None:
    ext = {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": offset}
    assert (await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code == 0


async def lag_of(wire: Wire, group: str, topic: str = "") -> GroupLag:
    answer = await wire.call(LAG, {"consumerGroup": group, "topic": topic})
    assert answer.code == 0, answer.remark
    return GroupLag.parse(answer.body)


async def queue_of(wire: Wire, group: str, topic: str) -> QueueLagState:
    [one] = (await lag_of(wire, group, topic)).queues
    return one


async def until(
    wire: Wire, group: str, topic: str, holds: Callable[[QueueLagState], bool]
) -> QueueLagState:
    async with asyncio.timeout(TIMEOUT_S):
        while not holds(one := await queue_of(wire, group, topic)):  # noqa: ASYNC110 - it answers
            await asyncio.sleep(0.02)
    return one


async def metric(running: RunningBroker, name: str, group: str, topic: str) -> float | None:
    """The value of a group's series, None without it."""
    url = f"http://{running.http}/metrics"
    page = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = sample.labels
            if sample.name == name and (labels["consumer_group"], labels["topic"]) == (
                group,
                topic,
            ):
                return float(sample.value)
    return None


async def pulled(member: Member, group: str, topic: str, count: int = 2) -> None:
    """The member is given the first `count` messages of the queue."""
    wire = Wire(member.caller)
    answer = await wire.pull(topic, consumerGroup=group, maxMsgNums=count, sysFlag=0)
    assert len(list(decode_records(answer.body))) == count


async def test_a_listener_that_hangs_on_its_first_message_is_behind_by_all_and_stuck(
    running: RunningBroker, wire: Wire, joined: Any
) -> None:
    await filled(wire, "Hangs")
    member = await joined("Hangs", "Hangs")
    await pulled(member, "Hangs", "Hangs")
    one = await until(wire, "Hangs", "Hangs", lambda one: one.is_stuck)
    assert (one.committed, one.begin, one.end) == (None, 0, 5)
    assert (one.lag, one.given_out) == (5, 2)
    assert one.head is not None
    assert (one.head.offset, one.head.msg_id, one.head.attempt) == (0, "Hangs-0", 1)
    for name, value in (
        ("rocketmq_consumer_lag_messages", 5),
        ("rocketmq_consumer_inflight_messages", 2),
        ("aerobee_group_stuck_queues", 1),
        ("aerobee_consumer_lag_unknown_queues", None),
    ):
        assert await metric(running, name, "Hangs", "Hangs") == value
    # It goes on: the next look sees it come on.
    await commit(wire, "Hangs", "Hangs", 1)
    one = await until(wire, "Hangs", "Hangs", lambda one: not one.is_stuck)
    assert (one.lag, one.given_out, one.last_consumed_ms is None) == (4, 1, False)
    assert one.head is not None
    assert one.head.msg_id == "Hangs-1"


async def test_a_queue_that_nobody_pulls_from_is_left(wire: Wire, joined: Any) -> None:
    """Its members have paused it, and still send heartbeats."""
    await filled(wire, "Paused")
    await joined("Paused", "Paused")
    one = await until(wire, "Paused", "Paused", lambda one: one.is_left)
    assert (one.lag, one.given_out, one.is_stuck, one.head) == (5, 0, False, None)


async def test_a_queue_is_that_of_the_member_whose_pull_waits_or_who_has_locked_it(
    wire: Wire, joined: Any
) -> None:
    await filled(wire, "Owned", 1)
    first = await joined("Owned", "Owned", client_id="first")
    await joined("Owned", "Owned", client_id="second")
    await commit(wire, "Owned", "Owned", 1)
    held = {"consumerGroup": "Owned", "sysFlag": 2, "suspendTimeoutMillis": 8000}
    pull = asyncio.create_task(Wire(first.caller).pull("Owned", 1, **held))
    one = await until(wire, "Owned", "Owned", lambda one: one.puller is not None)
    assert (one.puller, one.lock_owner, one.lag) == ("first", None, 0)
    broker = (await lag_of(wire, "Owned")).state
    assert (broker.members, broker.clients) == (2, ["first", "second"])
    pull.cancel()
    body = (
        b'{"clientId":"second","consumerGroup":"Owned","mqSet":[{"topic":"Owned",'
        b'"brokerName":"%b","queueId":0}]}'
    )
    name = (await wire.call(RequestCode.GET_BROKER_CONFIG)).body.decode()
    [line] = [one for one in name.splitlines() if one.startswith("brokerName=")]
    await wire.call(RequestCode.LOCK_BATCH_MQ, body=body % line.partition("=")[2].encode())
    assert (await queue_of(wire, "Owned", "Owned")).lock_owner == "second"


async def test_failed_messages_wait_for_their_next_try_and_dead_ones_are_counted(
    running: RunningBroker, wire: Wire, joined: Any
) -> None:
    await filled(wire, "Fails", 2)
    member = await joined("Fails", "Fails", retry_topic("Fails"))
    await pulled(member, "Fails", "Fails", 1)
    records = (await wire.pull("Fails", consumerGroup="Fails", maxMsgNums=2)).body
    first, second = decode_records(records)
    back = {"group": "Fails", "originTopic": "Fails", "unitMode": "false"}
    for message, level, times in ((first, 3, 16), (second, 0, 0)):
        ext = {
            **back,
            "offset": message.log_offset,
            "delayLevel": level,
            "maxReconsumeTimes": times,
        }
        answer = await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
        assert answer.code == 0, answer.remark
    await commit(wire, "Fails", "Fails", 2)
    found = await lag_of(wire, "Fails")
    assert (found.state.retries, found.state.dead) == (1, 1)
    lags = {one.topic: one.lag for one in found.queues}
    assert lags == {"Fails": 0, retry_topic("Fails"): 0}
    retry = retry_topic("Fails")
    assert await metric(running, "rocketmq_consumer_lag_messages", "Fails", retry) == 1
    stats = await wire.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": dlq_topic("Fails")})
    assert b'"maxOffset":1' in stats.body


async def test_a_group_that_is_not_online_is_behind_from_its_offset(
    running: RunningBroker, wire: Wire, joined: Any
) -> None:
    await filled(wire, "Offline")
    member = await joined("Offline", "Offline")
    await commit(wire, "Offline", "Offline", 2)
    await member.wait_left(wire.caller, "Offline")
    found = await lag_of(wire, "Offline")
    [one] = found.queues
    assert (found.state.members, one.lag, one.committed) == (0, 3, 2)
    assert (one.is_stuck, one.is_left, one.stands_s) == (False, False, None)
    assert await metric(running, "rocketmq_consumer_lag_messages", "Offline", "Offline") == 3
    assert await metric(running, "aerobee_group_stuck_queues", "Offline", "Offline") is None


async def test_members_that_keep_their_offsets_have_no_queues(
    running: RunningBroker, wire: Wire, joined: Any
) -> None:
    await filled(wire, "Own")
    await joined("Own", "Own", message_model="BROADCASTING")
    found = await lag_of(wire, "Own")
    assert (found.queues, found.state.message_model) == ([], "BROADCASTING")
    assert await metric(running, "rocketmq_consumer_lag_messages", "Own", "Own") is None


@pytest.mark.parametrize(
    ("kind", "wanted", "other"), [("TAG", "red", "blue"), ("SQL92", "a > 4", "a < 4")]
)
async def test_filters_are_held_against_the_newest_messages(
    wire: Wire, joined: Any, kind: str, wanted: str, other: str
) -> None:
    name = f"Filter{kind}"
    await filled(wire, name, 3, properties="TAGS\x01red\x02a\x017\x02")
    member = await joined(name, name, expression=other, expression_type=kind)
    [topic] = (await lag_of(wire, name)).state.topics
    assert (topic.looked, topic.wanted) == (3, 0)
    [statement] = topic.statements
    assert (statement.type, statement.expression, statement.members) == (kind, other, 1)
    await member.wait_left(wire.caller, name)
    await joined(name, name, expression=wanted, expression_type=kind, client_id="c2")
    [topic] = (await lag_of(wire, name)).state.topics
    assert (topic.looked, topic.wanted) == (3, 3)


async def test_members_that_subscribe_differently_and_shared_ids_are_named(
    wire: Wire, joined: Any
) -> None:
    await filled(wire, "MixedA", 1)
    await filled(wire, "MixedB", 1)
    await joined("Mixed", "MixedA", "MixedB", client_id="both")
    await joined("Mixed", "MixedA", client_id="some", expression="red")
    await joined("Mixed", "MixedA", client_id="some", expression="red")
    state = (await lag_of(wire, "Mixed")).state
    topics = {one.topic: one for one in state.topics}
    said = {one.expression: (one.members, one.clients) for one in topics["MixedA"].statements}
    assert said == {"*": (1, ["both"]), "red": (2, ["some"])}
    assert topics["MixedB"].without == ["some"]
    [shared] = state.shared_ids
    assert (shared.client_id, len(set(shared.addresses))) == ("some", 2)


async def test_what_nobody_knows_has_no_settings_and_no_queues(wire: Wire, joined: Any) -> None:
    await filled(wire, "Known", 1)
    found = await lag_of(wire, "Unknown", "Known")
    assert (found.state.settings, found.queues) == (None, [])
    await joined("NoTopic", "Nowhere")
    found = await lag_of(wire, "NoTopic")
    assert [(one.topic, one.exists) for one in found.state.topics] == [("Nowhere", False)]
    refused = await wire.call(LAG, {"consumerGroup": "no group"})
    assert refused.code == ResponseCode.SYSTEM_ERROR
