"""How two servers are compared that run side by side: turns, one after the other, and their ratios.

A turn is a load on one of them for about a second, or for a number of requests, and then the time
until it is idle again, so that what a turn leaves to be done is in its processor time and not in
the other's turn. Which server begins alternates, so that a pace of the machine that rises or falls
cancels out. After each turn the messages stored are compared with all that were ever acknowledged.

`make bench`, `make pair`, the neighbours and the shards all measure in this way; they differ in the
kind of server (TakesTurns), and whether a turn ends by the clock or by its requests.
"""

import argparse
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tests.bench.alone import CannotMeasure
from tests.bench.loads import Load, LoadFailed, Lost, cpu_seconds, refuse_errors

TURN_LIMIT_S = 120
#: Turns of each server, and the fewest: a median that two disturbed turns do not move. An interval
#: that is to hold the true ratio, as `make pair` gives one, needs more (ratios.py).
TURNS = 9
TURNS_MIN = 5
_IDLE_S, _IDLE_SHARE, _IDLE_WAIT_S = 0.05, 0.1, 2.0
_FIRST_REQUESTS = 512
#: A rate is level when the median of three turns is that of the three before, within a tolerance.
_LEVEL_TURNS, _LEVEL_TOLERANCE = 3, 1.05
#: A warm-up ends after this multiple of its length, level or not.
WARM_UP_BOUND = 2.0


@dataclass(frozen=True, slots=True)
class Turn:
    """The figures of one turn of a server."""

    messages_per_s: float
    cpu_us: float  # a message
    cpu_s: float  # in all
    p50_us: float = 0.0
    p99_us: float = 0.0
    out_per_s: float = 0.0  # messages read by long polling beside the sends


#: A round has a turn of each server, in the servers' order.
Rounds = list[tuple[Turn, ...]]

#: Ratios of a turn of ours to a turn of the other's: above 1 is better for ours, but for latencies.
RATIOS: dict[str, Callable[[Turn, Turn], float]] = {
    "rate": lambda ours, theirs: ours.messages_per_s / theirs.messages_per_s,
    "out": lambda ours, theirs: ours.out_per_s / theirs.out_per_s,
    "processor": lambda ours, theirs: theirs.cpu_us / ours.cpu_us,
    "p50": lambda ours, theirs: ours.p50_us / theirs.p50_us,
    "p99": lambda ours, theirs: ours.p99_us / theirs.p99_us,
}
AT_MOST = frozenset({"p50", "p99"})


class TakesTurns(ABC):
    """A server, or several that are one to their clients. `acked` counts since `take_up`."""

    kind: str
    topic: str
    acked: int

    @abstractmethod
    def take_up(self, load: Load) -> None:
        """Makes the load's topic, with what its pulls read; all turns until the next are of it."""

    @abstractmethod
    def pids(self) -> list[int]:
        """The processes whose processor time counts."""

    @abstractmethod
    def held(self) -> int:
        """Messages stored of the topic."""

    @abstractmethod
    def last_words(self) -> str:
        """The end of what the server has logged."""

    @abstractmethod
    def work(self, load: Load, **size: float) -> list[dict[str, Any]]:
        """The counts of each generator; `size` are options of loop.h."""

    def turn(self, load: Load, requests: int = 0, secs: float = TURN_LIMIT_S) -> Turn:
        """A turn of that many requests, or of `secs` without. Raises Lost and LoadFailed."""
        try:
            before = self._cpu_s()
            results = self.work(load, requests=requests, secs=secs, warmup=0)
            self._wait_idle()
            cpu_s = self._cpu_s() - before
            count = self.held()
        except (LoadFailed, OSError) as error:
            raise LoadFailed(f"{load.name}: {self.kind}: {error}\n{self.last_words()}") from None
        for result in results:
            refuse_errors(load, result)
        came = sum(result["acked"] for result in results)
        if not load.pulls:
            self.acked += came
        if count != self.acked or not came:
            raise Lost(
                f"{load.name}: {self.kind} holds {count} messages of {self.acked} acknowledged, "
                f"{came} came in the turn"
            )
        out = sum(result["pulled"] for result in results)
        if "--pullers" in load.words and out != came:
            raise Lost(f"{load.name}: {self.kind} gave out {out} messages of {came} acknowledged")
        return Turn(
            sum(result["messages_per_s"] for result in results),
            cpu_s * 1e6 / came,
            cpu_s,
            median(result["p50_us"] for result in results),
            max(result["p99_us"] for result in results),
            sum(result["out_per_s"] for result in results),
        )

    def _cpu_s(self) -> float:
        return sum(map(cpu_seconds, self.pids()))

    def _wait_idle(self) -> None:
        """Returns when the work that the load left behind, such as flushing, is done."""
        deadline = time.monotonic() + _IDLE_WAIT_S
        while time.monotonic() < deadline:
            before = self._cpu_s()
            time.sleep(_IDLE_S)
            if self._cpu_s() - before < _IDLE_S * _IDLE_SHARE:
                return


