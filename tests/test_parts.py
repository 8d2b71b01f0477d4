"""Parts brought in the background: a test that needs one waits for it, and hears of its failure."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import campaign, parts
from tests.interop.processes import wait_until

# `slow` goes on when there is a file `go`; `last` follows it.
PROGRAM = """
from pathlib import Path
from tests import parts
folder = Path({folder!r})
parts.STATE = folder / "state"
parts.CHAINS = (
    {{"slow": ("sh", "-c", f"cd {{folder}} && touch began; until [ -e go ]; do sleep 0.01; done"),
      "last": ("sh", "-c", f"ls {{folder}}/go")}},
    {{"bad": ("sh", "-c", "echo no network; exit 3"), "none": ("/no/such/script",)}},
)
print(*parts.start())
"""


def started(folder: Path) -> list[str]:
    """The parts that `start` has begun in a process of its own, which has ended by then."""
    program = PROGRAM.format(folder=str(folder))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stderr == ""
    return done.stdout.split()


def is_brought(part: str) -> bool:
    with (parts.STATE / f"{part}.lock").open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_a_part_is_waited_for_and_a_failure_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "STATE", tmp_path / "state")
    assert parts.lack("slow") is None, "nobody has begun to bring it"
    assert started(tmp_path) == ["slow", "last", "bad", "none"]
    said = parts.lack("bad")
    assert said is not None
    assert said.startswith("bad: its set-up ended with 3: no network ")
    assert (parts.lack("none") or "").startswith("none: its set-up ended with 1: ")
    wait_until((tmp_path / "began").exists, 30, "the slow part is being brought")
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(parts.lack, part) for part in ("slow", "last")]
        assert not is_brought("slow")
        assert not is_brought("last")
        # Another run leaves to the first one what it is at, and begins the others again.
        assert started(tmp_path) == ["bad", "none"]
        assert not any(one.done() for one in waiting)
        (tmp_path / "go").touch()
        assert [one.result(30) for one in waiting] == [None, None]
    assert parts.lack("bad") is not None
    assert started(tmp_path) == ["slow", "last", "bad", "none"]
    assert parts.lack("last") is None


WAITING = """
from pathlib import Path
from tests import parts

def test_waits():
    parts.STATE = Path({folder!r}) / "state"
    assert parts.lack("slow") is None
"""
HANGING = (
    WAITING
    + """
    import time
    time.sleep(60)
"""
)


GOING_ON = """
import time
from tests import parts

def test_goes_on():
    for _ in range({times}):
        time.sleep(0.3)
        parts.begin_watch_anew()
    time.sleep({silent})
"""


@pytest.mark.parametrize(
    ("times", "silent", "code"), [(6, 0, 0), (2, 60, 1)], ids=["goes on", "hangs"]
)
def test_signs_of_life_put_off_the_end_of_a_long_test(
    tmp_path: Path, times: int, silent: int, code: int
) -> None:
    run = _tested(tmp_path, GOING_ON.format(times=times, silent=silent))
    said, _ = run.communicate(timeout=60)
    assert run.returncode == code, said
    assert ("Timeout (0:00:01)!" in said) == bool(code), said


def _tested(folder: Path, text: str) -> subprocess.Popen[str]:
    """A run of one test, which may take a second."""
    test = folder / "test_it.py"
    test.write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", str(test)]
    options = ["-o", "faulthandler_timeout=1", "-o", "faulthandler_exit_on_timeout=true"]
    command += [*options, "-p", "no:cacheprovider", "--rootdir", str(folder)]
    return subprocess.Popen(
        command, cwd=parts.TESTS.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.parametrize(("text", "code"), [(WAITING, 0), (HANGING, 1)], ids=["waits", "hangs"])
def test_a_long_wait_for_a_part_is_no_hanging_test(tmp_path: Path, text: str, code: int) -> None:
    assert started(tmp_path) == ["slow", "last", "bad", "none"]
    run = _tested(tmp_path, text.format(folder=str(tmp_path)))
    began = time.monotonic()
    # Three times what a test may take, and the start of the interpreter.
    wait_until(lambda: time.monotonic() > began + 4 or run.poll() is not None, 30, "a long wait")
    (tmp_path / "go").touch()
    said, _ = run.communicate(timeout=30)
    assert run.returncode == code, said
    assert ("Timeout (0:00:01)!" in said) == bool(code), said


def test_every_version_of_pyspark_has_a_part_in_a_campaign_the_newest_first() -> None:
    assert parts.spark_versions() == ("4.3", "4.0")
    brought = ["spark-4.3", "spark-4.0"] if campaign.is_full() else ["spark-4.3"]
    assert [*parts.CHAINS[0]] == brought
