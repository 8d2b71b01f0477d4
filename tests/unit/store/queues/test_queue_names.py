"""Claims about a queue's newest file, whose name is synced by another thread than makes it."""

from pathlib import Path

import pytest

from aerobee.store.disk.files import Files
from aerobee.store.message_store import MessageStore
from tests.faulty_files import FaultyFiles
from tests.unit.store.support import (
    QUEUE_SEGMENT,
    SEGMENT,
    adopt,
    bodies,
    fill,
    kill_image,
    log_segment,
    message,
    queue_file,
    small_settings,
)


class FlushedMeanwhile(FaultyFiles):
    """The flush thread syncs directories just before each file of a queue is made."""

    store: MessageStore | None = None

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        if create and "/consumequeue" in path and self.store is not None:
            self.store._parts.queues.flush(1000)
        return super().open(path, create=create, read_only=read_only)


@pytest.mark.parametrize("folder", ["consumequeue", "consumequeue_ext"])
def test_name_of_a_file_made_while_names_are_synced_is_synced_later(
    tmp_path: Path, folder: str
) -> None:
    root = tmp_path / "store"
    root.mkdir()
    files = FlushedMeanwhile(root)
    settings = small_settings(
        root,
        consume_queue_ext_enabled=folder == "consumequeue_ext",
        consume_queue_flush_interval_ms=60_000,
    )
    files.store = store = MessageStore.open(settings, files)
    fill(store, 25)
    assert store._queue_flusher.flush(0)
    files.power_cut(tmp_path / "cut")
    there = sorted(path.name for path in (root / folder / "Orders" / "0").iterdir())
    assert len(there) > (2 if folder == "consumequeue" else 0)
    kept = sorted(path.name for path in (tmp_path / "cut" / folder / "Orders" / "0").iterdir())
    assert kept == there
    files.store = None
    store.close()


@pytest.mark.parametrize("known", [True, False], ids=["offsets file", "checkpoint"])
def test_queue_that_ends_before_the_log_begins_loses_nothing_of_the_log(
    tmp_path: Path, known: bool
) -> None:
    """Its last unit is of a segment that was deleted: there is nothing before it to read again."""
    store = MessageStore.open(small_settings(tmp_path / "running", flush_disk_type="SYNC_FLUSH"))
    made = [b"%04d" % number + b"." * 100 for number in range(60)]
    starts = []
    for body in made:
        put = store.log.put(message(body))
        starts.append(put.log_offset)
        assert store.wait_durable(put.end, 30)
        store.dispatch()
    root = kill_image(tmp_path / "running", tmp_path / "image")
    store.close()
    last = starts[-1] // SEGMENT * SEGMENT
    first_kept = next(number for number, start in enumerate(starts) if start >= last)
    for start in range(0, last, SEGMENT):
        log_segment(root, start).unlink()
    # The queue's last files are gone, and with them entries of the deleted segment.
    units = QUEUE_SEGMENT // 20
    for start in range(0, 20 * len(made), QUEUE_SEGMENT):
        if start // 20 + units > first_kept - 3:
            queue_file(root, start=start).unlink(missing_ok=True)
    if known:
        adopt(root, other_boot=True)
    store = MessageStore.open(small_settings(root), AfterPowerCut())
    assert bodies(store) == made[first_kept:]
    assert store.log.put(message(b"next")).queue_offset == len(made)
    store.close()


class AfterPowerCut(Files):
    def made_and_left(self, path: str) -> bool:
        return False
