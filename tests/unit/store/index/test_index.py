"""Claims about the index: its bytes, what queries find, what survives a crash."""

import struct
from pathlib import Path

import pytest

from aerobee.protocol.hashing import java_hash
from aerobee.protocol.message.record import decode_record
from aerobee.store.disk.files import Files
from aerobee.store.errors import StoreSizeMismatch
from aerobee.store.index.check import repair_index_file
from aerobee.store.index.index_file import IndexFile
from aerobee.store.index.layout import index_file_bytes, slot_hash
from aerobee.store.message_store import MessageStore
from tests.unit.store.support import (
    FIRST_MS,
    ManualClock,
    fill,
    flip,
    kill_image,
    message,
    small_settings,
    whole,
)

ALL = (0, 2**62)


def found(store: MessageStore, key: str, begin: int = 0, end: int = 2**62) -> list[bytes]:
    records = store.search.query("Orders", key, 64, begin, end).records
    return [decode_record(record).body for record in records]


def make_file(tmp_path: Path, keys: int = 30, slots: int = 7, entries: int = 50) -> IndexFile:
    file = IndexFile.create(Files(), str(tmp_path / "index"), slots, entries)
    file.reserve(entries)
    for number in range(keys):
        file.put(slot_hash(java_hash(f"T#k{number}")), number * 100, FIRST_MS + number * 1000)
    file.write_header()
    return file


def test_hash_without_a_positive_form_is_zero() -> None:
    assert java_hash("polygenelubricants") == -(2**31)
    assert slot_hash(-(2**31)) == 0
    assert slot_hash(-5) == slot_hash(5) == 5
    assert slot_hash(2**31 - 1) == 2**31 - 1


def test_chains_lead_from_the_newest_entry_back(tmp_path: Path) -> None:
    file = IndexFile.create(Files(), str(tmp_path / "index"), 5, 20)
    file.reserve(20)
    for offset, value in ((0, 12), (100, 7), (200, 12), (300, 3)):
        file.put(value, offset, FIRST_MS + offset * 10)
    file.write_header()
    data = (tmp_path / "index").read_bytes()
    header = struct.unpack(">qqqqii", data[:40])
    assert header == (FIRST_MS, FIRST_MS + 3000, 0, 300, 2, 5)
    assert struct.unpack(">5i", data[40:60]) == (0, 0, 3, 4, 0)
    entries = list(struct.iter_unpack(">iqii", data[60:160]))
    assert entries == [(0, 0, 0, 0), (12, 0, 0, 0), (7, 100, 1, 1), (12, 200, 2, 2), (3, 300, 3, 0)]
    assert len(data) == index_file_bytes(5, 20)
    assert whole(file.select(12, 10, *ALL)) == [200, 0]
    assert whole(file.select(12, 1, *ALL)) == [200]
    assert whole(file.select(12, 10, 0, FIRST_MS + 1000)) == [0]
    assert whole(file.select(12, 10, FIRST_MS + 1500, 2**62)) == [200]
    assert whole(file.select(99, 10, *ALL)) == []
    file.close()


def test_second_file_begins_with_the_end_of_the_first(tmp_path: Path) -> None:
    clock = ManualClock()
    store = MessageStore.open(small_settings(tmp_path, index_entries=4), clock=clock)
    for number in range(5):
        store.log.put(message(unique=f"U{number}"))
        clock.time_ms += 2500
    store.dispatch()
    assert store.close()
    first, second = sorted((tmp_path / "index").iterdir())
    old = struct.unpack(">qqqqii", first.read_bytes()[:40])
    new = struct.unpack(">qqqqii", second.read_bytes()[:40])
    assert (old[1], old[5]) == (FIRST_MS + 5000, 4)
    assert (new[0], new[1], new[5]) == (FIRST_MS + 7500, FIRST_MS + 10_000, 3)
    # The first entry's time was taken against the end of the file before it.
    entry = second.read_bytes()[40 + 50 * 4 + 20 :][:20]
    assert struct.unpack(">iqii", entry)[2] == 2


