"""A crash inside recovery, at any call: the next start comes to the same end."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from aerobee.store.disk.files import Files
from aerobee.store.disk.offsets_file import OffsetsFile
from aerobee.store.errors import StoreBroken
from aerobee.store.message_store import MessageStore
from tests.faulty_files import FaultyFiles
from tests.unit.store.support import (
    SEGMENT,
    adopt,
    bodies,
    fill,
    flip,
    kill_image,
    log_segment,
    queue_file,
    read_all,
    small_settings,
    tree,
)

OPERATIONS = ("write", "sync", "data_sync", "sync_directory", "remove", "create", "reserve")


def outcome(root: Path) -> dict[str, bytes]:
    """All bytes a recovery is to agree about; index files by number, their names are times."""
    files = tree(root, "commitlog") | tree(root, "consumequeue")
    for number, data in enumerate(tree(root, "index").values()):
        files[f"index {number}"] = data
    return files


def make_wreck(tmp_path: Path) -> Path:
    """A killed store with damage, a torn tail, a spare segment, short queues and no index."""
    running = tmp_path / "running"
    store = MessageStore.open(small_settings(running))
    fill(store, 70, queues=2)
    records = read_all(store, queue_id=0)
    written = store.written
    root = kill_image(running, tmp_path / "wreck")
    store.close()
    start = records[10].log_offset // SEGMENT * SEGMENT
    flip(log_segment(root, start), records[10].log_offset - start + 90)
    with log_segment(root, written // SEGMENT * SEGMENT).open("r+b") as file:
        file.seek(written % SEGMENT)
        file.write(b"torn tail" * 20)
    log_segment(root, (written // SEGMENT + 1) * SEGMENT).write_bytes(bytes(SEGMENT))
    for queue_id, begin in ((0, 400), (0, 600), (1, 200)):
        path = queue_file(root, queue_id=queue_id, start=begin)
        path.write_bytes(path.read_bytes()[:60] + bytes(140))
    shutil.rmtree(root / "index")
    return root


def make_wreck_of_the_index(tmp_path: Path) -> Path:
    """A killed store whose index files have lost their headers, while the offsets file, set back by
    a recovery before, says how far the index goes and names none of its files."""
    running = tmp_path / "running"
    store = MessageStore.open(small_settings(running))
    fill(store, 70, queues=2)
    assert store.close()
    root = kill_image(running, tmp_path / "wreck")
    (root / "abort").touch()
    adopt(root, index_files=(), index_end=-1)
    for index in (root / "index").iterdir():
        with index.open("r+b") as file:
            file.write(bytes(40))
    return root


def copied(wreck: Path, target: Path) -> Path:
    """A copy that is the store itself, if the wreck is: its offsets file speaks of it."""
    file = OffsetsFile(Files(), str(wreck))
    known = file.load()
    root = kill_image(wreck, target)
    return adopt(root) if known is not None and known.identity == file.identity() else root


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("make", "left"), [(make_wreck, 69), (make_wreck_of_the_index, 70)])
def test_crash_inside_recovery_changes_nothing_of_its_end(
    tmp_path: Path, make: Callable[[Path], Path], left: int, operation: str
) -> None:
    wreck = make(tmp_path)
    undisturbed = copied(wreck, tmp_path / "undisturbed")
    store = MessageStore.open(small_settings(undisturbed))
    expected_bodies = [bodies(store, queue_id=queue_id) for queue_id in range(2)]
    assert len(expected_bodies[0]) + len(expected_bodies[1]) == left
    assert store.close()
    expected = outcome(undisturbed)
    for nth in range(1, 500):
        root = copied(wreck, tmp_path / f"{nth}")
        files = FaultyFiles(root)
        # From the n-th call on nothing works any more: as far as the disk goes, the process died.
        files.fail(operation, errno.EIO, nth=nth)
        try:
            MessageStore.open(small_settings(root), files=files).close()
        except StoreBroken:
            pass
        else:
            assert nth > 1
            break
        files.power_cut(tmp_path / f"{nth} cut")
        for image in (root, tmp_path / f"{nth} cut"):
            store = MessageStore.open(small_settings(image))
            assert [bodies(store, queue_id=queue_id) for queue_id in range(2)] == expected_bodies
            assert store.close(), (nth, image)
            assert outcome(image) == expected, (nth, image)
            shutil.rmtree(image)
    else:
        raise AssertionError("the recovery never came through")
