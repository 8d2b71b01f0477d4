"""Judges a crash state by the whole daemon: it starts, serves what was promised, stops in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.crash.disks.mounts import mounted_image
from tests.crash.judges.checker import Violation, check
from tests.crash.judges.found import read_config
from tests.crash.judges.history import Found, History, Promise, Queue
from tests.crash.judges.records import Record
from tests.crash.power_cuts.block_log import Disk
from tests.crash.power_cuts.power_cut import Judge
from tests.crash.running.daemons import start_daemon
from tests.crash.running.link import Link
from tests.crash.running.traffic import QUEUES, TOPIC
from tests.service.kit import Served


def judge_daemon(judge: Judge, disk: Disk, history: History, promise: Promise) -> list[Violation]:
    """Messages that a daemon started on `disk` does not serve as promised."""
    image, target = judge.folder / "daemon-image", judge.folder / "daemon-disk"
    target.mkdir(exist_ok=True)
    disk.save(image)
    with mounted_image(image, target):
        root = target / judge.store
        with _started(judge, root) as daemon:
            found = served(daemon.port, root)
        wrong = check(history, found, promise)
        if daemon.process.returncode != 0:
            wrong.append(Violation("stop", f"exit code {daemon.process.returncode}"))
        if (root / "abort").exists():
            wrong.append(Violation("stop", "the stop in order left its abort file"))
    return [one._replace(text=f"the daemon: {one.text}") for one in wrong]


@contextmanager
def _started(judge: Judge, root: Path) -> Iterator[Served]:
    folder = judge.folder / "restarted"
    daemon = start_daemon(folder, root, judge.flush, "after-a-power-cut")
    try:
        daemon.ready()
        yield daemon
        daemon.terminate()
        daemon.wait()
    finally:
        daemon.close()


def served(port: int, root: Path) -> Found:
    """All that consumers are given. A topic that was never stored has no queues."""
    topics, committed = read_config(root)
    found = Found({}, {}, topics=topics, committed=committed)
    if topics is None or TOPIC not in topics:
        return found
    found.pulled, found.ranges = pulled(port)
    starts = [int(path.name) for path in (root / "commitlog").iterdir()]
    found.log_start = min(starts, default=0)
    ends = [one.log_offset + one.size for some in found.pulled.values() for one in some]
    found.log_end = max(ends, default=0)
    return found


def pulled(
    port: int, *, stopped: bool = False
) -> tuple[dict[Queue, list[Record]], dict[Queue, tuple[int, int]]]:
    """The records that consumers get of the topic's queues, and the queues' first and next offsets.
    It looks at no file of the store: their disk may fail."""
    records, ranges = {}, {}
    with Link(port) as link:
        for queue_id in range(QUEUES):
            key = (TOPIC, queue_id)
            records[key], ranges[key] = link.read_queue(TOPIC, queue_id, stopped=stopped)
    return records, ranges