def test_messages_are_found_by_every_key_over_all_files(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    made = fill(store, 100)
    store.log.put(message(b"many", keys="a  b ключ b", unique="X"))
    store.dispatch()
    assert len(list((tmp_path / "index").iterdir())) == 3
    for number, body in enumerate(made):
        assert found(store, f"U{number}") == [body]
    for key in ("a", "b", "ключ", "X"):
        assert found(store, key) == [b"many"]
    for key in ("", "A", "a b", "U100", "nothing"):
        assert found(store, key) == []
    assert store.search.query("Other", "U1", 64, *ALL).records == []
    store.close()


def test_query_keeps_to_its_time_range_exactly(tmp_path: Path) -> None:
    clock = ManualClock()
    store = MessageStore.open(small_settings(tmp_path), clock=clock)
    for number in range(50):
        clock.time_ms = FIRST_MS + number * 700
        store.log.put(message(b"%d" % number, keys="same"))
        store.dispatch()
    for begin, end in ((0, 10), (3, 3), (10, 20), (45, 60), (49, 49)):
        expected = [b"%d" % number for number in range(begin, min(end, 49) + 1)]
        assert found(store, "same", FIRST_MS + begin * 700, FIRST_MS + end * 700) == expected
    assert found(store, "same", FIRST_MS + 1, FIRST_MS + 699) == []
    store.close()


def test_query_gives_the_newest_in_log_order(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path, query_max_messages=5))
    for number in range(20):
        store.log.put(message(b"%02d" % number, keys="same"))
    store.dispatch()
    assert found(store, "same") == [b"15", b"16", b"17", b"18", b"19"]
    result = store.search.query("Orders", "same", 2, *ALL)
    assert [decode_record(record).body for record in result.records] == [b"18", b"19"]
    assert result.last_update_log_offset == decode_record(result.records[-1]).log_offset
    assert store.search.query("Orders", "same", 0, *ALL).records == []
    store.close()


def test_another_key_of_the_same_hash_is_no_answer(tmp_path: Path) -> None:
    assert java_hash("Orders#Aa") == java_hash("Orders#BB")
    clock = ManualClock()
    store = MessageStore.open(small_settings(tmp_path), clock=clock)
    store.log.put(message(b"asked for", keys="x Aa"))
    store.log.put(message(b"unique", unique="Aa"))
    for number in range(5):
        clock.time_ms += 300
        store.log.put(message(b"%d" % number, keys="BB"))
    store.dispatch()
    assert found(store, "Aa") == [b"asked for", b"unique"]
    # The entries of the other key are newer, and one look at the index gives no more.
    [record] = store.search.query("Orders", "Aa", 1, *ALL).records
    assert decode_record(record).body == b"unique"
    assert len(found(store, "BB")) == 5
    store.close()


@pytest.mark.parametrize(("byte", "bits"), [(0, 0x80), (3, 1), (4, 1), (11, 0xFF)])
def test_no_flipped_bit_of_an_entry_serves_a_message_without_the_key(
    tmp_path: Path, byte: int, bits: int
) -> None:
    """Damages the hash (0 to 3) or the log offset (4 to 11), which is made that of another
    record."""
    store = MessageStore.open(small_settings(tmp_path))
    made = fill(store, 10)
    assert store.close()
    [path] = (tmp_path / "index").iterdir()
    data = bytearray(path.read_bytes())
    at = 40 + 4 * 50 + 20 * 5  # the fifth message's
    data[at + byte] ^= bits
    if byte == 11:  # names the sixth message
        data[at + 4 : at + 12] = data[at + 24 : at + 32]
    path.write_bytes(data)
    store = MessageStore.open(small_settings(tmp_path))
    for number, body in enumerate(made):
        assert found(store, f"U{number}") in ([body], []), number
    store.close()


