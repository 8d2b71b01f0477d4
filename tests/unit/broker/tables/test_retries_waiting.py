"""Claims about the count of messages that wait for their next try, over a real store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.protocol.message.properties import PROPERTY_REAL_TOPIC
from aerobee.remoting.turns import Spread, Turns
from aerobee.store.errors import StoreNotWritable
from aerobee.store.segments.results import PutResult
from tests.unit.broker.delay.test_delay import Bench, place
from tests.unit.store.support import log_segment

RETRY, OTHER = "%RETRY%g", "%RETRY%h"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def fail(bench: Bench, number: int, level: int = 1, topic: str = RETRY) -> list[PutResult]:
    """Let `number` messages wait for their next try."""
    return [bench.send(b"%d" % one, level, topic) for one in range(number)]


def waiting(bench: Bench) -> tuple[int, int]:
    return bench.retries.count(RETRY), bench.retries.count(OTHER)


def steps(bench: Bench) -> int:
    """Count all that is to be counted; return the number of steps."""
    number = 0
    while bench.retries.step():
        number += 1
    return number


def test_a_retry_is_counted_from_its_storing_to_its_delivery(bench: Bench) -> None:
    fail(bench, 2)
    fail(bench, 3, level=2)
    fail(bench, 1, topic=OTHER)
    bench.send(b"x", 1)
    assert waiting(bench) == (5, 1)
    assert bench.retries.topics() == {RETRY, OTHER}
    bench.pass_ms(1500)
    assert waiting(bench) == (3, 0)
    bench.pass_ms(5000)
    assert waiting(bench) == (0, 0)
    assert bench.retries.topics() == set()


def test_what_is_no_retry_or_does_not_wait_counts_nowhere(bench: Bench) -> None:
    bench.send(b"x", 1)
    bench.send(b"x", 0, RETRY)
    assert bench.retries.topics() == set()


def test_a_retry_that_cannot_be_stored_now_still_waits(bench: Bench) -> None:
    fail(bench, 1)
    bench.refusal = StoreNotWritable("full")
    bench.pass_ms(2000)
    assert waiting(bench) == (1, 0)
    bench.refusal = None
    bench.pass_ms(200)
    assert waiting(bench) == (0, 0)


def test_a_restart_counts_what_waits_a_message_a_step(bench: Bench) -> None:
    fail(bench, 3, level=3)
    fail(bench, 1, level=2, topic=OTHER)
    bench.send(b"x", 3)
    bench.restart()
    assert waiting(bench) == (0, 0)
    assert steps(bench) == 5
    assert waiting(bench) == (3, 1)
    assert not bench.retries.step()


def test_where_nothing_waits_a_restart_reads_nothing(bench: Bench) -> None:
    fail(bench, 3)
    bench.pass_ms(1500)
    bench.restart()
    bench.store.delays.next_place = None  # type: ignore[method-assign, assignment]
    assert not bench.retries.step()


@pytest.mark.parametrize("counted", [0, 2, 4, 6])
def test_what_comes_and_goes_while_a_restart_counts_is_counted_once(
    bench: Bench, counted: int
) -> None:
    """Two are due at once, two later; two more come, and one of those is due before the count has
    come to its end."""
    fail(bench, 2, level=2)
    bench.pass_ms(3000)
    fail(bench, 2, level=2)
    bench.restart()
    fail(bench, 2, level=2)
    fail(bench, 2, level=2, topic=OTHER)
    for _ in range(counted):
        bench.retries.step()
    bench.pass_ms(2500)  # the first two are delivered
    steps(bench)
    assert waiting(bench) == (4, 2)
    bench.pass_ms(2800)
    assert waiting(bench) == (0, 0)
    assert bench.retries.topics() == set()


def test_delivered_before_it_is_counted_is_never_counted(bench: Bench) -> None:
    fail(bench, 4)
    bench.restart()
    bench.retries.step()
    assert waiting(bench) == (1, 0)
    bench.pass_ms(1500)
    assert waiting(bench) == (0, 0)
    assert steps(bench) == 0


def test_of_a_record_that_is_damaged_the_level_is_counted_anew(bench: Bench) -> None:
    """Nobody knows whose it was: it is not to count for ever."""
    [result] = fail(bench, 1)
    fail(bench, 1, topic=OTHER)
    bench.pass_ms(500)
    fail(bench, 2)
    path = log_segment(bench.path, 0)
    with path.open("r+b") as file:
        file.seek(result.log_offset + 4)
        file.write(b"\0\0\0\0")
    bench.pass_ms(700)
    steps(bench)
    assert waiting(bench) == (2, 0)
    bench.pass_ms(2000)
    assert bench.retries.topics() == set()


def damage(bench: Bench, *results: PutResult) -> None:
    with log_segment(bench.path, 0).open("r+b") as file:
        for result in results:
            file.seek(result.log_offset + 4)
            file.write(b"\0\0\0\0")


def begin_beside_damage(bench: Bench) -> None:
    """Counting begins on a level of six, of which the first two cannot be read."""
    first = fail(bench, 2)
    bench.pass_ms(500)
    fail(bench, 4)
    damage(bench, *first)
    bench.retries.begin(1, 0, bench.store.delays.end(1))


def test_what_the_count_could_not_read_has_nothing_counted_anew(bench: Bench) -> None:
    """Each damaged record of a level had all of it counted again when the level came to it."""
    begin_beside_damage(bench)
    assert steps(bench) == 6
    bench.pass_ms(700)
    assert place(bench, 1) == 2
    assert steps(bench) == 0
    assert waiting(bench) == (4, 0)


def test_what_is_passed_over_before_it_is_counted_has_nothing_counted_anew(bench: Bench) -> None:
    begin_beside_damage(bench)
    bench.pass_ms(700)
    assert steps(bench) == 4
    assert waiting(bench) == (4, 0)


def test_a_count_goes_on_while_records_that_it_has_read_are_passed_over(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began afresh with each of them: no count of a level with much damage came to its end."""
    results = []
    for _ in range(3):
        results += fail(bench, 1)
        bench.pass_ms(200)
    fail(bench, 4)
    bench.retries.begin(1, 0, bench.store.delays.end(1))
    for _ in range(4):
        bench.retries.step()
    damage(bench, *results)
    bench.pass_ms(500)  # the first is due
    bench.pass_ms(200)  # the second
    assert place(bench, 1) == 2
    read: list[int] = []
    next_place = bench.store.delays.next_place

    def recorded(level: int, offset: int) -> tuple[int | None, int]:
        if level == 1 and offset < bench.store.delays.end(1):
            read.append(offset)
        return next_place(level, offset)

    monkeypatch.setattr(bench.store.delays, "next_place", recorded)
    steps(bench)
    assert read == [4, 5, 6, 2, 3, 4, 5, 6]
    assert waiting(bench) == (4, 0)
    bench.pass_ms(200)  # the third, which the second count could not read
    assert place(bench, 1) == 3
    assert steps(bench) == 0
    bench.pass_ms(1000)
    assert bench.retries.topics() == set()


