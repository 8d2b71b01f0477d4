"""Answers wait for the durable mark, leave in order, and tell three outcomes apart."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import cast

import pytest

from aerobee.broker.messages import acks as acks_module
from aerobee.broker.messages.acks import Acks
from aerobee.broker.stats import BrokerStats
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.frames.command import Command, make_request
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.protocol.headers.send import SendReply
from aerobee.remoting.connection import Connection
from aerobee.remoting.turns import Turns
from aerobee.store.errors import StoreBroken
from aerobee.store.stats import Histogram


class Peer:
    peer = ("192.0.2.1", 1)

    def __init__(self) -> None:
        self.closed = False
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


class Mark:
    """A store's durable mark, moved by hand."""

    def __init__(self) -> None:
        self.durable = 0
        self.flushes = 0

    def request_flush(self) -> None:
        self.flushes += 1


class Bench:
    def __init__(
        self,
        timeout_s: float = 60.0,
        after_durable: Callable[[], object] | None = None,
        turns: Turns | None = None,
    ) -> None:
        self.mark = Mark()
        self.after_durable = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.stats = BrokerStats()
        self.put_times = Histogram()
        self.acks = Acks(
            loop,
            turns or Turns(),
            self.mark,
            cast("SendReply", Reply()),
            after_durable or self.after_durable.set,
            timeout_s,
            self.stats,
            self.put_times,
        )
        self.peer = Peer()

    def wait(self, end: int, name: str, peer: Peer | None = None) -> None:
        connection = cast("Connection", peer or self.peer)
        self.acks.wait(end, connection, make_request(310), name, 0, 0)

    async def move(self, durable: int) -> None:
        """Move the mark from another thread, as the flush thread does."""
        self.after_durable.clear()
        self.mark.durable = durable
        thread = threading.Thread(target=self.acks.on_durable, args=(durable,))
        thread.start()
        async with asyncio.timeout(5):
            await self.after_durable.wait()
        thread.join()


class Reply:
    """Writes an answer as `name:code`."""

    def encode(
        self,
        request: Command,
        code: int,
        msg_id: str,
        queue_id: int,
        queue_offset: int,
        remark: str | None = None,
        more: object = None,
    ) -> bytes:
        if msg_id.startswith("faulty"):
            raise ZeroDivisionError("a bug")
        return f"{msg_id}:{int(code)} ".encode()


def codes(written: list[bytes]) -> list[int]:
    """The codes of whole answers, which are no names of this test."""
    return [command.code for data in written for command in FrameDecoder().feed(data)]


async def test_answers_covered_by_the_mark_leave_in_one_write_in_order() -> None:
    bench = Bench()
    for end, name in ((100, "a"), (200, "b"), (300, "c")):
        bench.wait(end, name)
    await bench.move(200)
    assert bench.peer.written == [b"a:0 b:0 "]
    await bench.move(300)
    assert bench.peer.written == [b"a:0 b:0 ", b"c:0 "]


async def test_nothing_is_answered_before_its_end_is_durable() -> None:
    bench = Bench()
    bench.wait(100, "a")
    await bench.move(99)
    assert bench.peer.written == []
    assert len(bench.acks) == 1


async def test_many_sends_of_one_turn_ask_for_one_flush() -> None:
    bench = Bench()
    bench.wait(100, "a")
    bench.wait(200, "b")
    await asyncio.sleep(0)
    assert bench.mark.flushes == 1


async def test_a_closed_connection_does_not_stop_the_others() -> None:
    bench, gone = Bench(), Peer()
    gone.closed = True
    bench.wait(100, "gone", gone)
    bench.wait(200, "b")
    await bench.move(200)
    assert (gone.written, bench.peer.written) == ([], [b"b:0 "])


async def test_an_answer_that_cannot_be_made_is_its_own_send_s_fault() -> None:
    bench, other = Bench(), Peer()
    bench.wait(100, "a")
    bench.wait(200, "faulty", other)
    bench.wait(300, "c")
    await bench.move(300)
    assert bench.peer.written == [b"a:0 c:0 "]
    assert codes(other.written) == [ResponseCode.SYSTEM_ERROR]
    assert bench.stats.handler_failures == 1
    counts = {request.key.response_code: request.count for request in bench.stats.requests()}
    assert counts == {ResponseCode.SUCCESS: 2, ResponseCode.SYSTEM_ERROR: 1}
    assert bench.put_times.count == 3


async def test_an_answer_too_late_that_cannot_be_made_keeps_none_back() -> None:
    bench, other = Bench(timeout_s=-1), Peer()
    bench.wait(100, "faulty", other)
    bench.wait(200, "b")
    bench.acks.expire()
    assert codes(other.written) == [ResponseCode.SYSTEM_ERROR]
    assert bench.peer.written == [f"b:{int(ResponseCode.FLUSH_DISK_TIMEOUT)} ".encode()]


