"""Claims about reads of records that the start did not read: nothing damaged is ever sent."""

import logging
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from aerobee.protocol.message.record import Message
from aerobee.protocol.message.record_layout import (
    BODY_CRC_POSITION,
    LOG_OFFSET_POSITION,
    MAGIC_POSITION,
    QUEUE_ID_POSITION,
    QUEUE_OFFSET_POSITION,
    SYS_FLAG_POSITION,
    SYS_TRANSACTION_PREPARED,
    TOTAL_SIZE_POSITION,
)
from aerobee.store.disk.files import Files
from aerobee.store.disk.offsets_file import OffsetsFile
from aerobee.store.message_store import MessageStore
from aerobee.store.reading import damage
from aerobee.store.recovery.cross_check import CrossCheck
from aerobee.store.segments.results import GetStatus
from tests.unit.store.support import (
    SEGMENT,
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
)

COUNT = 60
QUEUES = 3
VICTIM = 25
# Places of the body's length and the body in a record with IPv4 hosts.
BODY_LENGTH_POSITION, BODY_POSITION = 84, 88

# A byte of each field that a read believes, by where it is in a record with that body length.
FIELDS: dict[str, Callable[[int], int]] = {
    "total size": lambda body: TOTAL_SIZE_POSITION + 3,
    "high byte of the size": lambda body: TOTAL_SIZE_POSITION,
    "magic": lambda body: MAGIC_POSITION + 2,
    "crc": lambda body: BODY_CRC_POSITION + 1,
    "queue id": lambda body: QUEUE_ID_POSITION + 3,
    "high byte of the queue id": lambda body: QUEUE_ID_POSITION + 1,
    "queue offset": lambda body: QUEUE_OFFSET_POSITION + 7,
    "high byte of the queue offset": lambda body: QUEUE_OFFSET_POSITION + 3,
    "own place": lambda body: LOG_OFFSET_POSITION + 6,
    "length of the body": lambda body: BODY_LENGTH_POSITION + 3,
    "body": lambda body: BODY_POSITION + 20,
    "length of the topic": lambda body: BODY_POSITION + body,
    "topic": lambda body: BODY_POSITION + body + 3,
    "length of the properties": lambda body: BODY_POSITION + body + 1 + len("Orders") + 1,
}


class Stopped:
    """A store of 60 messages in 3 queues, cleanly stopped or killed; nothing is read at a start."""

    def __init__(self, tmp_path: Path, *, killed: bool) -> None:
        running = tmp_path / "running"
        store = MessageStore.open(small_settings(running, flush_interval_ms=60_000))
        self.bodies = fill(store, COUNT, queues=QUEUES)
        store._sync.sync()
        store._queue_flusher.flush(0)
        self.records = sorted(
            (found for queue_id in range(QUEUES) for found in read_all(store, queue_id=queue_id)),
            key=lambda found: found.log_offset,
        )
        self.root = adopt(kill_image(running, tmp_path / "killed")) if killed else running
        store.close()

    def open(self, **changes: object) -> closing[MessageStore]:
        return closing(MessageStore.open(small_settings(self.root, **changes)))

    def flip_record(self, number: int, at: int, bit: int = 4) -> Message:
        record = self.records[number]
        start = record.log_offset // SEGMENT * SEGMENT
        flip(log_segment(self.root, start), record.log_offset - start + at, bit)
        return record

    def unit_at(self, queue_id: int, offset: int) -> tuple[Path, int]:
        """File and position of a queue's unit."""
        start = offset // 10 * 200
        return queue_file(self.root, queue_id=queue_id, start=start), offset * 20 - start

    def set_unit(self, queue_id: int, offset: int, unit: tuple[int, int, int]) -> None:
        path, position = self.unit_at(queue_id, offset)
        with path.open("r+b") as file:
            file.seek(position)
            file.write(struct.pack(">qiq", *unit))


@pytest.fixture(params=[False, True], ids=["clean stop", "kill"])
def stopped(request: pytest.FixtureRequest, tmp_path: Path) -> Stopped:
    return Stopped(tmp_path, killed=request.param)


