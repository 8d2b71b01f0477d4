"""Calls that fail, and what must not come of it. Each was found by failing every n-th call
(tests/sim/disk/test_nth_call.py)."""

import errno
import os
from pathlib import Path

import pytest

from aerobee.store.errors import SegmentCreateFailed, StoreNotWritable
from aerobee.store.message_store import MessageStore
from aerobee.store.queues.consume_queue import ConsumeQueue
from tests.faulty_files import FaultyFiles
from tests.sim.disk.failing_calls import FailingFiles
from tests.sim.storage.stepped_store import SteppedClock, SteppedStore
from tests.unit.store.support import bodies, message, small_settings

ROOT = Path("/store")


def started(root: Path, files: FaultyFiles | FailingFiles) -> SteppedStore:
    settings = small_settings(root, consume_queue_flush_interval_ms=3_600_000)
    return SteppedStore.open(settings, files, SteppedClock())


def later(store: SteppedStore) -> None:
    """Let the pauses between two tries pass."""
    clock = store._parts.clock
    assert isinstance(clock, SteppedClock)
    clock.passed_s += 20


def test_unused_index_file_that_cannot_be_removed_does_not_keep_the_lock(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    store = started(tmp_path, files)
    store.log.put(message(unique="U"))
    files.fail("create", errno.EIO, "consumequeue", times=1)
    files.fail("remove", errno.EIO, "index")
    store.dispatch()  # room in the index was made, the queue cannot be
    assert not store.close()
    files.heal()
    again = started(tmp_path, files)
    assert bodies(again) == [b"hello"]
    assert again.close()


def test_closing_again_gives_the_same_answer(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    store = started(tmp_path, files)
    store.log.put(message())
    files.fail("data_sync", errno.EIO, "commitlog")
    assert [store.close(), store.close()] == [False, False]
    files.heal()
    again = started(tmp_path, files)
    assert [again.close(), again.close()] == [True, True]


def test_full_disk_leaves_the_times_that_were_noted(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    store = started(tmp_path, files)
    files.fail("write", errno.ENOSPC, "checkpoint", times=2)
    for _ in range(4):
        store.log.put(message())
        store.dispatch()
        assert store.flush_queues(thorough=True)
    assert store.broken is None
    assert store.close()
    assert (tmp_path / "checkpoint").stat().st_size == 4096


def test_too_many_open_files_refuse_sends_until_there_are_fewer(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    store = started(tmp_path, files)
    store.log.put(message(b"1"))
    files.fail("create", errno.EMFILE, "consumequeue")
    assert store.dispatch() == []
    with pytest.raises(StoreNotWritable, match="too many files are open"):
        store.log.put(message(b"refused"))
    files.heal()
    later(store)
    store.log.put(message(b"2"))
    store.dispatch()
    assert bodies(store) == [b"1", b"2"]
    assert store.close()


def test_too_many_open_files_only_delay_a_new_segment(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    store = started(tmp_path, files)
    files.fail("sync_directory", errno.EMFILE, "commitlog", times=1)
    with pytest.raises(SegmentCreateFailed):
        store.log.put(message())
    assert store.broken is None
    later(store)
    store.log.put(message())
    assert store.close()


def test_names_not_synced_for_want_of_descriptors_are_synced_later(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    store = started(tmp_path, files)
    store.log.put(message(unique="U"))
    store.dispatch()
    for part in ("consumequeue", "index"):
        files.fail("sync_directory", errno.EMFILE, part, times=1)
        assert store.flush_queues(thorough=True)
    before = files.count("sync_directory", "Orders"), files.count("sync_directory", "index")
    assert store.flush_queues(thorough=True)
    after = files.count("sync_directory", "Orders"), files.count("sync_directory", "index")
    assert after[1] > before[1]
    files.power_cut(tmp_path.parent / "cut")
    names = {path.name for path in (tmp_path.parent / "cut").rglob("*")}
    assert {"consumequeue", "Orders", "0", "index"} <= names
    assert store.broken is None
    assert store.close()


class NothingNoted(FailingFiles):
    """The disk also refuses the note that a sync has failed."""

    refused = False

    def rename(self, source: str, target: str) -> None:
        if self.refused:
            raise OSError(errno.EIO, os.strerror(errno.EIO), target)
        super().rename(source, target)


@pytest.mark.parametrize("lost", ["consumequeue", "index"])
def test_what_a_failed_sync_took_is_made_again_though_nobody_could_note_it(lost: str) -> None:
    files = NothingNoted(ROOT)
    store = started(ROOT, files)
    store.log.put(message(b"1", unique="U1"))
    store.dispatch()
    assert store.sync_log()
    assert store.flush_queues(thorough=True)
    store.log.put(message(b"2", unique="U2"))
    store.dispatch()
    assert store.sync_log()
    store._offsets.save()  # says that both are dispatched, and the kernel had them
    files.fail_sync, files.refused = lost, True
    assert not store.flush_queues(thorough=True)
    store.abandon()
    files.fail_sync, files.refused = "", False
    again = started(ROOT, files)
    assert bodies(again) == [b"1", b"2"]
    found = [again.search.query("Orders", key, 9, 1, 1 << 62).records for key in ("U1", "U2")]
    assert [len(records) for records in found] == [1, 1]
    assert again.close()


def test_an_index_file_is_read_as_the_disk_has_it_after_a_failed_sync() -> None:
    """Mapped pages stay in the cache, whatever the kernel is told to forget."""
    files = FailingFiles(ROOT)
    store = started(ROOT, files)
    for number in range(3):
        store.log.put(message(unique=f"U{number}"))
    store.dispatch()
    assert store.sync_log()
    files.fail_sync = "index"
    assert not store.flush_queues(thorough=True)
    store.abandon()
    again = started(ROOT, files)
    image = files.image()
    (path,) = [path for path in image if path.startswith(f"{ROOT}/index/")]
    assert int.from_bytes((image[path] or b"")[36:40], "big") == 4
    assert len(again.search.query("Orders", "U1", 9, 1, 1 << 62).records) == 1
    assert again.close()


def test_a_bug_in_a_round_of_dispatch_leaves_no_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    store.log.put(message(body=b"first"))
    store.log.put(message(body=b"other", queue_id=1))
    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueue, "write_entries", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            store.dispatch()
    store.log.put(message(body=b"second"))
    arrivals = store.dispatch()
    assert [(found.queue_id, found.queue_offset) for found in arrivals] == [(0, 0), (1, 0), (0, 1)]
    assert bodies(store) == [b"first", b"second"]
    assert bodies(store, queue_id=1) == [b"other"]
    assert store.close()
