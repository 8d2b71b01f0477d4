"""Claims about the dry run on a directory: the same as the store would do, and only read."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from aerobee.config.model import Settings
from aerobee.protocol.names import SCHEDULE_TOPIC
from aerobee.store.background.retention.forecast import Forecast, forecast, next_hour_ms
from aerobee.store.background.retention.segment_times import FILE
from aerobee.store.background.retention.triggers import FORCED, MANUAL, SPACE, TIME
from aerobee.store.disk.files import DiskSpace, Files
from aerobee.store.message_store import MessageStore
from tests.faulty_files import FaultyFiles
from tests.unit.store.background.retention.retention_support import (
    HOUR_MS,
    SEGMENT,
    Hours,
    fill_segments,
    local_hour,
    open_store,
    retention_settings,
    run,
)
from tests.unit.store.support import FIRST_MS, flip, log_segment, message, tree

DAY_MS = 24 * HOUR_MS


def days(path: Path, count: int, *, clock: Hours | None = None) -> Hours:
    """A store closed after `count` segments, one a day."""
    clock = clock or Hours()
    store = open_store(path, clock)
    for number in range(count):
        fill_segments(store, number + 1, queues=2)
        clock.time_ms += DAY_MS
    assert store.close()
    return clock


def look(path: Path, clock: Hours, files: Files | None = None, **changes: Any) -> Forecast:
    return forecast(retention_settings(path, **changes), (), files, clock)


def starts(wave: Any) -> list[int]:
    return [one.start for one in wave.doomed]


def commit(path: Path, table: dict[str, dict[str, int]]) -> None:
    (path / "config").mkdir()
    (path / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))


def test_time_that_does_not_count_is_left_out_and_said(tmp_path: Path) -> None:
    """The running store does so too: it was down, or the clock was set; nobody can tell."""
    clock = days(tmp_path, 4)
    clock.time_ms += 96 * HOUR_MS
    assert len(look(tmp_path, clock).on_request.doomed) < 3
    (note,) = look(tmp_path, clock).notes
    assert note.startswith("96.0 hours do not count")


# --- segments -------------------------------------------------------------------------------------


def test_it_says_when_each_segment_expires_and_that_the_last_one_stays(tmp_path: Path) -> None:
    clock = days(tmp_path, 4)
    found = look(tmp_path, clock, retention_hours=72)
    assert [one.place.start for one in found.segments] == [n * SEGMENT for n in range(4)]
    # The first message of the next segment is the bound.
    assert [one.expires_ms for one in found.segments] == [
        FIRST_MS + (n + 1) * DAY_MS + 3 * DAY_MS for n in range(3)
    ] + [None]
    assert found.segment_bytes == SEGMENT
    assert found.made_ahead == 0


def test_it_foretells_what_a_run_deletes(tmp_path: Path) -> None:
    clock = days(tmp_path, 6)
    hours = {"delete_hours": str(clock.hour), "retention_hours": 72}
    told = look(tmp_path, clock, **hours)
    assert told.now.verdict.triggers == (TIME,)
    store = open_store(tmp_path, clock, **hours)
    assert starts(told.now) == starts(run(store)) == [0, SEGMENT, 2 * SEGMENT]
    assert store.close()


def test_next_hour_takes_what_expires_until_its_end(tmp_path: Path) -> None:
    clock = days(tmp_path, 6)
    hour = (clock.hour + 2) % 24
    # The third expires 13 minutes after that hour has struck.
    found = look(tmp_path, clock, delete_hours=str(hour), retention_hours=74)
    assert found.now.doomed == ()
    assert starts(found.on_request) == [0, SEGMENT]
    assert {one.reason for one in found.on_request.doomed} == {MANUAL}
    assert found.next is not None
    assert clock.time_ms < found.next.now_ms < found.segments[2].expires_ms  # type: ignore[operator]
    assert starts(found.next) == [0, SEGMENT, 2 * SEGMENT]
    assert {one.reason for one in found.next.doomed} == {TIME}
    assert look(tmp_path, clock, delete_hours="").next is None


def test_next_hour_is_now_in_it_and_else_the_next_time_the_clock_shows_it() -> None:
    now = FIRST_MS
    hour = local_hour(now)
    assert next_hour_ms(now, frozenset({hour})) == now
    found = next_hour_ms(now, frozenset({(hour + 1) % 24}))
    assert found is not None
    assert 0 < found - now <= HOUR_MS
    assert local_hour(found) == (hour + 1) % 24
    assert local_hour(found - 1) == hour
    found = next_hour_ms(now, frozenset({(hour - 1) % 24}))
    assert found is not None
    assert 22 * HOUR_MS < found - now < 24 * HOUR_MS
    assert next_hour_ms(now, frozenset()) is None


def test_segments_made_ahead_are_told_apart(tmp_path: Path) -> None:
    clock = days(tmp_path, 2)
    (tmp_path / "commitlog" / f"{2 * SEGMENT:020d}").write_bytes(bytes(SEGMENT))
    found = look(tmp_path, clock)
    assert (len(found.segments), found.made_ahead) == (2, 1)
    assert found.segments[-1].expires_ms is None


def test_time_of_the_file_is_marked_as_such(tmp_path: Path) -> None:
    clock = days(tmp_path, 3)
    for start in (0, SEGMENT):
        flip(log_segment(tmp_path, start), 4)
    os.utime(log_segment(tmp_path), (1000, 1000))
    first = look(tmp_path, clock).segments[0]
    assert first.last == (1_000_000, FILE)


# --- disks ----------------------------------------------------------------------------------------


def test_it_foretells_forced_deletion_and_where_it_stops(tmp_path: Path) -> None:
    clock = days(tmp_path / "store", 5)
    files = FaultyFiles(tmp_path / "store")
    files.full_ratio = 0.856  # of a million bytes: 6,000 too many
    limits = {"disk_max_used_percent": 75, "disk_force_ratio": 0.85, "retention_hours": 1000}
    found = look(tmp_path / "store", clock, files, **limits)
    assert found.now.verdict.triggers == (SPACE,)
    assert [(one.start, one.reason) for one in found.now.doomed] == [(0, FORCED), (SEGMENT, FORCED)]
    (log_disk, queue_disk) = found.disks
    assert (log_disk.is_log, queue_disk.is_log) == (True, False)
    assert log_disk.room_to(0.85) == -6_000
    assert log_disk.room_to(0.90) == 44_000


def test_without_pressure_it_says_what_would_go_first(tmp_path: Path) -> None:
    clock = days(tmp_path, 4)
    found = look(tmp_path, clock, retention_hours=1000)
    assert found.now.doomed == ()
    assert starts(found.under_pressure) == [0, SEGMENT, 2 * SEGMENT]


# --- groups ---------------------------------------------------------------------------------------


def _first_at(store: MessageStore, queue_id: int, log_offset: int) -> int:
    return store._queues.queues["Orders", queue_id].first_at(log_offset)


def test_groups_that_need_what_goes_are_counted_by_queue(tmp_path: Path) -> None:
    clock = days(tmp_path, 6)
    store = open_store(tmp_path, clock)
    ends = [store.max_offset("Orders", n) for n in (0, 1)]
    first_kept = [_first_at(store, queue_id, 3 * SEGMENT) for queue_id in (0, 1)]
    assert store.close()
    commit(
        tmp_path,
        {
            "Orders@slow": {"0": 2, "1": 5},
            "Orders@done": {"0": ends[0], "1": ends[1]},
            "Orders@near": {"0": first_kept[0]},
            "Gone@slow": {"0": 1},
        },
    )
    found = look(tmp_path, clock, delete_hours=str(clock.hour), retention_hours=72)
    assert starts(found.now) == [0, SEGMENT, 2 * SEGMENT]
    assert [
        (one.group, one.queue, one.committed, one.behind, one.loses_now) for one in found.groups
    ] == [
        ("near", 0, first_kept[0], ends[0] - first_kept[0], 0),
        ("slow", 0, 2, ends[0] - 2, first_kept[0] - 2),
        ("slow", 1, 5, ends[1] - 5, first_kept[1] - 5),
    ]


def test_messages_that_wait_for_their_delay_count_as_needed(tmp_path: Path) -> None:
    clock = days(tmp_path, 3)
    store = open_store(tmp_path, clock)
    for body in (b"given out", b"waiting", b"waiting too"):
        store.log.put(message(body, SCHEDULE_TOPIC, 1, more={"DELAY": "2"}))
    store.dispatch()
    assert store.close()
    file = tmp_path / "config" / "delayOffset.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text('{"offsetTable":{2:1}}')
    (waiting,) = look(tmp_path, clock).groups
    assert (waiting.group, waiting.topic, waiting.queue) == ("SCHEDULE_CONSUMER", SCHEDULE_TOPIC, 1)
    assert (waiting.committed, waiting.behind) == (1, 2)


def test_queue_that_cannot_be_read_is_a_note_and_no_failure(tmp_path: Path) -> None:
    clock = days(tmp_path, 3)
    commit(tmp_path, {"Orders@g": {"0": 0, "1": 0}})
    (tmp_path / "consumequeue" / "Orders" / "0" / f"{7:020d}").write_bytes(bytes(200))
    found = look(tmp_path, clock)
    assert {one.queue for one in found.groups} == {1}
    assert any("Consume queues can be made again" in note for note in found.notes)
    (tmp_path / "config" / "consumerOffset.json").write_text("{")
    assert any("consumer offsets" in note for note in look(tmp_path, clock).notes)


# --- only reading ---------------------------------------------------------------------------------


def test_nothing_is_written_and_a_broker_may_have_the_store_open(tmp_path: Path) -> None:
    clock = Hours()
    store = open_store(tmp_path / "store", clock)
    fill_segments(store, 4)
    commit(tmp_path / "store", {"Orders@g": {"0": 3}})

    class ReadingOnly(Files):
        def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
            assert read_only
            assert not create
            assert os.path.basename(path) != "lock"  # closing it would give the lock away
            return super().open(path, create=create, read_only=read_only)

    before = tree(tmp_path / "store", "commitlog")
    found = look(tmp_path / "store", clock, ReadingOnly())
    assert len(found.segments) == 4
    assert found.made_ahead <= 1
    assert [one.group for one in found.groups] == ["g"]
    assert tree(tmp_path / "store", "commitlog") == before
    assert store.not_writable_reason() is None
    assert store.close()


def test_segment_that_is_deleted_meanwhile_has_it_look_again(tmp_path: Path) -> None:
    clock = days(tmp_path, 4)

    class Deleting(Files):
        looked = 0

        def disk_space(self, path: str) -> DiskSpace:
            self.looked += 1
            if self.looked == 1:
                log_segment(tmp_path).unlink()
            return super().disk_space(path)

    found = look(tmp_path, clock, Deleting())
    assert [one.place.start for one in found.segments] == [SEGMENT, 2 * SEGMENT, 3 * SEGMENT]


def test_segment_that_stays_away_is_an_error(tmp_path: Path) -> None:
    clock = days(tmp_path, 2)

    class Broken(Files):
        def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
            raise FileNotFoundError(2, "gone", path)

    with pytest.raises(FileNotFoundError):
        look(tmp_path, clock, Broken())


def test_sizes_are_those_of_the_files(tmp_path: Path) -> None:
    clock = days(tmp_path, 3)
    settings = Settings.for_tests(store_path=str(tmp_path))
    found = forecast(settings, (), None, clock)
    assert found.segment_bytes == SEGMENT
    assert len(found.segments) == 3
