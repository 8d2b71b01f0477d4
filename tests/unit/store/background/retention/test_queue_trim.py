"""Claims about queues and index after the log lost its oldest segments."""

import errno
import threading
from pathlib import Path

import pytest

from aerobee.store.background.retention import queue_trim, retention
from aerobee.store.message_store import MessageStore
from aerobee.store.queues.queue_view import EMPTY, ENTRY, ENTRY_BYTES, PRE_BLANK
from aerobee.store.segments.results import GetStatus
from tests.faulty_files import FaultyFiles
from tests.unit.store.background.retention.retention_support import (
    HOUR_MS,
    SEGMENT,
    Hours,
    fill_segments,
    log_files,
    names,
    on_owner,
    open_store,
    run,
    settle,
    still,
)
from tests.unit.store.support import QUEUE_SEGMENT, bodies, fill, kill_image, message, read_all

ALL_HOURS = ";".join(map(str, range(24)))


def late(path: Path, **changes: object) -> tuple[MessageStore, Hours]:
    """A store in which everything that was put has expired, once the caller moves the clock."""
    clock = Hours()
    return open_store(path, clock, delete_hours=ALL_HOURS, **changes), clock  # type: ignore[arg-type]


def queue_files(path: Path, topic: str = "Orders", queue_id: int = 0) -> list[int]:
    return sorted(int(f.name) for f in (path / "consumequeue" / topic / str(queue_id)).iterdir())


def index_files(path: Path) -> int:
    return len(list((path / "index").iterdir()))


# --- queues ---------------------------------------------------------------------------------------


def test_leading_files_go_and_the_queue_begins_at_its_first_message_that_is_there(
    tmp_path: Path,
) -> None:
    store, clock = late(tmp_path)
    made = fill_segments(store, 4)
    clock.time_ms += 96 * HOUR_MS
    run(store)
    first = store.min_offset("Orders", 0)
    assert queue_files(tmp_path)[0] == first * ENTRY_BYTES // QUEUE_SEGMENT * QUEUE_SEGMENT > 0
    assert [m.queue_offset for m in read_all(store)] == list(range(first, len(made)))
    assert read_all(store)[0].log_offset >= store.min_log_offset
    assert store.retention.counts.queue_files == len(range(0, queue_files(tmp_path)[0], 200))
    assert store.close()


def test_queue_without_a_message_left_begins_at_its_end_and_keeps_its_last_file(
    tmp_path: Path,
) -> None:
    store, clock = late(tmp_path)
    fill(store, 24)
    while len(names(store)) < 4:
        store.log.put(message(b"x" * 200, topic="Others"))
    settle(store)
    clock.time_ms += 96 * HOUR_MS
    run(store)
    assert queue_files(tmp_path) == [2 * QUEUE_SEGMENT]
    assert (store.min_offset("Orders", 0), store.max_offset("Orders", 0)) == (24, 24)
    result = store.reader.get("Orders", 0, 5, 1)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, 24)
    assert store.log.put(message(b"next")).queue_offset == 24
    store.dispatch()
    assert bodies(store) == [b"next"]
    assert store.close()


