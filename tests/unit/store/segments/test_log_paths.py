"""Claims about a commit log in several directories: where segments go, what is refused."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from aerobee.config.model import Settings
from aerobee.store.disk.files import DiskSpace
from aerobee.store.errors import StoreLayoutError, StoreNotWritable
from aerobee.store.message_store import MessageStore
from aerobee.store.segments.paths import LogPaths
from tests.faulty_files import FaultyFiles
from tests.unit.store.disk.test_disk_watch import Disks
from tests.unit.store.support import (
    SEGMENT,
    bodies,
    fill,
    flip,
    kill_image,
    message,
    small_settings,
    tree,
)


def many(root: Path, *names: str, read_only: tuple[str, ...] = (), **changes: object) -> Settings:
    """A store below `root` with the log in `root`/each of `names`."""
    return small_settings(
        root / "store",
        commit_log_path=",".join(str(root / name) for name in names),
        read_only_commit_log_paths=",".join(str(root / name) for name in read_only),
        disk_force_ratio=1.0,
        **changes,
    )


def numbers(directory: Path) -> list[int]:
    """Numbers of the segments in a directory."""
    return sorted(int(path.name) // SEGMENT for path in directory.iterdir())


def dealt(disks: Disks, count: int, read_only: tuple[str, ...] = ()) -> str:
    """The directories that the first segments go to, as one word."""
    paths = LogPaths(disks, sorted(disks.ratios, reverse=True), read_only, SEGMENT, 0.8)
    paths_of = [paths.path_for(number * SEGMENT) for number in range(count)]
    assert [os.path.basename(path) for path in paths_of] == [
        f"{number * SEGMENT:020d}" for number in range(count)
    ]
    return "".join(os.path.dirname(path) for path in paths_of)


# --- where a segment goes -------------------------------------------------------------------------


class ExistingDisks(Disks):
    def exists(self, path: str) -> bool:
        return True


def test_segments_are_dealt_to_the_sorted_directories_in_turn() -> None:
    assert dealt(ExistingDisks(c=0.1, a=0.1, b=0.1), 7) == "abcabca"


def test_full_and_read_only_directories_get_none() -> None:
    assert dealt(ExistingDisks(a=0.1, b=0.81, c=0.8), 5) == "acaca"
    assert dealt(ExistingDisks(a=0.1, b=0.1, c=0.1), 5, ("a", "elsewhere")) == "bcbcb"


def test_when_all_are_too_full_all_that_are_writable_are_used() -> None:
    assert dealt(ExistingDisks(a=0.99, b=0.81, c=0.9), 5, ("b",)) == "acaca"


def test_directory_whose_disk_does_not_answer_gets_none() -> None:
    class Broken(ExistingDisks):
        def disk_space(self, path: str) -> DiskSpace:
            if path == "b":
                raise OSError(errno.EIO, "no answer", path)
            return super().disk_space(path)

    assert dealt(Broken(a=0.1, b=0.1), 3) == "aaa"


def test_fullness_is_asked_for_each_segment(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    full: set[str] = set()
    files.used_ratio = lambda path: float(path in full)  # type: ignore[method-assign]
    paths = LogPaths(files, [str(tmp_path / "a"), str(tmp_path)], [], SEGMENT, 0.9)
    assert os.path.dirname(paths.path_for(SEGMENT)) == str(tmp_path / "a")
    full.add(str(tmp_path))  # which a, not made yet, would be on too
    assert os.path.dirname(paths.path_for(SEGMENT)) == str(tmp_path / "a")
    full.clear()
    (tmp_path / "a").mkdir()
    full.add(str(tmp_path / "a"))
    assert os.path.dirname(paths.path_for(SEGMENT)) == str(tmp_path)


# --- a log in several directories -----------------------------------------------------------------


def test_log_in_three_directories_reads_as_one(tmp_path: Path) -> None:
    settings = many(tmp_path, "c", "a", "b")
    store = MessageStore.open(settings)
    made = fill(store, 150)
    segments = store.written // SEGMENT + 1
    assert segments > 6
    image = kill_image(tmp_path, tmp_path.with_name(tmp_path.name + "-image"))
    assert bodies(store) == made
    assert store.close()
    for turn, name in enumerate("abc"):
        assert numbers(tmp_path / name) == list(range(turn, segments, 3))
    assert not (tmp_path / "store" / "commitlog").exists()
    for root in (tmp_path, image):
        again = MessageStore.open(many(root, "a", "b", "c"))
        assert bodies(again) == made
        again.log.put(message(b"more"))
        again.dispatch()
        assert bodies(again) == [*made, b"more"]
        assert again.close()


def test_one_directory_and_several_hold_the_same_bytes(tmp_path: Path) -> None:
    found: list[dict[str, bytes]] = []
    for root, names in ((tmp_path / "one", ("x",)), (tmp_path / "two", ("x", "y"))):
        store = MessageStore.open(many(root, *names))
        for number in range(60):
            store.log.put(message(b"%04d" % number + b"." * 100, queue_id=number % 2))
        store.dispatch()
        assert store.close()
        found.append({path.name: path.read_bytes() for n in names for path in (root / n).iterdir()})
    assert found[0].keys() == found[1].keys()
    for name, data in found[0].items():
        # Only the times of storing differ.
        assert len(data) == len(found[1][name])
        assert data.count(b"." * 100) == found[1][name].count(b"." * 100)


def test_directory_of_each_new_segment_is_synced(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    store = MessageStore.open(many(tmp_path, "a", "b", flush_disk_type="SYNC_FLUSH"), files=files)
    for _ in range(40):
        end = store.log.put(message(b"." * 300)).end
    store.request_flush()
    assert store.wait_durable(end, 10)
    files.power_cut(tmp_path / "cut")
    assert store.close()
    again = MessageStore.open(many(tmp_path / "cut", "a", "b"))
    assert len(bodies(again)) == 40
    assert again.close()


def test_cut_at_recovery_removes_each_segment_where_it_is(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store = MessageStore.open(many(root, "a", "b"))
    made = fill(store, 60)
    image = kill_image(root, tmp_path / "image")
    assert store.close()
    last = store.written // SEGMENT
    for number in range(last + 1, last + 4):  # made ahead, and never used
        path = image / "ab"[number % 2] / f"{number * SEGMENT:020d}"
        path.write_bytes(bytes(SEGMENT))
    files = FaultyFiles(image)
    again = MessageStore.open(many(image, "a", "b"), files=files)
    assert bodies(again) == made
    assert [int(os.path.basename(path)) // SEGMENT for path in again.recovery.segments_removed] == [
        last + 3,
        last + 2,
        last + 1,
    ]
    for name in "ab":
        assert max(numbers(image / name)) <= last
        # The removals are durable, too.
        assert files._names[str(image / name)] == set(os.listdir(image / name))
    assert again.close()


def test_directory_added_later_takes_its_turn(tmp_path: Path) -> None:
    store = MessageStore.open(many(tmp_path, "a"))
    made = fill(store, 60)
    assert store.close()
    before = numbers(tmp_path / "a")
    store = MessageStore.open(many(tmp_path, "a", "b"))
    made += fill(store, 60)
    assert store.close()
    assert numbers(tmp_path / "a")[: len(before)] == before
    assert len(numbers(tmp_path / "b")) >= 2
    store = MessageStore.open(many(tmp_path, "a", "b"))
    assert bodies(store) == made
    assert store.close()


# --- read-only directories ------------------------------------------------------------------------


def test_last_segment_of_a_read_only_directory_is_ended_and_the_log_goes_on(tmp_path: Path) -> None:
    store = MessageStore.open(many(tmp_path, "old"))
    made = fill(store, 30)
    assert store.written % SEGMENT
    end = store.written
    assert store.close()
    segments = numbers(tmp_path / "old")
    before = tree(tmp_path, "old")
    settings = many(tmp_path, "new", read_only=("old",))
    store = MessageStore.open(settings)
    assert store.written == store.durable == store.dispatched == (segments[-1] + 1) * SEGMENT
    assert bodies(store) == made
    assert store.log.put(message(b"next")).log_offset == (segments[-1] + 1) * SEGMENT
    store.dispatch()
    assert bodies(store) == [*made, b"next"]
    assert store.close()
    assert numbers(tmp_path / "old") == segments
    assert numbers(tmp_path / "new") == [segments[-1] + 1]
    # Eight bytes were written in the old one, and only where nothing was.
    after = tree(tmp_path, "old")
    last = f"old/{segments[-1] * SEGMENT:020d}"
    assert {name for name in after if after[name] != before[name]} == {last}
    at = end % SEGMENT
    left = SEGMENT - at
    assert after[last] == before[last][:at] + left.to_bytes(4, "big") + bytes.fromhex(
        "cbd43194"
    ) + bytes(left - 8)
    store = MessageStore.open(settings)
    assert bodies(store) == [*made, b"next"]
    assert store.close()


def test_log_that_only_read_segments_is_clean_at_its_close(tmp_path: Path) -> None:
    store = MessageStore.open(many(tmp_path, "old"))
    made = fill(store, 3)
    assert store.close()
    for _ in range(3):
        store = MessageStore.open(many(tmp_path, "new", read_only=("old",)))
        assert store.recovery.clean_stop
        assert bodies(store) == made
        assert store.close()
    assert not (tmp_path / "new").exists() or numbers(tmp_path / "new") == []


def test_nothing_is_made_in_a_read_only_directory_of_the_list(tmp_path: Path) -> None:
    store = MessageStore.open(many(tmp_path, "a", "b"))
    made = fill(store, 60)
    assert store.close()
    before = numbers(tmp_path / "a")
    store = MessageStore.open(many(tmp_path, "a", "b", read_only=("a",)))
    made += fill(store, 120)
    assert store.close()
    assert numbers(tmp_path / "a") == before
    store = MessageStore.open(many(tmp_path, "a", "b", read_only=("a",)))
    assert bodies(store) == made
    assert store.close()


def test_killed_log_that_ends_in_a_read_only_directory_is_recovered_there(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store = MessageStore.open(many(root, "old"))
    made = fill(store, 30)
    image = kill_image(root, tmp_path / "image")
    end = store.written
    assert store.close()
    torn = image / "old" / f"{end // SEGMENT * SEGMENT:020d}"
    flip(torn, end % SEGMENT + 100, 0xFF)
    settings = many(image, "new", read_only=("old",))
    store = MessageStore.open(settings)
    assert store.recovery.torn_bytes > 0
    assert bodies(store) == made
    made += fill(store, 10)
    again = kill_image(image, tmp_path / "again")
    assert store.close()
    store = MessageStore.open(many(again, "new", read_only=("old",)))
    assert bodies(store) == made
    assert store.close()


def test_read_only_directory_that_really_is_read_only_serves_whole_segments(tmp_path: Path) -> None:
    store = MessageStore.open(many(tmp_path, "old"))
    made = fill(store, 30)
    assert store.close()
    settings = many(tmp_path, "new", read_only=("old",))

    class ReadOnly(FaultyFiles):
        def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
            if "/old/" in path and not read_only:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
            return super().open(path, create=create, read_only=read_only)

    with pytest.raises(StoreNotWritable, match=r"8 bytes have to be written.*Read-only"):
        MessageStore.open(settings, files=ReadOnly(tmp_path))
    store = MessageStore.open(settings)
    made += fill(store, 30)
    assert store.close()
    for clean in (True, False):
        if not clean:
            (tmp_path / "store" / "abort").touch()
            (tmp_path / "store" / "offsets").unlink()
        store = MessageStore.open(settings, files=ReadOnly(tmp_path))
        assert bodies(store) == made
        assert store.close()


# --- what is refused ------------------------------------------------------------------------------


def test_segment_in_two_directories_is_refused_and_the_spare_one_is_named(tmp_path: Path) -> None:
    settings = many(tmp_path, "a", "b")
    store = MessageStore.open(settings)
    fill(store, 60)
    assert store.close()
    double = tmp_path / "b" / f"{0:020d}"
    shutil.copy(tmp_path / "a" / double.name, double)
    before = tree(tmp_path, ".")
    with pytest.raises(StoreLayoutError, match="the same segment") as caught:
        MessageStore.open(settings)
    assert str(double) in str(caught.value)
    assert str(tmp_path / "a" / double.name) in str(caught.value)
    assert tree(tmp_path, ".") == before
    double.write_bytes(bytes(SEGMENT))
    with pytest.raises(StoreLayoutError) as caught:
        MessageStore.open(settings)
    assert f"{double} holds nothing but zeros" in str(caught.value)
    double.unlink()
    assert MessageStore.open(settings).close()


def test_directory_that_is_missing_is_a_hole_in_the_log(tmp_path: Path) -> None:
    settings = many(tmp_path, "a", "b")
    store = MessageStore.open(settings)
    fill(store, 100)
    assert store.close()
    (tmp_path / "b").rename(tmp_path / "away")
    with pytest.raises(StoreLayoutError, match="are missing"):
        MessageStore.open(settings)
    (tmp_path / "away").rename(tmp_path / "b")
    assert MessageStore.open(settings).close()


def test_read_only_directory_has_to_be_there(tmp_path: Path) -> None:
    settings = many(tmp_path, "a", read_only=("old",))
    with pytest.raises(StoreLayoutError, match=r"old .* is not there.*mounted"):
        MessageStore.open(settings)
    (tmp_path / "old").mkdir()
    assert MessageStore.open(settings).close()


def test_two_names_of_one_directory_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(StoreLayoutError, match="the same directory"):
        MessageStore.open(many(tmp_path, "a", "b"))


def test_nothing_but_read_only_directories_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(StoreLayoutError, match="are read-only"):
        MessageStore.open(many(tmp_path, "a", read_only=("a",)))


def test_sends_are_refused_when_all_writable_disks_are_full_only(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    full = {"a"}
    files.disk_space = lambda path: DiskSpace(  # type: ignore[method-assign]
        99 if os.path.basename(path) in full else 1, 1
    )
    for name in ("a", "b", "old"):
        (tmp_path / name).mkdir()
    settings = many(tmp_path, "a", "b", read_only=("old",)).with_changes(disk_warning_ratio=0.9)
    store = MessageStore.open(settings, files=files)
    store.log.put(message(b"one disk has room"))
    store.close()
    full.add("b")
    store = MessageStore.open(settings, files=files)
    with pytest.raises(StoreNotWritable, match=r"/a is .* full, .*/b is"):
        store.log.put(message(b"the read-only one does not count"))
    store.close()


@pytest.mark.parametrize("gone", ["d1", "d2"])
def test_listed_directory_that_is_not_there_is_named_where_segments_are_missed(
    tmp_path: Path, gone: str
) -> None:
    settings = many(tmp_path, "d1", "d2")
    store = MessageStore.open(settings)
    fill(store, 120)
    assert store.close()
    assert numbers(tmp_path / "d1")
    assert numbers(tmp_path / "d2")
    shutil.rmtree(tmp_path / gone)
    with pytest.raises(StoreLayoutError) as refused:
        MessageStore.open(settings)
    assert f"{tmp_path / gone} is not there: is its volume not mounted?" in str(refused.value)
