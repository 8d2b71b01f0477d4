"""Claims about the durable mark: its writer, its waiters, and the effect of a failed sync."""

import errno
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from aerobee.store.errors import StoreBroken
from aerobee.store.message_store import MessageStore
from aerobee.store.segments.results import GetStatus
from tests.faulty_files import FaultyFiles
from tests.unit.store.support import (
    FIRST_MS,
    SEGMENT,
    Heard,
    ManualClock,
    bodies,
    kill_image,
    message,
    small_settings,
)

NEVER_MS = 3_600_000


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait for something another thread does."""
    done = threading.Event()
    for _ in range(int(timeout_s * 1000)):
        if condition():
            return
        done.wait(0.001)
    raise AssertionError("did not happen in time")


class GatedFiles(FaultyFiles):
    """Syncs of the commit log wait until the test opens the gate."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()

    def data_sync(self, fd: int) -> None:
        if "commitlog" in self._paths[fd]:
            self.waiting.set()
            assert self.gate.wait(20)
        super().data_sync(fd)


def sync_store(
    tmp_path: Path, files: FaultyFiles | None = None, listener: Heard | None = None
) -> MessageStore:
    settings = small_settings(tmp_path, flush_disk_type="SYNC_FLUSH", flush_interval_ms=NEVER_MS)
    return MessageStore.open(settings, files=files, listener=listener)


def test_sync_flush_shows_consumers_durable_messages_only(tmp_path: Path) -> None:
    files = GatedFiles(tmp_path)
    store = sync_store(tmp_path, files)
    first = store.log.put(message(b"first"))
    store.request_flush()
    assert store.wait_durable(first.end, 10)
    files.gate.clear()
    files.waiting.clear()
    second = store.log.put(message(b"second"))
    store.request_flush()
    assert files.waiting.wait(10)
    assert [arrival.queue_offset for arrival in store.dispatch()] == [0]
    assert store.dispatched == store.durable == first.end
    assert bodies(store) == [b"first"]
    assert not store.wait_durable(second.end, 0)
    files.gate.set()
    assert store.wait_durable(second.end, 10)
    assert [arrival.queue_offset for arrival in store.dispatch()] == [1]
    assert bodies(store) == [b"first", b"second"]
    assert store.close()


def test_one_sync_covers_all_that_gathered_while_the_last_one_ran(tmp_path: Path) -> None:
    files = GatedFiles(tmp_path)
    heard = Heard()
    store = sync_store(tmp_path, files, heard)
    files.gate.clear()
    first = store.log.put(message())
    store.request_flush()
    assert files.waiting.wait(10)
    ends = []
    for _ in range(10):
        ends.append(store.log.put(message()).end)
        store.request_flush()
    before = files.count("data_sync")
    files.gate.set()
    assert store.wait_durable(ends[-1], 10)
    wait_until(lambda: len(heard.durable) == 2)
    assert files.count("data_sync") - before == 2
    assert heard.durable == [first.end, ends[-1]]
    assert store.stats.commit_log_sync_times.count == 2
    assert store.close()


