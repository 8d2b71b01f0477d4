"""R7: full disks refuse sends cleanly, cost nothing, and pass by themselves; no fault in memory.

Real disks of 64 MB, filled by sends through the real daemon.
"""

from __future__ import annotations

import itertools
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.protocol.frames.command import Command
from tests.crash.disks.full_disk import (
    KEEP,
    WAIT_S,
    Story,
    assert_clean_refusal,
    assert_not_ready_but_live,
    assert_refused_to_start,
    ballast,
    free_bytes,
    small_ext4,
    starts,
    tmpfs,
    use_all,
)
from tests.crash.judges.history import Promise
from tests.crash.running.link import CREATE_TOPIC, SUCCESS, Link
from tests.tools import need

MODES = ("SYNC_FLUSH", "ASYNC_FLUSH")
# Refused only when there is really nothing left.
TO_THE_LAST = {**KEEP, "store.disk_warning_ratio": 1.0}
LEFT = 3 << 20
# Stored, and perhaps not yet in its queue: that takes room as well.
WHILE_FULL = Promise(durable=False)


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, folder: Path) -> Iterator[Path]:
    """A disk of 64 MB."""
    need("mount", "loop", "mkfs.ext4")
    make = tmpfs if request.param == "tmpfs" else small_ext4
    with make(folder / "disk") as path:
        yield path


@pytest.fixture
def small_tmpfs(folder: Path) -> Iterator[Path]:
    need("mount")
    with tmpfs(folder / "disk") as path:
        yield path


@pytest.mark.parametrize("flush", MODES)
def test_filled_to_the_last_byte_then_drained(
    folder: Path, disk: Path, seed: int, flush: str
) -> None:
    weight = ballast(disk, LEFT)
    story = Story(folder, disk / "store", flush, seed, TO_THE_LAST)
    with story.daemon() as daemon:
        story.traffic.prepare(daemon.port)
        assert_clean_refusal(story.fill(daemon), disk)
        assert_not_ready_but_live(daemon)
        assert len(story.history.acked()) > 50
        assert story.wrong_with(daemon, WHILE_FULL) == []
        weight.unlink()
        story.sends_resume(daemon)
        assert story.wrong_with(daemon) == []
        daemon.terminate()
        assert daemon.wait() == 0
    with story.daemon() as daemon:
        assert story.wrong_with(daemon) == []


def test_refused_at_the_high_mark_with_room_to_spare(folder: Path, disk: Path, seed: int) -> None:
    """The mark is looked at every ten seconds, so the disk is beyond it when the daemon starts."""
    weight = ballast(disk, LEFT)
    story = Story(folder, disk / "store", "ASYNC_FLUSH", seed)
    with story.daemon() as daemon:
        story.traffic.prepare(daemon.port)
        refusal = story.fill(daemon)
        assert_clean_refusal(refusal, disk)
        assert "above 90%" in (refusal.remark or "")
        assert free_bytes(disk) > LEFT // 2
        assert_not_ready_but_live(daemon)
        weight.unlink()
        story.sends_resume(daemon)
        assert story.wrong_with(daemon) == []


def test_retention_drains_the_disk_and_sends_resume(folder: Path, disk: Path, seed: int) -> None:
    """Nobody helps: forced deletion takes the oldest segments until there is room again."""
    ballast(disk, LEFT)
    more = {"retention.disk_force_ratio": 0.98, "store.disk_warning_ratio": 1.0}
    more |= {"retention.delete_commit_log_pause_ms": 0}
    story = Story(folder, disk / "store", "SYNC_FLUSH", seed, more)
    with story.daemon() as daemon:
        story.traffic.prepare(daemon.port)
        for _ in range(3):
            assert_clean_refusal(story.fill(daemon, (20_000,)), disk)
            story.sends_resume(daemon, 20_000)
        assert "segment deleted" in daemon.log
        assert len(story.history.acked()) * 20_000 > 1.5 * LEFT
        assert story.wrong_with(daemon, Promise(expiry=True)) == []


