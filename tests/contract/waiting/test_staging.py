"""Staged batches over the wire: our client against the daemon, which is killed at every step."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

import pytest

import aerobee.testing
from aerobee.client import Producer
from aerobee.client.consuming.pull_consumer import PullConsumer
from aerobee.client.errors import PeerError, RequestRefused
from aerobee.client.producing.staging import StageClient, StagingOptions
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.headers.stages import (
    Run,
    StageChunkHeader,
    StagePart,
    chunk_crc,
    encode_chunk,
    stage_checksum,
)
from aerobee.protocol.message.batch import BatchItem, encode_batch
from aerobee.protocol.names import STAGE_TOPIC
from aerobee.testing import RunningBroker
from tests.contract.conftest import Wire

BROKER = "test-broker"


async def stage(
    client: StageClient,
    key: tuple[str, int],
    bodies: Sequence[bytes],
    topic: str = "Staged",
    broker: str = BROKER,
) -> StagePart:
    name = uuid.uuid4().hex
    items = encode_batch([BatchItem(0, body, b"TAGS\x01t") for body in bodies])
    chunk = encode_chunk([Run(topic, 0, len(bodies), items)])
    header = StageChunkHeader(*key, 0, name, 0, len(bodies), chunk_crc(chunk))
    await client.send_chunk(broker, header, chunk)
    checksum = stage_checksum([chunk_crc(chunk)])
    return StagePart(broker, 0, name, 1, len(bodies), checksum)


async def pulled(wire: Wire, topic: str) -> int:
    answer = await wire.call(30, {"topic": topic, "queueId": 0})
    return int(answer.ext["offset"])


async def test_a_batch_is_published_when_its_commit_returns(
    running: RunningBroker, wire: Wire
) -> None:
    key = (f"q-{uuid.uuid4()}", 0)
    async with StageClient(running.name_server) as client:
        part = await stage(client, key, [b"one", b"two"], "Committed")
        assert await pulled(wire, "Committed") == 0
        decision = await client.commit(*key, [part], [BROKER])
        assert (decision.state, decision.existed) == ("done", False)
        assert await pulled(wire, "Committed") == 2
        again = await client.commit(*key, [await stage(client, key, [b"x"], "Committed")])
        assert again.existed
        assert await pulled(wire, "Committed") == 2
        assert not await client.abort(*key, [part])


async def test_an_aborted_batch_cannot_be_committed(running: RunningBroker) -> None:
    key = (f"q-{uuid.uuid4()}", 3)
    async with StageClient(running.name_server) as client:
        part = await stage(client, key, [b"one"])
        assert await client.abort(*key, [part])
        with pytest.raises(PeerError) as refused:
            await client.commit(*key, [part])
        assert refused.value.code == ResponseCode.STAGE_INCOMPLETE


async def test_the_broker_says_that_it_stages(running: RunningBroker) -> None:
    async with StageClient(running.name_server) as client:
        assert await client.brokers() == [BROKER]
        told = await client.capability(BROKER)
        assert told is not None
        assert told.broker_name == BROKER


async def test_nobody_sends_to_or_pulls_from_the_stage_topic(wire: Wire) -> None:
    assert (await wire.send(STAGE_TOPIC)).code == ResponseCode.NO_PERMISSION
    assert (await wire.pull(STAGE_TOPIC)).code == ResponseCode.TOPIC_NOT_EXIST


async def test_rows_that_cannot_be_sent_are_refused(running: RunningBroker) -> None:
    async with StageClient(running.name_server) as client:
        with pytest.raises(RequestRefused):
            await stage(client, ("q", 0), [b"x"], STAGE_TOPIC)


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_batches_of_both_flush_modes_are_quick(flush: str) -> None:
    import time

    with aerobee.testing.broker(
        flush_disk_type=flush, flush_thorough_interval_ms=30_000, flush_interval_ms=10_000
    ) as running:
        async with StageClient(running.name_server, StagingOptions(retry_s=5)) as client:
            key = ("q", 0)
            part = await stage(client, key, [b"one"] * 1000)
            started = time.monotonic()
            await client.commit(*key, [part])
            assert time.monotonic() - started < 3
        async with PullConsumer(running.name_server, "g") as consumer:
            (queue, *_) = await consumer.queues("Staged")
            found = await consumer.pull(queue, 0)
            assert found.messages[0].body == b"one"
            assert found.messages[0].tags == "t"
        async with Producer(running.name_server) as producer:
            assert await producer.queues("Staged")


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[RunningBroker, RunningBroker]]:
    with (
        aerobee.testing.broker(broker_name="b-a") as first,
        aerobee.testing.broker(
            broker_name="b-b", name_servers=first.name_server, nameserver_enabled=False
        ) as second,
    ):
        yield first, second


async def ends(two: tuple[RunningBroker, RunningBroker], topic: str) -> list[int]:
    found = []
    for running in two:
        wire = await Wire.to(running.broker)
        found.append(await pulled(wire, topic))
        wire.caller.close()
    return found


async def test_a_batch_on_two_brokers_is_published_on_both(
    two: tuple[RunningBroker, RunningBroker],
) -> None:
    async with StageClient(two[0].name_server) as client:
        for number in range(4):  # both are asked to decide now and then
            key = (f"q-{number}", 0)
            parts = [
                await stage(client, key, [b"x"] * 3, "Both", broker) for broker in ("b-a", "b-b")
            ]
            assert (await client.commit(*key, parts, ["b-a", "b-b"])).state == "done"
            assert await ends(two, "Both") == [3 * (number + 1)] * 2


async def test_a_decision_that_one_broker_has_not_heard_of_is_carried_out(
    two: tuple[RunningBroker, RunningBroker],
) -> None:
    async with StageClient(two[0].name_server) as client:
        for number, decider in enumerate(("b-a", "b-b")):
            key = (f"half-{number}", 0)
            parts = [
                await stage(client, key, [b"x"] * 3, "Half", broker) for broker in ("b-a", "b-b")
            ]
            await client.intent(decider, *key, parts)  # and the driver is killed
            await client.status(decider, *key, 5.0)
            again = [
                await stage(client, key, [b"y"] * 5, "Half", broker) for broker in ("b-a", "b-b")
            ]
            assert (await client.commit(*key, again, ["b-a", "b-b"])).existed
            assert await ends(two, "Half") == [3 * (number + 1)] * 2


async def test_an_abort_carries_out_what_another_broker_has_decided(
    two: tuple[RunningBroker, RunningBroker],
) -> None:
    key = ("abort", 0)
    async with StageClient(two[0].name_server) as client:
        parts = [await stage(client, key, [b"x"], "Ab", broker) for broker in ("b-a", "b-b")]
        await client.intent("b-b", *key, parts)
        assert not await client.abort(*key, parts, ["b-a", "b-b"])
        assert await ends(two, "Ab") == [1, 1]
