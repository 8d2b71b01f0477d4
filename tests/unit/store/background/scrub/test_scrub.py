"""Claims about the scrub: what it finds, what it mends, what it leaves alone, how it behaves."""

import errno
import logging
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aerobee.protocol.message.record import Message
from aerobee.protocol.message.record_check import announced_size
from aerobee.protocol.message.record_layout import (
    MAGIC_POSITION,
    QUEUE_OFFSET_POSITION,
    TOTAL_SIZE_POSITION,
)
from aerobee.store.background.scrub import entry_scrub as scrub_units
from aerobee.store.background.scrub import queue_repair, scrub
from aerobee.store.disk.files import Files
from aerobee.store.message_store import MessageStore
from tests.unit.store.support import (
    FIRST_MS,
    SEGMENT,
    ManualClock,
    bodies,
    fill,
    flip,
    from_properties,
    log_segment,
    message,
    queue_file,
    read_all,
    small_settings,
)

COUNT = 60
QUEUES = 3
VICTIM = 25
BODY_POSITION = 88
WAIT_S = 20.0
FAST = 1 << 40


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "FIRST_AFTER_S", 0.0)


def until(condition: Callable[[], object], what: str) -> None:
    """The scrub has its own thread and nobody to tell of it."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_S:.0f} s: {what}"
        time.sleep(0.002)


@contextmanager
def opened(
    root: Path, files: Files | None = None, passes: int = 1, **changes: object
) -> Iterator[MessageStore]:
    """An open store whose scrub has ended this number of passes, its findings settled."""
    values = {"scrub_bytes_per_second": FAST} | changes
    store = MessageStore.open(small_settings(root, **values), files)
    try:
        if passes:
            scrubbed(store, passes)
        yield store
    finally:
        store.close()


def scrubbed(store: MessageStore, passes: int) -> None:
    until(lambda: store.stats.scrub_passes >= passes, "a pass of the scrub")
    settle(store)


def settle(store: MessageStore) -> None:
    """Take the owner's turns, until there are no more findings and no more requests."""
    worker, repair = store._scrub, store._queue_repair
    assert worker is not None

    def done() -> bool:
        quiet = worker.requests.idle
        store.repair_queues()
        return quiet and worker.requests.idle and repair._work is None and not repair._findings

    until(done, "findings settled")


class Stopped:
    """A store of 60 messages in 3 queues, stopped; a start reads none of it."""

    def __init__(self, root: Path, **settings: object) -> None:
        self.root = root
        self.settings = settings
        store = MessageStore.open(small_settings(root, **settings))
        self.bodies = fill(store, COUNT, queues=QUEUES)
        self.records = sorted(
            (found for queue_id in range(QUEUES) for found in read_all(store, queue_id=queue_id)),
            key=lambda found: found.log_offset,
        )
        self.victim = self.records[VICTIM]
        store.close()

    def flip_record(self, number: int, at: int, bit: int = 4) -> Message:
        record = self.records[number]
        start = record.log_offset // SEGMENT * SEGMENT
        flip(log_segment(self.root, start), record.log_offset - start + at, bit)
        return record

    def gap(self, number: int) -> tuple[int, int]:
        record = self.records[number]
        return record.log_offset, record.log_offset + record.size

    def set_unit(self, queue_id: int, offset: int, unit: tuple[int, int, int]) -> None:
        start = offset // 10 * 200
        with queue_file(self.root, queue_id=queue_id, start=start).open("r+b") as file:
            file.seek(offset * 20 - start)
            file.write(struct.pack(">qiq", *unit))

    def unit_of(self, number: int) -> tuple[int, int, int]:
        record = self.records[number]
        start = record.queue_offset // 10 * 200
        data = queue_file(self.root, queue_id=record.queue_id, start=start).read_bytes()
        return struct.unpack_from(">qiq", data, record.queue_offset * 20 - start)  # type: ignore[return-value]


@pytest.fixture
def stopped(tmp_path: Path) -> Stopped:
    return Stopped(tmp_path / "store")


def all_bodies(store: MessageStore) -> list[bytes]:
    return sorted(body for queue_id in range(QUEUES) for body in bodies(store, queue_id=queue_id))


