"""Messages with a time of their own over a real store, with time moved by hand: no test waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.delay.delay_service import ScheduleMessageService
from aerobee.broker.delay.delivery_progress import TimerProgress
from aerobee.broker.delay.timer import TimerService
from aerobee.broker.routing.role import Role
from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.config.model import Settings
from aerobee.protocol.bodies.topics import TopicConfig
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.message.properties import decode_properties
from aerobee.protocol.message.record import Message, StoreMessage
from aerobee.protocol.message.record_layout import SYS_TRANSACTION_PREPARED
from aerobee.protocol.names import HALF_TOPIC, TIMER_TOPIC
from aerobee.store.errors import MessageIllegal, StoreNotWritable
from aerobee.store.message_store import MessageStore
from aerobee.store.queues.queue_view import ENTRY, ENTRY_BYTES
from aerobee.store.reading.timed_messages import BUCKETS, HOUR_MS, bucket_of
from aerobee.store.segments.results import PutResult
from tests.unit.broker.appending.appending_support import appending
from tests.unit.broker.delay.test_delay import ManualLoop, Wall
from tests.unit.broker.second_step.second_step_support import no_deletions, second_step
from tests.unit.store.support import (
    adopt,
    bodies,
    from_properties,
    kill_image,
    message,
    queue_file,
    read_all,
    small_settings,
)

DAY_MS = 86_400_000


class Bench:
    """A store, a timer, and both clocks, which go together until a test sets the wall clock."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.path = path
        self.settings = settings
        self.loop = ManualLoop()
        self.clock = Wall(self.loop)
        # In place of the settings, for a test to change.
        self.timer_enabled = True
        self.timer_max_delay_seconds = 40 * 86_400
        self.timer_roll_window_seconds = 36 * 3600
        self.retention_hours = 1000
        self.timer_messages = self.timer_recalls = 1000
        self.refusal: Exception | None = None
        self.topics = {"Orders": TopicConfig("Orders")}
        self.deleted = no_deletions()
        self.role = Role(Settings.for_tests())
        self.open()

    def open(self) -> None:
        never_ms = 3_600_000
        values: dict[str, object] = {
            "flush_interval_ms": never_ms,
            "flush_thorough_interval_ms": never_ms,
            "commit_log_segment_bytes": 1 << 20,
            "consume_queue_segment_bytes": 2000,
            **self.settings,
        }
        self.store = MessageStore.open(small_settings(self.path, **values), clock=self.clock)
        self._really_put = self.store.log.put
        self.store.log.put = self._put  # type: ignore[method-assign]
        self.visible = True
        self.stats = BrokerStats()
        self.progress = TimerProgress(self.file(), lambda: self.store.durable)
        self.timer = TimerService(
            appending(
                self.store,
                self,
                stats=self.stats,
                clock_ms=self.clock.now_ms,
                appended=self.appended,
                role=self.role,
            ),
            loop=cast(asyncio.AbstractEventLoop, self.loop),
            progress=self.progress,
            delays=cast("ScheduleMessageService", self.store.log),
            second_step=second_step(self.topics.get, self.deleted),
        )
        if not self.role.is_slave:
            self.timer.lead(anew=False)

    def _put(self, message: StoreMessage) -> PutResult:
        if self.refusal is not None and message.topic != TIMER_TOPIC:
            raise self.refusal
        return self._really_put(message)

    def file(self) -> JsonStateFile:
        return JsonStateFile(self.path / "config" / "timerProgress.json")

    def appended(self) -> None:
        if self.visible:
            self.store.dispatch()

    def save(self) -> None:
        """Save as the saver does, with all that was written made durable."""
        self.store.request_flush()
        self.store.sync_soon()
        self.store.wait_durable(self.store.written, 10)
        text = self.progress.take_changes()
        if text is not None:
            self.progress.save(text)

    def close(self) -> None:
        self.timer.close()
        self.store.close(self.timer.save_last)

    def restart(self) -> None:
        self.close()
        self.open()

    def send(self, body: bytes, wait_ms: int, topic: str = "Orders", queue_id: int = 0) -> int:
        """Returns when it is to be delivered."""
        deliver_ms = self.clock.now_ms() + wait_ms
        asked = {"TIMER_DELIVER_MS": str(deliver_ms)}
        self.timer.put(message(body, topic, queue_id, tags="T", unique=body.hex(), more=asked))
        self.appended()
        return deliver_ms

    def recall(self, body: bytes, deliver_ms: int, topic: str = "Orders") -> None:
        asked = {"TIMER_DEL_UNIQKEY": body.hex(), "TIMER_DELIVER_MS": str(deliver_ms)}
        self.timer.check_room_for_recall(deliver_ms)
        self.timer.put(message(b"-", topic, unique=body.hex(), more=asked))
        self.appended()

    def pass_ms(self, duration_ms: int, most_turns: int = 200_000) -> None:
        """Let time go by; every timer runs at its time."""
        end = self.loop.now + duration_ms / 1000
        while (at := self.loop.next_at()) is not None and at <= end:
            self.loop.run_next()
            most_turns -= 1
            assert most_turns, "a busy loop"
        self.loop.now = end

    def leap_ms(self, duration_ms: int) -> None:
        """The time goes by in one go, as it does for a broker that is held up or down."""
        self.loop.now += duration_ms / 1000
        self.pass_ms(1)

    def waiting(self) -> list[Message]:
        return [
            found
            for topic, queue_id in sorted(self.store.queues())
            if topic == TIMER_TOPIC
            for found in read_all(self.store, TIMER_TOPIC, queue_id)
        ]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


