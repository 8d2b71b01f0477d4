"""Events of one kind: one line for the first, and one a minute that counts the others."""

from __future__ import annotations

import asyncio
import logging

import pytest

from aerobee import summed_log
from aerobee.summed_log import SummedLog

LOGGER = logging.getLogger("aerobee.tests.summed")
TEXT = "it happened group=%s id=%s"


class Clock:
    def __init__(self) -> None:
        self.now = 10.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sums(clock: Clock, caplog: pytest.LogCaptureFixture) -> SummedLog:
    caplog.set_level(logging.DEBUG, LOGGER.name)
    return SummedLog(clock)


def happen(sums: SummedLog, group: str, *ids: int) -> None:
    for number in ids:
        sums.add(LOGGER, logging.WARNING, group, TEXT, group, number)


def test_the_first_event_has_its_line_and_the_others_one_that_names_the_last(
    sums: SummedLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    happen(sums, "a", *range(1_760))
    happen(sums, "b", 5)
    assert caplog.messages == ["it happened group=a id=0", "it happened group=b id=5"]
    clock.now += 59
    sums.report()
    assert len(caplog.messages) == 2
    clock.now += 1
    sums.report()
    assert caplog.messages[2:] == ["it happened group=a id=1759 unlogged=1759"]


def test_a_few_events_may_have_lines_of_their_own_in_their_order(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, LOGGER.name)
    sums = SummedLog(clock, at_once=3)
    happen(sums, "a", *range(7))
    assert [text[-1] for text in caplog.messages] == ["0", "1", "2"]
    clock.now += 60
    sums.report()
    assert caplog.messages[3:] == ["it happened group=a id=6 unlogged=4"]


def test_after_a_minute_without_one_an_event_is_a_first_again(
    sums: SummedLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    happen(sums, "a", 1, 2)
    clock.now += 60
    sums.report()
    happen(sums, "a", 3)
    assert len(caplog.messages) == 2
    clock.now += 60
    sums.report()
    assert caplog.messages[-1] == "it happened group=a id=3 unlogged=1"
    clock.now += 60
    sums.report()
    happen(sums, "a", 4)
    assert caplog.messages[-1] == "it happened group=a id=4"
    assert len(sums) == 1


def test_many_at_once_are_one_line_and_the_end_says_what_was_not_said(
    sums: SummedLog, caplog: pytest.LogCaptureFixture
) -> None:
    sums.add(LOGGER, logging.ERROR, "a", TEXT, "a", 9, count=10)
    happen(sums, "a", 10, 11)
    sums.close()
    assert caplog.messages == [
        "it happened group=a id=9 unlogged=9",
        "it happened group=a id=11 unlogged=2",
    ]
    assert caplog.records[0].levelno == logging.ERROR


def test_kinds_and_what_is_kept_of_them_are_bounded(
    sums: SummedLog, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(summed_log.MOST_KINDS + 500):
        happen(sums, f"{number}" + "x" * 100_000, 1)
    assert len(sums) == summed_log.MOST_KINDS + 1
    assert max(map(len, caplog.messages)) < 600
    sums.close()
    assert caplog.messages[-1].endswith(" id=1 unlogged=499")


def test_the_log_holds_none_of_the_lines_back(
    sums: SummedLog, caplog: pytest.LogCaptureFixture
) -> None:
    happen(sums, "a", 1, 2)
    sums.close()
    assert [hasattr(record, "each") for record in caplog.records] == [True, True]


async def test_with_a_loop_nobody_has_to_ask_for_the_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, LOGGER.name)
    loop = asyncio.get_running_loop()
    sums = SummedLog(loop.time, 0.02, loop.call_later)
    happen(sums, "a", 1, 2, 3)
    async with asyncio.timeout(10):
        while len(sums):  # noqa: ASYNC110 - its timer tells nobody
            await asyncio.sleep(0)
    assert caplog.messages == ["it happened group=a id=1", "it happened group=a id=3 unlogged=2"]
    assert sums._timer is None
    happen(sums, "a", 4)
    sums.close()
    assert sums._timer is None
