"""Claims about when full disks refuse sends: which path counts, what is said, how it ends."""

import errno
import os

from aerobee.store.disk.disk_watch import DiskWatch
from aerobee.store.disk.files import Clock, DiskSpace, Files
from aerobee.store.disk.store_health import Health

_SIZE = 1_000


class Disks(Files):
    """Disks filled by the test, by path; a path that is not set cannot be asked."""

    def __init__(self, **ratios: float) -> None:
        self.ratios = ratios

    def disk_space(self, path: str) -> DiskSpace:
        if path not in self.ratios:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        used = round(self.ratios[path] * _SIZE)
        return DiskSpace(used, _SIZE - used)


class Stopwatch(Clock):
    """Intervals that the test moves."""

    seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


def watch(disks: Disks, logs: tuple[str, ...] = ("a",)) -> tuple[DiskWatch, Health, Stopwatch]:
    health, clock = Health(), Stopwatch()
    disk = DiskWatch(
        files=disks,
        clock=clock,
        health=health,
        log_directories=logs,
        queue_directory="queues",
        warning_ratio=0.9,
    )
    return disk, health, clock


def test_refusal_names_the_path_how_full_and_the_setting() -> None:
    disk, health, _ = watch(Disks(a=0.95, queues=0.5))
    disk.look()
    reason = health.reason()
    assert reason is not None
    for part in ("disk of a is 95.0% full", "90%", "disk_warning_ratio", "by themselves"):
        assert part in reason


def test_ratio_at_the_limit_is_not_above_it() -> None:
    disk, health, _ = watch(Disks(a=0.9, queues=0.9))
    disk.look()
    assert health.reason() is None


def test_emptiest_of_several_log_disks_decides() -> None:
    disks = Disks(a=0.95, b=0.5, queues=0.5)
    disk, health, _ = watch(disks, ("a", "b"))
    disk.look()
    assert health.reason() is None
    disks.ratios["b"] = 0.92
    disk.look(at_once=True)
    reason = health.reason()
    assert reason is not None
    assert "disk of a is 95.0% full" in reason
    assert "disk of b is 92.0% full" in reason


def test_full_disk_of_the_queues_refuses_as_well() -> None:
    disk, health, _ = watch(Disks(a=0.1, queues=0.95))
    disk.look()
    assert "disk of queues is 95.0% full" in (health.reason() or "")


def test_sends_resume_by_themselves_ten_seconds_later_at_most() -> None:
    disks = Disks(a=0.95, queues=0.1)
    disk, health, clock = watch(disks)
    disk.look()
    disks.ratios["a"] = 0.89
    clock.seconds += 9.9
    disk.look()
    assert health.refusing
    clock.seconds += 0.2
    disk.look()
    assert not health.refusing
    assert disk.ratios == {"a": 0.89, "queues": 0.1}


def test_disk_that_cannot_be_asked_leaves_things_as_they_are() -> None:
    disks = Disks(a=0.95, queues=0.95)
    disk, health, _ = watch(disks)
    disk.look()
    disks.ratios.clear()
    disk.look(at_once=True)
    assert health.refusing
    disks.ratios["queues"] = 0.1
    disk.look(at_once=True)
    assert not health.refusing