# --- what is stored -------------------------------------------------------------------------


def test_a_timed_message_waits_in_the_queue_of_its_hour_with_its_time_in_the_entry(
    bench: Bench,
) -> None:
    deliver_ms = bench.clock.now_ms() + 5 * HOUR_MS
    asked = b"TAGS\x01T\x02TIMER_DELIVER_MS\x01%d\x02WAIT\x01true" % deliver_ms
    bench.timer.put(from_properties(b"x", "Orders", 3, asked))
    bench.store.dispatch()
    queue_id = bucket_of(deliver_ms)
    (found,) = read_all(bench.store, TIMER_TOPIC, queue_id)
    assert list(found.properties.items()) == [
        ("TAGS", "T"),
        ("TIMER_DELIVER_MS", str(deliver_ms)),
        ("WAIT", "true"),
        ("TIMER_OUT_MS", str(deliver_ms)),
        ("REAL_TOPIC", "Orders"),
        ("REAL_QID", "3"),
    ]
    entry = queue_file(bench.path, TIMER_TOPIC, queue_id).read_bytes()[:ENTRY_BYTES]
    assert ENTRY.unpack(entry)[2] == deliver_ms
    assert bench.timer.pending() == 1


@pytest.mark.parametrize(
    ("asked", "wait_ms"),
    [
        ("TIMER_DELAY_SEC\x0130", 30_000),
        ("TIMER_DELAY_MS\x0130", 30),
        ("TIMER_DELAY_MS\x01+30", 30),
        ("TIMER_DELIVER_MS\x01{}", 40_000),
        ("__STARTDELIVERTIME\x01{}", 40_000),
        ("__STARTDELIVERTIME\x01{}\x02TIMER_DELAY_SEC\x015", 5000),
    ],
)
def test_each_way_to_ask_for_a_time_is_understood(bench: Bench, asked: str, wait_ms: int) -> None:
    text = asked.format(bench.clock.now_ms() + 40_000).encode()
    bench.timer.put(from_properties(b"x", "Orders", 0, text))
    bench.store.dispatch()
    bench.pass_ms(wait_ms - 1)
    assert not bodies(bench.store)
    bench.pass_ms(10)
    (found,) = read_all(bench.store)
    assert found.store_timestamp_ms == int(found.properties["TIMER_DELIVER_MS"])


