"""Prints messages as they arrive, until Ctrl-C; start several and they share the queues."""

import asyncio
import os

from aerobee.client import PushConsumer, ReceivedMessage


async def show(messages: list[ReceivedMessage]) -> None:
    for message in messages:
        print(message.queue.queue_id, message.queue_offset, message.body.decode(), flush=True)


async def main() -> None:
    name_server = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
    async with PushConsumer(name_server, "greeters", show) as consumer:
        await consumer.subscribe("greetings")
        await asyncio.Event().wait()


try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("left the group; start again to go on from here")
