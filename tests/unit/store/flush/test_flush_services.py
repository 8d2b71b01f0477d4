"""Claims about the flush services: when each of them syncs, and when not (FORMAT.md 3.4, 4.4).

The services are asked for single turns here, without their threads; test_durability.py has the
threads.
"""

import errno
import threading
from pathlib import Path

import pytest

from aerobee.store.flush.services import FlushService
from aerobee.store.message_store import MessageStore
from tests.faulty_files import FaultyFiles
from tests.unit.store.flush.test_durability import GatedFiles, sync_store, wait_until
from tests.unit.store.support import FIRST_MS, SEGMENT, ManualClock, fill, message, small_settings

NEVER_MS = 3_600_000


class Stopwatch(ManualClock):
    """Intervals that the test moves, too."""

    seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlushService, "start", lambda _service: None)


def turn(service: FlushService) -> bool:
    """One turn of the service in this thread, as if its interval were over."""
    service._interval_s = 0
    return service._tick()


def open_async(tmp_path: Path, **changes: object) -> tuple[MessageStore, Stopwatch, FaultyFiles]:
    clock, files = Stopwatch(), FaultyFiles(tmp_path)
    values: dict[str, object] = {
        "commit_log_segment_bytes": 1 << 20,
        "flush_least_pages": 2,
        "flush_thorough_interval_ms": 10_000,
    }
    settings = small_settings(tmp_path, **(values | changes))
    return MessageStore.open(settings, files, clock), clock, files


# --- FlushRealTime --------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_threads")
def test_thorough_interval_counts_from_the_last_thorough_turn(tmp_path: Path) -> None:
    store, clock, _ = open_async(tmp_path)
    ends = []
    for seconds, is_synced in ((9.9, False), (0.2, True), (9.9, False), (0.2, True)):
        clock.seconds += seconds
        ends.append(store.log.put(message()).end)
        assert turn(store._flusher)
        assert (store.durable == ends[-1]) is is_synced
    # Syncs for their number of pages in between do not put it off.
    clock.seconds += 9.9
    while store.written - store.durable < 3 * 4096:
        store.log.put(message(b"." * 1000))
    assert turn(store._flusher)
    assert store.durable == store.written
    clock.seconds += 0.2
    store.log.put(message())
    assert turn(store._flusher)
    assert store.durable == store.written
    store.close()


@pytest.mark.usefixtures("no_threads")
def test_least_pages_count_from_the_durable_mark(tmp_path: Path) -> None:
    store, _, files = open_async(tmp_path)
    while store.written < 2 * 4096:
        assert turn(store._flusher)
        assert store.durable == 0
        store.log.put(message(b"." * 1000))
    assert turn(store._flusher)
    durable = store.durable
    assert durable == store.written > 2 * 4096
    store.log.put(message(b"." * 1000))
    assert turn(store._flusher)
    assert store.durable == durable
    assert files.count("data_sync", "commitlog") == 1
    store.close()


@pytest.mark.usefixtures("no_threads")
def test_without_least_pages_each_turn_syncs_what_is_new_and_nothing_else(tmp_path: Path) -> None:
    store, _, files = open_async(tmp_path, flush_least_pages=0)
    for count in (1, 2, 3):
        end = store.log.put(message()).end
        assert turn(store._flusher)
        assert turn(store._flusher)
        assert store.durable == end
        assert files.count("data_sync", "commitlog") == count
    store.close()


@pytest.mark.usefixtures("no_threads")
@pytest.mark.parametrize("timed", [True, False])
def test_wake_shortens_the_pause_only_if_not_timed_and_there_is_enough(
    tmp_path: Path, timed: bool
) -> None:
    store, clock, _ = open_async(tmp_path, flush_timed=timed)
    woken = store._flusher._wake
    store.log.put(message())
    store.request_flush()
    assert not woken.is_set()
    while store.written < 2 * 4096:
        store.log.put(message(b"." * 1000))
    store.request_flush()
    assert woken.is_set() is not timed
    assert turn(store._flusher)
    assert not woken.is_set()
    store.log.put(message())
    clock.seconds += 10.1
    store.request_flush()
    assert woken.is_set() is not timed
    store.close()


@pytest.mark.usefixtures("no_threads")
def test_sync_lets_the_checkpoint_know_the_time_of_what_it_covered(tmp_path: Path) -> None:
    store, clock, _ = open_async(tmp_path, flush_least_pages=0)
    checkpoint = store._parts.checkpoint
    for count in (1, 2):
        clock.time_ms += 1000
        store.log.put(message())
        assert turn(store._flusher)
        assert checkpoint.physic_ms == FIRST_MS + count * 1000
    store.close()


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_close_syncs_what_nobody_asked_for(tmp_path: Path, flush: str) -> None:
    files = FaultyFiles(tmp_path)
    settings = small_settings(
        tmp_path,
        flush_disk_type=flush,
        flush_interval_ms=NEVER_MS,
        flush_least_pages=1000,
        flush_thorough_interval_ms=NEVER_MS,
    )
    store = MessageStore.open(settings, files=files)
    made = fill(store, 60)
    assert store.durable == 0
    assert store.close()
    assert store.durable == store.dispatched == store.written > SEGMENT
    files.power_cut(tmp_path / "cut")
    again = MessageStore.open(small_settings(tmp_path / "cut"))
    assert again.recovery.clean_stop
    assert again.max_offset("Orders", 0) == len(made)
    assert again.close()


