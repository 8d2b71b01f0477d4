"""`aerobee message send`: from the command line or standard input, one message or many."""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from aerobee.cli.cluster.command_session import (
    check_broker,
    check_message_id,
    client_command,
    name_servers,
    security_of,
)
from aerobee.cli.printing.output import OK, USAGE, CommandFailed, print_json, print_table, say
from aerobee.cli.printing.times import exact_time, parse_time
from aerobee.client.errors import ClientError
from aerobee.client.message import Message
from aerobee.client.options import ProducerOptions
from aerobee.client.producing.producer import Producer
from aerobee.client.producing.sender import SendResult, SendStatus
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.message.recall import RecallHandle, decode_handle


@client_command
async def send(parsed: argparse.Namespace) -> int:
    """Send, and print where each message came to lie."""
    if parsed.lines and parsed.body is not None:
        raise CommandFailed("--lines reads standard input: leave the body out", USAGE)
    if parsed.body is None and sys.stdin.isatty():
        raise CommandFailed("give a body, or pipe one into standard input", USAGE)
    if parsed.queue is not None and parsed.order_key is not None:
        raise CommandFailed("--queue and --order-key exclude each other", USAGE)
    if parsed.broker is not None and parsed.queue is None:
        raise CommandFailed("--broker needs --queue: it says whose queue is meant", USAGE)
    options = ProducerOptions(send_timeout_s=parsed.timeout, **security_of(parsed))
    rows: list[SendResult] = []
    count = 0  # of the messages that were sent
    async with Producer(name_servers(parsed), options=options) as producer:
        queue = await _queue(producer, parsed)
        try:
            async for body in _bodies(parsed):
                message = _message(parsed, body)
                if parsed.oneway:
                    await producer.send_oneway(message, queue=queue, key=parsed.order_key)
                else:
                    result = await producer.send(message, queue=queue, key=parsed.order_key)
                    if parsed.json:
                        print_json(_fields(result), compact=True)
                    else:
                        rows.append(result)
                count += 1
        except (ClientError, asyncio.CancelledError):
            # Acknowledged messages are stored: to send the rest, the user has to know its start.
            if count:
                _report(rows, count, parsed)
                say(f"{count} messages were sent before it ended")
            raise
    _report(rows, count, parsed)
    if parsed.lines and not parsed.oneway:
        say("1 message was sent" if count == 1 else f"{count} messages were sent")
    return OK


def _report(results: list[SendResult], count: int, parsed: argparse.Namespace) -> None:
    columns = ("status", "broker", "queue", "offset", "message id")
    rows = [
        (r.status.name, r.queue.broker_name, r.queue.queue_id, r.queue_offset, r.msg_id)
        for r in results
    ]
    times = [_deliver_ms(result) for result in results]
    if any(times):
        print_table(
            (*columns, "deliver at"),
            [(*row, exact_time(at) if at else "") for row, at in zip(rows, times, strict=True)],
        )
    else:
        print_table(columns, rows)

    for result in results:
        if result.recall_handle:
            say(f"recall handle of {result.msg_id}: {result.recall_handle}")
    unsure = sum(result.status is not SendStatus.OK for result in results)
    if unsure:
        say(f"{unsure} of {count} messages are stored, but not flushed or copied as configured")
    if parsed.oneway:
        say(f"{count} sent without asking for an answer")


def _deliver_ms(result: SendResult) -> int:
    """The time when the broker will deliver it, from its recall handle; 0 without a recall handle
    of ours."""
    try:
        return decode_handle(result.recall_handle).deliver_ms if result.recall_handle else 0
    except ValueError:
        return 0


