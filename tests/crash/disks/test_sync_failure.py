"""R6: the disk says EIO to a sync; the store stops, and a restart believes the disk alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests import campaign
from tests.crash.disks.sync_failure import KINDS, FailingRecovery, FailingRun
from tests.tools import need

CONTROL_RUNS = 4


@pytest.fixture(autouse=True)
def _tools(recorded_disks: None) -> None:
    need("debugfs")


def runs(
    folder: Path, seed: int, kind: str, count: int, flush: str = "", **controls: str
) -> Iterator[FailingRun]:
    """That many runs, judged; under SYNC_FLUSH and ASYNC_FLUSH in turn unless `flush` is given."""
    for number in range(count):
        below = folder / f"{kind}-{number}"
        below.mkdir()
        mode = flush or ("SYNC_FLUSH", "ASYNC_FLUSH")[number % 2]
        own_seed = random.Random(f"{seed} {kind} {number}").randrange(1 << 32)
        run = FailingRun(below, mode, kind, own_seed, **controls)
        run.judge()
        print(f"{kind} {mode} seed {own_seed}: {'; '.join(one[:60] for one in run.events)}")
        yield run


def caught(control: str, some: Iterable[FailingRun], shows: Callable[[FailingRun], bool]) -> int:
    """How many of the runs show the control; the first is enough but in a campaign."""
    shown: list[bool] = []
    for run in some:
        shown.append(shows(run))
        if campaign.enough(sum(shown)):
            break
    print(f"control {control}: {sum(shown)} of {len(shown)} runs show it")
    campaign.note_control("sync failure", control, sum(shown), len(shown))
    return sum(shown)


@pytest.mark.parametrize("kind", KINDS)
def test_failed_sync_stops_the_store_and_costs_nothing_acked(
    folder: Path, seed: int, kind: str
) -> None:
    for run in runs(folder, seed, kind, campaign.size("sync failure")):
        campaign.note("sync failure", 1, wrong=len(run.wrong))
        again = f"make crash ARGS='--seed {seed} -k {kind}'"
        assert not run.wrong, f"{run.flush}: {run.wrong[:5]}\n{run.events}\nagain: {again}"


def test_mark_moved_on_a_failed_sync_is_caught(folder: Path, seed: int) -> None:
    control = "mark-moved-on-failed-sync"
    some = runs(folder, seed, "log", CONTROL_RUNS, "SYNC_FLUSH", daemon_control=control)
    assert caught(control, some, lambda run: "I1" in {one.rule for one in run.wrong})


def test_restart_that_trusts_the_cache_is_caught(folder: Path, seed: int) -> None:
    control = "cache-trusted"
    some = runs(folder, seed, "log", CONTROL_RUNS, restart_control=control)
    assert caught(
        control, some, lambda run: any("then power went" in one.text for one in run.wrong)
    )


def test_recovery_refuses_a_failing_disk_and_works_when_it_is_well(folder: Path, seed: int) -> None:
    """A killed daemon's writes stay with the kernel and cannot reach the disk: no start may build
    on them."""
    for number, flush in enumerate(("SYNC_FLUSH", "ASYNC_FLUSH")):
        below = folder / flush
        below.mkdir()
        run = FailingRecovery(below, flush, "everything", seed + number)
        run.judge()
        print(f"{flush}: {'; '.join(run.events)}")
        assert not run.wrong, f"{flush}: {run.wrong[:5]}\n{run.events}"
