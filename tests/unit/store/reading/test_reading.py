"""Claims about gets and searches by time: statuses, limits, filters, views."""

import struct
from pathlib import Path

import pytest

from aerobee.protocol.hashing import java_hash
from aerobee.protocol.message.record import decode_records
from aerobee.store.message_store import MessageStore
from aerobee.store.segments.results import GetResult, GetStatus
from tests.unit.store.support import (
    FIRST_MS,
    SEGMENT,
    ManualClock,
    fill,
    log_segment,
    message,
    queue_file,
    small_settings,
)


def taken(result: GetResult) -> list[bytes]:
    found = [one.body for view in result.views for one in decode_records(bytes(view))]
    assert sum(len(view) for view in result.views) == result.size
    assert len(found) == result.count
    result.release()
    return found


def test_each_place_has_its_status(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    store.log.put(message(b"elsewhere", topic="Other"))
    unknown = store.reader.get("Orders", 0, 5, 10)
    assert (unknown.status, unknown.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
    made = fill(store, 25)
    for offset, status, following in (
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
        (0, GetStatus.FOUND, 10),
        (24, GetStatus.FOUND, 25),
        (25, GetStatus.OFFSET_OVERFLOW_ONE, 25),
        (26, GetStatus.OFFSET_OVERFLOW_BADLY, 25),
        (2**62, GetStatus.OFFSET_OVERFLOW_BADLY, 25),
    ):
        result = store.reader.get("Orders", 0, offset, 32)
        assert (result.status, result.next_offset) == (status, following), offset
        assert (result.min_offset, result.max_offset) == (0, 25)
        if status is GetStatus.FOUND:
            assert taken(result) == made[offset:following]
    assert (store.stats.get_found, store.stats.get_messages, store.stats.get_missed) == (2, 11, 5)
    store.close()


def test_what_is_not_dispatched_is_not_seen(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    store.log.put(message(b"one"))
    assert store.reader.get("Orders", 0, 0, 1).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert [arrival.queue_offset for arrival in store.dispatch()] == [0]
    assert store.dispatch() == []
    assert taken(store.reader.get("Orders", 0, 0, 1)) == [b"one"]
    store.close()


def test_neighbours_share_a_view_up_to_the_segments_end(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path, consume_queue_segment_bytes=2000))
    made = fill(store, 40, size=100)
    first = store.reader.get("Orders", 0, 0, 32)
    assert first.count == 32
    assert len(first.views) == 2
    assert taken(first) == made[:32]
    store.log.put(message(b"other queue", queue_id=1))
    store.log.put(message(b"last"))
    store.dispatch()
    result = store.reader.get("Orders", 0, 38, 32)
    assert len(result.views) == 2
    assert taken(result) == [*made[38:], b"last"]
    store.close()


def test_answers_are_limited_by_count_and_bytes(tmp_path: Path) -> None:
    settings = small_settings(
        tmp_path, consume_queue_segment_bytes=2000, transfer_count_memory=12, max_message_bytes=3900
    )
    store = MessageStore.open(settings)
    fill(store, 30)
    size = store.reader.get("Orders", 0, 0, 1).size
    assert [store.reader.get("Orders", 0, 0, most).count for most in (1, 5, 12, 30, 0)] == [
        1,
        5,
        12,
        12,
        1,
    ]
    for max_bytes, count in ((1, 1), (size, 1), (size * 2, 2), (size * 2 - 1, 1), (size * 5, 5)):
        assert store.reader.get("Orders", 0, 0, 32, None, max_bytes).count == count
    store.log.put(message(b"." * 3000))
    store.dispatch()
    large = store.reader.get("Orders", 0, 30, 32, None, 100)
    assert (large.count, large.next_offset) == (1, 31)
    store.close()


def test_old_messages_come_in_smaller_answers(tmp_path: Path) -> None:
    settings = small_settings(
        tmp_path, memory_ratio_percent=0, consume_queue_segment_bytes=2000, transfer_count_disk=3
    )
    store = MessageStore.open(settings)
    fill(store, 20)
    result = store.reader.get("Orders", 0, 0, 32)
    assert (result.count, result.suggest_slave) == (3, True)
    assert not store.reader.is_in_memory("Orders", 0, 0)
    store.close()
    store = MessageStore.open(settings.with_changes(memory_ratio_percent=40))
    assert store.reader.get("Orders", 0, 0, 32).count == 20
    assert store.reader.is_in_memory("Orders", 0, 0)
    assert not store.reader.is_in_memory("Orders", 0, 20)
    store.close()


def test_tags_are_filtered_by_their_hash(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path, consume_queue_segment_bytes=2000))
    tags = ["a", "b", "", "polygenelubricants", "ü", "🚀"]
    for number in range(60):
        store.log.put(message(b"%d" % number, tags=tags[number % 6]))
    store.dispatch()
    for number, tag in enumerate(tags):
        result = store.reader.get("Orders", 0, 0, 32, frozenset({java_hash(tag)}))
        assert result.next_offset == 60
        assert taken(result) == [b"%d" % n for n in range(number, 60, 6)]
    both = store.reader.get("Orders", 0, 0, 5, frozenset({java_hash("a"), java_hash("b")}))
    assert both.next_offset == 13 - 6 + 5 or both.count == 5
    assert taken(both) == [b"0", b"1", b"6", b"7", b"12"]
    none = store.reader.get("Orders", 0, 7, 32, frozenset({12345}))
    assert (none.status, none.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 60)
    assert store.reader.get("Orders", 0, 0, 32, frozenset()).count == 32
    store.close()


def test_filter_looks_at_the_low_bits_of_delivery_times(tmp_path: Path) -> None:
    clock = ManualClock()
    store = MessageStore.open(small_settings(tmp_path), clock=clock)
    store.log.put(message(b"x", topic="SCHEDULE_TOPIC_XXXX", more={"DELAY": "1"}))
    store.dispatch()
    low = struct.unpack(">i", struct.pack(">q", FIRST_MS + 1000)[4:])[0]
    assert store.reader.get("SCHEDULE_TOPIC_XXXX", 0, 0, 1, frozenset({low})).count == 1
    assert store.reader.get("SCHEDULE_TOPIC_XXXX", 0, 0, 1, frozenset({low + 1})).count == 0
    store.close()


def test_views_stay_valid_until_released_even_over_close(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    made = fill(store, 5)
    result = store.reader.get("Orders", 0, 0, 5)
    store.close()
    view = result.views[0]
    assert decode_records(bytes(view))[0].body == made[0]
    result.release()
    with pytest.raises(ValueError, match="released"):
        bytes(view)
    result.release()


def test_views_cannot_be_written_through(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    fill(store, 1)
    result = store.reader.get("Orders", 0, 0, 1)
    with pytest.raises(TypeError):
        result.views[0][0] = 1
    result.release()
    store.close()


def test_message_of_a_unit_that_names_no_record_is_found_in_the_log(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    made = fill(store, 6)
    with queue_file(tmp_path).open("r+b") as file:
        file.write(struct.pack(">qiq", 13, 200, 0))
        file.seek(40)
        file.write(struct.pack(">qiq", 0, 2**31 - 2, 0))
        file.seek(60)
        file.write(struct.pack(">qiq", 2**50, 200, 0))
    result = store.reader.get("Orders", 0, 0, 32)
    assert (result.status, result.next_offset) == (GetStatus.FOUND, 2)
    assert taken(result) == made[:2]
    result = store.reader.get("Orders", 0, 2, 32)
    assert (result.status, result.next_offset) == (GetStatus.FOUND, 6)
    assert taken(result) == made[2:]
    assert store.stats.damaged_reads == 0
    assert store.stats.repaired_entries == 3
    store.close()


def test_messages_of_a_removed_segment_are_passed_over_at_once(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, consume_queue_segment_bytes=2000)
    store = MessageStore.open(settings)
    made = fill(store, 40, size=100)
    kept = [n for n in range(40) if store._queues.queues["Orders", 0].entry(n)[0] >= SEGMENT]  # type: ignore[index]
    store.log.segments.segments[0].close()
    store.log.segments.segments = store.log.segments.segments[1:]
    result = store.reader.get("Orders", 0, 0, 64)
    assert result.status is GetStatus.FOUND
    assert taken(result) == [made[n] for n in kept][: result.count]
    assert result.next_offset >= kept[0] + 1
    store.close()


def test_record_at_gives_records_only(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    results = [store.log.put(message(b"%d" % n * 300)) for n in range(20)]
    for result in results:
        record = store.reader.record_at(result.log_offset)
        assert record is not None
        assert len(record) == result.size
        assert store.reader.record_at(result.log_offset + 1) is None
    blank = max(result.end for result in results if result.log_offset < SEGMENT)
    for offset in (-1, blank, store.written, store.written + 1, 2**62):
        assert store.reader.record_at(offset) is None
    store.close()


def test_record_at_refuses_a_damaged_body(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    result = store.log.put(message())
    with log_segment(tmp_path).open("r+b") as file:
        file.seek(88)
        file.write(b"J")
    assert store.reader.record_at(result.log_offset) is None
    store.close()


# --- by time --------------------------------------------------------------------------------------


def timed_store(tmp_path: Path, times: list[int]) -> MessageStore:
    clock = ManualClock()
    store = MessageStore.open(small_settings(tmp_path), clock=clock)
    for time_ms in times:
        clock.time_ms = FIRST_MS + time_ms
        store.log.put(message(b"." * 100))
        store.log.put(message(b"." * 100, topic="Noise"))
    store.dispatch()
    return store


def test_search_by_time_finds_the_nearest(tmp_path: Path) -> None:
    times = [n * 1000 for n in range(80)]
    store = timed_store(tmp_path, times)
    for wanted in range(-3000, 85_000, 250):
        nearest = min(range(80), key=lambda n: (abs(times[n] - wanted), n))
        assert store.search.offset_by_time("Orders", 0, FIRST_MS + wanted) == nearest, wanted
    assert store.search.offset_by_time("Orders", 0, 0) == 0
    assert store.search.offset_by_time("Orders", 0, 2**62) == 79
    assert store.search.offset_by_time("Nothing", 0, FIRST_MS) == 0
    assert store.search.store_time("Orders", 0, 7) == FIRST_MS + 7000
    assert store.search.store_time("Orders", 0, 80) == store.search.store_time("Orders", 1, 0) == -1
    assert store.search.earliest_store_time("Orders", 0) == FIRST_MS
    assert store.search.earliest_store_time("Nothing", 0) == -1
    store.close()


def test_search_by_time_gives_the_first_of_equals(tmp_path: Path) -> None:
    store = timed_store(tmp_path, [0] * 5 + [1000] * 30 + [2000] * 5)
    assert store.search.offset_by_time("Orders", 0, FIRST_MS + 1000) == 5
    assert store.search.offset_by_time("Orders", 0, FIRST_MS + 2000) == 35
    store.close()


def test_search_by_time_passes_over_lost_messages(tmp_path: Path) -> None:
    store = timed_store(tmp_path, [n * 1000 for n in range(40)])
    queue = store._queues.queues["Orders", 0]
    for lost in (0, 1, 10, 11, 12, 39):
        queue.blank_out(lost)
    for wanted, expected in ((0, 2), (10, 9), (11, 9), (12, 13), (39, 38), (5, 5)):
        assert store.search.offset_by_time("Orders", 0, FIRST_MS + wanted * 1000) == expected
    assert store.search.earliest_store_time("Orders", 0) == FIRST_MS + 2000
    store.close()