async def _queue(producer: Producer, parsed: argparse.Namespace) -> MessageQueue | None:
    """The queue asked for by number, on the broker named or the only broker there is."""
    if parsed.queue is None:
        return None
    queues = await producer.queues(parsed.topic)
    await check_broker(parsed, (queue.broker_name for queue in queues))
    found = [
        queue
        for queue in queues
        if queue.queue_id == parsed.queue and parsed.broker in (None, queue.broker_name)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(queue.broker_name for queue in found)
        raise CommandFailed(f"several brokers have queue {parsed.queue}: --broker {names}?", USAGE)
    raise CommandFailed(f"topic {parsed.topic} has no queue {parsed.queue} to send to")


async def _bodies(parsed: argparse.Namespace) -> AsyncIterator[bytes]:
    """Bodies to send; a line is sent as soon as it was read."""
    if parsed.lines:
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            if text := line.rstrip(b"\r\n"):
                yield text
        return
    if parsed.body is None:
        body = await asyncio.to_thread(sys.stdin.buffer.read)
    else:
        body = parsed.body.encode("utf-8", "surrogateescape")
    for _ in range(parsed.repeat):
        yield body


def _message(parsed: argparse.Namespace, body: bytes) -> Message:
    properties = {}
    for text in parsed.property:
        name, equals, value = text.partition("=")
        if not equals:
            raise CommandFailed(f"--property must be NAME=VALUE, not {text!r}", USAGE)
        properties[name] = value
    return Message(
        parsed.topic,
        body,
        tags=parsed.tags,
        keys=tuple(parsed.keys),
        properties=properties,
        delay_level=parsed.delay_level,
        deliver_at_ms=parse_time(parsed.deliver_at) if parsed.deliver_at else 0,
        delay_s=parsed.delay or 0,
    )


@client_command
async def cancel(parsed: argparse.Namespace) -> int:
    """Recall a message that waits for its time."""
    given = [parsed.id is not None, parsed.deliver_at is not None]
    if (parsed.handle is not None) == any(given) or any(given) != all(given):
        raise CommandFailed("give the recall handle, or --id and --deliver-at", USAGE)
    deliver_ms = 0
    if parsed.handle is None:
        check_message_id(parsed.id)
        deliver_ms = _time_to_come(parsed.deliver_at)
    options = ProducerOptions(send_timeout_s=parsed.timeout, **security_of(parsed))
    async with Producer(name_servers(parsed), options=options) as producer:
        handle = parsed.handle or await _made_handle(producer, parsed, deliver_ms)
        msg_id = await producer.recall(parsed.topic, handle)
    # The producer has read the handle, so it can be read.
    deliver_ms = decode_handle(handle).deliver_ms
    if parsed.json:
        fields = {"topic": parsed.topic, "msg_id": msg_id, "deliver_at_ms": deliver_ms}
        print_json(fields, compact=True)
    else:
        say(
            f"the recall is stored: if a message {msg_id} of {parsed.topic} waits for exactly "
            f"{exact_time(deliver_ms)}, it is not delivered; nobody checks whether one does"
        )
    return OK


def _time_to_come(text: str) -> int:
    """The time in `--deliver-at`, in ms since 1970; CommandFailed if it has passed."""
    deliver_ms = parse_time(text)
    if deliver_ms <= time.time_ns() // 1_000_000:
        raise CommandFailed(
            f"--deliver-at {text} has come already ({exact_time(deliver_ms)}), so what waited for "
            "it is delivered: give the time that message send printed, ISO or ms since 1970"
        )
    return deliver_ms


async def _made_handle(producer: Producer, parsed: argparse.Namespace, deliver_ms: int) -> str:
    """The handle that the broker gave for `--id` and its time."""
    queues = await producer.queues(parsed.topic)
    brokers = sorted({queue.broker_name for queue in queues})
    if parsed.broker is None and len(brokers) > 1:
        names = ", ".join(brokers)
        raise CommandFailed(f"several brokers have the topic: --broker {names}?", USAGE)
    broker = parsed.broker or brokers[0]
    return RecallHandle(parsed.topic, broker, deliver_ms, parsed.id).encode()


def _fields(result: SendResult) -> dict[str, Any]:
    deliver_ms = _deliver_ms(result)
    return {
        "status": result.status.name,
        "topic": result.queue.topic,
        "broker": result.queue.broker_name,
        "queue": result.queue.queue_id,
        "offset": result.queue_offset,
        **({"deliver_at_ms": deliver_ms} if deliver_ms else {}),
        **({"recall_handle": result.recall_handle} if result.recall_handle else {}),
        "msg_id": result.msg_id,
        "offset_msg_id": result.offset_msg_id,
    }
