"""Faults of the reference that must not come over (reliability.md 2) and that no other test holds.

The table of all of them, with their tests, begins tests/TRACK_RECORD.md.
"""

import errno
import threading
from pathlib import Path

import pytest

from aerobee.store.disk.files import Files
from aerobee.store.message_store import MessageStore
from aerobee.store.segments.mapped_file_queue import MappedFileQueue
from aerobee.store.segments.paths import LogPaths
from tests.faulty_files import FaultyFiles
from tests.unit.store.support import (
    FIRST_MS,
    SEGMENT,
    ManualClock,
    adopt,
    bodies,
    fill,
    flip,
    kill_image,
    log_segment,
    message,
    put_until_refused,
    small_settings,
)

HOUR_MS = 3_600_000


@pytest.mark.parametrize("known", [True, False], ids=["offsets file", "checkpoint"])
def test_clock_that_was_set_back_hides_nothing_from_a_recovery(tmp_path: Path, known: bool) -> None:
    """B5: the reference begins where times say that all before is synced."""
    settings = small_settings(
        tmp_path / "running", flush_interval_ms=60_000, consume_queue_flush_interval_ms=60_000
    )
    clock = ManualClock()
    store = MessageStore.open(settings, clock=clock)
    made = fill(store, 30)
    store._sync.sync()
    store._queue_flusher.flush(0)
    clock.time_ms = FIRST_MS - 24 * HOUR_MS
    more = [b"late %d" % number + b"." * 60 for number in range(60)]
    for body in more:
        store.log.put(message(body))
    store._sync.sync()  # synced, and in no queue yet
    root = kill_image(tmp_path / "running", tmp_path / "killed")
    if known:
        adopt(root, other_boot=True)
    store.close()
    store = MessageStore.open(small_settings(root), clock=clock)
    assert bodies(store) == made + more
    store.close()


def test_clean_stop_is_not_claimed_while_dispatch_is_behind(tmp_path: Path) -> None:
    """B9: `abort` goes only when durable, dispatched and written are the same."""
    files = FaultyFiles(tmp_path)
    store = MessageStore.open(small_settings(tmp_path), files)
    made = fill(store, 5)
    files.fail("write", errno.ENOSPC, "consumequeue")
    made += put_until_refused(store)[0]
    assert store.dispatched < store.written
    assert not store.close()
    assert (tmp_path / "abort").exists()
    store = MessageStore.open(small_settings(tmp_path))
    assert bodies(store) == made
    assert store.close()
    assert not (tmp_path / "abort").exists()


def test_no_wrong_segment_is_found_while_the_first_ones_go(tmp_path: Path) -> None:
    """B9: a look-up uses one list from beginning to end."""
    for number in range(40):
        log_segment(tmp_path, number * SEGMENT).parent.mkdir(exist_ok=True)
        log_segment(tmp_path, number * SEGMENT).write_bytes(bytes(SEGMENT))
    directory = str(tmp_path / "commitlog")
    queue = MappedFileQueue(Files(), LogPaths(Files(), (directory,), (), SEGMENT, 1.0), SEGMENT)
    queue.load("size")
    wrong: list[int] = []
    done = threading.Event()

    def look_up() -> None:
        while not done.is_set():
            for log_offset in range(0, 40 * SEGMENT, SEGMENT // 2):
                found = queue.find(log_offset)
                if found is not None and not found.start <= log_offset < found.end:
                    wrong.append(log_offset)

    readers = [threading.Thread(target=look_up) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(39):
        queue.take_front([number * SEGMENT])
        assert queue.find(number * SEGMENT) is None
    done.set()
    for reader in readers:
        reader.join()
    assert wrong == []


def test_dispatch_does_not_read_on_behind_a_record_that_is_wrong(tmp_path: Path) -> None:
    """B18: there is a single position; no bytes behind a record of inconsistent length are
    taken."""
    files = FaultyFiles(tmp_path)
    store = MessageStore.open(small_settings(tmp_path), files)
    made = fill(store, 3)
    files.fail("write", errno.ENOSPC, "consumequeue", times=1)
    ends = [store.log.put(message(b"%06d" % number + b"," * 50)).end for number in range(6)]
    store.dispatch()  # refused: from here on the log is read back
    flip(log_segment(tmp_path), ends[2] + 3, 0x08)  # the length of the fourth record
    files.heal()
    store._sync.sync()
    store.dispatch()
    served = bodies(store)
    assert served[:3] == made
    assert all(body.endswith(b"," * 50) for body in served[3:])
    assert len(served) <= 6
    assert store.not_writable_reason() is not None
    store.close()
