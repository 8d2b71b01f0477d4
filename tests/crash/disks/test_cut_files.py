"""R7: somebody else truncates files under the daemon. It may die of it; the next start is honest.

A mapping whose file shrinks faults when it is touched: nothing in the process can prevent that.
The next start refuses and names the file and the command, or puts right what can be made again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.crash.disks.full_disk import Story, starts
from tests.crash.judges.history import UNKNOWN
from tests.crash.running.link import SUCCESS, Link
from tests.service.kit import Served, aerobee

SEGMENT = 65_536
WAIT_S = 30.0


@pytest.fixture
def story(folder: Path, seed: int) -> Story:
    return Story(folder, folder / "store", "SYNC_FLUSH", seed)


def run_and_cut(story: Story, daemon: Served, pattern: str, number: int, size: int) -> Path:
    """Store some segments full, then cut the `number`-th file of a pattern to `size` bytes."""
    daemon.ready()
    story.traffic.prepare(daemon.port)
    story.traffic.run(daemon.port, 150, sizes=(2_000,))
    path = sorted(story.store.glob(pattern))[number]
    os.truncate(path, size)
    return path


def go_on(story: Story, daemon: Served) -> None:
    """Send and read, until the daemon is gone or nothing has happened."""
    try:
        with Link(daemon.port) as link:
            for _ in range(60):
                if story.send(link, 2_000).code != SUCCESS:
                    break
        story.wrong_with(daemon)
    except (ConnectionError, OSError):
        assert daemon.wait() == -signal.SIGBUS


@pytest.mark.parametrize(
    ("number", "size"), [(1, 0), (1, 4_096), (-2, 30_000)], ids=["sealed", "torn", "written"]
)
def test_cut_segment_is_refused_and_repaired(story: Story, number: int, size: int) -> None:
    with story.started() as daemon:
        path = run_and_cut(story, daemon, "commitlog/*", number, size)
        go_on(story, daemon)
        assert daemon.wait() == -signal.SIGBUS
        assert "Fatal Python error: Bus error" in daemon.log
    with story.started() as daemon:
        assert not starts(daemon)
        said = daemon.log.splitlines()[-1]
        assert str(path) in said
        assert "aerobee store repair" in said
    repair(story.store)
    # Messages in the part that was cut off are gone, and nothing else is.
    cut = range(int(path.name) + size, int(path.name) + SEGMENT)
    gone = set()
    for sent in story.history.sends:
        end = sent.log_offset + len(sent.body)
        if sent.log_offset in cut or end in cut:
            sent.outcome = UNKNOWN
            gone.add(sent.body)
    story.history.seen = [one for one in story.history.seen if one.body not in gone]
    with story.daemon() as daemon:
        wrong = [one for one in story.wrong_with(daemon) if one.rule != "I4"]  # gaps are known
        assert wrong == []
        story.sends_resume(daemon)


@pytest.mark.parametrize(("number", "size"), [(0, 0), (1, 100), (-1, 0), (-1, 100)])
def test_cut_queue_file_is_made_again(story: Story, number: int, size: int) -> None:
    """Nothing is mapped there: the daemon lives, and what it passes over it says in its log."""
    with story.started() as daemon:
        run_and_cut(story, daemon, "consumequeue/Orders/0/*", number, size)
        go_on(story, daemon)
        assert daemon.process.poll() is None
        daemon.terminate()
        daemon.wait()
    with story.started() as daemon:
        if not starts(daemon):
            said = daemon.log.splitlines()[-1]
            assert "consumequeue/Orders/0" in said
            assert "aerobee store repair" in said
            repair(story.store)
        else:
            serves_everything(story, daemon)
    with story.daemon() as daemon:
        serves_everything(story, daemon)


@pytest.mark.parametrize("number", [0, -1])
def test_cut_index_file_is_made_again(story: Story, number: int) -> None:
    with story.started() as daemon:
        run_and_cut(story, daemon, "index/*", number, 0)
        go_on(story, daemon)
        daemon.terminate()
        daemon.wait()
    with story.daemon() as daemon:
        assert story.wrong_with(daemon) == []


@pytest.mark.parametrize("name", ["offsets", "checkpoint", "lock", "abort"])
def test_cut_small_file_costs_nothing(story: Story, name: str) -> None:
    with story.started() as daemon:
        run_and_cut(story, daemon, name, 0, 0)
        go_on(story, daemon)
        daemon.process.kill()
        daemon.wait()
    with story.daemon() as daemon:
        assert story.wrong_with(daemon) == []


def serves_everything(story: Story, daemon: Served) -> None:
    """Perhaps not at once: files that a clean stop called whole are looked at after the start."""
    deadline = time.monotonic() + WAIT_S
    while (wrong := story.wrong_with(daemon)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert wrong == [], f"{wrong[:3]}\n{daemon.log[-2000:]}"


def repair(store: Path) -> None:
    """Repair as the refusal says."""
    command = [*aerobee(), "store", "repair", str(store), "--yes", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
