"""Turns of servers that run side by side: their order, when a rate is level, what ends a run."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.bench.alone import CannotMeasure
from tests.bench.loads import LOADS, Load, LoadFailed, Lost
from tests.bench.turns import (
    RATIOS,
    TURNS_MIN,
    TakesTurns,
    Turn,
    check_turns,
    equal_requests,
    is_level,
    rounds,
    warm_up,
)

P2, P11, P12 = (next(one for one in LOADS if one.name == name) for name in ("P2", "P11", "P12"))
RESULT = {
    "acked": 100, "messages_per_s": 50.0, "errors": 0, "pulled": 0, "p50_us": 3, "p99_us": 9,
    "out_per_s": 0.0,
}  # fmt: skip


class FakeServer(TakesTurns):
    """Answers with `results`, the last again and again, and holds what it is told to."""

    def __init__(self, kind: str, calls: list[str], *results: dict[str, Any]) -> None:
        self.kind, self.calls, self.results = kind, calls, list(results or [RESULT])
        self.acked = self.lost = 0
        self.sizes: list[dict[str, float]] = []

    def take_up(self, load: Load) -> None:
        self.topic, self.acked = load.name, 0

    def pids(self) -> list[int]:
        return []

    def held(self) -> int:
        return sum(self.came) - self.lost

    def last_words(self) -> str:
        return "its last words"

    def work(self, load: Load, **size: float) -> list[dict[str, Any]]:
        self.calls.append(self.kind)
        self.sizes.append(size)
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        self.came = [self.acked, result["acked"]]
        return [result]


def rates(*values: float) -> Sequence[dict[str, Any]]:
    return [{**RESULT, "messages_per_s": value} for value in values]


def test_rounds_turn_the_order_but_not_the_columns() -> None:
    calls: list[str] = []
    ours = FakeServer("our", calls, *rates(1))
    java = FakeServer("java", calls, *rates(2))
    found = rounds([ours, java], range(4), P2, secs=1)
    assert calls == ["our", "java", "java", "our", "our", "java", "java", "our"]
    assert [[turn.messages_per_s for turn in turns] for turns in found] == [[1, 2]] * 4
    assert ours.sizes[0] == {"requests": 0, "secs": 1, "warmup": 0}


@pytest.mark.parametrize(
    ("values", "level"),
    [
        ([1, 1, 1, 1, 1], False),
        ([9, 1, 1, 1, 1, 1, 1], True),
        ([1, 1, 1, 1.04, 1.04, 1.04], True),
        ([1, 1, 1, 1.06, 1.06, 1.06], False),
        ([1.06, 1.06, 1.06, 1, 1, 1], False),
        ([1, 1, 1, 5, 1, 1], True),
    ],
)
def test_rate_is_level_when_three_turns_are_like_the_three_before(
    values: list[float], level: bool
) -> None:
    assert is_level(values) == level


def test_warm_up_lasts_until_the_rate_is_level_and_no_longer_than_its_bound() -> None:
    calls: list[str] = []
    ours = FakeServer("our", calls)
    java = FakeServer("java", calls, *rates(*(2.0**number for number in range(40))))
    assert warm_up([ours, java], P2, 1, 10) == ["java"]
    assert (calls.count("our"), calls.count("java")) == (10, 20)


def test_warm_up_of_no_length_is_one_turn() -> None:
    calls: list[str] = []
    assert warm_up([FakeServer("our", calls)], P2, 1, 0) == []
    assert calls == ["our"]


def test_messages_that_are_not_there_end_the_run() -> None:
    server = FakeServer("our", [])
    server.turn(P2, secs=1)
    server.lost = 1
    with pytest.raises(Lost, match="our holds 199 messages of 200 acknowledged"):
        server.turn(P2, secs=1)


def test_messages_that_were_read_twice_or_not_at_all_end_the_run() -> None:
    with pytest.raises(Lost, match="gave out 101 messages of 100"):
        FakeServer("our", [], {**RESULT, "pulled": 101}).turn(P12, secs=1)
    FakeServer("our", [], {**RESULT, "pulled": 100}).turn(P12, secs=1)


def test_turn_without_a_message_ends_the_run() -> None:
    with pytest.raises(Lost, match="0 came in the turn"):
        FakeServer("our", [], {**RESULT, "acked": 0}).turn(P2, secs=1)


def test_pulls_acknowledge_nothing() -> None:
    server = FakeServer("our", [])
    server.held = lambda: 0  # type: ignore[method-assign]
    server.turn(P11, secs=1)
    assert server.acked == 0


def test_generator_that_failed_is_said_with_the_server_s_last_words() -> None:
    server = FakeServer("our", [])

    def fail(*_: object, **__: object) -> list[dict[str, Any]]:
        raise LoadFailed("closed")

    server.work = fail  # type: ignore[method-assign]
    with pytest.raises(LoadFailed, match="P2: our: closed\nits last words"):
        server.turn(P2, secs=1)


def test_equal_requests_keep_the_number_that_was_found_before() -> None:
    calls: list[str] = []
    this, base = FakeServer("this", calls), FakeServer("base", calls)
    assert equal_requests(this, base, P2, 77, 1) == 77
    assert calls == ["this", "base"]
    assert this.sizes[0]["requests"] == 77


def test_ratios_above_one_are_better_but_for_latencies() -> None:
    ours = Turn(200, 10, 1, p50_us=1, p99_us=2, out_per_s=300)
    java = Turn(100, 40, 1, p50_us=2, p99_us=8, out_per_s=100)
    found = {figure: ratio(ours, java) for figure, ratio in RATIOS.items()}
    assert found == {"rate": 2, "out": 3, "processor": 4, "p50": 0.5, "p99": 0.25}


def test_five_turns_are_enough_and_fewer_are_refused_with_what_to_do() -> None:
    check_turns(TURNS_MIN, 0.1)
    assert TURNS_MIN == 5
    with pytest.raises(CannotMeasure, match=r"--turns 4 is too few: at least 5.*--loads"):
        check_turns(4, 1)
    with pytest.raises(CannotMeasure, match="--secs"):
        check_turns(9, 0)
