"""Answers wait for their mark, leave in order, and tell three outcomes apart."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import cast

import pytest

from aerobee.broker.appending import answers as answers_module
from aerobee.broker.appending.answers import Answers, AtOnce, WhenKept
from aerobee.broker.appending.store_events import StoreEvents
from aerobee.broker.broker_stats import BrokerStats
from aerobee.config.model import Settings
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.frames.command import encode_success, make_request
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Turns
from aerobee.store.errors import StoreBroken
from aerobee.store.log.marks import Marks
from aerobee.store.message_store import MessageStore
from aerobee.store.store_stats import StoreStats


class Peer:
    peer = ("192.0.2.1", 1)

    def __init__(self) -> None:
        self.closed = False
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def answers(self) -> list[tuple[str, int]]:
        """Name and code of each answer; those that could not be made have no name."""
        decoder = FrameDecoder()
        found = [command for data in self.written for command in decoder.feed(data)]
        return [((one.ext or {}).get("name", ""), one.code) for one in found]


class Bench:
    """The answers of a store whose marks are moved by hand."""

    def __init__(
        self,
        timeout_ms: int = 60_000,
        turns: Turns | None = None,
        flush: str = "SYNC_FLUSH",
        **more: object,
    ) -> None:
        loop = asyncio.get_running_loop()
        settings = Settings.for_tests(
            flush_disk_type=flush, sync_flush_timeout_ms=timeout_ms, **more
        )
        self.events = StoreEvents(loop)
        self.marks = Marks(settings, 0, 0, self.events)
        self.marks.write(10_000, 1)
        self.put_times = (stats := StoreStats(answers_wait=True)).put_times
        self.hurries = 0
        store = SimpleNamespace(marks=self.marks, stats=stats, sync_soon=self._hurry)
        self.stats = BrokerStats()
        self.all = Answers(
            settings, loop, turns or Turns(), cast("MessageStore", store), self.stats
        )
        self.sends = cast("WhenKept", self.all.sends)
        self.peer = Peer()
        self.moved = asyncio.Event()
        self.events.follow(self)

    def _hurry(self) -> None:
        self.hurries += 1

    def marks_moved(self) -> None:
        self.all.go_on()
        self.moved.set()

    def store_broke(self, error: StoreBroken) -> None:
        self.all.fail(error.remark)
        self.moved.set()

    def wait(self, end: int, name: str, peer: Peer | None = None) -> None:
        request = make_request(310)
        made = encode_success(request, ext={"name": name})
        assert self.sends.when_kept(connection_of(peer or self.peer), request, end, made) is None

    def wait_faulty(self, end: int, peer: Peer) -> None:
        """An answer that is made when it leaves, and cannot be."""
        intents = self.all.intents
        intents.wait(connection_of(peer), make_request(310), end, lambda *_: bytes(1 // 0))

    async def move(self, durable: int) -> None:
        """Move the mark from another thread, as the flush thread does."""
        self.moved.clear()
        thread = threading.Thread(target=self.marks.sync, args=(durable,))
        thread.start()
        async with asyncio.timeout(5):
            await self.moved.wait()
        thread.join()

    async def all_left(self) -> None:
        """Wait until no answer waits."""
        async with asyncio.timeout(5):
            while len(self.sends):
                self.all.go_on()
                await asyncio.sleep(0)


def connection_of(peer: Peer) -> Connection:
    return cast("Connection", peer)


async def test_answers_covered_by_the_mark_leave_in_one_write_in_order() -> None:
    bench = Bench()
    for end, name in ((100, "a"), (200, "b"), (300, "c")):
        bench.wait(end, name)
    await bench.move(200)
    assert len(bench.peer.written) == 1
    assert bench.peer.answers() == [("a", 0), ("b", 0)]
    await bench.move(300)
    assert len(bench.peer.written) == 2
    assert bench.peer.answers() == [("a", 0), ("b", 0), ("c", 0)]


async def test_nothing_is_answered_before_its_end_is_durable() -> None:
    bench = Bench()
    bench.wait(100, "a")
    await bench.move(99)
    assert bench.peer.written == []
    assert len(bench.sends) == 1


async def test_where_the_settings_name_no_mark_nothing_waits() -> None:
    bench = Bench(flush="ASYNC_FLUSH")
    sends = bench.all.sends
    assert type(sends) is AtOnce
    assert (sends.waits, sends.full, len(sends)) == (False, False, 0)
    request = make_request(310)
    assert sends.when_kept(connection_of(bench.peer), request, 10_000, b"made") == b"made"
    assert bench.marks.durable == 0


async def test_an_intent_waits_for_the_sync_in_either_mode_and_asks_for_it() -> None:
    bench = Bench(flush="ASYNC_FLUSH")
    request = make_request(31002)

    def made(code: int, remark: str | None) -> bytes:
        return encode_success(request, ext={"name": f"{code} {remark}"})

    for end in (200, 100):  # the second was decided before
        bench.all.intents.wait(connection_of(bench.peer), request, end, made)
    assert (len(bench.all.intents), bench.peer.written) == (2, [])
    assert bench.hurries > 0
    await bench.move(100)
    assert bench.peer.written == []
    await bench.move(200)
    assert bench.peer.answers() == [("0 None", 0)] * 2


async def test_who_wants_no_answer_does_not_wait() -> None:
    bench = Bench()
    request = make_request(310)
    request.flag |= 2
    connection = connection_of(bench.peer)
    assert bench.sends.when_kept(connection, request, 100, b"made") == b"made"
    assert len(bench.sends) == 0


async def test_a_closed_connection_does_not_stop_the_others() -> None:
    bench, gone = Bench(), Peer()
    gone.closed = True
    bench.wait(100, "gone", gone)
    bench.wait(200, "b")
    await bench.move(200)
    assert (gone.written, bench.peer.answers()) == ([], [("b", 0)])


async def test_an_answer_that_cannot_be_made_is_its_own_request_s_fault() -> None:
    bench, other = Bench(), Peer()
    bench.wait_faulty(100, other)
    bench.all.intents.wait(
        connection_of(bench.peer), make_request(310), 200,
        lambda code, _: encode_success(make_request(310), ext={"name": f"{code}"}),
    )  # fmt: skip
    await bench.move(300)
    assert bench.peer.answers() == [("0", 0)]
    assert other.answers() == [("", ResponseCode.SYSTEM_ERROR)]
    assert bench.stats.handler_failures == 1
    counts = {request.key.response_code: request.count for request in bench.stats.requests()}
    assert counts == {ResponseCode.SUCCESS: 1, ResponseCode.SYSTEM_ERROR: 1}


async def test_an_answer_too_late_that_cannot_be_made_keeps_none_back() -> None:
    bench, other = Bench(timeout_ms=-1_000), Peer()
    bench.wait(200, "b")
    bench.wait_faulty(100, other)
    bench.all.go_on()
    assert other.answers() == [("", ResponseCode.SYSTEM_ERROR)]
    assert bench.peer.answers() == [("b", ResponseCode.FLUSH_DISK_TIMEOUT)]


async def test_too_late_is_flush_disk_timeout_and_says_where_the_message_went() -> None:
    bench = Bench(timeout_ms=-1_000)
    bench.wait(100, "a")
    bench.all.go_on()
    assert bench.peer.answers() == [("a", ResponseCode.FLUSH_DISK_TIMEOUT)]
    assert bench.sends.timed_out == 1
    assert bench.stats.put_failures == 0  # it is stored


async def test_a_failed_sync_answers_with_an_error_but_not_to_what_is_durable() -> None:
    bench = Bench()
    bench.wait(100, "safe")
    bench.wait(200, "lost")
    bench.marks.durable = 100
    bench.events.broken(StoreBroken("EIO"))
    await asyncio.wait_for(bench.moved.wait(), 5)
    assert bench.peer.answers() == [("safe", 0), ("lost", ResponseCode.SERVICE_NOT_AVAILABLE)]
    assert bench.stats.put_failures == 1


async def test_time_to_the_answer_is_counted_by_outcome() -> None:
    bench = Bench(timeout_ms=0)
    bench.wait(100, "in time")
    await bench.move(100)
    bench.wait(200, "too late")
    bench.all.go_on()
    counts = {request.key.response_code: request.count for request in bench.stats.requests()}
    assert counts == {ResponseCode.SUCCESS: 1, ResponseCode.FLUSH_DISK_TIMEOUT: 1}


async def test_a_waiting_send_keeps_no_body_and_there_is_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers_module, "MAX_SENDS", 2)
    bench = Bench()
    request = make_request(310, {"a": "b"}, b"x" * 1000)
    bench.sends.when_kept(connection_of(bench.peer), request, 100, b"made")
    assert (request.body, request.ext) == (b"", {})
    assert (bench.sends.full, bench.sends.room) == (False, 1)
    bench.wait(200, "b")
    assert (bench.sends.full, bench.sends.room) == (True, 0)
    assert bench.sends.overload().code == ResponseCode.SYSTEM_BUSY
    assert "2 sends wait for their sync" in bench.sends.overload().remark


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
    bench = Bench(timeout_ms=5)
    bench.wait(1, "late")
    await asyncio.sleep(0.02)
    bench.all.go_on()
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
        while len(bench.sends):
            await asyncio.sleep(0)
            left = len(bench.peer.answers())
            most, before = max(most, left - before), left
    return most


async def test_very_many_answers_leave_a_slice_a_turn_in_order() -> None:
    bench = Bench(turns=Turns(Ticking()))
    for number in range(2_000):
        bench.wait(100, f"{number}")
    bench.marks.sync(100)
    assert 0 < await _most_of_a_turn(bench) <= 4 * answers_module._LOOK
    assert bench.peer.answers() == [(f"{number}", 0) for number in range(2_000)]


@pytest.mark.parametrize("end", ["broken", "expired"])
async def test_what_fails_or_expires_is_answered_a_slice_a_turn(end: str) -> None:
    bench = Bench(timeout_ms=-1_000 if end == "expired" else 60_000, turns=Turns(Ticking()))
    for number in range(200):
        bench.wait(100, f"{number}")
    if end == "broken":
        bench.events.broken(StoreBroken("disk gone"))
    else:
        bench.all.go_on()
    assert 0 < await _most_of_a_turn(bench) <= 8
    assert len(bench.peer.answers()) == 200


async def test_very_many_moves_are_one_call_of_the_loop() -> None:
    bench = Bench()
    calls = 0

    def counted() -> None:
        nonlocal calls
        calls += 1

    bench.marks_moved = counted  # type: ignore[method-assign]
    for end in range(1, 100):
        bench.marks.sync(end)
    await asyncio.sleep(0)
    assert calls == 1


# --- slaves -----------------------------------------------------------------------------------


def of_slaves(flush: str = "ASYNC_FLUSH", **more: object) -> Bench:
    """A SYNC_MASTER's, whose slave is there."""
    bench = Bench(flush=flush, broker_role="SYNC_MASTER", **more)
    bench.marks.replicate(0, enough=True)
    return bench