def test_config_is_refused_cleanly_too(folder: Path, seed: int) -> None:
    """A first send to a new topic, and the creation of a topic, need room for the topic's name."""
    need("mount", "loop", "mkfs.ext4")
    with small_ext4(folder / "disk") as disk:
        weight = ballast(disk, LEFT)
        story = Story(folder, disk / "store", "SYNC_FLUSH", seed, TO_THE_LAST)
        with story.daemon() as daemon, Link(daemon.port) as link:
            story.traffic.prepare(daemon.port)
            story.fill(daemon)
            answer, topic = _create_without_room(link, disk)
            assert_clean_refusal(answer, disk)
            (disk / "rest").unlink()
            weight.unlink()
            assert _create(link, topic).code == SUCCESS


def _create(link: Link, topic: str) -> Command:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 4, "perm": 6,
        "writeQueueNums": 4, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0,
        "order": "false",
    }  # fmt: skip
    return link.call(CREATE_TOPIC, fields)


def _create_without_room(link: Link, disk: Path) -> tuple[Command, str]:
    """The answer to the creation of a topic when no room is left, and its name.

    A file that the daemon begins and gives up meanwhile gives blocks back after the last one was
    taken. Then there was room: the topic is on the disk, and the room left is taken again.
    """
    deadline = time.monotonic() + WAIT_S
    for topic in (f"Another{number}" for number in itertools.count()):
        use_all(disk)
        answer = _create(link, topic)
        if answer.code != SUCCESS:
            break
        assert topic in (disk / "store" / "config" / "topics.json").read_text()
        assert time.monotonic() < deadline, "topics are made on a full disk"
    return answer, topic


@pytest.mark.parametrize("flush", MODES)
def test_killed_and_started_while_full(folder: Path, disk: Path, seed: int, flush: str) -> None:
    """The start may refuse, naming the disk; it may not lose or change anything."""
    weight = ballast(disk, LEFT)
    story = Story(folder, disk / "store", flush, seed, TO_THE_LAST)
    with story.daemon() as daemon:
        story.traffic.prepare(daemon.port)
        story.fill(daemon)
        daemon.process.kill()
        daemon.wait()
    use_all(disk)
    with story.started() as daemon:
        if starts(daemon):
            assert story.wrong_with(daemon, WHILE_FULL) == []
            assert_clean_refusal(story.fill(daemon), disk)
            daemon.process.kill()
        else:
            assert_refused_to_start(daemon, disk)
    (disk / "rest").unlink()
    weight.unlink()
    with story.daemon() as daemon:
        story.sends_resume(daemon)
        assert story.wrong_with(daemon) == []


def test_disk_that_fills_during_recovery(folder: Path, disk: Path, seed: int) -> None:
    """Queues and index are gone and there is no room to make them again: refuse, then succeed."""
    story = Story(folder, disk / "store", "SYNC_FLUSH", seed, TO_THE_LAST)
    with story.daemon() as daemon:
        story.traffic.prepare(daemon.port)
        story.traffic.run(daemon.port, 200, sizes=(500,))
        daemon.process.kill()
        daemon.wait()
    for name in ("consumequeue", "index"):
        remove_tree(disk / "store" / name)
    weight = ballast(disk, 16 << 10)
    with story.started() as daemon:
        if starts(daemon):
            assert story.wrong_with(daemon, WHILE_FULL) == []
            daemon.process.kill()
        else:
            assert_refused_to_start(daemon, disk)
    weight.unlink()
    with story.daemon() as daemon:
        assert story.wrong_with(daemon) == []
        story.sends_resume(daemon)


def test_start_of_an_empty_store_on_a_full_disk(folder: Path, disk: Path, seed: int) -> None:
    weight = ballast(disk, 0)
    story = Story(folder, disk / "store", "SYNC_FLUSH", seed, TO_THE_LAST)
    with story.started() as daemon:
        if not starts(daemon):
            assert_refused_to_start(daemon, disk)
        else:
            assert_not_ready_but_live(daemon)
    weight.unlink()
    with story.daemon() as daemon:
        story.traffic.prepare(daemon.port)
        story.sends_resume(daemon)


