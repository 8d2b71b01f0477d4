"""A message that has waited goes to the topic as it is now, whatever it waited for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.delay.delayed_waiting import DelayedWaiting, TimedWaiting
from aerobee.broker.second_step import waiting_sources as waiting
from aerobee.broker.second_step.deleted_topics import DeletedTopics
from aerobee.broker.second_step.second_step import queue_now
from aerobee.broker.second_step.waiting_sources import Waits, count_waiting
from aerobee.broker.staging.staging import StagedWaiting
from aerobee.protocol.bodies.topics import TopicConfig
from aerobee.protocol.bodies.waiting import WaitingMessages
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.store.message_store import MessageStore
from tests.inline_loop import drive
from tests.unit.broker.delay import test_delay, test_timer
from tests.unit.broker.staging.staging_support import Desk
from tests.unit.broker.transactions import test_transactions
from tests.unit.store.support import read_all

TOPIC = "Orders"
KEY = ("query", 1)


@dataclass
class Way:
    """One way to wait: for something in queue 3 of 4 of the topic."""

    kind: str
    store: MessageStore
    deleted: DeletedTopics
    counts: Any
    accept: Callable[[bytes], object]
    carry_out: Callable[[], None]
    make: Callable[[TopicConfig], object]
    waits: Waits

    def found(self) -> list[tuple[int, bytes]]:
        """The messages that consumers find, by queue."""
        self.store.dispatch()
        return [
            (queue, one.body) for queue in range(4) for one in read_all(self.store, TOPIC, queue)
        ]

    def smaller(self, read: int, write: int | None = None) -> None:
        self.make(TopicConfig(TOPIC, read, read if write is None else write))

    def delete(self) -> None:
        """Delete the topic as a deletion does; a topic of the name is made anew at once."""
        self.deleted.add(TOPIC, self.store.written)

    def waiting(self) -> WaitingMessages:
        self.store.dispatch()
        found = drive(count_waiting([self.waits], TOPIC, self.deleted.offset_of(TOPIC, 0)))
        assert isinstance(found, WaitingMessages)
        return found


def _delayed(path: Path) -> Iterator[Way]:
    bench = test_delay.Bench(path)
    bench.topics[TOPIC] = TopicConfig(TOPIC, 4, 4)
    yield Way(
        "delayed",
        bench.store,
        bench.deleted,
        bench.delays._second_step.counts,
        lambda body: bench.send(body, 1, TOPIC, 3),
        lambda: bench.pass_ms(2_000),
        lambda topic: bench.topics.update({TOPIC: topic}),
        DelayedWaiting(bench.delays, bench.store),
    )
    bench.close()


def _timed(path: Path) -> Iterator[Way]:
    bench = test_timer.Bench(path)
    bench.topics[TOPIC] = TopicConfig(TOPIC, 4, 4)
    yield Way(
        "timed",
        bench.store,
        bench.deleted,
        bench.timer._second_step.counts,
        lambda body: bench.send(body, 20_000, TOPIC, 3),
        lambda: bench.pass_ms(21_000),
        lambda topic: bench.topics.update({TOPIC: topic}),
        TimedWaiting(bench.timer, bench.store),
    )
    bench.close()


def _half(path: Path) -> Iterator[Way]:
    bench = test_transactions.Bench(path)
    places: list[Any] = []
    numbers = count()

    def commit() -> None:
        for place in places:
            try:
                bench.end(place, test_transactions.COMMIT)
            except BadRequest as error:
                assert error.code == ResponseCode.TOPIC_NOT_EXIST  # noqa: PT017
        places.clear()

    yield Way(
        "half",
        bench.store,
        bench.deleted,
        bench.transactions._log._second_step.counts,
        lambda body: places.append(bench.prepare(body, f"U{next(numbers)}", queue_id=3)),
        commit,
        lambda topic: bench.topics.update(topic).result(),
        bench.transactions.waiting(),
    )
    bench.close()


def _staged(path: Path) -> Iterator[Way]:
    desk = Desk(path).start()
    parts: list[Any] = []

    def publish() -> None:
        desk.intent(KEY, parts)
        desk.settle()
        assert desk.state(KEY) == "done"

    yield Way(
        "staged",
        desk.store,
        desk.deleted,
        desk.second_step.counts,
        lambda body: parts.append(desk.stage(KEY, len(parts), [(TOPIC, 3, body)])),
        publish,
        lambda topic: desk.topics.update(topic).result(),
        StagedWaiting(desk.staging.table, desk.store),
    )
    desk.close()


WAYS = {"delayed": _delayed, "timed": _timed, "half": _half, "staged": _staged}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Way]:
    yield from WAYS[request.param](tmp_path / "store")


def test_what_goes_to_a_queue_that_is_still_read_is_stored_there(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    way.accept(b"kept")
    way.carry_out()
    assert way.found() == [(3, b"kept")]
    assert "aerobee.broker.second_step" not in {record.name for record in caplog.records}
    assert sum(way.counts.moved.values()) == 0


@pytest.mark.parametrize(("read", "write", "queue"), [(2, 2, 1), (3, 2, 1), (3, 4, 0), (2, 0, 1)])
def test_what_goes_to_a_queue_that_has_fallen_away_is_stored_where_it_is_read(
    way: Way, caplog: pytest.LogCaptureFixture, read: int, write: int, queue: int
) -> None:
    way.accept(b"one")
    way.accept(b"two")
    way.smaller(read, write)
    way.carry_out()
    assert sorted(way.found()) == [(queue, b"one"), (queue, b"two")]
    assert way.counts.moved == {**dict.fromkeys(WAYS, 0), way.kind: 2}
    (line,) = [text for text in caplog.messages if "another queue" in text]
    assert f"topic={TOPIC} waited={way.kind} queue={queue} asked_for=3 msg_id=" in line


def test_what_was_accepted_before_its_topic_was_deleted_is_not_in_the_one_made_anew(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    way.accept(b"old")
    way.delete()
    if way.kind != "staged":  # of a batch, all that an intent names is published at once
        way.accept(b"new")
    way.carry_out()
    assert way.found() == ([] if way.kind == "staged" else [(3, b"new")])
    assert way.counts.dropped == {**dict.fromkeys(WAYS, 0), way.kind: 1}
    (line,) = [text for text in caplog.messages if "dropped, its topic was deleted" in text]
    assert f"topic={TOPIC} waited={way.kind} msg_id=" in line


def test_what_waits_is_counted_by_the_queue_that_it_was_accepted_for(way: Way) -> None:
    assert way.waiting().total() == 0
    way.accept(b"one")
    way.accept(b"two")
    found = way.waiting()
    assert found.counts == {way.kind: {3: 2}}
    assert (found.total(3), found.total(4), found.unlooked) == (2, 0, 0)
    assert WaitingMessages.parse(found.encode()) == found
    assert drive(count_waiting([way.waits], "Order", 0)) == WaitingMessages({way.kind: {}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting, "MOST_LOOKED", 1)
        found = way.waiting()
        assert (found.total(), found.unlooked) == (1, 1)
    way.delete()
    assert way.waiting().total() == 0
    way.deleted.forget_up_to(way.store.written)
    way.carry_out()
    assert way.waiting().total() == 0


def test_the_oldest_that_waits_is_known_by_its_place_in_the_log(way: Way) -> None:
    way.accept(b"before")
    way.carry_out()
    behind = way.store.written
    if way.kind != "staged":
        way.accept(b"first")
        way.accept(b"second")
        way.store.dispatch()
        assert min(place for place in way.waits.oldest() if place is not None) >= behind
    else:
        assert [place for place in way.waits.oldest() if place is not None] == []


@pytest.mark.parametrize("asked_for", range(20))
def test_a_queue_that_fell_away_has_the_same_substitute_each_time(asked_for: int) -> None:
    topic = TopicConfig(TOPIC, 5, 3)
    assert queue_now(topic, asked_for) == queue_now(topic, asked_for) == asked_for % 3


def test_a_topic_that_nobody_deleted_and_no_table_knows_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = test_delay.Bench(tmp_path)
    bench.topics.clear()
    bench.send(b"kept", 1, TOPIC, 9)
    bench.pass_ms(2_000)
    assert [one.body for one in read_all(bench.store, TOPIC, 9)] == [b"kept"]
    assert bench.delays._second_step.counts.without_topic["delayed"] == 1
    assert "not in the topic table" in caplog.text
    bench.close()


def test_a_message_that_may_not_be_written_any_more_is_delivered_all_the_same(way: Way) -> None:
    way.accept(b"promised")
    way.make(TopicConfig(TOPIC, 4, 4, perm=4))
    way.carry_out()
    assert way.found() == [(3, b"promised")]


def test_a_record_of_a_deleted_topic_does_not_wait_on(tmp_path: Path) -> None:
    bench = test_timer.Bench(tmp_path)
    bench.timer_roll_window_seconds = 2 * 3600
    bench.send(b"far", 10 * test_timer.HOUR_MS)
    bench.deleted.add(TOPIC, bench.store.written)
    bench.pass_ms(4 * test_timer.HOUR_MS)
    assert bench.timer.counts.rolled == 0
    assert bench.timer._second_step.counts.dropped["timed"] == 1
    assert bench.timer.pending() == 0
    bench.close()


def test_a_half_message_of_a_deleted_topic_is_asked_about_no_more(tmp_path: Path) -> None:
    bench = test_transactions.Bench(tmp_path)
    place = bench.prepare()
    bench.deleted.add(TOPIC, bench.store.written)
    bench.round()
    assert bench.transactions.pending == 0
    assert bench.transactions.checks.asked + bench.transactions.checks.no_producer == 0
    with pytest.raises(BadRequest, match="rolled back already"):
        bench.end(place, test_transactions.COMMIT)
    bench.restart()
    assert bench.transactions.pending == 0
    bench.close()
