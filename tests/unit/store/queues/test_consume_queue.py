"""Claims about the entries of a queue: where they stand, how they are found, how files are kept."""

import random
import struct
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.store.disk.descriptors import DescriptorCache, QueueFile
from aerobee.store.disk.files import Files
from aerobee.store.errors import StoreSizeMismatch
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.queue_table import ConsumeQueueTable
from aerobee.store.queues.queue_view import PRE_BLANK
from aerobee.store.recovery.cross_check import _holes
from tests.faulty_files import FaultyFiles

FILE = 100  # five units


def unit(number: int, step: int = 1000) -> bytes:
    return struct.pack(">qiq", number * step, 91 + number, number)


def units(first: int, count: int) -> bytes:
    return b"".join(unit(number) for number in range(first, first + count))


@pytest.fixture
def table(tmp_path: Path) -> Iterator[ConsumeQueueTable]:
    table = ConsumeQueueTable(Files(), str(tmp_path), FILE)
    yield table
    table.close()


def reload(table: ConsumeQueueTable, tmp_path: Path) -> ConsumeQueue:
    table.flush(0)
    table.close()
    again = ConsumeQueueTable(Files(), str(tmp_path), FILE)
    again.load()
    queue = again.get("T", 7)
    assert queue is not None
    return queue


def on_disk(tmp_path: Path) -> dict[int, bytes]:
    return {int(path.name): path.read_bytes() for path in sorted((tmp_path / "T/7").iterdir())}


def test_units_roll_from_file_to_file(table: ConsumeQueueTable, tmp_path: Path) -> None:
    queue = table.obtain("T", 7)
    for first, count in ((0, 4), (4, 1), (5, 1), (6, 13)):
        queue.write_entries(first, units(first, count))
        assert queue.max_offset == first + count
    files = on_disk(tmp_path)
    assert list(files) == [0, 100, 200, 300]
    assert b"".join(files.values()) == units(0, 19) + bytes(20)
    assert queue.read_entries(3, 10) == units(3, 2)
    assert queue.read_entries(17, 10) == units(17, 2)
    assert queue.read_entries(19, 1) == queue.read_entries(-1, 1) == b""
    assert queue.next_file_offset(7) == 10


def test_slot_is_queue_offset_times_twenty_and_gaps_are_pre_blank(
    table: ConsumeQueueTable, tmp_path: Path
) -> None:
    queue = table.obtain("T", 7)
    queue.write_entries(0, unit(0))
    queue.write_entries(8, unit(8))
    data = b"".join(on_disk(tmp_path).values())
    assert data == unit(0) + PRE_BLANK * 7 + unit(8) + bytes(20)
    assert queue.entry(3) is None
    assert queue.is_pre_blank(3)
    assert queue.entry(8) == (8000, 99, 8)
    assert queue.max_offset == 9


def test_queue_whose_first_message_is_not_its_first_offset_begins_there(
    table: ConsumeQueueTable, tmp_path: Path
) -> None:
    queue = table.obtain("T", 7)
    queue.write_entries(13, units(13, 2))
    assert on_disk(tmp_path) == {200: PRE_BLANK * 3 + units(13, 2)}
    assert (queue.min_offset, queue.max_offset, queue.first_offset) == (13, 15, 10)


def test_files_missing_at_the_front_are_made_again(
    table: ConsumeQueueTable, tmp_path: Path
) -> None:
    queue = table.obtain("T", 7)
    queue.write_entries(0, units(0, 12))
    table.flush(0)
    (tmp_path / "T/7" / f"{0:020d}").unlink()
    queue = reload(table, tmp_path)
    assert queue.first_offset == 5
    queue.write_entries(2, units(2, 3))
    assert queue.max_offset == 12
    assert b"".join(on_disk(tmp_path).values()) == PRE_BLANK * 2 + units(2, 10) + bytes(60)


def test_loading_finds_the_end_behind_the_last_slot_in_use(
    table: ConsumeQueueTable, tmp_path: Path
) -> None:
    queue = table.obtain("T", 7)
    queue.write_entries(0, struct.pack(">qiq", 0, 91, 0) * 6)
    assert reload(table, tmp_path).max_offset == 6


def test_file_of_another_size_is_refused(table: ConsumeQueueTable, tmp_path: Path) -> None:
    table.obtain("T", 7).write_entries(0, unit(0))
    table.close()
    with pytest.raises(StoreSizeMismatch, match="consume_queue_segment_bytes"):
        ConsumeQueueTable(Files(), str(tmp_path), 200).load()


