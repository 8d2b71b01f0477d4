"""`aerobee message pull`, `tail` and `query`: reading messages without leaving a trace.

Nothing here belongs to a consumer group: no heartbeat, no committed offset, no rebalancing. `pull`
reads the messages there now, all queues merged by store time; `tail` follows all queues and prints
as messages arrive; `query` finds by key or id.
"""

import argparse
import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from aerobee.cli.cluster.command_session import (
    admin_of,
    check_broker,
    check_message_id,
    client_command,
    consumer_of,
)
from aerobee.cli.printing.message_text import Printer
from aerobee.cli.printing.output import OK, REFUSED, USAGE, CommandFailed, say
from aerobee.cli.printing.times import is_offset, parse_time
from aerobee.client.admin import FAR_FUTURE_MS, Admin
from aerobee.client.consuming.pull_consumer import PullConsumer
from aerobee.client.consuming.puller import PullStatus, make_subscription
from aerobee.client.errors import CallerError, NetworkError, PeerFailed
from aerobee.client.message import ReceivedMessage
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.filters.property_filter import SQL_TYPE, TAG_TYPE

_BATCH: Final = 32
_ENDS: Final = ("earliest", "latest")
# A pull of `tail` is held by the broker this long; shorter than what proxies usually allow.
_WAIT_MS: Final = 15_000
_RETRY_S: Final = 1.0
_TAIL_BUFFER: Final = 1000
_PLACES_SHOWN: Final = 16


class _Filter(NamedTuple):
    """The selection of messages."""

    expression: str
    kind: str
    text: str  # follows "no messages", "" for all


@client_command
async def pull(parsed: argparse.Namespace) -> int:
    """Print up to `--count` messages that are there, oldest first."""
    _check_reading(parsed)
    printer = Printer(json=parsed.json, full=parsed.full)
    wanted = _filter(parsed)
    async with consumer_of(parsed) as consumer:
        cursors = [
            _Cursor(consumer, queue, await _start(consumer, queue, parsed.start), wanted)
            for queue in await _queues(consumer, parsed)
        ]
        for cursor in cursors:
            cursor.end = await consumer.max_offset(cursor.queue)
        by_queue = {cursor.queue: cursor for cursor in cursors}
        async for message in _merged(cursors):
            printer.print(message)
            by_queue[message.queue].following = message.queue_offset + 1
            if printer.count == parsed.count:
                break
    if not printer.count:
        say(f"no messages in {parsed.topic} from {parsed.start} on{wanted.text}")
    elif printer.count == parsed.count:
        _say_rest(cursors, printer.count, filtered=bool(wanted.text))
    return OK


def _say_rest(cursors: list["_Cursor"], shown: int, *, filtered: bool) -> None:
    """Say what `--count` cut off, and the offsets where `--from` goes on, queue by queue."""
    unread = [cursor for cursor in cursors if cursor.following < cursor.end]
    rest = sum(cursor.end - cursor.following for cursor in unread)
    if not rest:
        return
    if filtered:
        text = f"{shown} shown, {rest} more not looked at; --count N for more"
    else:
        text = f"{shown} of {shown + rest} shown; --count N for more"
    places = [f"{one.queue.broker_name}/{one.queue.queue_id}@{one.following}" for one in unread]
    if len(places) > _PLACES_SHOWN:
        places[_PLACES_SHOWN:] = [f"and {len(places) - _PLACES_SHOWN} queues more"]
    if len(cursors) == 1:
        say(f"{text}, --from {unread[0].following} to go on")
    else:
        say(f"{text}; next offsets: {', '.join(places)}")


