"""The store's expectations of its access to the operating system, of the real files and of their
twins."""

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from aerobee.store.disk.files import Files
from tests.faulty_files import FaultyFiles
from tests.sim.disk.memory_files import MemoryFiles
from tests.sim.disk.recorded_files import RecordedFiles

MakeFiles = Callable[[Path], Files]


def real(_root: Path) -> Files:
    return Files()


@pytest.fixture(
    params=[real, FaultyFiles, MemoryFiles, RecordedFiles],
    ids=["real", "faulty", "memory", "recorded"],
)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    make: MakeFiles = request.param
    return make(tmp_path)


def make_file(files: Files, path: Path, content: bytes) -> int:
    fd = files.open(str(path), create=True)
    files.write(fd, 0, content)
    return fd


def set_modified(files: Files, path: Path, modified_ns: int) -> None:
    if isinstance(files, MemoryFiles):
        files.set_modified_ns(str(path), modified_ns)
    else:
        os.utime(path, ns=(0, modified_ns))


def test_create_refuses_an_existing_name(files: Files, tmp_path: Path) -> None:
    files.close(make_file(files, tmp_path / "a", b"x"))
    with pytest.raises(FileExistsError):
        files.open(str(tmp_path / "a"), create=True)


def test_open_of_an_absent_file_fails(files: Files, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.open(str(tmp_path / "a"))
    with pytest.raises(FileNotFoundError):
        files.size_of(str(tmp_path / "a"))
    with pytest.raises(FileNotFoundError):
        files.open(str(tmp_path / "sub" / "a"), create=True)
    assert not files.exists(str(tmp_path / "a"))


def test_names_are_those_of_one_directory(files: Files, tmp_path: Path) -> None:
    files.make_directories(str(tmp_path / "sub"))
    files.close(make_file(files, tmp_path / "sub" / "b", b""))
    files.close(make_file(files, tmp_path / "a", b""))
    assert files.names(str(tmp_path)) == ["a", "sub"]
    assert files.names(str(tmp_path / "absent")) == []
    assert not files.is_directory(str(tmp_path / "a"))
    with pytest.raises(NotADirectoryError):
        files.names(str(tmp_path / "a"))
    with pytest.raises(FileNotFoundError):
        files.sync_directory(str(tmp_path / "absent"))


def test_read_only_descriptor_does_not_write(files: Files, tmp_path: Path) -> None:
    files.close(make_file(files, tmp_path / "a", b"abc"))
    fd = files.open(str(tmp_path / "a"), read_only=True)
    with pytest.raises(OSError, match="Bad file descriptor"):
        files.write(fd, 0, b"x")
    assert files.read(fd, 0, 3) == b"abc"
    files.close(fd)


def test_a_removed_file_lives_as_long_as_it_is_open(files: Files, tmp_path: Path) -> None:
    fd = make_file(files, tmp_path / "a", b"old")
    files.remove(str(tmp_path / "a"))
    files.close(make_file(files, tmp_path / "a", b"new"))
    files.write(fd, 0, b"OLD")
    files.data_sync(fd)
    assert files.read(fd, 0, 3) == b"OLD"
    files.close(fd)
    fd = files.open(str(tmp_path / "a"))
    assert files.read(fd, 0, 3) == b"new"
    files.close(fd)


def test_reads_and_writes_at_positions(files: Files, tmp_path: Path) -> None:
    fd = make_file(files, tmp_path / "a", b"0123456789")
    files.write(fd, 4, memoryview(b"xy"))
    assert files.read(fd, 3, 4) == b"3xy6"
    assert files.read(fd, 8, 100) == b"89"
    assert files.read(fd, 10, 5) == b""
    files.close(fd)


def test_set_size_lengthens_with_zeros_and_cuts(files: Files, tmp_path: Path) -> None:
    fd = make_file(files, tmp_path / "a", b"abc")
    files.set_size(fd, 10)
    assert files.read(fd, 0, 20) == b"abc" + bytes(7)
    files.set_size(fd, 2)
    assert files.size(fd) == files.size_of(str(tmp_path / "a")) == 2
    files.close(fd)


def test_new_file_has_its_length_and_no_blocks(files: Files, tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    fd = files.create(path, 1 << 20)
    assert files.size(fd) == files.size_of(path) == 1 << 20
    assert os.fstat(fd).st_blocks == 0
    files.write(fd, 5, b"x")
    files.close(fd)
    fd = files.open(path)
    assert files.read(fd, 4, 3) == b"\0x\0"
    files.close(fd)
    with pytest.raises(FileExistsError):
        files.create(path, 10)
    with pytest.raises(FileNotFoundError):
        files.create(str(tmp_path / "no" / "a"), 10)
    assert files.size_of(path) == 1 << 20


def test_reserve_keeps_bytes_and_takes_blocks(files: Files, tmp_path: Path) -> None:
    fd = make_file(files, tmp_path / "a", b"abc")
    files.set_size(fd, 1 << 20)
    files.reserve(fd, 0, 1 << 20)
    assert files.read(fd, 0, 4) == b"abc\0"
    assert os.fstat(fd).st_blocks * 512 >= 1 << 20
    files.reserve(fd, 5, 0)
    files.close(fd)


def test_mapping_and_descriptor_show_the_same_bytes(files: Files, tmp_path: Path) -> None:
    fd = make_file(files, tmp_path / "a", bytes(4096))
    memory = files.map(fd, 4096)
    memory[10:13] = b"abc"
    assert files.read(fd, 10, 3) == b"abc"
    files.write(fd, 20, b"def")
    assert memory[20:23] == b"def"
    files.data_sync(fd)
    files.sync(fd)
    memory.close()
    read_only = files.map(fd, 4096, read_only=True)
    with pytest.raises(TypeError):
        read_only[0:1] = b"x"
    read_only.close()
    files.close(fd)


def test_anonymous_memory_is_locked_and_zeroed(files: Files) -> None:
    memory = files.anonymous(3 * 4096)
    before = locked_kib()
    files.lock_memory(memory)
    assert locked_kib() == before + 12
    assert memory[:] == bytes(3 * 4096)
    memory[4000:4200] = b"x" * 200
    files.zero_memory(memory, 4096, 4096)
    assert memory[4000:4200] == b"x" * 96 + bytes(104)
    files.unlock_memory(memory)
    assert locked_kib() == before
    memory.close()


def locked_kib() -> int:
    """Memory of this process that is locked, as the kernel counts it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmLck:")[2].split()[0])


def test_zeroing_through_a_mapping_reaches_the_file(files: Files, tmp_path: Path) -> None:
    fd = make_file(files, tmp_path / "a", b"x" * 8192)
    memory = files.map(fd, 8192)
    files.zero_memory(memory, 100, 50)
    assert files.read(fd, 0, 8192) == b"x" * 100 + bytes(50) + b"x" * 8042
    memory.close()
    files.close(fd)


@pytest.mark.parametrize("count", [3, 200])
def test_ends_of_few_and_of_many_files_come_in_order(
    files: Files, tmp_path: Path, count: int
) -> None:
    paths = [tmp_path / f"{number:03}" for number in range(count)]
    for number, path in enumerate(paths):
        files.close(make_file(files, path, b"x" * number + bytes(100)))
    assert files.synced_ends([str(path) for path in paths], 4096) == list(range(count))
    with pytest.raises(FileNotFoundError):
        files.synced_ends([*map(str, paths), str(tmp_path / "absent")], 4096)


def test_finds_what_is_not_zero_in_a_sparse_file(files: Files, tmp_path: Path) -> None:
    size = 8 << 20
    fd = make_file(files, tmp_path / "a", b"")
    files.set_size(fd, size)
    assert files.last_nonzero(fd, 0, size) == 0
    files.write(fd, 5_000_000, b"\1\0\2")
    assert files.last_nonzero(fd, 0, size) == 5_000_003
    assert files.last_nonzero(fd, 0, 5_000_002) == 5_000_001
    files.close(fd)


def test_zero_rewrites_only_what_is_not_zero(files: Files, tmp_path: Path) -> None:
    size = 8 << 20
    fd = make_file(files, tmp_path / "a", b"keep")
    files.set_size(fd, size)
    files.write(fd, 3_000_000, b"gone")
    assert files.zero(fd, 4, size) > 0
    assert files.read(fd, 0, size) == b"keep" + bytes(size - 4)
    assert files.zero(fd, 4, size) == 0
    files.close(fd)


def test_rename_replaces_and_remove_removes(files: Files, tmp_path: Path) -> None:
    files.close(make_file(files, tmp_path / "a", b"new"))
    files.close(make_file(files, tmp_path / "b", b"old"))
    files.rename(str(tmp_path / "a"), str(tmp_path / "b"))
    assert files.names(str(tmp_path)) == ["b"]
    files.remove(str(tmp_path / "b"))
    files.sync_directory(str(tmp_path))
    assert not files.exists(str(tmp_path / "b"))
    with pytest.raises(FileNotFoundError):
        files.remove(str(tmp_path / "b"))


def test_rename_takes_a_directory_with_all_it_holds(files: Files, tmp_path: Path) -> None:
    files.make_directories(str(tmp_path / "a" / "b"))
    fd = make_file(files, tmp_path / "a" / "b" / "c", b"inside")
    files.rename(str(tmp_path / "a"), str(tmp_path / "a.removed"))
    assert files.names(str(tmp_path)) == ["a.removed"]
    assert not files.exists(str(tmp_path / "a" / "b" / "c"))
    assert files.names(str(tmp_path / "a.removed" / "b")) == ["c"]
    assert files.read(fd, 0, 10) == b"inside"
    files.close(fd)
    files.make_directories(str(tmp_path / "a" / "b"))
    assert files.names(str(tmp_path / "a" / "b")) == []
    files.remove_tree(str(tmp_path / "a.removed"))
    assert files.names(str(tmp_path)) == ["a"]


def test_make_directories_takes_a_relative_path(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert files.make_directories(".run/store") == [str(tmp_path), str(tmp_path / ".run")]
    assert files.is_directory(str(tmp_path / ".run" / "store"))


def test_make_directories_below_one_that_is_gone_makes_nothing(
    files: Files, tmp_path: Path
) -> None:
    """A store that was moved away is not begun anew at its old path."""
    root = tmp_path / "root"
    with pytest.raises(FileNotFoundError):
        files.make_directories(str(root / "a" / "b"), below=str(root))
    assert not files.exists(str(root))
    files.make_directories(str(root))
    deep = str(root / "a" / "b")
    assert files.make_directories(deep, below=str(root)) == [str(root), str(root / "a")]
    assert files.make_directories(str(root), below=str(root)) == []


def test_make_directories_names_what_has_to_be_synced(files: Files, tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    assert files.make_directories(str(deep)) == [str(tmp_path), str(tmp_path / "a")]
    assert files.make_directories(str(deep)) == []
    assert files.is_directory(str(deep))
    files.remove_tree(str(tmp_path / "a"))
    files.remove_tree(str(tmp_path / "a"))
    assert files.names(str(tmp_path / "a")) == []


def test_lock_excludes_another_process_until_closed(files: Files, tmp_path: Path) -> None:
    fd = make_file(files, tmp_path / "lock", b"lock")
    other = files.open(str(tmp_path / "lock"))
    code = (
        "import fcntl, sys\n"
        f"file = open('/proc/{os.getpid()}/fd/{other}', 'r+b')\n"
        "try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
        "except OSError: sys.exit(7)\n"
    )
    assert files.try_lock(fd)
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7
    files.close(fd)  # closing any descriptor of the file gives the lock away
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    files.close(other)


def test_used_ratio_is_a_share(files: Files, tmp_path: Path) -> None:
    assert 0 < files.used_ratio(str(tmp_path)) <= 1
    space = files.disk_space(str(tmp_path))
    assert space.used_bytes > 0
    assert space.free_bytes > 0
    with pytest.raises(FileNotFoundError):
        files.disk_space(str(tmp_path / "absent"))


def test_file_is_alone_once_no_name_no_descriptor_and_no_mapping_is_left(
    files: Files, tmp_path: Path
) -> None:
    on_a_disk = not isinstance(files, MemoryFiles)
    fd = make_file(files, tmp_path / "a", bytes(4096))
    assert not files.is_alone(fd)
    if on_a_disk:
        os.link(tmp_path / "a", tmp_path / "copy")
    reader = files.open(str(tmp_path / "a"), read_only=True)
    memory = files.map(reader, 4096, read_only=True)
    files.remove(str(tmp_path / "a"))
    assert not files.is_alone(fd)
    files.close(reader)
    assert not files.is_alone(fd)
    memory.close()
    if on_a_disk:
        assert not files.is_alone(fd)
        files.remove(str(tmp_path / "copy"))
        # The disk in memory keeps a descriptor of its own, and so never can tell.
        assert files.is_alone(fd)
    files.close(fd)


def test_modified_ms_is_the_time_of_the_last_change(files: Files, tmp_path: Path) -> None:
    files.close(make_file(files, tmp_path / "a", b"x"))
    set_modified(files, tmp_path / "a", 1_700_000_000_123_456_789)
    assert files.modified_ms(str(tmp_path / "a")) == 1_700_000_000_123
    with pytest.raises(FileNotFoundError):
        files.modified_ms(str(tmp_path / "absent"))


def test_twin_fails_the_call_it_was_told_to(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    fd = make_file(files, tmp_path / "a", b"x")
    files.fail("write", errno.ENOSPC, part="a", nth=2, times=1)
    files.write(fd, 0, b"1")
    with pytest.raises(OSError, match="No space left") as caught:
        files.write(fd, 0, b"2")
    assert caught.value.errno == errno.ENOSPC
    files.write(fd, 0, b"3")
    assert files.read(fd, 0, 1) == b"3"
    files.close(fd)


def test_twin_forgets_what_was_not_synced(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "old").write_bytes(b"old")
    files = FaultyFiles(root)
    synced = make_file(files, root / "synced", b"1")
    files.sync(synced)
    unnamed = make_file(files, root / "unnamed", b"1")
    files.make_directories(str(root / "sub"))
    files.sync_directory(str(root))
    files.write(synced, 0, b"2")
    files.close(make_file(files, root / "sub" / "c", b"1"))
    files.close(make_file(files, root / "late", b"1"))
    files.power_cut(tmp_path / "image")
    image = tmp_path / "image"
    assert sorted(path.name for path in image.iterdir()) == ["old", "sub", "synced", "unnamed"]
    assert (image / "old").read_bytes() == b"old"
    assert (image / "synced").read_bytes() == b"1"
    assert (image / "unnamed").read_bytes() == b""
    assert list((image / "sub").iterdir()) == []
    files.close(synced)
    files.close(unnamed)


def test_identity_tells_a_file_from_its_copy_and_from_a_rewrite(
    files: Files, tmp_path: Path
) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    files.close(make_file(files, first, b"x"))
    identity = files.identity(str(first))
    assert files.identity(str(first)) == identity
    files.close(make_file(files, second, b"x"))
    set_modified(files, second, identity[1])
    assert files.identity(str(second)) != identity
    set_modified(files, first, 1)
    assert files.identity(str(first)) == (identity[0], 1)


def test_boot_id_stays_while_the_machine_is_up(files: Files) -> None:
    assert files.boot_id() == files.boot_id() != ""


def test_file_from_before_the_clock_was_set_back_was_not_made_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its time it seems to be from this run of the machine, whenever it was made."""
    (tmp_path / "abort").touch()
    earlier_ns = time.time_ns() - 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: earlier_ns)
    assert not Files().made_and_left(str(tmp_path / "abort"))


def test_file_whose_times_were_set_was_not_made_and_left(files: Files, tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    files.close(make_file(files, first, b""))
    files.close(make_file(files, second, b""))
    assert files.made_and_left(str(first))
    # A copy that keeps times has them set; nobody can set the inode's own time.
    set_modified(files, second, time.time_ns() - 10**9)
    assert not files.made_and_left(str(second))
    set_modified(files, first, 1)
    assert not files.made_and_left(str(first))


@pytest.mark.parametrize("operation", ["lock", "zero"])
def test_other_threads_run_while_memory_is_locked_or_zeroed(operation: str) -> None:
    # A busy machine may keep this thread off its cores for all of one call.
    assert any(ran_in_the_middle(operation) for _ in range(10))


def ran_in_the_middle(operation: str) -> bool:
    """Whether this thread ran in the middle third of the time that another one's call took.

    At its edges the interpreter may switch whatever the call does; in its middle only if it may.
    """
    files = Files()
    memory = files.anonymous(256 << 20)
    times: list[float] = []
    refused: list[OSError] = []

    def work() -> None:
        times.append(time.perf_counter())
        try:
            if operation == "lock":
                files.lock_memory(memory)
            else:
                files.zero_memory(memory, 0, len(memory))
        except OSError as error:
            refused.append(error)
        times.append(time.perf_counter())

    thread = threading.Thread(target=work)
    moments: list[float] = []
    thread.start()
    while thread.is_alive():
        moments.append(time.perf_counter())
        os.sched_yield()
    memory.close()
    if refused:
        pytest.skip(f"locked memory is limited to less than this test takes: {refused[0]}")
    start, end = times
    third = (end - start) / 3
    return any(start + third < moment < end - third for moment in moments)
