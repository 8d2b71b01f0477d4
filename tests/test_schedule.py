"""Which tests of a run with several workers run on one of them."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests import drawing
from tests.schedule import GROUPS, QUIET, group_of

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("test", "group"),
    [
        ("tests/spark/writing/test_sink.py::test_a[spark-4.3]", "spark writes"),
        ("tests/spark/reading/test_batch_read.py::test_a[spark-4.0-our]", "spark writes"),
        ("tests/spark/reading/test_traps.py::test_a", "spark streams"),
        ("tests/interop/clients/test_hostile.py::test_a[x]", QUIET),
        ("tests/crash/test_cuts.py::test_a[b::c]", "tests/crash/test_cuts.py::test_a[b::c]"),
        ("tests/contract/waiting/test_delay.py::test_a", "tests/contract/waiting/test_delay.py"),
        (
            "tests/contract/programs/test_client.py::test_a[aerobee]",
            "tests/contract/programs/test_client.py",
        ),
        ("tests/contract/programs/test_client.py::test_a[java-json]", "contract of java"),
        ("tests/test_layers.py::test_a", "tests/test_layers.py"),
    ],
)  # fmt: skip
def test_what_shares_a_broker_or_a_driver_is_one_group(test: str, group: str) -> None:
    assert group_of(test) == group


def test_jobs_and_streams_share_a_driver_where_few_are_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drawing, "drawn", drawing.Drawn(drawing.ALL, 1))
    assert group_of("tests/spark/stores/test_jobs.py::test_a") == "spark jobs"
    monkeypatch.setattr(drawing, "drawn", drawing.Drawn(drawing.PART, 1))
    assert group_of("tests/spark/stores/test_jobs.py::test_a") == "spark streams"


def test_every_suite_has_a_line() -> None:
    suites = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert {begin.split("/")[1] for begin, _ in GROUPS} >= suites


def run(root: Path, workers: int, modules: dict[str, str], code: int = 0) -> list[list[str]]:
    """Runs modules with the real xdist, which ends with that code; worker, module, begin and end of
    each test."""
    for path, text in modules.items():
        file = root / "tests" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (root / "conftest.py").write_text(
        "import os, time, pathlib, pytest\nfrom tests import parts, schedule\n"
        "parts.STATE = pathlib.Path('state').resolve()\n"
        "def pytest_configure(config):\n    config.pluginmanager.register(schedule)\n"
        "@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_call(item):\n"
        "    begun = time.monotonic()\n    yield\n"
        "    line = [os.environ['PYTEST_XDIST_WORKER'], item.path.name, begun, time.monotonic()]\n"
        "    with open('ran', 'a') as file:\n        print(*line, file=file)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", str(workers), "-q", "-p", "no:cacheprovider",
         "-c", "/dev/null", "--rootdir", ".", "--import-mode=importlib", "tests"],
        cwd=root, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return [line.split() for line in (root / "ran").read_text().splitlines()]


SIX = "import pytest, time\n@pytest.mark.parametrize('n', range(6))\ndef test_it(n):\n    {}\n"


def test_a_group_stays_on_one_worker_and_others_do_not(tmp_path: Path) -> None:
    """With the real xdist: its own groups went without a word once."""
    text = SIX.format("time.sleep(0.02)")
    names = [f"contract/test_{number}.py" for number in range(3)]
    ran = run(tmp_path, 3, dict.fromkeys([*names, "service/test_3.py"], text))
    workers: dict[str, list[str]] = defaultdict(list)
    for worker, module, *_ in ran:
        workers[module].append(worker)
    assert {module: len(on) for module, on in workers.items()} == {
        f"test_{number}.py": 6 for number in range(4)
    }
    assert all(len(set(workers[f"test_{number}.py"])) == 1 for number in range(3))
    assert len({worker for on in workers.values() for worker in on}) == 3


@pytest.mark.parametrize("is_brought", [True, False])
def test_what_waits_for_a_part_lets_others_go_first(tmp_path: Path, is_brought: bool) -> None:
    (tmp_path / "state").mkdir()
    text = SIX.format("time.sleep(0.02)")
    modules = {"interop/clients/test_java_features.py": text, "unit/test_other.py": text}
    with (tmp_path / "state" / "java.lock").open("wb") as lock:
        if not is_brought:
            fcntl.flock(lock, fcntl.LOCK_EX)
        ran = run(tmp_path, 1, modules)
    first, last = ran[0][1], ran[-1][1]
    order = ["test_java_features.py", "test_other.py"]
    assert [first, last] == (order if is_brought else order[::-1])


@pytest.mark.parametrize("others", [0, 1, 4])
def test_what_wants_quiet_runs_when_all_others_have_ended(tmp_path: Path, others: int) -> None:
    modules = {f"service/test_{n}.py": SIX.format(f"time.sleep({n} / 20)") for n in range(others)}
    ran = run(tmp_path, 3, {**modules, "interop/clients/test_hostile.py": SIX.format("pass")})
    quiet = [one for one in ran if one[1] == "test_hostile.py"]
    ends = [float(one[3]) for one in ran if one not in quiet]
    assert (len(quiet), len(ends)) == (6, 6 * others)
    assert len({worker for worker, *_ in quiet}) == 1
    assert sum(end > float(quiet[0][2]) for end in ends) == 0


@pytest.mark.parametrize("number", [0, 3, 5])
def test_a_worker_that_dies_costs_the_test_it_ran_and_no_other(tmp_path: Path, number: int) -> None:
    """The run goes on to its end, and runs nothing twice."""
    dies = SIX.format(f"import os\n    time.sleep(0.1)\n    if n == {number}: os._exit(1)")
    modules = {f"contract/test_{one}.py": SIX.format("time.sleep(0.05)") for one in range(3)}
    modules |= {f"service/test_{one}.py": SIX.format("time.sleep(0.05)") for one in (3, 4)}
    ran = run(tmp_path, 2, {**modules, "contract/test_dies.py": dies}, code=1)
    counts = Counter(module for _, module, *_ in ran)
    assert counts == {f"test_{one}.py": 6 for one in range(5)} | {"test_dies.py": 5}
