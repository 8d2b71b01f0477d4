"""Claims about the time that deletion goes by."""

from aerobee.store.disk.offsets_file import ClockNote
from aerobee.store.disk.steady_time import SteadyTime
from tests.sim.storage.stepped_store import SteppedClock
from tests.unit.store.support import FIRST_MS

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
HOLD_MS = 3 * DAY_MS


def passed(clock: SteppedClock, duration_ms: int) -> None:
    clock.passed_s += duration_ms / 1000
    clock.time_ms += duration_ms


def steady_of(clock: SteppedClock) -> SteadyTime:
    return SteadyTime(clock, HOLD_MS)


def started_again(
    clock: SteppedClock, note: ClockNote | None, last_store_ms: int = 0
) -> SteadyTime:
    clock.passed_s = 12.0
    return SteadyTime(clock, HOLD_MS, note, last_store_ms)


def test_time_that_passes_is_believed() -> None:
    clock = SteppedClock()
    steady = steady_of(clock)
    for duration_ms in (1000, HOUR_MS, 10 * DAY_MS):
        passed(clock, duration_ms)
        assert steady.now_ms() == clock.time_ms


def test_a_step_forward_counts_when_its_time_has_passed() -> None:
    clock = SteppedClock()
    steady = steady_of(clock)
    clock.time_ms += 100 * DAY_MS
    assert steady.now_ms() == FIRST_MS
    passed(clock, HOLD_MS - 1)
    assert steady.now_ms() == FIRST_MS + HOLD_MS - 1
    assert steady.behind_ms == 100 * DAY_MS
    passed(clock, 1)
    assert steady.now_ms() == clock.time_ms
    assert steady.behind_ms == 0


def test_a_step_waits_for_the_retention_time_as_it_is_set_now() -> None:
    clock = SteppedClock()
    steady = steady_of(clock)
    clock.time_ms += 100 * DAY_MS
    assert steady.now_ms() == FIRST_MS
    steady.hold_for(HOLD_MS + DAY_MS)
    passed(clock, HOLD_MS)
    assert steady.behind_ms == 100 * DAY_MS
    steady.hold_for(HOLD_MS)
    assert steady.now_ms() == clock.time_ms


def test_a_step_that_is_taken_back_leaves_nothing_behind() -> None:
    clock = SteppedClock()
    steady = steady_of(clock)
    for _ in range(5):
        clock.time_ms += 100 * DAY_MS
        assert steady.now_ms() == clock.time_ms - 100 * DAY_MS
        passed(clock, 300_000)
        clock.time_ms -= 100 * DAY_MS
        assert steady.now_ms() == clock.time_ms


def test_each_step_counts_after_its_own_time() -> None:
    clock = SteppedClock()
    steady = steady_of(clock)
    for _ in range(10):
        clock.time_ms += HOUR_MS
        steady.now_ms()
        passed(clock, DAY_MS)
    assert steady.behind_ms == 2 * HOUR_MS


def test_a_clock_set_back_is_followed_at_once() -> None:
    clock = SteppedClock()
    steady = steady_of(clock)
    clock.time_ms -= DAY_MS
    assert steady.now_ms() == FIRST_MS - DAY_MS
    clock.time_ms += DAY_MS
    assert steady.now_ms() == FIRST_MS - DAY_MS
    passed(clock, HOLD_MS)
    assert steady.now_ms() == clock.time_ms


def test_drift_and_corrections_are_no_steps() -> None:
    clock = SteppedClock()
    steady = steady_of(clock)
    for correction_ms in (5000, -5000) * 500:
        passed(clock, 10_000)
        clock.time_ms += correction_ms
        assert steady.now_ms() == clock.time_ms


def test_many_steps_are_counted_together_and_late() -> None:
    clock = SteppedClock()
    steady = steady_of(clock)
    for _ in range(300):
        clock.time_ms += HOUR_MS
        steady.now_ms()
        passed(clock, 60_000)
    assert len(steady.note().held) == 64
    assert steady.behind_ms == 300 * HOUR_MS
    passed(clock, HOLD_MS)
    assert steady.behind_ms == 0


def test_a_step_over_a_restart_counts_when_its_time_has_passed() -> None:
    clock = SteppedClock()
    note = steady_of(clock).note()
    clock.time_ms += 30 * DAY_MS
    steady = started_again(clock, note)
    assert steady.now_ms() == FIRST_MS
    passed(clock, HOLD_MS)
    assert steady.now_ms() == clock.time_ms


def test_what_is_left_of_the_time_is_noted() -> None:
    clock = SteppedClock()
    steady = steady_of(clock)
    clock.time_ms += 30 * DAY_MS
    for _ in range(3):  # three days in all, a restart after each
        steady.now_ms()
        passed(clock, DAY_MS)
        assert steady.now_ms() <= clock.time_ms
        steady = started_again(clock, steady.note())
    assert steady.behind_ms == 0


def test_a_quick_restart_is_no_step() -> None:
    clock = SteppedClock()
    note = steady_of(clock).note()
    clock.time_ms += 600_000
    assert started_again(clock, note).now_ms() == clock.time_ms


def test_without_a_note_the_last_message_tells() -> None:
    """A backup restored after a month is not old at once; an empty store has nothing to tell."""
    clock = SteppedClock(FIRST_MS + 30 * DAY_MS)
    assert started_again(clock, None, FIRST_MS).now_ms() == FIRST_MS
    assert started_again(clock, None, 0).now_ms() == clock.time_ms


def test_a_clock_set_right_while_the_store_was_down_takes_the_step_back() -> None:
    clock = SteppedClock()
    steady = steady_of(clock)
    clock.time_ms += 30 * DAY_MS
    note = steady.note()
    clock.time_ms -= 30 * DAY_MS
    assert started_again(clock, note).note().held == ()


def test_an_idle_store_has_the_same_note_for_a_minute() -> None:
    clock = SteppedClock()
    steady = steady_of(clock)
    first = steady.note()
    passed(clock, 59_000)
    assert steady.note() is first
    passed(clock, 1000)
    assert steady.note().wall_ms == clock.time_ms