@pytest.mark.parametrize(
    "properties",
    [b"", b"TIMER_DELIVER_MS\x011000", b"TIMER_DELAY_SEC\x010", b"TIMER_OUT_MS\x019999999999999"],
)
def test_a_message_without_a_time_to_come_is_stored_where_it_goes(
    bench: Bench, properties: bytes
) -> None:
    assert bench.timer.deliver_at(properties) is None
    bench.timer.put(from_properties(b"x", "Orders", 0, properties))
    bench.store.dispatch()
    assert bodies(bench.store) == [b"x"]


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (b"TIMER_DELIVER_MS\x01soon", "milliseconds since 1970"),
        (b"TIMER_DELAY_SEC\x01-5", "delay in seconds"),
        (b"TIMER_DELAY_MS\x011.5", "whole number"),
        (b"TIMER_DELAY_MS\x01-5", "the delay in milliseconds, a whole number of 0 or more"),
        (b"TIMER_DELAY_SEC\x014000000", "is to wait 4000000 s, the most is 3456000 s"),
        (b"TIMER_DELAY_MS\x01" + b"9" * 300, "999..."),
        (b"TIMER_DELAY_SEC\x013456001", "3456000 s"),
        (b"TIMER_DELIVER_MS\x0199999999999999", "timerMaxDelaySec"),
        (b"__STARTDELIVERTIME\x01\xc2\xb2", "__STARTDELIVERTIME"),
    ],
)
def test_an_illegal_time_is_refused_with_its_cause_and_changes_nothing(
    bench: Bench, asked: bytes, named: str
) -> None:
    written = bench.store.written
    with pytest.raises(MessageIllegal, match="timer message illegal") as refused:
        bench.timer.put(from_properties(b"x", "Orders", 0, asked))
    assert named in str(refused.value)
    assert bench.store.written == written


def test_with_the_timer_off_a_time_to_come_is_refused_and_what_waits_is_delivered(
    bench: Bench,
) -> None:
    bench.send(b"waits", 5000)
    bench.timer_enabled = False
    with pytest.raises(MessageIllegal, match="timerWheelEnable"):
        bench.send(b"refused", 5000)
    bench.pass_ms(6000)
    assert bodies(bench.store) == [b"waits"]


def test_a_delay_level_counts_before_a_time(bench: Bench) -> None:
    """Which is what the message then gets from whoever serves levels."""
    both = b"TIMER_DELAY_SEC\x0130\x02DELAY\x013"
    assert bench.timer.deliver_at(both) is None


def test_a_half_message_s_time_is_left_alone(bench: Bench) -> None:
    half = from_properties(
        b"x", HALF_TOPIC, 0, b"TIMER_DELAY_SEC\x0130", sys_flag=SYS_TRANSACTION_PREPARED
    )
    result = bench.timer.put(half)
    assert bench.store.reader.record_at(result.log_offset)
    assert not bench.waiting()


# --- what is delivered ----------------------------------------------------------------------


def test_a_message_is_delivered_at_its_time_as_it_was_sent(bench: Bench) -> None:
    deliver_ms = bench.send(b"x", 2 * HOUR_MS + 12_345, queue_id=1)
    bench.pass_ms(2 * HOUR_MS + 12_344)
    assert not bodies(bench.store, queue_id=1)
    bench.pass_ms(2)
    (found,) = read_all(bench.store, queue_id=1)
    (waited,) = bench.waiting()
    assert deliver_ms <= found.store_timestamp_ms <= deliver_ms + 1
    expected = dict(waited.properties)
    del expected["TIMER_OUT_MS"]
    assert found.properties == expected
    same = ("body", "flag", "sys_flag", "born_timestamp_ms", "born_host", "store_host")
    for name in (*same, "reconsume_times"):
        assert getattr(found, name) == getattr(waited, name), name
    assert (bench.timer.pending(), bench.timer.counts.delivered) == (0, 1)


def test_many_come_in_the_order_of_their_times_each_once(bench: Bench) -> None:
    times = [(bench.send(b"%d" % n, 1000 + n * 7919 % 7200 * 1000), n) for n in range(300)]
    bench.pass_ms(2 * HOUR_MS + 2000)
    assert bodies(bench.store) == [b"%d" % n for _, n in sorted(times)]


def test_a_message_for_the_hour_that_is_loaded_comes_too(bench: Bench) -> None:
    bench.send(b"later", 60_000)
    bench.pass_ms(30_000)
    bench.send(b"soon", 50)
    bench.pass_ms(51)
    assert bodies(bench.store) == [b"soon"]
    bench.pass_ms(30_000)
    assert bodies(bench.store) == [b"soon", b"later"]


