"""Claims about extension files of consume queues (consume_queue_ext_enabled)."""

import errno
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.config.model import Settings
from aerobee.protocol.hashing import tag_code
from aerobee.protocol.message.record import Message, decode_records
from aerobee.store.at_rest.repair.at_rest import StoreAtRest
from aerobee.store.at_rest.repair.rebuild import rebuild
from aerobee.store.disk.descriptors import DescriptorCache
from aerobee.store.disk.files import Files
from aerobee.store.errors import StoreSizeMismatch
from aerobee.store.message_store import MessageStore
from aerobee.store.queues.consume_queue_ext import (
    MOST_ADDRESS,
    MOST_ENTRY_BYTES,
    NO_ADDRESS,
    ConsumeQueueExt,
    ExtEntry,
)
from aerobee.store.queues.extended_queue import ExtendedQueue
from aerobee.store.queues.queue_view import ENTRY
from tests.faulty_files import FaultyFiles
from tests.golden import make_store_options
from tests.golden.make_store_options import EXT_BYTES, write_ext_store
from tests.unit.store.background.retention.retention_support import (
    HOUR_MS,
    Hours,
    names,
    open_store,
    run,
    settle,
    wait_until,
)
from tests.unit.store.log.test_golden_store import contents, golden_settings, write
from tests.unit.store.support import (
    FIRST_MS,
    SEGMENT,
    ManualClock,
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
    tree,
)

GOLDEN = make_store_options.target("ext")
LOWEST = -(1 << 63)
ALL_HOURS = ";".join(map(str, range(24)))
FILE = 100  # four entries of 20 bytes and 20 to spare


# --- the files alone ------------------------------------------------------------------------------


@pytest.fixture
def ext(tmp_path: Path) -> Iterator[ConsumeQueueExt]:
    yield from files_of(tmp_path, FILE)


def files_of(tmp_path: Path, size: int, files: Files | None = None) -> Iterator[ConsumeQueueExt]:
    files = files or Files()
    cache = DescriptorCache(files)
    yield ConsumeQueueExt(files, cache, str(tmp_path / "ext"), size)
    cache.close()


def ext_file(tmp_path: Path, start: int = 0) -> Path:
    return tmp_path / "ext" / f"{start:020d}"


def unit(number: int, bit_map: bytes = b"") -> ExtEntry:
    return ExtEntry(number, FIRST_MS + number, bit_map)


def put(ext: ConsumeQueueExt, entry: ExtEntry) -> int:
    """Store one entry; its address."""
    address = ext.stage(entry)
    ext.write()
    return address


def test_units_lie_side_by_side_and_a_file_ends_with_its_mark(
    tmp_path: Path, ext: ConsumeQueueExt
) -> None:
    units = [unit(1), unit(-2, b"\xf0" * 17), unit(3), unit(4)]
    addresses = [put(ext, one) for one in units]
    assert addresses == [LOWEST + offset for offset in (0, 20, 57, 100)]
    assert max(addresses) <= MOST_ADDRESS
    assert [ext.get(address) for address in addresses] == units
    first = ext_file(tmp_path).read_bytes()
    assert first[:20] == struct.pack(">hqqh", 20, 1, FIRST_MS + 1, 0)
    assert first[20:57] == struct.pack(">hqqh", 37, -2, FIRST_MS - 2, 17) + b"\xf0" * 17
    # 23 bytes were left, but 4 stay free.
    assert first[77:] == b"\xff\xff" + bytes(21)
    assert ext_file(tmp_path, 100).read_bytes() == units[3].encode() + bytes(80)


