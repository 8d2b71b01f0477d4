"""Claims about appending: places, limits, rolls, batches, refusals."""

import struct
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from aerobee.protocol.message.record import StoreMessage, decode_record, record_size
from aerobee.protocol.message.record_layout import pack_host
from aerobee.store.errors import MessageIllegal, PageCacheBusy, PropertiesTooLarge, StoreClosed
from aerobee.store.message_store import MessageStore
from aerobee.store.segments.mapped_file import MappedFile
from tests.unit.store.support import (
    FIRST_MS,
    SEGMENT,
    ManualClock,
    bodies,
    log_segment,
    message,
    read_all,
    small_settings,
)

BLANK_MAGIC = 0xCBD43194


def exact(size: int) -> StoreMessage:
    """A message whose record has `size` bytes."""
    return message(b"." * (size - record_size(message(b""))))


def test_put_tells_where_the_message_went(tmp_path: Path) -> None:
    clock = ManualClock()
    store = MessageStore.open(small_settings(tmp_path), clock=clock)
    first = store.log.put(message(b"one", unique="U"))
    second = store.log.put(message(b"two", queue_id=3))
    third = store.log.put(message(b"three"))
    assert (first.log_offset, first.queue_offset, first.count) == (0, 0, 1)
    assert second.log_offset == first.end == first.size
    assert (second.queue_offset, third.queue_offset) == (0, 1)
    assert first.store_timestamp_ms == FIRST_MS
    assert store.written == third.end
    record = store.reader.record_at(second.log_offset)
    assert record is not None
    decoded = decode_record(record)
    assert (decoded.body, decoded.queue_id, decoded.queue_offset) == (b"two", 3, 0)
    store.close()


@pytest.mark.parametrize(("spare", "rolls"), [(0, True), (7, True), (8, False), (9, False)])
def test_a_record_needs_eight_bytes_behind_it(tmp_path: Path, spare: int, rolls: bool) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    first = store.log.put(exact(1000))
    size = SEGMENT - first.size - spare
    second = store.log.put(exact(size))
    store.dispatch()
    assert second.log_offset == (SEGMENT if rolls else first.end)
    if rolls:
        blank = log_segment(tmp_path).read_bytes()[first.end :]
        assert blank[:8] == struct.pack(">iI", SEGMENT - first.end, BLANK_MAGIC)
        assert blank[8:] == bytes(len(blank) - 8)
    assert len(bodies(store)) == 2
    assert store.close()


def test_a_blank_may_be_all_that_fits(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    store.log.put(exact(1500))
    store.log.put(exact(SEGMENT - 1500 - 8))
    third = store.log.put(exact(500))
    assert third.log_offset == SEGMENT
    assert log_segment(tmp_path).read_bytes()[-8:] == struct.pack(">iI", 8, BLANK_MAGIC)
    store.close()


def test_a_record_larger_than_a_segment_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path, max_message_bytes=100_000))
    store.log.put(exact(100))
    with pytest.raises(MessageIllegal, match="commit_log_segment_bytes"):
        store.log.put(exact(SEGMENT - 7))
    assert store.written == 100
    assert store.log.put(exact(SEGMENT - 8)).log_offset == SEGMENT
    assert store.log.put(exact(100)).queue_offset == 2
    store.close()


