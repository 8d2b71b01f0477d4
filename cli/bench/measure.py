"""Leads a measurement: warm-up, the seconds that count, and the requests under way at the end."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aerobee.cli.bench.bench_plan import BenchPlan
from aerobee.cli.bench.counts import Counts, sum_of
from aerobee.cli.bench.fleet import Fleet

_NS: Final = 1_000_000_000
# The start is told so long before it comes, so that every process hears of it in time.
_HEAD_START_S: Final = 0.2
# A backlog counts as drained at this many messages, however small it was.
_DRAINED_MESSAGES: Final = 1000
_LAST_LOOK_S: Final = 0.1
_SLIVER_S: Final = 0.5


@dataclass(slots=True)
class Second:
    """The counts of about a second. Rates are a second's; `backlog` is messages at its end."""

    at_s: float  # its end, since the seconds that count began
    elapsed_s: float
    counts: Counts
    backlog: int
    cpu: float  # the busiest process of the generator, in cores

    def rate(self, count: int) -> float:
        """The rate of `count` in this second."""
        return count / self.elapsed_s if self.elapsed_s > 0 else 0.0


@dataclass(slots=True, kw_only=True)
class Measurement:
    """All that was measured. `total` is of the seconds that count, with the answers that came
    after them; `ever` counts from the start, so warm-up too."""

    seconds: list[Second] = field(default_factory=list)
    total: Counts = field(default_factory=Counts)
    ever: Counts = field(default_factory=Counts)
    unanswered: int = 0
    undelivered: int = 0
    interrupted: bool = False
    backlog_text: list[str] = field(default_factory=list)

    @property
    def elapsed_s(self) -> float:
        """The true length of the seconds that count."""
        return sum(second.elapsed_s for second in self.seconds)


Tell = Callable[[Second, bool], None]
"""Told of each second, and whether it was of the warm-up."""


class Conductor:
    """Leads one fleet through one plan; `interrupt` ends it early."""

    def __init__(
        self, fleet: Fleet, plan: BenchPlan, tell: Tell, say: Callable[[str], None]
    ) -> None:
        self._fleet = fleet
        self._plan = plan
        self._tell = tell
        self._say = say
        self._found = Measurement()
        self._interrupted = asyncio.Event()
        self._backlog = Backlog(plan)
        self._next_look_s = 0.0

    def interrupt(self) -> None:
        """End the measurement with what there is so far."""
        self._interrupted.set()

    async def run(self) -> Measurement:
        """Measure. CommandFailed when the generator itself fails."""
        plan, found = self._plan, self._found
        start_ns = time.monotonic_ns() + round(_HEAD_START_S * _NS)
        await self._fleet.tell("start", at_ns=start_ns)
        await asyncio.sleep(_HEAD_START_S)
        self._next_look_s = time.monotonic()
        warm_until_s = self._next_look_s + plan.warm_up_s
        while time.monotonic() < warm_until_s and not self._interrupted.is_set():
            self._tell(await self._look(warm_until_s, 0.0), True)
        if not self._interrupted.is_set():
            await self._count_seconds()
        found.interrupted = self._interrupted.is_set()
        await self._finish()
        return found

    async def _count_seconds(self) -> None:
        found = self._found
        begun_s = time.monotonic()
        end_s = begun_s + self._plan.duration_s
        await self._steer()
        while not self._interrupted.is_set():
            second = await self._look(end_s if self._backlog.is_over() else None, begun_s)
            found.seconds.append(second)
            found.total.add(second.counts)
            self._tell(second, False)
            if not self._backlog.is_over():
                await self._steer()
                if self._backlog.is_over():
                    end_s = time.monotonic() + self._plan.duration_s
            elif time.monotonic() >= end_s:
                return

    async def _steer(self) -> None:
        """Hold the consumers while a backlog is built, and let them go when it is there."""
        step = self._backlog.step(self._found.ever)
        if step is not None:
            order, text = step
            if order:
                await self._fleet.tell(order)
            self._say(text)
            self._found.backlog_text.append(text)

    async def _look(self, until_s: float | None, begun_s: float) -> Second:
        """Wait for the end of this second, or of the plan, and take the figures."""
        self._next_look_s = max(self._next_look_s + 1.0, time.monotonic())
        at_s = end_of_second(self._next_look_s, until_s)
        try:
            async with asyncio.timeout(max(0.0, at_s - time.monotonic())):
                await self._interrupted.wait()
        except TimeoutError:
            pass
        return self._second(await self._fleet.tell("report"), time.monotonic() - begun_s)

    def _second(self, reports: Sequence[dict[str, Any]], at_s: float) -> Second:
        found = self._found
        counts = sum_of(reports)
        found.ever.add(counts)
        elapsed_s = max(report["elapsed_s"] for report in reports)
        cpu = max(report["cpu_s"] / max(report["elapsed_s"], 1e-9) for report in reports)
        return Second(at_s, elapsed_s, counts, backlog_of(self._plan, found.ever), cpu)

    async def _finish(self) -> None:
        """Let the senders have their answers, and the consumers their messages.

        Latencies of requests that were under way count: those are the slow requests.
        """
        plan, found = self._plan, self._found
        await self._fleet.tell("end", within_s=plan.timeout_s)
        until_s = time.monotonic() + plan.timeout_s
        progress = -1
        while True:
            reports = await self._fleet.tell("report")
            late = sum_of(reports)
            found.ever.add(late)
            found.total.add(late)
            found.unanswered = sum(report["unanswered"] for report in reports)
            found.undelivered = backlog_of(plan, found.ever)
            if found.undelivered <= 0 or found.interrupted:
                break
            if found.ever.received != progress:
                progress = found.ever.received
                until_s = time.monotonic() + plan.timeout_s
            if time.monotonic() > until_s or self._interrupted.is_set():
                break
            await asyncio.sleep(_LAST_LOOK_S)
        await self._fleet.tell("close")


