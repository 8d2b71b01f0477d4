"""Claims about the transient pool: the places of records, losses, refusals."""

import errno
import logging
import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from aerobee.store.disk.files import Files
from aerobee.store.disk.offsets_file import OffsetsFile, decode, encode
from aerobee.store.errors import SegmentCreateFailed, StoreBroken, StoreNotWritable
from aerobee.store.flush.commit_service import CommitRealTimeService
from aerobee.store.message_store import MessageStore
from aerobee.store.segments.mapped_file import MappedFile
from aerobee.store.segments.results import GetStatus
from aerobee.store.segments.transient_pool import (
    NO_POOL,
    PooledFile,
    TransientStorePool,
    pooled_maker,
)
from tests.contract.storage.test_files import locked_kib
from tests.faulty_files import FaultyFiles
from tests.unit.store.flush.test_durability import NEVER_MS, wait_until
from tests.unit.store.support import (
    FIRST_MS,
    SEGMENT,
    Heard,
    ManualClock,
    bodies,
    fill,
    kill_image,
    log_segment,
    message,
    small_settings,
    tree,
)


def pooled_store(
    tmp_path: Path,
    files: FaultyFiles | None = None,
    clock: ManualClock | None = None,
    listener: Heard | None = None,
    **changes: object,
) -> MessageStore:
    """A store whose commit thread does nothing by itself; see `commit`."""
    values: dict[str, object] = {
        "transient_pool_enabled": True,
        "transient_pool_buffers": 4,
        "commit_interval_ms": NEVER_MS,
        "commit_thorough_interval_ms": NEVER_MS,
        "flush_interval_ms": NEVER_MS,
    }
    settings = small_settings(tmp_path, **(values | changes))
    return MessageStore.open(settings, files, clock, listener=listener)


def committer(store: MessageStore) -> CommitRealTimeService:
    assert store._commits is not None
    return store._commits


def commit(store: MessageStore, least_pages: int = 0) -> bool:
    """The commit thread's turn."""
    return committer(store).commit(least_pages)


# --- the pool itself ------------------------------------------------------------------------------


def test_buffers_are_borrowed_in_front_and_given_back_in_front(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = TransientStorePool(Files(), 5, 8192)
    pool.open()
    caplog.set_level(logging.WARNING)
    taken = [pool.borrow() for _ in range(3)]
    assert pool.free == 2
    assert not caplog.records
    taken.append(pool.borrow())
    assert "free=1 of=5" in caplog.text  # below 40 %
    taken.append(pool.borrow())
    assert len({id(one) for one in taken}) == 5
    assert pool.borrow() is None
    first, second = taken[0], taken[1]
    assert first is not None
    assert second is not None
    assert len(first) == 8192
    pool.give_back(first)
    pool.give_back(second)
    assert pool.borrow() is second
    assert pool.borrow() is first
    for one in taken:
        assert one is not None
        pool.give_back(one)
    pool.close()


def test_buffers_are_locked_while_the_store_is_open(tmp_path: Path) -> None:
    before = locked_kib()
    store = pooled_store(tmp_path, commit_log_segment_bytes=1 << 16)
    assert locked_kib() == before + 4 * 64
    fill(store, 10)
    assert store.close()
    assert locked_kib() == before


@pytest.mark.parametrize("nth", [1, 3])
def test_refused_lock_is_a_warning_that_says_what_to_raise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, nth: int
) -> None:
    files = FaultyFiles(tmp_path)
    files.fail("lock_memory", errno.ENOMEM, nth=nth)
    store = pooled_store(tmp_path, files)
    assert "LimitMEMLOCK=) to 16 KiB" in caplog.text
    assert files.count("lock_memory") == nth  # asked no further
    made = fill(store, 20)
    commit(store)
    store.dispatch()
    assert bodies(store) == made
    assert store.close()
    assert files.count("unlock_memory") == nth - 1