def test_bit_maps_of_many_entries_are_numbers(tmp_path: Path) -> None:
    """Windows, files' ends, and what has no map or another one."""
    for ext in files_of(tmp_path, 40_000):
        maps = [b"" if n % 7 == 0 else bytes([n % 256, n // 256]) * 7 for n in range(3_000)]
        maps[5] = b"\x01" * 13
        entries = [ENTRY.pack(n, 100, put(ext, unit(n, one))) for n, one in enumerate(maps)]
        entries[8:8] = [ENTRY.pack(9, 100, 77), ENTRY.pack(9, 100, LOWEST + 10_000_000)]
        found = ext.bit_maps(b"".join(entries), 14)
        assert found[8:10] == [None, None]
        expected = [int.from_bytes(one, "little") if len(one) == 14 else None for one in maps]
        assert found[:8] + found[10:] == expected
        assert ext.bit_maps(b"".join(entries), 13).count(None) == 3_001


@pytest.mark.parametrize(("map_bytes", "fits"), [(76, True), (77, False)])
def test_a_unit_larger_than_a_file_gets_no_address(
    tmp_path: Path, ext: ConsumeQueueExt, map_bytes: int, fits: bool
) -> None:
    address = put(ext, unit(1, bytes(map_bytes)))
    assert (address == LOWEST) is fits
    assert fits or (address == NO_ADDRESS and not (tmp_path / "ext").exists())


@pytest.mark.parametrize(
    ("size", "fits"), [(MOST_ENTRY_BYTES, True), (MOST_ENTRY_BYTES + 1, False)]
)
def test_a_size_is_sixteen_bits_wide(tmp_path: Path, size: int, fits: bool) -> None:
    for ext in files_of(tmp_path, 100_000):
        made = unit(1, b"m" * (size - 20))
        address = put(ext, made)
        assert (address != NO_ADDRESS) is fits
        assert ext.get(address) == (made if fits else None)


def test_addresses_end_before_tags_codes_begin(ext: ConsumeQueueExt) -> None:
    ext.resume_behind(MOST_ADDRESS - 3 * FILE)
    assert put(ext, unit(1)) <= MOST_ADDRESS
    for _ in range(10):
        last = put(ext, unit(2))
    assert last == NO_ADDRESS


@pytest.mark.parametrize("address", [0, 1, -1, -(1 << 31), LOWEST + 20, LOWEST + 1000])
def test_what_is_no_written_unit_is_none(ext: ConsumeQueueExt, address: int) -> None:
    put(ext, unit(1))
    assert ext.get(address) is None


@pytest.mark.parametrize(
    ("position", "value"),
    [(0, b"\0\0"), (0, b"\xff\xff"), (0, b"\0\x13"), (0, b"\x7f\xff"), (18, b"\0\x01"),
     (18, b"\xff\xff")],
)  # fmt: skip
def test_a_unit_that_does_not_add_up_is_none_and_its_neighbours_are_there(
    tmp_path: Path, ext: ConsumeQueueExt, position: int, value: bytes
) -> None:
    addresses = [put(ext, unit(n)) for n in range(3)]
    with ext_file(tmp_path).open("r+b") as file:
        file.seek(20 + position)
        file.write(value)
    assert [ext.get(address) for address in addresses] == [unit(0), None, unit(2)]


@pytest.mark.parametrize(("map_bytes", "is_unit"), [(76 - 20, True), (77 - 20, False)])
def test_a_unit_that_would_reach_into_the_end_of_its_file_is_none(
    tmp_path: Path, ext: ConsumeQueueExt, map_bytes: int, is_unit: bool
) -> None:
    address = [put(ext, unit(n)) for n in range(2)][1]
    with ext_file(tmp_path).open("r+b") as file:
        file.seek(20)
        file.write(struct.pack(">hqqh", 20 + map_bytes, 1, FIRST_MS, map_bytes))
    assert (ext.get(address) is not None) is is_unit


def test_a_write_that_failed_is_taken_back(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    for ext in files_of(tmp_path, FILE, files):
        first = put(ext, unit(1))
        files.fail("write", errno.ENOSPC, times=1)
        with pytest.raises(OSError, match="No space"):
            put(ext, unit(2))
        again = put(ext, unit(3))
        assert (again - first, ext.get(again)) == (20, unit(3))


# --- through the store ----------------------------------------------------------------------------


def ext_settings(path: Path, **changes: object) -> Settings:
    values: dict[str, object] = {
        "consume_queue_ext_enabled": True,
        "consume_queue_ext_segment_bytes": 4 * 20 + 4,
    }
    return small_settings(path, **(values | changes))


def extended(path: Path, files: Files | None = None, **changes: object) -> MessageStore:
    return MessageStore.open(ext_settings(path, **changes), files=files, clock=ManualClock())


def tagged(store: MessageStore, *tags: str, queue_id: int = 0) -> list[bytes]:
    codes = frozenset(tag_code(tag) for tag in tags)
    found: list[bytes] = []
    offset = store.min_offset("Orders", queue_id)
    while offset < store.max_offset("Orders", queue_id):
        result = store.reader.get("Orders", queue_id, offset, 32, codes)
        offset = result.next_offset
        for view in result.views:
            found += [one.body for one in decode(view)]
        result.release()
    return found


def decode(view: memoryview) -> list[Message]:
    return decode_records(bytes(view))


def derived(root: Path) -> dict[str, bytes]:
    return tree(root, "consumequeue") | tree(root, "consumequeue_ext")


def crashed(root: Path) -> Path:
    """Leave the store as a broker before ours that was killed would have left it."""
    (root / "abort").touch()
    for name in ("checkpoint", "offsets"):
        (root / name).unlink(missing_ok=True)
    return root


def filled(root: Path, count: int = 40) -> list[bytes]:
    store = extended(root)
    made = fill(store, count)
    assert store.close()
    return made


def golden_ext(path: Path) -> Settings:
    return golden_settings(
        path, consume_queue_ext_enabled=True, consume_queue_ext_segment_bytes=EXT_BYTES
    )


def test_golden_files_are_what_their_program_makes(tmp_path: Path) -> None:
    write_ext_store(tmp_path / "made")
    assert contents(tmp_path / "made") == contents(GOLDEN)
    assert derived(tmp_path / "made") == derived(GOLDEN)


def test_our_extension_files_are_the_golden_ones_byte_for_byte(tmp_path: Path) -> None:
    write(golden_ext(tmp_path / "ours"))
    assert contents(tmp_path / "ours") == contents(GOLDEN)
    assert derived(tmp_path / "ours") == derived(GOLDEN)


@pytest.mark.parametrize("missing", [(), ("consumequeue",), ("consumequeue", "consumequeue_ext")])
@pytest.mark.parametrize("killed", [False, True])
def test_what_is_made_again_from_the_log_equals_what_was_there(
    tmp_path: Path, missing: tuple[str, ...], killed: bool
) -> None:
    root = tmp_path / "store"
    shutil.copytree(GOLDEN, root)
    shutil.rmtree(root / "index")
    for folder in missing:
        shutil.rmtree(root / folder)
    if killed:
        crashed(root)
    store = MessageStore.open(golden_ext(root))
    assert store.recovery.entry_conflicts == 0
    assert store.close()
    assert derived(root) == derived(GOLDEN)


def test_a_reput_that_reads_the_log_gives_the_same_bytes(tmp_path: Path) -> None:
    filled(tmp_path / "fed")
    store = extended(tmp_path / "read")
    store.log.stop_feeding()
    fill(store, 40)
    assert store.close()
    assert derived(tmp_path / "fed") == derived(tmp_path / "read")


def test_filters_go_by_the_extension_s_tags_code(tmp_path: Path) -> None:
    made = filled(tmp_path)
    store = extended(tmp_path)
    assert tagged(store, "T1") == made[1::3]
    assert tagged(store, "T0", "T2") == [body for n, body in enumerate(made) if n % 3 != 1]
    assert tagged(store, "other") == []
    assert bodies(store) == made
    assert store.close()


def test_arrivals_and_delivery_times_are_what_they_are_without_extensions(tmp_path: Path) -> None:
    arrivals = []
    for option in (True, False):
        settings = ext_settings(tmp_path / str(option), consume_queue_ext_enabled=option)
        store = MessageStore.open(settings, clock=ManualClock())
        store.log.put(message(tags="T1"))
        store.log.put(message(b"later", "SCHEDULE_TOPIC_XXXX", 2, more={"DELAY": "3"}))
        arrivals.append(store.dispatch())
        if option:
            queue = store._queues.get("SCHEDULE_TOPIC_XXXX", 2)
            assert queue is not None
            (stored,) = struct.iter_unpack(">qiq", queue.read_entries(0, 1))
            (resolved,) = struct.iter_unpack(">qiq", queue.read_coded(0, 1))
            assert (stored[2], resolved[2]) == (LOWEST, FIRST_MS + 10_000)
            assert resolved[:2] == stored[:2]
        assert store.close()
    assert arrivals[0] == arrivals[1]
    assert arrivals[0][1].tags_code == FIRST_MS + 10_000


def test_an_unfiltered_pull_reads_no_extension(tmp_path: Path) -> None:
    filled(tmp_path)
    files = FaultyFiles(tmp_path)
    store = extended(tmp_path, files)
    before = files.count("read", "consumequeue_ext")
    assert len(bodies(store)) == 40
    assert files.count("read", "consumequeue_ext") == before
    tagged(store, "T1")
    assert before < files.count("read", "consumequeue_ext") < before + 20
    assert store.close()


def test_further_queues_of_a_message_hold_plain_tags_codes(tmp_path: Path) -> None:
    """The reference does so too; with both options the log gives the same again."""
    options = {"multi_dispatch": True, "lmq_enabled": True}
    store = extended(tmp_path, **options)
    for n in range(3):
        store.log.put(message(b"%d" % n, tags="T1", more={"INNER_MULTI_DISPATCH": "%LMQ%x"}))
    store.dispatch()
    assert store.close()
    code = tag_code("T1")
    units = struct.iter_unpack(">qiq", queue_file(tmp_path, "%LMQ%x").read_bytes()[:60])
    assert [unit[2] for unit in units] == [code] * 3
    units = struct.iter_unpack(">qiq", queue_file(tmp_path).read_bytes()[:60])
    assert [unit[2] - LOWEST for unit in units] == [0, 20, 40]
    before = derived(tmp_path)
    assert not (tmp_path / "consumequeue_ext" / "%LMQ%x").exists()
    for folder in ("consumequeue", "consumequeue_ext"):
        shutil.rmtree(tmp_path / folder)
    assert extended(tmp_path, **options).close()
    assert derived(tmp_path) == before


# --- what is missing or damaged -------------------------------------------------------------------


def test_without_its_extension_a_message_passes_every_filter(tmp_path: Path) -> None:
    made = filled(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue_ext")
    store = extended(tmp_path)
    assert tagged(store, "other") == made
    # And what comes now is filtered by its own tags, not lost behind those of another.
    for n in range(40):
        store.log.put(message(b"new%d" % n, tags=f"N{n % 2}"))
    store.dispatch()
    assert tagged(store, "N1") == made + [b"new%d" % n for n in range(1, 40, 2)]
    assert store.close()
    store = extended(tmp_path)
    assert tagged(store, "N1") == made + [b"new%d" % n for n in range(1, 40, 2)]
    assert store.close()


def test_a_damaged_extension_lets_its_message_pass(tmp_path: Path) -> None:
    made = filled(tmp_path)
    path = tmp_path / "consumequeue_ext" / "Orders" / "0" / f"{84:020d}"
    flip(path, 21, 0x40)  # the size of unit 5
    store = extended(tmp_path)
    assert tagged(store, "T1") == [made[n] for n in range(40) if n % 3 == 1 or n == 5]
    assert store.close()


def test_a_tags_code_that_is_none_lets_its_message_pass(tmp_path: Path) -> None:
    made = filled(tmp_path)
    path = tmp_path / "consumequeue_ext" / "Orders" / "0" / f"{84:020d}"
    flip(path, 23, 0x40)  # a high byte of unit 5's tags code
    store = extended(tmp_path)
    assert made[5] in tagged(store, "other")
    assert store.close()


def test_with_the_option_off_again_messages_with_addresses_pass_every_filter(
    tmp_path: Path,
) -> None:
    made = filled(tmp_path, 20)
    store = MessageStore.open(small_settings(tmp_path))
    plain = [b"plain%d" % n for n in range(9)]
    for n, body in enumerate(plain):
        store.log.put(message(body, tags=f"T{n % 3}"))
    store.dispatch()
    assert tagged(store, "T1") == made + plain[1::3]
    assert store.close()
    store = extended(tmp_path)
    assert tagged(store, "T1") == made[1::3] + plain[1::3]
    store.log.put(message(b"last", tags="T1"))
    store.dispatch()
    assert tagged(store, "T1") == [*made[1::3], *plain[1::3], b"last"]
    assert store.close()
    before = derived(tmp_path)
    store = extended(crashed(tmp_path))
    assert tagged(store, "T1") == [*made[1::3], *plain[1::3], b"last"]
    assert derived(tmp_path) == before
    assert store.close()


@pytest.mark.parametrize("enabled", [True, False])
def test_a_rebuild_at_rest_makes_queues_and_extensions_together(
    tmp_path: Path, enabled: bool
) -> None:
    made = filled(tmp_path)
    before = derived(tmp_path)
    # An orphan in front: rebuilt entries have other addresses than the old entries.
    queue = queue_file(tmp_path)
    queue.write_bytes(queue.read_bytes()[:20] + queue.read_bytes()[40:] + bytes(20))
    settings = ext_settings(tmp_path, consume_queue_ext_enabled=enabled)
    with StoreAtRest(settings, ("consume_queue_ext_enabled",), None) as rest:
        rebuild(rest, index=False)
    if enabled:
        assert derived(tmp_path) == before
    else:
        assert not (tmp_path / "consumequeue_ext").exists()
    store = MessageStore.open(settings)
    assert tagged(store, "T1") == made[1::3]
    assert store.close()


@pytest.mark.parametrize("lost", range(0, 24, 3))
def test_extensions_ahead_of_their_queue_are_written_again_the_same(
    tmp_path: Path, lost: int
) -> None:
    filled(tmp_path, 24)
    before = derived(tmp_path)
    for start in range(0, 480, 200):
        path = queue_file(tmp_path, start=start)
        data = path.read_bytes()
        kept = max(0, min(200, lost * 20 - start))
        path.write_bytes(data[:kept] + bytes(200 - kept))
    store = extended(crashed(tmp_path))
    assert store.close()
    assert derived(tmp_path) == before


def test_a_recovery_that_has_to_begin_again_extends_each_message_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    clock = ManualClock()
    store = MessageStore.open(ext_settings(tmp_path, index_enabled=False), clock=clock)
    for n in range(40):
        clock.time_ms += 1000
        store.log.put(message(b"%d" % n + b"." * 100))
    store.dispatch()
    assert store.close()
    before = derived(tmp_path)
    for start in range(200, 800, 200):  # what the checkpoint takes for synced is not there
        queue_file(tmp_path, start=start).unlink()
    (tmp_path / "abort").touch()
    as_copy(tmp_path)
    (tmp_path / "offsets").unlink()
    store = extended(tmp_path, index_enabled=False)
    assert "queue lags behind" in caplog.text
    assert store.close()
    assert derived(tmp_path) == before


@pytest.mark.parametrize("lost", range(8))
def test_extensions_behind_their_queue_give_no_address_twice(tmp_path: Path, lost: int) -> None:
    """A power cut keeps what was synced, and the queue may have been, its extensions not."""
    made = filled(tmp_path, 8)
    files = sorted((tmp_path / "consumequeue_ext" / "Orders" / "0").iterdir())
    for number, path in enumerate(files):
        kept = max(0, min(4, lost - 4 * number)) * 20
        path.write_bytes(path.read_bytes()[:kept] + bytes(84 - kept))
    store = extended(crashed(tmp_path))
    for n in range(8):
        store.log.put(message(b"new%d" % n, tags=f"N{n % 2}"))
    store.dispatch()
    # Lost extensions let their messages pass, the others do their work.
    unknown = made[lost:]
    assert tagged(store, "T1") == [b for n, b in enumerate(made) if n % 3 == 1 or b in unknown]
    assert tagged(store, "N1") == unknown + [b"new%d" % n for n in range(1, 8, 2)]
    assert store.close()


def test_extensions_of_messages_that_a_crash_took_are_gone(tmp_path: Path) -> None:
    running = tmp_path / "running"
    store = extended(running)
    fill(store, 20)
    places = [one.log_offset for one in read_all(store)]
    root = crashed(kill_image(running, tmp_path / "killed"))
    store.close()
    log = log_segment(root)
    log.write_bytes(log.read_bytes()[: places[10]] + bytes(SEGMENT - places[10]))
    store = extended(root)
    assert len(bodies(store)) == 10
    expected = tree(running, "consumequeue_ext")
    third = f"consumequeue_ext/Orders/0/{2 * 84:020d}"
    assert sorted(tree(root, "consumequeue_ext")) == sorted(expected)[:3]
    assert tree(root, "consumequeue_ext")[third] == expected[third][:40] + bytes(44)
    store.log.put(message(b"new", tags="N"))
    store.dispatch()
    assert tagged(store, "N") == [b"new"]
    assert store.close()


def test_after_a_crash_extensions_are_read_from_the_disk_not_from_the_cache(tmp_path: Path) -> None:
    filled(tmp_path)
    files = FaultyFiles(tmp_path)
    store = extended(crashed(tmp_path), files)
    assert files.count("sync", "consumequeue_ext") == 2
    assert store.close()


def test_a_killed_store_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    running = tmp_path / "running"
    store = extended(running)
    fill(store, 10)
    store.log.put(message(b"not dispatched", tags="T1"))
    root = kill_image(running, tmp_path / "killed")
    store.dispatch()
    assert store.close()
    store = extended(root)
    assert store.close()
    assert derived(root) == derived(running)


def test_a_file_of_another_size_stops_the_start(tmp_path: Path) -> None:
    filled(tmp_path)
    before = derived(tmp_path)
    with pytest.raises(StoreSizeMismatch, match="mappedFileSizeConsumeQueueExt"):
        extended(tmp_path, consume_queue_ext_segment_bytes=2 * 84)
    assert derived(tmp_path) == before


def test_strays_among_the_files_are_named_and_half_made_ones_removed(tmp_path: Path) -> None:
    filled(tmp_path, 4)
    folder = tmp_path / "consumequeue_ext" / "Orders" / "0"
    (folder / "notes.txt").write_text("mine")
    (folder / f"{85:020d}").write_bytes(bytes(84))
    (folder / f"{84:020d}").touch()
    store = extended(tmp_path)
    assert {str(folder / "notes.txt"), str(folder / f"{85:020d}")} == set(
        store.recovery.foreign_files
    )
    fill(store, 8)
    assert len(tagged(store, "T1")) == 1 + 3
    assert store.close()


# --- full disks, deleting, expiring, syncing ------------------------------------------------------


@pytest.mark.parametrize("operation", ["write", "create", "set_size"])
@pytest.mark.parametrize("nth", range(1, 6))
def test_a_full_disk_while_extending_refuses_and_is_made_good(
    tmp_path: Path, operation: str, nth: int
) -> None:
    files = FaultyFiles(tmp_path)
    store = extended(tmp_path, files)
    files.fail(operation, errno.ENOSPC, "consumequeue_ext", nth=nth, times=1)
    made = []
    for n in range(20):
        made.append(b"%d" % n)
        store.log.put(message(made[-1], tags=f"T{n % 3}"))
        store.dispatch()
        store.dispatch()
    assert store.not_writable_reason() is None
    assert bodies(store) == made
    assert tagged(store, "T1") == made[1::3]
    assert store.close()


def test_a_round_that_failed_for_one_queue_is_made_good_for_all(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    store = extended(tmp_path, files)
    for n in range(30):
        store.log.put(message(b"%d" % n, queue_id=n % 3, tags=f"T{n % 2}"))
    for _ in range(2):  # fed, then read from the log
        files.fail("write", errno.ENOSPC, "consumequeue_ext/Orders/1", nth=2, times=1)
        assert store.dispatch() == []
    assert len(store.dispatch()) == 30
    for queue_id in range(3):
        expected = [b"%d" % n for n in range(30) if n % 3 == queue_id and n % 2]
        assert tagged(store, "T1", queue_id=queue_id) == expected
    assert store.close()


def test_a_failed_write_of_an_extension_breaks_the_store(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    store = extended(tmp_path, files)
    files.fail("write", errno.EIO, "consumequeue_ext")
    store.log.put(message())
    assert store.dispatch() == []
    assert "Input/output error" in (store.not_writable_reason() or "")
    assert not store.close()


@pytest.mark.parametrize("enabled", [True, False])
def test_deleting_a_topic_removes_its_extensions(tmp_path: Path, enabled: bool) -> None:
    filled(tmp_path)
    store = extended(tmp_path, consume_queue_ext_enabled=enabled)
    tagged(store, "T1")
    store.delete_topic("Orders")
    assert tree(tmp_path, "consumequeue_ext") == {}
    assert len(store._queues.cache) == 0
    fill(store, 10)
    assert len(tagged(store, "T1")) == 3
    assert store.close()


def test_extensions_of_a_queue_whose_files_are_gone_are_replaced(tmp_path: Path) -> None:
    filled(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue" / "Orders")
    shutil.rmtree(tmp_path / "commitlog")
    for name in ("offsets", "checkpoint"):
        (tmp_path / name).unlink()
    store = extended(tmp_path)
    made = fill(store, 9)
    assert tagged(store, "T1") == made[1::3]
    assert store.close()
    store = extended(tmp_path)
    assert tagged(store, "T1") == made[1::3]
    assert store.close()


def first_extension(folder: Path) -> int:
    """The name of the first file, a place in the queue's extensions."""
    return min(int(path.name) for path in folder.iterdir())


def test_extensions_before_a_queue_s_first_message_are_removed_by_the_flush(tmp_path: Path) -> None:
    made = filled(tmp_path)
    store = extended(tmp_path)
    queue = store._queues.get("Orders", 0)
    assert isinstance(queue, ExtendedQueue)
    queue.correct_min_offset(read_all(store)[22].log_offset)
    folder = tmp_path / "consumequeue_ext" / "Orders" / "0"
    store._queues.flush(0)
    # Message 22 is in the sixth file.
    wait_until(lambda: first_extension(folder) == 5 * 84)
    assert tagged(store, "T1") == made[22::3]
    assert store.close()


@pytest.mark.parametrize("left", [True, False])
def test_extensions_of_expired_messages_go_with_them(tmp_path: Path, left: bool) -> None:
    clock = Hours()
    options = {"consume_queue_ext_enabled": True, "consume_queue_ext_segment_bytes": 84}
    store = open_store(tmp_path, clock, delete_hours=ALL_HOURS, **options)
    fill(store, 24)
    while len(names(store)) < 4:
        store.log.put(message(b"x" * 200, topic="Orders" if left else "Others", tags="T1"))
    settle(store)
    clock.time_ms += 96 * HOUR_MS
    run(store)
    store._queues.flush(0)
    folder = tmp_path / "consumequeue_ext" / "Orders" / "0"
    first = store.min_offset("Orders", 0) // 4 * 84 if left else 5 * 84
    # The store's flush thread may be removing the others just now.
    wait_until(lambda: first_extension(folder) == first)
    store.log.put(message(b"new", tags="T1"))
    store.dispatch()
    assert tagged(store, "T1")[-1] == b"new"
    assert len(tagged(store, "T1")) == len(bodies(store))
    assert store.close()


def test_extensions_are_synced_with_their_queues(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path / "store")
    store = extended(tmp_path / "store", files)
    fill(store, 20)
    store._queues.flush(0)
    files.power_cut(tmp_path / "cut")
    assert derived(tmp_path / "cut") == derived(tmp_path / "store")
    assert len(tree(tmp_path / "cut", "consumequeue_ext")) == 5
    assert store.close()
