"""Is the broker alive, and should it get traffic? Named checks, each looking at the thing itself.

Alive (`/live`): the event loop turns. That stays true while the store is read-only after a failed
sync, so that a supervisor does not restart away the evidence and reads go on. A timer asks to be
called every `interval_s` (`LoopMonitor`); it comes later by the loop's lag: the time a frame may
wait before the loop looks at it. The histogram feeds /metrics, `stuck_s` feeds /live and
the watchdog, and a lag of more than a tenth of a second is logged with the request that caused it.

Ready (`/ready`): recovered, the store takes writes, a name server knows us, the disk is below the
ratio at which sends are refused. A probe returns None when all is well, else a sentence saying what
is wrong, or a `Problem` with advice of its own; it is called at each request, on the loop, and must
not block. "Since when" is the time at which a change was first seen, so `HealthChecks.run` is also
called from the daemon's one-second timer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from aerobee.broker.broker_stats import STAGE_BOUNDS, Buckets
from aerobee.broker.monitoring.http import Request, Response, Route, json_response
from aerobee.remoting.turns import Turns
from aerobee.store.disk.disk_watch import full_directories, refusal_text
from aerobee.store.disk.files import DiskSpace, Files
from aerobee.store.disk.store_place import GONE

if TYPE_CHECKING:
    from aerobee.broker.cluster.registration.registration import Registrar

log = logging.getLogger("aerobee.broker.health")


class Problem(NamedTuple):
    """A fault that the check's own advice does not fit: what is wrong, and what a person can do
    about it."""

    reason: str
    remedy: str


Probe: TypeAlias = Callable[[], str | Problem | None]

# Often enough that no stall hides between two looks; twenty calls a second cost nothing.
_INTERVAL_S = 0.05
_STALL_S = 0.1
# Seconds between two lines about stalls, which count those in between; and where the loop was not
# running for most of them, which others on the machine may keep up for hours.
_REPORT_S = 1.0
_WAITING_REPORT_S = 30.0
# The part of a stall for which the loop's thread has run when the broker had a share in it. An idle
# loop's timers take less.
_OURS_FROM = 0.2

_PUT_BACK = (
    "put back what is missing, or mount it again, then restart; until then sends are refused. "
    "Nothing is made in its place"
)


class Verdict(NamedTuple):
    """The result of one check: `reason` is None when well, `since` in seconds of the epoch. A note
    is shown beside the others and never makes the broker unready."""

    name: str
    reason: str | None
    since: float
    remedy: str
    note: bool = False

    @property
    def ok(self) -> bool:
        return self.note or self.reason is None


@dataclass(slots=True, eq=False)
class _Check:
    name: str
    probe: Probe
    remedy: str
    since: float
    note: bool = False
    ok: bool | None = None
    applies: Callable[[], bool] | None = None


class LoopMonitor:
    """Lag of one event loop. Started and stopped on that loop; `stuck_s` may be read anywhere.

    A turn of the loop that takes longer than `stall_s` is a stall: everybody waited. It is counted,
    and logged with the request that was served longest in it, which `turns` know.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        turns: Turns | None = None,
        *,
        interval_s: float = _INTERVAL_S,
        stall_s: float = _STALL_S,
        clock: Callable[[], float] = time.monotonic,
        processor_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        # The clock is not the loop's: uvloop's stands still while a turn lasts.
        self._loop = loop
        self._turns = turns or Turns()
        self._interval_s = interval_s
        self._stall_s = stall_s
        self._clock = clock
        self._processor_clock = processor_clock
        self._ran_s = processor_clock()
        self._timer: asyncio.TimerHandle | None = None
        self._last_turn = clock()
        self._reported_at = -_REPORT_S
        self._unreported = _Unreported()
        self.lag = Buckets(STAGE_BOUNDS)
        self.stalls = 0

    def start(self) -> None:
        self._last_turn = self._clock()
        self._ran_s = self._processor_clock()
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stuck_s(self) -> float:
        """Seconds by which the loop's timer is overdue now."""
        return max(0.0, self._clock() - self._last_turn - self._interval_s)

    def _arm(self) -> None:
        self._timer = self._loop.call_later(self._interval_s, self._turned)

    def _turned(self) -> None:
        now = self._clock()
        # It counts from now, not from the due time: after a stall the missed turns are not made up
        # for.
        late_s = max(0.0, now - self._last_turn - self._interval_s)
        ran_s, before_s = self._processor_clock(), self._ran_s
        self._last_turn, self._ran_s = now, ran_s
        self._arm()
        self.lag.add(late_s)
        served = self._turns.last_long()
        if late_s >= self._stall_s:
            self.stalls += 1
            self._unreported.add(late_s, ran_s - before_s, served)
        pause_s = _WAITING_REPORT_S if self._unreported.waiting else _REPORT_S
        if self._unreported.count and now - self._reported_at >= pause_s:
            self._reported_at = now
            self._unreported.report()
            self._unreported = _Unreported()


