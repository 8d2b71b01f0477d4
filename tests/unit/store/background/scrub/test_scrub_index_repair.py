"""Claims about wrong index entries: the running broker finds, counts, names and mends each."""

import random
from pathlib import Path

import pytest

from aerobee.store.message_store import MessageStore
from tests.crash.damage.judge import scrub_once
from tests.faulty_files import FaultyFiles
from tests.unit.store.background.scrub.test_scrub_index import HEADER, SLOTS, opened, said, stopped
from tests.unit.store.support import ManualClock, fill, flip, message, small_settings

COUNT = 100
ENTRIES_AT = HEADER + 4 * SLOTS


def finds_all(store: MessageStore, count: int = COUNT) -> bool:
    return all(
        len(store.search.query("Orders", f"U{n}", 8, 0, 1 << 62).records) == 1 for n in range(count)
    )


def contents(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((root / "index").iterdir())}


@pytest.mark.parametrize("byte", range(20))
@pytest.mark.parametrize("number", [1, 2, 20, 38, 39])
@pytest.mark.parametrize("file", [0, 1])
def test_every_bit_of_an_entry_is_noticed_and_mended(
    tmp_path: Path, file: int, number: int, byte: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Hash (0 to 3), log offset (4 to 11), seconds (12 to 15), the entry before it (16 to 19)."""
    paths = stopped(tmp_path)
    before = contents(tmp_path)
    bit = 1 << random.Random(f"{file} {number} {byte}").randrange(8)
    flip(paths[file], ENTRIES_AT + 20 * number + byte, bit)
    if number == 1 and 12 <= byte < 16:
        return  # nobody reads the seconds of the first (store/FORMAT.md 6.2)
    store = opened(tmp_path)
    scrub_once(store)
    assert store.stats.damage_found["index"] == 1
    assert len(said(caplog)) == 1
    assert str(paths[file]) in said(caplog)[0]
    assert finds_all(store)
    scrub_once(store)
    assert store.stats.damage_found["index"] == 1
    assert store.close()
    assert contents(tmp_path) == before


def test_flipped_slot_is_mended(tmp_path: Path) -> None:
    paths = stopped(tmp_path)
    before = contents(tmp_path)
    data = paths[0].read_bytes()
    used = [n for n in range(SLOTS) if any(data[HEADER + 4 * n : HEADER + 4 * n + 4])]
    flip(paths[0], HEADER + 4 * used[0] + 3, 1)
    flip(paths[0], HEADER + 4 * used[1], 0x40)  # beyond all entries
    store = opened(tmp_path)
    scrub_once(store)
    assert finds_all(store)
    assert store.stats.damage_found["index"] >= 1
    assert store.close()
    assert contents(tmp_path) == before


def test_entries_of_a_lost_page_are_mended(tmp_path: Path) -> None:
    whole_log = {"commit_log_segment_bytes": 1 << 20}
    store = MessageStore.open(small_settings(tmp_path, **whole_log))
    fill(store, COUNT)
    assert store.close()
    paths = sorted((tmp_path / "index").iterdir())
    before = contents(tmp_path)
    data = bytearray(paths[0].read_bytes())
    data[ENTRIES_AT + 200 : ENTRIES_AT + 600] = bytes(400)
    paths[0].write_bytes(data)
    store = MessageStore.open(small_settings(tmp_path, scrub_bytes_per_second=1 << 40, **whole_log))
    scrub_once(store)
    assert finds_all(store)
    assert store.stats.damage_found["index"] >= 20
    assert store.close()
    assert contents(tmp_path) == before


def test_keys_put_between_damage_and_repair_are_found_too(tmp_path: Path) -> None:
    paths = stopped(tmp_path, 90)
    data = paths[-1].read_bytes()
    used = [n for n in range(SLOTS) if any(data[HEADER + 4 * n : HEADER + 4 * n + 4])]
    for slot in used:
        flip(paths[-1], HEADER + 4 * slot + 3, 1)
    store = opened(tmp_path)
    scrub = store._scrub
    assert scrub is not None
    scrub.requests.pass_asked = True
    while (segment := scrub._next()) is not None:
        scrub._scrub(segment)
    for number in range(90, COUNT):
        store.log.put(message(unique=f"U{number}"))
    store.dispatch()
    while store._queue_repair._findings or store._queue_repair._work is not None:
        store.repair_queues()
    scrub_once(store)
    assert finds_all(store)
    assert store.close()


def test_what_was_mended_in_a_full_file_is_synced(tmp_path: Path) -> None:
    root = tmp_path / "store"
    paths = stopped(root)
    right = paths[0].read_bytes()
    flip(paths[0], ENTRIES_AT + 20 * 7 + 3, 4)
    files = FaultyFiles(root)
    settings = small_settings(
        root, scrub_bytes_per_second=1 << 40, consume_queue_flush_interval_ms=3_600_000
    )
    store = MessageStore.open(settings, files)
    scrub_once(store)
    assert store._queue_flusher.flush(2)
    files.power_cut(tmp_path / "image")
    assert (tmp_path / "image" / "index" / paths[0].name).read_bytes() == right
    store.close()


@pytest.mark.parametrize(
    "at", [pytest.param(58, id="store time"), pytest.param(91 - 3 + 57 + 2, id="topic")]
)
def test_an_entry_whose_record_is_damaged_stays_as_it_is(tmp_path: Path, at: int) -> None:
    """Nothing guards these bytes of a record, and the index is right."""
    stopped(tmp_path)
    before = contents(tmp_path)
    log_file = tmp_path / "commitlog" / f"{0:020d}"
    data = log_file.read_bytes()
    start = 0
    for _ in range(5):
        start += int.from_bytes(data[start : start + 4], "big")
    flip(log_file, start + at, 1)
    store = opened(tmp_path)
    scrub_once(store)
    assert store.stats.damage_found["index"] == 0
    assert store.close()
    assert contents(tmp_path) == before


@pytest.mark.parametrize("byte", range(7))
def test_entries_stay_as_they_are_if_the_begin_of_their_file_is_wrong(
    tmp_path: Path, byte: int
) -> None:
    """All times seem wrong then (store/FORMAT.md 6.2); by less than a second, few do."""
    clock = ManualClock()
    store = MessageStore.open(small_settings(tmp_path), clock=clock)
    for number in range(COUNT):
        clock.time_ms += 1500
        store.log.put(message(unique=f"U{number}"))
    store.dispatch()
    assert store.close()
    flip(sorted((tmp_path / "index").iterdir())[0], byte, 0x20)
    before = contents(tmp_path)
    store = opened(tmp_path)
    scrub_once(store)
    assert store.close()
    after = contents(tmp_path)
    assert all(after.get(name, data) == data for name, data in before.items())


@pytest.mark.parametrize("seed", range(8))
def test_sound_index_of_many_shapes_is_left_alone(tmp_path: Path, seed: int) -> None:
    """Messages with no keys, with many, half of them stored while the index was off."""
    rng = random.Random(seed)
    for part in range(3):
        store = MessageStore.open(small_settings(tmp_path, index_enabled=part != 1))
        for number in range(rng.randrange(60)):
            keys = " ".join(f"k{rng.randrange(9)}" for _ in range(rng.randrange(4)))
            unique = f"U{part}.{number}" if rng.random() < 0.6 else ""
            store.log.put(message(keys=keys, unique=unique))
        store.dispatch()
        assert store.close()
    before = contents(tmp_path)
    store = opened(tmp_path)
    scrub_once(store)
    assert store.stats.damage_found["index"] == 0
    assert store.close()
    assert contents(tmp_path) == before
