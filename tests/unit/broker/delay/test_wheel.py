"""The order in which the timer's wheel gives out what it was given."""

from __future__ import annotations

import random

import pytest

from aerobee.broker.delay.wheel import Wheel

NOW_MS = 1_700_000_000_000


def taken(wheel: Wheel, now_ms: int) -> list[tuple[int, int]]:
    """All that is due."""
    found: list[tuple[int, int]] = []
    while True:
        while wheel.prepare(now_ms):
            pass
        first = wheel.first()
        if first is None or first[0] > now_ms:
            return found
        found.append(first)
        wheel.take()


def test_what_is_due_comes_by_time_and_then_by_place_in_the_log() -> None:
    chance = random.Random(13)
    given = [(NOW_MS + chance.randrange(5000), offset) for offset in range(0, 300_000, 100)]
    wheel = Wheel()
    for one in given:
        wheel.add(*one)
    assert len(wheel) == len(given)
    assert taken(wheel, NOW_MS + 2500) == sorted(one for one in given if one[0] <= NOW_MS + 2500)
    assert taken(wheel, NOW_MS + 9999) == sorted(one for one in given if one[0] > NOW_MS + 2500)
    assert (len(wheel), wheel.next_ms) == (0, None)


def test_a_large_second_in_no_order_is_put_in_order_in_steps() -> None:
    chance = random.Random(14)
    given = [(NOW_MS + chance.randrange(1000), offset) for offset in range(20_000)]
    wheel = Wheel()
    for one in given:
        wheel.add(*one)
    steps = 0
    while wheel.prepare(NOW_MS + 2000):
        steps += 1
        assert wheel.first() is None
    assert steps >= 4
    assert taken(wheel, NOW_MS + 2000) == sorted(given)


@pytest.mark.parametrize("large", [False, True])
def test_what_comes_while_its_second_is_being_taken_out_has_its_place(large: bool) -> None:
    wheel = Wheel()
    for offset in range(10_000 if large else 10):
        wheel.add(NOW_MS + 900 - offset % 2, offset)
    assert wheel.prepare(NOW_MS) == large
    wheel.add(NOW_MS + 500, 20_000)
    found = taken(wheel, NOW_MS + 899)
    assert found[0] == (NOW_MS + 500, 20_000)
    wheel.add(NOW_MS + 900, 20_001)
    wheel.add(NOW_MS + 950, 20_002)
    rest = taken(wheel, NOW_MS + 1000)
    assert rest[-2:] == [(NOW_MS + 900, 20_001), (NOW_MS + 950, 20_002)]
    assert found + rest == sorted(found + rest)
    assert not len(wheel)


def test_a_time_before_the_second_that_is_being_taken_out_keeps_its_place() -> None:
    wheel = Wheel()
    wheel.add(NOW_MS, 1)
    wheel.prepare(NOW_MS)
    wheel.add(NOW_MS - 1500, 2)
    assert taken(wheel, NOW_MS) == [(NOW_MS - 1500, 2), (NOW_MS, 1)]


def test_large_log_offsets_are_kept() -> None:
    wheel = Wheel()
    offset = (1 << 54) - 1
    wheel.add(NOW_MS + 999, offset)
    assert taken(wheel, NOW_MS + 999) == [(NOW_MS + 999, offset)]
