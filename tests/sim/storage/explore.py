"""Looks at the states a workload's crashes may leave: collects, thins out, recovers, checks.

Many places and choices make the same disk. Only the latest place of equal disks is looked at,
because more has been promised by then. If more are left than the budget allows, a seeded sample is
taken, with its share of extremes (all or nothing of what was unsynced) and of damaged disks.

A state's name is `plan:seed:life:place:choice`; `python -m tests.sim.storage.replay NAME` looks at
it
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tests.sim.disk.crash_choices import HURT, HURT_EVERY, choices, is_hurt, is_kill, picks_of
from tests.sim.disk.crash_model import CrashModel, Doubt, State
from tests.sim.disk.damage import hurt
from tests.sim.disk.recorded_files import Event, Start
from tests.sim.storage.checker import (
    DiskPlan,
    Fault,
    check,
    check_disk,
    count_invariants,
    lost_blanks,
    same_bytes,
    stands,
)
from tests.sim.storage.history import Expected
from tests.sim.storage.recovered import Machine, Outcome, recover
from tests.sim.storage.stepped_store import SteppedClock
from tests.sim.storage.workload import Plan, Recorded, Rules, Runner

_EXTREMES = ("none", "all", "kill")


class StateName(NamedTuple):
    """Which state: all that is needed to build it again."""

    plan: str
    seed: int
    life: int
    place: int
    choice: str

    def __str__(self) -> str:
        return ":".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> "StateName":
        """The opposite of `str`."""
        plan, seed, life, place, choice = text.split(":")
        return cls(plan, int(seed), int(life), int(place), choice)


class Broken(NamedTuple):
    """A state with faults."""

    name: StateName
    faults: list[Fault]


@dataclass
class Result:
    """The result of an exploration."""

    places: int = 0
    candidates: int = 0
    states: int = 0
    broken: list[Broken] = field(default_factory=list)

    def add(self, other: "Result") -> None:
        """Take over what another one found."""
        self.places += other.places
        self.candidates += other.candidates
        self.states += other.states
        self.broken += other.broken

    def by_invariant(self) -> dict[str, int]:
        """How many states broke each invariant."""
        return count_invariants([broken.faults for broken in self.broken])


class _Candidate(NamedTuple):
    place: int
    choice: str


def explore(
    plan: Plan,
    seed: int,
    budget: int,
    rules: Rules | None = None,
    until: Callable[[Result], bool] = lambda _result: False,
) -> Result:
    """Run the workload and look at up to `budget` states of its crashes, or `until` is true."""
    result = Result()
    lives = Runner(plan, seed, rules).run()
    found = [collect(recorded.start, recorded.journal, result) for recorded in lives]
    each = shares([len(one) for one in found], budget)
    for number, (recorded, share) in enumerate(zip(lives, each, strict=True)):
        chosen = thin_out(found[number], share, seed)
        for place, names in sorted(chosen.items()):
            _look(plan, seed, number, recorded, place, names, result)
            if until(result):
                return result
    return result


def shares(counts: list[int], budget: int) -> list[int]:
    """The budget in equal shares; what one cannot use the others may."""
    found = [0] * len(counts)
    for left, at in enumerate(sorted(range(len(counts)), key=counts.__getitem__)):
        found[at] = min(counts[at], (budget - sum(found)) // (len(counts) - left))
    return found


def collect(
    start: Start, journal: Sequence[Event], result: Result, *, hurts: bool = True
) -> dict[tuple[object, bool], _Candidate]:
    """The latest place and choice of each distinct disk; with `hurts`, damaged ones as well."""
    found: dict[tuple[object, bool], _Candidate] = {}
    model = CrashModel(start)
    for place in range(len(journal) + 1):
        if place:
            model.apply(journal[place - 1])
        doubts = model.doubts()
        result.places += 1
        for number in range(HURT if hurts and place % HURT_EVERY == 0 else 0):
            found[(place, number), False] = _Candidate(place, f"hurt-{number}")
        for choice in choices(doubts):
            result.candidates += 1
            key = (digest(model.build(doubts, picks_of(choice, doubts))), is_kill(choice))
            found.pop(key, None)
            found[key] = _Candidate(place, choice)
    return found


def thin_out(
    found: dict[tuple[object, bool], _Candidate], budget: int, seed: int
) -> dict[int, list[str]]:
    """At most `budget` of them, by place."""
    candidates = list(found.values())
    if len(candidates) > budget:
        rng = random.Random(seed)
        extremes = _some(rng, [one for one in candidates if one.choice in _EXTREMES], budget // 3)
        hurts = _some(rng, [one for one in candidates if is_hurt(one.choice)], budget // 8)
        others = [one for one in candidates if one not in set(extremes + hurts)]
        candidates = extremes + hurts
        candidates += _some(rng, others, budget - len(candidates))
    chosen: dict[int, list[str]] = {}
    for one in candidates:
        chosen.setdefault(one.place, []).append(one.choice)
    return chosen


def _some(rng: random.Random, candidates: list[_Candidate], most: int) -> list[_Candidate]:
    return rng.sample(candidates, min(len(candidates), most))


def _look(
    plan: Plan,
    seed: int,
    life: int,
    recorded: Recorded,
    place: int,
    names: list[str],
    result: Result,
) -> None:
    for built in states_at(recorded, place, names):
        result.states += 1
        faults = judge(plan, recorded, place, built)
        if faults:
            name = StateName(plan.name, seed, life, place, built.choice)
            result.broken.append(Broken(name, faults))


class Built(NamedTuple):
    """A state of the disk at one place."""

    choice: str
    state: State
    # The meaning of the choice, doubt by doubt.
    description: list[str]
    # Whether all that was stored is there.
    nothing_lost: bool
    # The messages that must, may and must not be there then.
    expected: Expected


def states_at(
    recorded: Recorded, place: int, names: list[str], *, describe: bool = False
) -> list[Built]:
    """The states that the choices `names` make of a crash at `place`."""
    model = CrashModel.at(recorded.start, recorded.journal[:place])
    doubts: list[Doubt] = model.doubts()
    found: list[Built] = []
    for name in names:
        picks = picks_of(name, doubts)
        text = [model.describe(*pair) for pair in zip(doubts, picks, strict=True)]
        nothing_lost = is_kill(name) and not any(doubt.stuck for doubt in doubts)
        expected = recorded.life.expected(place, killed=nothing_lost)
        state = model.build(doubts, picks)
        if is_hurt(name):
            hurt_state = hurt(state, expected, recorded.segment_bytes, f"{name} {place}")
            if hurt_state is None:
                continue
            state, expected.damaged = hurt_state
            text.append(f"damaged: {expected.damaged}")
        found.append(Built(name, state, text if describe else [], nothing_lost, expected))
    return found


def judge(plan: Plan, recorded: Recorded, place: int, built: Built) -> list[Fault]:
    """Recover that state and check all."""
    expected = built.expected
    boot = recorded.boot if is_kill(built.choice) else recorded.boot + ", over"
    clock = SteppedClock(recorded.time_ms + 1_000_000)
    machine = Machine(plan.store_settings(), clock, boot)
    slots = machine.settings.index_slots
    faults = check_disk(built.state, expected, DiskPlan(recorded.segment_bytes, slots, boot))
    outcome = recover(built.state, machine, _some_keys(expected, place))
    if is_kill(built.choice) and not built.nothing_lost:
        expected = _with_dropped(expected, built.state, outcome, recorded.segment_bytes)
    faults += check(outcome, expected, slots)
    for opening in recorded.openings:
        inside = opening.begin < place <= opening.end
        if inside and (opening.of_durable or is_kill(built.choice)) and not expected.damaged:
            faults += same_bytes(opening.image, outcome.image, expected)
    return faults


def _with_dropped(
    expected: Expected, state: State, outcome: Outcome, segment_bytes: int
) -> Expected:
    """The expectation with the records and blanks in pages that the kernel dropped after a failed
    sync, if more was kept.

    The process was killed before it could note the failure, and the machine is still up: for the
    start nothing is lost, so what is wrong below what the queues name is damage and not a torn
    tail (docs/reliability.md 4). It has to say so of each; what stands behind stays.
    """
    lost = [
        (sent.log_offset, sent.end)
        for sent in expected.records
        if not stands(state, sent, segment_bytes)
    ]
    lost += lost_blanks(state, expected.records, segment_bytes)
    dropped = {
        begin: behind
        for begin, behind in lost
        if expected.must_end < behind <= outcome.log_end
        and any(start <= begin < end for start, end in outcome.gaps)
    }
    return replace(expected, damaged=expected.damaged | dropped)


def _some_keys(expected: Expected, place: int) -> list[tuple[str, str]]:
    """A few keys to query; the index as a whole is checked from its bytes."""
    known = [(sent.topic, key) for sent in expected.records for key in sent.keys]
    return random.Random(place).sample(known, min(3, len(known)))


def digest(state: State) -> int:
    """Equal for equal disks."""
    return hash(frozenset(state.items()))
