"""Is the broker alive, and should it get traffic? Named checks, each looking at the thing itself.

Alive (`/live`): the event loop turns. That stays true while the store is read-only after a failed
sync, so that a supervisor does not restart away the evidence and reads go on. A timer asks to be
called every `interval_s` (`LoopMonitor`); how much later it comes is the loop's lag: the time a
frame may wait before the loop looks at it. The histogram feeds /metrics, `stuck_s` feeds /live.

Ready (`/ready`): recovered, the store takes writes, a name server knows us, the disk is below the
ratio at which sends are refused. A probe returns None when all is well, else a sentence saying what
is wrong; it is called at each request, on the loop, and must not block. "Since when" is when
a change was first seen, so `HealthChecks.run` is also called from the daemon's one-second timer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias

import msgspec.json

from aerobee.broker.monitoring.http import Request, Response, Route
from aerobee.broker.stats import STAGE_BOUNDS, Buckets
from aerobee.store.disk.disk_watch import full_directories, refusal_text
from aerobee.store.disk.files import DiskSpace, Files

Probe: TypeAlias = Callable[[], str | None]

_JSON = "application/json"


class Verdict(NamedTuple):
    """What one check says now: `reason` is None when well, `since` in seconds of the epoch."""

    name: str
    reason: str | None
    since: float
    remedy: str

    @property
    def ok(self) -> bool:
        return self.reason is None


@dataclass(slots=True, eq=False)
class _Check:
    name: str
    probe: Probe
    remedy: str
    since: float
    ok: bool | None = None


class LoopMonitor:
    """Lag of one event loop. Started and stopped on that loop; `stuck_s` may be read anywhere."""

    def __init__(self, loop: asyncio.AbstractEventLoop, interval_s: float = 0.5) -> None:
        self._loop = loop
        self._interval_s = interval_s
        self._timer: asyncio.TimerHandle | None = None
        self._last_turn = loop.time()
        self.lag = Buckets(STAGE_BOUNDS)

    def start(self) -> None:
        self._last_turn = self._loop.time()
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stuck_s(self) -> float:
        """Seconds by which the loop's timer is overdue now."""
        return max(0.0, self._loop.time() - self._last_turn - self._interval_s)

    def _arm(self) -> None:
        due = self._last_turn + self._interval_s
        self._timer = self._loop.call_at(due, self._turned, due)

    def _turned(self, due: float) -> None:
        now = self._loop.time()
        self.lag.add(max(0.0, now - due))
        # From now, not from `due`: after a stall the missed turns are not made up for.
        self._last_turn = now
        self._arm()


class HealthChecks:
    """The named checks that make up readiness. Loop thread only."""

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self._wall_clock = wall_clock
        self._checks: list[_Check] = []

    def add(self, name: str, probe: Probe, remedy: str) -> None:
        """Add a check; `remedy` tells a person what to do when it fails."""
        assert all(check.name != name for check in self._checks), f"check {name} added twice"
        self._checks.append(_Check(name, probe, remedy, self._wall_clock()))

    def run(self) -> list[Verdict]:
        """Run all probes now, in the order they were added."""
        verdicts = []
        for check in self._checks:
            reason = check.probe()
            if check.ok is not (reason is None):
                check.ok = reason is None
                check.since = self._wall_clock()
            verdicts.append(Verdict(check.name, reason, check.since, check.remedy))
        return verdicts

    @property
    def ready(self) -> bool:
        return all(verdict.ok for verdict in self.run())


# --- the probes ---------------------------------------------------------------------------------


def registered_probe(registered: Mapping[str, bool]) -> Probe:
    """At least one name server has answered the last registration; none configured is fine."""

    def probe() -> str | None:
        if not registered or any(registered.values()):
            return None
        return "no name server has accepted our registration: " + ", ".join(sorted(registered))

    return probe


def disk_probe(
    log_directories: Sequence[str],
    queue_directory: str,
    full_ratio: float,
    disk_space: Callable[[str], DiskSpace] | None = None,
) -> Probe:
    """The disks are not as full as sends are refused at (store/disk/disk_watch.py has the rule)."""
    ask = disk_space or Files().disk_space

    def probe() -> str | None:
        ratios: dict[str, float] = {}
        for path in (*log_directories, queue_directory):
            try:
                ratios[path] = ask(path).used_ratio
            except OSError as error:
                return f"the file system of {path} cannot be asked: {error}"
        full = full_directories(ratios, log_directories, queue_directory, full_ratio)
        return refusal_text(full, full_ratio) if full else None

    return probe


# --- the endpoints ------------------------------------------------------------------------------


def health_routes(
    health: HealthChecks, loop_stuck_s: Callable[[], float], live_within_s: float = 10.0
) -> dict[str, Route]:
    """Routes for /live and /ready with their aliases.

    `loop_stuck_s` gives the seconds by which the loop's own timer is overdue.
    """

    async def live(_request: Request) -> Response:
        stuck = loop_stuck_s()
        status = 200 if stuck < live_within_s else 503
        return _json(status, {"live": status == 200, "loop_overdue_s": round(stuck, 3)})

    async def ready(_request: Request) -> Response:
        verdicts = health.run()
        is_ready = all(verdict.ok for verdict in verdicts)
        body = {"ready": is_ready, "checks": [_check_json(verdict) for verdict in verdicts]}
        return _json(200 if is_ready else 503, body)

    return {"/live": live, "/livez": live, "/ready": ready, "/readyz": ready}


def _check_json(verdict: Verdict) -> dict[str, object]:
    since = datetime.fromtimestamp(verdict.since, UTC).isoformat(timespec="milliseconds")
    shown: dict[str, object] = {"check": verdict.name, "ok": verdict.ok, "since": since}
    if not verdict.ok:
        shown["reason"] = verdict.reason
        shown["what_to_do"] = verdict.remedy
    return shown


def _json(status: int, body: object) -> Response:
    return Response(status, msgspec.json.format(msgspec.json.encode(body)) + b"\n", _JSON)
