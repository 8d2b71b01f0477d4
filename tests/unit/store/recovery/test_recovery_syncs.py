"""Claims about what a recovery syncs before its offsets file says that it is synced.

A killed process leaves bytes with the kernel that nobody has synced. The next start finds them in
place and has nothing to write, so nothing of its own is dirty; a power cut would still take them.
"""

from pathlib import Path

import pytest

from aerobee.store.message_store import MessageStore
from tests.faulty_files import FaultyFiles
from tests.unit.store.support import adopt, fill, kill_image, small_settings, tree

QUEUES = 2


def killed(tmp_path: Path, *, other_boot: bool) -> Path:
    """A store of 30 messages whose queues and index are synced, and 60 more where nothing is."""
    settings = small_settings(
        tmp_path / "running", flush_interval_ms=60_000, consume_queue_flush_interval_ms=60_000
    )
    store = MessageStore.open(settings)
    fill(store, 30, queues=QUEUES)
    store._sync.sync()
    store._queue_flusher.flush(0)
    before = tree(tmp_path / "running", "consumequeue") | tree(tmp_path / "running", "index")
    fill(store, 60, queues=QUEUES)
    store._sync.sync()
    store._offsets.save()
    after = tree(tmp_path / "running", "consumequeue") | tree(tmp_path / "running", "index")
    root = adopt(kill_image(tmp_path / "running", tmp_path / "killed"), other_boot=other_boot)
    store.close()
    changed = [name for name, data in after.items() if before.get(name) != data]
    assert len(changed) > 2 * QUEUES
    (tmp_path / "changed").write_text("\n".join(changed))
    return root


@pytest.mark.parametrize("other_boot", [False, True])
def test_start_after_a_kill_syncs_what_the_killed_process_did_not(
    tmp_path: Path, other_boot: bool
) -> None:
    root = killed(tmp_path, other_boot=other_boot)
    files = FaultyFiles(root)
    store = MessageStore.open(small_settings(root), files)
    saved = ("rename", str(root / "offsets"))
    calls = files.calls[: len(files.calls) - 1 - files.calls[::-1].index(saved)]
    synced = {path for operation, path in calls if operation in ("sync", "data_sync")}
    directories = {path for operation, path in calls if operation == "sync_directory"}
    for name in (tmp_path / "changed").read_text().split():
        assert str(root / name) in synced, name
        assert str((root / name).parent) in directories, name
    store.close()


def test_files_synced_long_ago_are_left_alone(tmp_path: Path) -> None:
    root = killed(tmp_path, other_boot=False)
    files = FaultyFiles(root)
    MessageStore.open(small_settings(root), files).close()
    old = root / "consumequeue" / "Orders" / "0" / f"{0:020d}"
    assert old.exists()
    assert ("sync", str(old)) not in files.calls


def test_power_cut_after_that_start_loses_no_unit(tmp_path: Path) -> None:
    root = killed(tmp_path, other_boot=False)
    changed = (tmp_path / "changed").read_text().split()

    class Unsynced(FaultyFiles):
        """Files whose writes by the killed process are with the kernel only."""

        def __init__(self) -> None:
            super().__init__(root)
            for name in changed:
                self._content[str(root / name)] = bytes((root / name).stat().st_size)

    files = Unsynced()
    store = MessageStore.open(small_settings(root), files)
    files.power_cut(tmp_path / "cut")
    for name in changed:
        assert (tmp_path / "cut" / name).read_bytes() == (root / name).read_bytes(), name
    store.close()
