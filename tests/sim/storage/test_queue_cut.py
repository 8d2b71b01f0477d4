"""A cut of a consume queue that a crash breaks off is cut again to the same files, whatever of it
had reached the disk (found by the storage model: a last file without entries came back)."""

import struct

import pytest

from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.queue_table import ConsumeQueueTable
from tests.sim.disk.crash_choices import choices, picks_of
from tests.sim.disk.crash_model import CrashModel, State
from tests.sim.disk.memory_files import MemoryFiles
from tests.sim.disk.recorded_files import RecordedFiles

ROOT = "/store"
DIRECTORY = f"{ROOT}/T/0"
IN_A_FILE = 5
FILE = 20 * IN_A_FILE
#: The log's end: the entry of queue offset n names the log offset 1000 n.
END = 1000


def files_with(first: int, end: int, files: int) -> State:
    """A queue's files, the first of which begins at the queue offset `first`, with entries up to
    the offset `end`; those behind them are empty."""
    state: State = {ROOT: None, f"{ROOT}/T": None, DIRECTORY: None}
    for number in range(files):
        start = first + number * IN_A_FILE
        entries = [
            struct.pack(">qiq", slot * END, 100, 7) if slot < end else bytes(20)
            for slot in range(start, start + IN_A_FILE)
        ]
        state[f"{DIRECTORY}/{start * 20:020d}"] = b"".join(entries)
    return state


def cut(files: MemoryFiles, at: int) -> int:
    """Do as a recovery whose log ends below the entry of the queue offset `at`."""
    table = ConsumeQueueTable(files, ROOT, FILE)
    table.load()
    queue = table.get("T", 0)
    assert isinstance(queue, ConsumeQueue)
    queue.mend_files()
    if queue.max_offset > at:
        queue.zero_from(at)
    table.flush(0)
    number = queue.max_offset
    table.close()
    return number


@pytest.mark.parametrize("first", [0, 10])
@pytest.mark.parametrize(
    ("keep", "entries", "files"),
    [
        (3, 4, 2),  # the last file has nothing to say that there was a cut
        (3, 9, 3),
        (3, 14, 3),
        (IN_A_FILE, 7, 3),  # nothing is to be zeroed in the file that stays
        (IN_A_FILE, 14, 4),
        (0, 4, 2),  # no entry is left: only the files say where numbering goes on
        (0, 7, 3),
    ],
)
def test_a_cut_that_was_broken_off_comes_to_the_same_end(
    first: int, keep: int, entries: int, files: int
) -> None:
    state = files_with(first, first + entries, files)
    recorded = RecordedFiles(ROOT, state)
    assert cut(recorded, first + keep) == first + keep
    expected = recorded.image()
    looked_at = 0
    for place in range(len(recorded.journal) + 1):
        model = CrashModel.at(recorded.start, recorded.journal[:place])
        doubts = model.doubts()
        for choice in choices(doubts):
            again = MemoryFiles(ROOT, model.build(doubts, picks_of(choice, doubts)))
            assert cut(again, first + keep) == first + keep, (place, choice)
            assert again.image() == expected, (place, choice)
            looked_at += 1
    assert looked_at > 10