async def test_a_sync_master_answers_when_a_slave_has_it() -> None:
    bench = of_slaves()
    bench.wait(100, "a")
    bench.wait(200, "b")
    bench.all.go_on()
    assert bench.peer.written == []
    bench.marks.replicate(150, enough=True)
    bench.all.go_on()
    assert bench.peer.answers() == [("a", 0)]
    bench.marks.replicate(200, enough=True)
    bench.all.go_on()
    assert bench.peer.answers() == [("a", 0), ("b", 0)]


async def test_with_sync_flush_too_both_have_to_have_it() -> None:
    bench = of_slaves("SYNC_FLUSH")
    bench.wait(100, "a")
    bench.marks.replicate(500, enough=True)
    bench.all.go_on()
    assert bench.peer.written == []
    await bench.move(100)
    assert bench.peer.answers() == [("a", 0)]


async def test_without_enough_slaves_nobody_is_waited_for_but_the_disk() -> None:
    bench = of_slaves("SYNC_FLUSH")
    bench.wait(100, "a")
    bench.wait(200, "b")
    bench.marks.replicate(0, enough=False)
    bench.all.go_on()
    assert bench.peer.written == []
    await bench.move(100)
    assert bench.peer.answers() == [("a", ResponseCode.SLAVE_NOT_AVAILABLE)]
    await bench.move(200)
    assert bench.peer.answers()[1:] == [("b", ResponseCode.SLAVE_NOT_AVAILABLE)]


