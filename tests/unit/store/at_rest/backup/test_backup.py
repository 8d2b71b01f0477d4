"""Backups of a store that is written meanwhile: whole, resumable, and nothing of them believed that
is not as it was written."""

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.store.at_rest.backup import manifest as layout
from aerobee.store.at_rest.backup.backup import BackupOptions, BackupReport, back_up
from aerobee.store.at_rest.backup.check import BackupCheck, check_backup
from aerobee.store.at_rest.backup.restore import RestoreReport, restore
from aerobee.store.disk.files import Files
from aerobee.store.errors import BackupDamaged, BackupRefused, NotAStore
from aerobee.store.message_store import MessageStore
from tests.faulty_files import FaultyFiles
from tests.unit.store.at_rest import audit_support as at
from tests.unit.store.support import (
    SEGMENT,
    adopt,
    bodies,
    fill,
    flip,
    kill_image,
    log_segment,
    message,
    small_settings,
    tree,
)

NO_WAIT = BackupOptions(wait_s=0)


def backed_up(root: Path, target: Path, files: Files | None = None) -> BackupReport:
    return back_up(small_settings(root), str(target), files=files, options=NO_WAIT)


def restored(target: Path, root: Path, files: Files | None = None) -> RestoreReport:
    return restore(str(target), small_settings(root), files=files)


def checked(target: Path) -> BackupCheck:
    return check_backup(str(target))


def served(root: Path, queues: int = 1) -> list[list[bytes]]:
    """The bodies of each queue, as a broker on the store would serve them."""
    store = MessageStore.open(small_settings(root))
    found = [bodies(store, queue_id=number) for number in range(queues)]
    assert store.close()
    return found


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return at.make(tmp_path_factory.mktemp("backup") / "template", per_queue=24)


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    return adopt(at.copy(template, tmp_path / "store"))


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[MessageStore]:
    store = MessageStore.open(small_settings(tmp_path / "live"))
    yield store
    store.close()


def test_store_under_writes_is_restored_up_to_the_mark(
    open_store: MessageStore, tmp_path: Path
) -> None:
    made = fill(open_store, 90, queues=2)
    first = backed_up(tmp_path / "live", tmp_path / "target")
    open_store.log.put(message(b"later"))
    open_store.dispatch()
    assert checked(tmp_path / "target").sound
    done = restored(tmp_path / "target", tmp_path / "again")
    assert (done.mark, done.log_begins) == (first.mark, 0)
    assert served(tmp_path / "again", 2) == [made[::2], made[1::2]]
    last = max((tmp_path / "again" / "commitlog").iterdir())
    assert last.stat().st_size == SEGMENT
    assert not [name for name in os.listdir(tmp_path / "again") if name.startswith("lost+found")]


def test_tables_log_and_queues_come_back_byte_for_byte(root: Path, tmp_path: Path) -> None:
    for backup in (root / "config").glob("*.bak"):
        backup.unlink()
    before = {**tree(root, "config"), **tree(root, "commitlog"), **tree(root, "consumequeue")}
    backed_up(root, tmp_path / "target")
    restored(tmp_path / "target", tmp_path / "again")
    again = tmp_path / "again"
    after = {**tree(again, "config"), **tree(again, "commitlog"), **tree(again, "consumequeue")}
    assert after == before


def test_second_backup_copies_only_what_is_new(open_store: MessageStore, tmp_path: Path) -> None:
    fill(open_store, 90)
    target = tmp_path / "target"
    first = backed_up(tmp_path / "live", target)
    old = {path: path.stat().st_mtime_ns for path in sorted((target / "log").iterdir())[:-1]}
    tables = sum(one.bytes for one in snapshot_of(target).files)
    assert backed_up(tmp_path / "live", target).copied_bytes == tables
    fill(open_store, 5)
    second = backed_up(tmp_path / "live", target)
    tables = sum(one.bytes for one in snapshot_of(target).files)
    assert second.copied_bytes - tables == second.mark - first.mark > 0
    assert old == {path: path.stat().st_mtime_ns for path in old}
    assert checked(target).sound


def snapshot_of(target: Path) -> layout.Snapshot:
    snapshot = layout.load(Files(), str(target)).snapshot
    assert snapshot is not None
    return snapshot