def test_blank_or_damaged_last_unit_does_not_take_its_file_along(tmp_path: Path) -> None:
    store, clock = late(tmp_path)
    fill_segments(store, 4)
    fill(store, 14)
    settle(store)
    assert len(names(store)) == 4
    queue = store._queues.queues["Orders", 0]
    last = (queue.max_offset // 10 - 1) * 10 + 9  # of the last full file
    assert queue.entry(last - 1)[0] >= 3 * SEGMENT  # type: ignore[index]
    path = tmp_path / "consumequeue/Orders/0" / f"{last // 10 * QUEUE_SEGMENT:020d}"
    for unit in (PRE_BLANK, EMPTY, ENTRY.pack(0, 200, 0)):
        data = bytearray(path.read_bytes())
        data[-ENTRY_BYTES:] = unit
        path.write_bytes(data)
        clock.time_ms += 96 * HOUR_MS
        run(store)
        store.retention._trimmed_to = 0
        assert path.exists()
        assert store.min_offset("Orders", 0) <= last // 10 * 10 + 8
    store.close()


def test_pre_blank_files_in_front_go(tmp_path: Path) -> None:
    store, clock = late(tmp_path)
    fill_segments(store, 3)
    queue = store._queues.queues["Orders", 0]
    for offset in range(10):
        queue.blank_out(offset)
    clock.time_ms += 96 * HOUR_MS
    run(store)
    assert queue_files(tmp_path)[0] > 0
    assert store.close()


def test_nothing_is_trimmed_while_the_log_begins_where_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, clock = late(tmp_path)
    fill_segments(store, 3)
    asked: list[int] = []
    plan = store.retention.trimmer.plan
    monkeypatch.setattr(store.retention.trimmer, "plan", lambda low: asked.append(low) or plan(low))
    run(store)
    clock.time_ms += 96 * HOUR_MS
    run(store)
    run(store)
    assert asked == [2 * SEGMENT]
    assert store.close()


def test_first_run_after_a_start_trims_what_the_last_one_left(tmp_path: Path) -> None:
    store, clock = late(tmp_path)
    fill_segments(store, 4)
    clock.time_ms += 96 * HOUR_MS
    retention = store.retention
    retention.dispose(retention.detach(retention.plan()))  # and no trimming
    assert queue_files(tmp_path)[0] == 0
    assert store.close()
    store, clock = late(tmp_path)
    run(store)
    assert queue_files(tmp_path)[0] > 0
    assert store.close()


def test_only_so_many_queue_files_go_in_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_trim, "MOST_A_RUN", 3)
    store, clock = late(tmp_path, index_enabled=False)
    fill_segments(store, 4)
    clock.time_ms += 96 * HOUR_MS
    before = len(queue_files(tmp_path))
    run(store)
    assert len(queue_files(tmp_path)) == before - 3
    for _ in range(10):
        run(store)
    assert queue_files(tmp_path)[0] // QUEUE_SEGMENT == store.min_offset("Orders", 0) // 10
    assert store.close()


def test_many_queues_reach_the_owner_in_small_portions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_TRIMS_AT_ONCE", 10)
    store, clock = late(tmp_path, index_enabled=False)
    for queue_id in range(45):
        store.log.put(message(b"x" * 50, queue_id=queue_id))
    fill_segments(store, 3)
    clock.time_ms += 96 * HOUR_MS
    portions: list[int] = []
    apply = store.retention.trimmer.apply
    monkeypatch.setattr(
        store.retention.trimmer, "apply", lambda trims: portions.append(len(trims)) or apply(trims)
    )
    opened: list[str] = []
    real = store._queues.cache.fd
    monkeypatch.setattr(
        store._queues.cache, "fd", lambda file: opened.append(file.path) or real(file)
    )
    run(store)
    assert portions == [10, 10, 10, 10, 5]
    assert opened == []  # all reading went through descriptors of the worker's own
    assert {store.min_offset("Orders", n) for n in range(1, 45)} == {1}
    assert store.close()


def test_messages_that_arrive_while_trimming_is_planned_stay_visible(tmp_path: Path) -> None:
    store, clock = late(tmp_path)
    store.log.put(message(b"old"))
    while len(names(store)) < 3:
        store.log.put(message(b"x" * 200, topic="Others"))
    settle(store)
    clock.time_ms += 96 * HOUR_MS
    store.retention.dispose(store.retention.detach(store.retention.plan()))
    trims = store.retention.trimmer.plan(store.min_log_offset)
    new = [b"%d" % n for n in range(25)]
    for body in new:
        store.log.put(message(body))
    store.dispatch()
    store.retention.trimmer.apply(trims)
    assert bodies(store) == new
    # And with a plan made while the newest file is there and not yet counted.
    queue = store._queues.queues["Orders", 0]
    queue.max_offset, held = 20, queue.max_offset
    late_plan = queue_trim.plan_queue(store._parts.files, queue, store.min_log_offset)
    queue.max_offset = held
    assert late_plan is None or late_plan.min_offset <= 1
    store.close()