async def test_a_failed_sync_is_told_to_all_whatever_happens_to_the_durable_mark_s_work() -> None:
    surfaced: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: surfaced.set_result(context["exception"])
    )
    bench = Bench(after_durable=lambda: 1 // 0)
    bench.wait(100, "lost")
    bench.acks.on_broken(StoreBroken("EIO"))
    assert isinstance(await asyncio.wait_for(surfaced, 5), ZeroDivisionError)
    assert bench.peer.written == [f"lost:{int(ResponseCode.SERVICE_NOT_AVAILABLE)} ".encode()]


async def test_too_late_is_flush_disk_timeout() -> None:
    bench = Bench(timeout_s=-1)
    bench.wait(100, "a")
    bench.acks.expire()
    assert bench.peer.written == [f"a:{int(ResponseCode.FLUSH_DISK_TIMEOUT)} ".encode()]
    assert bench.acks.timed_out == 1
    assert bench.stats.put_failures == 0  # it is stored


async def test_a_failed_sync_answers_with_an_error_but_not_to_what_is_durable() -> None:
    bench = Bench()
    bench.wait(100, "safe")
    bench.wait(200, "lost")
    bench.mark.durable = 100
    bench.acks.on_broken(StoreBroken("EIO"))
    await asyncio.wait_for(bench.after_durable.wait(), 5)
    service_not_available = int(ResponseCode.SERVICE_NOT_AVAILABLE)
    assert bench.peer.written == [b"safe:0 ", f"lost:{service_not_available} ".encode()]
    assert bench.stats.put_failures == 1


async def test_time_to_the_answer_is_counted_by_outcome() -> None:
    bench = Bench(timeout_s=0.0)
    bench.wait(100, "in time")
    await bench.move(100)
    bench.wait(200, "too late")
    bench.acks.expire()
    counts = {request.key.response_code: request.count for request in bench.stats.requests()}
    assert counts == {ResponseCode.SUCCESS: 1, ResponseCode.FLUSH_DISK_TIMEOUT: 1}


async def test_a_waiting_send_keeps_no_body_and_there_is_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aerobee.broker.messages.acks.MAX_WAITING", 2)
    bench = Bench()
    request = make_request(310, {"a": "b"}, b"x" * 1000)
    bench.acks.wait(100, cast("Connection", bench.peer), request, "a", 0, 0)
    assert (request.body, request.ext) == (b"", {})
    assert not bench.acks.full
    bench.wait(200, "b")
    assert bench.acks.full


async def test_sends_are_counted_with_the_time_until_their_answer() -> None:
    bench = Bench()
    before = asyncio.get_running_loop().time()
    for end in range(1, 6):
        bench.wait(end, "m")
    await asyncio.sleep(0.02)
    bench.wait(6, "m")
    await bench.move(6)
    waited_s = asyncio.get_running_loop().time() - before
    (served,) = bench.stats.requests()
    assert (served.count, served.key.code, served.key.response_code) == (6, 310, 0)
    assert bench.put_times.count == 6
    # All but the last took 20 ms or more, in the range of 10 to 50 ms or, on a busy machine, above.
    assert sum(bench.put_times.slow[1:]) >= 5
    assert 0.02 <= bench.put_times.max_s <= waited_s
    assert 0.1 <= served.total == pytest.approx(bench.put_times.sum_s, rel=0.01)


async def test_a_send_that_timed_out_counts_with_its_time() -> None:
    bench = Bench(timeout_s=0.005)
    bench.wait(1, "late")
    await asyncio.sleep(0.02)
    bench.acks.expire()
    assert bench.put_times.count == 1
    assert bench.put_times.max_s >= 0.005


class Ticking:
    """A clock that moves a millisecond with each look, so that a slice has two."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


async def _most_of_a_turn(bench: Bench) -> int:
    """How many answers left in one turn of the loop at most, until none waits any more."""
    most, before = 0, 0
    async with asyncio.timeout(10):
        while len(bench.acks):
            await asyncio.sleep(0)
            left = b"".join(bench.peer.written).count(b" ")
            most, before = max(most, left - before), left
    return most


async def test_very_many_answers_leave_a_slice_a_turn_in_order() -> None:
    bench = Bench(turns=Turns(Ticking()))
    for number in range(2_000):
        bench.wait(100, f"{number}")
    bench.mark.durable = 100
    bench.acks.on_durable(100)
    assert 0 < await _most_of_a_turn(bench) <= 4 * acks_module._LOOK
    answered = b"".join(bench.peer.written).split()
    assert answered == [f"{number}:0".encode() for number in range(2_000)]


@pytest.mark.parametrize("end", ["broken", "expired"])
async def test_what_fails_or_expires_is_answered_a_slice_a_turn(end: str) -> None:
    bench = Bench(timeout_s=-1.0 if end == "expired" else 60.0, turns=Turns(Ticking()))
    for number in range(200):
        bench.wait(100, f"{number}")
    if end == "broken":
        bench.acks.on_broken(StoreBroken("disk gone"))
    else:
        bench.acks.expire()
    assert 0 < await _most_of_a_turn(bench) <= 8
    assert b"".join(bench.peer.written).count(b" ") == 200
