"""The time that deletion goes by: the wall clock, less what it was set forward by lately.

A message is deleted because it is three days old, and it is three days old because the clock says
so. A clock that jumps forward (a virtual machine resumed, a bad time server, a typing error, the
first start without a battery) would delete everything that is sealed. So the wall clock is compared
with the monotonic one. The rule:

- A step forward counts only when the retention time has passed since, by the monotonic clock. Then
  all that was stored before the step has had its time; and what was stored after it carries the new
  time, and is as old as it looks. So a step forward deletes nothing early, and nothing late.
- A step back counts at once: it takes back what was stepped forward and is not counted yet, newest
  first, and what is left of it makes everything look younger. What was stored before it may now
  carry a time that is still to come; `background/retention/deletion_plan.py` dates that by what
  follows it.
- A start compares the clock with the last time that was noted, in the offsets file, or else with
  the store time of the last message. A gap of more than ten minutes is a step: nobody can tell a
  clock that was set from a broker that was down. So neither counts. A backup that was restored is
  not deleted by its first night; a broker down for a week still has what it had, for three days.
- Steps that are not counted yet are noted too, with how much of their time has passed.

The time that is believed is never later than the wall clock. A suspended machine, whose monotonic
clock stands still, was down in this sense. Small steps and drift are followed as they come.

Threads: any.
"""

import logging
import threading
from dataclasses import dataclass

from aerobee.store.disk.files import Clock
from aerobee.store.disk.offsets_file import ClockNote

log = logging.getLogger("aerobee.store.background.retention")

# A correction of the clock up to this between two looks is no step.
_STEP_MS = 60_000
_DOWN_MS = 600_000
# A note is good for so long, so that an idle store does not write its offsets file all the time.
_NOTE_MS = 60_000
# Further steps are counted together with the oldest one.
_STEPS_MOST = 64
_HOUR_MS = 3_600_000


@dataclass(slots=True)
class _Step:
    """The wall clock went forward by `ms`, which counts from `until_ms` (monotonic) on."""

    ms: int
    until_ms: int


class SteadyTime:
    """Wall time in milliseconds; look at it now and then, or a step is noticed late."""

    def __init__(
        self, clock: Clock, hold_ms: int, note: ClockNote | None = None, last_store_ms: int = 0
    ) -> None:
        """Steps count after `hold_ms`. `note` is the last run's; without it, or without a
        time in it, `last_store_ms` counts, the time of the last message, 0 without messages."""
        self._clock = clock
        self._hold_ms = hold_ms
        self._lock = threading.Lock()
        now_ms = self._monotonic_ms()
        note = note or ClockNote()
        self._held = [_Step(ms, now_ms + min(left, hold_ms)) for ms, left in note.held if ms > 0]
        # Wall time less monotonic time, when last looked at.
        self._course_ms = (note.wall_ms or last_store_ms or clock.now_ms()) - now_ms
        self._note = note
        self._look(_DOWN_MS)

    def hold_for(self, hold_ms: int) -> None:
        """From now on steps count after `hold_ms`, those of before that are held by as much later
        or earlier."""
        with self._lock:
            for step in self._held:
                step.until_ms += hold_ms - self._hold_ms
            self._hold_ms = hold_ms

    def now_ms(self) -> int:
        """The time that may be acted on; never later than the wall clock."""
        with self._lock:
            return self._look(_STEP_MS) - self._held_ms()

    @property
    def behind_ms(self) -> int:
        """How much of the wall clock is not counted yet."""
        with self._lock:
            self._look(_STEP_MS)
            return self._held_ms()

    def note(self) -> ClockNote:
        """For the next start; the same as before while that is good enough."""
        with self._lock:
            wall_ms = self._look(_STEP_MS)
            now_ms = self._monotonic_ms()
            held = tuple([(step.ms, max(0, step.until_ms - now_ms)) for step in self._held])
            before = self._note
            same = [ms for ms, _ in held] == [ms for ms, _ in before.held]
            if not same or not 0 <= wall_ms - before.wall_ms < _NOTE_MS:
                self._note = ClockNote(wall_ms, held)
            return self._note

    def _look(self, slack_ms: int) -> int:
        """Notice a step of more than `slack_ms`, forget those whose time is over; the wall time."""
        wall_ms, now_ms = self._clock.now_ms(), self._monotonic_ms()
        self._held = [step for step in self._held if step.until_ms > now_ms]
        course_ms = wall_ms - now_ms
        step_ms, self._course_ms = course_ms - self._course_ms, course_ms
        if step_ms > slack_ms:
            # At a start it is nearly always that the store was down.
            level = logging.INFO if slack_ms == _DOWN_MS else logging.WARNING
            self._hold(step_ms, now_ms, level)
        elif step_ms < -slack_ms:
            log.warning("clock went back seconds=%d", -step_ms // 1000)
            self._take_back(-step_ms)
        return wall_ms

    def _hold(self, step_ms: int, now_ms: int, level: int) -> None:
        log.log(
            level,
            "clock went forward, or the store was down: deletion leaves this time out for %.1f "
            "hours seconds=%d",
            self._hold_ms / _HOUR_MS,
            step_ms // 1000,
        )
        self._held.append(_Step(step_ms, now_ms + self._hold_ms))
        if len(self._held) > _STEPS_MOST:
            oldest = self._held.pop(0)
            self._held[0].ms += oldest.ms

    def _take_back(self, step_ms: int) -> None:
        while step_ms and self._held:
            newest = self._held[-1]
            part_ms = min(step_ms, newest.ms)
            newest.ms -= part_ms
            step_ms -= part_ms
            if not newest.ms:
                self._held.pop()

    def _held_ms(self) -> int:
        return sum([step.ms for step in self._held])

    def _monotonic_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)