def test_late_removal_does_not_take_the_file_of_a_topic_made_anew(tmp_path: Path) -> None:
    store, clock = late(tmp_path)
    fill_segments(store, 3)
    clock.time_ms += 96 * HOUR_MS
    trimmer = store.retention.trimmer
    store.retention.dispose(store.retention.detach(store.retention.plan()))
    trimmer.apply(trimmer.plan(store.min_log_offset))
    assert trimmer._queue_files[0][1].start == 0
    store.delete_topic("Orders")
    fresh = fill(store, 3)
    trimmer.dispose()
    assert queue_files(tmp_path) == [0]
    assert bodies(store) == fresh
    store.close()


def test_topic_deleted_while_trimming_is_planned_is_no_matter(tmp_path: Path) -> None:
    store, clock = late(tmp_path)
    fill_segments(store, 3)
    clock.time_ms += 96 * HOUR_MS
    trimmer = store.retention.trimmer
    store.retention.dispose(store.retention.detach(store.retention.plan()))
    queue = store._queues.queues["Orders", 0]
    planned = trimmer.plan(store.min_log_offset)
    store.delete_topic("Orders")
    with pytest.raises(FileNotFoundError):
        queue_trim.plan_queue(store._parts.files, _with_files(queue, planned[0].files), SEGMENT)
    assert trimmer.plan(store.min_log_offset) == []
    trimmer.apply(planned)
    assert trimmer.dispose() == 0
    assert store.close()


def _with_files(queue, files):  # type: ignore[no-untyped-def]
    queue.segments = (*files, *files)
    return queue


