"""One run of the daemon on a recorded disk, with its clients' history beside the disk's log.

The run: start on an empty disk, traffic, kill -9, start again (its recovery is in the log as well),
traffic, a stop in order. Power may go anywhere in it.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.crash.judges.history import History, Promise
from tests.crash.power_cuts.block_log import BlockLog, CrashState, Disk, choose_states
from tests.crash.power_cuts.power_cut import Judge
from tests.crash.power_cuts.recorded_disk import RecordedDisk, make_file_system
from tests.crash.power_cuts.recorder import BARRIER, MARK, WRITE
from tests.crash.running.aside import Lateness
from tests.crash.running.daemons import start_daemon
from tests.crash.running.traffic import SIZES, Marks, Traffic

STORE = "store"
# Flush intervals of daemons.SMALL, one sync, and what a busy machine of two cores adds; a run in
# which the machine was seen to be later than that gets twice what was seen (a wake and a sync).
_LOSS_S, _TAIL_S = 0.05 + 1.5, 0.3 + 1.5

#: Share of the disk in use before the daemon starts, and the share above which the oldest segments
#: go: half a megabyte more, seven segments.
_USED = 0.12
_EXPIRY = {
    "retention.disk_max_used_percent": 10,
    "retention.disk_force_ratio": _USED + 0.01,
    "retention.delete_commit_log_pause_ms": 10,
    "retention.delete_consume_queue_pause_ms": 0,
}


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run. Two producers send `messages` each, before and after the restart."""

    flush: str
    seed: int
    layout: str = "ext4"
    control: str = ""
    messages: int = 60
    sizes: Sequence[int] = SIZES
    pause_s: float = 0.0
    sync_delay_ms: int = 0
    burst: int = 8
    topic_share: float = 0.1
    restart: bool = True
    #: Old segments are deleted all the while, because the disk counts as full.
    expiry: bool = False


@dataclass(slots=True)
class Recording:
    """The writes that the disk got, from an empty file system in `image` on, and clients'
    answers."""

    plan: Plan
    log: BlockLog
    history: History
    image: Path
    log_path: Path
    #: How late the machine woke somebody who wanted nothing of us.
    late_s: float = 0.0
    #: From when to when no daemon was there that could have synced: killed, and started again.
    down: tuple[float, float] = (0.0, 0.0)

    @property
    def first(self) -> int:
        """Where the daemon was started."""
        return self.log.index_of_mark(0)

    def states(self, count: int, seed: int, in_flight: int = 0) -> list[CrashState]:
        return choose_states(self.log, random.Random(seed), count, self.first, in_flight)

    def promise(self, cut: int) -> Promise:
        """The promise if power goes there."""
        at = self.log.entries[cut - 1].at if cut else 0.0
        return Promise(
            durable=self.plan.flush == "SYNC_FLUSH",
            cut_at=at,
            loss_s=_LOSS_S + 2 * self.late_s,
            tail_s=_TAIL_S + 2 * self.late_s,
            down=self.down,
            commits=self.plan.flush == "SYNC_FLUSH",
            expiry=self.plan.expiry,
            segment_bytes=65_536,
        )

    def known(self, cut: int) -> History:
        """The answers that clients had when power went there."""
        return self.history.until(self.log.marks(cut))

    def judge(self, folder: Path, control: str = "") -> Judge:
        return Judge(folder, STORE, self.plan.flush, control)

    def summary(self) -> str:
        kinds = Counter(entry.kind for entry in self.log.entries)
        return (
            f"{len(self.history.acked())} sends acked, {len(self.history.seen)} seen; "
            f"{kinds[WRITE]} writes, {kinds[BARRIER]} barriers, {kinds[MARK]} marks; "
            f"{self.late_s:.3f} s late at worst"
        )


class _Life(NamedTuple):
    """When a daemon was ready and when it was told to end, in seconds of the monotonic clock."""

    ready: float
    told_to_end: float


def record(folder: Path, plan: Plan) -> Recording:
    """Run it below `folder`."""
    image = make_file_system(folder / "base", plan.layout)
    history = History()
    with Lateness() as lateness, RecordedDisk(folder, image, plan.sync_delay_ms) as disk:
        traffic = Traffic(history, Marks(disk.mark), plan.seed, plan.topic_share)
        if plan.expiry:
            use_up(disk.root, _USED)
        disk.mark(0)
        ends = [signal.SIGKILL, signal.SIGTERM] if plan.restart else [signal.SIGTERM]
        lives = [_daemon_turn(folder, disk.root / STORE, plan, traffic, end) for end in ends]
    down = (lives[0].told_to_end, lives[1].ready) if plan.restart else (0.0, 0.0)
    return Recording(plan, disk.block_log(), history, image, disk.log_path, lateness.worst_s, down)


def use_up(directory: Path, share: float) -> Path:
    """Reserve blocks in a file of their own until this share of the file system is in use."""
    disk = os.statvfs(directory)
    used = disk.f_blocks - disk.f_bfree
    wanted = round(share * (used + disk.f_bavail)) - used
    ballast = directory / "ballast"
    fd = os.open(ballast, os.O_CREAT | os.O_RDWR)
    try:
        os.posix_fallocate(fd, 0, wanted * disk.f_frsize)
    finally:
        os.close(fd)
    return ballast


def record_recovery(folder: Path, judge: Judge, disk: Disk) -> BlockLog:
    """The writes that reach the disk while a recovery runs on the leftovers of a power cut."""
    image = folder / "cut"
    disk.save(image)
    below = folder / "second"
    below.mkdir(exist_ok=True)
    with RecordedDisk(below, image) as recorded:
        recorded.mark(0)
        judge.recover(recorded.root / STORE)
    return recorded.block_log()


def _daemon_turn(
    folder: Path, store: Path, plan: Plan, traffic: Traffic, end: signal.Signals
) -> _Life:
    more = _EXPIRY if plan.expiry else None
    daemon = start_daemon(folder / "daemon", store, plan.flush, plan.control, more)
    try:
        daemon.ready()
        ready = time.monotonic()
        if not traffic.history.topics:
            traffic.prepare(daemon.port)
        traffic.run(daemon.port, plan.messages, plan.sizes, plan.pause_s, plan.burst)
        told_to_end = time.monotonic()
        os.kill(daemon.process.pid, end)
        daemon.wait()
        assert not plan.expiry or "segment deleted" in daemon.log, daemon.log
        return _Life(ready, told_to_end)
    finally:
        daemon.close()
