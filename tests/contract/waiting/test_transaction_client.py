"""The promises of the client's producer of transactions, asyncio and blocking, on real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import aerobee.testing
from aerobee.client import (
    BadMessage,
    Decision,
    Message,
    PullConsumer,
    ReceivedMessage,
    SendFailed,
    TransactionOptions,
    TransactionProducer,
    blocking_roles,
)
from aerobee.testing import RunningBroker

QUICK = {"transaction_timeout_ms": 1, "transaction_check_interval_ms": 100}
TIMEOUT_S = 20.0
aerobee_broker = aerobee.testing.aerobee_broker  # the fixture, for this module


class Says:
    """A listener that says what a test wants, and remembers what it was asked."""

    def __init__(self, executed: Any, checked: Any = Decision.UNKNOWN) -> None:
        self.executed, self.checked = executed, checked
        self.done: list[tuple[bytes, str]] = []
        self.asked: asyncio.Queue[ReceivedMessage] = asyncio.Queue()

    async def execute(self, message: Message, msg_id: str) -> Any:
        self.done.append((bytes(message.body), msg_id))
        if isinstance(self.executed, Exception):
            raise self.executed
        return self.executed

    async def check(self, message: ReceivedMessage) -> Any:
        self.asked.put_nowait(message)
        if isinstance(self.checked, Exception):
            raise self.checked
        return self.checked


async def bodies(running: RunningBroker, topic: str) -> list[bytes]:
    """All that consumers can see of a topic now."""
    found: list[bytes] = []
    async with PullConsumer(running.name_server) as consumer:
        for queue in await consumer.queues(topic):
            end = await consumer.max_offset(queue)
            offset = await consumer.min_offset(queue)
            while offset < end:
                pulled = await consumer.pull(queue, offset)
                found += [message.body for message in pulled.messages]
                offset = pulled.next_offset
    return sorted(found)


async def until(condition: Callable[[], Any]) -> None:
    """Wait until an asynchronous condition holds."""
    async with asyncio.timeout(TIMEOUT_S):
        while not await condition():  # noqa: ASYNC110 - consumers see it, nobody tells
            await asyncio.sleep(0.02)


async def test_commit_delivers_and_rollback_does_not(aerobee_broker: RunningBroker) -> None:
    says = Says(Decision.COMMIT)
    async with TransactionProducer(aerobee_broker.name_server, "PG", says) as producer:
        result = await producer.send_in_transaction(Message("Paid", b"yes", tags="T", keys="k"))
        assert (result.decision, result.confirmed) == (Decision.COMMIT, True)
        assert says.done == [(b"yes", result.sent.msg_id)]
        says.executed = Decision.ROLLBACK
        refused = await producer.send_in_transaction(Message("Paid", b"no"))
        assert (refused.decision, refused.confirmed) == (Decision.ROLLBACK, True)
        await producer.send(Message("Paid", b"plain"))
    assert await bodies(aerobee_broker, "Paid") == [b"plain", b"yes"]


async def test_what_is_not_sent_is_not_executed(aerobee_broker: RunningBroker) -> None:
    says = Says(Decision.COMMIT)
    async with TransactionProducer(aerobee_broker.name_server, "PG", says) as producer:
        with pytest.raises(BadMessage, match="delay level"):
            await producer.send_in_transaction(Message("Late", b"x", delay_level=3))
        with pytest.raises(BadMessage):
            await producer.send_in_transaction(Message("Late", b""))
    with aerobee.testing.broker(reject_transactions=True) as running:
        async with TransactionProducer(running.name_server, "PG", says) as producer:
            with pytest.raises(SendFailed, match="forbidden"):
                await producer.send_in_transaction(Message("Off", b"x"))
    assert says.done == []


@pytest.mark.parametrize("executed", [Decision.UNKNOWN, "rubbish", ValueError("no luck")])
async def test_an_undecided_one_is_checked_back(executed: Any) -> None:
    says = Says(executed, Decision.COMMIT)
    with aerobee.testing.broker(**QUICK) as running:
        async with TransactionProducer(running.name_server, "PG", says) as producer:
            message = Message("Asked", b"m", tags="T", properties={"own": "1"})
            if isinstance(executed, Exception):
                with pytest.raises(ValueError, match="no luck"):
                    await producer.send_in_transaction(message)
            else:
                result = await producer.send_in_transaction(message)
                assert (result.decision, result.confirmed) == (Decision.UNKNOWN, False)
            asked = await asyncio.wait_for(says.asked.get(), TIMEOUT_S)
            assert (asked.topic, asked.body, asked.tags) == ("Asked", b"m", "T")
            assert (asked.msg_id, asked.properties["own"]) == (says.done[0][1], "1")
            assert asked.queue.broker_name == "test-broker"

            async def delivered() -> bool:
                return await bodies(running, "Asked") == [b"m"]

            await until(delivered)


async def test_another_producer_of_the_group_answers_for_one_that_died() -> None:
    with aerobee.testing.broker(**QUICK) as running:
        died = Says(Decision.UNKNOWN)
        async with TransactionProducer(running.name_server, "PG", died) as producer:
            await producer.send_in_transaction(Message("Inherited", b"m"))
        heir = Says(Decision.UNKNOWN, ValueError("the first check fails"))
        async with TransactionProducer(running.name_server, "PG", heir):
            await asyncio.wait_for(heir.asked.get(), TIMEOUT_S)
            heir.checked = Decision.COMMIT
            await asyncio.wait_for(heir.asked.get(), TIMEOUT_S)

            async def delivered() -> bool:
                return await bodies(running, "Inherited") == [b"m"]

            await until(delivered)
        other = Says(Decision.UNKNOWN, Decision.COMMIT)
        async with TransactionProducer(running.name_server, "Other", other):
            assert other.asked.empty()


async def test_checks_beyond_those_that_may_wait_are_dropped_and_come_again() -> None:
    says = Says(Decision.UNKNOWN, Decision.COMMIT)
    options = TransactionOptions(check_concurrency=1, checks_waiting=2)
    with aerobee.testing.broker(**QUICK) as running:
        async with TransactionProducer(running.name_server, "PG", says, options) as producer:
            for number in range(20):
                await producer.send_in_transaction(Message("Crowd", b"%d" % number))

            async def delivered() -> bool:
                return len(await bodies(running, "Crowd")) == 20

            await until(delivered)


class Plain:
    """A listener of plain methods, which run in threads."""

    def __init__(self) -> None:
        self.checked = threading.Event()
        self.threads: set[str] = set()

    def execute(self, message: Message, _msg_id: str) -> Decision:
        self.threads.add(threading.current_thread().name.rpartition("_")[0])
        return Decision.COMMIT if message.body == b"now" else Decision.UNKNOWN

    def check(self, _message: ReceivedMessage) -> Decision:
        self.checked.set()
        return Decision.ROLLBACK


def test_the_blocking_producer_does_the_same() -> None:
    listener = Plain()
    with aerobee.testing.broker(**QUICK) as running:
        with blocking_roles.TransactionProducer(running.name_server, "PG", listener) as producer:
            assert producer.send_in_transaction(Message("Plain", b"now")).confirmed
            later = producer.send_in_transaction(Message("Plain", b"later"))
            assert later.decision is Decision.UNKNOWN
            assert listener.checked.wait(TIMEOUT_S)
        assert listener.threads == {"aerobee-transaction"}
        assert asyncio.run(bodies(running, "Plain")) == [b"now"]