@client_command
async def tail(parsed: argparse.Namespace) -> int:
    """Print messages as they arrive."""
    _check_reading(parsed)
    printer = Printer(json=parsed.json, full=parsed.full)
    wanted = _filter(parsed)
    async with consumer_of(parsed) as consumer:
        queues = await _queues(consumer, parsed)
        starts = [await _start(consumer, queue, parsed.start) for queue in queues]
        arrived: asyncio.Queue[ReceivedMessage] = asyncio.Queue(_TAIL_BUFFER)
        try:
            async with asyncio.TaskGroup() as group:
                followers = [
                    group.create_task(_follow(consumer, queue, start, wanted, arrived))
                    for queue, start in zip(queues, starts, strict=True)
                ]
                while parsed.count is None or printer.count < parsed.count:
                    printer.print(await arrived.get())
                for follower in followers:
                    follower.cancel()
        except ExceptionGroup as errors:
            # All queues fail for the same reason; the first is enough to report.
            raise errors.exceptions[0] from None
    return OK


async def _follow(
    consumer: PullConsumer,
    queue: MessageQueue,
    offset: int,
    wanted: _Filter,
    arrived: asyncio.Queue[ReceivedMessage],
) -> None:
    """Hand on the messages that arrive in one queue, for ever; a broker that goes away is waited
    for."""
    lost = False
    while True:
        try:
            result = await consumer.pull(
                queue,
                offset,
                max_messages=_BATCH,
                expression=wanted.expression,
                expression_type=wanted.kind,
                wait_ms=_WAIT_MS,
            )
        except NetworkError as error:
            if not lost:
                say(f"{queue.broker_name}/{queue.queue_id}: {error}; trying on")
            lost = True
            await asyncio.sleep(_RETRY_S)
            continue
        lost = False
        offset = result.next_offset
        for message in result.messages:
            await arrived.put(message)


class _Cursor:
    """One queue read up to where it ended when the command began."""

    def __init__(
        self, consumer: PullConsumer, queue: MessageQueue, offset: int, wanted: _Filter
    ) -> None:
        self._consumer = consumer
        self._wanted = wanted
        self._offset = offset
        self.following = offset  # after the last message that was printed
        self._buffer: deque[ReceivedMessage] = deque()
        self.queue = queue
        self.end = 0

    async def next(self) -> ReceivedMessage | None:
        """The next message, None at the end."""
        while not self._buffer:
            if self._offset >= self.end:
                return None
            result = await self._consumer.pull(
                self.queue,
                self._offset,
                max_messages=_BATCH,
                expression=self._wanted.expression,
                expression_type=self._wanted.kind,
            )
            if result.status is PullStatus.NO_NEW or (
                not result.messages and result.next_offset <= self._offset
            ):
                return None
            self._offset = result.next_offset
            self._buffer.extend(m for m in result.messages if m.queue_offset < self.end)
        return self._buffer.popleft()


async def _merged(cursors: list[_Cursor]) -> AsyncIterator[ReceivedMessage]:
    """The messages of all cursors, by store time; holds one answer a queue at most."""
    heads: list[tuple[int, int, int, ReceivedMessage]] = []

    async def advance(index: int) -> None:
        message = await cursors[index].next()
        if message is not None:
            stored = message.store_timestamp_ms
            heapq.heappush(heads, (stored, message.log_offset, index, message))

    for index in range(len(cursors)):
        await advance(index)
    while heads:
        _, _, index, message = heapq.heappop(heads)
        yield message
        await advance(index)


def _check_reading(parsed: argparse.Namespace) -> None:
    """Refuse a start or a filter that means nothing before anybody is asked."""
    if parsed.start not in _ENDS and not is_offset(parsed.start):
        parse_time(parsed.start, "earliest, latest, an offset")
    wanted = _filter(parsed)
    make_subscription(parsed.topic, wanted.expression, wanted.kind)


def _filter(parsed: argparse.Namespace) -> _Filter:
    if parsed.sql is not None:
        return _Filter(parsed.sql, SQL_TYPE, f" where {parsed.sql}")
    tags = parsed.tags or "*"
    return _Filter(tags, TAG_TYPE, "" if tags == "*" else f" with tags {tags}")


async def _queues(consumer: PullConsumer, parsed: argparse.Namespace) -> list[MessageQueue]:
    """The queues asked for; CommandFailed when no queue is among them."""
    queues = await consumer.queues(parsed.topic)
    await check_broker(parsed, (queue.broker_name for queue in queues))
    found = [
        queue
        for queue in queues
        if parsed.queue in (None, queue.queue_id) and parsed.broker in (None, queue.broker_name)
    ]
    if not found:
        raise CommandFailed(f"topic {parsed.topic} has no such queue to read")
    return found