def test_zeroing_keeps_what_is_before_and_removes_files_behind(
    table: ConsumeQueueTable, tmp_path: Path
) -> None:
    queue = table.obtain("T", 7)
    queue.write_entries(0, units(0, 19))
    queue.zero_from(7)
    assert on_disk(tmp_path) == {0: units(0, 5), 100: units(5, 2) + bytes(60)}
    assert queue.max_offset == 7
    queue.write_entries(7, units(7, 4))
    assert reload(table, tmp_path).max_offset == 11
    queue.zero_from(0)
    assert on_disk(tmp_path) == {0: bytes(100)}


@pytest.mark.parametrize("seed", range(5))
def test_search_by_log_offset_passes_over_blanks(
    table: ConsumeQueueTable, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    queue = table.obtain("T", 7)
    first = rng.randrange(12)
    named = sorted(rng.sample(range(first, first + 60), 25))
    for number in named:
        queue.write_entries(number, unit(number))
    assert queue.min_offset == named[0]
    for log_offset in [-1, 0, *range(500, 80_000, 997)]:
        expected = next((n for n in named if n * 1000 >= log_offset), queue.max_offset)
        assert queue.first_at(log_offset) == expected, (seed, log_offset, named)
    queue.correct_min_offset(named[10] * 1000 - 1)
    assert queue.min_offset == named[10]
    queue.correct_min_offset(10**9)
    assert queue.min_offset == queue.max_offset


def test_holes_are_found_and_blanks_are_none(table: ConsumeQueueTable) -> None:
    queue = table.obtain("T", 7)
    queue.write_entries(3, units(3, 4))
    queue.write_entries(12, units(12, 8))
    assert list(_holes(queue, 0)) == []
    table.cache.fd(queue.segments[2])
    Files().write(queue.segments[2].fd, 60, bytes(20))
    assert list(_holes(queue, 0)) == [13]


def test_asking_for_a_queue_leaves_no_trace(table: ConsumeQueueTable, tmp_path: Path) -> None:
    assert table.get("Nobody", 0) is None
    table.obtain("Somebody", 0)
    assert list(tmp_path.iterdir()) == []


def test_few_descriptors_serve_many_files(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    cache = DescriptorCache(files, capacity=4)
    made: list[QueueFile] = []
    for number in range(12):
        file = QueueFile(str(tmp_path), number, FILE)
        cache.create(file, FILE)
        files.write(cache.fd(file), 0, unit(number))
        cache.wrote(file, 20)
        made.append(file)
        assert len(cache) <= 4
    for number, file in enumerate(made):
        assert files.read(cache.fd(file), 0, 20) == unit(number)
        assert len(cache) <= 4
    # Nobody was closed before its writes were synced.
    assert all(file.synced_writes == file.writes for file in made[:8])
    for file in made:
        cache.sync(file)
    cache.close()
    assert len(cache) == 0


class CountedLooks(OrderedDict[QueueFile, None]):
    """Open files, counting how many are looked at."""

    looks = 0

    def __iter__(self) -> Iterator[QueueFile]:
        for file in super().__iter__():
            self.looks += 1
            yield file


def test_making_room_looks_at_a_file_or_two_however_many_are_open(tmp_path: Path) -> None:
    files = Files()
    for number in range(400):
        Path(QueueFile(str(tmp_path), number, FILE).path).touch()
    cache = DescriptorCache(files, capacity=300)
    cache._open = opened = CountedLooks()
    for _ in range(3):
        for number in range(400):
            cache.fd(QueueFile(str(tmp_path), number, FILE))
            assert len(cache) <= 300
    assert opened.looks < 3 * 1200
    cache.close()


def test_flush_takes_files_with_enough_pages_only(tmp_path: Path) -> None:
    table = ConsumeQueueTable(Files(), str(tmp_path), 40_000)
    few, many = table.obtain("T", 0), table.obtain("T", 1)
    few.write_entries(0, units(0, 10))
    many.write_entries(0, units(0, 450))
    assert table.flush(2) == 1
    assert [file.path for file in table.cache.dirty] == [few.segments[0].path]
    assert table.flush(2) == 0
    assert table.flush(0) == 1
    assert table.flush(0) == 0
    table.close()
