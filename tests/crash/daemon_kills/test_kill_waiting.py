"""kill -9 under load of messages that wait, by levels and by times of their own: each comes, none
early, and while the broker is up 99 in 100 within 200 ms of their time.

How late they come is counted, and stands in docs/reliability.md; nothing asserts it, since a test
shares its machine. `test_kill_delayed.py` and `test_kill_timed.py` look closer at fewer.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests import campaign
from tests.crash.daemon_kills import waiting
from tests.crash.daemon_kills.waiting import ON_TIME_MS, TOPIC, Judged, Reader, Sender
from tests.crash.judges.records import Record, read_log
from tests.crash.running.daemons import start_daemon
from tests.crash.running.link import Link
from tests.service.kit import Served, wait_until

SUITE = "kill waiting"
_SHOWN = 10
_ALL_S = 240.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Run:
    """Lives of daemons on one store, and one sender."""

    def __init__(self, folder: Path, flush: str, seed: int, control: str = "") -> None:
        self.store = folder / "store"
        self.lives: list[tuple[int, int]] = []
        self.sender = Sender(random.Random(f"{seed} {flush}"))
        self._reader = Reader()
        self._folder, self._flush, self._control = folder, flush, control

    def _start(self) -> Served:
        place = self._folder / f"life-{len(self.lives)}"
        daemon = start_daemon(
            place, self.store, self._flush, self._control, waiting.SETTINGS
        ).ready()
        with Link(daemon.port) as link:
            link.create_topic(TOPIC, 1)
        return daemon

    def killed(self, acknowledged: int) -> None:
        """A life that ends when this number is acknowledged."""
        daemon, begin = self._start(), now_ms()
        try:
            self.sender.send_to(daemon.port, acknowledged)
        finally:
            daemon.process.kill()
            self.lives.append((begin, now_ms()))
            daemon.wait()
            daemon.close()

    def last(self, acknowledged: int, *, until_all: bool = True) -> None:
        """A life that goes on until all have come, and is stopped in order. A broken daemon's ends
        when the last message's time has come."""
        daemon, begin = self._start(), now_ms()
        try:
            self.sender.send_to(daemon.port, acknowledged)
            wanted, sent_ms = self.sender.acknowledged, now_ms()

            def is_over() -> bool:
                self._reader.read_on(daemon.port)
                is_time = now_ms() > sent_ms + waiting.LONGEST_MS + 1_000
                return wanted <= self._reader.seen or (not until_all and is_time)

            wait_until(is_over, "all have come", _ALL_S)
            daemon.terminate()
            self.lives.append((begin, now_ms()))
            assert daemon.wait() == 0
        finally:
            daemon.close()

    def judged(self) -> Judged:
        return waiting.judge(
            read_log(self.store / "commitlog").records, self.sender.acknowledged, self.lives
        )


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_everything_that_waits_comes_over_kills_and_nothing_early(
    flush: str, tmp_path: Path, seed: int
) -> None:
    messages = campaign.size(SUITE) // 2
    kills = 5 if campaign.is_full() else 2
    run = Run(tmp_path, flush, seed)
    # The last life has enough of them left: messages sent in a life that is killed come due after
    # it.
    killed_at = range(messages // 10, messages * 7 // 10)
    drawn = random.Random(f"kills {seed} {flush}").sample(killed_at, kills)
    for acknowledged in sorted(drawn):
        run.killed(acknowledged)
    run.last(messages)
    found = run.judged()
    print(
        f"seed {seed}, {flush}: {len(run.sender.acknowledged)} acknowledged, {kills} kills, "
        f"{found.came_again} came again; of {len(found.late_ms)} that came due while it was up "
        f"{found.on_time} within {ON_TIME_MS} ms, 99 in 100 within {found.percentile(0.99)} ms"
    )
    campaign.note(
        SUITE, len(run.sender.acknowledged), wrong=len(found.wrong), kills=kills,
        came_again=found.came_again, due_while_it_was_up=len(found.late_ms),
        of_these_within_200_ms=found.on_time,
    )  # fmt: skip
    assert not found.wrong, f"seed {seed}: {len(found.wrong)} wrong, {found.wrong[:_SHOWN]}"
    assert len(found.late_ms) > messages // 4, "hardly any came due while a broker was up"


@pytest.mark.parametrize(
    ("control", "rule"), [("delivered-early", "early"), ("waiting-forgotten", "lost")]
)
def test_a_broker_that_breaks_the_rule_is_found_out(
    control: str, rule: str, tmp_path: Path, seed: int
) -> None:
    run = Run(tmp_path, "ASYNC_FLUSH", seed, control)
    run.killed(1_000)
    run.last(1_200, until_all=False)
    rules = {one.rule for one in run.judged().wrong}
    print(f"control {control}: {sorted(rules)}")
    campaign.note_control(SUITE, control, int(rule in rules), 1)
    assert rule in rules


def a_record(topic: str, number: int, store_ms: int, **more: object) -> Record:
    properties = b"TIMER_DELIVER_MS\1%d" % more["due"] if "due" in more else b""
    return Record(topic, 0, 0, 0, 100, b"%08d" % number, properties, store_ms)


SOUND = [
    a_record(waiting.SCHEDULE, 0, 1_000),
    a_record(waiting.TIMER, 1, 1_000, due=1_500),
    a_record(TOPIC, 1, 1_501),
    a_record(TOPIC, 0, 2_300),
]


def test_the_judge_finds_nothing_in_a_sound_log_and_counts_who_is_late() -> None:
    found = waiting.judge(SOUND, {0, 1}, [(0, 10_000)])
    assert (found.wrong, found.came_again, found.late_ms, found.on_time) == ([], 0, [1, 300], 1)
    assert waiting.judge(SOUND, {0, 1}, [(0, 1_600), (1_900, 5_000)]).late_ms == [300]


@pytest.mark.parametrize(
    ("log", "rule"),
    [
        (SOUND[:3], "lost"),
        ([*SOUND[:3], a_record(TOPIC, 0, 1_999)], "early"),
        ([SOUND[1], a_record(TOPIC, 1, 1_499), *SOUND[::3]], "early"),
        ([*SOUND, a_record(TOPIC, 2, 5_000)], "invented"),
    ],
)
def test_the_judge_finds_what_is_wrong(log: list[Record], rule: str) -> None:
    assert rule in {one.rule for one in waiting.judge(log, {0, 1}, []).wrong}
