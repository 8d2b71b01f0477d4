"""The answer to a send, and its time, while the disk does not answer; and the flusher's waking."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator

import pytest

import aerobee.testing
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.message.record import decode_records
from aerobee.store.disk.files import Files
from tests.contract.conftest import Wire

NEVER_MS = 3_600_000
NO_WAIT = "WAIT\x01false"


class Gate:
    """Syncs of the commit log wait until it is open."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Event()
        self.syncs = 0

    def pass_through(self, fd: int) -> None:
        if "/commitlog/" in os.readlink(f"/proc/self/fd/{fd}"):
            self.reached.set()
            assert self.open.wait(30)
            self.syncs += 1


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    data_sync = Files.data_sync

    def gated(files: Files, fd: int) -> None:
        gate.pass_through(fd)
        data_sync(files, fd)

    monkeypatch.setattr(Files, "data_sync", gated)
    yield gate
    gate.open.set()


async def found(wire: Wire, topic: str, count: int) -> list[bytes]:
    """The bodies of a topic's queue 0 once there are `count`."""
    bodies: list[bytes] = []
    while len(bodies) < count:
        answer = await wire.pull(topic, len(bodies), sysFlag=6, suspendTimeoutMillis=5_000)
        assert answer.code == ResponseCode.SUCCESS, f"{answer.remark} after {bodies}"
        bodies += [message.body for message in decode_records(answer.body)]
    return bodies


async def test_send_with_wait_false_is_answered_before_its_sync_which_follows(gate: Gate) -> None:
    settings = {"flush_disk_type": "SYNC_FLUSH", "flush_interval_ms": NEVER_MS}
    with aerobee.testing.broker(**settings) as running:
        wire = await Wire.to(running.broker)
        assert (await wire.send("T", queue_id=1)).code == ResponseCode.SUCCESS
        gate.open.clear()
        gate.reached.clear()
        waits = asyncio.create_task(wire.send("T", b"waits"))
        assert await asyncio.to_thread(gate.reached.wait, 10)
        assert (await wire.send("T", b"does not", properties=NO_WAIT)).code == ResponseCode.SUCCESS
        assert not waits.done()
        # A message that is not on the disk is not shown to any waiting pull.
        assert (await wire.pull("T")).code == ResponseCode.PULL_NOT_FOUND
        gate.open.set()
        assert (await waits).code == ResponseCode.SUCCESS
        # Nobody asks for the second one's sync but itself, and no interval brings it.
        assert await found(wire, "T", 2) == [b"waits", b"does not"]
        wire.caller.close()


async def test_sync_that_takes_too_long_is_answered_flush_disk_timeout(gate: Gate) -> None:
    settings = {
        "flush_disk_type": "SYNC_FLUSH",
        "flush_interval_ms": NEVER_MS,
        "sync_flush_timeout_ms": 300,
    }
    with aerobee.testing.broker(**settings) as running:
        wire = await Wire.to(running.broker)
        assert (await wire.send("T", queue_id=1)).code == ResponseCode.SUCCESS
        gate.open.clear()
        answers = await asyncio.gather(*[wire.send("T", b"%d" % n) for n in range(3)])
        assert [answer.code for answer in answers] == [ResponseCode.FLUSH_DISK_TIMEOUT] * 3
        # They count as sent: with their place, and kept.
        assert [answer.ext["queueOffset"] for answer in answers] == ["0", "1", "2"]
        assert all(answer.ext["msgId"] for answer in answers)
        gate.open.set()
        assert await found(wire, "T", 3) == [b"0", b"1", b"2"]
        wire.caller.close()


@pytest.mark.parametrize("timed", [False, True])
async def test_arrivals_end_the_flush_pause_only_if_it_is_not_timed(
    gate: Gate, timed: bool
) -> None:
    settings = {"flush_interval_ms": NEVER_MS, "flush_timed": timed, "flush_least_pages": 2}
    with aerobee.testing.broker(**settings) as running:
        wire = await Wire.to(running.broker)
        for _ in range(12):
            assert (await wire.send("T", b"x" * 1000)).code == ResponseCode.SUCCESS
        assert len(await found(wire, "T", 12)) == 12  # shown without a sync
        if timed:
            info = await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)
            assert b'"remainHowManyDataToFlush":"0 B"' not in info.body
            assert not gate.reached.is_set()
        else:
            assert await asyncio.to_thread(gate.reached.wait, 10)
        wire.caller.close()
