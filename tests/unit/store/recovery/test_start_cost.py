"""Claims about what a start costs for each queue, counted at the door to the operating system.

A store has thousands of queues, and each call for each of them is felt. A start needs only the
first and the last entries of a queue, which one look gives.
"""

from collections import Counter
from pathlib import Path

import pytest

from aerobee.store.disk.files import Files
from aerobee.store.errors import StoreBroken
from aerobee.store.message_store import MessageStore
from tests.faulty_files import FaultyFiles
from tests.unit.store.support import (
    adopt,
    fill,
    flip,
    kill_image,
    log_segment,
    message,
    queue_file,
    small_settings,
    tree,
)

QUEUES = 120
# A process with few descriptors keeps this number open: fewer than there are queues.
OPEN = 64


class Counted(Files):
    """Counts what is done to files of queues."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._queue_fds: set[int] = set()

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        fd = super().open(path, create=create, read_only=read_only)
        if "/consumequeue/" in path:
            self.counts["open"] += 1
            self._queue_fds.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self._queue_fds.discard(fd)
        super().close(fd)

    def read(self, fd: int, position: int, size: int) -> bytes:
        self.counts["read"] += fd in self._queue_fds
        return super().read(fd, position, size)

    def sync(self, fd: int) -> None:
        self.counts["sync"] += fd in self._queue_fds
        super().sync(fd)

    def forget_cached(self, fd: int) -> None:
        self.counts["forget"] += fd in self._queue_fds
        super().forget_cached(fd)

    def names(self, path: str) -> list[str]:
        self.counts["names"] += "/consumequeue/" in path
        return super().names(path)


@pytest.fixture
def few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aerobee.store.disk.descriptors.default_capacity", lambda: OPEN)


def stopped(tmp_path: Path, *, synced: bool) -> tuple[Path, Path]:
    """A store of 240 messages, 12 a queue file: as a kill leaves it, and after a clean stop."""
    running = tmp_path / "running"
    store = MessageStore.open(
        small_settings(running, flush_interval_ms=60_000, consume_queue_flush_interval_ms=60_000)
    )
    fill(store, 2 * QUEUES, queues=QUEUES)
    store._sync.sync()
    if synced:
        store._queue_flusher.flush(0)
    store._offsets.save()
    killed = adopt(kill_image(running, tmp_path / "killed"))
    assert store.close()
    return killed, running


@pytest.mark.parametrize("end", ["clean", "killed"])
@pytest.mark.usefixtures("few_descriptors")
def test_start_opens_each_synced_queue_once_and_syncs_none(tmp_path: Path, end: str) -> None:
    killed, clean = stopped(tmp_path, synced=True)
    files = Counted()
    store = MessageStore.open(small_settings(killed if end == "killed" else clean), files)
    assert store.recovery.clean_stop == (end == "clean")
    counts = files.counts
    # A start reads each file's extents, its first entries and its last entries.
    assert (counts["open"], counts["read"]) == (QUEUES, 3 * QUEUES)
    assert (counts["sync"], counts["forget"]) == (0, 0)
    # Its topic once, the queue's own directory once.
    assert counts["names"] == QUEUES + 1
    store.close()


@pytest.mark.usefixtures("few_descriptors")
def test_start_after_a_kill_opens_an_unsynced_queue_twice(tmp_path: Path) -> None:
    killed, _ = stopped(tmp_path, synced=False)
    files = Counted()
    store = MessageStore.open(small_settings(killed), files)
    counts = files.counts
    assert (counts["sync"], counts["forget"]) == (QUEUES, QUEUES)
    assert counts["open"] <= 3 * QUEUES
    assert counts["read"] <= 8 * QUEUES
    store.close()


def test_second_try_syncs_what_the_first_one_took_back(tmp_path: Path) -> None:
    running = tmp_path / "running"
    store = MessageStore.open(
        small_settings(running, flush_interval_ms=60_000, consume_queue_flush_interval_ms=60_000)
    )
    fill(store, 18, queues=2)
    store._sync.sync()
    store._queue_flusher.flush(0)
    torn = store.log.put(message(b"torn", queue_id=1))
    store.dispatch()
    store._offsets.save()
    root = adopt(kill_image(running, tmp_path / "killed"))
    assert store.close()
    size = small_settings(root).commit_log_segment_bytes
    start = torn.log_offset // size * size
    flip(log_segment(root, start), torn.log_offset - start + 4)
    files = FaultyFiles(root)
    files.fail("data_sync", part="/consumequeue/")
    with pytest.raises(StoreBroken):
        MessageStore.open(small_settings(root), files)
    # The content of the files now ends below the synced mark, and the disk has more.
    assert not any(queue_file(root, queue_id=1).read_bytes()[180:])
    files.heal()
    store = MessageStore.open(small_settings(root), files)
    assert store.recovery.entries_cut == 0
    files.power_cut(tmp_path / "cut")
    assert tree(tmp_path / "cut", "consumequeue") == tree(root, "consumequeue")
    assert store.close()