def test_no_inodes_left(folder: Path, seed: int) -> None:
    need("mount")
    with tmpfs(folder / "disk", "size=64m,nr_inodes=60") as disk:
        story = Story(folder, disk / "store", "SYNC_FLUSH", seed, TO_THE_LAST)
        with story.daemon() as daemon:
            story.traffic.prepare(daemon.port)
            spare = disk / "spare"
            spare.mkdir()
            for number in range(10):
                (spare / str(number)).touch()
            assert_clean_refusal(story.fill(daemon), disk)
            assert story.wrong_with(daemon, WHILE_FULL) == []
            remove_tree(spare)
            story.sends_resume(daemon)
            assert story.wrong_with(daemon) == []
            daemon.terminate()
            assert daemon.wait() == 0


def test_limit_on_the_size_of_files(folder: Path, small_tmpfs: Path, seed: int) -> None:
    """RLIMIT_FSIZE below a segment: the process must not die of SIGXFSZ, and says what is wrong."""
    story = Story(folder, small_tmpfs / "store", "SYNC_FLUSH", seed, TO_THE_LAST)
    with story.daemon() as daemon:
        story.traffic.prepare(daemon.port)
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (50_000, 50_000))
        refusal = story.fill(daemon)
        assert refusal.code != SUCCESS
        assert "File too large" in (refusal.remark or "")
        assert str(small_tmpfs) in (refusal.remark or "")
        assert story.wrong_with(daemon, WHILE_FULL) == []
        daemon.terminate()
        assert daemon.wait() in (0, 1)
    with story.daemon() as daemon:
        story.sends_resume(daemon)
        assert story.wrong_with(daemon) == []


def test_sparse_segment_of_another_broker_on_a_full_disk(
    folder: Path, disk: Path, seed: int
) -> None:
    """RocketMQ's segments have no blocks: room is made before the first store, or sends refused."""
    story = Story(folder, disk / "store", "SYNC_FLUSH", seed, TO_THE_LAST)
    with story.daemon() as daemon:
        story.traffic.prepare(daemon.port)
        story.traffic.run(daemon.port, 10, sizes=(500,))
        daemon.terminate()
        daemon.wait()
    make_sparse(sorted((disk / "store" / "commitlog").iterdir())[-1])
    weight = ballast(disk, 8 << 10)
    with story.daemon() as daemon:
        assert_clean_refusal(story.fill(daemon), disk)
        assert daemon.process.poll() is None
        assert story.wrong_with(daemon, WHILE_FULL) == []
        weight.unlink()
        story.sends_resume(daemon)
        assert story.wrong_with(daemon) == []


def test_unreserved_segments_are_caught(folder: Path, small_tmpfs: Path, seed: int) -> None:
    """The control: without reservation a store into a full disk kills the process (B2)."""
    ballast(small_tmpfs, LEFT)
    story = Story(folder, small_tmpfs / "store", "ASYNC_FLUSH", seed, TO_THE_LAST)
    with story.daemon("no-reservation") as daemon:
        story.traffic.prepare(daemon.port)
        with pytest.raises((ConnectionError, TimeoutError)):
            story.fill(daemon)
        assert daemon.wait() == -signal.SIGBUS


# --- helpers --------------------------------------------------------------------------------------


def remove_tree(path: Path) -> None:
    for entry in sorted(path.rglob("*"), reverse=True):
        entry.rmdir() if entry.is_dir() else entry.unlink()
    path.rmdir()


def make_sparse(segment: Path) -> None:
    """Keep the bytes, without blocks behind the last byte that is not zero."""
    data = segment.read_bytes()
    segment.unlink()
    with segment.open("wb") as file:
        file.write(data.rstrip(b"\0"))
        file.truncate(len(data))
