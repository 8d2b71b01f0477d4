"""Claims about starts that our own offsets file tells where to begin."""

import errno
import os
import shutil
import struct
import time
from pathlib import Path

import pytest

from aerobee.store.disk.files import Files
from aerobee.store.disk.offsets_file import OffsetsFile
from aerobee.store.errors import StoreBroken, StoreLayoutError
from aerobee.store.message_store import MessageStore
from tests.faulty_files import FaultyFiles
from tests.unit.store.support import (
    SEGMENT,
    ManualClock,
    adopt,
    bodies,
    fill,
    flip,
    kill_image,
    log_segment,
    message,
    queue_file,
    read_all,
    small_settings,
    tree,
)

COUNT = 60
QUEUES = 3
SYNCED = 40


class Stopped:
    """A store of 60 messages in 3 queues as a kill leaves it: all but 20 flushed and synced."""

    def __init__(self, tmp_path: Path) -> None:
        running = tmp_path / "running"
        # Nothing is flushed but when the test says so.
        store = MessageStore.open(
            small_settings(
                running, flush_interval_ms=60_000, consume_queue_flush_interval_ms=60_000
            )
        )
        self.bodies = fill(store, SYNCED, queues=QUEUES)
        store._sync.sync()
        self.flushed = store.durable
        store._queue_flusher.flush(0)
        for n in range(SYNCED, COUNT):
            body = b"%06d" % n + b"." * 50
            store.log.put(message(body, queue_id=n % QUEUES, unique=f"U{n}", tags=f"T{n % 3}"))
            self.bodies.append(body)
        store.dispatch()
        store._offsets.save()
        self.written = store.written
        self.records = sorted(
            (found for queue_id in range(QUEUES) for found in read_all(store, queue_id=queue_id)),
            key=lambda found: found.log_offset,
        )
        self.root = adopt(kill_image(running, tmp_path / "killed"))
        self.settings = small_settings(self.root)
        store.close()
        self.clean = running

    def open(self) -> MessageStore:
        return MessageStore.open(self.settings)

    def damage(self, number: int, at: int = 95) -> int:
        """Flip a bit of a message's record (95: in its body); return its log offset."""
        offset = self.records[number].log_offset
        start = offset // SEGMENT * SEGMENT
        flip(log_segment(self.root, start), offset - start + at)
        return offset


@pytest.fixture
def stopped(tmp_path: Path) -> Stopped:
    return Stopped(tmp_path)


def everything(store: MessageStore) -> list[list[bytes]]:
    return [bodies(store, queue_id=queue_id) for queue_id in range(QUEUES)]


def expected(made: list[bytes], *without: int) -> list[list[bytes]]:
    return [
        [body for n, body in enumerate(made) if n % QUEUES == queue_id and n not in without]
        for queue_id in range(QUEUES)
    ]


def has_key(store: MessageStore, number: int) -> bool:
    return len(store.search.query("Orders", f"U{number}", 5, 0, 2**62).records) == 1


def test_killed_store_is_read_from_the_flushed_mark(stopped: Stopped) -> None:
    store = stopped.open()
    assert store.recovery.why == "the offsets file"
    assert store.recovery.read_from == stopped.flushed
    assert store.recovery.records_read == COUNT - SYNCED
    assert everything(store) == expected(stopped.bodies)
    assert all(has_key(store, n) for n in range(COUNT))
    assert store.durable == stopped.written
    assert store.close()


def test_clean_stop_reads_nothing_on_any_boot(stopped: Stopped) -> None:
    adopt(stopped.clean, other_boot=True)
    store = MessageStore.open(small_settings(stopped.clean))
    assert (store.recovery.clean_stop, store.recovery.records_read) == (True, 0)
    assert everything(store) == expected(stopped.bodies)
    store.close()


