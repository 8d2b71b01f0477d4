"""Producer and consumer over a restart of the broker: nothing lost, nothing hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import aerobee.testing
from aerobee.client import (
    ClientError,
    ConsumeFrom,
    Message,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
)


async def eventually(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - any condition, not an event
            await asyncio.sleep(0.005)


async def test_clients_go_on_after_the_broker_was_restarted(tmp_path: Path) -> None:
    bodies: list[bytes] = []
    acknowledged: set[bytes] = set()
    stop = asyncio.Event()

    async def listener(messages: list[ReceivedMessage]) -> None:
        bodies.extend(message.body for message in messages)

    async def keep_sending(producer: Producer) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            body = b"%d" % number
            try:
                await producer.send(Message("BenchmarkTest", body), key="one queue")
            except ClientError:
                await asyncio.sleep(0.01)
            else:
                acknowledged.add(body)

    loop = asyncio.get_running_loop()
    with ExitStack() as running:
        broker = running.enter_context(aerobee.testing.broker(store_path=str(tmp_path)))
        ports = {
            "listen_port": int(broker.broker.rpartition(":")[2]),
            "nameserver_port": int(broker.name_server.rpartition(":")[2]),
        }
        producing = ProducerOptions(send_timeout_s=2)
        consuming = PushOptions(
            consume_from=ConsumeFrom.FIRST, pull_retry_delay_s=0.05, rebalance_interval_s=1
        )
        async with (
            Producer(broker.name_server, "restart", producing) as producer,
            PushConsumer(broker.name_server, "restart", listener, consuming) as consumer,
        ):
            await consumer.subscribe("BenchmarkTest")
            sending = asyncio.ensure_future(keep_sending(producer))
            await eventually(lambda: len(bodies) > 100)
            await loop.run_in_executor(None, running.close)
            before = len(acknowledged)
            again = aerobee.testing.broker(store_path=str(tmp_path), **ports)
            await loop.run_in_executor(None, running.enter_context, again)
            await eventually(lambda: len(acknowledged) > before + 100)
            stop.set()
            await sending
            await eventually(lambda: acknowledged <= set(bodies))
        await loop.run_in_executor(None, running.close)
