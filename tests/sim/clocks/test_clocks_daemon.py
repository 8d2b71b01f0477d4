"""R9 with the real daemon: its wall clock is set while it serves, and between its runs.

Producers and a consumer go on all the time; their histories are the judge, as in the crash tests.
Nothing is deleted in these minutes, whatever the clock says, because nothing is three days old.
"""

import json
import random
import time
from pathlib import Path

import pytest

from tests import campaign
from tests.crash.judges.checker import check
from tests.crash.judges.history import History, Promise
from tests.crash.judges.records import Record, records_of
from tests.crash.judges.restarted import served
from tests.crash.running.daemons import SMALL
from tests.crash.running.link import PULL, Link, pull_fields
from tests.crash.running.traffic import TOPIC, Marks, Traffic
from tests.service.kit import Served, wait_until
from tests.sim.clocks.faked_daemon import FakedClock, Setting, forget_clock_of, start_faked

HOUR_S, DAY_S = 3600, 86_400
_MESSAGES = 40
_QUERY, _SEARCH, _HEARTBEAT, _CONSUMERS = 12, 29, 34, 38

#: The change of the clock, and how the daemon is stopped for it ("": it goes on serving).
STEPS: dict[str, tuple[Setting, str]] = {
    "an hour forward": (lambda clock: clock.forward(HOUR_S), ""),
    "an hour back": (lambda clock: clock.forward(-HOUR_S), ""),
    "a day forward": (lambda clock: clock.forward(DAY_S), ""),
    "a day back": (lambda clock: clock.forward(-DAY_S), ""),
    "back over a restart": (lambda clock: clock.forward(-2 * DAY_S), "kill"),
    "stands still": (lambda clock: clock.stop(), ""),
    "killed while it stands still": (lambda _clock: None, "kill"),
    "1970": (lambda clock: clock.set_to(20), ""),
    "killed in 1970": (lambda _clock: None, "kill"),
    "into 2038": (lambda clock: clock.set_to((1 << 31) - 1), ""),
    "2100": (lambda clock: clock.set_to(4_102_444_800), "stop"),
    "set right": (lambda clock: clock.right(), ""),
    "a month forward over a restart": (lambda clock: clock.forward(30 * DAY_S), "kill"),
    "right over a restart": (lambda clock: clock.right(), "stop"),
}


