"""Orderly consumption: order kept over failures, locks taken, lost and given up."""

from __future__ import annotations

import asyncio

import pytest

from aerobee.client.consuming.listener import Consumed
from aerobee.client.consuming.push_consumer import PushConsumer
from aerobee.client.message import ReceivedMessage
from aerobee.client.options import ConsumeFrom, Model, PushOptions
from aerobee.protocol.bodies.clients import LockBatch
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import encode_response

FAST = {
    "orderly": True,
    "rebalance_interval_s": 60.0,
    "lock_interval_s": 60.0,
    "orderly_suspend_ms": 5,
    "offset_store_interval_s": 60.0,
    "close_timeout_s": 1.0,
    "consume_from": ConsumeFrom.FIRST,
}
FIRST, SECOND = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)


class Seen:
    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.failures: dict[bytes, int] = {}
        self.at_work = 0

    async def __call__(self, messages: list[ReceivedMessage]) -> Consumed | None:
        assert not self.at_work or len({message.queue for message in messages}) == 1
        body = messages[0].body
        self.bodies.append(body)
        if self.failures.get(body, 0) > 0:
            self.failures[body] -= 1
            return Consumed.RETRY
        return None


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
async def start(cluster, broker, name_server):
    cluster.add_topic("%RETRY%g", queues=1)
    started: list[PushConsumer] = []

    async def start(listener, **options) -> PushConsumer:
        consumer = PushConsumer(name_server, "g", listener, PushOptions(**{**FAST, **options}))
        started.append(consumer)
        await consumer.subscribe("T")
        await consumer.start()
        return consumer

    yield start
    for consumer in started:
        await consumer.close()


async def test_queues_are_locked_before_they_are_consumed(broker, start, seen) -> None:
    consumer = await start(seen)
    assert broker.locks[FIRST] == broker.locks[SECOND] == consumer.client_id
    codes = [command.code for command in broker.requests]
    assert codes.index(RequestCode.LOCK_BATCH_MQ) < codes.index(RequestCode.PULL_MESSAGE)


async def test_a_failed_message_holds_up_its_queue_until_it_succeeds(
    broker, start, seen, until
) -> None:
    seen.failures = {b"1": 3}
    for number in range(4):
        broker.append("T", 0, b"%d" % number)
    await start(seen)
    await until(lambda: b"3" in seen.bodies)
    assert seen.bodies == [b"0", b"1", b"1", b"1", b"1", b"2", b"3"]


async def test_other_queues_go_on_meanwhile(broker, start, seen, until) -> None:
    seen.failures = {b"bad": 1_000_000}
    broker.append("T", 0, b"bad")
    broker.append("T", 1, b"good")
    await start(seen)
    await until(lambda: b"good" in seen.bodies)


async def test_a_message_that_failed_too_often_goes_back_and_the_queue_goes_on(
    broker, start, seen, until
) -> None:
    seen.failures = {b"bad": 1_000_000}
    for body in (b"bad", b"next"):
        broker.append("T", 0, body)
    consumer = await start(seen, max_orderly_reconsume=2)
    await until(lambda: b"next" in seen.bodies)
    assert seen.bodies == [b"bad", b"bad", b"bad", b"next"]
    assert len(broker.of(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1
    await consumer.close()
    assert broker.committed["g", "T", 0] == 2


async def test_a_queue_locked_by_another_is_not_taken_until_it_is_free(
    broker, start, seen, until
) -> None:
    broker.locks[FIRST] = "another"
    consumer = await start(seen)
    assert FIRST not in consumer.queues
    assert SECOND in consumer.queues
    del broker.locks[FIRST]
    await until(lambda: FIRST in consumer.queues)


async def test_a_lost_lock_drops_the_queue_which_is_taken_up_again_later(
    broker, start, seen, until
) -> None:
    consumer = await start(seen, lock_interval_s=0.02)
    broker.locks[FIRST] = "another"
    await until(lambda: FIRST not in consumer.queues)
    broker.committed["g", "T", 0] = 1  # what the other one did meanwhile
    broker.append("T", 0, b"done elsewhere")
    broker.append("T", 0, b"ours")
    del broker.locks[FIRST]
    await until(lambda: seen.bodies == [b"ours"])


async def test_a_lock_that_is_not_renewed_in_time_is_not_trusted(
    broker, start, seen, until
) -> None:
    consumer = await start(seen)
    now = asyncio.get_running_loop().time()
    consumer._orderly._clock = lambda: now + 3600
    broker.locks[FIRST] = "another"
    broker.append("T", 0, b"not ours any more")
    await until(lambda: FIRST not in consumer.queues)
    assert seen.bodies == []


async def test_a_lock_that_lapsed_is_not_simply_taken_up_again(broker, start, seen, until) -> None:
    consumer = await start(seen)
    await until(lambda: broker.waits_at("T", 0, 0))
    now = asyncio.get_running_loop().time()
    consumer._orderly._clock = lambda: now + 3600
    broker.committed["g", "T", 0] = 1  # what another one did while the lock had lapsed
    await consumer._orderly.renew_locks()
    assert FIRST not in consumer.queues
    consumer._orderly._clock = asyncio.get_running_loop().time
    for body in (b"done elsewhere", b"ours"):
        broker.append("T", 0, body)
    await until(lambda: seen.bodies == [b"ours"])


async def test_a_broker_that_cannot_be_asked_costs_no_lock(broker, start, seen, until) -> None:
    consumer = await start(seen, lock_interval_s=0.02)
    asked = []

    def fail(_, command):
        asked.append(command)
        return encode_response(command, 1, "no")

    broker.answers[RequestCode.LOCK_BATCH_MQ] = fail
    await until(lambda: len(asked) >= 3)
    assert FIRST in consumer.queues


async def test_close_unlocks_after_the_offset_is_stored(broker, start, seen, until) -> None:
    broker.append("T", 0, b"x")
    consumer = await start(seen)
    await until(lambda: bool(seen.bodies))
    await consumer.close()
    assert broker.locks == {}
    last_commit = max(
        i for i, c in enumerate(broker.requests) if c.code == RequestCode.UPDATE_CONSUMER_OFFSET
    )
    unlocks = [
        i
        for i, c in enumerate(broker.requests)
        if c.code == RequestCode.UNLOCK_BATCH_MQ and FIRST in LockBatch.parse(c.body).queues
    ]
    assert unlocks[0] > last_commit


async def test_a_lock_stays_while_a_listener_still_runs(broker, start, until) -> None:
    gate = asyncio.Event()
    working: list[int] = []

    async def listener(messages: list[ReceivedMessage]) -> None:
        working.append(1)
        await gate.wait()

    broker.append("T", 0, b"x")
    consumer = await start(listener, close_timeout_s=0.01)
    await until(lambda: bool(working))
    await consumer.close()
    assert broker.locks == {FIRST: consumer.client_id}


async def test_broadcasting_needs_no_locks(broker, start, seen, until, tmp_path) -> None:
    await start(seen, model=Model.BROADCASTING, offset_directory=tmp_path)
    broker.append("T", 0, b"x")
    await until(lambda: seen.bodies == [b"x"])
    assert broker.of(RequestCode.LOCK_BATCH_MQ) == []
