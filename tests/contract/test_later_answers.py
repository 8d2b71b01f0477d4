"""Requests that are answered later: a fault in one of them is answered, and is nobody else's."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import aerobee.testing
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.message.record import decode_records
from aerobee.store.disk.files import Files
from aerobee.store.errors import PageCacheBusy, StoreBroken, StoreError
from aerobee.store.reading.queue_reader import QueueReader
from aerobee.store.segments.results import GetResult
from aerobee.testing import RunningBroker
from tests.contract.conftest import Wire

WAIT_MS = 20_000
BROKEN = "the disk was taken away"

FAULTS = [
    (StoreBroken(BROKEN), ResponseCode.SERVICE_NOT_AVAILABLE, BROKEN),
    (PageCacheBusy("busy"), ResponseCode.SYSTEM_ERROR, "busy"),
    (
        OSError(5, "Input/output error"),
        ResponseCode.SYSTEM_ERROR,
        "the broker failed on this request (OSError); see its log",
    ),
    (
        ZeroDivisionError("a bug"),
        ResponseCode.SYSTEM_ERROR,
        "the broker failed on this request (ZeroDivisionError); see its log",
    ),
]


class Reads:
    """Reads of queues: they are counted, and the next ones raise what `faults` holds."""

    def __init__(self) -> None:
        self.count = 0
        self.faults: list[Exception] = []
        self._moved = threading.Condition()

    def met(self) -> None:
        """One more read; raises if that is its turn."""
        with self._moved:
            self.count += 1
            self._moved.notify_all()
        if self.faults:
            raise self.faults.pop(0)

    async def reach(self, count: int) -> None:
        """Wait until there were `count` reads."""

        def wait() -> bool:
            with self._moved:
                return self._moved.wait_for(lambda: self.count >= count, 10)

        assert await asyncio.to_thread(wait)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    reads = Reads()
    get = QueueReader.get

    def counted(reader: QueueReader, *args: Any) -> GetResult:
        reads.met()
        return get(reader, *args)

    monkeypatch.setattr(QueueReader, "get", counted)
    return reads


@pytest.fixture
def running(reads: Reads) -> Iterator[RunningBroker]:
    with aerobee.testing.broker() as broker:
        yield broker


class Pulls:
    """Pulls that are held, each on a connection of its own, in the order of their making."""

    def __init__(self, broker: str, reads: Reads) -> None:
        self._broker = broker
        self._reads = reads
        self._tasks: list[asyncio.Task[Command]] = []
        self.wires: list[Wire] = []

    async def hold(self, queue_id: int = 0, wait_ms: int = WAIT_MS) -> None:
        before = self._reads.count
        wire = await Wire.to(self._broker)
        self.wires.append(wire)
        pull = wire.pull("T", queueId=queue_id, sysFlag=6, suspendTimeoutMillis=wait_ms)
        self._tasks.append(asyncio.create_task(pull))
        await self._reads.reach(before + 1)

    async def answers(self) -> list[Command]:
        """The answers to them, well before the longest of them is over."""
        async with asyncio.timeout(WAIT_MS / 2_000):
            return [await task for task in self._tasks]

    def close(self) -> None:
        for wire in self.wires:
            wire.caller.close()


def bodies(answer: Command) -> list[bytes]:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return [message.body for message in decode_records(answer.body)]


def logged_bugs(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(("fault", "code", "remark"), FAULTS)
async def test_a_fault_has_the_answer_of_a_first_try_and_the_batch_goes_on(
    wire: Wire,
    running: RunningBroker,
    reads: Reads,
    caplog: pytest.LogCaptureFixture,
    fault: Exception,
    code: int,
    remark: str,
) -> None:
    assert (await wire.send("T", queue_id=3)).code == ResponseCode.SUCCESS
    reads.faults.append(fault)
    first_try = await wire.pull("T")
    caplog.clear()
    pulls = Pulls(running.broker, reads)
    for _ in range(3):
        await pulls.hold()
    reads.faults.append(fault)
    await wire.send("T", b"for all")
    later, *others = await pulls.answers()
    assert [bodies(other) for other in others] == [[b"for all"]] * 2
    assert (later.code, later.remark) == (code, remark)
    assert (first_try.code, first_try.remark) == (code, remark)
    if isinstance(fault, StoreError):
        assert logged_bugs(caplog) == []
    else:
        [record] = logged_bugs(caplog)
        assert record.exc_info is not None
        assert record.exc_info[1] is fault
    pulls.close()


async def test_a_fault_in_one_queue_keeps_no_message_from_another_one(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under SYNC_FLUSH, where one sync brings the messages of several queues."""
    may_sync = threading.Event()
    data_sync = Files.data_sync

    def gated(files: Files, fd: int) -> None:
        assert may_sync.wait(30)
        data_sync(files, fd)

    with aerobee.testing.broker(flush_disk_type="SYNC_FLUSH") as running:
        wire = await Wire.to(running.broker)
        assert (await wire.send("T", queue_id=3)).code == ResponseCode.SUCCESS
        pulls = Pulls(running.broker, reads)
        for queue_id in (0, 0, 1):
            await pulls.hold(queue_id)
        monkeypatch.setattr(Files, "data_sync", gated)
        sends = [asyncio.create_task(wire.send("T", queue_id=queue_id)) for queue_id in (0, 1)]
        # Answered in order: both sends are in the log when this one is answered.
        await wire.pull("T", queueId=2)
        reads.faults.append(StoreBroken(BROKEN))
        may_sync.set()
        assert [(await send).code for send in sends] == [ResponseCode.SUCCESS] * 2
        first, *others = await pulls.answers()
        assert first.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert [bodies(other) for other in others] == [[b"hello"]] * 2
        pulls.close()
        wire.caller.close()


async def test_a_fault_at_the_end_of_the_time_is_one_pull_s_own(
    wire: Wire, running: RunningBroker, reads: Reads
) -> None:
    assert (await wire.send("T", queue_id=3)).code == ResponseCode.SUCCESS
    pulls = Pulls(running.broker, reads)
    for queue_id in (0, 0, 1):
        await pulls.hold(queue_id, 1_500)
    reads.faults.append(StoreBroken(BROKEN))
    codes = [answer.code for answer in await pulls.answers()]
    assert codes == [
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_NOT_FOUND,
    ]
    pulls.close()


async def test_a_fault_at_the_stop_is_one_pull_s_own(reads: Reads) -> None:
    with aerobee.testing.broker() as running:
        wire = await Wire.to(running.broker)
        assert (await wire.send("T", queue_id=3)).code == ResponseCode.SUCCESS
        pulls = Pulls(running.broker, reads)
        for queue_id in (0, 0, 1):
            await pulls.hold(queue_id)
        reads.faults.append(ZeroDivisionError("a bug"))
        answers = asyncio.create_task(pulls.answers())
    codes = [answer.code for answer in await answers]
    assert codes == [
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_NOT_FOUND,
    ]
    pulls.close()
    wire.caller.close()


async def test_a_client_that_has_left_keeps_nobody_waiting(
    wire: Wire, running: RunningBroker, reads: Reads
) -> None:
    assert (await wire.send("T", queue_id=3)).code == ResponseCode.SUCCESS
    gone, kept = Pulls(running.broker, reads), Pulls(running.broker, reads)
    await gone.hold()
    await kept.hold()
    gone.close()
    await wire.send("T", b"for who stayed")
    assert [bodies(answer) for answer in await kept.answers()] == [[b"for who stayed"]]
    kept.close()
