"""Claims about warming new segments: pages are touched, locked and synced, when, and by whom."""

import errno
import mmap
import threading
from pathlib import Path

import pytest

from aerobee.store.errors import StoreBroken
from aerobee.store.message_store import MessageStore
from tests.contract.storage.test_files import locked_kib
from tests.faulty_files import FaultyFiles
from tests.unit.store.flush.test_durability import wait_until
from tests.unit.store.support import (
    ManualClock,
    bodies,
    fill,
    log_segment,
    message,
    small_settings,
    tree,
)

SEGMENT = 1 << 16
PAGES = SEGMENT // 4096


class Watched(FaultyFiles):
    """Notes what of which segment is touched, synced, and by which thread."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.steps: list[str] = []
        self.threads: set[str] = set()

    def zero_memory(self, memory: mmap.mmap, position: int, length: int) -> None:
        self.steps.append(f"touch {position // 4096}+{length // 4096}")
        self.threads.add(threading.current_thread().name)
        super().zero_memory(memory, position, length)

    def data_sync(self, fd: int) -> None:
        if "commitlog" in self._paths[fd]:
            self.steps.append("sync")
        super().data_sync(fd)

    def sync_directory(self, path: str) -> None:
        if path.endswith("commitlog"):
            self.steps.append("made")
        super().sync_directory(path)


def warm_store(tmp_path: Path, files: FaultyFiles | None = None, **changes: object) -> MessageStore:
    values: dict[str, object] = {
        "warm_segments": True,
        "commit_log_segment_bytes": SEGMENT,
        "flush_interval_ms": 3_600_000,
    }
    return MessageStore.open(small_settings(tmp_path, **(values | changes)), files)


def test_every_page_is_touched_by_the_allocation_thread_before_the_segment_is_used(
    tmp_path: Path,
) -> None:
    files = Watched(tmp_path)
    store = warm_store(tmp_path, files)
    store.log.put(message())
    assert files.steps[:2] == [f"touch 0+{PAGES}", "made"]
    wait_until(lambda: files.steps[2:] == [f"touch 0+{PAGES}", "made"])
    assert files.threads == {"aerobee-allocate"}
    assert store.close()


def test_sync_flush_syncs_on_the_way_and_at_the_end(tmp_path: Path) -> None:
    files = Watched(tmp_path)
    store = warm_store(tmp_path, files, flush_disk_type="SYNC_FLUSH", warm_flush_pages=6)
    store.log.make_ahead()
    wait_until(lambda: "made" in files.steps)
    assert files.steps == ["touch 0+6", "sync", "touch 6+6", "sync", "touch 12+4", "sync", "made"]
    assert store.close()


def test_segments_are_locked_until_they_are_full_and_synced(tmp_path: Path) -> None:
    before = locked_kib()
    store = warm_store(tmp_path)
    store.log.put(message(b"." * 2000))
    wait_until(lambda: locked_kib() == before + 2 * 64)  # the first and the next
    while store.written < SEGMENT:
        store.log.put(message(b"." * 2000))
    wait_until(lambda: locked_kib() == before + 3 * 64)
    assert store._sync.sync()
    assert locked_kib() == before + 2 * 64
    assert store.close()
    assert locked_kib() == before


def test_refused_lock_is_said_once_and_harmless(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles(tmp_path)
    files.fail("lock_memory", errno.ENOMEM)
    store = warm_store(tmp_path, files)
    for _ in range(100):
        store.log.put(message(b"." * 2000))
    assert store._sync.sync()
    assert caplog.text.count("LimitMEMLOCK=) to 128 KiB") == 1
    assert files.count("unlock_memory") == 0
    store.dispatch()
    assert len(bodies(store)) == 100
    assert store.close()


def test_files_are_the_same_bytes_warmed_or_not(tmp_path: Path) -> None:
    trees = []
    for name, warm in (("warm", True), ("cold", False)):
        clock = ManualClock()
        settings = small_settings(tmp_path / name, warm_segments=warm)
        store = MessageStore.open(settings, clock=clock)
        fill(store, 80)
        assert store.close()
        trees.append({part: tree(tmp_path / name, part) for part in ("commitlog", "consumequeue")})
    assert trees[0] == trees[1]


def test_segment_that_cannot_be_warmed_is_not_made(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    files.fail("data_sync", errno.EIO, "commitlog", times=1)
    store = warm_store(tmp_path, files, flush_disk_type="SYNC_FLUSH")
    with pytest.raises(StoreBroken, match="the sync of"):
        store.log.put(message())
    assert not log_segment(tmp_path).exists()
    store.close()


def test_segment_that_goes_on_after_a_restart_is_left_as_it_is(tmp_path: Path) -> None:
    store = warm_store(tmp_path, warm_segments=False)
    made = fill(store, 10)
    assert store.close()
    files = Watched(tmp_path)
    store = warm_store(tmp_path, files)
    assert bodies(store) == made
    assert files.steps == []
    assert store.close()


def test_nothing_is_touched_or_locked_unless_asked_for(tmp_path: Path) -> None:
    files = Watched(tmp_path)
    store = warm_store(tmp_path, files, warm_segments=False)
    fill(store, 600)
    assert store.close()
    assert not any(step.startswith("touch") for step in files.steps)
    assert files.count("lock_memory") == 0


def test_segment_in_a_buffer_is_not_warmed_but_one_without_is(tmp_path: Path) -> None:
    files = Watched(tmp_path)
    store = warm_store(tmp_path, files, transient_pool_enabled=True, transient_pool_buffers=1)
    store.log.put(message())
    wait_until(lambda: files.steps == ["made", f"touch 0+{PAGES}", "made"])
    assert store.close()