def test_topic_made_after_the_tables_were_read_keeps_its_messages(
    root: Path, tmp_path: Path
) -> None:
    """The mark may include its messages, so topics are read after the mark."""

    class Late(Files):
        def names(self, path: str) -> list[str]:
            if path.endswith("config") and not topics.exists():
                shutil.move(tmp_path / "topics", topics)
                return [name for name in super().names(path) if name != topics.name]
            return super().names(path)

    topics = root / "config" / "topics.json"
    text = topics.read_text()
    shutil.move(topics, tmp_path / "topics")
    backed_up(root, tmp_path / "target", Late())
    restored(tmp_path / "target", tmp_path / "again")
    assert (tmp_path / "again" / "config" / "topics.json").read_text() == text


def test_killed_brokers_store_is_copied_to_its_last_whole_record(
    open_store: MessageStore, tmp_path: Path
) -> None:
    fill(open_store, 30)
    left = adopt(kill_image(tmp_path / "live", tmp_path / "left"))
    open_store.log.put(message(b"never seen"))
    report = backed_up(left, tmp_path / "target")
    restored(tmp_path / "target", tmp_path / "again")
    assert served(tmp_path / "again") == served(left)
    assert report.mark > 0


def test_durable_mark_that_lags_behind_is_waited_for(
    open_store: MessageStore, tmp_path: Path
) -> None:
    """Tables may speak of records that are written and not durable yet."""

    class Moving(Files):
        reads = 0

        def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
            self.reads += path == str(left / "offsets")
            if self.reads == 4:
                adopt(left, flushed=mark)
            return super().open(path, create=create, read_only=read_only)

    fill(open_store, 30)
    left = kill_image(tmp_path / "live", tmp_path / "left")
    mark = backed_up(left, tmp_path / "first").mark
    adopt(left, flushed=0)
    files, options = Moving(), BackupOptions(wait_s=60)
    settings = small_settings(left)
    report = back_up(settings, str(tmp_path / "target"), files=files, options=options)
    assert files.reads >= 4
    assert report.mark == mark


def test_store_without_our_offsets_file_is_copied_to_its_end(root: Path, tmp_path: Path) -> None:
    mark = backed_up(root, tmp_path / "target").mark
    (root / "offsets").unlink()
    assert backed_up(root, tmp_path / "other").mark == mark


def test_numbers_of_a_queue_whose_messages_are_gone_go_on(
    open_store: MessageStore, tmp_path: Path
) -> None:
    for number in range(25):
        open_store.log.put(message(b"%d" % number, "Old"))
    fill(open_store, 120)
    open_store.close()
    log_segment(tmp_path / "live").unlink()
    store = MessageStore.open(small_settings(tmp_path / "live"))
    store.close()
    backed_up(tmp_path / "live", tmp_path / "target")
    restored(tmp_path / "target", tmp_path / "again")
    again = MessageStore.open(small_settings(tmp_path / "again"))
    assert again.max_offset("Old", 0) == 25
    assert again.close()


def test_queues_that_need_a_setting_are_named(tmp_path: Path) -> None:
    settings = small_settings(tmp_path / "live", multi_dispatch=True)
    store = MessageStore.open(settings)
    store.log.put(message(more={"INNER_MULTI_DISPATCH": "Second"}))
    store.dispatch()
    assert store.close()
    backed_up(tmp_path / "live", tmp_path / "target")
    assert restored(tmp_path / "target", tmp_path / "again").emptied == ["Second/0"]
    settings = small_settings(tmp_path / "with", multi_dispatch=True)
    assert restore(str(tmp_path / "target"), settings).emptied == []


def test_removed_segment_is_left_out_and_the_backup_keeps_what_it_has(
    open_store: MessageStore, tmp_path: Path
) -> None:
    class Removing(Files):
        def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
            if path == str(second) and (target / "tables-1/queues.json").exists():
                second.unlink(missing_ok=True)
            return super().open(path, create=create, read_only=read_only)

    fill(open_store, 90)
    open_store.close()
    root, target = tmp_path / "live", tmp_path / "target"
    second = log_segment(root, 2 * SEGMENT)
    whole = backed_up(at.copy(root, tmp_path / "copy"), tmp_path / "full")
    for start in (0, SEGMENT):
        log_segment(root, start).unlink()
    kept = backed_up(root, tmp_path / "full")
    assert (kept.mark, kept.log_begins) == (whole.mark, 0)
    report = backed_up(root, target, Removing())
    assert report.left_out == [second.name]
    assert report.log_begins == 3 * SEGMENT
    restored(target, tmp_path / "again")
    assert sorted(os.listdir(tmp_path / "again" / "commitlog"))[0] == f"{3 * SEGMENT:020d}"


