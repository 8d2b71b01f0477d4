"""Our own client as a peer of the interop tests, on the asyncio face of the package.

Its command line and its output are those of every other peer (tests/interop/README.md).
"""

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from aerobee.client.consuming.listener import Consumed
from aerobee.client.consuming.push_consumer import PushConsumer
from aerobee.client.errors import ClientError
from aerobee.client.message import Message, ReceivedMessage
from aerobee.client.options import ConsumeFrom, ProducerOptions, PushOptions
from aerobee.client.producing.producer import Producer
from aerobee.client.producing.sender import SendResult, SendStatus
from aerobee.protocol.bodies.common import MessageQueue

BATCH = 32
ASYNC_WINDOW = 128


def say(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


class Sending:
    """One producer with its queues; message n goes to queue n mod queues."""

    def __init__(self, options: argparse.Namespace, producer: Producer) -> None:
        self.options = options
        self.producer = producer
        self.queues: list[MessageQueue] = []
        self.failed = 0

    async def run(self) -> None:
        self.queues = await self.producer.queues(self.options.topic)
        modes = self.options.modes.split(",")
        count = self.options.count
        for i, mode in enumerate(modes):
            part = range(count * i // len(modes), count * (i + 1) // len(modes))
            await {
                "sync": self.sync,
                "async": self.concurrent,
                "oneway": self.oneway,
                "batch": self.batch,
            }[mode](part)
        say(done=count, failed=self.failed)

    async def sync(self, sequences: range) -> None:
        for n in sequences:
            await self.insist(n, partial(self.send, "sync", n))
            await asyncio.sleep(self.options.interval_ms / 1000)

    async def concurrent(self, sequences: range) -> None:
        window = asyncio.Semaphore(ASYNC_WINDOW)

        async def one(n: int) -> None:
            async with window:
                await self.insist(n, partial(self.send, "async", n))

        async with asyncio.TaskGroup() as group:
            for n in sequences:
                group.create_task(one(n))

    async def send(self, mode: str, n: int) -> None:
        acknowledged(mode, n, 1, await self.producer.send(self.message(n), queue=self.queue(n)))

    async def oneway(self, sequences: range) -> None:
        for n in sequences:
            await self.producer.send_oneway(self.message(n), queue=self.queue(n))
            say(sent=n, mode="oneway")

    async def batch(self, sequences: range) -> None:
        for number, part in enumerate(parts(sequences)):
            await self.insist(part[0], partial(self.send_batch, part, number))

    async def send_batch(self, part: range, number: int) -> None:
        messages = [self.message(n) for n in part]
        result = await self.producer.send_batch(messages, queue=self.queue(number))
        acknowledged("batch", part[0], len(part), result)

    async def insist(self, n: int, attempt: Callable[[], Awaitable[None]]) -> None:
        """Tries until it succeeds or --retry-seconds have passed: a killed broker comes back."""
        deadline = time.monotonic() + self.options.retry_seconds
        while True:
            try:
                return await attempt()
            except ClientError as error:
                self.failed += 1
                say(fail=n, error=repr(error))
                if time.monotonic() >= deadline:
                    return None
                await asyncio.sleep(0.2)

    def queue(self, n: int) -> MessageQueue:
        return self.queues[n % len(self.queues)]

    def message(self, n: int) -> Message:
        body = f"{self.options.prefix}-{self.options.producer}-{n}"
        keys = body if self.options.keys == "yes" else ""
        tags = "" if self.options.tag == "*" else self.options.tag
        return Message(self.options.topic, body.encode(), tags=tags, keys=keys)


def acknowledged(mode: str, first: int, count: int, result: SendResult) -> None:
    assert result.status is SendStatus.OK, result.status
    ids, offset_ids = result.msg_id.split(","), result.offset_msg_id.split(",")
    for i in range(count):
        say(
            ack=first + i,
            mode=mode,
            id=ids[i],
            offsetId=offset_ids[i],
            queue=result.queue.queue_id,
            offset=result.queue_offset + i,
        )


def parts(sequences: range) -> Iterator[range]:
    for start in range(sequences.start, sequences.stop, BATCH):
        yield range(start, min(start + BATCH, sequences.stop))


def access(options: argparse.Namespace) -> dict[str, Any]:
    """Credentials that brokers may ask of clients: a signature, TLS, a certificate."""
    return {
        "access_key": options.access_key,
        "secret_key": options.secret_key,
        "use_tls": options.tls == "yes",
        "trust_store": options.trust_store,
        "certificate": options.certificate,
        "certificate_key": options.certificate_key,
    }


async def produce(options: argparse.Namespace) -> None:
    wanted = ProducerOptions(**access(options))
    async with Producer(options.namesrv, options.group, wanted) as producer:
        await Sending(options, producer).run()


async def consume(options: argparse.Namespace) -> None:
    seen: set[bytes] = set()
    enough = asyncio.Event()

    async def received(messages: list[ReceivedMessage]) -> Consumed:
        for message in messages:
            if options.reject_first == "yes" and message.reconsume_times == 0:
                return Consumed.RETRY
            say(
                queue=message.queue.queue_id,
                offset=message.queue_offset,
                body=message.body.decode(),
                keys=" ".join(message.keys),
                id=message.msg_id,
                reconsume=message.reconsume_times,
            )
            seen.add(message.body)
        if 0 < options.count <= len(seen):
            enough.set()
        return Consumed.SUCCESS

    orderly = options.mode == "orderly"
    push = PushOptions(orderly=orderly, consume_from=ConsumeFrom.FIRST, **access(options))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, enough.set)
    async with PushConsumer(options.namesrv, options.group, received, push) as consumer:
        await consumer.subscribe(options.topic, options.tag)
        say(ready=1)
        try:
            await asyncio.wait_for(enough.wait(), options.timeout)
        except TimeoutError:
            return


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["produce", "consume"])
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="peers")
    parser.add_argument("--modes", default="sync")
    parser.add_argument("--mode", default="concurrent", choices=["concurrent", "orderly"])
    parser.add_argument("--prefix", default="m")
    parser.add_argument("--producer", default="aerobee")
    parser.add_argument("--tag", default="*")
    parser.add_argument("--keys", default="no", choices=["yes", "no"])
    parser.add_argument("--reject-first", default="no", choices=["yes", "no"])
    parser.add_argument("--access-key")
    parser.add_argument("--secret-key")
    parser.add_argument("--tls", default="no", choices=["yes", "no"])
    parser.add_argument("--trust-store")
    parser.add_argument("--certificate")
    parser.add_argument("--certificate-key")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--interval-ms", type=int, default=0)
    parser.add_argument("--retry-seconds", type=int, default=0)
    parser.add_argument("--timeout", type=int, default=60)
    options = parser.parse_args()
    asyncio.run({"produce": produce, "consume": consume}[options.command](options))


if __name__ == "__main__":
    main()
