"""Claims about entries that the scrub or a read mended: a kill and a power cut bring none back."""

from pathlib import Path

import pytest

from aerobee.store.background.scrub import scrub
from aerobee.store.flush.services import FlushService
from aerobee.store.message_store import MessageStore
from tests.faulty_files import FaultyFiles
from tests.unit.store.background.scrub.test_scrub import Stopped, scrubbed, until
from tests.unit.store.support import read_all, small_settings

NEVER_MS = 3_600_000


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "FIRST_AFTER_S", 0.0)


def damaged(root: Path) -> tuple[Stopped, tuple[int, int, int]]:
    """A stopped store with one wrong entry, in a file that is full, and the right entry."""
    stopped = Stopped(root)
    record = stopped.records[3]
    right = stopped.unit_of(3)
    stopped.set_unit(record.queue_id, record.queue_offset, (right[0] + 8, right[1], right[2]))
    return stopped, right


def on_disk(files: FaultyFiles, root: Path, stopped: Stopped) -> tuple[int, int, int]:
    """The entry as a power cut would leave it."""
    files.power_cut(root)
    image, stopped.root = stopped.root, root
    try:
        return stopped.unit_of(3)
    finally:
        stopped.root = image


def test_the_next_ordinary_round_syncs_a_mended_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FlushService, "start", lambda _service: None)
    stopped, right = damaged(tmp_path / "store")
    files = FaultyFiles(tmp_path / "store")
    store = MessageStore.open(
        small_settings(tmp_path / "store", scrub_bytes_per_second=1 << 40), files
    )
    scrubbed(store, 1)
    assert store.stats.repaired_entries == 1
    assert stopped.unit_of(3) == right
    assert on_disk(files, tmp_path / "before", stopped) != right
    assert store._queue_flusher.flush(2)
    assert on_disk(files, tmp_path / "after", stopped) == right
    store.close()


def test_the_scrub_does_not_wait_for_that_round(tmp_path: Path) -> None:
    stopped, right = damaged(tmp_path / "store")
    files = FaultyFiles(tmp_path / "store")
    settings = small_settings(
        tmp_path / "store",
        scrub_bytes_per_second=1 << 40,
        consume_queue_flush_interval_ms=NEVER_MS,
        consume_queue_flush_thorough_interval_ms=NEVER_MS,
    )
    store = MessageStore.open(settings, files)
    scrubbed(store, 1)
    until(lambda: files.count("data_sync", "/consumequeue/"), "a sync of what was mended")
    until(lambda: not store._queues.cache.rewritten, "no mended entry is left unsynced")
    assert store._queue_flusher.flush(2)  # the round that did it has ended
    assert on_disk(files, tmp_path / "image", stopped) == right
    store.close()


def test_killed_behind_the_sync_and_cut_off_the_entry_stays_mended(tmp_path: Path) -> None:
    stopped, right = damaged(tmp_path / "store")
    files = FaultyFiles(tmp_path / "store")
    store = MessageStore.open(
        small_settings(tmp_path / "store", scrub_bytes_per_second=1 << 40), files
    )
    scrubbed(store, 1)
    until(lambda: on_disk(files, tmp_path / "seen", stopped) == right, "a sync of the entry")
    files.power_cut(tmp_path / "image")
    store.close()
    again = MessageStore.open(small_settings(tmp_path / "image", scrub_bytes_per_second=0))
    assert [one.body for one in read_all(again, queue_id=0)] == stopped.bodies[::3]
    assert again.stats.damaged_reads == again.stats.lookup_bytes == 0
    again.close()