class Life:
    """A daemon, its clock, its clients, through several restarts."""

    def __init__(self, folder: Path, seed: int, control: str = "") -> None:
        self.flush = random.Random(seed).choice(("SYNC_FLUSH", "ASYNC_FLUSH"))
        self.clock = FakedClock(folder)
        self.store = folder / "store"
        self.history = History()
        self.windows: dict[str, tuple[float, float]] = {}
        self._folder, self._control, self._runs = folder, control, 0
        self._traffic = Traffic(self.history, Marks(lambda _number: None), seed, 0.0)
        self.daemon = self._start()
        self._traffic.prepare(self.daemon.port)

    def _start(self) -> Served:
        self._runs += 1
        folder = self._folder / f"run-{self._runs}"
        return start_faked(folder, self.store, self.flush, self.clock, self._control).ready()

    def step(self, name: str) -> None:
        """The clock is set in the middle of the traffic, or while the daemon is down."""
        setting, how = STEPS[name]
        if how:
            self.end(how)
        else:
            self._traffic.run(self.daemon.port, _MESSAGES // 4)
        setting(self.clock)
        if how:
            self.daemon = self._start()
        began = self.clock.now_s
        self._traffic.run(self.daemon.port, _MESSAGES)
        self.windows[name] = began - 1, self.clock.now_s + 1

    def end(self, how: str) -> None:
        """`kill` or `stop`."""
        if how == "kill":
            self.daemon.process.kill()
            self.daemon.process.wait(30)
        else:
            self.daemon.terminate()
            assert self.daemon.wait() == 0, self.daemon.log
        self.close()

    def close(self) -> None:
        """The daemon is gone, and what libfaketime left of it."""
        self.daemon.close()
        forget_clock_of(self.daemon.process.pid)

    def wrong(self) -> list[str]:
        """Violations of the promises to clients."""
        found = served(self.daemon.port, self.store)
        return [f"{one.rule} {one.text}" for one in check(self.history, found, Promise())]

    def records(self) -> list[Record]:
        """All records in the order of the log."""
        found = served(self.daemon.port, self.store).pulled.values()
        return sorted((one for some in found for one in some), key=lambda one: one.log_offset)


def _run(life: Life) -> None:
    for name in STEPS:
        life.step(name)


def test_daemon_whose_clock_is_set_loses_and_deletes_nothing(tmp_path: Path, seed: int) -> None:
    life = Life(tmp_path, seed)
    print(f"seed {seed} {life.flush}")
    try:
        _run(life)
        assert life.wrong() == []
        records = life.records()
        print(f"{len(life.history.acked())} acknowledged, {len(records)} served")
        _check_times(life, records)
        with Link(life.daemon.port) as link:
            _check_searches(link, random.Random(seed).sample(records, 60))
        life.end("stop")
        campaign.note("clocks and the daemon", len(STEPS), messages=len(life.history.acked()))
    finally:
        life.close()


def _check_times(life: Life, records: list[Record]) -> None:
    """The daemon's clock, but never back within a segment."""
    last = (-1, 0)
    for one in records:
        segment = one.log_offset // SMALL["commit_log_segment_bytes"]
        assert segment != last[0] or one.store_ms >= last[1]
        last = (segment, one.store_ms)
    for name, (began, ended) in life.windows.items():
        assert any(began <= one.store_ms / 1000 <= ended for one in records), name


def _check_searches(link: Link, some: list[Record]) -> None:
    for one in some:
        for begin_ms, end_ms in ((0, 1 << 62), (one.store_ms, one.store_ms)):
            answer = link.call(
                _QUERY,
                {
                    "topic": TOPIC, "key": one.property("UNIQ_KEY"), "maxNum": 8,
                    "beginTimestamp": begin_ms, "endTimestamp": end_ms,
                },
            )  # fmt: skip
            assert answer.code == 0, (one.store_ms, begin_ms, answer.remark)
            assert [hit.log_offset for hit in records_of(answer.body)] == [one.log_offset]
        where = {"topic": TOPIC, "queueId": one.queue_id, "timestamp": one.store_ms}
        assert int(link.call(_SEARCH, where).ext["offset"]) >= 0


def test_control_a_daemon_that_deletes_by_the_wall_clock_is_caught(
    tmp_path: Path, seed: int
) -> None:
    life = Life(tmp_path, seed, "delete-by-the-wall-clock")
    try:
        for name in ("an hour forward", "a month forward over a restart"):
            life.step(name)
        wait_until(lambda: any("acked and is gone" in one for one in life.wrong()), "a loss")
        campaign.note_control("clocks and the daemon", "deletion by the wall clock", 1, 1)
    finally:
        life.close()


@pytest.mark.parametrize("set_s", [DAY_S, -DAY_S])
def test_timers_go_by_the_monotonic_clock(tmp_path: Path, seed: int, set_s: int) -> None:
    """Held pulls, silent clients, flushes: nothing comes early or late because the clock is set."""
    life = Life(tmp_path, seed)
    try:
        with Link(life.daemon.port) as link, Link(life.daemon.port) as member:
            _heartbeat(member)
            began = time.monotonic()
            link.ask(PULL, pull_fields(TOPIC, 0, 0, 3000))
            life.clock.forward(set_s)
            (answer,) = link.answers()
            held_s = time.monotonic() - began
            print(f"a pull to be held for 3 s was answered after {held_s:.1f} s")
            assert answer.code != 0
            assert 2.5 < held_s < 20
            assert link.call(_CONSUMERS, {"consumerGroup": "watching"}).body.count(b"member") == 1
            began = time.monotonic()
            life.step("an hour forward")
            end = max(one.log_offset for one in life.history.acked())
            wait_until(lambda: _flushed(life.store) > end, "the log is flushed")
            assert time.monotonic() - began < 20
        assert life.wrong() == []
        life.end("stop")
    finally:
        life.close()


def _flushed(store: Path) -> int:
    return int(json.loads((store / "offsets").read_bytes().split(b"\n")[0])["flushed"])


def _heartbeat(link: Link) -> None:
    consumer = {
        "groupName": "watching", "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [], "unitMode": False,
    }  # fmt: skip
    data = {"clientID": "member", "producerDataSet": [], "consumerDataSet": [consumer]}
    wanted = link.ask(_HEARTBEAT, {}, json.dumps(data).encode())
    while all(answer.opaque != wanted for answer in link.answers()):
        pass  # told first that the group has changed
