"""A table is saved soon after a change and then at intervals, off the loop, one save at a time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import cast

import pytest

from aerobee.broker.background.scheduler import Saver

INTERVAL_S = 1.0


class ManualLoop:
    """A clock, and workers whose work is done when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.work: asyncio.Queue[tuple[asyncio.Future[None], Callable[[], None]]] = asyncio.Queue()

    def time(self) -> float:
        return self.now

    def run_in_executor(
        self, _pool: None, work: Callable[[int], None], changes: int
    ) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.work.put_nowait((future, lambda: work(changes)))
        return future

    async def do_work(self, took_s: float = 0.0) -> None:
        """One worker gets on, when there is work; the saver hears of it."""
        future, work = await self.work.get()
        self.now += took_s
        try:
            work()
        except OSError as error:
            future.set_exception(error)
        else:
            future.set_result(None)
        await asyncio.sleep(0)


class Table:
    """Counts, and remembers when it was saved and with what."""

    def __init__(self, loop: ManualLoop) -> None:
        self.value = 0
        self.taken = 0
        self.saved: list[tuple[float, int]] = []
        self.error: OSError | None = None
        self._loop = loop

    def take_changes(self) -> int | None:
        if self.value == self.taken:
            return None
        self.taken = self.value
        return self.value

    def save(self, changes: int) -> None:
        if self.error is not None:
            raise self.error
        self.saved.append((self._loop.now, changes))

    def mark_unsaved(self) -> None:
        self.taken = -1


class Bench:
    def __init__(self) -> None:
        self.loop = ManualLoop()
        self.table = Table(self.loop)
        self.saver: Saver[int] = Saver(
            cast(asyncio.AbstractEventLoop, self.loop), "a table", self.table, INTERVAL_S
        )

    async def pass_s(self, seconds: float, *, change: bool = False, took_s: float = 0.0) -> None:
        """Look as the scheduler does; a save is done at once, or takes so long."""
        end = self.loop.now + seconds
        while self.loop.now < end:
            self.table.value += change
            self.saver.look()
            if not self.loop.work.empty():
                await self.loop.do_work(took_s)
            self.loop.now += Saver.LOOK_S

    def saves_between(self, first_s: float, last_s: float) -> int:
        return sum(100 + first_s <= at < 100 + last_s for at, _ in self.table.saved)


async def test_a_change_after_a_pause_is_saved_at_the_next_look() -> None:
    bench = Bench()
    for _ in range(3):
        await bench.pass_s(7.0)
        bench.table.value += 1
        bench.saver.look()
        await bench.loop.do_work()
    assert [value for _, value in bench.table.saved] == [1, 2, 3]


async def test_what_is_done_in_a_short_life_is_saved_soon_all_through_it() -> None:
    """100 lives of a second each: changes older than 200 ms when it ends are on the disk."""
    bench = Bench()
    await bench.pass_s(1.3, change=True)
    at = [100.0, *(when for when, _ in bench.table.saved)]
    assert max(later - before for before, later in itertools.pairwise(at)) <= 0.151


async def test_a_table_that_goes_on_changing_is_saved_once_an_interval() -> None:
    bench = Bench()
    await bench.pass_s(23.0, change=True)
    assert 18 <= bench.saves_between(3.2, 23.0) <= 20
    # After a pause it begins anew.
    await bench.pass_s(2.0)
    before = len(bench.table.saved)
    await bench.pass_s(1.0, change=True)
    assert len(bench.table.saved) - before > 5


async def test_one_save_at_a_time_and_not_all_the_time() -> None:
    bench = Bench()
    bench.table.value = 1
    bench.saver.look()
    for _ in range(10):
        bench.loop.now += 0.1
        bench.table.value += 1
        bench.saver.look()
    assert bench.loop.work.qsize() == 1
    await bench.loop.do_work()
    bench.loop.now += 0.5
    bench.saver.look()
    assert bench.loop.work.empty()
    bench.loop.now += 0.6
    bench.saver.look()
    assert bench.loop.work.qsize() == 1


async def test_a_save_that_fails_is_logged_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.table.error = OSError(28, "No space left on device")
    bench.table.value = 1
    bench.saver.look()
    await bench.loop.do_work()
    assert "a table not saved, will be tried again" in caplog.text
    bench.table.error = None
    await bench.pass_s(0.9)
    assert bench.table.saved == []
    await bench.pass_s(0.3)
    assert [value for _, value in bench.table.saved] == [1]


async def test_a_save_that_fails_is_told_and_tried_each_second_until_it_works() -> None:
    """An interval is five seconds, or an hour where somebody set it so; readiness has one."""
    bench = Bench()
    loop = cast(asyncio.AbstractEventLoop, bench.loop)
    bench.saver = Saver(loop, "a table", bench.table, 3600.0)
    bench.table.error = OSError(28, "No space left on device")
    bench.table.value = 1
    bench.saver.look()
    await bench.loop.do_work()
    assert str(bench.saver.failure) == (
        "a table cannot be saved: the disk is full (No space left on device)"
    )
    bench.table.error = None
    bench.loop.now += Saver.AGAIN_S
    bench.saver.look()
    await bench.loop.do_work()
    assert (bench.saver.failure, [value for _, value in bench.table.saved]) == (None, [1])


async def test_close_waits_for_a_save_under_way_and_saves_the_rest() -> None:
    bench = Bench()
    bench.table.value = 1
    bench.saver.look()
    bench.table.value = 2
    closing = asyncio.ensure_future(bench.saver.close())
    await asyncio.sleep(0)
    assert bench.loop.work.qsize() == 1
    await bench.loop.do_work()
    await bench.loop.do_work()
    await closing
    assert [value for _, value in bench.table.saved] == [1, 2]
    bench.table.value = 3
    bench.saver.look()
    assert bench.loop.work.empty()


async def test_close_says_what_cannot_be_saved() -> None:
    bench = Bench()
    bench.table.error = OSError(28, "No space left on device")
    bench.table.value = 1
    closing = asyncio.ensure_future(bench.saver.close())
    await bench.loop.do_work()
    with pytest.raises(OSError, match="No space left"):
        await closing
