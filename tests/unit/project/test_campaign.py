"""Claims about the table of sizes: a quick run is a part that leaves no class out."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from tests import campaign
from tests.campaign import (
    Suite,
    cover,
    draw,
    enough,
    is_full,
    note,
    note_control,
    report,
    strided,
    with_rows,
)

CASES = [
    (kind, number) for kind, count in (("a", 50), ("b", 3), ("c", 1)) for number in range(count)
]


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"some": Suite(12, 0, "cases", "why"), "steps": Suite(5, 1, "calls", "why")}
    monkeypatch.setattr(campaign, "SUITES", rows)
    monkeypatch.setenv(campaign.VARIABLE, "quick")
    monkeypatch.setattr(campaign, "_seed", 7)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(campaign.VARIABLE, "full")


def test_drawn_part_has_each_class_and_the_asked_size(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = set()
    for number in range(20):
        monkeypatch.setattr(campaign, "_seed", number)
        part = draw("some", CASES, by=lambda case: case[0])
        assert part == sorted(set(part))
        assert Counter(kind for kind, _ in part) == {"a": 8, "b": 3, "c": 1}
        assert part == draw("some", CASES, by=lambda case: case[0])
        parts.add(tuple(part))
    assert len(parts) > 10


def test_more_classes_than_the_size_are_all_there() -> None:
    cases = list(range(40))
    assert draw("some", cases, by=lambda case: case) == cases


@pytest.mark.usefixtures("full")
def test_campaign_has_all() -> None:
    assert is_full()
    assert draw("some", CASES, by=lambda case: case[0]) == CASES
    assert list(strided("steps", "x", 1, 20)) == list(range(1, 20))
    assert cover("some", [{"x": number} for number in range(30)]) == list(range(30))
    assert not enough(3)


def test_each_value_of_each_parameter_is_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = [dict(zip("xyz", one, strict=True)) for one in itertools.product(range(5), repeat=3)]
    for number in range(20):
        monkeypatch.setattr(campaign, "_seed", number)
        chosen = cover("some", sets)
        assert len(chosen) == 12
        for name in "xyz":
            assert {sets[place][name] for place in chosen} == set(range(5))


def test_strides_of_all_seeds_leave_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    met = set()
    for number in range(40):
        monkeypatch.setattr(campaign, "_seed", number)
        stride = strided("steps", "x", 1, 100)
        assert stride.step == 5
        met.update(stride)
    assert met == set(range(1, 100))


def test_control_goes_on_until_it_is_caught() -> None:
    assert not enough(0)
    assert enough(1)


def test_unknown_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(campaign.VARIABLE, "half")
    with pytest.raises(AssertionError, match="half"):
        is_full()


def test_report_adds_up_what_was_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = tmp_path / "figures"
    monkeypatch.setenv(campaign.FIGURES_VARIABLE, str(figures))
    note("some", 1_000, wrong_ends=0, stopped=2)
    note("some", 234, wrong_ends=1, stopped=3)
    note_control("some", "no sync", 2, 10)
    note_control("some", "no sync", 1, 10)
    note_control("steps", "no sync", 1, 10)
    lines = figures.read_text().splitlines()
    assert json.loads(lines[0])["seed"] == 7
    row = "| some | 1,234 cases | 1 wrong ends, 5 stopped | no sync 3 of 20 | 2020-01-02, seed 7 |"
    assert report(lines, "2020-01-02") == {"some": row}


def test_page_keeps_the_rows_of_what_did_not_run() -> None:
    head = "\n".join(campaign._HEAD)
    page = f"text\n\n{head}\n| steps | old |\n| gone | old |\n\nmore\n"
    assert with_rows(page, {"some": "| some | new |"}) == (
        f"text\n\n{head}\n| some | new |\n| steps | old |\n\nmore\n"
    )


def test_page_has_figures_of_known_suites_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    lines = campaign.PAGE.read_text().splitlines()
    begin = lines.index(campaign._HEAD[1]) + 1
    end = lines.index("", begin)
    names = [line.split("|")[1].strip() for line in lines[begin:end]]
    assert len(names) > 10
    assert names == [name for name in campaign.SUITES if name in names]