def test_a_sync_covers_every_segment_it_passes(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    store = sync_store(tmp_path, files)
    for _ in range(30):
        end = store.log.put(message(b"." * 400)).end
    store.request_flush()
    assert store.wait_durable(end, 10)
    for start in range(0, end, SEGMENT):
        assert files.count("data_sync", f"commitlog/{start:020d}") == 1
    assert store.close()


def test_async_flush_waits_for_enough_pages(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    settings = small_settings(
        tmp_path,
        commit_log_segment_bytes=1 << 20,
        flush_interval_ms=1,
        flush_least_pages=4,
        flush_thorough_interval_ms=NEVER_MS,
    )
    store = MessageStore.open(settings, files=files)
    for _ in range(4):
        store.log.put(message(b"." * 2900))
    ticks = store._flusher._turned_at
    wait_until(lambda: store._flusher._turned_at > ticks)
    assert store.durable == 0
    while store.written < 4 * 4096:
        store.log.put(message(b"." * 2900))
    assert store.wait_durable(4 * 4096, 10)
    assert store.close()


def test_async_flush_is_thorough_now_and_then(tmp_path: Path) -> None:
    settings = small_settings(
        tmp_path, flush_interval_ms=1, flush_least_pages=1000, flush_thorough_interval_ms=30
    )
    store = MessageStore.open(settings)
    end = store.log.put(message()).end
    assert store.wait_durable(end, 10)
    assert store.close()


def test_async_flush_that_is_not_timed_is_woken(tmp_path: Path) -> None:
    settings = small_settings(
        tmp_path, flush_interval_ms=NEVER_MS, flush_timed=False, flush_least_pages=0
    )
    store = MessageStore.open(settings)
    end = store.log.put(message()).end
    store.request_flush()
    assert store.wait_durable(end, 10)
    assert store.close()


def test_full_segment_is_synced_without_waiting_for_pages(tmp_path: Path) -> None:
    settings = small_settings(
        tmp_path, flush_interval_ms=1, flush_least_pages=1000, flush_thorough_interval_ms=NEVER_MS
    )
    store = MessageStore.open(settings)
    while store.written < SEGMENT:
        store.log.put(message(b"." * 1000))
    assert store.wait_durable(SEGMENT, 10)
    assert store.close()


# --- a failed sync --------------------------------------------------------------------------------


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_failed_sync_breaks_the_store_for_good(tmp_path: Path, flush: str) -> None:
    files = FaultyFiles(tmp_path)
    settings = small_settings(
        tmp_path,
        flush_disk_type=flush,
        flush_interval_ms=NEVER_MS,
        flush_timed=False,
        flush_least_pages=0,
    )
    heard = Heard()
    store = MessageStore.open(settings, files=files, listener=heard)
    good = store.log.put(message(b"good"))
    store.request_flush()
    assert store.wait_durable(good.end, 10)
    store.dispatch()
    files.fail("data_sync", errno.EIO, "commitlog", times=1)
    bad = store.log.put(message(b"bad"))
    store.dispatch()
    store.request_flush()
    # A waiter learns of it at once, not at its time-out.
    assert not store.wait_durable(bad.end, 3600)
    wait_until(lambda: len(heard.failures) == 1)
    assert "Input/output error" in str(heard.failures[0])
    assert store.not_writable_reason() == str(heard.failures[0])
    for _ in range(2):
        with pytest.raises(StoreBroken, match="restart"):
            store.log.put(message())
        with pytest.raises(StoreBroken):
            store.log.put_batch([message()])
    # No second try: it would succeed without having written anything.
    assert store.durable == good.end
    assert files.count("data_sync", "commitlog") == 2
    # Reading goes on, up to what is known to be on the disk.
    assert bodies(store) == [b"good"]
    after = store.reader.get("Orders", 0, 1, 10)
    assert (after.status, after.next_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, 1)
    assert store.reader.record_at(bad.log_offset) is None
    assert store.dispatch() == []
    assert not store.close()
    assert (tmp_path / "abort").exists()
    again = MessageStore.open(settings)
    assert bodies(again)[0] == b"good"
    again.close()


@pytest.mark.parametrize("part", ["consumequeue", "index", "checkpoint"])
def test_failed_sync_of_a_derived_file_breaks_the_store_too(tmp_path: Path, part: str) -> None:
    files = FaultyFiles(tmp_path)
    settings = small_settings(
        tmp_path, consume_queue_flush_interval_ms=1, consume_queue_flush_thorough_interval_ms=2
    )
    store = MessageStore.open(settings, files=files)
    files.fail("data_sync", errno.EIO, part)
    files.fail("sync", errno.EIO, part)
    store.log.put(message(unique="U"))
    store.dispatch()
    wait_until(lambda: store.not_writable_reason() is not None)
    with pytest.raises(StoreBroken):
        store.log.put(message())
    assert not store.close()


def test_failed_write_of_a_queue_breaks_the_store(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    store = MessageStore.open(small_settings(tmp_path), files=files)
    files.fail("write", errno.EIO, "consumequeue", times=1)
    store.log.put(message(b"kept"))
    assert store.dispatch() == []
    with pytest.raises(StoreBroken):
        store.log.put(message())
    assert not store.close()
    store = MessageStore.open(small_settings(tmp_path))
    assert bodies(store) == [b"kept"]
    store.close()


def test_failed_sync_of_the_logs_directory_breaks_the_store(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    store = MessageStore.open(small_settings(tmp_path), files=files)
    files.fail("sync_directory", errno.EIO, "commitlog")
    with pytest.raises(StoreBroken):
        store.log.put(message())
    files.heal()
    with pytest.raises(StoreBroken):
        store.log.put(message())
    assert not store.close()


def test_failed_last_sync_leaves_the_abort_mark(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    store = sync_store(tmp_path, files)
    store.log.put(message())
    files.fail("data_sync", errno.EIO, "commitlog")
    assert not store.close()
    assert (tmp_path / "abort").exists()


def test_restart_after_a_failed_sync_reads_the_disk_and_not_the_cache(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    store = sync_store(tmp_path, files)
    store.log.put(message())
    files.fail("data_sync", errno.EIO, "commitlog")
    store.close()
    files.heal()
    forgotten: list[str] = []
    files.forget_cached = lambda fd: forgotten.append(files._paths[fd])  # type: ignore[method-assign]
    sync_store(tmp_path, files).close()
    assert any("commitlog" in path for path in forgotten)


# --- the checkpoint -------------------------------------------------------------------------------


def test_checkpoint_never_runs_ahead_of_the_syncs(tmp_path: Path) -> None:
    clock = ManualClock()
    files = FaultyFiles(tmp_path)
    settings = small_settings(
        tmp_path,
        commit_log_segment_bytes=1 << 16,
        flush_interval_ms=1,
        flush_least_pages=0,
        consume_queue_flush_interval_ms=1,
        consume_queue_flush_thorough_interval_ms=3,
    )
    store = MessageStore.open(settings, files=files, clock=clock)
    image = tmp_path.parent / (tmp_path.name + "-image")
    for number in range(40):
        clock.time_ms += 10
        store.log.put(message(b"%d" % number, unique=f"U{number}"))
        store.dispatch()
        if number % 8 == 0:
            wait_until(lambda: store.durable == store.written)
            target = image / str(number)
            files.power_cut(target)
            if not (target / "checkpoint").exists():
                continue
            physic, logics, _ = struct.unpack(">qqq", (target / "checkpoint").read_bytes()[:24])
            log = (target / "commitlog" / f"{0:020d}").read_bytes()
            queue = target / "consumequeue" / "Orders" / "0"
            units = sorted(queue.iterdir()) if queue.exists() else []
            known = b"".join(path.read_bytes() for path in units)
            stored = [FIRST_MS + 10 * n for n in range(1, number + 2)]
            in_log = sum(1 for n in range(number + 1) if b"UNIQ_KEY\x01U%d" % n in log)
            in_queue = sum(
                1 for at in range(0, len(known), 20) if known[at + 8 : at + 12].strip(b"\0")
            )
            assert sum(1 for at in stored if at <= physic) <= in_log
            assert sum(1 for at in stored if at <= logics) <= in_queue
    assert store.close()


# --- power cuts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [40, 700, 2500])
def test_power_cut_takes_nothing_that_was_durable(tmp_path: Path, size: int) -> None:
    root = tmp_path / "store"
    files = FaultyFiles(root)
    root.mkdir()
    store = sync_store(root, files)
    durable: list[tuple[int, int, bytes]] = []
    for number in range(40):
        body = b"%04d" % number + b"." * size
        queue_id = number % 3
        result = store.log.put(message(body, queue_id=queue_id, unique=f"U{number}"))
        if number % 4 == 3:
            store.request_flush()
            assert store.wait_durable(result.end, 10)
            store.dispatch()
            durable = [(q, o, b) for q, o, b in [*durable, (queue_id, result.queue_offset, body)]]
        if number % 13 == 12:
            image = tmp_path / f"cut{number}"
            files.power_cut(image)
            again = MessageStore.open(small_settings(image))
            for queue_id, queue_offset, body in durable:
                assert bodies(again, queue_id=queue_id)[queue_offset] == body, number
            assert again.log.put(message(b"next")).queue_offset >= 0
            again.close()
    assert store.close()
    image = kill_image(root, tmp_path / "whole")
    files.power_cut(tmp_path / "cut")
    for path in (image, tmp_path / "cut"):
        again = MessageStore.open(small_settings(path))
        assert again.recovery.clean_stop
        assert sum(len(bodies(again, queue_id=q)) for q in range(3)) == 40
        again.close()