def test_unsynced_units_lost_in_a_power_cut_are_made_again(stopped: Stopped) -> None:
    adopt(stopped.root, other_boot=True)
    before = tree(stopped.root, "consumequeue") | tree(stopped.root, "index")
    units = queue_file(stopped.root, queue_id=1, start=200)
    data = units.read_bytes()
    units.write_bytes(data[:80] + bytes(60) + data[140:])  # slots 14, 15, 16 of 20
    store = stopped.open()
    assert store.recovery.entries_written == 3
    assert everything(store) == expected(stopped.bodies)
    assert store.close()
    assert tree(stopped.root, "consumequeue") | tree(stopped.root, "index") == before


def test_hole_that_a_failed_sync_left_on_the_same_boot_is_filled(stopped: Stopped) -> None:
    units = queue_file(stopped.root, queue_id=1, start=200)
    data = units.read_bytes()
    units.write_bytes(data[:80] + bytes(60) + data[140:])
    store = stopped.open()
    assert everything(store) == expected(stopped.bodies)
    store.close()


@pytest.mark.parametrize("gone", ["consumequeue", "consumequeue/Orders/1", "index"])
@pytest.mark.parametrize("state", ["killed", "another boot", "clean"])
def test_missing_queues_and_index_are_made_again(stopped: Stopped, gone: str, state: str) -> None:
    root = stopped.clean if state == "clean" else stopped.root
    if state == "another boot":
        adopt(root, other_boot=True)
    before = tree(root, "consumequeue")
    shutil.rmtree(root / gone)
    store = MessageStore.open(small_settings(root))
    assert store.recovery.read_from == 0
    assert everything(store) == expected(stopped.bodies)
    assert all(has_key(store, n) for n in range(COUNT))
    assert store.close()
    assert tree(root, "consumequeue") == before


def test_missing_index_file_has_the_index_made_again(stopped: Stopped) -> None:
    names = sorted(os.listdir(stopped.root / "index"))
    assert len(names) > 1
    (stopped.root / "index" / names[0]).unlink()
    store = stopped.open()
    assert all(has_key(store, n) for n in range(COUNT))
    store.close()


def test_damage_below_the_flushed_mark_costs_one_record(stopped: Stopped) -> None:
    # Queues lag, so that the walk comes by.
    shutil.rmtree(stopped.root / "consumequeue")
    adopt(stopped.root, other_boot=True)
    offset = stopped.damage(10)
    store = stopped.open()
    assert [gap.start for gap in store.recovery.gaps] == [offset]
    assert everything(store) == expected(stopped.bodies, 10)
    store.close()


def test_after_a_power_cut_the_log_ends_at_the_first_bad_record_above_it(stopped: Stopped) -> None:
    adopt(stopped.root, other_boot=True)
    offset = stopped.damage(50)
    store = stopped.open()
    assert (store.written, store.recovery.gaps) == (offset, [])
    assert everything(store) == expected(stopped.bodies[:50])
    assert store.log.put(message(b"next", queue_id=50 % QUEUES)).queue_offset == 50 // QUEUES
    store.close()


def test_killed_process_and_damage_above_it_cost_the_damaged_records(stopped: Stopped) -> None:
    offsets = [stopped.damage(45), stopped.damage(50, at=3)]
    store = stopped.open()
    assert [gap.start for gap in store.recovery.gaps] == offsets
    assert store.written == stopped.written
    assert everything(store) == expected(stopped.bodies, 45, 50)
    store.close()


def test_undispatched_record_behind_a_damaged_one_is_kept_after_a_kill(tmp_path: Path) -> None:
    running = tmp_path / "running"
    store = MessageStore.open(small_settings(running, consume_queue_flush_interval_ms=60_000))
    places = [store.log.put(message(b"body %d" % n)) for n in range(3)]
    root = adopt(kill_image(running, tmp_path / "killed"))
    store.close()
    flip(log_segment(root), places[1].log_offset + 90)
    store = MessageStore.open(small_settings(root))
    assert bodies(store) == [b"body 0", b"body 2"]
    assert [gap.start for gap in store.recovery.gaps] == [places[1].log_offset]
    store.close()


def test_poisoned_run_is_not_believed_beyond_its_synced_marks(stopped: Stopped) -> None:
    adopt(stopped.root, poisoned=True)
    offset = stopped.damage(50)
    store = stopped.open()
    assert store.written == offset  # cut: the record that failed to be written may not be there
    store.close()