def test_batch_is_stored_side_by_side(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    store.log.put(message(b"before"))
    result = store.log.put_batch([message(b"b%d" % n, unique=f"B{n}") for n in range(5)])
    store.dispatch()
    found = read_all(store)
    assert [one.body for one in found] == [b"before", b"b0", b"b1", b"b2", b"b3", b"b4"]
    assert list(result.log_offsets) == [one.log_offset for one in found[1:]]
    assert (result.count, result.queue_offset) == (5, 1)
    assert result.end == store.written == result.log_offset + result.size
    assert {one.store_timestamp_ms for one in found[1:]} == {result.store_timestamp_ms}
    store.close()


@pytest.mark.parametrize(("spare", "rolls"), [(0, True), (7, True), (8, False)])
def test_batch_goes_into_one_segment_whole(tmp_path: Path, spare: int, rolls: bool) -> None:
    store = MessageStore.open(small_settings(tmp_path, max_message_bytes=10_000))
    first = store.log.put(exact(1000))
    total = SEGMENT - first.size - spare
    result = store.log.put_batch([exact(500), exact(500), exact(total - 1000)])
    store.dispatch()
    expected = SEGMENT if rolls else first.end
    assert list(result.log_offsets) == [expected, expected + 500, expected + 1000]
    if rolls:
        blank = log_segment(tmp_path).read_bytes()[first.end :]
        assert blank == struct.pack(">iI", len(blank), BLANK_MAGIC) + bytes(len(blank) - 8)
    assert [one.queue_offset for one in read_all(store)] == [0, 1, 2, 3]
    assert store.close()


def test_batch_that_no_segment_holds_is_refused(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path, max_message_bytes=10_000))
    with pytest.raises(MessageIllegal):
        store.log.put_batch([exact(2000), exact(2000), exact(1000)])
    assert store.written == 0
    assert store.log.put(message()).queue_offset == 0
    store.close()