def test_what_became_due_while_the_broker_was_down_comes_at_its_start(bench: Bench) -> None:
    for n in range(30):
        bench.send(b"%d" % n, (n + 1) * HOUR_MS)
    bench.send(b"next", 60 * HOUR_MS)
    bench.pass_ms(HOUR_MS + 1)
    bench.close()
    bench.loop.now += 40 * 3600
    bench.open()
    bench.pass_ms(1000)
    assert bodies(bench.store) == [b"%d" % n for n in range(30)]
    assert bench.timer.pending() == 1


def test_a_clean_restart_delivers_nothing_twice(bench: Bench) -> None:
    for n in range(20):
        bench.send(b"%d" % n, 1000 * (n + 1))
    bench.pass_ms(10_500)
    bench.restart()
    assert len(bodies(bench.store)) == 10
    bench.pass_ms(20_000)
    assert bodies(bench.store) == [b"%d" % n for n in range(20)]


def test_after_a_kill_what_came_since_the_last_save_comes_twice_and_nothing_is_lost(
    bench: Bench, tmp_path: Path
) -> None:
    for n in range(20):
        bench.send(b"%d" % n, 1000 * (n + 1))
    bench.pass_ms(5500)
    bench.save()
    bench.pass_ms(3000)
    image = adopt(kill_image(tmp_path, tmp_path.parent / "image"))
    again = Bench(image)
    again.clock.shift_ms = bench.clock.now_ms() - round(again.loop.now * 1000)
    again.pass_ms(30_000)
    found = [int(body) for body in bodies(again.store)]
    again.close()
    assert found == [*range(8), 5, 6, 7, *range(8, 20)]


def test_the_progress_is_never_ahead_of_what_is_durable(bench: Bench) -> None:
    bench.send(b"x", 1000)
    bench.save()
    bench.pass_ms(1500)
    assert bodies(bench.store) == [b"x"]
    assert bench.progress.take_changes() is None
    bench.save()
    stored = TimerProgress(bench.file(), lambda: 0).known
    assert stored == bench.progress.done


