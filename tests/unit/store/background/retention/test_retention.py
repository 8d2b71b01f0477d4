"""Claims about deleting segments: which go, when, in which order, and what a reader sees of it."""

import errno
import os
import threading
from pathlib import Path

import pytest

from aerobee.protocol.message.record import decode_records
from aerobee.store.background.retention import disposal
from aerobee.store.background.retention.segment_times import FILE, MESSAGE
from aerobee.store.background.retention.triggers import FORCED, MANUAL, TIME
from aerobee.store.message_store import MessageStore
from aerobee.store.segments.results import GetStatus
from tests.faulty_files import FaultyFiles
from tests.unit.store.background.retention.retention_support import (
    HOUR_MS,
    SEGMENT,
    Hours,
    fill_segments,
    local_hour,
    log_files,
    names,
    on_owner,
    open_store,
    retention_settings,
    run,
    settle,
    still,
    wait_until,
)
from tests.unit.store.support import FIRST_MS, bodies, fill, flip, log_segment, message

NIGHT = str((local_hour() + 6) % 24)


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disposal, "_GRACE_POLLS", 40)


def expired(store: MessageStore, clock: Hours) -> None:
    """Four days later, at the hour of deletion."""
    clock.time_ms += 96 * HOUR_MS
    clock.go_to_hour(int(NIGHT))


# --- what goes ------------------------------------------------------------------------------------


def test_expired_segments_go_at_the_hour_and_the_last_one_stays(tmp_path: Path) -> None:
    clock = Hours()
    store = open_store(tmp_path, clock, delete_hours=NIGHT)
    made = fill_segments(store, 4)
    expired(store, clock)
    plan = run(store)
    assert plan.verdict.triggers == (TIME,)
    assert [one.start for one in plan.doomed] == [0, SEGMENT, 2 * SEGMENT]
    assert names(store) == log_files(tmp_path) == [3 * SEGMENT]
    assert store.min_log_offset == 3 * SEGMENT
    kept = bodies(store)
    assert kept == made[-len(kept) :]
    assert store.min_offset("Orders", 0) == len(made) - len(kept)
    assert store.retention.counts.segments == {TIME: 3}
    assert store.retention.counts.segment_bytes == {TIME: 3 * SEGMENT}
    assert store.close()


def test_nothing_goes_at_another_hour_or_before_its_time(tmp_path: Path) -> None:
    clock = Hours()
    store = open_store(tmp_path, clock, delete_hours=NIGHT)
    fill_segments(store, 3)
    clock.go_to_hour(int(NIGHT))
    assert run(store).doomed == ()
    clock.time_ms += 97 * HOUR_MS
    clock.go_to_hour((int(NIGHT) + 2) % 24)
    assert run(store).doomed == ()
    assert len(log_files(tmp_path)) == 3
    assert store.close()


def test_settings_that_change_while_the_store_is_open_decide_the_next_run(tmp_path: Path) -> None:
    clock = Hours()
    settings = retention_settings(tmp_path, delete_hours="", retention_hours=72)
    store = MessageStore.open(settings, clock=clock)
    fill_segments(store, 4)
    clock.time_ms += 50 * HOUR_MS
    clock.go_to_hour(int(NIGHT))
    assert run(store).doomed == ()
    settings.take({"delete_hours": NIGHT})
    store.settings_changed(settings)
    assert run(store).verdict.triggers == (TIME,)
    assert len(log_files(tmp_path)) == 4
    settings.take({"retention_hours": 48})
    store.settings_changed(settings)
    assert len(run(store).doomed) == 3
    assert len(log_files(tmp_path)) == 1
    assert store.close()


def test_a_plan_is_a_dry_run(tmp_path: Path) -> None:
    clock = Hours()
    store = open_store(tmp_path, clock, delete_hours=NIGHT)
    fill_segments(store, 3)
    expired(store, clock)
    plan = store.retention.plan()
    assert (len(plan.doomed), plan.bytes, plan.new_min) == (2, 2 * SEGMENT, 2 * SEGMENT)
    assert len(log_files(tmp_path)) == len(names(store)) == 3
    assert store.min_log_offset == 0
    assert store.close()


