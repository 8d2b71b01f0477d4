"""A store that is no longer where it was opened stops, and writes nothing to what stands there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from aerobee.store.errors import SegmentCreateFailed, StoreBroken
from aerobee.store.message_store import MessageStore
from tests.service.kit import wait_until
from tests.unit.store.support import message, small_settings


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    store = MessageStore.open(small_settings(tmp_path / "store"))
    store.look_whether_there()
    store.log.put(message())
    store.dispatch()
    yield store
    store.close()


def remove(root: Path) -> None:
    shutil.rmtree(root)


def move_away(root: Path) -> None:
    root.rename(root.with_name("elsewhere"))


def replace_by_a_copy(root: Path) -> None:
    """Replace it as a mount does that covers it: all is there, and nothing of it is ours."""
    shutil.copytree(root, root.with_name("copy"))
    move_away(root)
    root.with_name("copy").rename(root)


def remove_segments(root: Path) -> None:
    for path in (root / "commitlog").iterdir():
        path.unlink()


def replace_segments(root: Path) -> None:
    for path in list((root / "commitlog").iterdir()):
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)


def replace_the_log_directory(root: Path) -> None:
    replace_by_a_copy(root / "commitlog")


def remove_the_lock(root: Path) -> None:
    (root / "lock").unlink()


def remove_queues(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")


@pytest.mark.parametrize(
    "lose",
    [
        remove,
        move_away,
        replace_by_a_copy,
        remove_segments,
        replace_segments,
        replace_the_log_directory,
        remove_the_lock,
        remove_queues,
    ],
)
def test_what_was_taken_away_is_noticed_and_sends_are_refused(
    store: MessageStore, tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    """3,000 sends were acknowledged, 973 of them were there afterwards."""
    root = tmp_path / "store"
    store.look_whether_there()
    store.log.put(message())
    wait_until(lambda: len(list((root / "commitlog").iterdir())) == 2, "a segment made ahead")
    lose(root)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    store.look_whether_there()
    with pytest.raises(StoreBroken, match=r"is not there any more|was replaced, or mounted over"):
        store.log.put(message())
    with pytest.raises(FileNotFoundError, match="the store is gone"):
        store.check_there()
    store.close()
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


@pytest.mark.parametrize("lose", [remove, move_away, remove_queues])
def test_a_queue_without_a_file_is_not_made_where_the_store_was(
    store: MessageStore, tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    """Its directory was made at the old path: the store, moved back, landed inside that."""
    root = tmp_path / "store"
    store.log.put(message())
    wait_until(lambda: len(list((root / "commitlog").iterdir())) == 2, "a segment made ahead")
    lose(root)
    before = sorted(root.rglob("*"))
    for queue_id in (1, 2, 3):
        # Before the next look at the place: it is what finds nothing there that looks.
        with suppress(StoreBroken):
            store.log.put(message(queue_id=queue_id))
        store.dispatch()
    assert sorted(root.rglob("*")) == before
    assert "is not there any more" in (store.not_writable_reason() or "")
    assert not store.close()
    assert sorted(root.rglob("*")) == before


@pytest.mark.parametrize("lose", [remove, move_away])
def test_no_segment_and_no_index_file_is_made_where_the_store_was(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    root = tmp_path / "store"
    store = MessageStore.open(small_settings(root))
    store.look_whether_there()
    store.log.put(message(keys="the first file of the index"))
    lose(root)
    for _ in range(8):
        with suppress(StoreBroken, SegmentCreateFailed):
            store.log.put(message(b"x" * 2_500, keys="a key"))
    assert store.dispatch() == []
    store.look_whether_there()
    assert not root.exists()
    assert "is not there any more" in (store.not_writable_reason() or "")
    assert not store.close()
    assert not root.exists()


def test_a_store_that_grows_and_forgets_is_still_there(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path / "store"))
    for _ in range(400):
        store.log.put(message(b"x" * 1000))
        store.look_whether_there()
    store.dispatch()
    assert len(list((tmp_path / "store" / "commitlog").iterdir())) > 3
    assert store.not_writable_reason() is None
    assert store.close()
    store.look_whether_there()