def test_failed_removal_of_a_queue_file_is_tried_again(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    store, clock = late(tmp_path, files=files)
    fill_segments(store, 4)
    clock.time_ms += 96 * HOUR_MS
    files.fail("remove", errno.EPERM, "consumequeue", times=1)
    run(store)
    assert queue_files(tmp_path)[0] == 0
    assert store.retention.counts.failures == 1
    run(store)
    assert queue_files(tmp_path)[0] > 0
    assert store.close()


# --- index ----------------------------------------------------------------------------------------


def test_index_files_that_know_nothing_of_the_log_go_never_the_last(tmp_path: Path) -> None:
    store, clock = late(tmp_path)
    fill_segments(store, 8)
    before = index_files(tmp_path)
    assert before > 2
    clock.time_ms += 96 * HOUR_MS
    run(store)
    assert 0 < index_files(tmp_path) < before
    index = store._parts.index
    assert index is not None
    assert len(index.files) == index_files(tmp_path)
    assert all(file.end_offset >= store.min_log_offset for file in index.files)
    last = read_all(store)[-1]
    key = last.properties["UNIQ_KEY"]
    assert [bytes(r) for r in store.search.query("Orders", key, 10, 0, clock.time_ms).records] != []
    assert store.close()
    # And the next start misses none of them.
    store, _ = late(tmp_path)
    assert store.recovery.index_files_removed == []
    assert store.close()


def test_last_index_file_stays_though_it_knows_nothing_of_the_log(tmp_path: Path) -> None:
    store, clock = late(tmp_path)
    fill(store, 15)
    while len(names(store)) < 3:
        store.log.put(message(b"x" * 300))
    settle(store)
    clock.time_ms += 96 * HOUR_MS
    run(store)
    assert index_files(tmp_path) == 1
    assert store.close()


def test_index_file_that_is_not_synced_yet_is_not_closed_under_the_flush_thread(
    tmp_path: Path,
) -> None:
    store, _ = late(tmp_path)
    fill_segments(store, 8)
    index = store._parts.index
    assert index is not None
    index._sealed.append(index.files[0])
    index._sealed.append(index.files[1])
    assert index.take_below(7 * SEGMENT) == ()
    index._sealed.clear()
    assert len(index.take_below(7 * SEGMENT)) > 0
    store.close()


def test_query_running_meanwhile_does_not_fail(tmp_path: Path) -> None:
    """Queries, gets and puts on the owner's thread while a worker deletes all there is."""
    hours = Hours()
    store = open_store(tmp_path, hours, delete_hours=ALL_HOURS, retention_hours=1)
    fill_segments(store, 3)
    calls: list[object] = []
    asked = threading.Condition()

    def to_owner(call):  # type: ignore[no-untyped-def]
        """Hand a call over and wait for its result."""
        box: list[object] = []
        with asked:
            calls.append((call, box))
            assert asked.wait_for(lambda: bool(box), 30)
        return box[0]

    ended = threading.Event()
    failed: list[BaseException] = []

    def worker() -> None:
        try:
            for _ in range(10_000):
                if sum(store.retention.counts.segments.values()) > 5:
                    break
                store.retention.run(to_owner)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failed.append(error)
        ended.set()

    thread = threading.Thread(target=worker)
    thread.start()
    sent = 0
    while not ended.is_set():
        hours.time_ms += HOUR_MS
        for body in fill(store, 10):
            sent += 1
            offset = store.min_offset("Orders", 0)
            result = store.reader.get("Orders", 0, offset, 8)
            assert result.status in (GetStatus.FOUND, GetStatus.MESSAGE_WAS_REMOVING), body
            result.release()
            store.search.query("Orders", f"U{sent % 10}", 8, 0, hours.time_ms + 1)
            store.search.offset_by_time("Orders", 0, hours.time_ms - HOUR_MS)
        with asked:
            while calls:
                call, box = calls.pop()  # type: ignore[misc]
                box.append(call())  # type: ignore[has-type]
            asked.notify_all()
    thread.join()
    assert failed == []
    assert sum(store.retention.counts.segments.values()) > 5
    assert store.close()


# --- crashes --------------------------------------------------------------------------------------


def check_image(image: Path, made: list[bytes]) -> int:
    """The store opens; it has a suffix of the sent messages; numbering goes on. Its length."""
    store = open_store(image)
    assert store.recovery.gaps == []
    found = read_all(store)
    assert [m.body for m in found] == made[len(made) - len(found) :]
    assert [m.queue_offset for m in found] == list(range(len(made) - len(found), len(made)))
    assert store.log.put(message(b"next")).queue_offset == len(made)
    for record in found:
        hits = store.search.query("Orders", record.properties["UNIQ_KEY"], 100, 0, 2**50).records
        assert any(record.body in hit for hit in hits)
    assert store.close()
    return len(found)


def test_store_opens_whenever_the_process_dies_while_deleting(tmp_path: Path) -> None:
    """Killed, or without power, at every removal and every sync of a directory."""

    class Snapshots(FaultyFiles):
        taken = 0
        armed = False

        def _check(self, operation: str, path: str) -> None:
            super()._check(operation, path)
            if self.armed and operation in ("remove", "sync_directory"):
                self.armed = False  # copying calls nothing of this
                kill_image(root, tmp_path / f"kill{self.taken}")
                self.power_cut(tmp_path / f"cut{self.taken}")
                self.taken += 1
                self.armed = True

    root = tmp_path / "store"
    root.mkdir()
    files = Snapshots(root)
    store, clock = late(root, files=files)
    made = fill_segments(store, 5)
    clock.time_ms += 96 * HOUR_MS
    still(store)
    files.armed = True
    run(store)
    files.armed = False
    assert log_files(root) == [4 * SEGMENT]
    kept = len(bodies(store))
    store.close()
    assert files.taken > 12
    lengths = [
        check_image(tmp_path / f"{kind}{n}", made)
        for n in range(files.taken)
        for kind in ("kill", "cut")
    ]
    assert min(lengths) == kept
    assert max(lengths) == len(made)


def test_segments_detached_and_not_removed_are_there_again_and_go_again(tmp_path: Path) -> None:
    store, clock = late(tmp_path / "store")
    made = fill_segments(store, 3)
    clock.time_ms += 96 * HOUR_MS
    still(store)
    store.retention.detach(store.retention.plan())
    image = kill_image(tmp_path / "store", tmp_path / "image")
    store.close()
    after, clock = late(image)
    assert bodies(after) == made
    clock.time_ms += 96 * HOUR_MS
    assert len(after.retention.run(on_owner).doomed) == 2
    assert after.close()
