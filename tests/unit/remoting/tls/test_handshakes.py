"""Handshakes that wait: which begins next, and which make room."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from aerobee.remoting.tls.handshakes import Handshakes

MOST, SURE_S = 4, 0.5
One = tuple[str, int]


def begun(handshakes: Handshakes[One], now: float) -> tuple[One, One | None] | None:
    """Begin the next one, and end who makes room for it."""
    found = handshakes.next(now)
    if found is not None:
        one, victim = found
        if victim is not None:
            handshakes.forget(victim, victim[0])
        handshakes.begin(one, one[0], now)
    return found


def crowd(handshakes: Handshakes[One], host: str, count: int) -> list[One]:
    found = [(host, number) for number in range(count)]
    for one in found:
        handshakes.wait(one, host)
    return found


def test_of_one_address_the_newest_begins_and_the_longest_makes_room_in_time() -> None:
    handshakes: Handshakes[One] = Handshakes(MOST, SURE_S)
    ones = crowd(handshakes, "a", 9)
    for one in reversed(ones[5:]):
        assert begun(handshakes, 10.0) == (one, None)
    assert begun(handshakes, 10.4) is None
    assert handshakes.wait_s(10.4) == pytest.approx(0.1)
    assert begun(handshakes, 10.5) == (ones[4], ones[8])
    assert handshakes.forget(ones[7], "a")
    assert begun(handshakes, 10.5) == (ones[3], None)
    assert handshakes.waits
    for one in ones[:3]:
        assert not handshakes.forget(one, "a")
    assert not handshakes.waits
    assert begun(handshakes, 99.0) is None


def test_another_address_gets_a_place_at_once() -> None:
    handshakes: Handshakes[One] = Handshakes(MOST, SURE_S)
    ones = crowd(handshakes, "many", 20)
    while begun(handshakes, 10.0):
        pass
    handshakes.wait(("few", 0), "few")
    assert begun(handshakes, 10.0) == (("few", 0), ones[19])
    # It has as many then as is its share, and no more.
    handshakes.wait(("few", 1), "few")
    assert begun(handshakes, 10.0) == (("few", 1), ones[18])
    handshakes.wait(("few", 2), "few")
    assert begun(handshakes, 10.0) is None


def test_addresses_take_turns() -> None:
    handshakes: Handshakes[One] = Handshakes(MOST, SURE_S)
    crowd(handshakes, "a", 5)
    crowd(handshakes, "b", 1)
    crowd(handshakes, "c", 5)
    found = [begun(handshakes, 10.0) for _ in range(4)]
    assert [one[0][0] for one in found if one] == ["a", "b", "c", "a"]


def test_whatever_comes_no_more_are_under_way_and_each_is_there_once(seed: int) -> None:
    rng = random.Random(seed)
    handshakes: Handshakes[One] = Handshakes(MOST, SURE_S)
    waiting: set[One] = set()
    under_way: dict[One, float] = {}
    now = 0.0
    for number in range(5000):
        now += rng.choice((0, 0, 0.01, 0.3))
        one = (rng.choice("aaaabc"), number)
        if rng.random() < 0.6:
            handshakes.wait(one, one[0])
            waiting.add(one)
        elif under_way or waiting:
            gone = rng.choice([*under_way, *waiting])
            assert handshakes.forget(gone, gone[0]) is (under_way.pop(gone, None) is not None)
            waiting.discard(gone)
        found = handshakes.next(now)
        if found is not None:
            began, victim = found
            waiting.remove(began)
            if victim is not None:
                shares = Counter(host for host, _ in under_way)
                since = under_way.pop(victim)
                assert now - since >= SURE_S or shares[victim[0]] > shares[began[0]] + 1
                handshakes.forget(victim, victim[0])
            handshakes.begin(began, began[0], now)
            under_way[began] = now
        else:
            assert not waiting or len(under_way) == MOST
        assert len(under_way) <= MOST
        assert handshakes.waits is bool(waiting)