def test_without_its_progress_file_all_that_waits_is_delivered_and_said(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.send(b"1", 1000)
    bench.send(b"2", 3 * HOUR_MS)
    bench.pass_ms(1500)
    bench.close()
    for path in (bench.path / "config").glob("timerProgress*"):
        path.unlink()
    bench.open()
    bench.pass_ms(4 * HOUR_MS)
    assert bodies(bench.store) == [b"1", b"1", b"2"]
    assert "no progress of the timer is known" in caplog.text


def test_the_cursor_waits_for_what_is_stored_and_not_visible_yet(bench: Bench) -> None:
    """Otherwise a kill would leave behind a cursor that has passed it."""
    late_ms = bench.send(b"late", 2000)
    bench.visible = False
    bench.send(b"early", 1000)
    bench.pass_ms(3000)
    assert bench.progress.done.cursor.action_ms < late_ms
    assert not bodies(bench.store)
    bench.visible = True
    bench.store.dispatch()
    bench.pass_ms(100)
    assert bodies(bench.store) == [b"early", b"late"]


def test_a_clock_that_is_set_back_takes_the_timer_with_it(bench: Bench) -> None:
    bench.send(b"first", 1000)
    bench.send(b"third", DAY_MS + HOUR_MS)
    bench.pass_ms(DAY_MS)
    bench.clock.shift_ms -= DAY_MS
    bench.send(b"second", 5000)
    bench.pass_ms(6000)
    assert bodies(bench.store) == [b"first", b"second"]
    bench.restart()
    bench.pass_ms(2 * DAY_MS)
    assert bodies(bench.store) == [b"first", b"second", b"third"]


def test_a_clock_that_is_set_forth_makes_due_what_it_passes(bench: Bench) -> None:
    bench.send(b"x", 20 * HOUR_MS)
    bench.clock.shift_ms += DAY_MS
    bench.pass_ms(3000)
    assert bodies(bench.store) == [b"x"]


def test_a_full_disk_holds_all_up_and_loses_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.send(b"1", 1000)
    bench.send(b"2", 2000)
    bench.refusal = StoreNotWritable("the disk is full")
    bench.pass_ms(5000)
    assert bench.timer.put_failures > 2
    assert bench.timer.late_s() > 3
    bench.refusal = None
    bench.pass_ms(200)
    assert bodies(bench.store) == [b"1", b"2"]
    assert "will be tried again" in caplog.text


def test_what_can_never_be_put_is_passed_over_and_named(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.send(b"bad", 1000)
    bench.send(b"good", 2000)
    bench.refusal = MessageIllegal("the body has 9 bytes")
    bench.pass_ms(1500)
    bench.refusal = None
    bench.pass_ms(1000)
    assert bodies(bench.store) == [b"good"]
    assert bench.timer.counts.passed_over == 1
    assert "cannot be delivered" in caplog.text


def test_a_stop_says_how_many_wait(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    for n in range(3):
        bench.send(b"x", (n + 1) * 9 * HOUR_MS)
    with caplog.at_level(logging.WARNING):
        bench.restart()
    assert "count=3" in caplog.text
    assert "export-timers" in caplog.text


def test_a_stop_names_the_recalls_beside_what_waits(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.recall(b"1", bench.send(b"1", 9 * HOUR_MS))
    bench.send(b"2", 9 * HOUR_MS)
    bench.send(b"3", HOUR_MS)
    with caplog.at_level(logging.WARNING):
        bench.restart()
    assert "count=3 recalls=1" in caplog.text
    assert (bench.timer.pending(), bench.timer.recalls()) == (3, 1)
    bench.pass_ms(8 * HOUR_MS + HOUR_MS // 2)
    assert (bench.timer.pending(), bench.timer.recalls()) == (2, 1)
    bench.pass_ms(2 * HOUR_MS)
    assert (bench.timer.pending(), bench.timer.recalls()) == (0, 0)


def test_what_waits_is_counted_before_its_hour_is_read(bench: Bench) -> None:
    """Otherwise a stop right after a start would say nothing."""
    bench.recall(b"x", bench.send(b"x", 1000))
    bench.restart()
    assert (bench.timer.pending(), bench.timer.recalls()) == (1, 1)
    bench.pass_ms(10)
    assert (bench.timer.pending(), bench.timer.recalls()) == (1, 1)


def test_what_was_delivered_1024_hours_ago_does_not_count_as_waiting_in_its_queue(
    bench: Bench,
) -> None:
    for n in range(5):
        at_ms = bench.send(b"old", HOUR_MS + n)
    bench.pass_ms(2 * HOUR_MS)
    assert bench.timer.pending() == 0
    bench.leap_ms(1000 * HOUR_MS)
    assert bench.timer.pending() == 0
    for n in range(3):
        wait_ms = at_ms + BUCKETS * HOUR_MS + n - bench.clock.now_ms()
        assert bucket_of(bench.send(b"new", wait_ms)) == bucket_of(at_ms)
    assert bench.timer.pending() == 3
    assert bench.timer.pending() == 3


def test_what_waits_counts_although_no_message_may_wait_that_long_any_more(bench: Bench) -> None:
    bench.send(b"x", 30 * HOUR_MS)
    bench.timer_max_delay_seconds = 3600
    assert bench.timer.pending() == 1


def test_what_was_done_before_the_clock_was_set_back_does_not_count(bench: Bench) -> None:
    for hours in (2, 3, 26):
        bench.send(b"x", hours * HOUR_MS)
    bench.pass_ms(DAY_MS)
    bench.clock.shift_ms -= DAY_MS
    bench.pass_ms(2000)
    assert bench.timer.pending() == 1
    bench.restart()
    bench.pass_ms(10)
    assert bench.timer.pending() == 1


def test_an_hour_whose_queue_cannot_be_read_counts_whole(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.send(b"x", 5 * HOUR_MS)

    def fails(*_: object) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(bench.store.timers, "first_from", fails)
        assert bench.timer.pending() == 1
    assert bench.timer.pending() == 1


def test_an_hour_that_is_full_takes_no_more_and_other_hours_do(bench: Bench) -> None:
    bench.timer_messages = bench.timer_recalls = 2
    for n in range(2):
        bench.send(b"%d" % n, 2 * HOUR_MS + n)
    with pytest.raises(StoreNotWritable, match="timer_messages"):
        bench.send(b"x", 2 * HOUR_MS)
    bench.send(b"2", 4 * HOUR_MS)
    bench.pass_ms(5 * HOUR_MS)
    assert bodies(bench.store) == [b"0", b"1", b"2"]


# --- rolling --------------------------------------------------------------------------------


def test_what_is_further_ahead_than_the_window_is_stored_again_and_comes_once(bench: Bench) -> None:
    bench.timer_roll_window_seconds = 8 * 3600
    deliver_ms = bench.send(b"x", 40 * HOUR_MS)
    first = bench.waiting()[0]
    assert int(first.properties["TIMER_OUT_MS"]) - first.store_timestamp_ms >= 6 * HOUR_MS
    bench.pass_ms(20 * HOUR_MS)
    bench.restart()
    bench.pass_ms(20 * HOUR_MS - 1)
    assert not bodies(bench.store)
    bench.pass_ms(2)
    assert bodies(bench.store) == [b"x"]
    rolled = bench.waiting()
    assert bench.timer.counts.rolled > 1
    assert all(
        int(one.properties["TIMER_OUT_MS"]) - one.store_timestamp_ms <= 8 * HOUR_MS
        and one.properties["TIMER_DELIVER_MS"] == str(deliver_ms)
        and decode_properties(b"REAL_TOPIC\x01Orders").items() <= one.properties.items()
        for one in rolled
    )


def test_rolls_of_one_burst_are_spread(bench: Bench) -> None:
    bench.timer_roll_window_seconds = 3600
    for n in range(50):
        bench.send(b"%d" % n, 3 * HOUR_MS)
    assert len({one.properties["TIMER_OUT_MS"][:-3] for one in bench.waiting()}) > 25
    bench.pass_ms(3 * HOUR_MS + 1000)
    assert sorted(bodies(bench.store)) == sorted(b"%d" % n for n in range(50))


@pytest.mark.parametrize("others", [1, 40])
def test_one_that_is_rolled_when_its_time_has_passed_is_not_overtaken(
    bench: Bench, others: int
) -> None:
    """Its copy's time lies before that of others that are due: were those delivered first, the
    cursor would have passed the copy, and nobody would ever look at it."""
    # All in one second, so that they are delivered in one go.
    bench.pass_ms((300 - bench.clock.now_ms()) % 1000)
    bench.timer_roll_window_seconds = 1
    bench.send(b"rolled", 1100)
    bench.timer_roll_window_seconds = 10
    for n in range(others):
        bench.send(b"%d" % n, 1150 + n)
    bench.leap_ms(5000)
    bench.pass_ms(1000)
    assert bodies(bench.store) == [b"rolled", *[b"%d" % n for n in range(others)]]
    assert bench.timer.counts.rolled == 1


# --- recalling ------------------------------------------------------------------------------


@pytest.mark.parametrize("wait_ms", [5000, HOUR_MS, 3 * HOUR_MS])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_recalled_message_is_not_delivered_and_others_are(
    bench: Bench, wait_ms: int, restarted: bool
) -> None:
    bench.timer_roll_window_seconds = 3600  # the longest of them is rolled
    deliver_ms = bench.send(b"recalled", wait_ms)
    bench.send(b"other", wait_ms)
    bench.send(b"recalled", wait_ms + 1)  # another time: another message
    bench.send(b"recalled", wait_ms, "Others")
    bench.recall(b"recalled", deliver_ms)
    if restarted:
        bench.pass_ms(wait_ms // 2)
        bench.restart()
    bench.pass_ms(wait_ms + 10)
    assert sorted(bodies(bench.store)) == [b"other", b"recalled"]
    assert bodies(bench.store, "Others") == [b"recalled"]
    assert bench.timer.counts.recalled == 1


def test_a_recall_that_comes_shortly_before_its_time_is_heeded(bench: Bench) -> None:
    deliver_ms = bench.send(b"x", 60_000)
    bench.pass_ms(59_990)
    bench.recall(b"x", deliver_ms)
    bench.pass_ms(1000)
    assert not bodies(bench.store)


def test_a_recall_that_is_not_visible_yet_is_waited_for(bench: Bench) -> None:
    deliver_ms = bench.send(b"x", 6 * HOUR_MS)
    bench.pass_ms(1000)
    bench.visible = False
    bench.recall(b"x", deliver_ms)
    bench.clock.shift_ms += 7 * HOUR_MS
    bench.pass_ms(500)
    assert not bodies(bench.store)
    bench.visible = True
    bench.store.dispatch()
    bench.pass_ms(5000)
    assert not bodies(bench.store)
    assert bench.timer.counts.recalled == 1


def test_a_recall_far_ahead_outlives_a_long_downtime(bench: Bench) -> None:
    """Message and recall were both to be stored again meanwhile."""
    bench.timer_roll_window_seconds = 8 * 3600
    deliver_ms = bench.send(b"recalled", 30 * HOUR_MS)
    bench.send(b"other", 30 * HOUR_MS)
    bench.pass_ms(HOUR_MS)
    bench.recall(b"recalled", deliver_ms)
    bench.close()
    bench.loop.now += 48 * 3600
    bench.open()
    bench.pass_ms(10_000)
    assert bodies(bench.store) == [b"other"]


def test_a_recall_of_a_deleted_topic_is_no_message_that_was_dropped(bench: Bench) -> None:
    """It is to be stored again, as its message is. It was counted, and named in the log."""
    bench.timer_roll_window_seconds = 8 * 3600
    bench.recall(b"recalled", bench.send(b"recalled", 30 * HOUR_MS))
    bench.deleted.add("Orders", bench.store.written)
    bench.pass_ms(31 * HOUR_MS)
    assert bodies(bench.store) == []
    assert bench.timer._second_step.counts.dropped["timed"] == 1
    assert bench.timer.pending() == 0


def test_a_recall_for_a_time_that_has_passed_is_refused(bench: Bench) -> None:
    deliver_ms = bench.send(b"x", 1000)
    bench.pass_ms(2000)
    with pytest.raises(MessageIllegal, match="TIMER_DEL_UNIQKEY"):
        bench.recall(b"x", deliver_ms)


def test_an_hour_takes_so_many_recalls(bench: Bench) -> None:
    bench.timer_messages = bench.timer_recalls = 2
    deliver_ms = bench.clock.now_ms() + 2 * HOUR_MS
    for body in (b"1", b"2"):
        bench.recall(body, deliver_ms)
    with pytest.raises(BadRequest, match="timer_recalls") as refused:
        bench.recall(b"3", deliver_ms)
    assert refused.value.code == ResponseCode.SYSTEM_BUSY


# --- on a slave, and after it ---------------------------------------------------------------


def test_a_slave_delivers_nothing_and_goes_on_as_a_master_where_its_master_was(
    bench: Bench,
) -> None:
    bench.send(b"1", 1000)
    bench.send(b"2", 5000)
    bench.pass_ms(2000)
    copied = bench.timer.copy()
    bench.role.become(slave=True)
    bench.restart()
    bench.timer.replace(TimerProgress.read(copied))
    bench.pass_ms(10_000)
    assert bodies(bench.store) == [b"1"]
    assert bench.timer.pending()
    bench.role.become(slave=False)
    bench.restart()
    bench.pass_ms(100)
    assert bodies(bench.store) == [b"1", b"2"]


def test_a_slave_without_progress_begins_as_a_master_at_the_first_that_waits(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.send(b"1", 1000)
    waiting = read_all(bench.store, TIMER_TOPIC, bucket_of(bench.clock.now_ms() + 1000))
    bench.role.become(slave=True)
    bench.close()
    bench.file().path.unlink(missing_ok=True)
    bench.file().backup.unlink(missing_ok=True)
    bench.open()
    assert (len(waiting), bench.progress.known) == (1, None)
    bench.pass_ms(3 * HOUR_MS)
    bench.role.become(slave=False)
    bench.timer.lead(anew=True)
    bench.pass_ms(1000)
    assert bodies(bench.store) == [b"1"]
    assert "no progress of the timer is known" in caplog.text


def test_the_role_may_change_while_the_timer_runs(bench: Bench) -> None:
    bench.send(b"1", 1000)
    bench.role.become(slave=True)
    bench.timer.follow()
    bench.pass_ms(10_000)
    assert bodies(bench.store) == []
    bench.role.become(slave=False)
    bench.timer.lead(anew=True)
    bench.send(b"2", 1000)
    bench.pass_ms(2000)
    assert bodies(bench.store) == [b"1", b"2"]