async def test_what_a_slave_has_is_answered_as_kept_after_the_slave_has_gone() -> None:
    bench = of_slaves()
    for end, name in ((100, "a"), (200, "b")):
        bench.wait(end, name)
    bench.marks.replicate(100, enough=True)
    bench.marks.replicate(0, enough=False)
    bench.all.go_on()
    assert bench.peer.answers() == [("a", 0), ("b", ResponseCode.SLAVE_NOT_AVAILABLE)]


async def test_a_slave_that_is_too_slow_is_told_from_a_disk_that_is() -> None:
    bench = of_slaves("SYNC_FLUSH", timeout_ms=40, slave_timeout_ms=5)
    await bench.move(100)
    bench.wait(100, "here")
    bench.wait(200, "nowhere")
    async with asyncio.timeout(5):
        while len(bench.peer.answers()) < 2:
            bench.all.go_on()
            await asyncio.sleep(0)
    assert bench.peer.answers() == [
        ("here", ResponseCode.FLUSH_SLAVE_TIMEOUT),
        ("nowhere", ResponseCode.FLUSH_DISK_TIMEOUT),
    ]
    assert bench.sends.timed_out == 2


async def test_too_many_that_wait_for_slaves_are_refused_with_that_reason() -> None:
    bench = of_slaves()
    bench.wait(100, "a")
    assert "1 sends wait for slaves" in bench.sends.overload().remark