# --- GroupCommit ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_threads")
def test_group_commit_takes_a_single_byte_over_a_segments_end(tmp_path: Path) -> None:
    store = sync_store(tmp_path)
    assert turn(store._flusher)
    assert store.durable == 0
    first = store.log.put(message())
    assert turn(store._flusher)
    assert store.durable == first.end
    while store.written < SEGMENT:
        last = store.log.put(message(b"." * 300))
    assert turn(store._flusher)
    assert store.durable == last.end > SEGMENT
    store.close()


def test_append_that_nobody_asks_for_is_synced_after_the_interval(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, flush_disk_type="SYNC_FLUSH", flush_interval_ms=5)
    store = MessageStore.open(settings)
    end = store.log.put(message()).end
    assert store.wait_durable(end, 10)
    assert store.close()


def test_requests_made_while_a_sync_runs_are_not_lost(tmp_path: Path) -> None:
    """The swap: requests that come in while the last are served are served next, without a
    pause."""
    files = GatedFiles(tmp_path)
    store = sync_store(tmp_path, files)
    for _ in range(20):
        files.gate.clear()
        files.waiting.clear()
        first = store.log.put(message())
        store.request_flush()
        assert files.waiting.wait(10)
        second = store.log.put(message())
        store.request_flush()
        files.gate.set()
        assert store.wait_durable(first.end, 10)
        assert store.wait_durable(second.end, 10)
    assert store.close()


def test_close_during_a_sync_syncs_what_came_after_it_began(tmp_path: Path) -> None:
    files = GatedFiles(tmp_path)
    store = sync_store(tmp_path, files)
    files.gate.clear()
    store.log.put(message())
    store.request_flush()
    assert files.waiting.wait(10)
    store.log.put(message())
    closing = threading.Thread(target=store.close)
    closing.start()
    wait_until(lambda: store._flusher._stopping)
    files.gate.set()
    closing.join(10)
    assert store.durable == store.written
    assert not (tmp_path / "abort").exists()


def test_who_waits_for_a_sync_hears_of_any_thread_that_breaks_the_store(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    settings = small_settings(
        tmp_path,
        flush_disk_type="SYNC_FLUSH",
        flush_interval_ms=20,
        consume_queue_flush_interval_ms=NEVER_MS,
    )
    store = MessageStore.open(settings, files=files)
    end = store.log.put(message()).end
    assert store.wait_durable(end, 10)
    store.dispatch()
    files.fail("data_sync", errno.EIO, "consumequeue")
    heard = threading.Event()

    def wait() -> None:
        # For a message that will never come: without being told this takes the hour.
        assert not store.wait_durable(end + 1, 3600)
        heard.set()

    threading.Thread(target=wait, daemon=True).start()
    wait_until(lambda: len(store._sync._progress._waiters) == 1)  # type: ignore[attr-defined]
    assert not store._queue_flusher.flush(0)
    assert heard.wait(10)
    store.close()


# --- consume queues and index ---------------------------------------------------------------------


@pytest.mark.usefixtures("no_threads")
def test_queues_wait_for_pages_and_the_checkpoint_for_the_thorough_turn(tmp_path: Path) -> None:
    store, clock, files = open_async(
        tmp_path,
        flush_least_pages=0,
        consume_queue_segment_bytes=60_000,
        consume_queue_flush_least_pages=2,
        consume_queue_flush_thorough_interval_ms=60_000,
        index_enabled=False,
    )
    queues = store._queue_flusher
    checkpoint = store._parts.checkpoint
    clock.time_ms += 1000
    fill(store, 100)
    assert turn(store._flusher)
    assert turn(queues)
    assert files.count("data_sync", "consumequeue") == 0
    assert checkpoint.logics_ms == 0
    fill(store, 2 * 4096 // 20 - 90)
    assert turn(queues)
    assert files.count("data_sync", "consumequeue") == 1
    assert checkpoint.logics_ms == 0
    fill(store, 1)
    assert turn(queues)
    assert files.count("data_sync", "consumequeue") == 1
    clock.seconds += 60.1
    assert turn(queues)
    assert files.count("data_sync", "consumequeue") == 2
    assert checkpoint.logics_ms == FIRST_MS + 1000
    assert (tmp_path / "checkpoint").read_bytes()[8:16] == checkpoint.logics_ms.to_bytes(8, "big")
    store.close()


@pytest.mark.usefixtures("no_threads")
def test_full_index_file_is_synced_at_the_next_turn_and_then_the_checkpoint_knows(
    tmp_path: Path,
) -> None:
    store, clock, files = open_async(tmp_path, index_entries=20)
    for _ in range(10):
        clock.time_ms += 1000
        store.log.put(message(unique=f"U{clock.time_ms}"))
    store.dispatch()
    assert turn(store._queue_flusher)
    assert files.count("data_sync", "/index/") == 0
    for _ in range(15):
        clock.time_ms += 1000
        store.log.put(message(unique=f"U{clock.time_ms}"))
    store.dispatch()
    assert turn(store._queue_flusher)
    assert files.count("data_sync", "/index/") == 1
    assert FIRST_MS < store._parts.checkpoint.index_ms < clock.time_ms
    store.close()


def test_flush_thread_and_queue_thread_turn_by_themselves(tmp_path: Path) -> None:
    settings = small_settings(
        tmp_path,
        flush_interval_ms=1,
        flush_least_pages=0,
        consume_queue_flush_interval_ms=1,
        consume_queue_flush_thorough_interval_ms=2,
    )
    files = FaultyFiles(tmp_path)
    store = MessageStore.open(settings, files=files)
    fill(store, 5)
    wait_until(lambda: store.durable == store.written)
    wait_until(lambda: files.count("data_sync", "consumequeue") > 0)
    wait_until(lambda: (tmp_path / "checkpoint").exists())
    assert store.close()
