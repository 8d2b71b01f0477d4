"""Owned tasks: seen when they fail, gone when their owner closes."""

from __future__ import annotations

import asyncio
import logging

import pytest

from aerobee.client.connections.background import Periodic, TaskOwner, wait_all, wait_shared
from aerobee.client.errors import ClientClosed, ConnectFailed


async def fail(error: Exception) -> None:
    raise error


async def test_a_failing_task_is_logged_and_remembered(
    caplog: pytest.LogCaptureFixture, until
) -> None:
    owner = TaskOwner("c")
    with caplog.at_level(logging.ERROR):
        owner.spawn(fail(ValueError("bug")), "work")
        await until(lambda: bool(owner.failures))
    assert "c:work" in caplog.text
    assert "bug" in caplog.text


async def test_an_expected_failure_is_left_to_whoever_waits() -> None:
    owner = TaskOwner("c")
    task = owner.spawn(fail(ConnectFailed("down")), "work", expected=ConnectFailed)
    with pytest.raises(ConnectFailed):
        await task
    assert owner.failures == []


async def test_close_ends_every_task_and_those_started_after_it() -> None:
    owner = TaskOwner("c")
    before = owner.spawn(asyncio.Event().wait(), "before")
    await owner.close()
    assert before.cancelled()
    after = owner.spawn(asyncio.Event().wait(), "after")
    with pytest.raises(asyncio.CancelledError):
        await after


async def test_waiting_for_a_shared_task_ends_with_its_owner() -> None:
    owner = TaskOwner("c")
    task = owner.spawn(asyncio.Event().wait(), "shared")
    waiting = asyncio.ensure_future(wait_shared(task))
    await asyncio.sleep(0)
    await owner.close()
    with pytest.raises(ClientClosed):
        await waiting


async def test_a_waiter_that_gives_up_does_not_end_the_shared_task() -> None:
    owner = TaskOwner("c")
    task = owner.spawn(asyncio.Event().wait(), "shared")
    waiting = asyncio.ensure_future(wait_shared(task))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not task.done()
    await owner.close()


async def test_settle_waits_for_all_before_it_raises() -> None:
    owner = TaskOwner("c")
    gate = asyncio.Event()
    slow = owner.spawn(gate.wait(), "slow")
    failed = owner.spawn(fail(ConnectFailed("x")), "failed", expected=ConnectFailed)
    settling = asyncio.ensure_future(wait_all([failed, slow]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not settling.done()
    gate.set()
    with pytest.raises(ConnectFailed):
        await settling


async def test_periodic_work_goes_on_after_a_failed_round(
    caplog: pytest.LogCaptureFixture, until
) -> None:
    rounds: list[int] = []

    async def work() -> None:
        rounds.append(1)
        if len(rounds) == 1:
            raise OSError("one bad round")

    owner = TaskOwner("c")
    periodic = Periodic(60, work, "rounds")
    owner.spawn(periodic.run(), periodic.name)
    periodic.wake()
    await until(lambda: len(rounds) == 1)
    periodic.wake()
    await until(lambda: len(rounds) == 2)
    assert "one bad round" in caplog.text
    await owner.close()


async def test_wakes_during_a_round_are_folded_into_one_more() -> None:
    rounds: list[int] = []
    gate = asyncio.Event()

    async def work() -> None:
        rounds.append(1)
        for _ in range(3):
            if len(rounds) == 1:
                periodic.wake()
        if len(rounds) == 2:
            gate.set()

    owner = TaskOwner("c")
    periodic = Periodic(60, work, "rounds")
    owner.spawn(periodic.run(), periodic.name)
    periodic.wake()
    async with asyncio.timeout(5):
        await gate.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(rounds) == 2
    await owner.close()


async def test_closing_while_a_wake_is_pending_ends_the_rhythm() -> None:
    async def work() -> None:
        """Nothing."""

    owner = TaskOwner("c")
    periodic = Periodic(60, work, "rounds")
    owner.spawn(periodic.run(), periodic.name)
    await asyncio.sleep(0)
    periodic.wake()
    async with asyncio.timeout(5):
        await owner.close()
