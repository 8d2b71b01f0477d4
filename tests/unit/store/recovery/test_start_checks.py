"""Claims about a start's refusals, with nothing changed: files that are no files, or not ours."""

from collections.abc import Callable
from pathlib import Path

import pytest

from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.store.disk.files import Files
from aerobee.store.errors import StoreError, StoreLayoutError, StoreNotWritable
from aerobee.store.message_store import MessageStore
from tests.unit.store.support import (
    SEGMENT,
    bodies,
    fill,
    flip,
    log_segment,
    queue_file,
    small_settings,
    tree,
)

COUNT = 60


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store of three segments, six queue files and some index files, stopped."""
    store = MessageStore.open(small_settings(tmp_path / "store"))
    fill(store, COUNT)
    assert store.close()
    return tmp_path / "store"


def refusal(root: Path, files: Files | None = None) -> str:
    """The error text of the start, which has changed nothing."""
    before = tree(root, ".")
    with pytest.raises(StoreError) as caught:
        MessageStore.open(small_settings(root), files)
    assert tree(root, ".") == before
    return caught.value.remark


def swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


@pytest.mark.parametrize(("one", "other"), [(0, 1), (0, 2), (1, 2)])
def test_swapped_segments_are_refused(root: Path, one: int, other: int) -> None:
    swap(log_segment(root, one * SEGMENT), log_segment(root, other * SEGMENT))
    said = refusal(root)
    assert str(log_segment(root, one * SEGMENT)) in said
    assert log_segment(root, other * SEGMENT).name in said
    assert "aerobee store repair" in said
    swap(log_segment(root, one * SEGMENT), log_segment(root, other * SEGMENT))
    store = MessageStore.open(small_settings(root))
    assert len(bodies(store)) == COUNT
    store.close()


def test_segment_copied_behind_the_log_is_refused(root: Path) -> None:
    copy = log_segment(root, 3 * SEGMENT)
    copy.write_bytes(log_segment(root, SEGMENT).read_bytes())
    assert str(copy) in refusal(root)


def test_flipped_bit_does_not_make_a_segment_another_one(root: Path) -> None:
    """The bit is in the first record's own place, so that it names the second segment's
    beginning."""
    flip(log_segment(root), 34, SEGMENT >> 8)
    store = MessageStore.open(small_settings(root))
    assert len(bodies(store)) == COUNT - 1
    store.close()


def directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def link_to_nothing(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path.parent / "not mounted" / "file")


@pytest.mark.parametrize("damage", [directory, link_to_nothing])
@pytest.mark.parametrize(
    "place",
    ["checkpoint", "offsets", "offsets.tmp", "abort", "lock", "first segment", "last segment",
     "first queue file", "last queue file", "index file"],
)  # fmt: skip
def test_what_is_no_file_in_the_place_of_one_is_named(
    root: Path, place: str, damage: Callable[[Path], None]
) -> None:
    used = max(path for path in (root / "commitlog").iterdir() if path.read_bytes().strip(b"\0"))
    path = {
        "first segment": log_segment(root),
        "last segment": used,
        "first queue file": queue_file(root),
        "last queue file": queue_file(root, start=1000),
        "index file": min((root / "index").iterdir()),
    }.get(place, root / place)
    damage(path)
    assert f"{path} is" in refusal(root)


class NotOurs(Files):
    """One file may be read only, or not even that."""

    def __init__(self, path: Path, *, readable: bool) -> None:
        self._path = str(path)
        self._readable = readable

    def may_use(self, path: str, *, write: bool) -> bool:
        return path != self._path or (self._readable and not write)


@pytest.mark.parametrize(
    "name",
    ["", "commitlog", "consumequeue", "consumequeue/Orders", "consumequeue/Orders/0", "index",
     "checkpoint", "consumequeue/Orders/0/00000000000000000200", f"commitlog/{2 * SEGMENT:020d}"],
)  # fmt: skip
def test_file_of_another_user_is_refused_before_anything_is_changed(root: Path, name: str) -> None:
    """Met later, it would stop a broker that has taken messages meanwhile."""
    path = root / name
    for readable in (True, False):
        assert refusal(root, NotOurs(path, readable=readable)).startswith(f"{path} cannot be ")


@pytest.mark.parametrize("name", ["config", "namesrv", "config/topics.json.bak"])
def test_tables_of_another_user_are_refused_too(root: Path, name: str) -> None:
    """Met later, each new topic and group would be an error of a broker that says it is ready."""
    for table in ("config/topics.json", "namesrv/kvConfig.json"):
        JsonStateFile(root / table).save("{}")
    path = root / name
    for readable in (True, False):
        assert refusal(root, NotOurs(path, readable=readable)).startswith(f"{path} cannot be ")


def test_table_is_replaced_so_that_it_need_only_be_readable(root: Path) -> None:
    path = root / "config" / "topics.json"
    JsonStateFile(path).save("{}")
    assert MessageStore.open(small_settings(root), NotOurs(path, readable=True)).close()
    assert refusal(root, NotOurs(path, readable=False)).startswith(f"{path} cannot be read")


def test_table_that_this_broker_does_not_read_is_nobodys_matter(root: Path) -> None:
    path = root / "config" / "lmqConsumerOffset.json"
    JsonStateFile(path).save("{}")
    assert MessageStore.open(small_settings(root), NotOurs(path, readable=False)).close()


def test_old_segment_need_only_be_readable(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    fill(store, 3 * COUNT)
    assert store.close()
    store = MessageStore.open(
        small_settings(tmp_path), NotOurs(log_segment(tmp_path), readable=True)
    )
    assert len(bodies(store)) == 3 * COUNT
    assert store.close()
    with pytest.raises(StoreNotWritable, match="cannot be read"):
        MessageStore.open(small_settings(tmp_path), NotOurs(log_segment(tmp_path), readable=False))


@pytest.mark.parametrize("number", [1, 2])
def test_missing_segment_is_named(root: Path, number: int) -> None:
    for path in (root / "commitlog").iterdir():
        if int(path.name) > 2 * SEGMENT:
            path.unlink()  # a spare one
    missing = log_segment(root, number * SEGMENT)
    missing.unlink()
    with pytest.raises(StoreLayoutError, match=str(missing)):
        MessageStore.open(small_settings(root))
