"""Dear tests are drawn: five runs in a row leave none out, and each brings what it needs."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import campaign, drawing, parts
from tests.drawing import ALL, DRAWS, PART, SIXTH, SIXTHS, SPREAD, WHOLE, Drawn

#: Ids of each kind of row and of none, which need not be those of tests.
MADE_UP = [
    f"{begin}::test_{number}[{client}]"
    for begin in (
        "tests/interop/clients/test_clients.py", "tests/spark/writing/test_sink.py",
        "tests/spark/tables/test_lake.py", "tests/crash/kills/test_kill_points.py",
        "tests/sim/storage/test_controls.py", "tests/unit/test_it.py",
    )
    for number in range(50)
    for client in ("go", "4.4.0", "java-5.5.0", "delta", "spark-4.3-our")
]  # fmt: skip


@pytest.fixture
def ids(request: pytest.FixtureRequest) -> list[str]:
    """All tests that were collected, before any was left out, and some that are not there."""
    return [*request.config.stash[drawing.COLLECTED], *MADE_UP]


@pytest.mark.parametrize("first", [0, 3, 1_000_003])
def test_any_five_seeds_in_a_row_take_every_test(ids: list[str], first: int) -> None:
    runs = [Drawn(PART, seed) for seed in range(first, first + DRAWS)]
    assert [one for one in ids if not any(run.takes(one) for run in runs)] == []
    assert {name for run in runs for name in run.names()} == {row.name for row in WHOLE}


def test_no_draw_takes_what_is_dear_whole(ids: list[str]) -> None:
    for draw in range(DRAWS):
        assert 0 < len(Drawn(PART, draw).names()) < len(WHOLE) * 2 / 3
    spread = [one for one in MADE_UP if len(drawing.draws_of(one)) == 2]
    for draw in range(DRAWS):
        taken = sum(Drawn(PART, draw).takes(one) for one in spread)
        assert len(spread) * 0.2 < taken < len(spread) * 0.6


def test_a_run_brings_what_its_tests_wait_for(ids: list[str]) -> None:
    every = {part for chain in parts.CHAINS for part in chain}
    assert {row.part for row in WHOLE if row.part} <= every
    for draw in range(DRAWS):
        run = Drawn(PART, draw)
        left_out = run.parts_left_out()
        assert [one for one in ids if run.takes(one) and parts.parts_of(one) & left_out] == []


def test_each_row_is_of_a_test(ids: list[str]) -> None:
    """Only a run of all suites sees that a row has lost its tests."""
    there = ids[: -len(MADE_UP)]
    is_whole = {"spark", "interop", "crash", "unit"} <= {one.split("/")[1] for one in there}
    rows = [row.tests for row in (*WHOLE, *SPREAD)] if is_whole else []
    assert [row for row in rows if not any(drawing._fits(one, row) for one in there)] == []


def test_all_and_a_campaign_leave_nothing_out(
    ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(Drawn(ALL, 7).takes(one) for one in ids)
    assert Drawn(ALL, 7).parts_left_out() == set()
    monkeypatch.setattr(drawing, "drawn", drawing.drawn)
    monkeypatch.setenv(campaign.VARIABLE, "full")
    drawing.set_drawn(PART, 7)
    assert drawing.drawn.kind == ALL
    assert all(drawing.takes(row.name) for row in WHOLE)


def test_six_seeds_in_a_row_take_each_test_of_the_campaign_once() -> None:
    for one in (
        f"tests/sim/storage/test_storage_model.py::test_it[{number}]" for number in range(200)
    ):
        takes = [Drawn(SIXTH, seed).takes(one) for seed in range(2, 2 + SIXTHS)]
        assert sum(takes) == 1
    assert not any(
        Drawn(SIXTH, seed).takes("tests/spark/writing/test_sink.py::a") for seed in range(6)
    )


def test_what_no_row_names_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "drawn", Drawn(PART, 1))
    assert drawing.takes("java-4.9.8")
    assert drawing.takes("go")
    assert not drawing.takes("rust")


def test_runs_on_a_machine_take_turns_and_the_first_one_the_number_of_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, record = tmp_path / "clone", tmp_path / "cache" / "last-turn"
    root.mkdir()
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    for _ in range(3):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "a"], check=True)
    assert drawing._next_turn(record, root) == 3
    with ThreadPoolExecutor() as pool:
        turns = list(pool.map(lambda _: drawing._next_turn(record, root), range(30)))
    assert sorted(turns) == list(range(30))
    # A record that cannot be read or written leaves the number of commits.
    record.write_text("nonsense")
    assert drawing._next_turn(record, root) == 3
    assert drawing._next_turn(root / ".git" / "HEAD" / "last-turn", root) == 3
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    (tmp_path / "another" / "aerobee").mkdir(parents=True)
    (tmp_path / "another" / "aerobee" / "last-turn").write_text("29\n")
    assert [drawing.next_seed() % 30 for _ in range(3)] == [0, 1, 2]


def test_the_seed_of_pytests_options_or_of_the_environment_counts() -> None:
    def said(*options: str, **environ: str) -> str:
        command = [sys.executable, "-m", "tests.drawing", *options]
        env = {"PATH": "", "HOME": "/nowhere", **environ}
        done = subprocess.run(command, env=env, cwd=drawing.ROOT, capture_output=True, check=True)
        return done.stdout.decode().strip()

    assert said("-k", "a or b", "--seed", "12", AEROBEE_SEED="13") == "12"
    assert said("-x", AEROBEE_SEED="13") == "13"
    assert said("-x").isdecimal()


@pytest.mark.parametrize(("within", "outcome"), [(0, "2 skipped"), (1000, "2 passed")])
def test_a_run_that_has_to_end_in_time_begins_nothing_later(
    tmp_path: Path, within: int, outcome: str
) -> None:
    (tmp_path / "test_it.py").write_text("def test_a(): pass\ndef test_b(): pass\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
    ]
    command += ["--rootdir", str(tmp_path), f"--begin-within={within}", str(tmp_path)]
    done = subprocess.run(command, cwd=drawing.ROOT, capture_output=True, text=True, check=True)
    assert outcome in done.stdout
