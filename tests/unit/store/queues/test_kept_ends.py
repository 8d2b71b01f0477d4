"""The ends of each queue that a start keeps are given back only while they are still so."""

from aerobee.store.disk.descriptors import QueueFile
from aerobee.store.queues.kept_ends import KeptEnds
from aerobee.store.queues.queue_view import ENTRY_BYTES

SIZE = 100 * ENTRY_BYTES


def entries(count: int, first: int) -> bytes:
    return b"".join([number.to_bytes(ENTRY_BYTES, "big") for number in range(first, first + count)])


def test_what_is_kept_whole_is_found_and_nothing_else() -> None:
    kept = KeptEnds(2)
    first, last, other = (QueueFile("q", number * SIZE, SIZE) for number in range(3))
    one = kept.add([(last, 150, entries(8, 150)), (first, 3, entries(5, 3))])
    two = kept.add([(first, 3, entries(8, 103))])
    assert kept.find(one, first, 3 * ENTRY_BYTES, 5 * ENTRY_BYTES) == entries(5, 3)
    assert kept.find(one, first, 4 * ENTRY_BYTES, 2 * ENTRY_BYTES) == entries(2, 4)
    assert kept.find(one, last, 157 * ENTRY_BYTES, ENTRY_BYTES) == entries(1, 157)
    assert kept.find(two, first, 3 * ENTRY_BYTES, ENTRY_BYTES) == entries(1, 103)
    assert kept.find(one, first, 3 * ENTRY_BYTES, 6 * ENTRY_BYTES) is None
    assert kept.find(one, first, 2 * ENTRY_BYTES, ENTRY_BYTES) is None
    assert kept.find(one, last, 158 * ENTRY_BYTES, ENTRY_BYTES) is None
    assert kept.find(one, other, 150 * ENTRY_BYTES, ENTRY_BYTES) is None
    assert kept.find(two, last, 150 * ENTRY_BYTES, ENTRY_BYTES) is None


def test_file_that_was_written_since_is_read_again() -> None:
    kept = KeptEnds(1)
    file = QueueFile("q", 0, SIZE)
    at = kept.add([(file, 0, entries(8, 0))])
    file.writes += 1
    assert kept.find(at, file, 0, ENTRY_BYTES) is None