def end_of_second(at_s: float, until_s: float | None) -> float:
    """When to look next, `at_s` or `until_s`: no rate is made of a sliver of a second."""
    return at_s if until_s is None or until_s - at_s > _SLIVER_S else until_s


def backlog_of(plan: BenchPlan, ever: Counts) -> int:
    """Messages that were acknowledged and have still to be received, of all subscriptions."""
    return max(0, plan.subscriptions * ever.acked - ever.received) if plan.consumes else 0


class Backlog:
    """The steps of a workload with a backlog: hold the consumers, let them go, wait for them."""

    def __init__(self, plan: BenchPlan) -> None:
        self._plan = plan
        self._state = "none" if plan.backlog_bytes == 0 else "new"
        self._since_s = 0.0
        self._capacity = plan.backlog_bytes // plan.payload.size

    def is_over(self) -> bool:
        """Whether all steps are done, so that the time of the measurement runs."""
        return self._state == "none"

    def step(self, ever: Counts) -> tuple[str, str] | None:
        """The order for the processes now ("": nothing) and a text to say; None for no news."""
        held = backlog_of(self._plan, ever)
        now_s = time.monotonic()
        if self._state == "new":
            self._state, self._since_s = "building", now_s
            size = self._plan.backlog_bytes >> 30
            return "pause", f"consumers are held until {size} GiB wait for them"
        if self._state == "building" and held >= self._capacity:
            text = f"the backlog of {held:,} messages is there after {now_s - self._since_s:.1f} s"
            self._state, self._since_s = "draining", now_s
            return "resume", f"{text}; consumers go on"
        left = round((1.0 - self._plan.drain_ratio) * self._capacity)
        if self._state == "draining" and held <= max(_DRAINED_MESSAGES, left):
            self._state = "none"
            return "", f"the backlog is drained after {now_s - self._since_s:.1f} s"
        return None
