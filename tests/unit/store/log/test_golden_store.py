"""Our files and the golden ones, which another program packed from the format's description."""

import itertools
import os
import shutil
from pathlib import Path

import pytest

from aerobee.config.model import Settings
from aerobee.protocol.message.record import StoreMessage
from aerobee.store.message_store import MessageStore
from tests.golden import make_store
from tests.golden.make_store import FIRST_MS, STEP_MS, Item, puts
from tests.unit.store.support import ManualClock, bodies, from_properties, read_all, tree

MISSING: list[tuple[str, ...]] = [(), ("consumequeue",), ("index",), ("consumequeue", "index")]
GOLDEN = Path(make_store.__file__).parent / "store"


def golden_settings(path: Path, **changes: object) -> Settings:
    values: dict[str, object] = {
        "store_path": str(path),
        "commit_log_segment_bytes": make_store.LOG_BYTES,
        "consume_queue_segment_bytes": make_store.QUEUE_BYTES,
        "index_slots": make_store.SLOTS,
        "index_entries": make_store.ENTRIES,
        "max_message_bytes": 1000,
        "disk_warning_ratio": 1.0,
    }
    return Settings.for_tests(**(values | changes))


def write(settings: Settings) -> None:
    clock = ManualClock()
    store = MessageStore.open(settings, clock=clock)
    for call, items in enumerate(puts()):
        clock.time_ms = FIRST_MS + call * STEP_MS
        if len(items) == 1:
            store.log.put(stored(items[0]))
        else:
            store.log.put_batch([stored(item) for item in items])
        if call % 4 == 0:
            store.dispatch()
    assert store.close()


def stored(item: Item) -> StoreMessage:
    return from_properties(
        item.body,
        item.topic,
        item.queue_id,
        item.properties.encode(),
        sys_flag=item.sys_flag,
        born_host=item.born_host,
        store_host=item.store_host,
        flag=item.flag,
        born_ms=FIRST_MS - 5,
        reconsume_times=item.reconsume_times,
        prepared_offset=item.prepared_offset,
    )


def contents(root: Path) -> dict[str, bytes]:
    files = tree(root, "commitlog") | tree(root, "consumequeue")
    for number, data in enumerate(tree(root, "index").values()):
        files[f"index/{number}"] = data
    for name in ("checkpoint", "lock"):
        files[name] = (root / name).read_bytes()
    return files


def golden_copy(target: Path) -> Path:
    shutil.copytree(GOLDEN, target)
    for number, name in enumerate(sorted(os.listdir(target / "index"))):
        (target / "index" / name).rename(target / "index" / f"2023111422132000{number}")
    return target


def test_golden_files_are_what_their_program_makes(tmp_path: Path) -> None:
    make_store.write_store(tmp_path / "made", ["0", "1"])
    assert contents(tmp_path / "made") == contents(GOLDEN)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_our_files_are_the_golden_ones_byte_for_byte(tmp_path: Path, flush: str) -> None:
    write(golden_settings(tmp_path / "ours", flush_disk_type=flush))
    assert contents(tmp_path / "ours") == contents(GOLDEN)
    names = sorted(os.listdir(tmp_path / "ours"))
    assert names == ["checkpoint", "commitlog", "consumequeue", "index", "lock", "offsets"]


def test_golden_store_is_read_whole(tmp_path: Path) -> None:
    root = golden_copy(tmp_path / "golden")
    _, places = make_store.make_log()
    with_clean_stop = MessageStore.open(golden_settings(root))
    visible = [place for place in places if place.item.sys_flag & 0xC in (0, 8)]
    for topic, queue_id in sorted({(p.item.topic, p.item.queue_id) for p in visible}):
        expected = [p for p in visible if (p.item.topic, p.item.queue_id) == (topic, queue_id)]
        found = read_all(with_clean_stop, topic, queue_id)
        assert [message.body for message in found] == [place.item.body for place in expected]
        assert [message.queue_offset for message in found] == list(range(len(expected)))
        assert [message.log_offset for message in found] == [p.log_offset for p in expected]
        assert [message.tags or "" for message in found] == [p.item.tags for p in expected]
    for place in places:
        if place.item.sys_flag & 0xC != make_store.ROLLBACK:
            for key in place.item.keys:
                hits = with_clean_stop.search.query(place.item.topic, key, 64, 0, FIRST_MS * 2)
                assert with_clean_stop.reader.record_at(place.log_offset) in hits.records
    assert with_clean_stop.close()
    assert contents(root) == contents(GOLDEN)


@pytest.mark.parametrize(("crashed", "missing"), list(itertools.product([False, True], MISSING)))
def test_what_is_rebuilt_equals_what_was_there(
    tmp_path: Path, crashed: bool, missing: tuple[str, ...]
) -> None:
    root = golden_copy(tmp_path / "golden")
    for folder in missing:
        shutil.rmtree(root / folder)
    if crashed:
        (root / "abort").touch()
        (root / "checkpoint").unlink()
    store = MessageStore.open(golden_settings(root))
    assert store.recovery.clean_stop is not crashed
    assert store.close()
    assert contents(root) == contents(GOLDEN)


def test_golden_store_is_written_further(tmp_path: Path) -> None:
    root = golden_copy(tmp_path / "golden")
    store = MessageStore.open(golden_settings(root))
    before = bodies(store, "Orders", 0)
    store.log.put(from_properties(b"next", "Orders", 0, b""))
    store.dispatch()
    assert bodies(store, "Orders", 0) == [*before, b"next"]
    assert store.close()
    for name, data in contents(GOLDEN).items():
        kept = (root / name).read_bytes() if not name.startswith("index") else b""
        if name.startswith("commitlog"):
            assert kept.startswith(data.rstrip(b"\0"))