async def _start(consumer: PullConsumer, queue: MessageQueue, where: str) -> int:
    """The offset `--from` means in one queue."""
    if where == "earliest":
        return await consumer.min_offset(queue)
    if where == "latest":
        return await consumer.max_offset(queue)
    if is_offset(where):
        return max(int(where), await consumer.min_offset(queue))
    time_ms = parse_time(where)
    offset = await consumer.offset_at(queue, time_ms)
    # That is the nearest message, which may be from before: the last message, for a time to come.
    nearest = await consumer.pull(queue, offset, max_messages=1)
    earlier = [one for one in nearest.messages if one.store_timestamp_ms < time_ms]
    return earlier[0].queue_offset + 1 if earlier else offset


@client_command
async def query(parsed: argparse.Namespace) -> int:
    """Print the messages with a key or an id."""
    async with admin_of(parsed) as admin:
        found = await (_by_key(admin, parsed) if parsed.key else _by_id(admin, parsed))
    printer = Printer(json=parsed.json, full=parsed.full)
    for message in found[: parsed.max]:
        if parsed.topic and message.topic != parsed.topic:
            # A broker's id says a place in a log, whatever lies there.
            say(f"{parsed.id} is the id of a message of {message.topic}, not of {parsed.topic}")
        printer.print(message)
    return OK


async def _by_key(admin: Admin, parsed: argparse.Namespace) -> list[ReceivedMessage]:
    if not parsed.topic:
        raise CommandFailed("--key needs the topic: keys are looked up within one", USAGE)
    begin = parse_time(parsed.begin) if parsed.begin else 0
    end = parse_time(parsed.end) if parsed.end else FAR_FUTURE_MS
    found = await admin.query_by_key(
        parsed.topic, parsed.key, max_messages=parsed.max, begin_ms=begin, end_ms=end
    )
    if not found:
        looked = await _looked_at(admin, parsed.topic)
        if parsed.begin or parsed.end:
            looked += ", within that time"
        raise CommandFailed(f"no message with key {parsed.key} in {looked}; {_hint(parsed)}")
    return found


async def _by_id(admin: Admin, parsed: argparse.Namespace) -> list[ReceivedMessage]:
    """Both kinds of id look alike: a client's is looked for in the topic, a broker's at all brokers
    there are. CommandFailed says where it was looked for."""
    check_message_id(parsed.id)
    if parsed.topic and (found := await admin.query_by_unique_key(parsed.topic, parsed.id)):
        return found
    code = REFUSED
    try:
        return [await admin.view(parsed.id)]
    except PeerFailed as error:
        nowhere = str(error)
    except CallerError:
        code = USAGE
        nowhere = f"no message with id {parsed.id}: it names no place in a broker's log"
    if parsed.topic:
        looked = await _looked_at(admin, parsed.topic)
        nowhere += f"; no message whose client gave this id, in {looked}"
        raise CommandFailed(f"{nowhere}; {_hint(parsed)}")
    raise CommandFailed(
        f"{nowhere}; if a client gave the id, as message send prints, name the topic: "
        f"aerobee message query TOPIC --id {parsed.id}",
        code,
    )


async def _looked_at(admin: Admin, topic: str) -> str:
    """The brokers whose index was asked."""
    names = sorted(broker.name for broker in (await admin.route(topic)).brokers)
    more = f" and {len(names) - _PLACES_SHOWN} more" if len(names) > _PLACES_SHOWN else ""
    return f"topic {topic} at {', '.join(names[:_PLACES_SHOWN])}{more}"


def _hint(parsed: argparse.Namespace) -> str:
    return (
        "a message that waits for its time is in the index only from its delivery on, and can be "
        f"taken back until then: aerobee message cancel {parsed.topic}, with the handle that "
        "message send printed"
    )
