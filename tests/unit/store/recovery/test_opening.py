"""Claims about opening and closing: owners, refusals that touch nothing, files left behind."""

import errno
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from aerobee.config.model import Settings
from aerobee.store.errors import (
    StoreBroken,
    StoreError,
    StoreInUse,
    StoreNotWritable,
    StoreSizeMismatch,
)
from aerobee.store.message_store import MessageStore
from tests.faulty_files import FaultyFiles
from tests.unit.store.support import (
    bodies,
    fill,
    kill_image,
    log_segment,
    message,
    small_settings,
    tree,
)

HOLD_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("locked", flush=True)
sys.stdin.read()
"""


def test_new_store_has_the_reference_files_and_no_segment(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "store"
    store = MessageStore.open(small_settings(root))
    names = sorted(path.name for path in root.iterdir())
    assert names == ["abort", "checkpoint", "commitlog", "consumequeue", "lock", "offsets"]
    assert (root / "abort").read_bytes() == b""
    assert (root / "lock").read_bytes() == b"lock"
    assert list((root / "commitlog").iterdir()) == []
    assert (store.written, store.durable, store.dispatched, store.min_log_offset) == (0, 0, 0, 0)
    assert store.close()
    assert not (root / "abort").exists()
    assert (root / "checkpoint").read_bytes() == bytes(4096)


@pytest.mark.parametrize("below", ["", "deeper", "consumequeue", "commitlog"])
def test_a_file_in_the_place_of_a_directory_is_named(tmp_path: Path, below: str) -> None:
    root = tmp_path / "store"
    if below in ("", "deeper"):
        blocked, asked = root, root / below
    else:
        root.mkdir()
        blocked, asked = root / below, root
    blocked.write_bytes(b"mine")
    with pytest.raises(StoreNotWritable, match=f"^{blocked} is a file, a directory is needed"):
        MessageStore.open(small_settings(asked))
    assert blocked.read_bytes() == b"mine"


def test_an_empty_path_is_refused_and_leaves_nothing_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreNotWritable, match="store_path"):
        MessageStore.open(Settings.for_tests(store_path=""))
    assert list(tmp_path.iterdir()) == []


def test_second_opening_in_this_process_is_refused(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path / "store"))
    (tmp_path / "link").symlink_to(tmp_path / "store")
    for path in (tmp_path / "store", tmp_path / "link"):
        with pytest.raises(StoreInUse, match="in this process"):
            MessageStore.open(small_settings(path))
    store.log.put(message())
    assert store.close()
    assert MessageStore.open(small_settings(tmp_path / "store")).close()


def test_directory_locked_by_another_process_is_refused_unread(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    store = MessageStore.open(settings)
    fill(store, 3)
    assert store.close()
    before = tree(tmp_path, ".")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"locked\n"
    with pytest.raises(StoreInUse, match="another broker"):
        MessageStore.open(settings)
    assert tree(tmp_path, ".") == before
    holder.stdin.close()
    assert holder.wait(10) == 0
    holder.stdout.close()
    assert MessageStore.open(settings).close()


def test_our_lock_keeps_the_reference_out(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    tried = subprocess.run(
        [sys.executable, "-c", HOLD_LOCK, str(tmp_path / "lock")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert b"BlockingIOError" in tried.stderr
    store.close()


def test_commit_log_of_another_size_is_refused_and_unchanged(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    fill(store, 3)
    assert store.close()
    before = tree(tmp_path, ".")
    with pytest.raises(StoreSizeMismatch) as caught:
        MessageStore.open(small_settings(tmp_path, commit_log_segment_bytes=8192))
    for part in (str(log_segment(tmp_path)), "4096", "8192", "mappedFileSizeCommitLog"):
        assert part in caught.value.remark
    assert tree(tmp_path, ".") == before
    store = MessageStore.open(small_settings(tmp_path))
    assert len(bodies(store)) == 3
    store.close()


def test_commit_log_may_be_elsewhere(tmp_path: Path) -> None:
    settings = small_settings(
        tmp_path / "store", commit_log_path=str(tmp_path / "big disk" / "log")
    )
    store = MessageStore.open(settings)
    made = fill(store, 60)
    assert store.close()
    assert len(list((tmp_path / "big disk" / "log").iterdir())) == 3
    assert not (tmp_path / "store" / "commitlog").exists()
    store = MessageStore.open(settings)
    assert bodies(store) == made
    store.close()


@pytest.mark.parametrize(
    ("code", "remedy"), [(errno.EROFS, "mount it anew"), (errno.EACCES, "user it runs as")]
)
@pytest.mark.parametrize("operation", ["make_directories", "create", "open"])
def test_directory_that_cannot_be_written_is_a_clear_error(
    tmp_path: Path, code: int, remedy: str, operation: str
) -> None:
    root = tmp_path / "store"
    if operation == "open":
        assert MessageStore.open(small_settings(root)).close()
    files = FaultyFiles(tmp_path)
    files.fail(operation, code)
    with pytest.raises(StoreNotWritable, match=rf"cannot be written.*{remedy}"):
        MessageStore.open(small_settings(root), files=files)
    files.heal()
    assert MessageStore.open(small_settings(root), files=files).close()


def test_directory_that_no_one_can_make_is_not_a_missing_volume() -> None:
    """The kernel's own file systems answer "no such file" to who makes a directory there."""
    for root in ("/proc/aerobee", "/proc/aerobee/store"):
        with pytest.raises(StoreNotWritable, match=r"^/proc/aerobee cannot be made: .*another"):
            MessageStore.open(small_settings(Path(root)))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_real_directory_without_permission_is_a_clear_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreNotWritable):
            MessageStore.open(small_settings(tmp_path / "store"))
    finally:
        tmp_path.chmod(0o700)