async def test_an_intent_waits_for_slaves_and_the_sync() -> None:
    bench = of_slaves()
    request = make_request(31002)

    def made(code: int, remark: str | None) -> bytes:
        return encode_success(request, ext={"name": f"{code}"})

    bench.all.intents.wait(connection_of(bench.peer), request, 100, made)
    bench.marks.replicate(100, enough=True)
    bench.all.go_on()
    assert bench.peer.written == []
    await bench.move(100)
    assert bench.peer.answers() == [("0", 0)]


class Held:
    """Answers as the compiled form holds them; each has its end for its frame's field."""

    def __init__(self, bench: Bench, *ends: int) -> None:
        self.ends = ends
        self.connection = connection_of(bench.peer)
        self.request = make_request(310)

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def end(self) -> int:
        return self.ends[-1]

    def codes(self) -> list[tuple[int, int]]:
        return [(310, len(self.ends))]

    def each(self) -> list[tuple[Connection, int, int, int, int, bytes]]:
        asked = 310, self.request.opaque, self.request.serialization
        return [(self.connection, end, *asked, self._made(end)) for end in self.ends]

    def _made(self, end: int) -> bytes:
        return encode_success(self.request, ext={"name": f"{end}"})

    def leave(self) -> None:
        self.connection.write(b"".join(map(self._made, self.ends)))


async def test_undecoded_requests_get_the_code_with_all_that_their_answer_says() -> None:
    bench = of_slaves()
    bench.sends.wait_made(Held(bench, 100))
    bench.marks.replicate(0, enough=False)
    bench.all.go_on()
    await bench.all_left()
    assert bench.peer.answers() == [("100", ResponseCode.SLAVE_NOT_AVAILABLE)]


async def test_answers_of_one_append_leave_together() -> None:
    bench = of_slaves()
    bench.sends.wait_made(Held(bench, 20, 40, 60))
    bench.sends.wait_made(Held(bench, 80))
    assert (len(bench.sends), bench.sends.room) == (4, answers_module.MAX_SENDS - 4)
    bench.marks.replicate(59, enough=True)
    bench.all.go_on()
    assert bench.peer.answers() == []
    bench.marks.replicate(60, enough=True)
    bench.all.go_on()
    assert bench.peer.answers() == [("20", 0), ("40", 0), ("60", 0)]
    assert len(bench.sends) == 1
    bench.marks.replicate(80, enough=True)
    bench.all.go_on()
    assert bench.peer.answers()[3:] == [("80", 0)]
    assert len(bench.sends) == 0


async def test_answers_of_one_append_may_end_differently() -> None:
    bench = of_slaves()
    bench.sends.wait_made(Held(bench, 20, 40, 60))
    bench.marks.replicate(40, enough=True)
    bench.marks.replicate(40, enough=False)
    bench.all.go_on()
    await bench.all_left()
    lacks = ResponseCode.SLAVE_NOT_AVAILABLE
    assert bench.peer.answers() == [("20", 0), ("40", 0), ("60", lacks)]
    assert len(bench.sends) == 0