def test_expiry_is_counted_from_the_messages_not_from_the_file(tmp_path: Path) -> None:
    clock = Hours()
    store = open_store(tmp_path, clock)
    fill_segments(store, 3)
    assert store.close()
    # A copy or a backup has this: all files of today, or of long ago.
    for seconds, days_later, gone in ((FIRST_MS // 1000 + 10**7, 4, 2), (0, 1, 0)):
        for start in (0, SEGMENT, 2 * SEGMENT):
            os.utime(log_segment(tmp_path, start), (seconds, seconds))
        clock = Hours()
        store = open_store(tmp_path, clock, delete_hours=";".join(map(str, range(24))))
        clock.time_ms += days_later * 24 * HOUR_MS
        plan = store.retention.plan()
        assert len(plan.doomed) == gone
        assert {one.last for one in plan.doomed} <= {(FIRST_MS, MESSAGE)}
        assert store.close()


def test_file_time_decides_only_where_no_message_can_be_read(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill_segments(store, 3)
    assert store.close()
    clock = Hours()
    store = open_store(tmp_path, clock, delete_hours=";".join(map(str, range(24))))
    clock.time_ms += 96 * HOUR_MS
    for start in (0, SEGMENT):
        flip(log_segment(tmp_path, start), 4)
    os.utime(log_segment(tmp_path), (clock.time_ms / 1000 - 60, clock.time_ms / 1000 - 60))
    assert store.retention.plan().doomed == ()
    os.utime(log_segment(tmp_path), (1000, 1000))
    store.retention._times.clear()
    doomed = store.retention.plan().doomed
    assert [one.last for one in doomed] == [(1_000_000, FILE), (FIRST_MS, MESSAGE)]
    store.close()


def test_last_store_time_of_a_segment_counts_not_its_first(tmp_path: Path) -> None:
    clock = Hours()
    store = open_store(tmp_path, clock, delete_hours=NIGHT)
    store.log.put(message(b"old"))
    clock.time_ms += 100 * HOUR_MS
    fill_segments(store, 2)
    clock.go_to_hour(int(NIGHT))
    assert run(store).doomed == ()
    assert store.close()
    # After a restart the next segment's first message tells.
    store = open_store(tmp_path, clock, delete_hours=NIGHT)
    assert run(store).doomed == ()
    assert store.close()


def test_manual_deletion_is_good_for_twenty_runs(tmp_path: Path) -> None:
    clock = Hours()
    store = open_store(tmp_path, clock)
    fill_segments(store, 3)
    store.retention.arm()
    assert run(store).doomed == ()  # manual, and yet nothing that has not expired
    clock.time_ms += 96 * HOUR_MS
    assert [one.reason for one in run(store).doomed] == [MANUAL, MANUAL]
    triggers = [run(store).verdict.triggers for _ in range(19)]
    assert triggers == [(MANUAL,)] * 18 + [()]
    assert store.close()


def test_forced_deletion_takes_the_oldest_before_their_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles(tmp_path)
    store = open_store(tmp_path, files=files, disk_force_ratio=0.85, disk_max_used_percent=75)
    fill_segments(store, 5)
    files.full_ratio = 0.856  # of a million bytes: 6,000 too many
    with caplog.at_level("INFO", "aerobee.store.background.retention"):
        plan = run(store)
    assert [one.reason for one in plan.doomed] == [FORCED, FORCED]
    assert "enough room" in plan.stopped_by
    assert store.retention.counts.segments == {FORCED: 2}
    assert names(store) == [2 * SEGMENT, 3 * SEGMENT, 4 * SEGMENT]
    assert any(r.levelname == "WARNING" and "forced=2" in r.message for r in caplog.records)
    assert store.close()


def test_full_disk_with_nothing_to_delete_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles(tmp_path)
    store = open_store(tmp_path, files=files, disk_max_used_percent=75)
    fill_segments(store, 2)
    files.full_ratio = 0.8
    for _ in range(3):
        run(store)
    said = [r.message for r in caplog.records if "nothing can be deleted" in r.message]
    assert len(said) == 1
    assert "not expired" in said[0]
    assert store.close()


# --- what must not go -----------------------------------------------------------------------------


def all_hours(tmp_path: Path, clock: Hours, **changes: object) -> MessageStore:
    hours = ";".join(map(str, range(24)))
    return open_store(tmp_path, clock, delete_hours=hours, **changes)


def test_nothing_goes_that_is_not_durable(tmp_path: Path) -> None:
    clock = Hours()
    store = all_hours(tmp_path, clock, flush_interval_ms=3_600_000)
    while len(names(store)) < 3:
        fill(store, 4)
    wait_until(lambda: store._offsets.synced_to >= store.written)
    clock.time_ms += 96 * HOUR_MS
    assert store.durable == 0
    assert run(store).doomed == ()
    store.close()


def test_nothing_goes_that_is_not_dispatched(tmp_path: Path) -> None:
    clock = Hours()
    store = all_hours(tmp_path, clock)
    while len(names(store)) < 3:
        store.log.put(message(b"x" * 100))
    store.wait_durable(store.written, 5)
    clock.time_ms += 96 * HOUR_MS
    assert run(store).doomed == ()
    settle(store)
    assert len(run(store).doomed) == 2
    assert store.close()


def test_nothing_goes_whose_units_are_not_synced(tmp_path: Path) -> None:
    clock = Hours()
    # Never, or the flusher may be quicker than `run` once the clock was set forward.
    store = all_hours(tmp_path, clock, consume_queue_flush_interval_ms=400 * HOUR_MS)
    while len(names(store)) < 3:
        fill(store, 4)
    store.wait_durable(store.written, 5)
    clock.time_ms += 96 * HOUR_MS
    assert store._offsets.synced_to == 0
    assert run(store).doomed == ()
    assert store.close()


def test_numbering_survives_a_power_cut_after_all_messages_were_deleted(tmp_path: Path) -> None:
    clock = Hours()
    root = tmp_path / "store"
    root.mkdir()
    files = FaultyFiles(root)
    store = all_hours(root, clock, files=files)
    fill(store, 7)
    # A queue of its own fills what follows, so that the first one's messages all go.
    while len(names(store)) < 3:
        store.log.put(message(b"x" * 300, topic="Others"))
    settle(store)
    clock.time_ms += 96 * HOUR_MS
    assert len(run(store).doomed) == 2
    assert bodies(store) == []
    still(store)
    files.power_cut(tmp_path / "image")
    after = open_store(tmp_path / "image")
    assert after.max_offset("Orders", 0) == 7
    assert after.log.put(message(b"next")).queue_offset == 7
    after.close()
    store.close()


def test_a_broken_store_deletes_nothing(tmp_path: Path) -> None:
    clock = Hours()
    store = all_hours(tmp_path, clock)
    fill_segments(store, 3)
    clock.time_ms += 96 * HOUR_MS
    store._health.poison("a sync", OSError("on purpose"))
    assert run(store).doomed == ()
    assert len(log_files(tmp_path)) == 3
    store.close()
    assert len(log_files(tmp_path)) == 3


# --- readers --------------------------------------------------------------------------------------


def test_segment_waits_for_its_readers_and_the_ones_behind_wait_too(tmp_path: Path) -> None:
    clock = Hours()
    store = all_hours(tmp_path, clock)
    made = fill_segments(store, 4)
    result = store.reader.get("Orders", 0, 0, 5)
    clock.time_ms += 96 * HOUR_MS
    plan = run(store)
    assert len(plan.doomed) == 3
    assert names(store) == [3 * SEGMENT]
    assert log_files(tmp_path) == [0, SEGMENT, 2 * SEGMENT, 3 * SEGMENT]
    assert store.retention.hanged == 3
    assert [m.body for m in decode_records(bytes(result.views[0]))] == made[:5]
    fill_segments(store, 3)
    assert run(store).doomed == ()  # would only queue up behind it
    result.release()
    clock.seconds += 119
    run(store)
    assert store.retention.hanged == 3  # not tried again before its time
    clock.seconds += 2
    run(store)
    assert store.retention.hanged == 0
    assert log_files(tmp_path)[0] == 3 * SEGMENT
    assert store.close()


def test_name_goes_after_a_while_although_a_reader_still_has_the_segment(tmp_path: Path) -> None:
    clock = Hours()
    store = all_hours(tmp_path, clock)
    made = fill_segments(store, 3)
    result = store.reader.get("Orders", 0, 0, 5)
    clock.time_ms += 96 * HOUR_MS
    run(store)
    assert store.retention.hanged == 2
    clock.seconds += 121
    run(store)
    assert log_files(tmp_path) == [2 * SEGMENT]
    assert store.retention.hanged == 1
    assert [m.body for m in decode_records(bytes(result.views[0]))] == made[:5]
    result.release()
    run(store)
    assert store.retention.hanged == 0
    assert store.close()


def test_view_without_a_pin_counts_as_a_reader(tmp_path: Path) -> None:
    clock = Hours()
    store = all_hours(tmp_path, clock)
    fill_segments(store, 2)
    view = store._parts.segments.segments[0].view[:100]
    clock.time_ms += 96 * HOUR_MS
    run(store)
    assert store.retention.hanged == 1
    assert len(bytes(view)) == 100
    view.release()
    clock.seconds += 121
    run(store)
    assert store.retention.hanged == 0
    assert store.close()


def test_reader_that_lets_go_at_once_is_waited_for(tmp_path: Path) -> None:
    clock = Hours()
    store = all_hours(tmp_path, clock)
    fill_segments(store, 2)
    result = store.reader.get("Orders", 0, 0, 5)
    clock.time_ms += 96 * HOUR_MS
    release = threading.Timer(0.05, result.release)
    release.start()
    run(store)
    release.join()
    assert store.retention.hanged == 0
    assert log_files(tmp_path) == [SEGMENT]
    assert store.close()


def test_close_removes_what_hangs(tmp_path: Path) -> None:
    clock = Hours()
    store = all_hours(tmp_path, clock)
    fill_segments(store, 3)
    result = store.reader.get("Orders", 0, 0, 5)
    clock.time_ms += 96 * HOUR_MS
    run(store)
    assert store.retention.hanged == 2
    assert store.close()
    assert log_files(tmp_path) == [2 * SEGMENT]
    result.release()


def test_pull_below_the_new_beginning_is_told_where_to_go_on(tmp_path: Path) -> None:
    clock = Hours()
    store = all_hours(tmp_path, clock)
    fill_segments(store, 3)
    clock.time_ms += 96 * HOUR_MS
    plan = store.retention.plan()
    detached = store.retention.detach(plan)
    # Between detaching and trimming the units are there, the messages are not.
    between = store.reader.get("Orders", 0, 0, 5)
    assert between.status is GetStatus.MESSAGE_WAS_REMOVING
    store.retention.dispose(detached)
    run(store)
    after = store.reader.get("Orders", 0, 0, 5)
    assert after.status is GetStatus.OFFSET_TOO_SMALL
    assert after.next_offset == store.min_offset("Orders", 0) > 0
    assert store.reader.get("Orders", 0, after.next_offset, 5).status is GetStatus.FOUND
    store.close()


# --- groups ---------------------------------------------------------------------------------------


def test_groups_that_still_need_what_goes_are_named_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Hours()
    store = all_hours(tmp_path, clock)
    made = fill_segments(store, 3)
    clock.time_ms += 96 * HOUR_MS
    asked: list[int] = []
    offsets = {
        ("Orders", 0): {"behind": 3, "done": len(made)},
        ("Orders", 9): {"behind": 0},
        ("Unknown", 0): {"behind": 0},
    }

    def groups() -> dict[tuple[str, int], dict[str, int]]:
        asked.append(1)
        return offsets

    plan = store.retention.plan(groups)
    gone = next(
        n for n in range(len(made)) if store._queues.queues["Orders", 0].entry(n)[0] >= 2 * SEGMENT
    )  # type: ignore[index]
    assert [(n.group, n.topic, n.queue_id, n.queue_offset, n.messages) for n in plan.needs] == [
        ("behind", "Orders", 0, 3, gone - 3)
    ]
    store.retention.run(on_owner, groups)
    assert store.retention.counts.unconsumed == gone - 3
    assert any("group=behind" in r.message for r in caplog.records)
    assert len(asked) == 2
    store.retention.run(on_owner, groups)
    assert len(asked) == 2  # nothing goes: nobody has to be asked
    store.close()


# --- failures -------------------------------------------------------------------------------------


def test_removal_that_fails_is_counted_and_tried_again_in_order(tmp_path: Path) -> None:
    clock = Hours()
    files = FaultyFiles(tmp_path)
    store = all_hours(tmp_path, clock, files=files)
    fill_segments(store, 3)
    clock.time_ms += 96 * HOUR_MS
    files.fail("remove", errno.EPERM, "commitlog", times=1)
    run(store)
    assert log_files(tmp_path) == [0, SEGMENT, 2 * SEGMENT]
    assert store.retention.counts.failures == 1
    clock.seconds += 121
    run(store)
    assert log_files(tmp_path) == [2 * SEGMENT]
    assert store.close()


def test_failed_sync_of_the_directory_breaks_the_store(tmp_path: Path) -> None:
    clock = Hours()
    files = FaultyFiles(tmp_path)
    store = all_hours(tmp_path, clock, files=files)
    fill_segments(store, 3)
    clock.time_ms += 96 * HOUR_MS
    files.fail("sync_directory", errno.EIO, "commitlog")
    run(store)
    assert "commitlog" in (store.not_writable_reason() or "")
    # The next segment may have been made ahead by then.
    assert log_files(tmp_path)[:2] == [SEGMENT, 2 * SEGMENT]
    files.heal()
    assert not store.close()


def test_segment_somebody_else_removed_is_no_matter(tmp_path: Path) -> None:
    clock = Hours()
    store = all_hours(tmp_path, clock)
    fill_segments(store, 3)
    clock.time_ms += 96 * HOUR_MS
    plan = store.retention.plan()
    log_segment(tmp_path).unlink()
    store.retention.dispose(store.retention.detach(plan))
    assert log_files(tmp_path) == [2 * SEGMENT]
    assert store.not_writable_reason() is None
    assert store.close()


def test_stale_plan_takes_nothing(tmp_path: Path) -> None:
    clock = Hours()
    store = all_hours(tmp_path, clock)
    fill_segments(store, 4)
    clock.time_ms += 96 * HOUR_MS
    stale = store.retention.plan()
    run(store)
    assert store.retention.detach(stale) == []
    assert names(store) == [3 * SEGMENT]
    assert store.close()


def test_room_made_lets_refused_sends_resume_at_once(tmp_path: Path) -> None:
    clock = Hours()
    files = FaultyFiles(tmp_path)
    store = all_hours(tmp_path, clock, files=files, disk_warning_ratio=0.9)
    fill_segments(store, 3)
    files.full_ratio = 0.95
    store._disk.look(at_once=True)
    assert store.not_writable_reason() is not None
    clock.time_ms += 96 * HOUR_MS
    files.full_ratio = 0.5
    store.retention.dispose(store.retention.detach(store.retention.plan()))
    assert store.not_writable_reason() is None
    assert store.close()


# --- large files ----------------------------------------------------------------------------------

LARGE = 80 << 20


def test_large_file_is_given_back_in_steps(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    store = open_store(tmp_path / "store", files=files)
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(LARGE)
    store.retention.removal.remove(str(path))
    assert not path.exists()
    assert files.count("set_size", str(path)) == 2
    assert store.close()


def test_copy_by_link_and_open_reader_keep_what_they_have(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    for name in ("linked", "read"):
        path = tmp_path / name
        with path.open("wb") as file:
            file.truncate(LARGE)
            file.seek(LARGE - 4)
            file.write(b"last")
        if name == "linked":
            os.link(path, tmp_path / "backup")
        with path.open("rb") as reader:
            if name == "linked":
                reader.close()
            store.retention.removal.remove(str(path))
            assert not path.exists()
            if name == "read":
                reader.seek(LARGE - 4)
                assert reader.read() == b"last"
    assert (tmp_path / "backup").stat().st_size == LARGE
    assert store.close()
