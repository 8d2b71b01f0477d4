"""Delayed messages over a real store, with time moved by hand: no test waits."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.delay.delay_service import ScheduleMessageService
from aerobee.broker.delay.delivery_progress import DelayProgress
from aerobee.broker.routing.role import Role
from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.config.model import Settings
from aerobee.protocol.bodies.topics import TopicConfig
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import make_request
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.protocol.hashing import tag_code
from aerobee.protocol.message.properties import decode_properties
from aerobee.protocol.message.record import StoreMessage, decode_record
from aerobee.protocol.names import SCHEDULE_TOPIC
from aerobee.remoting.connections.connection import Connection
from aerobee.store.errors import StoreBroken, StoreNotWritable
from aerobee.store.message_store import MessageStore
from aerobee.store.queues.queue_view import ENTRY, ENTRY_BYTES
from aerobee.store.reading.delayed_messages import waiting_form
from aerobee.store.segments.results import PutResult
from tests.unit.broker.appending.appending_support import appending
from tests.unit.broker.second_step.second_step_support import no_deletions, retries_of, second_step
from tests.unit.store.support import (
    FIRST_MS,
    SEGMENT,
    ManualClock,
    adopt,
    bodies,
    from_properties,
    log_segment,
    message,
    queue_file,
    read_all,
    small_settings,
)


class ManualLoop:
    """The part of an event loop that the service uses; its time is moved by `run_until`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._order = itertools.count()
        self._queue: list[tuple[float, int, asyncio.Handle]] = []

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def call_soon(self, callback: Callable[[], None]) -> asyncio.Handle:
        return self.call_later(0, callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.Handle:
        handle = asyncio.Handle(callback, (), cast(asyncio.AbstractEventLoop, self))
        heapq.heappush(self._queue, (self.now + delay_s, next(self._order), handle))
        return handle

    def next_at(self) -> float | None:
        while self._queue and self._queue[0][2].cancelled():
            heapq.heappop(self._queue)
        return self._queue[0][0] if self._queue else None

    def run_next(self) -> None:
        at, _, handle = heapq.heappop(self._queue)
        self.now = max(self.now, at)
        handle._run()


class Wall(ManualClock):
    """Wall time that goes along with a loop's; a test sets it by adding to `shift_ms`."""

    def __init__(self, loop: ManualLoop) -> None:
        self.loop = loop
        self.shift_ms = FIRST_MS - round(loop.now * 1000)

    def now_ms(self) -> int:
        return self.shift_ms + int(self.loop.now * 1000 + 1e-6)

    def now_ns(self) -> int:
        return self.now_ms() * 1_000_000


class Bench:
    """A store, a service, and both clocks, which go together until a test sets the wall clock."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.path = path
        self.settings = settings
        self.loop = ManualLoop()
        self.clock = Wall(self.loop)
        self.turns = 0
        self.refusal: Exception | None = None
        self.topics = {"Orders": TopicConfig("Orders")}
        self.deleted = no_deletions()
        self.role = Role(Settings.for_tests())
        self.open()

    def open(self) -> None:
        never_ms = 3_600_000
        values: dict[str, object] = {
            "message_delay_levels": "1s 5s 2h",
            "flush_interval_ms": never_ms,
            "flush_thorough_interval_ms": never_ms,
            **self.settings,
        }
        self.store = MessageStore.open(small_settings(self.path, **values), clock=self.clock)
        self._really_put = self.store.log.put
        self.store.log.put = self._put  # type: ignore[method-assign]
        self.stats = BrokerStats()
        self.progress = DelayProgress(self.file(), lambda: self.store.durable)
        self.retries = retries_of(self.store, self.deleted)
        self.delays = ScheduleMessageService(
            appending(
                self.store,
                Settings.for_tests(),
                stats=self.stats,
                clock_ms=self.clock.now_ms,
                appended=self.appended,
                role=self.role,
            ),
            loop=cast(asyncio.AbstractEventLoop, self.loop),
            progress=self.progress,
            second_step=second_step(self.topics.get, self.deleted),
            retries=self.retries,
        )
        if not self.role.is_slave:
            self.delays.lead(anew=False)

    def _put(self, message: StoreMessage) -> PutResult:
        if self.refusal is not None and message.topic != SCHEDULE_TOPIC:
            raise self.refusal
        return self._really_put(message)

    def file(self) -> JsonStateFile:
        return JsonStateFile(self.path / "config" / "delayOffset.json")

    def appended(self) -> None:
        self.store.dispatch()

    def close(self) -> None:
        self.delays.close()
        self.store.close(self.delays.save_last)

    def restart(self) -> None:
        self.close()
        self.open()

    def send(self, body: bytes, level: int, topic: str = "Orders", queue_id: int = 0) -> PutResult:
        result = self.delays.put(
            message(body, topic, queue_id, tags="T", keys="k", more={"DELAY": str(level)})
        )
        self.store.dispatch()
        return result

    def pass_ms(self, duration_ms: int, most_turns: int = 10_000) -> None:
        """Let time go by; every timer runs at its time."""
        end = self.loop.now + duration_ms / 1000
        while (at := self.loop.next_at()) is not None and at <= end:
            self.loop.run_next()
            self.turns += 1
            most_turns -= 1
            assert most_turns, "a busy loop"
        self.loop.now = end


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def place(bench: Bench, level: int) -> int:
    return {figures.level: figures.offset for figures in bench.delays.level_stats()}[level]


# --- what is stored -------------------------------------------------------------------------


def test_a_delayed_message_waits_in_its_level_s_queue_with_its_own_place_in_it(
    bench: Bench,
) -> None:
    sent = from_properties(b"x", "Orders", 3, b"TAGS\x01T\x02DELAY\x012\x02WAIT\x01true")
    result = bench.delays.put(sent)
    bench.store.dispatch()
    (found,) = read_all(bench.store, SCHEDULE_TOPIC, 1)
    assert list(found.properties.items()) == [
        ("TAGS", "T"),
        ("DELAY", "2"),
        ("WAIT", "true"),
        ("REAL_TOPIC", "Orders"),
        ("REAL_QID", "3"),
    ]
    assert (found.body, found.queue_offset, result.queue_offset) == (b"x", 0, 0)
    _, _, code = ENTRY.unpack(queue_file(bench.path, SCHEDULE_TOPIC, 1).read_bytes()[:ENTRY_BYTES])
    assert code == found.store_timestamp_ms + 5000


def test_a_level_beyond_the_highest_is_the_highest_and_is_stored_so(bench: Bench) -> None:
    bench.send(b"x", 99)
    (found,) = read_all(bench.store, SCHEDULE_TOPIC, 2)
    assert found.properties["DELAY"] == "3"


def test_a_client_cannot_say_where_its_message_will_go(bench: Bench) -> None:
    sent = from_properties(
        b"x", "Orders", 0, b"REAL_TOPIC\x01Secret\x02REAL_QID\x019\x02DELAY\x011"
    )
    bench.delays.put(sent)
    bench.store.dispatch()
    bench.pass_ms(1500)
    assert bodies(bench.store) == [b"x"]
    assert not bodies(bench.store, "Secret", 9)


@pytest.mark.parametrize("properties", [b"", b"DELAY\x010", b"DELAY\x01-1", b"DELAY\x01soon"])
def test_without_a_level_a_message_is_stored_as_it_is(bench: Bench, properties: bytes) -> None:
    bench.delays.put(from_properties(b"x", "Orders", 0, properties))
    bench.store.dispatch()
    (found,) = read_all(bench.store)
    assert found.properties == decode_properties(properties)


def test_text_that_is_no_utf_8_is_stored_as_question_marks_and_delivered(bench: Bench) -> None:
    sent = message(b"x", more={"DELAY": "1"})
    sent.properties += b"\x02own\x01\xed\xa0\x80"  # half of a surrogate pair
    bench.delays.put(sent)
    bench.store.dispatch()
    bench.pass_ms(1500)
    (found,) = read_all(bench.store)
    assert found.properties["own"] == "?"


# --- what is delivered ----------------------------------------------------------------------


def test_a_message_is_delivered_when_it_is_due_and_not_before(bench: Bench) -> None:
    sent = bench.send(b"x", 2, queue_id=1)
    due_ms = FIRST_MS + 5000
    while not bodies(bench.store, queue_id=1):
        before_ms = bench.clock.now_ms()
        bench.pass_ms(1)
        assert bench.clock.now_ms() <= due_ms + 2
    assert before_ms >= due_ms - 1
    (found,) = read_all(bench.store, queue_id=1)
    waiting = decode_record(bench.store.reader.record_at(sent.log_offset) or b"")
    assert found.properties == waiting.properties
    assert found.properties["DELAY"] == "2"
    assert found.properties["REAL_QID"] == "1"
    same = ("body", "flag", "sys_flag", "born_timestamp_ms", "born_host", "store_host")
    for name in (*same, "reconsume_times"):
        assert getattr(found, name) == getattr(waiting, name), name
    assert found.store_timestamp_ms >= due_ms
    assert found.prepared_transaction_offset == 0
    unit = queue_file(bench.path, "Orders", 1).read_bytes()[:ENTRY_BYTES]
    assert ENTRY.unpack(unit)[2] == tag_code("T")
    assert [
        decode_record(r).topic for r in bench.store.search.query("Orders", "k", 9, 0, 2**62).records
    ]


def test_levels_do_not_wait_for_each_other(bench: Bench) -> None:
    bench.send(b"late", 3)
    bench.send(b"later", 2)
    bench.send(b"soon", 1)
    bench.pass_ms(1100)
    assert bodies(bench.store) == [b"soon"]
    bench.pass_ms(5000)
    assert bodies(bench.store) == [b"soon", b"later"]
    bench.pass_ms(7_200_000, most_turns=100_000)
    assert bodies(bench.store) == [b"soon", b"later", b"late"]


def test_nothing_turns_while_nothing_waits(bench: Bench) -> None:
    bench.pass_ms(60_000)
    assert bench.turns == 0
    bench.send(b"x", 1)
    bench.pass_ms(2000)
    assert bench.turns <= 15
    turns = bench.turns
    bench.pass_ms(60_000)
    assert bench.turns == turns
    assert bodies(bench.store) == [b"x"]


def test_a_level_far_behind_is_worked_off_in_small_turns(bench: Bench) -> None:
    made = [b"%04d" % n for n in range(200)]
    for body in made:
        bench.send(body, 1)
    bench.clock.shift_ms += 5000
    most, before = 0, 0
    while before < len(made):
        bench.loop.run_next()
        now = len(bodies(bench.store))
        most, before = max(most, now - before), now
    assert bodies(bench.store) == made
    assert 0 < most <= 32


def test_levels_that_are_behind_take_turns(bench: Bench) -> None:
    for n in range(100):
        bench.send(b"one %d" % n, 1)
        bench.send(b"two %d" % n, 2)
    bench.clock.shift_ms += 6000
    for _ in range(4):
        bench.loop.run_next()
    delivered = {level.level: level.delivered for level in bench.delays.level_stats()}
    assert delivered[1]
    assert delivered[2]


def test_progress_and_deliveries_are_counted(bench: Bench) -> None:
    bench.send(b"x", 1)
    bench.send(b"y", 1)
    (level,) = bench.delays.level_stats()
    assert (level.level, level.offset, level.end, level.late_s) == (1, 0, 2, 0.0)
    bench.clock.shift_ms += 4000
    assert bench.delays.level_stats()[0].late_s == 3.0
    bench.pass_ms(200)
    (level,) = bench.delays.level_stats()
    assert (level.offset, level.end, level.delivered, level.late_s) == (2, 2, 2, 0.0)
    counts = {(t.topic, t.message_type): t.messages_in for t in bench.stats.topics()}
    assert counts == {(SCHEDULE_TOPIC, "delay"): 2, ("Orders", "delay"): 2}
    (given_out,) = bench.stats.consumers()
    assert (given_out.group, given_out.messages_out) == ("SCHEDULE_CONSUMER", 2)


# --- the wall clock -------------------------------------------------------------------------


def test_a_clock_set_forth_delivers_within_a_tenth_of_a_second(bench: Bench) -> None:
    bench.send(b"x", 3)
    bench.pass_ms(1000)
    bench.clock.shift_ms += 7_200_000
    bench.pass_ms(100)
    assert bodies(bench.store) == [b"x"]


def test_a_clock_set_far_back_delivers_at_once_as_the_reference(bench: Bench) -> None:
    bench.send(b"x", 2)
    bench.clock.shift_ms -= 60_000
    bench.pass_ms(100)
    assert bodies(bench.store) == [b"x"]


def test_a_clock_put_right_by_a_moment_delivers_nothing_early(bench: Bench) -> None:
    bench.send(b"x", 2)
    bench.clock.shift_ms -= 900
    bench.pass_ms(5800)
    assert not bodies(bench.store)
    bench.pass_ms(300)
    assert bodies(bench.store) == [b"x"]


# --- what goes wrong ------------------------------------------------------------------------


def test_a_refused_put_is_tried_again_and_nothing_is_lost_or_overtaken(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    made = [b"%d" % n for n in range(5)]
    for body in made:
        bench.send(body, 1)
    bench.refusal = StoreNotWritable("the disk is full")
    bench.pass_ms(10_000)
    assert not bodies(bench.store)
    assert place(bench, 1) == 0
    assert 50 < bench.delays.put_failures < 110
    assert sum("will be tried again" in line for line in caplog.messages) < 10
    bench.refusal = None
    bench.pass_ms(200)
    assert bodies(bench.store) == made


def test_a_broken_store_ends_delivery_until_a_restart(bench: Bench) -> None:
    bench.send(b"x", 1)
    bench.refusal = StoreBroken("a sync failed")
    bench.pass_ms(60_000)
    assert bench.turns < 20
    assert bench.delays.put_failures == 1
    bench.refusal = None
    bench.restart()
    bench.pass_ms(200)
    assert bodies(bench.store) == [b"x"]


def test_an_unforeseen_error_is_logged_and_other_levels_go_on(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.send(b"bad", 1, topic="Bad")
    bench.send(b"good", 2)
    put = bench.store.log.put

    def failing(one: StoreMessage) -> PutResult:
        if one.topic == "Bad":
            raise OSError("unforeseen")
        return put(one)

    bench.store.log.put = failing
    bench.pass_ms(6000)
    assert bodies(bench.store) == [b"good"]
    assert "Traceback" in caplog.text
    assert "unforeseen" in caplog.text
    bench.store.log.put = put
    bench.pass_ms(10_000)
    assert bodies(bench.store, "Bad") == [b"bad"]


def test_what_can_never_be_stored_is_passed_over_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path)
    bench.send(b"x" * 500, 1)
    bench.send(b"y", 1)
    bench.settings["max_message_bytes"] = 100
    bench.restart()
    bench.pass_ms(2000)
    assert bodies(bench.store) == [b"y"]
    assert "cannot be delivered delay_level=1 queue_offset=0 topic=Orders" in caplog.text
    assert bench.delays.level_stats()[0].passed_over == 1
    bench.close()


def test_a_damaged_record_is_passed_over_and_named(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    results = [bench.send(b"%d" % n * 20, 1) for n in range(3)]
    segment = bench.store.log.segments.find(results[1].log_offset)
    assert segment is not None
    assert segment._memory is not None
    position = results[1].log_offset - segment.start
    segment._memory[position + 4] ^= 1  # its magic
    bench.pass_ms(1500)
    assert bodies(bench.store) == [b"0" * 20, b"2" * 20]
    assert "damaged record" in caplog.text
    assert "queue_offsets=0-2 count=1" in caplog.text


def test_a_time_before_the_message_was_stored_is_none(bench: Bench) -> None:
    """A reference that rebuilt its queues without knowing the levels left tag hashes there."""
    bench.send(b"x", 2)
    _rewrite_code(bench, 1, 0, tag_code("T"))
    bench.delays.start()
    bench.pass_ms(4900)
    assert not bodies(bench.store)
    bench.pass_ms(200)
    assert bodies(bench.store) == [b"x"]


def test_a_damaged_unit_gives_out_nobody_else_s_message(bench: Bench) -> None:
    other = bench.send(b"not yet", 3)
    bench.send(b"x", 1)
    bench.send(b"y", 1)
    queue = bench.store._queues.get(SCHEDULE_TOPIC, 0)
    assert queue is not None
    _, _, code = queue.entry(0) or (0, 0, 0)
    queue._write_split(0, ENTRY.pack(other.log_offset, other.size, code))
    bench.pass_ms(1500)
    # The message that the unit should name is found in the log.
    assert bodies(bench.store) == [b"x", b"y"]


def _rewrite_code(bench: Bench, queue_id: int, offset: int, code: int) -> None:
    queue = bench.store._queues.get(SCHEDULE_TOPIC, queue_id)
    assert queue is not None
    log_offset, size, _ = queue.entry(offset) or (0, 0, 0)
    queue._write_split(offset, ENTRY.pack(log_offset, size, code))


# --- progress -------------------------------------------------------------------------------


def test_a_clean_stop_writes_the_place_and_nothing_comes_twice(bench: Bench) -> None:
    bench.send(b"x", 1)
    bench.send(b"waiting", 2)
    bench.pass_ms(1500)
    bench.restart()
    written = bench.file().path.read_text()
    assert written == '{\n\t"offsetTable":{1:1,2:0\n\t}\n}'
    bench.pass_ms(5000)
    assert bodies(bench.store) == [b"x", b"waiting"]


def test_the_file_says_nothing_that_is_not_durable(bench: Bench) -> None:
    """Otherwise a power cut loses the message: its second record is gone, and the file has it
    done."""
    for n in range(3):
        bench.send(b"%d" % n, 1)
    bench.pass_ms(1500)
    assert bench.store.durable < bench.store.written
    bench.progress.take_changes()
    assert bench.progress._positions[1].advance(bench.store.durable) == 0
    assert bench.progress.table() == {1: 3}
    assert bench.progress._positions[1].advance(bench.store.written) == 3


@pytest.mark.parametrize("ahead", [False, True], ids=["as it is", "control"])
def test_a_power_cut_takes_no_message_that_the_file_calls_delivered(
    tmp_path: Path, ahead: bool
) -> None:
    bench = Bench(tmp_path / "store")
    sent = bench.send(b"x", 1)
    assert bench.store._sync.sync()
    assert bench.store.durable == sent.end
    bench.pass_ms(1500)
    assert bodies(bench.store) == [b"x"]
    durable = bench.store.durable
    assert durable < bench.store.written
    if ahead:
        bench.file().save('{"offsetTable":{1:1}}')
    elif (text := bench.progress.take_changes()) is not None:
        bench.progress.save(text)
    image = tmp_path / "image"
    shutil.copytree(bench.path, image)
    bench.close()
    with log_segment(image).open("r+b") as file:
        file.seek(durable)
        file.write(bytes(SEGMENT - durable))
    adopt(image, other_boot=True)
    again = Bench(image)
    again.pass_ms(1500)
    assert bodies(again.store) == ([] if ahead else [b"x"])
    again.close()


def test_an_older_text_does_not_overwrite_a_newer_one(bench: Bench) -> None:
    progress = bench.progress
    progress.moved(1, 0)
    first = progress.take_changes()
    progress.moved(2, 0)
    second = progress.take_changes()
    assert first is not None
    assert second is not None
    progress.save(second)
    progress.save(first)
    assert bench.file().path.read_text() == second


def test_places_outside_of_the_queue_are_corrected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = JsonStateFile(tmp_path / "config" / "delayOffset.json")
    file.save('{"offsetTable":{1:50,2:7,9:3}}')
    bench = Bench(tmp_path)
    assert "delay progress corrected delay_level=1 from=50 to=0" in caplog.text
    bench.send(b"x", 1)
    bench.pass_ms(1500)
    assert bodies(bench.store) == [b"x"]
    bench.close()


def test_without_the_file_all_that_waits_is_delivered_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.send(b"x", 1)
    bench.pass_ms(1500)
    bench.close()
    for path in (bench.file().path, bench.file().backup):
        path.unlink(missing_ok=True)
    bench.open()
    bench.pass_ms(200)
    assert bodies(bench.store) == [b"x", b"x"]
    assert "no progress of a delay level is known" in caplog.text


def test_progress_from_its_backup_is_completed_from_the_queues(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A level that was new since the backup stood nowhere, until it moved."""
    bench.send(b"x", 1)
    bench.pass_ms(1500)
    bench.restart()
    assert bench.file().path.read_text() == '{\n\t"offsetTable":{1:1\n\t}\n}'
    bench.send(b"waits", 3)
    bench.close()
    bench.file().path.write_bytes(b"{")
    bench.open()
    assert "state file damaged, using its backup" in caplog.text
    assert (
        "levels added to the delay progress from their queues, because the table is that of its "
        f"backup path={bench.file().path} levels=3 (from 0 of 0-1)"
    ) in caplog.text
    bench.close()
    assert bench.file().path.read_text() == '{\n\t"offsetTable":{1:1,3:0\n\t}\n}'
    caplog.clear()
    bench.open()
    assert "levels added" not in caplog.text
    assert bodies(bench.store) == [b"x"]


def test_levels_that_the_settings_know_no_more_are_still_delivered(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.send(b"x", 3)
    bench.settings["message_delay_levels"] = "1s"
    bench.restart()
    bench.pass_ms(7_100_000, most_turns=100_000)
    assert not bodies(bench.store)
    bench.pass_ms(200_000)
    assert bodies(bench.store) == [b"x"]
    assert "has no more" in caplog.text


def test_messages_deleted_before_they_were_due_are_named(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(3):
        bench.send(b"%d" % n, 1)
    queue = bench.store._queues.get(SCHEDULE_TOPIC, 0)
    assert queue is not None
    queue.min_offset = 2
    bench.pass_ms(1500)
    assert bodies(bench.store) == [b"2"]
    assert "before they were due delay_level=1 queue_offsets=0-1 count=2" in caplog.text
    assert bench.delays.level_stats()[0].passed_over == 2


def test_the_retention_is_told_who_still_needs_what_waits(bench: Bench) -> None:
    bench.send(b"x", 1)
    bench.send(b"y", 2)
    bench.pass_ms(1500)
    [(place, offsets)] = bench.progress.tables()
    assert place == (SCHEDULE_TOPIC, "SCHEDULE_CONSUMER")
    assert offsets == {0: 1, 1: 0}


def test_what_is_sent_before_the_start_is_delivered_too(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.delays._halt()
    bench.send(b"x", 1)
    bench.pass_ms(5000)
    assert not bodies(bench.store)
    bench.delays.start()
    bench.pass_ms(100)
    assert bodies(bench.store) == [b"x"]
    bench.close()


def test_what_is_not_visible_yet_is_waited_for(bench: Bench) -> None:
    bench.delays.put(message(b"x", more={"DELAY": "1"}))
    bench.pass_ms(5000)
    assert not bodies(bench.store)
    assert bench.turns < 70
    bench.store.dispatch()
    bench.pass_ms(100)
    assert bodies(bench.store) == [b"x"]


def test_extension_units_hold_the_time_and_a_lost_one_is_computed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, consume_queue_ext_enabled=True)
    bench.send(b"x", 2)
    bench.pass_ms(4900)
    assert not bodies(bench.store)
    bench.pass_ms(200)
    assert bodies(bench.store) == [b"x"]
    bench.send(b"y", 2)
    for path in (tmp_path / "consumequeue_ext").rglob("0*"):
        if path.is_file():
            path.write_bytes(bytes(path.stat().st_size))
    bench.delays.start()
    bench.pass_ms(4900)
    assert bodies(bench.store) == [b"x"]
    bench.pass_ms(200)
    assert bodies(bench.store) == [b"x", b"y"]
    bench.close()


def test_turns_are_quiet_in_the_log(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for n in range(50):
        bench.send(b"%d" % n, 1)
    bench.pass_ms(2000)
    assert len(bodies(bench.store)) == 50
    assert not [line for line in caplog.messages if "delay" in line]


# --- on a slave, and after it ---------------------------------------------------------------


def copy_of_wait(bench: Bench, body: bytes) -> None:
    """A delayed message of level 1 comes as a slave gets it: as a record of the log."""
    waiting = waiting_form(message(body, "Orders", 0, more={"DELAY": "1"}), 3)
    assert waiting is not None
    bench.store.log.put(waiting)
    bench.store.dispatch()


def test_a_slave_delivers_nothing_and_goes_on_as_a_master_where_its_master_was(
    bench: Bench,
) -> None:
    bench.send(b"1", 1)
    bench.pass_ms(1500)
    bench.send(b"2", 1)
    bench.role.become(slave=True)
    bench.restart()
    copy_of_wait(bench, b"3")
    bench.pass_ms(10_000)
    assert (bodies(bench.store), place(bench, 1)) == ([b"1"], 1)
    # The master has delivered the second one, and the slave has got both records.
    bench.store.log.put(message(b"2", "Orders", 0))
    bench.store.dispatch()
    bench.delays.replace({1: 2})
    assert place(bench, 1) == 2
    bench.pass_ms(10_000)
    bench.role.become(slave=False)
    bench.restart()
    bench.pass_ms(100)
    assert bodies(bench.store) == [b"1", b"2", b"3"]
    bench.send(b"4", 1)
    bench.pass_ms(1500)
    assert bodies(bench.store) == [b"1", b"2", b"3", b"4"]


def test_the_role_may_change_while_the_service_runs(bench: Bench) -> None:
    bench.send(b"1", 1, topic="%RETRY%G")
    bench.role.become(slave=True)
    bench.delays.follow()
    copy_of_wait(bench, b"2")
    bench.pass_ms(10_000)
    assert bodies(bench.store) == bodies(bench.store, "%RETRY%G") == []
    bench.role.become(slave=False)
    bench.delays.lead(anew=True)
    while bench.retries.step():
        pass
    assert bench.retries.count("%RETRY%G") == 1
    bench.pass_ms(100)
    assert (bodies(bench.store, "%RETRY%G"), bodies(bench.store)) == ([b"1"], [b"2"])
    assert bench.retries.count("%RETRY%G") == 0


def test_a_place_that_the_copied_log_has_not_reached_is_corrected_when_it_counts(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.role.become(slave=True)
    bench.restart()
    bench.delays.replace({1: 5})
    copy_of_wait(bench, b"1")
    assert "corrected" not in caplog.text
    bench.role.become(slave=False)
    bench.delays.lead(anew=True)
    assert "delay progress corrected delay_level=1 from=5 to=1" in caplog.text
    bench.send(b"2", 1)
    bench.pass_ms(1500)
    assert bodies(bench.store) == [b"2"]


def test_a_slave_s_progress_is_saved_as_its_master_says(bench: Bench) -> None:
    bench.role.become(slave=True)
    bench.restart()
    bench.delays.replace({1: 5, 3: 7})
    bench.close()
    assert DelayProgress(bench.file(), lambda: 0).table() == {1: 5, 3: 7}
    bench.open()
    assert place(bench, 3) == 7


def test_a_master_s_places_are_read_as_it_tells_them(bench: Bench) -> None:
    bench.send(b"1", 1)
    bench.send(b"2", 3)
    bench.pass_ms(1500)
    [told] = bench.delays.handlers().values()
    answer = told(cast("Connection", None), make_request(RequestCode.GET_ALL_DELAY_OFFSET, {}))
    [command] = FrameDecoder().feed(cast("bytes", answer))
    assert DelayProgress.read(command.body) == {1: 1, 3: 0}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b'{"offsetTable":{"0":1}}',
        b'{"offsetTable":{1:-1}}',
        b'{"offsetTable":7}',
        b'{"offsetTable":{%s}}' % b",".join(b"%d:1" % n for n in range(1, 1002)),
    ],
)
def test_places_that_no_master_has_are_refused(content: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        DelayProgress.read(content)
