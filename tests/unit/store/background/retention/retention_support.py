"""Shared by the tests of deletion: a store whose marks keep up, hours, a way to its owner."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from aerobee.config.model import Settings
from aerobee.store.background.retention.deletion_plan import RetentionPlan
from aerobee.store.disk.files import Files
from aerobee.store.message_store import MessageStore
from tests.unit.store.support import FIRST_MS, SEGMENT, ManualClock, fill, small_settings

T = TypeVar("T")
HOUR_MS = 3_600_000


class Hours(ManualClock):
    """A clock that a test sets; its intervals follow, and may be made longer with `seconds`."""

    seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds + (self.time_ms - FIRST_MS) / 1000

    @property
    def hour(self) -> int:
        return time.localtime(self.time_ms / 1000).tm_hour

    def go_to_hour(self, hour: int) -> None:
        """Forward to the next time that it is `hour` o'clock here."""
        while self.hour != hour:
            self.time_ms += HOUR_MS


def local_hour(time_ms: int = FIRST_MS) -> int:
    return time.localtime(time_ms / 1000).tm_hour


def retention_settings(path: Path, **changes: object) -> Settings:
    """Everything is synced as soon as it is there; deletion does not pause, and no hour is set."""
    values: dict[str, object] = {
        "flush_interval_ms": 1,
        "flush_least_pages": 0,
        "consume_queue_flush_interval_ms": 1,
        "consume_queue_flush_thorough_interval_ms": 0,
        "delete_hours": "",
        "delete_commit_log_pause_ms": 0,
        "delete_consume_queue_pause_ms": 0,
        "disk_max_used_percent": 95,
        "disk_force_ratio": 1.0,
    }
    return small_settings(path, **(values | changes))


def open_store(
    path: Path, clock: Hours | None = None, files: Files | None = None, **changes: object
) -> MessageStore:
    return MessageStore.open(
        retention_settings(path, **changes), files=files, clock=clock or Hours()
    )


def fill_segments(store: MessageStore, segments: int, *, queues: int = 1) -> list[bytes]:
    """Append messages until the log has this number of segments; all are durable and synced in the
    queues then."""
    made: list[bytes] = []
    while len(names(store)) < segments:
        made += fill(store, 4, queues=queues)
    settle(store)
    return made


def names(store: MessageStore) -> list[int]:
    """Where the segments begin that the store has."""
    return [segment.start for segment in store._parts.segments.segments]


def settle(store: MessageStore) -> None:
    """Wait until all that was put is durable, dispatched and synced in the queues."""
    store.dispatch()
    store.request_flush()
    wait_until(lambda: store._offsets.safe_end >= store.written)


def still(store: MessageStore) -> None:
    """End the store's own threads, so that nobody writes while a test copies the directory."""
    settle(store)
    store._flusher.stop()
    store._queue_flusher.stop()


def wait_until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(10_000):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError("did not happen in time")


def on_owner(call: Callable[[], T]) -> T:
    """The test's thread is worker and owner in one."""
    return call()


def run(store: MessageStore) -> RetentionPlan:
    return store.retention.run(on_owner)


def log_files(path: Path) -> list[int]:
    """Where the segment files on the disk begin, the one made ahead left out."""
    found = sorted(int(name.name) for name in (path / "commitlog").iterdir())
    return [
        start
        for start in found
        if (path / "commitlog" / f"{start:020d}").read_bytes()[0:8] != bytes(8)
    ]


__all__ = [
    "FIRST_MS",
    "HOUR_MS",
    "SEGMENT",
    "Hours",
    "fill_segments",
    "local_hour",
    "log_files",
    "names",
    "on_owner",
    "open_store",
    "retention_settings",
    "run",
    "settle",
    "still",
    "wait_until",
]
