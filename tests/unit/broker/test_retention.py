"""Deleting old messages from the broker: threads, notifications, the view of consumers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from aerobee.broker.background.loop_workers import LoopCalls, WorkerAnswers
from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.requests.administration.topic_removal import TopicRemoval
from aerobee.broker.requests.administration.topics_and_groups import TopicRequests
from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.broker.tables.groups import GroupConfig
from aerobee.broker.tables.lag import ConsumerLag
from aerobee.broker.tables.offsets import ConsumerOffsets, committed_by_queue
from aerobee.config.model import Settings
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.store.errors import StoreClosed
from aerobee.store.message_store import MessageStore
from tests.inline_loop import drive, made
from tests.unit.broker.second_step.second_step_support import deletions
from tests.unit.broker.tables.clients_support import BODIES, Peer, Tables, request
from tests.unit.store.background.retention.retention_support import (
    HOUR_MS,
    Hours,
    fill_segments,
    names,
    open_store,
    settle,
)
from tests.unit.store.support import fill, message

Serve = Callable[..., Awaitable[Command]]
ALL_HOURS = ";".join(map(str, range(24)))


@pytest.fixture
def clock() -> Hours:
    return Hours()


@pytest.fixture
async def store(tmp_path: Path, clock: Hours) -> AsyncIterator[MessageStore]:
    store = open_store(tmp_path, clock, delete_hours=ALL_HOURS)
    yield store
    await asyncio.get_running_loop().run_in_executor(None, store.close)


def offsets_of(store: MessageStore, tmp_path: Path) -> ConsumerOffsets:
    return ConsumerOffsets(JsonStateFile(str(tmp_path / "offsets.json")), store.max_offset)


async def run_retention(store: MessageStore, offsets: ConsumerOffsets) -> None:
    loop = asyncio.get_running_loop()
    on_loop = LoopCalls(loop)
    committed = partial(committed_by_queue, on_loop, offsets)
    await loop.run_in_executor(None, store.retention.run, on_loop, committed)


async def test_the_loop_detaches_and_a_worker_does_the_rest(
    store: MessageStore, clock: Hours, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = threading.get_ident()
    seen: dict[str, bool] = {}
    retention = store.retention

    def spied(owner: object, name: str) -> None:
        real: Callable[..., object] = getattr(owner, name)

        def spy(*args: object) -> object:
            seen[name] = threading.get_ident() == here
            return real(*args)

        monkeypatch.setattr(owner, name, spy)

    spied(retention, "plan")
    spied(retention, "detach")
    spied(retention, "dispose")
    spied(retention.removal, "remove")
    spied(retention.trimmer, "plan")
    spied(retention.trimmer, "apply")
    spied(store._queues, "unlink")
    fill_segments(store, 4)
    clock.time_ms += 96 * HOUR_MS
    await run_retention(store, offsets_of(store, tmp_path))
    assert len(names(store)) == 1
    assert seen == {
        "plan": False,
        "detach": True,
        "dispose": False,
        "remove": False,
        "apply": True,
        "unlink": False,
    }


async def test_groups_that_lose_messages_are_logged_with_how_many(
    store: MessageStore, clock: Hours, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = fill_segments(store, 3)
    offsets = offsets_of(store, tmp_path)
    offsets.commit("behind", "Orders", 0, 5)
    offsets.commit("done", "Orders", 0, len(made))
    clock.time_ms += 96 * HOUR_MS
    await run_retention(store, offsets)
    lost = store.min_offset("Orders", 0) - 5
    said = [r.message for r in caplog.records if "before it was consumed" in r.message]
    assert len(said) == 1
    assert f"group=behind topic=Orders queue=0 messages={lost} from_offset=5" in said[0]
    assert store.retention.counts.unconsumed == lost


async def test_lag_counts_only_what_is_still_there(
    store: MessageStore, clock: Hours, tmp_path: Path
) -> None:
    filled = fill_segments(store, 3)
    offsets = offsets_of(store, tmp_path)
    offsets.commit("behind", "Orders", 0, 5)
    tables = Tables(tmp_path)
    made(tables.topics.create_retry("Orders", 1))
    made(tables.groups.update(GroupConfig("behind")))
    lag = ConsumerLag(
        topics=tables.topics,
        groups=tables.groups,
        offsets=offsets,
        clients=tables.clients,
        stats=tables.stats,
        store=store,
        retries=tables.retries,
    )

    def behind() -> int:
        return sum(queue.messages for queue in lag.queues("behind", "Orders"))

    assert behind() == len(filled) - 5
    clock.time_ms += 96 * HOUR_MS
    await run_retention(store, offsets)
    left = len(filled) - store.min_offset("Orders", 0)
    assert left < len(filled) - 5
    assert behind() == left


async def test_store_that_is_closed_ends_the_pauses_of_a_run(
    tmp_path: Path, clock: Hours, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(
        tmp_path, clock, delete_hours=ALL_HOURS, delete_commit_log_pause_ms=3_600_000
    )
    fill_segments(store, 5)
    clock.time_ms += 96 * HOUR_MS
    loop = asyncio.get_running_loop()
    pausing = asyncio.Event()
    pause = store.retention.removal.pause

    def spy(seconds: float) -> None:
        loop.call_soon_threadsafe(pausing.set)
        pause(seconds)

    monkeypatch.setattr(store.retention.removal, "pause", spy)
    running = loop.create_task(run_retention(store, offsets_of(store, tmp_path)))
    async with asyncio.timeout(10):
        await pausing.wait()
        assert await loop.run_in_executor(None, store.close)
        await running
    assert len(list((tmp_path / "commitlog").iterdir())) == 1


async def test_worker_gets_the_result_or_the_error_of_its_call() -> None:
    loop = asyncio.get_running_loop()
    call = LoopCalls(loop)
    assert await loop.run_in_executor(None, lambda: call(lambda: 7)) == 7

    def wrong() -> None:
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        await loop.run_in_executor(None, lambda: call(wrong))


# --- requests that a worker serves ----------------------------------------------------------------


def requests_of(store: MessageStore, tmp_path: Path, stats: BrokerStats) -> tuple[Tables, Serve]:
    """The cleaning requests over a real store; `serve` gives the answer when it has come."""
    loop = asyncio.get_running_loop()
    tables = Tables(tmp_path)
    later = WorkerAnswers(loop, stats)
    on_loop = LoopCalls(loop)
    removal = TopicRemoval(
        tables, stats=stats, store=store, on_loop=on_loop, retries=tables.retries
    )
    handlers = {
        **TopicRequests(
            Settings.for_tests(),
            tables,
            stats=stats,
            store=store,
            on_loop=on_loop,
            later=later,
            bodies=BODIES,
            deleted=deletions(tmp_path, store.written),
            removal=removal,
        ).handlers()
    }

    async def serve(code: int, ext: dict[str, str] | None = None) -> Command:
        peer = Peer(1)
        came = asyncio.Event()
        write = peer.write

        def told(data: bytes) -> None:
            write(data)
            came.set()

        peer.write = told  # type: ignore[method-assign]
        now = drive(handlers[code](peer.connection, request(code, ext or {})))
        if now is not None:
            peer.write(now)
        async with asyncio.timeout(10):
            await came.wait()
        return peer.received[0]

    return tables, serve


async def test_expired_segments_go_on_request(store: MessageStore, tmp_path: Path) -> None:
    _, serve = requests_of(store, tmp_path, BrokerStats())
    reply = await serve(RequestCode.DELETE_EXPIRED_COMMITLOG)
    assert reply.code == ResponseCode.SUCCESS
    assert store.retention.plan().verdict.triggers == ("time", "manual")


async def test_deleted_topic_is_answered_when_its_queues_are_gone(
    store: MessageStore, tmp_path: Path
) -> None:
    stats = BrokerStats()
    tables, serve = requests_of(store, tmp_path, stats)
    made(tables.topics.create_retry("Orders", 1))
    fill(store, 3)
    reply = await serve(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Orders"})
    assert reply.code == ResponseCode.SUCCESS
    assert tables.topics.get("Orders") is None
    assert list(store.queues()) == []
    assert list((tmp_path / "consumequeue").iterdir()) == []
    assert sum(r.count for r in stats.requests() if r.key.code == 215) == 1


async def test_unused_and_expired_queues_go_on_request(
    store: MessageStore, clock: Hours, tmp_path: Path
) -> None:
    tables, serve = requests_of(store, tmp_path, BrokerStats())
    made(tables.topics.create_retry("Orders", 1))
    store.log.put(message(b"x", "Gone"))
    store.log.put(message(b"x", "Orders", 0))
    store.log.put(message(b"x", "Orders", 7))
    made(tables.topics.create_retry("Filler", 1))
    while len(names(store)) < 3:
        store.log.put(message(b"x" * 300, "Filler"))
    settle(store)
    assert (await serve(RequestCode.CLEAN_UNUSED_TOPIC)).code == ResponseCode.SUCCESS
    assert {topic for topic, _ in store.queues()} == {"Orders", "Filler"}
    clock.time_ms += 96 * HOUR_MS
    await run_retention(store, offsets_of(store, tmp_path))
    assert (await serve(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == ResponseCode.SUCCESS
    # The topic has a single queue, not queue 7; queue 0 keeps its numbering.
    assert set(store.queues()) == {("Orders", 0), ("Filler", 0)}
    assert store.min_offset("Orders", 0) == store.max_offset("Orders", 0) == 10


async def test_failure_of_the_work_is_answered_and_counted(
    store: MessageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = BrokerStats()
    _, serve = requests_of(store, tmp_path, stats)
    for error, code in (
        (OSError("on purpose"), ResponseCode.SYSTEM_ERROR),
        (StoreClosed("closed"), ResponseCode.SERVICE_NOT_AVAILABLE),
    ):

        def fail(*_: object, error: Exception = error) -> int:
            raise error

        monkeypatch.setattr(store.cleaning, "clean_expired", fail)
        reply = await serve(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
        assert reply.code == code
        assert str(error) in (reply.remark or "")
    refused = [r for r in stats.requests() if r.key.code == 306]
    assert sum(r.count for r in refused) == 2
