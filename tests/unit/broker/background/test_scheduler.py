"""Periodic tasks run again and again, also after they failed, and end with the broker."""

from __future__ import annotations

import asyncio
import threading

from aerobee.broker.background.scheduler import Scheduler


async def until(condition: asyncio.Event) -> None:
    async with asyncio.timeout(5):
        await condition.wait()


async def test_a_task_that_raises_is_tried_again_and_counted() -> None:
    scheduler = Scheduler(asyncio.get_running_loop())
    third = asyncio.Event()
    runs: list[int] = []

    def task() -> None:
        runs.append(1)
        if len(runs) == 3:
            third.set()
        raise RuntimeError("on purpose")

    scheduler.every(0.001, "failing", task)
    await until(third)
    await scheduler.stop()
    assert scheduler.failures >= 2


async def test_first_turn_may_come_later_or_sooner_than_the_others() -> None:
    loop = asyncio.get_running_loop()
    scheduler = Scheduler(loop)
    second = asyncio.Event()
    turns: list[tuple[str, float]] = []
    began = loop.time()

    def task(name: str) -> None:
        turns.append((name, loop.time() - began))
        if [turn for turn, _ in turns].count("late") == 2:
            second.set()

    scheduler.every(0.001, "late", lambda: task("late"), first_s=0.05)
    scheduler.every(100.0, "soon", lambda: task("soon"), first_s=0.0)
    await until(second)
    await scheduler.stop()
    assert turns[0][0] == "soon"
    assert next(at for name, at in turns if name == "late") >= 0.05


async def test_stop_waits_for_a_blocking_task_and_nothing_runs_after_it() -> None:
    loop = asyncio.get_running_loop()
    scheduler = Scheduler(loop)
    entered, leave = asyncio.Event(), threading.Event()
    ended: list[int] = []

    def task() -> None:
        loop.call_soon_threadsafe(entered.set)
        assert leave.wait(5)
        ended.append(1)

    scheduler.every(0.001, "blocking", task, blocking=True)
    await until(entered)
    stopping = loop.create_task(scheduler.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    leave.set()
    await stopping
    assert ended == [1]


async def test_a_blocking_task_that_raises_is_counted() -> None:
    loop = asyncio.get_running_loop()
    scheduler = Scheduler(loop)
    twice = asyncio.Event()
    runs: list[int] = []

    def task() -> None:
        runs.append(1)
        if len(runs) == 2:
            loop.call_soon_threadsafe(twice.set)
        raise OSError("on purpose")

    scheduler.every(0.001, "failing", task, blocking=True)
    await until(twice)
    await scheduler.stop()
    assert scheduler.failures >= 1