class Killed(BaseException):
    """The process is gone at the call that raises it."""


class Dying(Files):
    """Nothing is changed any more from the `last` change on."""

    def __init__(self, last: int) -> None:
        self.left = last

    def _live(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        if create:
            self._live()
        return super().open(path, create=create, read_only=read_only)

    def write(self, fd: int, position: int, data: bytes | bytearray | memoryview) -> None:
        self._live()
        super().write(fd, position, data)

    def sync(self, fd: int) -> None:
        self._live()
        super().sync(fd)

    def rename(self, source: str, target: str) -> None:
        self._live()
        super().rename(source, target)

    def sync_directory(self, path: str) -> None:
        self._live()
        super().sync_directory(path)

    def remove_tree(self, path: str) -> None:
        self._live()
        super().remove_tree(path)


def test_backup_killed_at_any_change_goes_on_and_what_was_there_stays(
    root: Path, tmp_path: Path
) -> None:
    older = at.copy(root, tmp_path / "older")
    for path in sorted((older / "commitlog").iterdir())[1:]:
        path.unlink()
    (older / "offsets").unlink()
    before = tmp_path / "before"
    first = backed_up(older, before)
    for last in range(1000):
        target = Path(shutil.copytree(before, tmp_path / f"target-{last}"))
        try:
            backed_up(root, target, Dying(last))
        except Killed:
            check = checked(target)
            assert check.sound
            assert first.mark <= (check.mark or 0)
        else:
            break
        backed_up(root, target)
        assert checked(target).sound
        assert len([name for name in os.listdir(target) if name.startswith("tables-")]) == 1
        shutil.rmtree(target)
    assert last > 40


def test_first_backup_that_was_killed_is_no_backup_yet(root: Path, tmp_path: Path) -> None:
    for last in (1, 3, 8, 15, 20):
        target = tmp_path / f"target-{last}"
        with pytest.raises(Killed):
            backed_up(root, target, Dying(last))
        with pytest.raises(BackupRefused):
            restored(target, tmp_path / "again")
        assert backed_up(root, target).mark
        assert checked(target).sound


def test_power_cut_at_any_sync_leaves_no_name_without_its_bytes(root: Path, tmp_path: Path) -> None:
    target, image = tmp_path / "target", tmp_path / "image"

    marks: list[int | None] = []

    class Cut(FaultyFiles):
        def sync_directory(self, path: str) -> None:
            super().sync_directory(path)
            shutil.rmtree(image, ignore_errors=True)
            self.power_cut(image)
            if (image / "manifest").exists():
                check = check_backup(str(image))
                assert check.damaged == []
                marks.append(check.mark)

    target.mkdir()
    files = Cut(target)
    mark = backed_up(root, target, files).mark
    assert marks[0] is None
    assert marks[-1] == mark


def test_killed_restore_leaves_no_store_and_begins_anew(root: Path, tmp_path: Path) -> None:
    backed_up(root, tmp_path / "target")
    for last in range(0, 1000, 3):
        again = tmp_path / f"again-{last}"
        try:
            restored(tmp_path / "target", again, Dying(last))
        except Killed:
            if (again / "commitlog").exists():
                break  # the log is whole: what is missing is made again by a start
        restored(tmp_path / "target", again)
        shutil.rmtree(again)
    assert last > 20
    assert served(again, 3) == served(root, 3)


@pytest.mark.parametrize("name", ["log/00000000000000000000", "tables-1/config/topics.json"])
def test_flipped_bit_is_found_by_check_and_restore(root: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "target"
    backed_up(root, target)
    flip(target / name, 100)
    assert checked(target).damaged == [(name, "its CRC-32C is not the manifest's")]
    with pytest.raises(BackupDamaged, match=name):
        restored(target, tmp_path / "again")
    assert os.listdir(tmp_path / "again") == []
    (target / name).unlink()
    assert "cannot be read" in checked(target).damaged[0][1]


def test_manifest_that_is_damaged_or_missing_is_not_believed(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    backed_up(root, target)
    size = (target / "manifest").stat().st_size
    for position in (0, size // 2, size - 2):
        flip(target / "manifest", position)
        for use in (
            checked,
            lambda at: restored(at, tmp_path / "x"),
            lambda at: backed_up(root, at),
        ):
            with pytest.raises(BackupDamaged):
                use(target)
        flip(target / "manifest", position)
    (target / "manifest").unlink()
    with pytest.raises(BackupRefused, match="is not empty and is no backup"):
        backed_up(root, target)
    with pytest.raises(BackupRefused, match="is no backup"):
        checked(target)


def test_places_where_no_backup_can_be(root: Path, tmp_path: Path) -> None:
    before = tree(root, ".")
    for place in (root / "backup", root, tmp_path, root / "commitlog" / "x"):
        with pytest.raises(BackupRefused, match="lie in each other"):
            backed_up(root, place)
    (tmp_path / "file").touch()
    with pytest.raises(BackupRefused, match="is a file"):
        backed_up(root, tmp_path / "file")
    with pytest.raises(NotAStore):
        backed_up(tmp_path / "none", tmp_path / "target")
    assert tree(root, ".") == before
    backed_up(root, tmp_path / "target")
    with pytest.raises(BackupRefused, match="is not empty"):
        restored(tmp_path / "target", root)
    assert tree(root, ".") == before


def test_backup_of_another_broker_is_refused_by_its_first_other_segment(
    root: Path, tmp_path: Path
) -> None:
    backed_up(root, tmp_path / "target")
    before = tree(tmp_path / "target", ".")
    other = at.copy(root, tmp_path / "other")
    flip(log_segment(other, SEGMENT), 200)
    with pytest.raises(BackupRefused, match=f"another broker.*{SEGMENT:020d} begins with other"):
        backed_up(other, tmp_path / "target")
    assert tree(tmp_path / "target", ".") == before


def test_full_target_keeps_the_earlier_backup(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    files = FaultyFiles(target)
    files.fail("write", errno.ENOSPC, "log/", nth=2)
    with pytest.raises(OSError, match="No space left") as failed:
        backed_up(root, target, files)
    assert failed.value.filename == str(target / "log" / f"{SEGMENT:020d}")
    files.heal()
    report = backed_up(root, target, files)
    assert report.copied_bytes < report.mark
    assert checked(target).sound


def test_manifest_has_the_documented_bytes() -> None:
    manifest = layout.Manifest(
        layout.FileSizes(4096, 200, 50, 40, 300),
        (layout.CopiedSegment(0, 100, 1, 2),),
        layout.Snapshot(100, 1_700_000_000_000, "tables-1", (layout.CopiedFile("a", 3, 4),)),
    )
    data = layout.encode(manifest)
    assert layout.decode(data) == manifest
    assert b"".join(data.split()) == (
        b'{"sizes":{"segment_bytes":4096,"queue_bytes":200,"index_slots":50,"index_entries":40,'
        b'"extension_bytes":300},"segments":[{"start":0,"bytes":100,"crc32c":1,"head_crc32c":2}],'
        b'"snapshot":{"mark":100,"time_ms":1700000000000,"directory":"tables-1","files":[{"name":'
        b'"a","bytes":3,"crc32c":4}]},"version":1}crc32c=' + data[-9:-1]
    )


@pytest.mark.parametrize("name", ["", "..", "/etc/passwd", "config/../../topics.json", "a//b"])
def test_a_manifest_with_a_name_outside_of_the_backup_is_not_believed(name: str) -> None:
    sizes = layout.FileSizes(4096, 200, 50, 40, 300)
    for directory, file in ((name, "a"), ("tables-1", name)):
        snapshot = layout.Snapshot(100, 1, directory, (layout.CopiedFile(file, 3, 4),))
        assert layout.decode(layout.encode(layout.Manifest(sizes, (), snapshot))) is None