def unchecked(store: MessageStore) -> list[int]:
    return [segment.unchecked_below for segment in store.log.segments.segments]


# --- what is in order -------------------------------------------------------------------------


def test_sound_segments_need_no_checks_any_more(stopped: Stopped) -> None:
    with opened(stopped.root) as store:
        assert unchecked(store) == [0, 0, 0]
        assert store.unchecked_bytes == store.stats.scrub_left_bytes == 0
        assert store.stats.scrub_bytes >= stopped.records[-1].log_offset
        assert store.stats.damage_found == {"record": 0, "unit": 0, "unclear": 0, "index": 0}
        assert all_bodies(store) == stopped.bodies


def test_all_kinds_of_records_and_queues_are_in_order(tmp_path: Path) -> None:
    """Large records, half messages, delayed ones, further queues, hosts of IPv6, no properties."""
    settings: dict[str, object] = {
        "commit_log_segment_bytes": 1 << 20,
        "max_message_bytes": 300_000,
        "multi_dispatch": True,
        "lmq_enabled": True,
        "append_property_crc": True,
        "verify_property_crc": True,
    }
    store = MessageStore.open(small_settings(tmp_path, **settings), clock=ManualClock())
    listed = {"INNER_MULTI_DISPATCH": "%LMQ%a,other"}
    for n in range(8):
        store.log.put(message(b"x" * 250_000))
        store.log.put(message(b"half", sys_flag=4))
        store.log.put(message(b"later", "SCHEDULE_TOPIC_XXXX", 2, more={"DELAY": "3"}))
        store.log.put(message(b"%d" % n, "Listed", 1, tags="T", more=listed))
        store.log.put(message(b"six", born_host=bytes(20), sys_flag=16, tags="a tag", keys="k"))
        store.log.put(from_properties(b"", "Bare", 0, b""))
        store.log.put(from_properties(b"", "Twice", 0, b"XTAGS\x01a\x02TAGS\x01b\x02TAGS\x01c"))
    store.dispatch()
    store.close()
    with opened(tmp_path, **settings) as store:
        assert store.unchecked_bytes == 0
        assert store.stats.damage_found == {"record": 0, "unit": 0, "unclear": 0, "index": 0}
        assert store.stats.repaired_entries == 0


def test_delayed_messages_with_other_levels_than_today_are_in_order(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path, message_delay_levels="1s 2s 3s"))
    for _ in range(5):
        store.log.put(message(b"x", "SCHEDULE_TOPIC_XXXX", 2, more={"DELAY": "3"}))
    store.dispatch()
    store.close()
    with opened(tmp_path, message_delay_levels="1h 2h 3h") as store:
        assert unchecked(store) == [0]
        assert store.stats.repaired_entries == 0