def test_pool_that_is_larger_than_memory_refuses_the_start_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    files = FaultyFiles(tmp_path)
    files.fail("anonymous", errno.ENOMEM, nth=3)
    with pytest.raises(StoreNotWritable, match=r"4 buffers of 4096 bytes.*not to be had"):
        pooled_store(tmp_path, files)
    files.heal()
    assert not (tmp_path / "abort").exists()
    store = pooled_store(tmp_path, files)
    assert store.free_buffers == 4
    assert store.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"flush_disk_type": "SYNC_FLUSH"},
        {"broker_role": "SLAVE"},
        {"transient_pool_enabled": False},
    ],
    ids=str,
)
def test_pool_is_used_by_a_master_with_async_flush_only(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    store = pooled_store(tmp_path, **changes)
    assert store.free_buffers == NO_POOL
    end = store.log.put(message()).end
    assert store.committed == end
    store.close()


# --- what is where --------------------------------------------------------------------------------


def test_nothing_is_in_the_file_or_visible_before_it_is_committed(tmp_path: Path) -> None:
    store = pooled_store(tmp_path)
    first = store.log.put(message(b"first", unique="U1"))
    assert (store.committed, store.written) == (0, first.end)
    assert log_segment(tmp_path).read_bytes() == bytes(SEGMENT)
    assert store.dispatch() == []
    assert store.reader.get("Orders", 0, 0, 32).status == GetStatus.NO_MESSAGE_IN_QUEUE
    assert store.reader.record_at(0) is None
    assert store._sync.sync()
    assert store.durable == 0
    assert commit(store)
    second = store.log.put(message(b"second", unique="U2"))
    assert store.committed == first.end
    assert [arrival.queue_offset for arrival in store.dispatch()] == [0]
    assert bodies(store) == [b"first"]
    assert store.reader.record_at(0) is not None
    assert store.reader.record_at(first.end) is None
    assert store._sync.sync()
    assert store.durable == first.end
    assert not any(log_segment(tmp_path).read_bytes()[first.end :])
    assert commit(store)
    assert not commit(store)
    assert [arrival.queue_offset for arrival in store.dispatch()] == [1]
    assert bodies(store) == [b"first", b"second"]
    assert store.search.query("Orders", "U2", 10, 0, 2**62).records == [
        store.reader.record_at(first.end)
    ]
    assert store.committed == second.end
    assert store.close()


def test_reput_that_fell_behind_catches_up_to_the_committed_mark_only(tmp_path: Path) -> None:
    store = pooled_store(tmp_path)
    made = fill(store, 10)
    commit(store)
    store.log.stop_feeding()
    made += fill(store, 10)
    committed = store.committed
    assert store.dispatched == committed < store.written
    assert bodies(store) == made[:10]
    commit(store)
    store.dispatch()
    assert bodies(store) == made
    assert store.close()


def test_files_are_the_same_bytes_with_and_without_the_pool(tmp_path: Path) -> None:
    trees = []
    for name, changes in (("pool", {}), ("none", {"transient_pool_enabled": False})):
        clock = ManualClock()
        store = pooled_store(tmp_path / name, clock=clock, **changes)
        for number in range(120):
            clock.time_ms += 3
            size = number * 131 % 900
            if number % 10:
                store.log.put(
                    message(b"%d" % number + b"x" * size, unique=f"U{number}", keys="a b")
                )
            else:
                store.log.put_batch(
                    [message(b"%d" % number + b"y" * (size // 3)) for _ in range(3)]
                )
            if number % 7 == 0 and name == "pool":
                commit(store)
            store.dispatch()
        assert store.close()
        trees.append({part: tree(tmp_path / name, part) for part in ("commitlog", "consumequeue")})
    assert trees[0] == trees[1]
    assert len(trees[0]["commitlog"]) > 8


def test_left_over_bytes_of_a_used_buffer_never_reach_a_file(tmp_path: Path) -> None:
    store = pooled_store(tmp_path, transient_pool_buffers=2)
    for _ in range(12):
        store.log.put(message(b"\xee" * 900))
        commit(store)
    end = store.log.put(message(b"\xee" * 30)).end
    for _ in range(3):
        store.log.put(message(b"\xdd" * 2500))
        commit(store)
    store.close()
    at = 0
    seen = 0
    for path in sorted((tmp_path / "commitlog").iterdir()):
        data = path.read_bytes()
        position = 0
        while int.from_bytes(data[position + 4 : position + 8], "big") == 0xDAA320A7:
            position += int.from_bytes(data[position : position + 4], "big")
        assert not any(data[position + 8 :]), path.name
        seen += position > 0
        at += SEGMENT
    assert seen >= 5
    assert at > end


def test_segment_that_is_all_committed_is_an_ordinary_one(tmp_path: Path) -> None:
    store = pooled_store(tmp_path, transient_pool_buffers=3)
    made = fill(store, 60)
    first = store.log.segments.segments[0]
    assert isinstance(first, PooledFile)
    assert first.active
    wait_until(lambda: store.free_buffers == 0)
    commit(store)
    assert not first.active
    # The buffers of the full ones are back; the next segment may have got one of them.
    assert [segment.active for segment in store.log.segments.segments] == [False, False, True]
    assert store.free_buffers >= 1
    store.dispatch()
    assert bodies(store) == made
    assert store._sync.sync()
    store.close()


def test_checkpoint_does_not_speak_of_what_is_not_committed(tmp_path: Path) -> None:
    clock = ManualClock()
    store = pooled_store(tmp_path, clock=clock)
    clock.time_ms += 1000
    store.log.put(message())
    commit(store)
    clock.time_ms += 1000
    store.log.put(message())
    assert store._sync.sync()
    assert store._parts.checkpoint.physic_ms == FIRST_MS + 1000
    commit(store)
    assert store._sync.sync()
    assert store._parts.checkpoint.physic_ms == FIRST_MS + 2000
    store.close()


# --- the pool runs out ----------------------------------------------------------------------------


def test_segment_without_a_buffer_is_mapped_and_the_mark_passes_it_in_order(tmp_path: Path) -> None:
    store = pooled_store(tmp_path, transient_pool_buffers=1)
    made = fill(store, 70)
    kinds = [type(segment) for segment in store.log.segments.segments]
    assert kinds[:3] == [PooledFile, MappedFile, MappedFile]
    # Records in mapped segments are not visible before the records that lie before them.
    assert store.committed == store.dispatched == 0
    assert bodies(store) == []
    assert not any(log_segment(tmp_path).read_bytes())
    assert any(log_segment(tmp_path, SEGMENT).read_bytes())
    assert store.reader.record_at(SEGMENT) is None
    commit(store)
    assert store.reader.record_at(SEGMENT) is not None
    assert store.committed == store.written
    store.dispatch()
    assert bodies(store) == made
    assert store.close()
    store = MessageStore.open(small_settings(tmp_path))
    assert bodies(store) == made
    assert store.close()


def test_with_fail_fast_no_segment_is_made_without_a_buffer(tmp_path: Path) -> None:
    store = pooled_store(tmp_path, transient_pool_buffers=2, transient_pool_fail_fast=True)
    made = [b"%d" % number + b"." * 500 for number in range(12)]
    for body in made:  # six to a segment
        store.log.put(message(body))
    with pytest.raises(SegmentCreateFailed, match=r"transient_pool_fail_fast"):
        store.log.put(message(b"." * 500))
    assert store.free_buffers == 0
    reason = store.not_writable_reason()
    assert reason is not None
    assert "buffers" in reason
    with pytest.raises(SegmentCreateFailed):
        store.log.put(message(b"." * 500))
    commit(store)
    # No pause: the next send finds the buffer.
    store.log.put(message(b"again" + b"." * 500))
    assert store.not_writable_reason() is None
    commit(store)
    store.dispatch()
    assert bodies(store) == [*made, b"again" + b"." * 500]
    assert store.close()


def test_segment_that_cannot_be_made_keeps_no_buffer(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    pool = TransientStorePool(files, 2, SEGMENT)
    pool.open()
    make = pooled_maker(
        files, pool, lambda *_: pytest.fail("not asked for"), SEGMENT, fail_fast=True
    )
    for operation in ("create", "set_size", "reserve", "sync", "map"):
        files.fail(operation, errno.ENOSPC, times=1)
        with pytest.raises(OSError, match="No space"):
            make(str(tmp_path / "s"), 0)
        assert pool.free == 2
        assert not (tmp_path / "s").exists()
    segment = make(str(tmp_path / "s"), 0)
    assert pool.free == 1
    assert segment.dismiss()
    assert pool.free == 2
    segment.close()
    assert pool.free == 2
    pool.close()


# --- failures -------------------------------------------------------------------------------------


def test_failed_write_breaks_the_store(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    heard = Heard()
    store = pooled_store(tmp_path, files, listener=heard)
    good = fill(store, 5)
    commit(store)
    store.dispatch()
    assert store._sync.sync()
    files.fail("write", errno.EIO, "commitlog", times=1)
    store.log.put(message(b"lost"))
    assert not commit(store)
    assert len(heard.failures) == 1
    assert "the write of" in str(heard.failures[0])
    with pytest.raises(StoreBroken):
        store.log.put(message())
    # No second try, neither now nor at the close.
    assert not commit(store)
    committed = store.committed
    assert not store.close()
    assert store.committed == committed
    store = MessageStore.open(small_settings(tmp_path))
    assert bodies(store) == good
    assert store.close()


def test_full_disk_is_waited_for_with_all_that_was_acknowledged(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    store = pooled_store(tmp_path, files)
    made = fill(store, 5)
    commit(store)
    files.fail("write", errno.ENOSPC, "commitlog")
    made += fill(store, 5)
    for _ in range(2):
        assert not commit(store)
        with pytest.raises(StoreNotWritable, match="waits in memory"):
            store.log.put(message(b"refused"))
    store.dispatch()
    assert bodies(store) == made[:5]
    files.heal()
    assert commit(store)
    made.append(b"again")
    store.log.put(message(b"again"))
    commit(store)
    store.dispatch()
    assert bodies(store) == made
    assert store.close()


def test_close_while_the_disk_is_full_is_not_clean(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    store = pooled_store(tmp_path, files)
    fill(store, 5)
    files.fail("write", errno.ENOSPC, "commitlog")
    assert not store.close()
    assert (tmp_path / "abort").exists()


def test_close_commits_and_syncs_all_and_returns_the_buffers(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    store = pooled_store(tmp_path, files)
    made = fill(store, 40)
    assert store.close()
    assert store.written == store.committed == store.durable == store.dispatched
    assert store.free_buffers == 0  # the memory itself is given back
    assert files.count("lock_memory") == files.count("unlock_memory") == 4
    files.power_cut(tmp_path / "cut")
    store = MessageStore.open(small_settings(tmp_path / "cut"))
    assert store.recovery.clean_stop
    assert bodies(store) == made
    assert store.close()


def test_power_cut_takes_a_suffix_behind_the_durable_mark(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    files = FaultyFiles(root)
    store = pooled_store(root, files)
    made = fill(store, 30)
    commit(store)
    store.dispatch()
    assert store._sync.sync()
    durable = 30
    fill(store, 10)
    commit(store)
    fill(store, 10)
    files.power_cut(tmp_path / "cut")
    store.close()
    store = MessageStore.open(small_settings(tmp_path / "cut"))
    found = bodies(store)
    assert found[:durable] == made
    assert store.recovery.gaps == []
    store.close()


# --- killed ---------------------------------------------------------------------------------------


def test_killed_store_has_what_was_committed_and_loses_the_rest(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store = pooled_store(root)
    made = fill(store, 30)
    commit(store)
    store.dispatch()
    fill(store, 5)
    image = kill_image(root, tmp_path / "image")
    store.close()
    store = MessageStore.open(small_settings(image))
    assert store.recovery.gaps == []
    assert bodies(store) == made
    # The offsets of what is lost are given out again: nobody has seen them.
    assert store.log.put(message(b"next")).queue_offset == 30
    store.close()


@pytest.mark.parametrize("trusted", [True, False], ids=["same run", "copied"])
def test_loss_stays_a_suffix_when_segments_without_a_buffer_follow(
    tmp_path: Path, trusted: bool
) -> None:
    """They are in the page cache, and would survive what was appended before them."""
    root = tmp_path / "root"
    store = pooled_store(root, transient_pool_buffers=1)
    made = fill(store, 10)
    commit(store)
    store.dispatch()
    store._queue_flusher.flush(0)
    fill(store, 60)
    assert any(log_segment(root, SEGMENT).read_bytes())
    image = kill_image(root, tmp_path / "image")
    store.close()
    if trusted:
        pretend_same_lock(root, image)
    store = MessageStore.open(small_settings(image))
    if trusted:
        assert store.recovery.why == "the offsets file"
        assert store.recovery.gaps == []
        assert bodies(store) == made
    else:
        # Without our own marks a later segment counts as proof that the log was longer.
        assert bodies(store)[:10] == made
    store.close()


def pretend_same_lock(root: Path, image: Path) -> None:
    """Let the copy's offsets file speak of the copy."""
    found = decode((image / "offsets").read_bytes())
    assert found is not None
    identity = OffsetsFile(Files(), str(image)).identity()
    (image / "offsets").write_bytes(encode(replace(found, identity=identity)))


@pytest.mark.parametrize("buffers", [1, 2, 5])
def test_random_kills_lose_a_suffix_that_was_not_committed(
    tmp_path: Path, buffers: int, seed: int
) -> None:
    rng = random.Random(seed)
    root = tmp_path / "root"
    store = pooled_store(root, transient_pool_buffers=buffers)
    made: list[tuple[int, bytes]] = []
    for turn in range(12):
        for _ in range(rng.randrange(1, 25)):
            body = b"%05d" % len(made) + b"." * rng.randrange(700)
            made.append((store.log.put(message(body, unique=f"U{len(made)}")).end, body))
        for _ in range(rng.randrange(3)):
            commit(store, rng.choice((0, 1, 2)))
            store.dispatch()
        image = kill_image(root, tmp_path / f"image{turn}")
        pretend_same_lock(root, image)
        again = MessageStore.open(small_settings(image))
        found = bodies(again)
        assert again.recovery.gaps == []
        assert found == [body for _, body in made[: len(found)]]
        assert len(found) >= sum(1 for end, _ in made if end <= store.committed)
        assert again.close()
    store.close()


# --- the service ----------------------------------------------------------------------------------


class Stopwatch(ManualClock):
    seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


def service_of(store: MessageStore) -> CommitRealTimeService:
    assert store._commits is not None
    return store._commits


def turn(store: MessageStore) -> None:
    """One turn of the thread, in this one, as if the interval were over."""
    service = service_of(store)
    service._interval_s = 0
    assert service._tick()


@pytest.fixture
def no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommitRealTimeService, "start", lambda _service: None)


@pytest.mark.usefixtures("no_thread")
def test_service_waits_for_enough_pages_or_the_thorough_interval(tmp_path: Path) -> None:
    clock = Stopwatch()
    store = pooled_store(
        tmp_path,
        clock=clock,
        commit_log_segment_bytes=1 << 20,
        commit_least_pages=4,
        commit_thorough_interval_ms=200,
    )
    store.log.put(message(b"." * 2900))
    turn(store)
    assert store.committed == 0
    while store.written < 4 * 4096:
        store.log.put(message(b"." * 2900))
    turn(store)
    assert store.committed == store.written
    end = store.log.put(message()).end
    clock.seconds += 0.199
    turn(store)
    assert store.committed < end
    clock.seconds += 0.002
    turn(store)
    assert store.committed == end
    # It counts from the last commit.
    end = store.log.put(message()).end
    turn(store)
    assert store.committed < end
    store.close()


@pytest.mark.usefixtures("no_thread")
def test_full_segment_does_not_wait_for_pages(tmp_path: Path) -> None:
    store = pooled_store(tmp_path, commit_least_pages=1000)
    fill(store, 10)
    turn(store)
    assert store.committed == 0
    fill(store, 30)
    assert store.written > SEGMENT
    turn(store)
    assert store.committed == store.written
    store.close()


@pytest.mark.usefixtures("no_thread")
def test_append_wakes_the_service_only_if_there_is_enough_to_do(tmp_path: Path) -> None:
    clock = Stopwatch()
    store = pooled_store(
        tmp_path,
        clock=clock,
        commit_log_segment_bytes=1 << 20,
        commit_least_pages=2,
        commit_thorough_interval_ms=200,
    )
    woken = service_of(store)._wake
    store.log.put(message(b"." * 2900))
    store.request_flush()
    assert not woken.is_set()
    while store.written < 2 * 4096:
        store.log.put(message(b"." * 2900))
    store.request_flush()
    assert woken.is_set()
    turn(store)
    assert not woken.is_set()
    # After a pause a single message goes at once.
    store.log.put(message())
    store.request_flush()
    assert not woken.is_set()
    clock.seconds += 0.3
    store.request_flush()
    assert woken.is_set()
    store.close()


@pytest.mark.usefixtures("no_thread")
def test_wake_that_comes_while_a_commit_runs_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Stopwatch()
    store = pooled_store(
        tmp_path,
        clock=clock,
        commit_interval_ms=3_600_000,
        commit_least_pages=4,
        commit_thorough_interval_ms=20,
    )
    commit = PooledFile.commit
    ends: list[int] = []

    def commit_while_one_more_comes(segment: PooledFile, position: int) -> None:
        monkeypatch.setattr(PooledFile, "commit", commit)
        ends.append(store.log.put(message()).end)
        store.request_flush()
        commit(segment, position)

    monkeypatch.setattr(PooledFile, "commit", commit_while_one_more_comes)
    ends.append(store.log.put(message()).end)
    clock.seconds += 1
    store.request_flush()
    service = service_of(store)
    assert service._tick()
    assert store.committed == ends[0]
    assert service._tick()
    assert store.committed == ends[1]
    store.close()


def test_thread_commits_at_its_interval_tells_the_owner_and_wakes_the_flusher(
    tmp_path: Path,
) -> None:
    store = pooled_store(
        tmp_path,
        commit_interval_ms=5,
        commit_thorough_interval_ms=5,
        flush_least_pages=0,
        flush_timed=False,
        listener=(heard := Heard()),
    )
    end = store.log.put(message()).end
    wait_until(lambda: heard.committed[:1] == [end])
    assert store.wait_durable(end, 10)  # its own interval is an hour
    assert store.threads_alive()
    assert store.close()
    assert not store.threads_alive()


def test_wake_brings_a_message_into_the_file_at_once(tmp_path: Path) -> None:
    store = pooled_store(tmp_path, commit_least_pages=0)
    end = store.log.put(message()).end
    store.request_flush()
    wait_until(lambda: store.committed == end)
    assert store.close()


def test_free_buffers_are_those_that_nobody_has(tmp_path: Path) -> None:
    store = pooled_store(tmp_path)
    assert store.free_buffers == 4
    store.log.put(message())
    wait_until(lambda: store.free_buffers == 2)  # the written one and the next
    assert store.close()
