"""Lag in seconds, from the ends that a log had."""

from __future__ import annotations

import pytest

from aerobee.store.log.replication.ages import EndTimes


def test_a_slave_is_as_old_as_the_first_byte_that_it_lacks() -> None:
    ends = EndTimes()
    for now, end in ((10.0, 100), (20.0, 100), (30.0, 200), (40.0, 300)):
        ends.note(end, now)
    ages = {reported: ends.age(reported, 50.0) for reported in (0, 99, 100, 199, 200, 299)}
    assert ages == {0: 40.0, 99: 40.0, 100: 20.0, 199: 20.0, 200: 10.0, 299: 10.0}
    # It has all; or what it lacks came after the last look.
    assert ends.age(300, 50.0) == 0.0
    assert ends.age(350, 50.0) == 0.0


def test_a_log_that_nobody_has_looked_at_has_no_age() -> None:
    assert EndTimes().age(0, 50.0) == 0.0


@pytest.mark.parametrize("looks", [2049, 10_000, 300_000])
def test_old_ends_thin_out_and_ages_are_rounded_down(looks: int) -> None:
    ends = EndTimes()
    most = 0
    for number in range(1, looks + 1):
        ends.note(number * 10, number / 2)
        most = max(most, len(ends._ends))
    now = looks / 2
    assert most == 2048
    assert len(ends._ends) == len(ends._times)
    for reported in range(0, looks * 10, looks // 10):
        true = now - (reported // 10 + 1) / 2
        assert true * (1 - 1 / 31) - 1.0 <= ends.age(reported, now) <= true
    # New ones have each of their looks.
    assert ends.age((looks - 20) * 10, now) == 9.5


def test_a_clock_that_leaps_leaves_no_more() -> None:
    ends = EndTimes()
    for number in range(1, 20_000):
        ends.note(number, number * number)
        assert len(ends._ends) <= 2048
