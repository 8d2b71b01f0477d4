"""Old messages are deleted under a whole broker: consumers, operators and disks see it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aerobee.testing
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.message.record import decode_records
from aerobee.testing import RunningBroker
from tests.contract.conftest import Wire

SEGMENT = 65_536
BODY = b"x" * 2_000


# Any disk is too full for this, so the oldest segments go as fast as they may.
SHORT_OF_SPACE: dict[str, Any] = {
    "commit_log_segment_bytes": SEGMENT,
    "consume_queue_segment_bytes": 400,
    "max_message_bytes": 4_000,
    "clean_interval_ms": 20,
    "delete_commit_log_pause_ms": 0,
    "delete_consume_queue_pause_ms": 0,
    "disk_force_ratio": 0.0,
    "disk_max_used_percent": 0,
    "flush_interval_ms": 10,
    "flush_least_pages": 0,
    "consume_queue_flush_interval_ms": 10,
    "consume_queue_flush_thorough_interval_ms": 10,
}


@asynccontextmanager
async def connected(broker: RunningBroker) -> AsyncIterator[Wire]:
    wire = await Wire.to(broker.broker)
    try:
        yield wire
    finally:
        wire.caller.close()


async def oldest(wire: Wire, topic: str) -> int:
    ext = {"topic": topic, "queueId": "0"}
    return int((await wire.call(RequestCode.GET_MIN_OFFSET, ext)).ext["offset"])


async def fill_until_moved(wire: Wire, topic: str, offset: int) -> int:
    """Send until the topic's queue begins behind `offset`; its first offset then."""
    async with asyncio.timeout(30):
        while (first := await oldest(wire, topic)) <= offset:
            for answer in await asyncio.gather(*(wire.send(topic, BODY) for _ in range(20))):
                assert answer.code == ResponseCode.SUCCESS
    return first


def _first_file(folder: Path) -> int:
    return min(int(name) for name in os.listdir(folder))


async def test_consumer_of_what_is_gone_is_told_where_to_go_on(tmp_path: Path) -> None:
    with aerobee.testing.broker(store_path=str(tmp_path), **SHORT_OF_SPACE) as broker:
        async with connected(broker) as wire:
            first = await fill_until_moved(wire, "Old", 30)
            moved = await wire.pull("Old", 0)
            assert moved.code == ResponseCode.PULL_OFFSET_MOVED
            following = int(moved.ext["nextBeginOffset"])
            assert following >= first
            # Deletion goes on: that place has messages, or is told to be gone as well.
            async with asyncio.timeout(30):
                while (found := await wire.pull("Old", following)).code != ResponseCode.SUCCESS:
                    assert found.code == ResponseCode.PULL_OFFSET_MOVED
                    following = int(found.ext["nextBeginOffset"])
            messages = decode_records(found.body)
            assert [m.queue_offset for m in messages] == list(
                range(following, following + len(messages))
            )
            assert {m.body for m in messages} == {BODY}
        # Messages that are gone for consumers leave the disk a moment later, file by file.
        async with asyncio.timeout(30):
            for folder in ("commitlog", "consumequeue/Old/0"):
                while _first_file(tmp_path / folder) == 0:  # noqa: ASYNC110 - a folder
                    await asyncio.sleep(0.01)


async def test_restart_finds_what_deletion_left_and_numbering_goes_on(tmp_path: Path) -> None:
    with aerobee.testing.broker(store_path=str(tmp_path), **SHORT_OF_SPACE) as broker:
        async with connected(broker) as wire:
            await fill_until_moved(wire, "Kept", 30)
            last = int((await wire.send("Kept", b"last")).ext["queueOffset"])
    with aerobee.testing.broker(
        store_path=str(tmp_path), **{**SHORT_OF_SPACE, "clean_interval_ms": 3_600_000}
    ) as broker:
        async with connected(broker) as wire:
            assert await oldest(wire, "Kept") > 30
            (message,) = decode_records((await wire.pull("Kept", last)).body)
            assert message.body == b"last"
            assert int((await wire.send("Kept", b"next")).ext["queueOffset"]) == last + 1


async def test_administrators_have_queues_cleaned(tmp_path: Path) -> None:
    with aerobee.testing.broker(store_path=str(tmp_path), **SHORT_OF_SPACE) as broker:
        async with connected(broker) as wire:
            sent = await wire.send("Brief", b"soon gone")
            assert sent.ext["queueOffset"] == "0"
            await fill_until_moved(wire, "Long", 60)
            assert (await wire.call(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0
            assert (await wire.call(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
            # No offset is given twice.
            assert int((await wire.send("Brief", b"again")).ext["queueOffset"]) == 20
            assert (
                await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Brief"})
            ).code == 0
            assert not (tmp_path / "consumequeue" / "Brief").exists()
            assert (await wire.call(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
            assert (tmp_path / "consumequeue" / "Long").exists()