def test_index_can_be_turned_off(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path, index_enabled=False))
    fill(store, 5)
    assert store.search.query("Orders", "U1", 10, *ALL) == ([], 0, 0)
    assert store.close()
    assert not (tmp_path / "index").exists()


def test_names_are_local_times_and_always_grow(tmp_path: Path) -> None:
    clock = ManualClock()
    store = MessageStore.open(small_settings(tmp_path, index_entries=3), clock=clock)
    fill(store, 20)
    clock.time_ms -= 10_000
    fill(store, 3)
    assert store.close()
    names = sorted(path.name for path in (tmp_path / "index").iterdir())
    assert len(names) == 12
    assert all(len(name) == 17 and name.isdigit() for name in names)
    store = MessageStore.open(small_settings(tmp_path, index_entries=3))
    assert len(found(store, "U19")) == 1
    store.close()


def test_names_do_not_go_back_behind_one_that_was_removed(tmp_path: Path) -> None:
    """A power cut may bring that one back, and the order of names is the order of the files."""
    clock = ManualClock()
    store = MessageStore.open(small_settings(tmp_path), clock=clock)
    fill(store, 5)
    store.close()
    (removed,) = (tmp_path / "index").iterdir()
    flip(removed, 0, 0x80)
    clock.time_ms = 20_000
    store = MessageStore.open(small_settings(tmp_path), clock=clock)
    (made,) = (tmp_path / "index").iterdir()
    assert made.name > removed.name
    assert found(store, "U3")
    store.close()


@pytest.mark.parametrize("set_ms", [-3_600_000, -86_400_000, 20_000 - FIRST_MS])
def test_messages_are_found_by_their_times_although_the_clock_was_set_back(
    tmp_path: Path, set_ms: int
) -> None:
    """The header's times and the order of entries both mislead then, the reference too."""
    clock = ManualClock()
    store = MessageStore.open(small_settings(tmp_path, index_entries=200), clock=clock)
    stored: dict[str, int] = {}
    for number in range(40):
        clock.time_ms += set_ms if number == 20 else 60_000
        put = store.log.put(message(b"%02d" % number + b"." * 300, keys=f"k{number}"))
        stored[f"k{number}"] = put.store_timestamp_ms
    store.dispatch()
    for key, store_ms in stored.items():
        assert len(found(store, key, store_ms, store_ms)) == 1
        assert found(store, key, store_ms + 1, store_ms + 10) == []
    store.close()


