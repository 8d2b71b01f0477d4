"""SIGKILL at every system call that changes a file, and at every line between copy, mark and ack.

A workload of fifty messages is killed at its n-th write, sync, rename, unlink..., n = 1, 2, ...
until a run meets none, or at some of these; then a recovery is, on a wreck that has everything to
mend. After each kill the store is recovered here and checked (kill_check.py). A kill costs a third
of a second. One kill again: see kill_runs.py; a whole test: `make crash ARGS="--seed N -k NAME"`,
the seed printed first.
"""

import random
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

from tests import campaign
from tests.crash.kills.kill_check import Said, check_killed, differing, everything, open_store
from tests.crash.kills.kill_runs import (
    CALLS,
    FUNCTIONS,
    RECOVERY_FUNCTIONS,
    at_call,
    calls_made,
    lines,
    make_wreck,
    run_child,
)
from tests.tools import need

SUITE = "kill points"
#: More calls than a run makes.
MOST = 200
#: One call in this number is tried. The calls are the same in both modes, but for their syncs.
FLUSHES = {"SYNC_FLUSH": 1, "ASYNC_FLUSH": 4}
#: The writes are the acknowledgements, all alike.
STEP = {"write": 4}


def places(what: str, step: int, made: Callable[[], int]) -> Iterable[int]:
    """The calls at which to kill: every `step`-th in a campaign, which ends with a run that meets
    none; otherwise some of the calls that a run has `made`."""
    if campaign.is_full():
        return range(1, MOST, step)
    calls = range(1, made() + 1)
    return sorted(campaign.rng(what).sample(calls, min(len(calls), campaign.size(SUITE))))


def points(function: str, seed: int) -> list[str]:
    """The lines at which to kill, in a drawn order unless it is a campaign, which takes all."""
    rng = random.Random(f"{seed} {function}")
    found = list(lines((function,), rng))
    if not campaign.is_full():
        rng.shuffle(found)
    return found


def noted(kills: int, wrong: list[str]) -> None:
    print(f"{kills} kills")
    campaign.note(SUITE, kills, wrong=len(wrong))


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
    trace = folder / "trace"
    made = partial(calls_made, call, trace, "write", str(folder / "counted"), flush)
    for nth in places(f"{call} {flush}", STEP.get(call, 1) * FLUSHES[flush], made):
        said = killed_writer(folder / "store", flush, strace=at_call(call, nth))
        wrong += complaints(folder / "store", said, f"{call} {nth}")
        if said.done:
            break
        kills += 1
    else:
        assert not campaign.is_full(), "the workload never came through"
    noted(kills, wrong)
    assert kills
    assert wrong == []


@pytest.mark.parametrize("function", FUNCTIONS)
def test_writer_killed_at_any_line_loses_nothing_acknowledged(
    folder: Path, function: str, seed: int
) -> None:
    rng = random.Random(f"{seed} {function} flush")
    wrong: list[str] = []
    kills = 0
    for point in points(function, seed):
        if kills == campaign.size(SUITE):
            break
        flush = rng.choice(tuple(FLUSHES))
        said = killed_writer(folder / "store", flush, "--at", point)
        wrong += complaints(folder / "store", said, f"{flush} {point}")
        kills += not said.done
    noted(kills, wrong)
    assert kills
    assert wrong == []


def test_ack_before_the_append_is_caught(folder: Path, seed: int) -> None:
    """The negative control: a child that acknowledges a message it has not appended yet."""
    caught = tried = 0
    for point in lines(("store.log.commit_log:CommitLog._append",), random.Random(seed)):
        said = killed_writer(folder / "store", "SYNC_FLUSH", "--at", point, "--ack-early")
        caught += any("is lost" in text for text in complaints(folder / "store", said, point))
        tried += 1
        if campaign.enough(caught):
            break
    campaign.note_control(SUITE, "acknowledged before it is appended", caught, tried)
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
        """The differences in the next recovery's result because of a kill in the first."""
        return [f"{where}: {name}" for name in differing(self._recovered(root), self.expected)]


@pytest.fixture
def wreck(folder: Path) -> Wreck:
    return Wreck(folder)


# A recovery writes through descriptors of its own, and makes no directory and no backup.
_NOT_OF_A_RECOVERY = ("write", "writev", "mkdir", "link")


@pytest.mark.parametrize("call", [call for call in CALLS if call not in _NOT_OF_A_RECOVERY])
def test_recovery_killed_at_any_call_comes_to_the_same_end(wreck: Wreck, call: str) -> None:
    need("strace")
    wrong: list[str] = []
    kills = 0
    trace = wreck.root.with_name("trace")
    made = partial(calls_made, call, trace, "recover", str(wreck.copy()))
    for nth in places(f"recovery {call}", 1, made):
        root = wreck.copy()
        said = run_child("recover", str(root), strace=at_call(call, nth))
        wrong += wreck.wrong_after(root, f"{call} {nth}")
        if said.done:
            break
        kills += 1
    else:
        assert not campaign.is_full(), "the recovery never came through"
    noted(kills, wrong)
    assert wrong == []


@pytest.mark.parametrize("function", RECOVERY_FUNCTIONS)
def test_recovery_killed_at_any_line_comes_to_the_same_end(
    wreck: Wreck, function: str, seed: int
) -> None:
    wrong: list[str] = []
    kills = 0
    for point in points(function, seed):
        if kills == campaign.size(SUITE):
            break
        root = wreck.copy()
        kills += not run_child("recover", str(root), "--at", point).done
        wrong += wreck.wrong_after(root, point)
    noted(kills, wrong)
    assert kills
    assert wrong == []