def all_bodies(store: MessageStore) -> list[bytes]:
    return sorted(body for queue_id in range(QUEUES) for body in bodies(store, queue_id=queue_id))


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("field", FIELDS)
def test_record_with_a_flipped_bit_is_not_sent_and_is_named(
    stopped: Stopped, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    victim = stopped.records[VICTIM]
    stopped.flip_record(VICTIM, FIELDS[field](len(victim.body)))
    with stopped.open() as store:
        assert store.recovery.records_read == 0
        assert all_bodies(store) == [b for b in stopped.bodies if b != victim.body]
        assert store.stats.damaged_reads == 1
        assert store.stats.damage_found == {"record": 1, "unit": 0, "unclear": 0, "index": 0}
        assert store.known_gaps == ((victim.log_offset, victim.log_offset + victim.size),)
        (line,) = errors(caplog)
        for part in (
            f"log_offset={victim.log_offset} ",
            "topic=Orders ",
            f"queue={victim.queue_id} ",
            f"queue_offset={victim.queue_offset} ",
        ):
            assert part in line


def test_damage_met_twice_is_counted_twice_and_named_once(
    stopped: Stopped, caplog: pytest.LogCaptureFixture
) -> None:
    stopped.flip_record(VICTIM, BODY_POSITION)
    with stopped.open() as store:
        all_bodies(store)
        all_bodies(store)
        assert store.stats.damaged_reads == 2
        assert len(errors(caplog)) == len(store.known_gaps) == 1


def test_gap_is_remembered_over_a_restart(stopped: Stopped) -> None:
    victim = stopped.flip_record(VICTIM, BODY_POSITION)
    with stopped.open() as store:
        all_bodies(store)
    with stopped.open() as store:
        assert store.known_gaps == ((victim.log_offset, victim.log_offset + victim.size),)


def test_gap_is_saved_while_the_store_runs(stopped: Stopped, tmp_path: Path) -> None:
    victim = stopped.flip_record(VICTIM, BODY_POSITION)
    with stopped.open() as store:
        all_bodies(store)
        store._queue_flusher.flush(1)
        found = OffsetsFile(Files(), str(stopped.root)).load()
        assert found is not None
        assert found.gaps == ((victim.log_offset, victim.log_offset + victim.size),)


def test_each_of_several_damaged_records_costs_itself_only(stopped: Stopped) -> None:
    victims = (VICTIM, VICTIM + 1, VICTIM + 2, 40)
    for number, field in zip(victims, ("total size", "magic", "topic", "body"), strict=True):
        stopped.flip_record(number, FIELDS[field](len(stopped.records[number].body)))
    with stopped.open() as store:
        lost = {stopped.records[number].body for number in victims}
        assert all_bodies(store) == [body for body in stopped.bodies if body not in lost]
        assert store.stats.damage_found["record"] == len(victims)
        assert len(store.known_gaps) == len(victims)


def test_record_that_turned_into_a_half_message_is_not_sent(stopped: Stopped) -> None:
    victim = stopped.flip_record(VICTIM, SYS_FLAG_POSITION + 3, SYS_TRANSACTION_PREPARED)
    with stopped.open() as store:
        assert all_bodies(store) == [body for body in stopped.bodies if body != victim.body]


def test_zeroed_page_of_records_costs_those_records_only(stopped: Stopped) -> None:
    victims = stopped.records[VICTIM : VICTIM + 3]
    first = victims[0].log_offset
    start = first // SEGMENT * SEGMENT
    with log_segment(stopped.root, start).open("r+b") as file:
        file.seek(first - start)
        file.write(bytes(sum(record.size for record in victims)))
    with stopped.open() as store:
        lost = {record.body for record in victims}
        assert all_bodies(store) == [body for body in stopped.bodies if body not in lost]
        # Bytes that a sound record follows are known to have been a record.
        assert store.stats.damage_found == {"record": 1, "unit": 0, "unclear": 2, "index": 0}


# --- wrong units ------------------------------------------------------------------------------


def test_swapped_queue_files_give_nobody_the_messages_of_another_topic(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Beyond what a start looks at, which would make them again.
    monkeypatch.setattr(CrossCheck, "is_anothers", lambda *_: False)
    store = MessageStore.open(small_settings(tmp_path))
    for n in range(8):
        store.log.put(message(b"orders %d" % n, topic="Orders"))
        store.log.put(message(b"letters %d" % n, topic="Letters"))
    store.dispatch()
    store.close()
    one, other = queue_file(tmp_path, "Orders"), queue_file(tmp_path, "Letters")
    content = one.read_bytes()
    # The last units are judged at the start; leave those where they are.
    one.write_bytes(other.read_bytes()[:140] + content[140:])
    other.write_bytes(content[:140] + other.read_bytes()[140:])
    with closing(MessageStore.open(small_settings(tmp_path))) as store:
        # They are looked up in the log, all of a queue's at once.
        assert bodies(store, "Orders") == [b"orders %d" % n for n in range(8)]
        assert bodies(store, "Letters") == [b"letters %d" % n for n in range(8)]
        assert store.stats.repaired_entries == 14
        assert store.stats.damage_found == {"record": 0, "unit": 2, "unclear": 0, "index": 0}
        assert store.known_gaps == ()
        assert all("wrong queue entry" in line for line in errors(caplog))


@pytest.mark.parametrize(
    "change", ["record before", "record behind", "size", "blank end", "outside"]
)
def test_wrong_unit_of_a_sound_record_is_told_from_a_damaged_record(
    stopped: Stopped, change: str
) -> None:
    victim, neighbour = stopped.records[VICTIM], stopped.records[VICTIM - 1]
    segment = stopped.records[SEGMENT // victim.size - 1]
    blank = segment.log_offset + segment.size
    unit = {
        "record before": (neighbour.log_offset, neighbour.size, 0),
        "record behind": (victim.log_offset + victim.size, victim.size, 0),
        "size": (victim.log_offset, victim.size ^ 4, 0),
        "blank end": (blank, 100, 0),
        "outside": (victim.log_offset + 2**40, victim.size, 0),
    }[change]
    stopped.set_unit(victim.queue_id, victim.queue_offset, unit)
    with stopped.open() as store:
        assert all_bodies(store) == stopped.bodies
        assert store.stats.damage_found == {"record": 0, "unit": 1, "unclear": 0, "index": 0}
        assert store.known_gaps == ()


@pytest.mark.parametrize("unit", [(0, 0, 0), (0, -5, 0)])
def test_empty_slot_between_others_is_damage(stopped: Stopped, unit: tuple[int, int, int]) -> None:
    victim = stopped.records[VICTIM]
    stopped.set_unit(victim.queue_id, victim.queue_offset, unit)
    with stopped.open() as store:
        assert all_bodies(store) == stopped.bodies
        assert store.stats.damage_found == {"record": 0, "unit": 1, "unclear": 0, "index": 0}


def test_unit_into_the_middle_of_a_record_is_not_taken_for_a_damaged_record(
    stopped: Stopped,
) -> None:
    victim = stopped.records[VICTIM]
    unit = (victim.log_offset + 8, victim.size, 0)
    stopped.set_unit(victim.queue_id, victim.queue_offset, unit)
    with stopped.open() as store:
        assert all_bodies(store) == stopped.bodies
        # Its message was found elsewhere, so it was the unit that was wrong.
        assert store.stats.damage_found == {"record": 0, "unit": 1, "unclear": 0, "index": 0}
        assert store.known_gaps == ()


def test_listed_queue_is_served_a_record_of_another_topic(tmp_path: Path) -> None:
    """A multi-dispatched record names its further queues in its properties."""
    store = MessageStore.open(small_settings(tmp_path))
    listed = {"INNER_MULTI_DISPATCH": "%LMQ%a,other", "INNER_MULTI_QUEUE_OFFSET": "0,0"}
    records = [store.log.put(message(b"%d" % n, queue_id=1, more=listed)) for n in range(4)]
    store.dispatch()
    for topic, queue_id in (("%LMQ%a", 0), ("%LMQ%a", 1), ("other", 1), ("other", 0), ("more", 1)):
        queue = store._queues.obtain(topic, queue_id)
        for slot in range(3):
            unit = struct.pack(">qiq", records[slot].log_offset, records[slot].size, 0)
            queue.write_entries(slot, unit)
    store._reput.count_again()
    store.close()
    with closing(MessageStore.open(small_settings(tmp_path, check_reads="always"))) as store:
        # The last ones are judged at the start, by the same rule.
        assert bodies(store, "%LMQ%a", 0) == [b"0"]
        assert bodies(store, "%LMQ%a", 1) == [b"0"]
        assert bodies(store, "other", 1) == [b"0"]
        assert bodies(store, "other", 0) == []
        assert bodies(store, "more", 1) == []
        assert bodies(store, queue_id=1) == [b"0", b"1", b"2", b"3"]


# --- what is checked --------------------------------------------------------------------------


def damaged_while_open(root: Path, **changes: object) -> tuple[MessageStore, Message]:
    store = MessageStore.open(small_settings(root, **changes))
    fill(store, 20)
    victim = read_all(store)[5]
    flip(log_segment(root), victim.log_offset + BODY_POSITION)
    return store, victim


@pytest.mark.parametrize(("check", "sent"), [("unchecked", 20), ("always", 19), ("never", 20)])
def test_what_this_process_wrote_is_checked_if_all_is(
    tmp_path: Path, check: str, sent: int
) -> None:
    store, _ = damaged_while_open(tmp_path, check_reads=check)
    assert len(bodies(store)) == sent
    store.close()


@pytest.mark.parametrize(("check", "sent"), [("unchecked", 59), ("always", 59), ("never", 60)])
def test_what_the_start_found_is_checked_unless_nothing_is(
    stopped: Stopped, check: str, sent: int
) -> None:
    stopped.flip_record(VICTIM, BODY_POSITION)
    with stopped.open(check_reads=check) as store:
        assert len(all_bodies(store)) == sent


def test_segment_with_a_damaged_record_is_checked_from_then_on(tmp_path: Path) -> None:
    store, victim = damaged_while_open(tmp_path)
    path, position = log_segment(tmp_path), victim.log_offset
    # Another one, whose damage the size shows.
    flip(path, position + victim.size + TOTAL_SIZE_POSITION + 3)
    assert len(bodies(store)) == 19
    assert len(bodies(store)) == 18
    store.close()


def test_what_recovery_read_is_not_checked_again(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path / "a"))
    fill(store, COUNT, queues=QUEUES)
    image = kill_image(tmp_path / "a", tmp_path / "b")
    store.close()
    (image / "offsets").unlink()
    with closing(MessageStore.open(small_settings(image))) as store:
        assert store.recovery.records_read == COUNT
        assert [segment.unchecked_below for segment in store.log.segments.segments] == [0, 0, 0]
    (image / "abort").touch()
    (image / "offsets").unlink()
    with closing(MessageStore.open(small_settings(image, check_crc_on_recover=False))) as store:
        segments = store.log.segments.segments
        assert [segment.unchecked_below for segment in segments] == [s.wrote for s in segments]


def test_walk_in_the_middle_of_a_segment_leaves_what_is_below_unchecked(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path / "a", flush_interval_ms=60_000))
    fill(store, 10)
    store._sync.sync()
    store._queue_flusher.flush(0)
    synced = store.durable
    fill(store, 2)
    image = kill_image(tmp_path / "a", tmp_path / "b")
    store.close()
    adopt(image, other_boot=True)
    with closing(MessageStore.open(small_settings(image))) as store:
        assert store.recovery.records_read == 2
        (segment,) = store.log.segments.segments
        assert segment.unchecked_below == synced
        assert store.reader.get("Orders", 0, 0, 1).status is GetStatus.FOUND


def test_damage_beyond_the_limit_is_counted_and_not_named(
    stopped: Stopped, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damage, "_MOST_REPORTED", 4)
    for number in range(10, 20):
        stopped.flip_record(number, BODY_POSITION)
    with stopped.open() as store:
        all_bodies(store)
        all_bodies(store)
        assert store.stats.damaged_reads == 20
        lines = errors(caplog)
        assert len([line for line in lines if "damaged record" in line]) == 3
        assert len(lines) == 4