def test_file_in_the_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("not a directory")
    with pytest.raises(StoreError):
        MessageStore.open(small_settings(tmp_path / "store"))


def test_every_call_of_an_opening_may_fail(tmp_path: Path) -> None:
    """EIO at the n-th call, for every n: an error, all given back, and the next start works."""
    store = MessageStore.open(small_settings(tmp_path / "running"))
    made = fill(store, 25)
    image = kill_image(tmp_path / "running", tmp_path / "image")
    store.close()
    for operation in ("open", "create", "read", "write", "sync", "sync_directory", "map",
                      "data_sync", "reserve", "set_size"):  # fmt: skip
        for nth in range(1, 200):
            root = kill_image(image, tmp_path / f"{operation}{nth}")
            files = FaultyFiles(root)
            files.fail(operation, errno.EIO, nth=nth, times=1)
            before = files.count(operation)
            try:
                store = MessageStore.open(small_settings(root), files=files)
            except StoreBroken:
                files.heal()
                store = MessageStore.open(small_settings(root), files=files)
            reached = files.count(operation) - before >= nth
            files.heal()
            assert bodies(store) == made, (operation, nth)
            store.close()
            if not reached:
                break
            assert nth < 199


def test_wrong_content_of_lock_is_put_right(tmp_path: Path) -> None:
    for content in (b"", b"lo", b"something longer"):
        (tmp_path / "lock").write_bytes(content)
        assert MessageStore.open(small_settings(tmp_path)).close()
        assert (tmp_path / "lock").read_bytes() == b"lock"


def test_close_twice_is_harmless_and_close_says_whether_all_is_well(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    fill(store, 3)
    assert store.close()
    assert store.close()
    times = struct.unpack(">qqq", (tmp_path / "checkpoint").read_bytes()[:24])
    assert times[0] == times[1] == times[2] > 0


def test_closing_dispatches_what_nobody_did(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    store.log.put(message(b"x", unique="U"))
    assert store.close()
    store = MessageStore.open(small_settings(tmp_path))
    assert bodies(store) == [b"x"]
    assert store.recovery.clean_stop
    store.close()


def test_threads_and_descriptors_are_given_back(tmp_path: Path) -> None:
    import threading

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    MessageStore.open(small_settings(tmp_path)).close()
    threads, open_files = threading.active_count(), descriptors()
    for _ in range(5):
        store = MessageStore.open(small_settings(tmp_path))
        fill(store, 100, queues=4)
        assert store.close()
        del store
    assert threading.active_count() == threads
    assert descriptors() <= open_files + 1