def test_records_of_a_deleted_topic_are_left_alone(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    fill(store, 30)
    store.delete_topic("Orders")
    made = fill(store, 20)
    store.close()
    with opened(tmp_path) as store:
        assert bodies(store) == made
        assert store.stats.repaired_entries == 0
        assert store.stats.damage_found["unit"] == 0
        assert store.unchecked_bytes == 0


# --- damaged records --------------------------------------------------------------------------

FIELDS: dict[str, Callable[[int], int]] = {
    "size": lambda body: TOTAL_SIZE_POSITION + 3,
    "high byte of the size": lambda body: TOTAL_SIZE_POSITION,
    "magic": lambda body: MAGIC_POSITION,
    "queue offset": lambda body: QUEUE_OFFSET_POSITION + 7,
    "body": lambda body: BODY_POSITION,
    "length of the body": lambda body: BODY_POSITION - 1,
    "topic": lambda body: BODY_POSITION + body + 3,
}


@pytest.mark.parametrize("field", FIELDS)
def test_damaged_record_is_found_and_named_without_a_read(
    stopped: Stopped, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    victim = stopped.flip_record(VICTIM, FIELDS[field](len(stopped.victim.body)))
    with opened(stopped.root) as store:
        assert store.stats.damage_found == {"record": 1, "unit": 0, "unclear": 0, "index": 0}
        assert store.known_gaps == (stopped.gap(VICTIM),)
        assert unchecked(store) == [0, SEGMENT, 0]
        (line,) = [m for m in caplog.messages if m.startswith("damaged record")]
        assert f"log_offset={victim.log_offset} " in line
        assert f"queue={victim.queue_id} queue_offset={victim.queue_offset} " in line
        # A read of it says nothing new, and nobody is sent the record.
        assert all_bodies(store) == [b for b in stopped.bodies if b != victim.body]
        assert store.stats.damaged_reads == 1
        assert store.stats.damage_found["record"] == 1


def test_one_line_for_each_segment_with_damage(
    stopped: Stopped, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for number in (3, 25, 26, 28, 50):
        stopped.flip_record(number, TOTAL_SIZE_POSITION + 3)
    with opened(stopped.root) as store:
        lines = [m for m in caplog.messages if m.startswith("damage in a log segment")]
        # Where a size is damaged, what follows is found by the next sound record.
        assert [line.split("places=")[1].split()[0] for line in lines] == ["1", "2", "1"]
        two = (stopped.gap(25)[0], stopped.gap(26)[1])
        assert store.known_gaps == (stopped.gap(3), two, stopped.gap(28), stopped.gap(50))
        # Each message is named all the same.
        assert store.stats.damage_found["record"] == 5
        assert any(m.startswith("scrub ended") for m in caplog.messages)


def test_segment_that_is_read_again_is_not_reported_again(
    stopped: Stopped, caplog: pytest.LogCaptureFixture
) -> None:
    stopped.flip_record(3, TOTAL_SIZE_POSITION + 3)
    with opened(stopped.root) as store:
        scrub = store._scrub
        assert scrub is not None
        scrub.requests.ask_pass()
        scrubbed(store, store.stats.scrub_passes + 1)
        lines = [m for m in caplog.messages if m.startswith("damage in a log segment")]
        assert len(lines) == 1


def test_damage_of_many_records_in_a_row_costs_those(stopped: Stopped) -> None:
    first, last = stopped.records[VICTIM], stopped.records[VICTIM + 3]
    start = first.log_offset // SEGMENT * SEGMENT
    with log_segment(stopped.root, start).open("r+b") as file:
        file.seek(first.log_offset - start)
        file.write(b"\xaa" * (last.log_offset + last.size - first.log_offset))
    with opened(stopped.root) as store:
        assert store.known_gaps == ((first.log_offset, last.log_offset + last.size),)
        assert len(all_bodies(store)) == COUNT - 4


def test_damaged_end_of_a_segment_is_found(stopped: Stopped) -> None:
    last = max(r.log_offset + r.size for r in stopped.records if r.log_offset < SEGMENT)
    flip(log_segment(stopped.root), last + MAGIC_POSITION)
    with opened(stopped.root) as store:
        assert store.known_gaps == ((last, SEGMENT),)
        assert all_bodies(store) == stopped.bodies


def test_forged_record_in_a_body_is_not_taken_for_one(tmp_path: Path) -> None:
    """It names its own place and is followed by another one, but no queue names it."""
    store = MessageStore.open(small_settings(tmp_path))
    before = [store.log.put(message(b"%d" % n)) for n in range(3)]
    end = before[-1].log_offset + before[-1].size
    inner = MessageStore.open(small_settings(tmp_path / "inner"))
    inner.log.put(message(b"."))
    forged = inner.reader.record_at(0)
    assert forged is not None
    inner.close()
    at = end + BODY_POSITION + 10
    made = bytearray(forged * 2)
    struct.pack_into(">q", made, 28, at)
    struct.pack_into(">q", made, 28 + len(forged), at + len(forged))
    outer = store.log.put(message(b"0123456789" + bytes(made)))
    assert outer.log_offset == end
    behind = [store.log.put(message(b"%d" % n)) for n in range(3, 6)]
    store.dispatch()
    store.close()
    flip(log_segment(tmp_path), end + TOTAL_SIZE_POSITION + 2)
    with opened(tmp_path) as store:
        assert store.known_gaps == ((end, behind[0].log_offset),)
        assert bodies(store) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_record_that_no_queue_names_is_found_behind_damage(tmp_path: Path) -> None:
    """Half messages have no unit; sound records lead from it to a record that has a unit."""
    store = MessageStore.open(small_settings(tmp_path))
    first = store.log.put(message(b"first"))
    half = store.log.put(message(b"half", sys_flag=4))
    store.log.put(message(b"last"))
    store.dispatch()
    store.close()
    flip(log_segment(tmp_path), first.log_offset + MAGIC_POSITION)
    with opened(tmp_path) as store:
        assert store.known_gaps == ((0, half.log_offset),)


def test_large_record_with_a_damaged_size_does_not_take_the_memory_it_claims(
    tmp_path: Path,
) -> None:
    settings = {"commit_log_segment_bytes": 1 << 24, "max_message_bytes": 1 << 20}
    store = MessageStore.open(small_settings(tmp_path, **settings))
    results = [store.log.put(message(b"x" * 500_000)) for _ in range(12)]
    store.dispatch()
    store.close()
    flip(log_segment(tmp_path), results[1].log_offset + 1, 0x20)
    files = CountingFiles()
    with opened(tmp_path, files, **settings) as store:
        assert store.known_gaps == ((results[1].log_offset, results[2].log_offset),)
        assert files.largest_read < 600_000


class CountingFiles(Files):
    largest_read = 0

    def read(self, fd: int, position: int, size: int) -> bytes:
        if threading.current_thread().name == "aerobee-scrub":
            self.largest_read = max(self.largest_read, size)
        return super().read(fd, position, size)


# --- wrong units ------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["place", "size", "tags code", "hole", "blank", "negative"])
def test_wrong_unit_is_mended(stopped: Stopped, change: str) -> None:
    right = stopped.unit_of(VICTIM)
    wrong = {
        "place": (right[0] ^ 8, right[1], right[2]),
        "size": (right[0], right[1] ^ 1, right[2]),
        "tags code": (right[0], right[1], right[2] ^ 1),
        "hole": (0, 0, 0),
        "blank": (0, 2**31 - 1, 0),
        "negative": (right[0], right[1] - 2**31, right[2]),
    }[change]
    stopped.set_unit(stopped.victim.queue_id, stopped.victim.queue_offset, wrong)
    with opened(stopped.root) as store:
        assert store.stats.repaired_entries == 1
        assert store.stats.damage_found == {"record": 0, "unit": 1, "unclear": 0, "index": 0}
        assert store.known_gaps == ()
        assert all_bodies(store) == stopped.bodies
        assert unchecked(store) == [0, 0, 0]
    assert stopped.unit_of(VICTIM) == right


def test_wrong_unit_met_by_a_read_is_mended_and_its_segment_scrubbed(stopped: Stopped) -> None:
    with opened(stopped.root) as store:
        right = stopped.unit_of(VICTIM)
        wrong = (right[0] ^ 8, *right[1:])
        for times in (1, 2):
            stopped.set_unit(stopped.victim.queue_id, stopped.victim.queue_offset, wrong)
            assert all_bodies(store) == stopped.bodies
            assert stopped.unit_of(VICTIM) == right
            settle(store)
            assert store.stats.repaired_entries == times
            # The read could tell which of the two it was: the message was found elsewhere.
            assert store.stats.damage_found == {
                "record": 0,
                "unit": times,
                "unclear": 0,
                "index": 0,
            }


@pytest.mark.parametrize("slot", [0, 1])
def test_first_unit_of_a_queue_is_mended(stopped: Stopped, slot: int) -> None:
    number = slot * QUEUES
    right = stopped.unit_of(number)
    stopped.set_unit(0, slot, (right[0] ^ 1, *right[1:]))
    with opened(stopped.root) as store:
        assert all_bodies(store) == stopped.bodies


def test_queue_whose_first_page_is_gone_is_mended_after_a_pass(stopped: Stopped) -> None:
    with queue_file(stopped.root).open("r+b") as file:
        file.write(bytes(100))
    with opened(stopped.root) as store:
        assert store.stats.repaired_entries == 5
        assert all_bodies(store) == stopped.bodies
        assert unchecked(store) == [0, 0, 0]


def test_old_message_gets_no_slot_of_the_numbering_that_followed(tmp_path: Path) -> None:
    """Its topic was deleted and used again; the first of the new numbers is damaged."""
    store = MessageStore.open(small_settings(tmp_path))
    old = fill(store, 3)
    store.delete_topic("Orders")
    new = fill(store, 12)
    record = read_all(store)[0]
    store.close()
    assert old[0] == new[0]
    flip(log_segment(tmp_path), record.log_offset + BODY_POSITION)
    with opened(tmp_path) as store:
        assert bodies(store) == new[1:]
        assert store.stats.repaired_entries == 0


def test_old_message_does_not_take_the_place_of_a_first_one_that_was_blanked(
    tmp_path: Path,
) -> None:
    """A recovery has found the first record of the new numbering damaged."""
    store = MessageStore.open(small_settings(tmp_path))
    store.log.put(message(b"old"))
    store.dispatch()
    store.delete_topic("Orders")
    first = store.log.put(message(b"new 0"))
    for n in range(1, 5):
        store.log.put(message(b"new %d" % n))
    store.dispatch()
    store.close()
    flip(log_segment(tmp_path), first.log_offset + BODY_POSITION)
    with queue_file(tmp_path).open("r+b") as file:
        file.write(struct.pack(">qiq", 0, 2**31 - 1, 0))
    with opened(tmp_path) as store:
        assert bodies(store) == [b"new %d" % n for n in range(1, 5)]
        assert store.stats.repaired_entries == 0


def test_last_claim_in_the_log_wins_where_a_queue_begins(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    for n in range(3):
        store.log.put(message(b"old %d" % n))
    store.dispatch()
    store.delete_topic("Orders")
    for n in range(5):
        store.log.put(message(b"new %d" % n))
    store.dispatch()
    store.close()
    with queue_file(tmp_path).open("r+b") as file:
        file.write(bytes(60))
    with opened(tmp_path) as store:
        assert bodies(store) == [b"new %d" % n for n in range(5)]


def test_swapped_queue_files_are_mended(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    for n in range(8):
        store.log.put(message(b"orders %d" % n, topic="Orders"))
        store.log.put(message(b"letters %d" % n, topic="Letters"))
    store.dispatch()
    store.close()
    one, other = queue_file(tmp_path, "Orders"), queue_file(tmp_path, "Letters")
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    with opened(tmp_path) as store:
        assert bodies(store, "Orders") == [b"orders %d" % n for n in range(8)]
        assert bodies(store, "Letters") == [b"letters %d" % n for n in range(8)]


def test_claim_that_does_not_fit_between_its_neighbours_is_left_alone(stopped: Stopped) -> None:
    """A record's queue offset was changed to that of an empty slot, which is not its own."""
    other, empty = VICTIM + 3, VICTIM + 9
    lost = stopped.flip_record(empty, BODY_POSITION)
    stopped.set_unit(lost.queue_id, lost.queue_offset, (0, 2**31 - 1, 0))
    claiming = stopped.records[other]
    bit = claiming.queue_offset ^ lost.queue_offset
    assert claiming.queue_id == lost.queue_id
    stopped.flip_record(other, QUEUE_OFFSET_POSITION + 7, bit)
    with opened(stopped.root) as store:
        assert store.stats.repaired_entries == 0
        assert all_bodies(store) == [
            body for body in stopped.bodies if body not in (lost.body, claiming.body)
        ]
        assert store.known_gaps == (stopped.gap(other), stopped.gap(empty))


def test_more_wrong_units_than_fit_leave_the_segment_unchecked(
    stopped: Stopped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub_units, "MOST_DIFFERENT", 1)
    for number in (VICTIM, VICTIM + 4):
        record = stopped.records[number]
        stopped.set_unit(record.queue_id, record.queue_offset, (0, 0, 0))
    with opened(stopped.root) as store:
        assert store.stats.repaired_entries == 1
        assert unchecked(store) == [0, SEGMENT, 0]


def test_units_that_wait_for_a_pass_are_bounded(
    stopped: Stopped, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queue_repair, "_MOST_HELD", 2)
    with queue_file(stopped.root).open("r+b") as file:
        file.write(bytes(100))
    with opened(stopped.root) as store:
        assert any("too many wrong entries" in m for m in caplog.messages)
        assert len(all_bodies(store)) >= COUNT - 5


# --- passes -----------------------------------------------------------------------------------


def test_whole_log_is_read_again_after_the_interval(stopped: Stopped) -> None:
    clock = SteppedClock()
    store = MessageStore.open(
        small_settings(stopped.root, scrub_bytes_per_second=FAST, scrub_interval_hours=2),
        clock=clock,
    )
    scrubbed(store, 1)
    flip(log_segment(stopped.root, SEGMENT), stopped.victim.log_offset - SEGMENT + BODY_POSITION)
    clock.step_s = 2 * 3600 + 1.0
    scrubbed(store, 2)
    assert store.known_gaps == (stopped.gap(VICTIM),)
    assert len(all_bodies(store)) == COUNT - 1
    store.close()


def test_without_an_interval_there_is_one_pass(stopped: Stopped) -> None:
    clock = SteppedClock()
    settings = small_settings(stopped.root, scrub_bytes_per_second=FAST, scrub_interval_hours=0)
    store = MessageStore.open(settings, clock=clock)
    scrubbed(store, 1)
    clock.step_s = 1e9
    store._scrub.requests.ask(0)  # type: ignore[union-attr]
    settle(store)
    assert store.stats.scrub_passes == 1
    store.close()


class SteppedClock(ManualClock):
    """Intervals, too, can be jumped over."""

    def __init__(self) -> None:
        super().__init__(FIRST_MS)
        self.step_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.step_s


def test_without_a_rate_there_is_no_scrub_and_the_reads_find_damage(
    stopped: Stopped, caplog: pytest.LogCaptureFixture
) -> None:
    stopped.flip_record(VICTIM, BODY_POSITION)
    with opened(stopped.root, passes=0, scrub_bytes_per_second=0) as store:
        assert not [t for t in threading.enumerate() if t.name == "aerobee-scrub"]
        assert len(all_bodies(store)) == COUNT - 1
        assert store.stats.damage_found["record"] == 1


def test_rate_is_kept(tmp_path: Path) -> None:
    settings = {"commit_log_segment_bytes": 1 << 20}
    store = MessageStore.open(small_settings(tmp_path, **settings))
    for _ in range(300):
        store.log.put(message(b"x" * 2500))
    store.dispatch()
    written = store.written
    store.close()
    began = time.monotonic()
    with opened(tmp_path, scrub_bytes_per_second=4 << 20, **settings):
        assert time.monotonic() - began > 0.8 * (written - 65_536) / (4 << 20)


def test_share_of_a_processor_is_kept(tmp_path: Path) -> None:
    settings = {"commit_log_segment_bytes": 1 << 20}
    store = MessageStore.open(small_settings(tmp_path, **settings))
    for n in range(3000):
        store.log.put(message(b"x", queue_id=n % 7))
    store.dispatch()
    store.close()
    began = time.monotonic()
    with opened(tmp_path, scrub_processor_percent=10, **settings) as store:
        waited = time.monotonic() - began
        spent = store.stats.scrub_steps.sum_ns / 1e9
        assert spent > 0
        assert waited > 0.9 * spent / 0.10


def test_work_between_two_waits_is_short(tmp_path: Path) -> None:
    """The longest of many steps may have the garbage collector in it, nine of ten may not."""
    settings = {"commit_log_segment_bytes": 1 << 22, "consume_queue_segment_bytes": 200_000}
    store = MessageStore.open(small_settings(tmp_path, **settings))
    for n in range(20_000):
        store.log.put(message(b"x", queue_id=n % 7))
    store.dispatch()
    store.close()
    with opened(tmp_path, **settings) as store:
        counts = store.stats.scrub_steps.counts
        assert store.stats.scrub_steps.count > 40
        # Bucket 11 begins at 1.05 ms; slow machines are allowed twice that.
        assert sum(counts[12:]) <= store.stats.scrub_steps.count // 10
        assert store.stats.scrub_steps.max_s > 0


# --- beside others ----------------------------------------------------------------------------


def test_puts_and_reads_go_on_while_it_scrubs(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    made = fill(store, 500)
    store.close()
    with opened(tmp_path, passes=0, flush_interval_ms=60_000) as store:
        n = 500
        while not store.stats.scrub_passes:
            made.append(b"%06d" % n)
            store.log.put(message(made[-1]))
            store.dispatch()
            n += 1
        settle(store)
        assert store.stats.damage_found == {"record": 0, "unit": 0, "unclear": 0, "index": 0}
        assert bodies(store) == made
        store._sync.sync()
        store._scrub.requests.ask_pass()  # type: ignore[union-attr]
        scrubbed(store, 2)
        assert store.stats.damage_found == {"record": 0, "unit": 0, "unclear": 0, "index": 0}
        assert store.unchecked_bytes == 0
    with opened(tmp_path) as store:
        assert bodies(store) == made


def test_segment_that_is_deleted_while_it_is_read_is_let_go(tmp_path: Path) -> None:
    settings = {"commit_log_segment_bytes": 1 << 20}
    store = MessageStore.open(small_settings(tmp_path, **settings))
    while store.written <= 1 << 20:
        store.log.put(message(b"x" * 2500))
    store.dispatch()
    store.close()
    held = HeldFiles("00000000000000000000")
    with opened(tmp_path, held, passes=0, **settings) as store:
        assert held.reached.wait(WAIT_S)
        (segment,) = store.log.segments.take_front([0])
        held.remove(segment.path)
        held.go.set()
        scrubbed(store, 1)
        assert store.stats.scrub_bytes < 1 << 18
        assert segment.unchecked_below == segment.size
        # Unmapped, nothing keeps its blocks from being freed.
        assert segment.dismiss()
        assert not [path for path in open_files(tmp_path) if path.endswith("(deleted)")]


def test_deleted_segments_and_topics_of_a_pass_are_passed_by(
    stopped: Stopped, caplog: pytest.LogCaptureFixture
) -> None:
    held = HeldFiles("commitlog")
    with opened(stopped.root, held, passes=0) as store:
        assert held.reached.wait(WAIT_S)
        store.log.segments.take_front([0, SEGMENT])
        store.delete_topic("Orders")
        held.go.set()
        scrubbed(store, 1)
        assert store.stats.damage_found == {"record": 0, "unit": 0, "unclear": 0, "index": 0}
        assert unchecked(store) == [0]
        assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


class HeldFiles(Files):
    """Stops the scrub at its first read of a path with `part`."""

    def __init__(self, part: str) -> None:
        self.part = part
        self.reached, self.go = threading.Event(), threading.Event()
        self._fds: set[int] = set()

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        fd = super().open(path, create=create, read_only=read_only)
        (self._fds.add if self.part in path else self._fds.discard)(fd)
        return fd

    def read(self, fd: int, position: int, size: int) -> bytes:
        if fd in self._fds and threading.current_thread().name == "aerobee-scrub":
            self.reached.set()
            assert self.go.wait(WAIT_S)
        return super().read(fd, position, size)


def test_store_closes_in_the_middle_of_a_segment(stopped: Stopped) -> None:
    with opened(stopped.root, passes=0, scrub_bytes_per_second=1) as store:
        until(lambda: store.stats.scrub_bytes, "the first piece")
        began = time.monotonic()
        assert store.close()
        assert time.monotonic() - began < 5
    assert not [t for t in threading.enumerate() if t.name.startswith("aerobee")]
    assert open_files(stopped.root) == set()


def open_files(root: Path) -> set[str]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:
            continue
        if target.startswith(str(root)):
            found.add(target)
    return found


def test_nothing_is_mended_after_the_store_is_closed(stopped: Stopped) -> None:
    stopped.set_unit(stopped.victim.queue_id, stopped.victim.queue_offset, (0, 0, 0))
    store = MessageStore.open(small_settings(stopped.root, scrub_bytes_per_second=FAST))
    until(lambda: store.stats.scrub_passes, "a pass")
    store.close()
    assert store.repair_queues() == 0
    assert stopped.unit_of(VICTIM) == (0, 0, 0)
    assert open_files(stopped.root) == set()


# --- bad disks --------------------------------------------------------------------------------


class BadSector(Files):
    """One page of a file cannot be read with pread."""

    def __init__(self, part: str, page: int) -> None:
        self._part, self._page = part, page
        self._fds: set[int] = set()

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        fd = super().open(path, create=create, read_only=read_only)
        (self._fds.add if path.endswith(self._part) else self._fds.discard)(fd)
        return fd

    def read(self, fd: int, position: int, size: int) -> bytes:
        low, high = self._page * 4096, (self._page + 1) * 4096
        if fd in self._fds and position < high and low < position + size:
            raise OSError(errno.EIO, "Input/output error")
        return super().read(fd, position, size)


def test_page_that_the_disk_does_not_give_is_not_touched_by_reads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"commit_log_segment_bytes": 65_536}
    store = MessageStore.open(small_settings(tmp_path, **settings))
    made = fill(store, 250, size=100)
    records = read_all(store)
    store.close()
    lost = {r.body for r in records if r.log_offset < 12_288 and r.log_offset + r.size > 8192}
    with opened(tmp_path, BadSector("00000000000000000000", 2), **settings) as store:
        (segment,) = store.log.segments.segments
        assert segment.unreadable == ((8192, 12_288),)
        assert segment.unchecked_below > 0
        mapped = segment.view
        assert mapped is not None
        assert bodies(store) == [body for body in made if body not in lost]
        assert any("the disk cannot read it" in m for m in caplog.messages)
        assert store.stats.damage_found["record"] >= 1
        assert not store._health.broken


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.ENOENT])
def test_segment_that_cannot_be_opened_stays_unchecked(stopped: Stopped, code: int) -> None:
    class Refusing(Files):
        def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
            if threading.current_thread().name == "aerobee-scrub" and f"{SEGMENT:020d}" in path:
                raise OSError(code, "refused")
            return super().open(path, create=create, read_only=read_only)

    with opened(stopped.root, Refusing()) as store:
        assert unchecked(store) == [0, SEGMENT, 0]
        assert all_bodies(store) == stopped.bodies


def test_queue_that_cannot_be_read_leaves_its_segments_unchecked(stopped: Stopped) -> None:
    with opened(stopped.root, BadQueue()) as store:
        assert store.stats.repaired_entries == 0
        assert unchecked(store) == [SEGMENT, SEGMENT, unchecked(store)[2]]
        assert all_bodies(store) == stopped.bodies


class BadQueue(Files):
    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        if threading.current_thread().name == "aerobee-scrub" and "consumequeue" in path:
            raise OSError(errno.EIO, "Input/output error")
        return super().open(path, create=create, read_only=read_only)


def test_store_that_broke_is_not_scrubbed(stopped: Stopped) -> None:
    store = MessageStore.open(small_settings(stopped.root, scrub_bytes_per_second=FAST))
    scrubbed(store, 1)
    store._health.poison("a test", OSError(errno.EIO, "x"))
    read = store.stats.scrub_bytes
    worker = store._scrub
    assert worker is not None
    for _ in range(2):  # the second look begins when the first has ended
        worker.requests.ask(0)
        until(lambda: not worker.requests.woken.is_set(), "a look for work")
    assert store.stats.scrub_bytes == read
    store.close()


# --- the pieces -------------------------------------------------------------------------------


def test_announced_size_needs_both_lengths(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    result = store.log.put(message(b"x" * 200))
    record = store.reader.record_at(0)
    store.close()
    assert record is not None
    assert announced_size(record, 0) == result.size == len(record)
    assert announced_size(record[:111], 0) == 0
    for position in (1, 85):  # of the size, of the body's length
        changed = bytearray(record)
        changed[position] ^= 1
        assert announced_size(bytes(changed), 0) == 0
