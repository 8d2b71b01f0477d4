"""When requests of an open loop are due."""

from aerobee.cli.bench.generator.load import Schedule


def times(schedule: Schedule, count: int) -> list[int]:
    found = []
    for _ in range(count):
        found.append(schedule.due_ns)
        schedule.advance()
    return found


def test_connections_take_turns_at_one_rate() -> None:
    start_ns = 5_000_000_000
    dues = [times(Schedule(1000, number, 3, start_ns), 100) for number in range(3)]
    together = sorted(due for own in dues for due in own)
    assert together == [start_ns + n * 1_000_000 for n in range(300)]


def test_rounding_does_not_add_up() -> None:
    found = times(Schedule(3, 0, 1, 0), 3_000_001)
    assert found[-1] == 1_000_000 * 1_000_000_000


def test_a_late_request_does_not_move_those_behind_it() -> None:
    schedule = Schedule(10, 0, 1, 0)
    # A later caller gets the same times: the schedule knows no clock.
    assert times(schedule, 3) == [0, 100_000_000, 200_000_000]
    assert schedule.due_ns == 300_000_000