def test_file_of_another_size_is_refused(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    fill(store, 3)
    store.close()
    with pytest.raises(StoreSizeMismatch, match="maxHashSlotNum"):
        MessageStore.open(small_settings(tmp_path, index_slots=60))


# --- after a crash --------------------------------------------------------------------------------


def test_whole_file_passes_the_check(tmp_path: Path) -> None:
    file = make_file(tmp_path)
    before = (tmp_path / "index").read_bytes()
    assert repair_index_file(file)
    assert (tmp_path / "index").read_bytes() == before
    file.close()


@pytest.mark.parametrize(
    "position",
    [
        pytest.param(40 + 4 * 3 + 3, id="slot"),
        pytest.param(40 + 28 + 20 * 9 + 2, id="hash"),
        pytest.param(40 + 28 + 20 * 9 + 10, id="log offset"),
        pytest.param(40 + 28 + 20 * 9 + 19, id="previous"),
        pytest.param(35, id="slots in use"),
        pytest.param(31, id="end offset"),
    ],
)
def test_damaged_file_fails_the_check(tmp_path: Path, position: int) -> None:
    make_file(tmp_path).close()
    flip(tmp_path / "index", position, 0x80 if position > 40 else 1)
    file = IndexFile.load(Files(), str(tmp_path / "index"), 7, 50)
    assert not repair_index_file(file)
    file.close()


def test_entries_the_header_does_not_count_are_cut_off(tmp_path: Path) -> None:
    file = make_file(tmp_path, keys=20)
    counted = (tmp_path / "index").read_bytes()[: 40 + 28]
    for number in range(20, 30):
        file.put(slot_hash(java_hash(f"T#k{number}")), number * 100, FIRST_MS)
    file.close()
    file = IndexFile.load(Files(), str(tmp_path / "index"), 7, 50)
    assert repair_index_file(file)
    assert (tmp_path / "index").read_bytes()[: 40 + 28] == counted
    assert whole(file.select(slot_hash(java_hash("T#k25")), 10, *ALL)) == []
    assert whole(file.select(slot_hash(java_hash("T#k12")), 10, *ALL)) == [1200]
    file.close()


def test_killed_store_keeps_its_index(tmp_path: Path) -> None:
    running = tmp_path / "running"
    store = MessageStore.open(small_settings(running, index_entries=1000))
    made = fill(store, 100)
    root = kill_image(running, tmp_path / "killed")
    store.close()
    store = MessageStore.open(small_settings(root, index_entries=1000))
    assert store.recovery.index_files_removed == []
    for number, body in enumerate(made):
        assert found(store, f"U{number}") == [body]
    store.close()


@pytest.mark.parametrize("position", [20, 41, 300, 40 + 200 + 20 * 50 + 6])
def test_index_that_is_not_whole_is_made_again(tmp_path: Path, position: int) -> None:
    running = tmp_path / "running"
    store = MessageStore.open(small_settings(running, index_entries=1000))
    made = fill(store, 100)
    root = kill_image(running, tmp_path / "killed")
    store.close()
    [path] = (root / "index").iterdir()
    flip(path, position, 0x80)
    store = MessageStore.open(small_settings(root, index_entries=1000))
    assert store.recovery.index_files_removed == [str(path)]
    for number, body in enumerate(made):
        assert found(store, f"U{number}") == [body]
    store.close()


def test_message_that_was_half_indexed_is_indexed_once_for_each_key(tmp_path: Path) -> None:
    running = tmp_path / "running"
    store = MessageStore.open(small_settings(running))
    fill(store, 3)
    store.log.put(message(b"two keys", keys="a b"))
    store.dispatch()
    root = kill_image(running, tmp_path / "killed")
    store.close()
    [path] = (root / "index").iterdir()
    data = bytearray(path.read_bytes())
    # The process was killed after the first of the last message's two keys.
    header = list(struct.unpack(">qqqqii", data[:40]))
    slot = slot_hash(java_hash("Orders#b")) % 50
    previous = struct.unpack(">iqii", data[40 + 200 + 20 * 5 :][:20])[3]
    data[40 + 4 * slot : 44 + 4 * slot] = struct.pack(">i", previous)
    header[4] -= previous == 0
    header[5] -= 1
    data[:40] = struct.pack(">qqqqii", *header)
    path.write_bytes(data)
    store = MessageStore.open(small_settings(root))
    assert found(store, "a") == found(store, "b") == [b"two keys"]
    assert store.close()
    [path] = (root / "index").iterdir()
    assert struct.unpack(">i", path.read_bytes()[36:40]) == (6,)


def test_many_keys_at_once_are_the_same_bytes(tmp_path: Path) -> None:
    keys = [(hash_ % 50, 1000 + 7 * hash_, 1700000000000 + 300 * hash_) for hash_ in range(1, 199)]
    files = Files()
    one = IndexFile.create(files, str(tmp_path / "one"), 20, 200)
    many = IndexFile.create(files, str(tmp_path / "many"), 20, 200)
    for file in (one, many):
        file.reserve(len(keys))
    for key in keys:
        one.put(*key)
    many.put_all(keys[:1])
    many.put_all([])
    many.put_all(keys[1:90])
    many.put_all(keys[90:])
    for file in (one, many):
        file.write_header()
        file.close()
    assert (tmp_path / "many").read_bytes() == (tmp_path / "one").read_bytes()
