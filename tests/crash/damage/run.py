"""Judges the cases, or some of them, or one again; a process of its own for each share of them.

All of it, as the test does it, and one case again, by the seed and the name that were printed:
    python -m tests.crash.damage.run --seed 7
    python -m tests.crash.damage.run --seed 7 --only 'clean/queue: wrong entry/...'

A share (`--part 0/2`) is judged in this process and answers with one line of JSON for each case, so
that a case that takes the process with it is known by its name.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from tests import campaign
from tests.crash.damage import controls
from tests.crash.damage.case import Case
from tests.crash.damage.cases import all_cases
from tests.crash.damage.judge import judge_of
from tests.crash.damage.originals import make_originals
from tests.crash.power_cuts.recorded_disk import memory_folder
from tests.parts import begin_watch_anew

ROOT = Path(__file__).parents[3]


class Verdict(NamedTuple):
    """The faults at the end of one case."""

    case: str
    kind: str
    wrong: list[str]


def judge_all(
    seed: int,
    *,
    image: str = "",
    rows: str = "",
    most: int = 0,
    broken: str = "",
    until_wrong: bool = False,
) -> list[Verdict]:
    """Judge the cases of an original, of the rows with this beginning; a share on each processor,
    unless other tests run on those.

    `image`: "" for all; "killed/0" and "killed/1" are halves of it.
    `most`: the number of them, drawn by the seed, but one of each row at least; 0 for all.
    `broken` is one of controls.RULES. `until_wrong`: cases behind the first that is wrong are left.
    """
    parts = 1 if "PYTEST_XDIST_WORKER" in os.environ else os.cpu_count() or 1
    command = [sys.executable, "-m", "tests.crash.damage.run", "--seed", str(seed)]
    command += ["--image", image, "--rows", rows, "--most", str(most), "--break", broken]
    command += ["--until-wrong"] if until_wrong else []
    workers = [
        subprocess.Popen(
            [*command, "--part", f"{part}/{parts}"], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for part in range(parts)
    ]
    verdicts: list[Verdict] = []
    for worker in workers:
        found = _said(worker)
        verdicts += [Verdict(*one) for one in found if len(one) == 3]
        if worker.returncode:
            last = found[-1][0] if found else "its beginning"
            verdicts.append(Verdict(last, "", [f"died here, code {worker.returncode}"]))
    return verdicts


def _said(worker: subprocess.Popen[str]) -> list[list[Any]]:
    """The lines of one process, which has ended then; each is a sign of life."""
    assert worker.stdout is not None
    found = []
    for line in worker.stdout:
        found.append(json.loads(line))
        begin_watch_anew()
    worker.wait()
    return found


def report(verdicts: list[Verdict], seed: int) -> list[str]:
    """The faults, each with the command that shows it again."""
    return [
        f"{one.case}: {'; '.join(one.wrong)}\n  again: {sys.executable} -m "
        f"tests.crash.damage.run --seed {seed} --only {one.case!r}"
        for one in verdicts
        if one.wrong
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--part", default="")
    parser.add_argument("--image", default="")
    parser.add_argument("--rows", default="")
    parser.add_argument("--most", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--break", dest="broken", default="")
    parser.add_argument("--until-wrong", action="store_true")
    asked = parser.parse_args()
    if asked.part:
        return _share(asked)
    if asked.only:
        return _one(asked)
    began = time.monotonic()
    verdicts = judge_all(
        asked.seed, image=asked.image, rows=asked.rows, most=asked.most, broken=asked.broken
    )
    wrong = Counter(one.kind for one in verdicts if one.wrong)
    for kind, number in sorted(Counter(one.kind for one in verdicts).items()):
        print(f"{number:6} {wrong[kind]:6} {kind}")
    for text in report(verdicts, asked.seed)[:200]:
        print(text)
    print(f"{len(verdicts)} cases, {wrong.total()} wrong, {time.monotonic() - began:.0f} s")
    return bool(wrong)


def _share(asked: argparse.Namespace) -> int:
    part, parts = map(int, asked.part.split("/"))
    with memory_folder() as folder, controls.broken(asked.broken):
        originals = make_originals(folder)
        judge = judge_of(originals, folder)
        for case in _chosen(all_cases(originals, asked.seed), asked)[part::parts]:
            print(json.dumps([case.name]), flush=True)
            verdict = Verdict(case.name, case.kind, judge(case))
            print(json.dumps(verdict), flush=True)
            if verdict.wrong and asked.until_wrong:
                break
    return 0


def _chosen(cases: list[Case], asked: argparse.Namespace) -> list[Case]:
    image, _, half = asked.image.partition("/")
    cases = [
        case for case in cases if case.kind.startswith(asked.rows) and case.image.startswith(image)
    ]
    cases = cases[int(half) :: 2] if half else cases
    if asked.until_wrong:
        random.Random(asked.seed).shuffle(cases)
    if asked.most == 0 or asked.most >= len(cases):
        return cases
    return campaign.part(cases, asked.most, random.Random(asked.seed), lambda case: case.kind)


def _one(asked: argparse.Namespace) -> int:
    with memory_folder() as folder, controls.broken(asked.broken):
        originals = make_originals(folder)
        judge = judge_of(originals, folder)
        cases = [one for one in all_cases(originals, asked.seed) if asked.only in one.name]
        number = 0
        for case in cases:
            wrong = judge(case)
            print(f"{case.name}: {'; '.join(wrong) or 'as documented'}")
            number += bool(wrong)
    print(f"{len(cases)} cases, {number} wrong")
    return bool(number)


if __name__ == "__main__":
    sys.exit(main())