def test_breaking_is_noted_for_the_next_start(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    settings = small_settings(tmp_path / "store", flush_disk_type="SYNC_FLUSH")
    store = MessageStore.open(settings, files)
    fill(store, 3)
    files.fail("data_sync", errno.EIO, "commitlog")
    store.log.put(message())
    store.request_flush()
    assert not store.wait_durable(store.written, 10)
    with pytest.raises(StoreBroken):
        store.log.put(message())
    assert b'"poisoned":true' in (tmp_path / "store" / "offsets").read_bytes()
    assert not store.close()
    store = MessageStore.open(settings)
    assert b'"poisoned":false' in (tmp_path / "store" / "offsets").read_bytes()
    assert store.close()


def test_breaking_is_on_the_disk_before_anybody_is_refused(tmp_path: Path) -> None:
    """A kill at the first refusal finds the note; without it a start would take a hole for damage
    and keep what stands behind it, although acknowledged messages may be lost only from the end."""
    files = FaultyFiles(tmp_path)
    store = MessageStore.open(small_settings(tmp_path), files)
    note = store._breaking.note
    seen: list[tuple[bool, bool]] = []

    def noting() -> None:
        note()
        stored = OffsetsFile(Files(), str(tmp_path)).load()
        assert stored is not None
        seen.append((stored.poisoned, store._health.refusing))

    store._breaking.note = noting  # type: ignore[method-assign]
    files.fail("data_sync", errno.EIO, "commitlog")
    fill(store, 3)
    store._sync.sync()
    assert seen == [(True, False)]
    assert store.not_writable_reason() is not None
    store.close()


def test_log_that_ends_before_the_flushed_mark_is_refused_untouched(stopped: Stopped) -> None:
    last = sorted((stopped.root / "commitlog").iterdir())[stopped.flushed // SEGMENT :]
    for path in last:
        path.unlink()
    before = tree(stopped.root, ".")
    with pytest.raises(StoreLayoutError, match="aerobee store repair"):
        stopped.open()
    assert tree(stopped.root, ".") == before


def test_run_of_another_broker_makes_the_file_worthless(stopped: Stopped) -> None:
    (stopped.root / "lock").write_bytes(b"lock")  # as RocketMQ does at each start
    store = stopped.open()
    assert store.recovery.why == "the checkpoint"
    assert everything(store) == expected(stopped.bodies)
    store.close()


def test_damaged_offsets_file_costs_time_only(stopped: Stopped) -> None:
    flip(stopped.root / "offsets", 20)
    store = stopped.open()
    assert store.recovery.why == "the checkpoint"
    assert everything(store) == expected(stopped.bodies)
    store.close()


@pytest.mark.parametrize("other_boot", [False, True], ids=["killed", "power cut"])
def test_times_go_on_from_the_last_record_though_the_file_knows_an_older_one(
    tmp_path: Path, other_boot: bool
) -> None:
    """The flush thread reads the time before the mark; a put may come between the two."""
    clock = ManualClock()
    store = MessageStore.open(small_settings(tmp_path / "running"), clock=clock)
    fill(store, 5, queues=QUEUES)
    clock.time_ms += 1
    put = store.log.put(message(b"put while the flush thread read"))
    store.dispatch()
    store._sync.sync()
    store._parts.checkpoint.physic_ms = put.store_timestamp_ms - 1
    store._offsets.save()
    root = adopt(kill_image(tmp_path / "running", tmp_path / "killed"), other_boot=other_boot)
    store.close()
    clock.time_ms -= 60_000
    store = MessageStore.open(small_settings(root), clock=clock)
    later = store.log.put(message(b"after the clock was set back"))
    assert later.store_timestamp_ms == put.store_timestamp_ms
    store.close()


def test_known_gaps_are_remembered_over_restarts(stopped: Stopped) -> None:
    offset = stopped.damage(45)
    for _ in range(3):
        store = stopped.open()
        (gap,) = store.known_gaps
        assert gap[0] == offset
        store.log.put(message())
        assert store.close()


def test_deleted_topic_is_not_taken_for_lost_queues(tmp_path: Path) -> None:
    running = tmp_path / "running"
    store = MessageStore.open(small_settings(running, consume_queue_flush_interval_ms=60_000))
    fill(store, 30)
    store._queue_flusher.flush(0)
    store.delete_topic("Orders")
    root = adopt(kill_image(running, tmp_path / "killed"))
    store.close()
    store = MessageStore.open(small_settings(root))
    assert store.recovery.why == "the offsets file"
    assert list(store.queues()) == []
    store.close()


def test_rebuild_cut_short_by_a_power_cut_begins_again(stopped: Stopped, tmp_path: Path) -> None:
    shutil.rmtree(stopped.root / "consumequeue" / "Orders" / "1")
    files = FaultyFiles(tmp_path / "unused")
    files.fail("data_sync", errno.EIO, "consumequeue")
    with pytest.raises(StoreBroken):
        MessageStore.open(stopped.settings, files)
    # The queue was written up to its end, and a page in its middle never reached the disk.
    adopt(stopped.root, other_boot=True)
    units = queue_file(stopped.root, queue_id=1)
    units.write_bytes(units.read_bytes()[:40] + bytes(60) + units.read_bytes()[100:])
    store = stopped.open()
    assert everything(store) == expected(stopped.bodies)
    store.close()


def test_keys_the_index_header_does_not_count_are_taken_out(stopped: Stopped) -> None:
    """A kill between two keys: entries and slots are ahead of the header."""
    path = sorted((stopped.root / "index").iterdir())[-1]
    data = bytearray(path.read_bytes())
    slots, entry_at = 50, 40 + 4 * 50
    (count,) = struct.unpack_from(">i", data, 36)
    for number, key_hash in ((count, 7), (count + 1, 7), (count + 2, 9)):
        slot_at = 40 + 4 * (key_hash % slots)
        (previous,) = struct.unpack_from(">i", data, slot_at)
        struct.pack_into(">iqii", data, entry_at + 20 * number, key_hash, 9999, 0, previous)
        struct.pack_into(">i", data, slot_at, number)
    path.write_bytes(data)
    store = stopped.open()
    assert all(has_key(store, n) for n in range(COUNT))
    assert store.close()
    assert tree(stopped.root, "index")[f"index/{path.name}"][:36] == bytes(data[:36])
    assert tree(stopped.root, "index")[f"index/{path.name}"] == tree(stopped.clean, "index").get(
        f"index/{path.name}"
    )


def test_killed_other_broker_is_read_from_its_last_unit(stopped: Stopped) -> None:
    (stopped.root / "offsets").unlink()
    (stopped.root / "abort").unlink()
    (stopped.root / "abort").touch()  # copied with its old times
    last = queue_file(stopped.root, queue_id=2, start=200)
    units = last.read_bytes()
    assert units[180:200] != bytes(20)
    last.write_bytes(units[:180] + bytes(20))  # message 59 was not dispatched yet
    store = stopped.open()
    assert store.recovery.why == "the last entries"
    assert store.recovery.records_read == 1
    assert everything(store) == expected(stopped.bodies)
    assert all(has_key(store, n) for n in range(COUNT))
    store.close()


def test_copied_store_of_another_broker_is_read_by_the_checkpoint(stopped: Stopped) -> None:
    (stopped.root / "offsets").unlink()
    os.utime(stopped.root / "abort", ns=(1, 1))
    store = stopped.open()
    assert store.recovery.why == "the checkpoint"
    assert everything(store) == expected(stopped.bodies)
    store.close()


def test_offsets_file_is_saved_more_often_under_load(tmp_path: Path) -> None:
    settings = small_settings(
        tmp_path, commit_log_segment_bytes=8 << 20, consume_queue_flush_interval_ms=3_600_000
    )
    store = MessageStore.open(settings)
    file = OffsetsFile(Files(), str(tmp_path))
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for _ in range(500):
            store.log.put(message(b"." * 3000))
        store.dispatch()
        saved = file.load()
        if saved is not None and saved.flushed > 16 << 20:
            break
    else:
        raise AssertionError("never saved")
    store.close()
