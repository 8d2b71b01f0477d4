"""The compiled form at each of its named steps: looked into, and killed.

A build of the sources of `native/` calls back at each step (tests/native_builds.py). A process that
sends through it (compiled_child.py) is looked into by an observer, who reads its files as another
process could; and killed at a step, for the first time it comes there and a later one, and then
everything holds that test_kill_points.py asks of the plain form. The control is a build in which a
record's size is there before the record.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import campaign, native_builds
from tests.crash.kills.kill_check import Said, check_killed
from tests.tools import need

SUITE = "kill steps"
CHILD = Path(__file__).parent / "compiled_child.py"
TIMEOUT_S = 60
STEPS = (
    "body copied", "record copied", "size written", "number moved", "mark moved", "answer made",
    "entries made", "index entry written", "index slot written",
)  # fmt: skip
#: Which time a step is passed; the last ones are in later segments.
VISITS = (1, 2, 7, 9)
FLUSHES = ("SYNC_FLUSH", "ASYNC_FLUSH")
#: Steps of a recovery that has queues and index to make again, and the visits at which to kill.
RECOVERY_STEPS = {
    "run derived": (1, 2), "index entry written": (1, 2, 7), "index slot written": (1, 2, 7),
}  # fmt: skip


def ran(build: Path, folder: Path, flush: str, *options: str) -> tuple[Said, list[str]]:
    """The messages that a child acknowledged, and its other lines. Raises AssertionError for a
    crash."""
    finished = subprocess.run(
        [sys.executable, str(CHILD), str(build), str(folder / "store"), flush, *options],
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    said = Said.of(finished.stdout)
    told = f"code {finished.returncode}\n{finished.stderr.decode()[-2000:]}"
    assert (finished.returncode == -9) != said.done, told
    lines = finished.stdout.decode().splitlines()
    return said, [line for line in lines if line.startswith(("step", "wrong"))]


@pytest.fixture(scope="module")
def steps() -> Path:
    need("cc")
    return native_builds.folder_of("steps")


@pytest.mark.parametrize("flush", FLUSHES)
def test_what_is_seen_at_each_step_is_whole(tmp_path: Path, steps: Path, flush: str) -> None:
    said, lines = ran(steps, tmp_path, flush, "--observe")
    assert len(said.acks) == 50
    assert not [line for line in lines if line.startswith("wrong")]
    passed = {line.split(" ", 2)[2]: int(line.split(" ", 2)[1]) for line in lines}
    assert passed.keys() == set(STEPS)
    assert min(passed.values()) >= max(VISITS), passed


@pytest.mark.parametrize("flush", FLUSHES)
def test_killed_at_any_step_nothing_acknowledged_is_lost(
    tmp_path: Path, steps: Path, flush: str
) -> None:
    points = [(step, visit) for step in STEPS for visit in VISITS]
    drawn = campaign.draw(SUITE, points, lambda point: point[0])
    wrong = []
    for step, visit in drawn:
        folder = tmp_path / f"{step} {visit}"
        folder.mkdir()
        said, _ = ran(steps, folder, flush, "--at", f"{step}:{visit}")
        assert not said.done, f"step {step} was not passed {visit} times"
        wrong += [f"{step}:{visit}: {text}" for text in check_killed(folder / "store", said)]
    campaign.note(SUITE, len(drawn), wrong=len(wrong))
    assert not wrong


def test_a_recovery_killed_at_any_step_is_made_up_for_by_the_next(
    tmp_path: Path, steps: Path
) -> None:
    written, _ = ran(steps, tmp_path, "SYNC_FLUSH")
    for name in ("consumequeue", "index"):
        shutil.rmtree(tmp_path / "store" / name)
    for name in ("checkpoint", "offsets"):
        (tmp_path / "store" / name).unlink()
    wrong = []
    for step, visits in RECOVERY_STEPS.items():
        for visit in visits:
            folder = tmp_path / f"{step} {visit}"
            shutil.copytree(tmp_path / "store", folder / "store")
            killed, _ = ran(steps, folder, "SYNC_FLUSH", "--recover", "--at", f"{step}:{visit}")
            assert not killed.done, f"step {step} was not passed {visit} times"
            found = check_killed(folder / "store", written)
            wrong += [f"{step}:{visit}: {text}" for text in found]
    assert not wrong


def test_a_size_that_comes_before_its_record_is_seen(tmp_path: Path) -> None:
    need("cc")
    build = native_builds.folder_of("swapped")
    _, lines = ran(build, tmp_path, "ASYNC_FLUSH", "--observe")
    seen = [line for line in lines if line.startswith("wrong body copied")]
    campaign.note_control(SUITE, "a size before its record", bool(seen), 1)
    assert seen
