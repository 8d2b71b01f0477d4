"""Claims about what a start makes of what a stop, clean or not, left behind."""

import shutil
import struct
from pathlib import Path

import pytest

from aerobee.protocol.message.record import encode_record
from aerobee.store.errors import StoreLayoutError
from aerobee.store.message_store import MessageStore
from aerobee.store.segments.results import GetStatus
from tests.unit.store.support import (
    FIRST_MS,
    QUEUE_SEGMENT,
    SEGMENT,
    ManualClock,
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

PRE_BLANK = struct.pack(">qiq", 0, 0x7FFFFFFF, 0)


class Killed:
    """A store that was killed with `count` messages in it."""

    def __init__(self, tmp_path: Path, count: int, *, queues: int = 1, **changes: object) -> None:
        running = tmp_path / "running"
        store = MessageStore.open(small_settings(running, **changes))
        self.bodies = fill(store, count, queues=queues)
        self.ends: list[int] = []
        self.records = [
            found for queue_id in range(queues) for found in read_all(store, queue_id=queue_id)
        ]
        self.records.sort(key=lambda found: found.log_offset)
        self.written = store.written
        self.root = kill_image(running, tmp_path / "killed")
        store.close()
        self.clean_root = running
        self.settings = small_settings(self.root, **changes)

    def place(self, number: int) -> tuple[Path, int]:
        """Segment file and position of a message's record."""
        offset = self.records[number].log_offset
        start = offset // SEGMENT * SEGMENT
        return log_segment(self.root, start), offset - start

    def open(self) -> MessageStore:
        return MessageStore.open(self.settings)


def everything(root: Path) -> dict[str, bytes]:
    return tree(root, "commitlog") | tree(root, "consumequeue") | tree(root, "index")


def test_killed_store_has_everything_again(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 60, queues=3)
    assert (killed.root / "abort").exists()
    store = killed.open()
    assert not store.recovery.clean_stop
    assert (store.written, store.durable, store.dispatched) == (killed.written,) * 3
    assert (store.recovery.gaps, store.recovery.torn_bytes) == ([], 0)
    for queue_id in range(3):
        assert bodies(store, queue_id=queue_id) == killed.bodies[queue_id::3]
    assert store.log.put(message()).queue_offset == 20
    store.close()


def test_killed_and_cleanly_stopped_store_have_the_same_bytes(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 100, queues=3)
    assert killed.open().close()
    assert everything(killed.root) == everything(killed.clean_root)


def test_clean_stop_reads_nothing_again(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 60)
    store = MessageStore.open(small_settings(killed.clean_root))
    assert store.recovery.clean_stop
    assert store.recovery.records_read == 0
    assert store.written == killed.written
    assert bodies(store) == killed.bodies
    store.close()


def test_recovery_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 80, queues=2)
    segment, position = killed.place(40)
    flip(segment, position + 95)
    with log_segment(killed.root, killed.written // SEGMENT * SEGMENT).open("r+b") as last:
        last.seek(killed.written % SEGMENT)
        last.write(b"torn" * 20)
    assert killed.open().close()
    once = everything(killed.root)
    (killed.root / "abort").touch()
    assert killed.open().close()
    assert everything(killed.root) == once


def test_torn_last_record_is_cut_and_zeroed(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 30)
    segment, position = killed.place(29)
    size = killed.records[29].size
    with segment.open("r+b") as file:
        file.seek(position + size // 2)
        file.write(bytes(size - size // 2))
    store = killed.open()
    assert store.recovery.torn_bytes > 0
    assert store.recovery.log_end == killed.records[29].log_offset
    assert segment.read_bytes()[position:] == bytes(SEGMENT - position)
    assert bodies(store) == killed.bodies[:29]
    assert store.max_offset("Orders", 0) == 29
    assert store.log.put(message(b"again")).queue_offset == 29
    store.dispatch()
    assert bodies(store)[29] == b"again"
    assert store.close()


@pytest.mark.parametrize("torn", [b"\xff" * 64, struct.pack(">iI", 300, 0xDAA320A7), b"\0\0\1"])
def test_rubbish_behind_the_last_record_is_zeroed(tmp_path: Path, torn: bytes) -> None:
    killed = Killed(tmp_path, 30)
    segment = log_segment(killed.root, killed.written // SEGMENT * SEGMENT)
    with segment.open("r+b") as file:
        file.seek(killed.written % SEGMENT)
        file.write(torn)
    store = killed.open()
    assert store.recovery.log_end == killed.written
    assert store.recovery.torn_bytes
    assert segment.read_bytes()[killed.written % SEGMENT :].count(0) == SEGMENT - (
        killed.written % SEGMENT
    )
    assert bodies(store) == killed.bodies
    store.close()


def test_old_bytes_do_not_come_back_when_the_log_grows_past_them(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 30)
    last, before = killed.records[29], killed.records[28]
    segment, position = killed.place(28)
    flip(segment, position + 95)
    # Take the queue's word for the last two away, as a power cut may: now both are torn tail.
    with queue_file(killed.root, start=400).open("r+b") as file:
        file.seek(8 * 20)
        file.write(bytes(40))
    store = killed.open()
    assert store.recovery.log_end == before.log_offset
    store.log.put(message(b"n" * len(before.body), unique="U28", tags="T1"))
    assert store.written == last.log_offset
    store.dispatch()
    again = kill_image(killed.root, tmp_path / "again")
    store.close()
    store = MessageStore.open(small_settings(again))
    assert store.written == last.log_offset
    assert len(read_all(store)) == 29
    store.close()


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "position"),
    [("size", 2), ("magic", 5), ("crc", 9), ("own offset", 34), ("body length", 86), ("body", 95)],
)
@pytest.mark.parametrize("number", [0, 10, 24])
def test_damaged_record_costs_that_record_only(
    tmp_path: Path, what: str, position: int, number: int
) -> None:
    killed = Killed(tmp_path, 60)
    segment, start = killed.place(number)
    flip(segment, start + position)
    store = killed.open()
    [gap] = store.recovery.gaps
    damaged = killed.records[number]
    assert (gap.start, gap.end) == (damaged.log_offset, damaged.log_offset + damaged.size)
    assert store.written == killed.written
    assert bodies(store) == killed.bodies[:number] + killed.bodies[number + 1 :]
    assert store.reader.record_at(damaged.log_offset) is None
    assert store.search.query("Orders", f"U{number}", 10, 0, 2**62).records == []
    assert store.max_offset("Orders", 0) == 60
    assert store.close()


UNGUARDED = [
    pytest.param(15, 0x01, id="queue id 0 to 1"),
    pytest.param(12, 0x40, id="queue id, a large one"),
    pytest.param(27, 0x01, id="queue offset by 1"),
    pytest.param(27, 0x04, id="queue offset by 4"),
    pytest.param(26, 0x01, id="queue offset by 256"),
    pytest.param(21, 0x10, id="queue offset, a huge one"),
    pytest.param(39, 0x04, id="half message"),
    pytest.param(44, 0x80, id="born time"),
    pytest.param(88 + 56 + 1, 0x01, id="topic, another"),
    pytest.param(88 + 56 + 1, 0x60, id="topic, none"),
]


@pytest.mark.parametrize("with_queues", [True, False])
@pytest.mark.parametrize(("position", "bit"), UNGUARDED)
@pytest.mark.parametrize("number", [0, 3, 16, 20, 38])
def test_damage_that_no_checksum_guards_costs_that_record_only(
    tmp_path: Path, number: int, position: int, bit: int, with_queues: bool
) -> None:
    killed = Killed(tmp_path, 60, queues=3)
    segment, start = killed.place(number)
    flip(segment, start + position, bit)
    if not with_queues:
        shutil.rmtree(killed.root / "consumequeue")
        shutil.rmtree(killed.root / "index")
    # Two claims to one slot with no unit to tell them apart: the first one is kept.
    spared = {killed.bodies[number]} | (set() if with_queues else {killed.bodies[number + 1]})
    for _ in range(2):
        store = killed.open()
        for queue_id in range(3):
            expected = [body for body in killed.bodies[queue_id::3] if body not in spared]
            found = bodies(store, queue_id=queue_id)
            assert [body for body in found if body not in spared] == expected
            assert store.max_offset("Orders", queue_id) == 20
        everybody = {body for queue_id in range(3) for body in bodies(store, queue_id=queue_id)}
        assert len(everybody) >= 58 + with_queues
        files = sum(1 for _ in (killed.root / "consumequeue").rglob("0*"))
        assert files < 12
        assert store.close()
        (killed.root / "abort").touch()


def test_many_damaged_records_cost_no_others(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 100, queues=3)
    damaged = {0, 1, 2, 17, 43, 44, 77, 98}
    for number in damaged:
        segment, start = killed.place(number)
        flip(segment, start + 3 + number % 7, 0x40)
    store = killed.open()
    found = [body for queue_id in range(3) for body in bodies(store, queue_id=queue_id)]
    expected = [body for number, body in enumerate(killed.bodies) if number not in damaged]
    assert sorted(found) == sorted(expected)
    store.close()
    # Damage stays contained over the next starts.
    store = killed.open()
    assert sorted(
        body for queue_id in range(3) for body in bodies(store, queue_id=queue_id)
    ) == sorted(expected)
    store.close()


def test_zeroed_page_in_a_sealed_segment_costs_what_it_held(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 100)
    segment = log_segment(killed.root, SEGMENT)
    data = bytearray(segment.read_bytes())
    data[1024:2048] = bytes(1024)
    segment.write_bytes(data)
    lost = [
        number
        for number, found in enumerate(killed.records)
        if found.log_offset < SEGMENT + 2048 and found.log_offset + found.size > SEGMENT + 1024
    ]
    store = killed.open()
    gaps = store.recovery.gaps
    first, last = killed.records[lost[0]], killed.records[lost[-1]]
    assert (gaps[0].start, gaps[-1].end) == (first.log_offset, last.log_offset + last.size)
    assert [gap.end for gap in gaps[:-1]] == [gap.start for gap in gaps[1:]]
    assert bodies(store) == [
        body for number, body in enumerate(killed.bodies) if number not in lost
    ]
    store.close()


def test_damage_is_survived_when_the_queues_are_gone_too(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 100)
    segment, start = killed.place(8)
    flip(segment, start + 1)
    shutil.rmtree(killed.root / "consumequeue")
    shutil.rmtree(killed.root / "index")
    store = killed.open()
    assert bodies(store) == killed.bodies[:8] + killed.bodies[9:]
    [gap] = store.recovery.gaps
    assert gap.end - gap.start == killed.records[8].size
    # The lost message's slot stays: numbers are never given to other messages.
    assert [found.queue_offset for found in read_all(store)] == [
        number for number in range(100) if number != 8
    ]
    assert queue_file(killed.root).read_bytes()[8 * 20 : 9 * 20] == PRE_BLANK
    store.close()


def test_damaged_blank_costs_nothing(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 100)
    last_of_first = max(found.log_offset + found.size for found in killed.records
                        if found.log_offset < SEGMENT)  # fmt: skip
    flip(log_segment(killed.root), last_of_first + 5)
    store = killed.open()
    [gap] = store.recovery.gaps
    assert (gap.start, gap.end) == (last_of_first, SEGMENT)
    assert bodies(store) == killed.bodies
    store.close()


def test_pull_over_a_gap_goes_on_behind_it(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 30)
    for number in (10, 11):
        segment, start = killed.place(number)
        flip(segment, start + 95)
    store = killed.open()
    result = store.reader.get("Orders", 0, 10, 32, None)
    assert result.status is GetStatus.FOUND
    assert (result.count, result.next_offset) == (8, 20)  # to the end of the queue's file
    result.release()
    store.close()


@pytest.mark.parametrize("with_queues", [True, False])
def test_record_forged_in_a_body_is_not_taken_for_one(tmp_path: Path, with_queues: bool) -> None:
    running = tmp_path / "running"
    store = MessageStore.open(small_settings(running))
    store.log.put(message(b"before"))
    carrier = message(b"." * 400)
    place = store.written
    body_at = 88
    forged = encode_record(message(b"forged"), 77, place + body_at + 10, FIRST_MS)
    carrier.body = b"." * 10 + forged + b"." * (390 - len(forged))
    assert store.log.put(carrier).log_offset == place
    store.log.put(message(b"after"))
    # A following segment makes all before it known to be sound.
    while store.written < SEGMENT:
        store.log.put(message(b"." * 500))
    root = kill_image(running, tmp_path / "killed")
    store.close()
    flip(log_segment(root), place + 2)  # its size: now only the magic can be looked for
    if not with_queues:
        shutil.rmtree(root / "consumequeue")
    store = MessageStore.open(small_settings(root))
    found = bodies(store)
    assert b"forged" not in found
    assert found[:2] == [b"before", b"after"]
    assert set(found[2:]) == {b"." * 500}
    store.close()


# --- queues and log disagree ----------------------------------------------------------------------


def test_queue_ahead_of_the_log_is_cut(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 60)
    cut = killed.records[35].log_offset
    segment, position = killed.place(35)
    data = bytearray(segment.read_bytes())
    data[position:] = bytes(SEGMENT - position)
    segment.write_bytes(data)
    for path in sorted((killed.root / "commitlog").iterdir()):
        if int(path.name) > cut:
            path.unlink()
    store = killed.open()
    assert store.recovery.log_end == cut
    assert store.max_offset("Orders", 0) == 35
    assert store.search.query("Orders", "U40", 10, 0, 2**62).records == []
    assert len(store.search.query("Orders", "U34", 10, 0, 2**62).records) == 1
    units = b"".join(tree(killed.root, "consumequeue").values())
    assert units[35 * 20 :].count(0) == len(units) - 35 * 20
    assert store.log.put(message(b"next")).queue_offset == 35
    store.dispatch()
    assert bodies(store) == [*killed.bodies[:35], b"next"]
    assert store.close()


@pytest.mark.parametrize("kept", [0, 1, 9, 10, 11, 30, 59])
def test_queue_behind_the_log_is_filled_up(tmp_path: Path, kept: int) -> None:
    killed = Killed(tmp_path, 60)
    for start in range(0, 60 * 20, QUEUE_SEGMENT):
        path = queue_file(killed.root, start=start)
        data = path.read_bytes()
        keep = max(0, min(len(data), kept * 20 - start))
        path.write_bytes(data[:keep] + bytes(len(data) - keep))
    store = killed.open()
    assert bodies(store) == killed.bodies
    assert store.close()
    assert everything(killed.root) == everything(killed.clean_root)


def test_hole_in_a_queue_is_filled(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 60)
    with queue_file(killed.root, start=QUEUE_SEGMENT).open("r+b") as file:
        file.seek(40)
        file.write(bytes(60))
    store = killed.open()
    assert bodies(store) == killed.bodies
    assert store.close()
    assert everything(killed.root) == everything(killed.clean_root)


def test_queue_that_lags_behind_is_found_even_if_the_checkpoint_says_otherwise(
    tmp_path: Path,
) -> None:
    killed = Killed(tmp_path, 200, queues=2)
    # A clock that was set back makes the checkpoint claim that all is synced (reliability.md B5).
    (killed.root / "checkpoint").write_bytes(struct.pack(">qqq", *(2**60,) * 3) + bytes(4072))
    for start in range(QUEUE_SEGMENT, 100 * 20, QUEUE_SEGMENT):
        queue_file(killed.root, start=start).unlink()
    store = killed.open()
    assert bodies(store, queue_id=0) == killed.bodies[0::2]
    assert bodies(store, queue_id=1) == killed.bodies[1::2]
    store.close()


def test_wrong_unit_gives_way_to_the_log(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 60)
    with queue_file(killed.root, start=QUEUE_SEGMENT).open("r+b") as file:
        file.seek(60)
        file.write(struct.pack(">qiq", 17, 300, 5))
    store = killed.open()
    assert store.recovery.entry_conflicts == 1
    assert bodies(store) == killed.bodies
    assert store.close()
    assert everything(killed.root) == everything(killed.clean_root)


def test_queue_with_nothing_but_pre_blanks_takes_its_messages(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 5)
    path = queue_file(killed.root)
    path.write_bytes(PRE_BLANK * 10)
    store = killed.open()
    assert bodies(store) == killed.bodies
    store.close()


def test_numbering_goes_on_from_the_name_of_an_empty_file(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 3)
    directory = killed.root / "consumequeue" / "Empty" / "0"
    directory.mkdir(parents=True)
    (directory / f"{5 * QUEUE_SEGMENT:020d}").write_bytes(bytes(QUEUE_SEGMENT))
    store = killed.open()
    assert store.log.put(message(topic="Empty")).queue_offset == 50
    store.close()


def test_topic_deleted_and_used_again_is_rebuilt_with_its_new_messages(tmp_path: Path) -> None:
    running = tmp_path / "running"
    store = MessageStore.open(small_settings(running))
    fill(store, 5)
    assert store.delete_topic("Orders") == 1
    assert not (running / "consumequeue" / "Orders").exists()
    assert store.max_offset("Orders", 0) == 0
    for n in range(7):
        assert store.log.put(message(b"new%d" % n)).queue_offset == n
    store.dispatch()
    root = kill_image(running, tmp_path / "killed")
    store.close()
    shutil.rmtree(root / "consumequeue")
    store = MessageStore.open(small_settings(root))
    assert bodies(store) == [b"new%d" % n for n in range(7)]
    store.close()


def test_units_of_a_foreign_recovery_that_did_not_clear_them_are_not_served(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 15)
    stale = struct.pack(">qiq", killed.records[3].log_offset + 7, 120, 0)
    with queue_file(killed.root, start=QUEUE_SEGMENT).open("r+b") as file:
        file.seek(100)
        file.write(stale)
    store = killed.open()
    assert bodies(store) == killed.bodies
    # The slot is not given out: somebody may have seen its number.
    assert store.log.put(message(b"next")).queue_offset == 16
    store.dispatch()
    assert bodies(store) == [*killed.bodies, b"next"]
    store.close()


def test_waiting_messages_keep_their_delivery_time_over_a_rebuild(tmp_path: Path) -> None:
    running = tmp_path / "running"
    clock = ManualClock()
    store = MessageStore.open(small_settings(running), clock=clock)
    for level in (1, 3, 18):
        store.log.put(
            message(topic="SCHEDULE_TOPIC_XXXX", queue_id=level - 1, more={"DELAY": str(level)})
        )
        clock.time_ms += 10
    store.dispatch()
    root = kill_image(running, tmp_path / "killed")
    store.close()
    before = tree(root, "consumequeue")
    shutil.rmtree(root / "consumequeue")
    assert MessageStore.open(small_settings(root)).close()
    assert tree(root, "consumequeue") == before
    assert before.popitem()[1][12:20] == struct.pack(">q", FIRST_MS + 10 + 10_000)


# --- segments -------------------------------------------------------------------------------------


def test_segment_made_ahead_is_removed(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 30)
    spare = log_segment(killed.root, (killed.written // SEGMENT + 1) * SEGMENT)
    spare.write_bytes(bytes(SEGMENT))
    store = killed.open()
    assert str(spare) in store.recovery.segments_removed
    assert not spare.exists()
    for _ in range(40):
        store.log.put(message(b"." * 100))
    store.close()


def test_empty_last_file_is_removed(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 30)
    spare = log_segment(killed.root, (killed.written // SEGMENT + 1) * SEGMENT)
    spare.touch()
    queue_file(killed.root, start=600).touch()
    store = killed.open()
    assert not spare.exists()
    for _ in range(40):
        store.log.put(message(b"." * 100))
    store.dispatch()
    assert len(bodies(store)) == 70
    store.close()


def test_log_that_ends_with_a_blank_goes_on_in_the_next_segment(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 60)
    for path in sorted((killed.root / "commitlog").iterdir())[1:]:
        path.unlink()
    store = killed.open()
    assert store.written == SEGMENT
    count = sum(1 for found in killed.records if found.log_offset < SEGMENT)
    assert bodies(store) == killed.bodies[:count]
    assert store.log.put(message(b"next")).log_offset == SEGMENT
    store.dispatch()
    assert bodies(store)[count] == b"next"
    assert store.close()


def test_missing_segment_stops_the_start_and_nothing_is_changed(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 100)
    log_segment(killed.root, SEGMENT).unlink()
    before = everything(killed.root)
    with pytest.raises(StoreLayoutError, match="missing"):
        killed.open()
    assert everything(killed.root) == before


def test_queues_without_any_log_stop_the_start(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 10)
    shutil.rmtree(killed.root / "commitlog")
    before = everything(killed.root)
    with pytest.raises(StoreLayoutError, match="mounted"):
        killed.open()
    assert everything(killed.root) == before


def test_log_whose_beginning_was_deleted_is_read_from_where_it_begins(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 100, queues=2)
    log_segment(killed.root, 0).unlink()
    log_segment(killed.root, SEGMENT).unlink()
    left = [n for n, found in enumerate(killed.records) if found.log_offset >= 2 * SEGMENT]
    for _ in range(2):
        store = killed.open()
        assert store.min_log_offset == 2 * SEGMENT
        for queue_id in range(2):
            mine = [n for n in left if n % 2 == queue_id]
            assert store.min_offset("Orders", queue_id) == mine[0] // 2
            assert bodies(store, queue_id=queue_id) == [killed.bodies[n] for n in mine]
            first = store.reader.get("Orders", queue_id, 0, 10, None)
            assert first.status is GetStatus.OFFSET_TOO_SMALL
            assert first.next_offset == mine[0] // 2
        store.close()
        # Once with the queues as they were, once made anew.
        shutil.rmtree(killed.root / "consumequeue")


def test_missing_checkpoint_costs_time_only(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 100)
    (killed.root / "checkpoint").unlink(missing_ok=True)
    store = killed.open()
    assert store.recovery.records_read == 100
    assert bodies(store) == killed.bodies
    assert store.close()
    times = struct.unpack(">qqq", (killed.root / "checkpoint").read_bytes()[:24])
    assert times[0] == times[1] == times[2] > 0


def test_crash_reads_from_the_segment_the_checkpoint_knows_to_be_synced(tmp_path: Path) -> None:
    clock = ManualClock()
    running = tmp_path / "running"
    store = MessageStore.open(small_settings(running), clock=clock)
    for n in range(100):
        clock.time_ms = FIRST_MS + n * 1000
        store.log.put(message(b"." * 100, unique=f"U{n}"))
    store.dispatch()
    root = kill_image(running, tmp_path / "killed")
    store.close()
    synced_ms = FIRST_MS + 60_000
    times = struct.pack(">qqq", synced_ms, synced_ms, 2**60)
    (root / "checkpoint").write_bytes(times + bytes(4072))
    (root / "offsets").unlink()  # it would say that the queues are known from the beginning only
    store = MessageStore.open(small_settings(root))
    start = store.recovery.read_from
    assert start % SEGMENT == 0
    assert start > 0
    assert len(bodies(store)) == 100
    segment_times = {found.log_offset: found.store_timestamp_ms for found in read_all(store)}
    assert segment_times[start] <= synced_ms - 3000
    store.close()


def test_foreign_names_are_left_alone_and_reported(tmp_path: Path) -> None:
    killed = Killed(tmp_path, 10)
    (killed.root / "commitlog" / "lost+found").mkdir()
    (killed.root / "commitlog" / "notes.txt").write_text("mine")
    (killed.root / "consumequeue" / "Orders" / "notes").mkdir()
    (killed.root / "index" / "x.bak").write_text("mine")
    store = killed.open()
    assert bodies(store) == killed.bodies
    assert len(store.recovery.foreign_files) == 4
    store.close()
    assert (killed.root / "commitlog" / "notes.txt").read_text() == "mine"


def test_record_of_a_topic_that_cannot_be_a_path_stays_in_the_log_only(tmp_path: Path) -> None:
    running = tmp_path / "running"
    store = MessageStore.open(small_settings(running))
    first = store.log.put(message(topic="ab", body=b"x"))
    store.log.put(message(b"after"))
    store.close()
    segment = log_segment(running)
    data = segment.read_bytes().replace(b"\x02ab", b"\x02..", 1)
    segment.write_bytes(data)
    shutil.rmtree(running / "consumequeue")
    store = MessageStore.open(small_settings(running))
    assert store.recovery.unusable_topics == 1
    assert list(store.queues()) == [("Orders", 0)]
    assert store.reader.record_at(first.log_offset) is not None
    store.close()


def test_long_start_tells_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aerobee.store.recovery.recovery._PROGRESS_BYTES", 1000)
    monkeypatch.setattr("aerobee.protocol.message.record_check.MOST_RECORDS", 3)
    killed = Killed(tmp_path, 100)
    seen: list[tuple[str, int, int]] = []
    store = MessageStore.open(
        killed.settings, progress=lambda what, done, total: seen.append((what, done, total))
    )
    store.close()
    assert len(seen) > 5
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert all(done <= total for _, done, total in seen)
