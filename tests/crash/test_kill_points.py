"""SIGKILL at every system call that changes a file, and at every line between copy, mark and ack.

A workload of fifty messages is killed at its n-th write, sync, rename, unlink..., n = 1, 2, ...
until a run meets none; then a recovery is, on a wreck that has everything to mend. After each kill
the store is recovered here and checked (kill_check.py). A kill costs a third of a second. One kill
again: see kill_runs.py; a whole test: `make crash ARGS="--seed N -k NAME"`, the seed printed first.
"""

import random
import shutil
from pathlib import Path

import pytest

from tests.crash.kill_check import Said, check_killed, differing, everything, open_store
from tests.crash.kill_runs import (
    CALLS,
    FUNCTIONS,
    RECOVERY_FUNCTIONS,
    at_call,
    lines,
    make_wreck,
    run_child,
)
from tests.tools import need

MOST = 200
#: Every so many-th call is tried. The calls are the same in both modes, but for their syncs.
FLUSHES = {"SYNC_FLUSH": 1, "ASYNC_FLUSH": 4}
#: The writes are the acknowledgements, all alike.
STEP = {"write": 4}


def killed_writer(root: Path, *options: str, strace: tuple[str, ...] = ()) -> Said:
    shutil.rmtree(root, ignore_errors=True)
    return run_child("write", str(root), *options, strace=strace)


def complaints(root: Path, said: Said, where: str) -> list[str]:
    if not root.exists():
        return []  # killed before it made its directory
    return [f"{where}: {text}" for text in check_killed(root, said)]


@pytest.mark.parametrize("flush", FLUSHES)
@pytest.mark.parametrize("call", CALLS)
def test_writer_killed_at_any_call_loses_nothing_acknowledged(
    folder: Path, call: str, flush: str
) -> None:
    need("strace")
    wrong: list[str] = []
    kills = 0
    for nth in range(1, MOST, STEP.get(call, 1) * FLUSHES[flush]):
        said = killed_writer(folder / "store", flush, strace=at_call(call, nth))
        wrong += complaints(folder / "store", said, f"{call} {nth}")
        if said.done:
            break
        kills += 1
    else:
        raise AssertionError("the workload never came through")
    print(f"{kills} kills")
    assert kills
    assert wrong == []


@pytest.mark.parametrize("function", FUNCTIONS)
def test_writer_killed_at_any_line_loses_nothing_acknowledged(
    folder: Path, function: str, seed: int
) -> None:
    rng = random.Random(f"{seed} {function}")
    wrong: list[str] = []
    kills = 0
    for point in lines((function,), rng):
        flush = rng.choice(tuple(FLUSHES))
        said = killed_writer(folder / "store", flush, "--at", point)
        wrong += complaints(folder / "store", said, f"{flush} {point}")
        kills += not said.done
    print(f"{kills} kills")
    assert kills
    assert wrong == []


def test_ack_before_the_append_is_caught(folder: Path, seed: int) -> None:
    """The negative control: a child that acknowledges a message it has not appended yet."""
    caught = 0
    for point in lines(("store.log.commit_log:CommitLog._append",), random.Random(seed)):
        said = killed_writer(folder / "store", "SYNC_FLUSH", "--at", point, "--ack-early")
        caught += any("is lost" in text for text in complaints(folder / "store", said, point))
    assert caught


# --- inside recovery ------------------------------------------------------------------------------


class Wreck:
    """A directory to recover, and what an undisturbed recovery makes of it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "wreck"
        self._copy = folder / "copy"
        make_wreck(self.root)
        self.expected = self._recovered(self.copy())

    def copy(self) -> Path:
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self.root, self._copy)
        return self._copy

    def _recovered(self, root: Path) -> dict[str, bytes]:
        assert open_store(root).close()
        return everything(root)

    def wrong_after(self, root: Path, where: str) -> list[str]:
        """What the next recovery makes differently because of a kill in the first."""
        return [f"{where}: {name}" for name in differing(self._recovered(root), self.expected)]


@pytest.fixture
def wreck(folder: Path) -> Wreck:
    return Wreck(folder)


@pytest.mark.parametrize("call", [call for call in CALLS if call not in ("write", "mkdir")])
def test_recovery_killed_at_any_call_comes_to_the_same_end(wreck: Wreck, call: str) -> None:
    need("strace")
    wrong: list[str] = []
    for nth in range(1, MOST):
        root = wreck.copy()
        said = run_child("recover", str(root), strace=at_call(call, nth))
        wrong += wreck.wrong_after(root, f"{call} {nth}")
        if said.done:
            break
    else:
        raise AssertionError("the recovery never came through")
    print(f"{nth - 1} kills")
    assert wrong == []


@pytest.mark.parametrize("function", RECOVERY_FUNCTIONS)
def test_recovery_killed_at_any_line_comes_to_the_same_end(
    wreck: Wreck, function: str, seed: int
) -> None:
    wrong: list[str] = []
    kills = 0
    for point in lines((function,), random.Random(f"{seed} {function}")):
        root = wreck.copy()
        kills += not run_child("recover", str(root), "--at", point).done
        wrong += wreck.wrong_after(root, point)
    print(f"{kills} kills")
    assert kills
    assert wrong == []
