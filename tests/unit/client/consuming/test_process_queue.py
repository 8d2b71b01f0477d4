"""Offsets that may be committed, and waiters that are woken."""

from __future__ import annotations

import asyncio
import zlib

import pytest

from aerobee.client.consuming.process_queue import ProcessQueue
from aerobee.client.message import ReceivedMessage, received
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.message.record import decode_record


@pytest.fixture
def messages(stored) -> list[ReceivedMessage]:
    return [received(decode_record(stored("T", 0, offset, b"x")), "a") for offset in range(5)]


def assigned(start: int = 0) -> ProcessQueue:
    return ProcessQueue(MessageQueue("T", "a", 0), start)


def test_the_oldest_unfinished_offset_is_what_may_be_committed(messages) -> None:
    queue = assigned()
    queue.add(messages)
    assert queue.finish([messages[1], messages[2]]) == 0
    assert queue.finish([messages[0]]) == 3
    assert queue.finish([messages[4]]) == 3
    assert queue.finish([messages[3]]) == 5


def test_counts_and_bytes_follow_what_is_cached(messages) -> None:
    queue = assigned()
    queue.add(messages)
    assert (queue.cached_count, queue.cached_bytes) == (5, 5 * messages[0].size)
    queue.finish(messages)
    assert (queue.cached_count, queue.cached_bytes, queue.span) == (0, 0, 0)


def test_messages_of_one_offset_are_finished_one_by_one(stored) -> None:
    """Messages of a light queue have the offsets of the queues that they were sent to: a second
    message of an offset ended the worker that consumed it."""
    one, other = (received(decode_record(stored("T", 0, 7, body)), "a") for body in (b"x", b"yy"))
    queue = assigned(7)
    queue.add([one, other])
    assert queue.finish([other]) == 7
    assert (queue.cached_count, queue.cached_bytes) == (1, one.size)
    assert queue.finish([one]) == 8
    assert (queue.cached_count, queue.cached_bytes) == (0, 0)


def test_span_is_from_the_oldest_unfinished_to_the_newest(messages) -> None:
    queue = assigned()
    queue.add(messages)
    queue.finish(messages[1:4])
    assert (queue.span, queue.oldest_offset, queue.newest_offset) == (4, 0, 4)


def test_filtered_offsets_may_be_committed_only_when_nothing_is_cached(messages) -> None:
    queue = assigned()
    assert queue.skip_to(7)
    assert queue.committable == 7
    queue.add(messages[:1])
    assert not queue.skip_to(9)
    assert queue.committable == 7


async def test_waiting_for_room_ends_when_a_message_is_finished(messages) -> None:
    queue = assigned()
    queue.add(messages)
    waiting = asyncio.ensure_future(queue.wait_until(lambda: queue.cached_count < 5))
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.finish(messages[:1])
    async with asyncio.timeout(5):
        await waiting


async def test_every_waiter_is_woken_when_the_queue_is_dropped() -> None:
    queue = assigned()
    waiters = [asyncio.ensure_future(queue.wait_until(lambda: False)) for _ in range(3)]
    waiters.append(asyncio.ensure_future(queue.pause(60)))
    await asyncio.sleep(0)
    queue.drop()
    async with asyncio.timeout(5):
        await asyncio.gather(*waiters)


async def test_waiting_for_idle_says_whether_the_listeners_ended_in_time() -> None:
    queue = assigned()
    assert await queue.wait_idle(0)
    queue.in_listener = 1
    assert not await queue.wait_idle(0.01)
    waiting = asyncio.ensure_future(queue.wait_idle(5))
    await asyncio.sleep(0)
    queue.in_listener = 0
    queue.signal()
    assert await waiting


def test_a_body_counts_by_what_it_became_and_not_by_what_a_listener_made_of_it(stored) -> None:
    record = stored("T", 0, 0, zlib.compress(bytes(60_000)), sys_flag=1)
    message = received(decode_record(record), "a")
    queue = assigned()
    queue.add([message])
    assert queue.cached_bytes == 60_000
    message.body = b""
    queue.finish([message])
    assert queue.cached_bytes == 0