def add_turn_options(parser: argparse.ArgumentParser, of_whom: str) -> None:
    """--turns, which are those `of_whom` for each load, and --secs; `check_turns` judges them."""
    turns_help = f"of {of_whom}, for each load ({TURNS}; at least {TURNS_MIN})"
    parser.add_argument("--turns", type=int, default=TURNS, help=turns_help)
    parser.add_argument("--secs", type=float, default=1, help="that a turn takes (1)")


def check_turns(turns: int, secs: float) -> None:
    """Raises CannotMeasure."""
    if turns < TURNS_MIN:
        raise CannotMeasure(
            f"--turns {turns} is too few: at least {TURNS_MIN}, of which two may be disturbed; "
            "shorter turns (--secs) or fewer loads (--loads) take less time"
        )
    if secs <= 0:
        raise CannotMeasure("--secs must be above 0")


def rounds(
    servers: Sequence[TakesTurns],
    numbers: Iterable[int],
    load: Load,
    requests: int = 0,
    secs: float = TURN_LIMIT_S,
) -> Rounds:
    """A round for each number; the order of the servers is turned round in the odd ones."""
    found: Rounds = []
    for number in numbers:
        order = servers if number % 2 == 0 else servers[::-1]
        turns = [server.turn(load, requests, secs) for server in order]
        found.append(tuple(turns if number % 2 == 0 else turns[::-1]))
    return found


def warm_up(servers: Sequence[TakesTurns], load: Load, secs: float, warm_up_s: float) -> list[str]:
    """Turns that do not count: `warm_up_s` for each at least, and until its rate is level.

    Returns the kinds of those that were not level after twice that time.
    """
    rates: dict[TakesTurns, list[float]] = {server: [] for server in servers}
    unlevel, waiting = [], list(servers)
    while waiting:
        for server in waiting.copy():
            rates[server].append(server.turn(load, secs=secs).messages_per_s)
            warmed_s = secs * len(rates[server])
            if warmed_s < warm_up_s:
                continue
            level = is_level(rates[server])
            if level or warmed_s >= warm_up_s * WARM_UP_BOUND:
                waiting.remove(server)
                unlevel += [] if level or not warm_up_s else [server.kind]
    return unlevel


def is_level(rates: Sequence[float]) -> bool:
    """Whether the last turns have the pace of those before them."""
    if len(rates) < 2 * _LEVEL_TURNS:
        return False
    last, before = rates[-_LEVEL_TURNS:], rates[-2 * _LEVEL_TURNS : -_LEVEL_TURNS]
    change = median(last) / median(before)
    return 1 / _LEVEL_TOLERANCE <= change <= _LEVEL_TOLERANCE


def equal_requests(
    this: TakesTurns, base: TakesTurns, load: Load, requests: int, secs: float
) -> int:
    """Turns that do not count. Returns how many requests the turns after them have.

    These are as many as cost base `secs` of processor time, unless `requests` says it already.
    """
    count = requests or _FIRST_REQUESTS
    while True:
        this.turn(load, count)
        cpu_s = base.turn(load, count).cpu_s
        if requests or cpu_s >= secs / 2:
            break
        count *= 2
    return requests or round(count * secs / cpu_s)
