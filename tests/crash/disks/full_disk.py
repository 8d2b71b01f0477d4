"""Small disks that can be filled, and a daemon on them whose clients write down what they hear."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aerobee.protocol.frames.command import Command
from tests.crash.disks.mounts import mount, mounted_image, sync_file_system, unmount
from tests.crash.judges.checker import Violation, check
from tests.crash.judges.history import History, Promise
from tests.crash.judges.restarted import served
from tests.crash.power_cuts.recorded_disk import make_file_system
from tests.crash.running.daemons import start_daemon
from tests.crash.running.link import SEND, SUCCESS, Link, send_fields
from tests.crash.running.traffic import QUEUES, Marks, Traffic
from tests.service.kit import Served

DISK_BYTES = 64 << 20
UNAVAILABLE = 14
#: Answers within this long, or it counts as standing still.
WAIT_S = 30.0
_SIZES = (30_000, 1_000, 10)
_MOST = 4_000
# Somebody whom nothing deletes for, so that only the test makes room.
KEEP = {"retention.clean_forcibly": "false"}


@contextmanager
def tmpfs(target: Path, options: str = f"size={DISK_BYTES}") -> Iterator[Path]:
    """A disk in memory, mounted for the length of a `with` block."""
    target.mkdir()
    mount("tmpfs", target, "tmpfs", options)
    try:
        yield target
    finally:
        unmount(target)


@contextmanager
def small_ext4(target: Path, options: str = "", layout: str = "ext4") -> Iterator[Path]:
    """An ext4 of 64 MB in a file."""
    target.mkdir()
    image = make_file_system(target.with_name("image"), layout, DISK_BYTES)
    with mounted_image(image, target, options):
        yield target


def free_bytes(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def ballast(disk: Path, leave: int) -> Path:
    """A file that leaves only this number of bytes of the disk."""
    path = disk / "ballast"
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        os.posix_fallocate(fd, 0, free_bytes(disk) - leave)
    finally:
        os.close(fd)
    return path


def use_all(disk: Path) -> Path:
    """A file that takes what is left, to the last block.

    A file system that allocates late counts more blocks as taken than it needs, and gives them
    back once all is written out; so the disk is full only when nothing fits after a sync either.
    """
    path = disk / "rest"
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        while _filled(fd):
            sync_file_system(fd)
    finally:
        os.close(fd)
    return path


def _filled(fd: int) -> int:
    """Bytes that could be added to a file before its disk was full."""
    added = 0
    try:
        while True:
            added += os.write(fd, bytes(4096))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    return added


@dataclass
class Story:
    """One daemon after the other on `store`, and everything their clients were told."""

    folder: Path
    store: Path
    flush: str
    seed: int
    more: Mapping[str, object] = field(default_factory=lambda: KEEP)
    history: History = field(default_factory=History)

    def __post_init__(self) -> None:
        self.traffic = Traffic(self.history, Marks(lambda _: None), self.seed)
        self._rng = random.Random(self.seed)

    @contextmanager
    def daemon(self, control: str = "", **options: object) -> Iterator[Served]:
        """A running daemon that is ready."""
        with self.started(control, **options) as daemon:
            daemon.ready()
            yield daemon

    @contextmanager
    def started(self, control: str = "", **options: object) -> Iterator[Served]:
        """A daemon that may not come to be ready."""
        daemon = start_daemon(
            self.folder / "daemon", self.store, self.flush, control, self.more, **options
        )
        try:
            yield daemon
        finally:
            daemon.close()

    def send(self, link: Link, size: int) -> Command:
        """One message and its answer."""
        sent = self.traffic.make(0, self._rng.randrange(QUEUES), size)
        answer = link.call(SEND, send_fields(sent.topic, sent.queue_id, sent.properties), sent.body)
        self.traffic.note(sent, answer)
        return answer

    def fill(self, daemon: Served, sizes: Sequence[int] = _SIZES) -> Command:
        """Send until refused, then smaller ones until those are; the last refusal."""
        answer: Command | None = None
        with Link(daemon.port) as link:
            for size in sizes:
                for _ in range(_MOST):
                    answer = self.send(link, size)
                    if answer.code != SUCCESS:
                        break
                else:
                    raise AssertionError(f"{_MOST} messages, and the disk is not full")
        assert answer is not None
        return answer

    def sends_resume(self, daemon: Served, size: int = 1_000) -> None:
        """Send again and again; it must succeed by itself before long."""
        deadline = time.monotonic() + WAIT_S
        with Link(daemon.port) as link:
            while (answer := self.send(link, size)).code != SUCCESS:
                assert time.monotonic() < deadline, f"still refused: {answer.remark}"
                time.sleep(0.1)

    def wrong_with(self, daemon: Served, promise: Promise | None = None) -> list[Violation]:
        """Messages that the daemon does not serve as it promised. While segments go, a look that
        began before may end after: it is repeated."""
        promise = promise or Promise()
        deadline = time.monotonic() + (WAIT_S if promise.expiry else 0.0)
        while True:
            wrong = check(self.history, served(daemon.port, self.store), promise)
            if not wrong or time.monotonic() >= deadline:
                return wrong
            time.sleep(0.1)


def starts(daemon: Served) -> bool:
    """Whether it comes to be ready; False when it ends instead."""
    deadline = time.monotonic() + WAIT_S
    while daemon.process.poll() is None and time.monotonic() < deadline:
        try:
            daemon.wait_for("READY=1", 0.5)
        except AssertionError:
            continue
        print("it starts")
        return True
    print("it refuses to start:", daemon.log.splitlines()[-1][-300:])
    return False


def assert_refused_to_start(daemon: Served, disk: Path) -> None:
    """Its last line says that the disk is full, and where."""
    assert daemon.wait() == 1
    said = daemon.log.splitlines()[-1]
    assert said.startswith("aerobee: cannot start: the disk is full: "), said
    assert str(disk) in said


def assert_clean_refusal(answer: Command, where: Path) -> None:
    """Code 14, and a remark that says which path and how full."""
    remark = answer.remark or ""
    assert answer.code == UNAVAILABLE, f"{answer.code} {remark}"
    assert str(where) in remark, remark
    assert re.search(r"\d+(\.\d)?% full|disk is full", remark), remark


def assert_not_ready_but_live(daemon: Served) -> None:
    """Probes tell a full disk from a dead broker."""
    status, body = daemon.get("/ready")
    failed = [one["check"] for one in json.loads(body)["checks"] if not one["ok"]]
    assert status == 503, body
    assert {"store", "disk"} & set(failed), failed
    assert daemon.get("/live")[0] == 200