def test_batch_of_two_queues_or_of_a_transaction_is_refused(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    for batch in (
        [],
        [message(), message(queue_id=1)],
        [message(), message(topic="Other")],
        [message(), message(sys_flag=4)],
        [message(b"." * 1600), message(b"." * 1600)],
    ):
        with pytest.raises(MessageIllegal):
            store.log.put_batch(batch)
    assert store.written == 0
    assert store.stats.put_failures == {"MessageIllegal": 5}
    store.close()


@pytest.mark.parametrize("born", ["192.0.2.9", "2001:db8::9"])
@pytest.mark.parametrize("stored", ["192.0.2.8", "2001:db8::8"])
def test_hosts_of_both_families_are_kept(tmp_path: Path, born: str, stored: str) -> None:
    settings = small_settings(tmp_path)
    store = MessageStore.open(settings)
    store.log.put(
        message(b"x", unique="K", born_host=pack_host(born, 1), store_host=pack_host(stored, 65535))
    )
    store.dispatch()
    assert store.close()
    store = MessageStore.open(settings)
    [found] = read_all(store)
    assert (found.born_host, found.store_host) == ((born, 1), (stored, 65535))
    assert found.sys_flag == (0x10 if ":" in born else 0) | (0x20 if ":" in stored else 0)
    assert len(store.search.query("Orders", "K", 10, 0, 2**62).records) == 1
    store.close()


def test_half_and_rollback_take_no_queue_offset(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    store.log.put(message(b"plain", unique="P"))
    assert store.log.put(message(b"half", unique="H", sys_flag=4)).queue_offset == 0
    assert store.log.put(message(b"back", unique="R", sys_flag=12)).queue_offset == 0
    assert store.log.put(message(b"committed", unique="C", sys_flag=8)).queue_offset == 1
    store.dispatch()
    assert bodies(store) == [b"plain", b"committed"]
    found = {key: len(store.search.query("Orders", key, 9, 0, 2**62).records) for key in "PHRC"}
    assert found == {"P": 1, "H": 1, "R": 0, "C": 1}
    assert store.close()


def test_waiting_messages_have_their_delivery_time_in_the_queue(tmp_path: Path) -> None:
    clock = ManualClock()
    store = MessageStore.open(
        small_settings(tmp_path, message_delay_levels="1s 5s 1m"), clock=clock
    )
    for level in ("1", "3", "99", "0", "x"):
        store.log.put(message(topic="SCHEDULE_TOPIC_XXXX", tags="A", more={"DELAY": level}))
    codes = [arrival.tags_code for arrival in store.dispatch()]
    assert codes == [FIRST_MS + 1000, FIRST_MS + 60_000, FIRST_MS + 60_000, ord("A"), ord("A")]
    store.close()


def test_limits_of_the_format_are_kept(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path, commit_log_segment_bytes=1 << 18))
    with pytest.raises(MessageIllegal, match="3001 bytes"):
        store.log.put(message(b"." * 3001))
    with pytest.raises(PropertiesTooLarge):
        store.log.put(message(more={"k": "v" * 32_767}))
    with pytest.raises(PropertiesTooLarge):
        store.log.put_batch([message(more={"k": "v" * 32_767})])
    with pytest.raises(MessageIllegal, match="128 bytes"):
        store.log.put(message(topic="t" * 128))
    for topic in ("", ".", "..", "a/b", "../up", "nul\0"):
        with pytest.raises(MessageIllegal):
            store.log.put(message(topic=topic))
    with pytest.raises(MessageIllegal):
        store.log.put(message(queue_id=-1))
    assert store.written == 0
    store.log.put(message(b"." * 3000, topic="t" * 127, more={"k": "v" * 32_765}))
    store.close()
    assert sorted(path.name for path in (tmp_path / "consumequeue").iterdir()) == ["t" * 127]


def test_store_times_never_go_back_within_a_segment(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = small_settings(tmp_path)
    store = MessageStore.open(settings, clock=clock)
    store.log.put(exact(1000))
    clock.time_ms -= 60_000
    assert store.log.put(exact(1000)).store_timestamp_ms == FIRST_MS
    store.close()
    store = MessageStore.open(settings, clock=clock)
    assert store.log.put(exact(1000)).store_timestamp_ms == FIRST_MS
    assert store.log.put(exact(1500)).store_timestamp_ms == FIRST_MS - 60_000
    store.close()


def test_put_lock_held_for_long_is_answered_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SlowClock(ManualClock):
        """With two events for an append that is stopped while it holds the put lock."""

        def __init__(self) -> None:
            super().__init__()
            self.inside = threading.Event()
            self.go_on = threading.Event()

    clock = SlowClock()
    store = MessageStore.open(small_settings(tmp_path), clock=clock)
    store.log.put(message())
    append = MappedFile.append

    def slow_append(segment: MappedFile, records: Iterable[bytes], store_ms: int) -> None:
        clock.inside.set()
        assert clock.go_on.wait(10)
        append(segment, records, store_ms)

    with monkeypatch.context() as patched:
        patched.setattr(MappedFile, "append", slow_append)
        writer = threading.Thread(target=store.log.put, args=(message(),))
        writer.start()
        assert clock.inside.wait(10)
        clock.time_ms += 1001
        assert store.log.busy()
        with pytest.raises(PageCacheBusy):
            store.log.put(message())
        clock.go_on.set()
        writer.join()
    assert not store.log.busy()
    assert store.log.put(message()).queue_offset == 2
    store.close()


def test_an_exception_while_appending_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    store.log.put(message())
    before = store.written
    broken = message()
    broken.queue_id = 0
    broken.flag = 2**40
    with pytest.raises(Exception, match=r"'i' format"):
        store.log.put(broken)
    assert store.written == before
    assert not store.log.busy()
    assert store.log.put(message()).queue_offset == 1
    store.close()


def test_appends_from_many_threads_keep_their_order_and_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MessageStore.open(small_settings(tmp_path, commit_log_segment_bytes=1 << 16))
    encode, met = store.log._encode, threading.Event()
    inside: list[bytes] = []

    def in_no_hurry(*arguments: Any) -> bytes:
        """Gives a second thread the time to come in, if it is let."""
        inside.append(b"")
        if len(inside) > 1:
            met.set()
        met.wait(0.001)
        inside.pop()
        return encode(*arguments)

    monkeypatch.setattr(store.log, "_encode", in_no_hurry)

    def write(number: int) -> None:
        for n in range(50):
            store.log.put(message(b"%d:%d" % (number, n)))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not met.is_set()
    store.dispatch()
    found = read_all(store)
    assert [one.queue_offset for one in found] == list(range(200))
    for number in range(4):
        own = [one.body for one in found if one.body.startswith(b"%d:" % number)]
        assert own == [b"%d:%d" % (number, n) for n in range(50)]
    assert store.close()


def test_a_closed_store_takes_nothing(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    assert store.close()
    with pytest.raises(StoreClosed):
        store.log.put(message())
    assert store.not_writable_reason() == "the store is closed"


def test_counters_count(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    sizes = [store.log.put(message()).size, store.log.put_batch([message(), message()]).size]
    store.dispatch()
    stats = store.stats
    assert (stats.appends, stats.appended_messages, stats.appended_bytes) == (2, 3, sum(sizes))
    assert stats.append_times.count == 2
    assert stats.dispatched_messages == 3
    assert stats.segments_created == 1
    store.close()
