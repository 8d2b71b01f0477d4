"""How rows are gathered into batches at least once: by queue, and as many as a broker takes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any, cast

import pytest

from aerobee.broker.messages.send import _LARGE_BATCH
from aerobee.client.loop_thread import LoopThread
from aerobee.client.producing.sender import Outgoing, SendStatus
from aerobee.client.producing.staging import StageClient
from aerobee.pipeline.sink.rows import MOST_TOGETHER, PackedRun, Row
from aerobee.pipeline.sink.send import PlainSender
from aerobee.pipeline.sink.sink_options import read_sink_options
from aerobee.protocol.bodies.common import MessageQueue


class Recorded:
    """In the place of the client: keeps what is sent, and says that it is stored."""

    status = SendStatus.OK

    def __init__(self) -> None:
        self.sent: list[tuple[Outgoing, MessageQueue]] = []

    def sender(self, group: str) -> Recorded:
        return self

    async def attempt(self, outgoing: Outgoing, queue: MessageQueue, timeout_s: float) -> Recorded:
        self.sent.append((outgoing, queue))
        return self

    async def with_backoff(self, work: Callable[[], Coroutine[Any, Any, Recorded]]) -> Recorded:
        return await work()


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    running = LoopThread.acquire()
    yield running
    running.release()


def queue(number: int) -> MessageQueue:
    return MessageQueue("T", "b", number)


def test_so_many_are_no_large_batch_to_the_broker() -> None:
    assert MOST_TOGETHER < _LARGE_BATCH


def test_batches_have_what_a_broker_takes_at_once(thread: LoopThread) -> None:
    client = Recorded()
    options = read_sink_options({"nameServer": "127.0.0.1:9876", "topic": "T"}, streaming=False)
    sender = PlainSender(cast("StageClient", client), thread, options)
    pieces = [(0, 100), (1, 100), (0, 27), (0, 1), (1, 28), (0, 127)]
    number = 0
    for of_queue, rows in pieces:
        sender.add_piece(
            PackedRun(queue(of_queue), number, number + rows - 1, rows, memoryview(b"x" * rows))
        )
        number += rows
    for _ in range(2 * MOST_TOGETHER):
        sender.add(Row(number, queue(2), 0, b"body", b"", 0))
    sender.finish()
    sizes = [(of.queue_id, len(outgoing.body)) for outgoing, of in client.sent]
    row = Row(0, queue(2), 0, b"body", b"", 0).size
    assert sorted(sizes) == [
        (0, 1), (0, 127), (0, 127), (1, 28), (1, 100), (2, 127 * row), (2, 127 * row),
    ]  # fmt: skip
    assert all(outgoing.batch for outgoing, _ in client.sent)