class _Unreported:
    """Stalls since the last line about them: how many, and the longest. `waiting`: the loop's
    thread did not run for most of each, because of the disk or of others on the machine.

    If no slice served anything either, and the thread hardly ran, the machine was late and not the
    broker: nobody need look at the broker for that, and the line is no warning."""

    def __init__(self) -> None:
        self.count = 0
        self.waiting = False
        self._is_ours = False
        self._longest_s = self._ran_s = 0.0
        self._served: str | None = None

    def add(self, late_s: float, ran_s: float, served: str | None) -> None:
        self.waiting = ran_s < late_s / 2 and (self.waiting or not self.count)
        self._is_ours |= served is not None or ran_s >= late_s * _OURS_FROM
        self.count += 1
        if late_s > self._longest_s:
            self._longest_s, self._ran_s, self._served = late_s, ran_s, served

    def report(self) -> None:
        log.log(
            logging.WARNING if self._is_ours else logging.INFO,
            "event loop stalled ms=%.0f processor_ms=%.0f stalls=%d longest=%s",
            self._longest_s * 1000,
            self._ran_s * 1000,
            self.count,
            self._served or "no request; a task of the broker or the machine",
            extra={"each": True},  # one a second at most
        )


class HealthChecks:
    """The named checks that make up readiness. Loop thread only."""

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self._wall_clock = wall_clock
        self._checks: list[_Check] = []

    def add(self, name: str, probe: Probe, remedy: str) -> None:
        """Add a check; `remedy` tells a person what to do when it fails."""
        assert all(check.name != name for check in self._checks), f"check {name} added twice"
        self._checks.append(_Check(name, probe, remedy, self._wall_clock()))

    def note(
        self, name: str, probe: Probe, remedy: str, *, applies: Callable[[], bool] | None = None
    ) -> None:
        """Add a check that a person should know of, and whose failure leaves the broker ready. It
        is shown only while it `applies`, with None always."""
        self.add(name, probe, remedy)
        self._checks[-1].note = True
        self._checks[-1].applies = applies

    def run(self) -> list[Verdict]:
        """Run all probes that apply now, in the order they were added."""
        verdicts = []
        for check in self._checks:
            if check.applies is not None and not check.applies():
                # When it applies again it is a new finding, with a time of its own.
                check.ok = None
                continue
            found = check.probe()
            reason, remedy = found if isinstance(found, Problem) else (found, check.remedy)
            if check.ok is not (reason is None):
                check.ok = reason is None
                check.since = self._wall_clock()
            verdicts.append(Verdict(check.name, reason, check.since, remedy, check.note))
        return verdicts

    @property
    def ready(self) -> bool:
        return all(verdict.ok for verdict in self.run())


# --- the probes ---------------------------------------------------------------------------------


def registered_probe(registrar: Registrar) -> Probe:
    """Checks that at least one name server has answered the last registration, where some are
    configured."""

    def probe() -> str | None:
        names, errors = registrar.registered, registrar.errors
        if not names or any(names.values()):
            return None
        shown = [f"{name} ({why})" if (why := errors.get(name)) else name for name in names]
        return "no name server has accepted our registration: " + ", ".join(sorted(shown))

    return probe


def disk_probe(
    log_directories: Sequence[str],
    queue_directory: str,
    full_ratio: float,
    disk_space: Callable[[str], DiskSpace] | None = None,
    *,
    is_slave: Callable[[], bool] = lambda: False,
) -> Probe:
    """Checks that the disks are less full than sends are refused at (store/disk/disk_watch.py)."""
    ask = disk_space or Files().disk_space

    def probe() -> str | Problem | None:
        ratios: dict[str, float] = {}
        for path in (*log_directories, queue_directory):
            try:
                ratios[path] = ask(path).used_ratio
            except OSError as error:
                if error.errno in GONE:
                    return Problem(f"{path} is not there any more", _PUT_BACK)
                return f"the file system of {path} cannot be asked: {error}"
        full = full_directories(ratios, log_directories, queue_directory, full_ratio)
        return refusal_text(full, full_ratio, is_slave=is_slave()) if full else None

    return probe


# --- the endpoints ------------------------------------------------------------------------------


def health_routes(
    health: HealthChecks, monitor: LoopMonitor, live_within_s: float = 10.0
) -> dict[str, Route]:
    """Routes for /live and /ready with their aliases."""

    async def live(_request: Request) -> Response:
        stuck = monitor.stuck_s()
        status = 200 if stuck < live_within_s else 503
        return json_response(status, {"live": status == 200, "loop_overdue_s": round(stuck, 3)})

    async def ready(_request: Request) -> Response:
        verdicts = health.run()
        is_ready = all(verdict.ok for verdict in verdicts)
        body = {"ready": is_ready, "checks": [_check_json(verdict) for verdict in verdicts]}
        return json_response(200 if is_ready else 503, body)

    return {"/live": live, "/livez": live, "/ready": ready, "/readyz": ready}


def _check_json(verdict: Verdict) -> dict[str, object]:
    since = datetime.fromtimestamp(verdict.since, UTC).isoformat(timespec="milliseconds")
    ok = verdict.reason is None
    shown: dict[str, object] = {"check": verdict.name, "ok": ok, "since": since}
    if verdict.note:
        shown["note"] = True
    if verdict.reason is not None:
        shown["reason"] = verdict.reason
        shown["what_to_do"] = verdict.remedy
    return shown
