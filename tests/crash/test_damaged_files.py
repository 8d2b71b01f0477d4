"""R8: every file of a store damaged in every way that was thought of, each with its outcome.

A small store in five states (stopped, killed, after a power cut, RocketMQ's, with extension files)
is made in memory, one file of it damaged, and the store started in this process' children, scrubbed
once, read through, started again, and its queues and index made again. One table
(damage/outcomes.py), which docs/reliability.md shows, states the outcome; damage/judge.py compares.

One case again: the command is printed with what is wrong with it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import campaign
from tests.crash.damage.cases import all_cases
from tests.crash.damage.controls import RULES
from tests.crash.damage.originals import make_originals
from tests.crash.damage.outcomes import TABLE, documented
from tests.crash.damage.run import judge_all, report

#: How many cases each original has at least; some more by chance.
LEAST_CASES = {
    "clean": 3_200,
    "killed/0": 2_900,
    "killed/1": 2_900,
    "cut": 2_250,
    "foreign": 2_100,
    "ext": 800,
}
#: Four of 150 cases show that some rules are broken, so a sample shows no such case once in a
#: hundred times.
SAMPLES = 3
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


@pytest.mark.parametrize("image", LEAST_CASES)
def test_every_damaged_file_has_its_documented_outcome(image: str, seed: int) -> None:
    most = campaign.size("damaged files")
    verdicts = judge_all(seed, image=image, most=most)
    print(f"{len(verdicts)} cases, {len({one.kind for one in verdicts})} classes of damage")
    wrong = report(verdicts, seed)
    campaign.note("damaged files", len(verdicts), wrong=len(wrong))
    assert not wrong, "\n".join([f"{len(wrong)} wrong", *wrong[:20]])
    assert len(verdicts) >= (most or LEAST_CASES[image])


def test_every_row_of_the_table_has_cases(folder: Path, seed: int) -> None:
    cases = all_cases(make_originals(folder), seed)
    kinds = {case.kind for case in cases}
    print(f"{len(cases)} cases, {len(kinds)} classes of damage")
    assert len(cases) >= sum(LEAST_CASES.values()) > 5000
    assert kinds <= TABLE.keys()
    privileged = ("access: ", "root: read-only")
    assert not [kind for kind in TABLE.keys() - kinds if not kind.startswith(privileged)]


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_noticed(rule: str, seed: int) -> None:
    """The negative controls."""
    what = RULES[rule]
    caught = looked_at = 0
    for turn in range(SAMPLES):
        verdicts = judge_all(
            seed + turn, image=what.image, rows=what.rows, most=what.most, broken=rule,
            until_wrong=campaign.enough(1),
        )  # fmt: skip
        looked_at += len(verdicts)
        caught += sum(bool(one.wrong) for one in verdicts)
        if caught:
            break
    print(f"{caught} of {looked_at} cases show it")
    campaign.note_control("damaged files", rule, caught, looked_at)
    assert caught


def test_documentation_has_the_table_of_outcomes() -> None:
    lines = PAGE.read_text().splitlines()
    table = documented()
    begin = lines.index(table[0]) if table[0] in lines else 0
    assert lines[begin : begin + len(table)] == table
    assert not lines[begin + len(table)].startswith("|")
