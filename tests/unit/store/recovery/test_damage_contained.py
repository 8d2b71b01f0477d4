"""Claims about damage that found its way further than the record it hit. Found by tests/crash."""

import shutil
from pathlib import Path

import pytest

from aerobee.store.message_store import MessageStore
from tests.unit.store.support import (
    SEGMENT,
    adopt,
    as_copy,
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


@pytest.mark.parametrize("with_queues", [True, False])
@pytest.mark.parametrize("byte", [20, 22, 24, 25])
def test_two_records_damaged_alike_do_not_fill_the_disk_with_slots(
    tmp_path: Path, byte: int, with_queues: bool
) -> None:
    running = tmp_path / "running"
    store = MessageStore.open(small_settings(running))
    made = fill(store, 60)
    records = read_all(store)
    root = kill_image(running, tmp_path / "killed")
    store.close()
    for number in (10, 11):
        start = records[number].log_offset // SEGMENT * SEGMENT
        flip(log_segment(root, start), records[number].log_offset - start + byte)
    if not with_queues:
        shutil.rmtree(root / "consumequeue")
        shutil.rmtree(root / "index")
    store = MessageStore.open(small_settings(root))
    assert bodies(store) == made[:10] + made[12:]
    assert store.max_offset("Orders", 0) == 60
    assert [(gap.start, gap.end) for gap in store.recovery.gaps] == [
        (records[number].log_offset, records[number].log_offset + records[number].size)
        for number in (10, 11)
    ]
    assert len(list((root / "consumequeue").rglob("0*0"))) <= 10
    assert store.close()


def test_each_gap_a_start_finds_is_named_however_many_there_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log holds back events that come in masses; these it must not."""
    running = tmp_path / "running"
    store = MessageStore.open(small_settings(running))
    fill(store, 120)
    records = read_all(store)
    root = kill_image(running, tmp_path / "killed")
    store.close()
    damaged = records[1:80:2]
    for one in damaged:
        start = one.log_offset // SEGMENT * SEGMENT
        flip(log_segment(root, start), one.log_offset - start + 90)
    shutil.rmtree(root / "consumequeue")  # so that the log is read from its beginning
    store = MessageStore.open(small_settings(root))
    assert len(store.recovery.gaps) == len(damaged)
    named = {
        record.args[0]
        for record in caplog.records
        if record.msg.startswith("damaged log") and hasattr(record, "each")
    }
    assert named == {one.log_offset for one in damaged}
    assert store.close()


@pytest.mark.parametrize("numbers", [(40, 41), (40, 41, 42), (43, 44)], ids=str)
@pytest.mark.parametrize("bit", [0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40])
@pytest.mark.parametrize("other_boot", [True, False])
def test_neighbours_damaged_alike_displace_no_others(
    tmp_path: Path, other_boot: bool, bit: int, numbers: tuple[int, ...]
) -> None:
    """They follow each other as a new numbering would, and it was believed: the queue's units from
    their numbers on were emptied, and sound records behind them taken for damage."""
    running = tmp_path / "running"
    store = MessageStore.open(small_settings(running))
    made = fill(store, 50)
    store._queue_flusher.flush(0)
    records = read_all(store)
    root = adopt(kill_image(running, tmp_path / "killed"), other_boot=other_boot)
    store.close()
    for number in numbers:
        start = records[number].log_offset // SEGMENT * SEGMENT
        flip(log_segment(root, start), records[number].log_offset - start + 27, bit)
    flip(queue_file(root, start=800), 9 * 20 + 3)  # so that the log is read from before them
    flip(queue_file(root, start=800), 8 * 20 + 3)
    store = MessageStore.open(small_settings(root))
    assert [body for body in bodies(store) if body in made] == [
        body for n, body in enumerate(made) if n not in numbers
    ]
    assert store.max_offset("Orders", 0) == 50
    store.close()


@pytest.mark.parametrize("lost", [1, 2])
def test_new_numbering_is_believed_though_its_first_records_are_damaged(
    tmp_path: Path, lost: int
) -> None:
    """Only their entries say that they were there: the records can say nothing any more."""
    running = tmp_path / "running"
    store = MessageStore.open(small_settings(running))
    store.log.put(message(b"of another topic", topic="Others"))
    fill(store, 5)
    assert store.delete_topic("Orders") == 1
    for number in range(lost):
        store.log.put(message(b"lost %d" % number))
    store.log.put(message(b"kept"))
    store.dispatch()
    store._queue_flusher.flush(0)
    damaged = read_all(store)[:lost]
    root = adopt(kill_image(running, tmp_path / "killed"))
    store.close()
    for one in damaged:
        flip(log_segment(root), one.log_offset + 90)
    zero_entry(queue_file(root), lost)  # its dispatch was not on the disk yet
    shutil.rmtree(root / "consumequeue" / "Others")  # so that the log is read from its beginning
    store = MessageStore.open(small_settings(root))
    assert {(gap.start, gap.end) for gap in store.recovery.gaps} == {
        (one.log_offset, one.log_offset + one.size) for one in damaged
    }
    assert [body for body in bodies(store) if b"." not in body] == [b"kept"]
    assert store.max_offset("Orders", 0) == lost + 1
    assert store.close()


@pytest.mark.parametrize("with_offsets_file", [True, False])
@pytest.mark.parametrize(("before", "kept"), [(5, [b"kept"]), (2, [b"kept", b"kept too"])])
def test_new_numbering_whose_entries_are_gone_too_is_believed_by_the_note_of_its_deletion(
    tmp_path: Path, before: int, kept: list[bytes], with_offsets_file: bool
) -> None:
    """Killed before it was dispatched. Nothing but our offsets file says then that the number is no
    damage; without it the log ends at the damaged record, and the old ones stay in their slots. The
    second of two old entries has the number of the first that is left."""
    running = tmp_path / "running"
    store = MessageStore.open(small_settings(running))
    store.log.put(message(b"of another topic", topic="Others"))
    old = fill(store, before)
    assert store.delete_topic("Orders") == 1
    for body in (b"lost", *kept):
        store.log.put(message(body))
    store.dispatch()
    lost = read_all(store)[0]
    root = adopt(kill_image(running, tmp_path / "killed"))
    store.close()
    flip(log_segment(root), lost.log_offset + 90)
    shutil.rmtree(root / "consumequeue")  # so that the log is read from its beginning
    if not with_offsets_file:
        (root / "offsets").unlink()
    store = MessageStore.open(small_settings(root))
    assert bodies(store) == ([*old[:1], *kept] if with_offsets_file else old)
    assert store.close()


def zero_entry(path: Path, slot: int) -> None:
    data = bytearray(path.read_bytes())
    data[slot * 20 : slot * 20 + 20] = bytes(20)
    path.write_bytes(data)


@pytest.mark.parametrize("with_queues", [True, False])
@pytest.mark.parametrize(("at", "bit"), [(2, 0x04), (86, 0x04)], ids=["size", "body length"])
def test_a_length_that_leads_to_a_later_record_by_chance_costs_none_in_between(
    tmp_path: Path, at: int, bit: int, with_queues: bool
) -> None:
    """Records of 512 bytes, so a flipped bit of a length counts two of them more."""
    root = tmp_path / "store"
    store = MessageStore.open(small_settings(root))
    made = fill(store, 10, size=390)
    records = read_all(store)
    assert {record.size for record in records} == {512}
    killed = kill_image(root, tmp_path / "killed")
    store.close()
    flip(log_segment(killed), records[3].log_offset + at, bit)
    if not with_queues:
        shutil.rmtree(killed / "consumequeue")
        shutil.rmtree(killed / "index")
    store = MessageStore.open(small_settings(killed))
    assert bodies(store) == made[:3] + made[4:]
    store.close()


@pytest.mark.parametrize("target", [7, "end"])
def test_no_length_leads_over_a_record_that_the_queues_name(
    tmp_path: Path, target: int | str
) -> None:
    """Both lengths are wrong, and one of them leads to a record, or to the end, by chance."""
    root = tmp_path / "store"
    store = MessageStore.open(small_settings(root))
    made = fill(store, 60)
    records = read_all(store)
    killed = kill_image(root, tmp_path / "killed")
    store.close()
    end = SEGMENT if isinstance(target, str) else records[target].log_offset
    with log_segment(killed).open("r+b") as file:
        file.seek(records[3].log_offset)
        file.write((end - records[3].log_offset).to_bytes(4, "big"))
    flip(log_segment(killed), records[3].log_offset + 84, 0x40)
    store = MessageStore.open(small_settings(killed))
    assert bodies(store) == made[:3] + made[4:]
    store.close()


#: A bit of each part of a record, by what it breaks: (byte, bit), counted from its first byte.
BROKEN = {
    "size": (3, 0x10),
    "magic": (5, 0x01),
    "crc": (9, 0x01),
    "own offset": (34, 0x04),
    "host bit": (39, 0x10),
    "body length": (87, 0x08),
    "body": (95, 0x01),
    "topic length": (144, 0x04),
    "topic": (146, 0x80),
    "properties length": (152, 0x02),
    "properties": (155, 0x80),
}


@pytest.mark.parametrize("with_queues", [True, False])
@pytest.mark.parametrize("numbers", [(3, 5, 8, 13), (4, 5), (4, 5, 6, 7), (0, 2, 3)], ids=str)
@pytest.mark.parametrize("part", BROKEN)
def test_several_damaged_records_of_a_segment_cost_no_others(
    tmp_path: Path, part: str, numbers: tuple[int, ...], with_queues: bool
) -> None:
    running = tmp_path / "running"
    store = MessageStore.open(small_settings(running))
    made = fill(store, 60)
    records = read_all(store)
    root = kill_image(running, tmp_path / "killed")
    store.close()
    position, bit = BROKEN[part]
    for number in numbers:
        flip(log_segment(root), records[number].log_offset + position, bit)
    if not with_queues:
        shutil.rmtree(root / "consumequeue")
        shutil.rmtree(root / "index")
    store = MessageStore.open(small_settings(root))
    assert bodies(store) == [body for n, body in enumerate(made) if n not in numbers]
    lost = [(records[n].log_offset, records[n].log_offset + records[n].size) for n in numbers]
    found = [(gap.start, gap.end) for gap in store.recovery.gaps]
    assert merged(found) == merged(lost)
    assert store.close()


@pytest.mark.parametrize("with_queues", [True, False])
def test_damaged_size_that_leads_to_the_end_of_its_segment_costs_no_others(
    tmp_path: Path, with_queues: bool
) -> None:
    """Nothing has to begin there, so it was believed, over all the records in between."""
    running = tmp_path / "running"
    store = MessageStore.open(small_settings(running))
    made = fill(store, 60)
    one = read_all(store)[5]
    root = kill_image(running, tmp_path / "killed")
    store.close()
    with log_segment(root).open("r+b") as file:
        file.seek(one.log_offset)
        file.write((SEGMENT - one.log_offset).to_bytes(4, "big"))
    if not with_queues:
        shutil.rmtree(root / "consumequeue")
        shutil.rmtree(root / "index")
    store = MessageStore.open(small_settings(root))
    assert bodies(store) == made[:5] + made[6:]
    assert store.close()


def merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges that touch each other as one: neighbours may be found together."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and found[-1][1] >= start:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


# --- derived files --------------------------------------------------------------------------------


@pytest.mark.parametrize(("byte", "bit"), [(8, 0x40), (10, 0x01), (11, 0x80), (2, 0x01), (7, 0x20)])
@pytest.mark.parametrize("clean", [True, False])
def test_last_slot_of_a_queue_is_not_given_twice_for_a_flipped_bit_in_its_unit(
    tmp_path: Path, clean: bool, byte: int, bit: int
) -> None:
    """A unit whose record seemed to end behind the log's end was cut off, its number given again,
    and its message never served."""
    running = tmp_path / "running"
    store = MessageStore.open(small_settings(running))
    made = fill(store, 45)
    root = running
    if not clean:
        root = adopt(kill_image(running, tmp_path / "killed"))
    store.close()
    flip(queue_file(root, start=800), 4 * 20 + byte, bit)
    store = MessageStore.open(small_settings(root))
    assert store.log.put(message(b"new")).queue_offset == 45
    store.dispatch()
    assert bodies(store) == [*made, b"new"]
    assert store.close()


@pytest.mark.parametrize("clean", [True, False])
def test_first_file_of_a_queue_is_made_again_while_the_log_has_its_messages(
    tmp_path: Path, clean: bool
) -> None:
    """It looks as if they had expired; but nothing has while the log begins at 0."""
    running = tmp_path / "running"
    store = MessageStore.open(small_settings(running))
    made = fill(store, 60)
    root = running
    if not clean:
        root = adopt(kill_image(running, tmp_path / "killed"))
    store.close()
    queue_file(root).unlink()
    store = MessageStore.open(small_settings(root))
    assert bodies(store) == made
    assert store.min_offset("Orders", 0) == 0
    assert store.close()
    store = MessageStore.open(small_settings(root))
    assert store.recovery.records_read == 0
    store.close()


@pytest.mark.parametrize("how", ["swapped", "older name", "younger name", "older copy"])
@pytest.mark.parametrize("end", ["clean", "power cut", "another broker"])
def test_index_files_that_do_not_follow_each_other_are_made_again(
    tmp_path: Path, end: str, how: str
) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    fill(store, 60)
    store._queue_flusher.flush(0)
    early = max((tmp_path / "index").iterdir())
    half = early.read_bytes()
    for number in range(60, 120):
        store.log.put(message(b"%d" % number, unique=f"U{number}"))
    store.dispatch()
    assert store.close()
    files = sorted((tmp_path / "index").iterdir())
    if how == "swapped":
        data = [path.read_bytes() for path in files]
        files[0].write_bytes(data[1])
        files[1].write_bytes(data[0])
    elif how == "older copy":
        early.write_bytes(half)
    else:
        name = "19990101000000000" if how == "older name" else "20991231235959999"
        (tmp_path / "index" / name).write_bytes(files[-1].read_bytes())
    if end != "clean":
        adopt(tmp_path, other_boot=True)
        (tmp_path / "abort").touch()
        as_copy(tmp_path)
    if end == "another broker":
        (tmp_path / "offsets").unlink()
    store = MessageStore.open(small_settings(tmp_path))
    for number in range(120):
        assert len(store.search.query("Orders", f"U{number}", 10, 0, 1 << 62).records) == 1
    assert store.close()
    names = sorted((tmp_path / "index").iterdir())
    store = MessageStore.open(small_settings(tmp_path))
    assert store.recovery.index_files_removed == []
    assert store.close()
    assert sorted((tmp_path / "index").iterdir()) == names