def test_a_level_that_is_empty_has_no_retries(bench: Bench) -> None:
    """Earlier errors do not change that."""
    fail(bench, 1)
    bench.retries.waits(1, OTHER)
    bench.pass_ms(1500)
    assert bench.retries.topics() == set()


def test_what_waits_for_a_deleted_topic_is_nobodys(bench: Bench) -> None:
    fail(bench, 2, level=2)
    bench.deleted.add(RETRY, bench.store.written)
    bench.retries.forget(RETRY)
    assert waiting(bench) == (0, 0)
    bench.pass_ms(1000)
    fail(bench, 3, level=2)  # of the topic that was made anew
    assert waiting(bench) == (3, 0)
    bench.restart()
    steps(bench)
    assert waiting(bench) == (3, 0)
    bench.pass_ms(4500)  # the first two are dropped
    assert place(bench, 2) == 2
    assert waiting(bench) == (3, 0)
    bench.pass_ms(1000)
    assert waiting(bench) == (0, 0)


def test_another_topics_deletion_changes_nothing(bench: Bench) -> None:
    fail(bench, 1)
    bench.retries.forget("Orders")
    assert waiting(bench) == (1, 0)


def test_a_record_that_only_names_a_retry_topic_is_none(bench: Bench) -> None:
    """The text stands in its body."""
    bench.send(f"{PROPERTY_REAL_TOPIC}\x01{RETRY}".encode(), 3)
    bench.restart()
    assert steps(bench) == 1
    assert bench.retries.topics() == set()


def test_a_queue_that_cannot_be_read_is_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fail(bench, 1, level=3)
    bench.restart()

    def broken(_level: int, _offset: int) -> tuple[int | None, int]:
        raise OSError("no such disk")

    with monkeypatch.context() as patch:
        patch.setattr(bench.store.delays, "next_place", broken)
        assert not bench.retries.step()
        assert not bench.retries.step()
    assert [r.getMessage() for r in caplog.records if "not all counted" in r.getMessage()] == [
        "retries that wait are not all counted, will be tried again delay_level=3 from=0 "
        "why=no such disk"
    ]
    steps(bench)
    assert waiting(bench) == (1, 0)


def test_nothing_is_read_of_a_store_that_closes(bench: Bench) -> None:
    fail(bench, 3, level=3)
    bench.restart()
    bench.delays.close()
    assert not bench.retries.step()


async def test_many_are_counted_in_slices_of_turns(bench: Bench) -> None:
    fail(bench, 100, level=3)
    bench.restart()
    # Each look at the clock finds half a slice gone.
    now = iter(range(100_000))
    turns = Turns(lambda: next(now) * 0.001)
    counted: list[int] = []
    counting = Spread(turns, bench.retries.step)
    counting.go_on()
    while turns.waiting:
        counted.append(bench.retries.count(RETRY))
        await asyncio.sleep(0)
    assert bench.retries.count(RETRY) == 100
    assert len(set(counted)) > 20
