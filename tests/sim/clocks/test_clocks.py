"""R9: whatever the wall clock does, nothing is lost, and nothing is deleted early or kept for ever.

Each scenario is a life of two to three weeks (`clock_life.py`), with restarts in it, as drawn by
the seed: `make sim ARGS="-k clocks --seed N"` repeats a run.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from aerobee.store.background.retention import deletion_plan as retention_plan
from aerobee.store.disk.offsets_file import ClockNote
from aerobee.store.disk.steady_time import SteadyTime
from aerobee.store.log.commit_log import CommitLog
from aerobee.store.reading import search
from tests import campaign
from tests.sim.clocks.clock_life import DAY_MS, HOUR_MS, World, WorldClock
from tests.sim.storage.explore import judge, states_at
from tests.sim.storage.plans import plan_named
from tests.sim.storage.recovered import ROOT
from tests.sim.storage.workload import Runner
from tests.unit.store.support import FIRST_MS

pytestmark = pytest.mark.usefixtures("quiet")

_YEAR_2038_MS = (1 << 31) * 1000
_QUIET_HOURS = 96
_Scenario = Callable[[World], None]


def _set_by(step_ms: int) -> Callable[[WorldClock], None]:
    def act(clock: WorldClock) -> None:
        clock.time_ms += step_ms

    return act


def _set_to(time_ms: int) -> Callable[[WorldClock], None]:
    def act(clock: WorldClock) -> None:
        clock.time_ms = time_ms

    return act


def _step(step_ms: int) -> _Scenario:
    """Set by that much in the middle of a segment, and never set right."""

    def live(world: World) -> None:
        world.clock.time_ms += step_ms
        world.hours(30)
        world.restart("kill")

    return live


def _stands_still(world: World) -> None:
    world.clock.stopped = True
    world.hours(30)
    world.restart("cut")
    world.hours(6)
    world.clock.right()


def _wrong_for(hours: int, time_ms: int) -> _Scenario:
    """Another time, with a restart in it; then it is set right."""

    def live(world: World) -> None:
        world.clock.time_ms = time_ms
        world.hours(hours // 2)
        world.restart("kill")
        world.hours(hours - hours // 2)
        world.clock.right()

    return live


def _wrong_from_the_start(world: World) -> None:
    """A machine without a battery: it is 1970 until a time server answers, each time."""
    for how in ("cut", "clean"):
        world.start_again(_set_to(20_000), how)
        world.hours(9)
        world.clock.right()
        world.hours(20)


def _into_2038(world: World) -> None:
    """Over the end of a signed count of seconds, and on."""
    world.clock.time_ms = _YEAR_2038_MS - 5 * HOUR_MS
    world.hours(20)
    world.restart("cut")


def _back_across_a_roll(world: World) -> None:
    """Back a little more each time that a new segment begins."""
    segments = world.store._parts.segments
    for number in range(6):
        count = len(segments.segments)
        while len(segments.segments) == count:
            world.send()
        world.settle()
        world.clock.time_ms -= (number + 1) * HOUR_MS
        world.hours(2)
    world.restart("kill")


def _back_over_restarts(world: World) -> None:
    for how in ("kill", "clean", "cut"):
        world.start_again(_set_by(-7 * HOUR_MS), how)
        world.hours(5)


def _forward_over_restarts(world: World) -> None:
    """A month ahead at a start, killed and started again before the month is over."""
    world.start_again(_set_by(30 * DAY_MS), "kill")
    world.hours(10)
    world.restart("cut")
    world.hours(10)
    world.restart("clean")


def _drawn_by_lot(world: World) -> None:
    for _ in range(12):
        kind = world.rng.choice(("set", "right", "restart", "set while down", "down", "stop"))
        step_ms = world.rng.choice((-1, 1)) * world.rng.choice((HOUR_MS, DAY_MS, 40 * DAY_MS))
        how = world.rng.choice(("clean", "kill", "cut"))
        if kind == "set":
            world.clock.time_ms += step_ms
        elif kind == "right":
            world.clock.right()
        elif kind == "restart":
            world.restart(how)
        elif kind == "set while down":
            world.start_again(_set_by(step_ms), how)
        elif kind == "down":
            world.restart("cut", down_ms=world.rng.choice((HOUR_MS, 2 * DAY_MS)))
        else:
            world.clock.stopped = True
        world.hours(world.rng.randint(1, 20))
    world.clock.right()


SCENARIOS: dict[str, _Scenario] = {
    "an hour forward": _step(HOUR_MS),
    "an hour back": _step(-HOUR_MS),
    "a day forward": _step(DAY_MS),
    "a day back": _step(-DAY_MS),
    "stands still": _stands_still,
    "1970 for a while": _wrong_for(20, 20_000),
    "1970 at each start": _wrong_from_the_start,
    "into 2038 and on": _into_2038,
    "2100 for a while": _wrong_for(20, FIRST_MS + 77 * 365 * DAY_MS),
    "back across rolls": _back_across_a_roll,
    "back over restarts": _back_over_restarts,
    "forward over restarts": _forward_over_restarts,
    "drawn by lot": _drawn_by_lot,
}


def live(name: str, seed: int) -> World:
    """Three days as usual, what the scenario does, and as long again until all is as usual."""
    world = World(seed)
    try:
        world.hours(80)
        SCENARIOS[name](world)
        world.search_all()
        world.hours(_QUIET_HOURS)
        world.restart("kill")
        world.hours(_QUIET_HOURS)
        world.judge_oldest()
        world.end()
    finally:
        world.let_go()
    return world


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_clock_costs_a_message_or_keeps_it_for_ever(name: str, seed: int) -> None:
    print(f"scenario {name!r} seed {seed}")
    world = live(name, seed)
    print(world.figures)
    campaign.note("clocks", 1, wrong=len(world.wrong), messages_deleted=world.figures.deleted)
    assert not world.wrong, "\n".join(world.wrong[:20])
    assert world.figures.deleted > 100


# --- recovery by time ---------------------------------------------------------------------------


def _recovered_by_time(plan_name: str, seed: int) -> list[str]:
    """Faults of starts without our offsets file, as after another broker, by the checkpoint's
    times. `test_storage_model.py` has such lives with the file.

    Power cuts take all or nothing here: without the file a hole before sound records is damage.
    """
    plan = replace(plan_named(plan_name), crashes=())
    rng = random.Random(seed)
    wrong: list[str] = []
    states = looked_at = 0
    for recorded in Runner(plan, seed).run():
        places = range(len(recorded.journal) + 1)
        for place in rng.sample(places, min(campaign.size("recovery by time"), len(places))):
            looked_at += 1
            for built in states_at(recorded, place, ["none", "all", "kill"]):
                for name in ("offsets", "offsets.tmp"):
                    built.state.pop(f"{ROOT}/{name}", None)
                states += 1
                wrong += [
                    f"{one.invariant} {one.text}" for one in judge(plan, recorded, place, built)
                ]
    print(f"plan {plan_name} seed {seed}: {states} states, {len(wrong)} wrong")
    campaign.note("recovery by time", looked_at, wrong=len(wrong), states=states)
    return wrong


@pytest.mark.parametrize("plan", ["sync-clocks", "async-clocks"])
def test_recovery_by_time_loses_and_doubles_nothing(plan: str, seed: int) -> None:
    assert _recovered_by_time(plan, seed % 1000) == []


# --- negative controls ----------------------------------------------------------------------------


def _is_caught(control: str, scenario: str, seed: int, text: str) -> bool:
    """Whether something is said to be wrong that has `text` in it."""
    wrong = live(scenario, seed).wrong
    print(f"scenario {scenario!r} seed {seed}: {len(wrong)} wrong, {wrong[:1]}")
    is_caught = any(text in one for one in wrong)
    campaign.note_control("clocks", control, int(is_caught), 1)
    return is_caught


@pytest.mark.parametrize(
    "name", ["a day forward", "1970 for a while", "1970 at each start", "forward over restarts"]
)
def test_control_deletion_by_the_wall_clock_is_caught(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SteadyTime, "now_ms", lambda steady: steady._clock.now_ms())
    assert _is_caught("deletion by the wall clock", name, seed, "was deleted")


def test_control_steps_that_a_restart_forgets_are_caught(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = SteadyTime.note
    monkeypatch.setattr(SteadyTime, "note", lambda steady: ClockNote(note(steady).wall_ms, held=()))
    assert _is_caught("steps forgotten by a restart", "forward over restarts", seed, "was deleted")


def test_control_waiting_for_times_to_come_is_caught(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        retention_plan,
        "dated",
        lambda segments, number, _now, last: last(segments[number], segments[number + 1]),
    )
    assert _is_caught("waiting for times to come", "2100 for a while", seed, "is still there")


def test_control_an_index_that_relies_on_order_is_caught(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "candidates", lambda *_: iter(()))
    assert _is_caught("an index that relies on order", "1970 for a while", seed, "query")


def test_control_store_times_that_go_back_in_a_segment_are_caught(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = CommitLog._append

    def without_clamp(log: CommitLog, messages: Any, queue: Any, now: int) -> Any:
        if log._active is not None:
            log._active.last_store_ms = 0
        return append(log, messages, queue, now)

    monkeypatch.setattr(CommitLog, "_append", without_clamp)
    assert _is_caught("store times that go back", "back across rolls", seed, "has the time")
