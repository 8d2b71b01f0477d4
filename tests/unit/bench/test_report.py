"""The table of goals: the text of its rows, and when a goal counts as reached."""

from pathlib import Path

import pytest

from tests.bench import report
from tests.bench.__main__ import EVENTS, wanted_of
from tests.bench.alone import CannotMeasure
from tests.bench.cases import backlog, life, restart
from tests.bench.cases.life import Life
from tests.bench.loads import LOADS, Goal
from tests.bench.turns import RATIOS, Turn

P2, P12 = (next(load for load in LOADS if load.name == name) for name in ("P2", "P12"))
OURS = Turn(60_000, 10.0, 1, p50_us=900, p99_us=2_000, out_per_s=61_000)
JAVA = Turn(20_000, 45.0, 1, p50_us=2_000, p99_us=5_000, out_per_s=20_000)


def cells(row: report.Row) -> list[str]:
    return [cell.strip() for cell in str(row).strip("|").split("|")]


def test_row_of_a_load_has_rates_ratios_goals_and_latencies() -> None:
    [row] = report.load_rows(P2, [(OURS, JAVA)] * 9)
    assert cells(row) == [
        "P2",
        "send, 64 connections, 128 B",
        "60.0 k (60.0-60.0)",
        "20.0 k (20.0-20.0)",
        "**3.00** (3.00-3.00)",
        "rate at least 2.5 (3.00), processor at least 4 (4.50), p99 at most 0.5 (0.40)",
        "yes, yes, yes",
        "10.0 / 45.0",
        "**4.50** (4.50-4.50)",
        "900 / 2,000",
        "2,000 / 5,000",
    ]
    assert len(cells(row)) == report.HEAD.splitlines()[1].count("---")


def test_ratio_is_the_median_of_the_rounds_and_not_the_ratio_of_medians() -> None:
    """While the machine changes its pace, only what ran one after the other can be compared."""
    slow = Turn(30_000, 20.0, 1, 1_800, 4_000), Turn(10_000, 90.0, 1, 4_000, 10_000)
    [row] = report.load_rows(P2, [(OURS, JAVA), slow, slow])
    assert row.ratio == "**3.00** (3.00-3.00)"


def test_what_is_read_meanwhile_has_a_row_and_a_goal_of_its_own() -> None:
    sends, reads = report.load_rows(P12, [(OURS, JAVA)] * 9)
    assert [one.goal for one in sends.verdicts] == ["rate at least 1.5 (3.00)"]
    assert [one.goal for one in reads.verdicts] == ["out at least 1.5 (3.05)"]
    assert reads.ours == "61.0 k (61.0-61.0)"


def test_one_broker_alone_has_figures_and_no_goals() -> None:
    [row] = report.load_rows(P2, [(OURS,)] * 9)
    assert (row.theirs, row.ratio, row.verdicts, row.cpu_us) == ("", "", (), "10.0")


def test_goal_that_is_missed_is_said() -> None:
    [verdict] = report.judge([(OURS, JAVA)] * 9, [Goal("p99", 0.2)])
    assert verdict == report.Verdict("p99 at most 0.2 (0.40)", False)
    assert "**no**" in str(report.Row("P2", "", "", verdicts=[verdict]))


def test_goals_are_of_figures_that_there_are() -> None:
    assert {goal.figure for load in LOADS for goal in load.goals} <= RATIOS.keys()
    assert all(load.goals for load in LOADS)


@pytest.mark.parametrize(
    ("loop_ms", "word"), [(13.4, "quick"), (20.0, "neither quick nor slow"), (33.0, "slow")]
)
def test_state_of_the_machine_is_told_by_the_fixed_loop(loop_ms: float, word: str) -> None:
    assert report.pace({"python_loop_cpu_ms": loop_ms}) == word


def test_starts_and_memory_at_rest_are_judged() -> None:
    lives = [(Life(0.3, 61.0), Life(1.0, 450.0))] * 9
    start, memory = life.rows(["our", "java"], lives, ["P13", "P14"])
    assert start.verdicts == [report.Verdict("ratio at most 0.4", True)]
    assert memory.verdicts == [report.Verdict("at most 60 MB", False)]
    [start] = life.rows(["our"], [(Life(0.3, 40.0),)] * 9, ["P13"])
    assert (start.theirs, start.verdicts) == ("", [])


def test_restarts_are_judged_by_seconds_by_times_and_by_rates() -> None:
    found = {
        "takeover": {"our": [0.9], "java": [0.8]},
        "restart": {"our": [0.9], "java": [4.0]},
        "rebuild": {"our": [10.0], "java": [8.0]},
        "bytes": {"our": [8e9], "java": [6e9]},
    }
    own, taken, rebuilt = restart.rows(found)
    assert [one.reached for row in (own, taken, rebuilt) for one in row.verdicts] == [
        True,
        False,
        True,
    ]
    assert (rebuilt.ours, rebuilt.theirs) == ("800 MB/s", "750 MB/s")
    del found["takeover"]
    alone = {what: {"our": kinds["our"]} for what, kinds in found.items()}
    assert [row.name for row in restart.rows(alone)] == ["P15", "P15b"]


def test_backlog_is_judged_by_both_costs_and_by_the_larger_memory() -> None:
    contents = backlog.contents_of(10_000_000)
    full, empty = Turn(95, 10.5, 1), Turn(100, 10.0, 1)
    found = backlog.Found(contents, {"P2": [(full, empty)] * 9}, (400.0, 1_600.0))
    cost, memory = backlog.rows(found)
    assert [one.reached for one in cost.verdicts] == [True, True]
    assert [one.reached for one in memory.verdicts] == [False]
    assert memory.ours == "400 B at rest, 1,600 B after the loads"


def test_store_of_another_size_has_a_folder_of_its_own() -> None:
    assert backlog.contents_of(10_000_000).name == "data"
    assert backlog.contents_of(5_000).name == "data-5000"


def test_parts_are_chosen_by_number() -> None:
    assert wanted_of("p2, P15b") == ["P2", "P15B"]
    assert wanted_of("") == [*(load.name for load in LOADS), *EVENTS]
    with pytest.raises(CannotMeasure, match="no P77; there are P1, P2"):
        wanted_of("P2,P77")


def test_page_has_the_places_of_the_tables() -> None:
    page = Path(report.PAGE).read_text()
    for name in ("bench", "neighbours", "shards", "restart"):
        assert page.count(f"<!-- {name}: table begins -->") == 1
        assert page.count(f"<!-- {name}: table ends -->") == 1
