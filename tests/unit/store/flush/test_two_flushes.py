"""Claims about two rounds of the queue flush at once: the flush thread's, and another caller's;
and about one beside a queue file that is synced to make room for another.

The disk begins the second round, on a thread of its own, in the middle of a sync of the first.
"""

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from aerobee.store.flush.services import FlushService
from aerobee.store.message_store import MessageStore
from tests.faulty_files import FaultyFiles
from tests.unit.store.support import fill, small_settings

# A second round that waits for the first, as it should, waits at most so long inside its sync.
_LET_RUN_S = 0.2


class MeetingFiles(FaultyFiles):
    """Calls `meet` on another thread during the first sync of a file that has `part` in its path.

    When the other thread has ended or waits for this one, the sync goes on, or with `fails` fails.
    """

    part = ""
    fails = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.meet: Callable[[], object] | None = None
        self.other: threading.Thread | None = None
        self.ended_within = False

    def data_sync(self, fd: int) -> None:
        if self.meet is not None and self.part in self._paths[fd]:
            self.other, self.meet = threading.Thread(target=self.meet), None
            self.other.start()
            self.other.join(_LET_RUN_S)
            self.ended_within = not self.other.is_alive()
            if self.fails:
                raise OSError(errno.EIO, "Input/output error")
        super().data_sync(fd)


@pytest.fixture
def store_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[MessageStore, MeetingFiles]:
    """A store without flush threads, with a full index file and a second one, nothing synced."""
    monkeypatch.setattr(FlushService, "start", lambda _service: None)
    files = MeetingFiles(tmp_path)
    store = MessageStore.open(small_settings(tmp_path), files)
    fill(store, 50)
    assert store._sync.sync()
    return store, files


def test_a_full_index_file_is_taken_out_by_one_of_two_flushes(
    store_and_files: tuple[MessageStore, MeetingFiles],
) -> None:
    store, files = store_and_files
    index = store._parts.index
    assert index is not None
    files.part = "/index/"
    files.meet = lambda: index.flush(all_files=False)
    index.flush(all_files=False)
    assert files.other is not None
    files.other.join()
    assert index._sealed == []
    assert files.count("data_sync", "/index/") == 1
    store.close()


@pytest.mark.parametrize("part", ["/index/", "/consumequeue/"])
def test_nothing_is_called_synced_while_another_round_waits_for_the_disk(
    store_and_files: tuple[MessageStore, MeetingFiles], part: str
) -> None:
    store, files = store_and_files

    def second_round() -> None:
        assert store._queue_flusher.flush(0)

    files.part, files.meet = part, second_round
    assert store._queue_flusher.flush(0)
    assert not files.ended_within
    assert files.other is not None
    files.other.join()
    assert store._offsets.synced_to == store.dispatched
    store.close()


def test_nothing_is_called_synced_while_a_file_is_synced_to_be_closed(
    store_and_files: tuple[MessageStore, MeetingFiles],
) -> None:
    store, files = store_and_files
    synced: list[bool] = []
    files.part = "/consumequeue/"
    files.meet = lambda: synced.append(store._queue_flusher.flush(0))
    assert store._queues.cache._evict()
    assert not files.ended_within
    assert files.other is not None
    files.other.join()
    assert synced == [True]
    assert store._offsets.synced_to == store.dispatched
    store.close()


def test_a_failed_sync_of_a_file_that_is_to_be_closed_ends_the_flush_beside_it(
    store_and_files: tuple[MessageStore, MeetingFiles],
) -> None:
    store, files = store_and_files
    before = store._offsets.synced_to
    synced: list[bool] = []
    files.part = "/consumequeue/"
    files.meet = lambda: synced.append(store._queue_flusher.flush(0))
    files.fails = True
    with pytest.raises(OSError, match="Input/output"):
        store._queues.cache._evict()
    assert files.other is not None
    files.other.join()
    assert synced == [False]
    assert store._offsets.synced_to == before
    assert not store.close()
