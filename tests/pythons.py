"""The Pythons of this machine that Aerobee runs on, each with an environment of its own, and the
tests there in both forms of the hot path.

    python -m tests.pythons list
    python -m tests.pythons test [--only 3.12] [OPTIONS OF PYTEST]

They are looked for on the PATH and among pyenv's versions, and asked what they are: a name may be a
wrapper around nothing. Of those of one minor version one is taken: with the headers that the
compiled form needs, and the newest. `test` runs what is cheap and near the language, at quick
sizes: unit, contract and differential tests.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from aerobee.native.form import VARIABLE
from tests import campaign

ROOT = Path(__file__).parents[1]
SUITE = "each Python"
SUITES = ("tests/unit", "tests/test_layers.py", "tests/contract", "tests/native")
#: By the form of the hot path, what AEROBEE_NATIVE says for it.
FORMS = {"compiled": "required", "plain": "off"}

_NAME = re.compile(r"python3(\.\d+)?")
# Prints nothing for a Python that cannot be used here: another implementation, a preview, a Python
# without a global lock, an environment (its Python is found by itself), or a Python that cannot
# make environments.
_ASK = """
import ensurepip, os, sys, sysconfig, venv
if (sys.implementation.name == "cpython" and sys.version_info.releaselevel == "final"
        and not sysconfig.get_config_var("Py_GIL_DISABLED") and sys.prefix == sys.base_prefix):
    headers = os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
    print(*sys.version_info[:3], int(headers), sys.executable)
"""


class Python(NamedTuple):
    """A Python that can make environments. Of two the greater one is preferred."""

    has_headers: bool
    release: tuple[int, ...]
    path: Path

    @property
    def version(self) -> str:
        """The minor version, as classifiers write it: 3.12."""
        return "{}.{}".format(*self.release)


def found() -> list[Python]:
    """One for each minor version, the oldest version first."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    folders = [Path(name) for name in os.environ.get("PATH", "").split(os.pathsep) if name]
    return best(candidates([*folders, *sorted(pyenv.glob("versions/*/bin"))]), oldest())


def oldest() -> tuple[int, ...]:
    """The first version that the package may be installed on."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return tuple(int(number) for number in project["requires-python"].removeprefix(">=").split("."))


def candidates(folders: Iterable[Path]) -> Iterator[Python]:
    """The usable Pythons among the programs `python3` and `python3.N` there, each program once."""
    asked = set()
    for folder in folders:
        for path in sorted(folder.glob("python3*")):
            if _NAME.fullmatch(path.name) and path.resolve() not in asked:
                asked.add(path.resolve())
                python = _asked(path)
                if python is not None:
                    yield python


def _asked(path: Path) -> Python | None:
    try:
        ran = subprocess.run([path, "-c", _ASK], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = ran.stdout.split(maxsplit=4)
    if ran.returncode or len(words) < 5:
        return None
    release = tuple(int(word) for word in words[:3])
    return Python(words[3] == "1", release, Path(words[4].strip()))


def best(pythons: Iterable[Python], least: tuple[int, ...]) -> list[Python]:
    """The best Python of each minor version from `least` on, the oldest version first."""
    by_version: dict[tuple[int, ...], Python] = {}
    for python in pythons:
        minor = python.release[:2]
        if minor >= least and (minor not in by_version or python > by_version[minor]):
            by_version[minor] = python
    return [by_version[minor] for minor in sorted(by_version)]


def environment(python: Python) -> Path:
    """The Python of an environment with all that tests need, from the pinned requirements and with
    the compiled form; made when it is not there. Raises CalledProcessError."""
    venv = Path(".cache", "pythons", python.version)
    (ROOT / venv).parent.mkdir(parents=True, exist_ok=True)
    wish = {"VENV": str(venv), "PYTHON": str(python.path), VARIABLE: "required"}
    subprocess.run([ROOT / ".ci" / "setup"], env=os.environ | wish, check=True)
    return ROOT / venv / "bin" / "python"


def test(python: Python, options: list[str]) -> bool:
    """Run the suites in both forms, and note how many tests passed; whether all did."""
    program = environment(python)
    good = True
    for form, wish in FORMS.items():
        print(f"pythons: {python.version}, {form}", flush=True)
        passed, failed = _run(program, wish, options)
        good = good and passed > 0 and not failed
        figures = {"failed": failed, f"on_{python.version}_{form}": passed}
        campaign.note(SUITE, passed + failed, **figures)
    return good


def _run(program: Path, wish: str, options: list[str]) -> tuple[int, int]:
    """How many tests of the suites passed and failed. Figures of these runs are nobody's: rows of
    the suites are of a campaign's own run."""
    environ = os.environ | {
        VARIABLE: wish,
        campaign.VARIABLE: "quick",
        # The row's seed repeats each of its runs.
        campaign.SEED_VARIABLE: str(campaign.seed()),
    }
    for name in (campaign.FIGURES_VARIABLE, "PYTHONDONTWRITEBYTECODE"):
        environ.pop(name, None)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.xml")
        command = [program, "-m", "pytest", *SUITES, f"--junitxml={result}", *options]
        ran = subprocess.run(command, cwd=ROOT, env=environ)
        if not result.exists():
            return 0, 1
        counts = [dict(one.attrib) for one in ElementTree.parse(result).iter("testsuite")]
    total, skipped, failed = (
        sum(int(one[name]) for one in counts for name in names)
        for names in (("tests",), ("skipped",), ("failures", "errors"))
    )
    # An error of pytest's own is not among the tests.
    return total - skipped - failed, failed or int(ran.returncode != 0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pythons")
    parser.add_argument("command", choices=["list", "test"])
    parser.add_argument("--only", action="append", help="a version, such as 3.12")
    asked, options = parser.parse_known_args()
    pythons = [one for one in found() if not asked.only or one.version in asked.only]
    for python in pythons:
        print(f"pythons: {python.version} is {python.path}", flush=True)
    if asked.command == "list" or not pythons:
        return 0 if pythons else 1
    campaign.set_seed(int(os.environ.get(campaign.SEED_VARIABLE) or random.randrange(10**9)))
    outcomes = [test(python, options) for python in pythons]
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
