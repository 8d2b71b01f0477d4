"""Reading queues on demand, and what the answers mean."""

from __future__ import annotations

import asyncio

import pytest

from aerobee.client.consuming.pull_consumer import PullConsumer
from aerobee.client.consuming.puller import PullStatus
from aerobee.client.errors import BadAnswer, CallerError, ClientClosed, NoRoute, RequestRefused
from aerobee.client.options import ClientOptions
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import encode_response
from aerobee.protocol.headers.client import PullMessageHeader

QUEUE = MessageQueue("T", "a", 0)
PULL = RequestCode.PULL_MESSAGE


@pytest.fixture
async def consumer(name_server: str):
    async with PullConsumer(name_server, "g", ClientOptions(call_timeout_s=5)) as consumer:
        yield consumer


async def test_messages_come_in_order_and_say_where_to_go_on(broker, consumer) -> None:
    for number in range(3):
        broker.append("T", 0, b"%d" % number)
    result = await consumer.pull(QUEUE, 1)
    assert result.status is PullStatus.FOUND
    assert [message.body for message in result.messages] == [b"1", b"2"]
    assert (result.next_offset, result.min_offset, result.max_offset) == (3, 0, 3)
    assert result.messages[0].queue == QUEUE


async def test_nothing_new_is_said_at_once_without_a_wait(broker, consumer) -> None:
    assert (await consumer.pull(QUEUE, 0)).status is PullStatus.NO_NEW
    assert PullMessageHeader.from_ext(broker.of(PULL)[0].ext).sys_flag == 4


async def test_a_waiting_pull_is_answered_by_the_message_that_arrives(
    broker, consumer, until
) -> None:
    pull = asyncio.ensure_future(consumer.pull(QUEUE, 0, wait_ms=5000))
    await until(lambda: bool(broker.held))
    broker.append("T", 0, b"x")
    assert [message.body for message in (await pull).messages] == [b"x"]


async def test_an_offset_outside_the_queue_is_told_with_the_valid_one(broker, consumer) -> None:
    broker.append("T", 0, b"x")
    result = await consumer.pull(QUEUE, 99)
    assert (result.status, result.next_offset) == (PullStatus.OFFSET_MOVED, 1)


async def test_tags_are_compared_again_here(broker, consumer) -> None:
    # "Aa" and "BB" have one hash, and this broker filters nothing at all.
    for tag in ("Aa", "BB", "C"):
        broker.append("T", 0, tag.encode(), properties=f"TAGS\x01{tag}")
    result = await consumer.pull(QUEUE, 0, expression="Aa || C")
    assert [message.body for message in result.messages] == [b"Aa", b"C"]
    assert result.next_offset == 3


async def test_the_subscription_travels_with_the_pull(broker, consumer) -> None:
    await consumer.pull(QUEUE, 0, expression="A||B")
    header = PullMessageHeader.from_ext(broker.of(PULL)[0].ext)
    assert (header.subscription, header.expression_type, header.consumer_group) == (
        "A||B",
        "TAG",
        "g",
    )


async def test_the_broker_suggested_is_asked_next(cluster, broker, consumer) -> None:
    slave = await cluster.add_broker("slave")
    cluster.name_server.routes["T"].brokers[0].addresses[1] = slave.address
    ext = {"nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0"}
    suggest = {**ext, "suggestWhichBrokerId": "1"}
    broker.answers[PULL] = lambda _, command: encode_response(command, 19, None, suggest)
    await consumer.pull(QUEUE, 0)
    await consumer.pull(QUEUE, 0)
    assert (len(broker.of(PULL)), len(slave.of(PULL))) == (1, 1)


async def test_other_codes_are_raised(broker, consumer) -> None:
    broker.answers[PULL] = lambda _, command: encode_response(command, 26, "no group")
    with pytest.raises(RequestRefused, match="no group"):
        await consumer.pull(QUEUE, 0)


async def test_a_body_that_is_no_message_is_the_brokers_fault(broker, consumer) -> None:
    ext = {"suggestWhichBrokerId": "0", "nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1"}
    broker.answers[PULL] = lambda _, command: encode_response(command, 0, None, ext, b"\0" * 40)
    with pytest.raises(BadAnswer):
        await consumer.pull(QUEUE, 0)


async def test_offsets_are_committed_and_found_again(broker, consumer) -> None:
    assert await consumer.committed(QUEUE) is None
    await consumer.commit(QUEUE, 5)
    assert await consumer.committed(QUEUE) == 5


async def test_without_a_master_a_slave_has_the_offsets(cluster, broker, consumer) -> None:
    slave = await cluster.add_broker("slave")
    addresses = cluster.name_server.routes["T"].brokers[0].addresses
    master = addresses.pop(0)
    addresses[1] = slave.address
    await consumer.commit(QUEUE, 5)
    assert await consumer.committed(QUEUE) == 5
    assert len(slave.of(RequestCode.UPDATE_CONSUMER_OFFSET)) == 1
    # It is asked as soon as a route names it again.
    addresses[0] = master
    await consumer.commit(QUEUE, 6)
    assert len(broker.of(RequestCode.UPDATE_CONSUMER_OFFSET)) == 1


async def test_the_ends_of_a_queue_and_an_offset_by_time_are_asked_of_the_broker(
    broker, consumer
) -> None:
    broker.append("T", 0, b"x")
    assert await consumer.min_offset(QUEUE) == 0
    assert await consumer.max_offset(QUEUE) == 1
    assert await consumer.offset_at(QUEUE, 123) == 123


async def test_the_queues_of_a_topic_are_listed(broker, consumer) -> None:
    assert await consumer.queues("T") == [MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)]
    with pytest.raises(NoRoute):
        await consumer.queues("UNKNOWN")


async def test_a_queue_of_an_unknown_broker_is_no_route(broker, consumer) -> None:
    with pytest.raises(NoRoute):
        await consumer.pull(MessageQueue("T", "stranger", 0), 0)


async def test_a_wrong_expression_is_the_callers_fault(broker, consumer) -> None:
    with pytest.raises(CallerError, match="names no tag"):
        await consumer.pull(QUEUE, 0, expression="||")


async def test_no_heartbeat_is_sent(broker, consumer) -> None:
    await consumer.pull(QUEUE, 0)
    assert broker.of(RequestCode.HEART_BEAT) == []


async def test_after_close_calls_are_refused(broker, consumer) -> None:
    await consumer.close()
    with pytest.raises(ClientClosed):
        await consumer.pull(QUEUE, 0)
