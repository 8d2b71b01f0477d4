"""Replacing a file as a whole: the order of syncs, and the files that an error leaves."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from aerobee.file_replacement import replace_file, write_synced


def test_the_content_is_replaced_and_the_old_one_kept(tmp_path: Path) -> None:
    path, backup = tmp_path / "x.json", tmp_path / "x.json.bak"
    replace_file(path, b"one", backup=backup)
    assert not backup.exists()
    replace_file(path, b"two", backup=backup)
    assert (path.read_bytes(), backup.read_bytes()) == (b"two", b"one")
    assert sorted(os.listdir(tmp_path)) == ["x.json", "x.json.bak"]


def test_an_empty_file_does_not_push_out_its_backup(tmp_path: Path) -> None:
    path, backup = tmp_path / "x.json", tmp_path / "x.json.bak"
    path.write_bytes(b"")
    backup.write_bytes(b"good")
    replace_file(path, b"new", backup=backup)
    assert backup.read_bytes() == b"good"


def test_everything_is_synced_before_the_name_changes_and_the_directory_after(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    seen = []

    def sync(descriptor: int) -> None:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
        seen.append((name, path.read_bytes()))

    replace_file(path, b"new", backup=tmp_path / "x.bak", sync=sync)
    assert seen == [("x.tmp", b"old"), ("x.bak", b"old"), (tmp_path.name, b"new")]


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_failed_sync_leaves_the_old_content(tmp_path: Path, fails_at: int) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    calls = []

    def sync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == fails_at:
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        replace_file(path, b"new", backup=tmp_path / "x.bak", sync=sync)
    assert path.read_bytes() == b"old"


def test_the_mode_is_the_one_asked_for(tmp_path: Path) -> None:
    replace_file(tmp_path / "x", b"", mode=0o640)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


def test_the_mode_that_was_there_stays_whatever_the_umask_is(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.touch()
    path.chmod(0o640)
    before = os.umask(0o077)
    try:
        replace_file(path, b"new", keep_mode=True)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640
    replace_file(tmp_path / "y", b"new", keep_mode=True, mode=0o600)
    assert (tmp_path / "y").stat().st_mode & 0o777 == 0o600


def test_what_a_crash_left_gives_the_file_no_rights_and_leads_nowhere(tmp_path: Path) -> None:
    path, left, elsewhere = tmp_path / "x", tmp_path / "x.tmp", tmp_path / "elsewhere"
    path.touch(0o600)
    left.write_bytes(b"half")
    left.chmod(0o644)
    replace_file(path, b"secret", keep_mode=True)
    assert path.stat().st_mode & 0o777 == 0o600
    elsewhere.write_bytes(b"mine")
    left.symlink_to(elsewhere)
    replace_file(path, b"secret", keep_mode=True)
    assert (path.read_bytes(), elsewhere.read_bytes()) == (b"secret", b"mine")
    assert not path.is_symlink()


def test_a_new_file_replaces_none(tmp_path: Path) -> None:
    write_synced(tmp_path / "x", b"mine", new=True)
    with pytest.raises(FileExistsError):
        write_synced(tmp_path / "x", b"other", new=True)
    assert (tmp_path / "x").read_bytes() == b"mine"


# --- the spare ------------------------------------------------------------------------------------


def large(number: int, size: int = 300_000) -> list[bytes]:
    """A content in pieces."""
    return [b"%09d," % number] * (size // 10)


def replace_large(path: Path, number: int, size: int = 300_000) -> None:
    backup = path.with_name(path.name + ".bak")
    replace_file(path, large(number, size), backup=backup, keep_spare=True)


def held_in(path: Path) -> int:
    """Which of the large contents that is, whole."""
    content = path.read_bytes()
    number = int(content[:9])
    assert content == b"".join(large(number, len(content)))
    return number


def test_large_contents_take_turns_in_three_files(tmp_path: Path) -> None:
    path = tmp_path / "x"
    seen = []
    for number in range(9):
        replace_large(path, number, 390_000 - 5_000 * number)
        seen.append(path.stat().st_ino)
        assert held_in(path) == number
        assert not number or held_in(tmp_path / "x.bak") == number - 1
    assert len(set(seen)) == 3
    assert sorted(os.listdir(tmp_path)) == ["x", "x.bak", "x.spare"]


def test_a_file_that_grows_is_made_anew_at_times(tmp_path: Path) -> None:
    """The kernel would have to write many small pieces of a file that grew a little at a time."""
    made = set()
    for number in range(300):
        replace_large(tmp_path / "x", number, 300_000 + 1_000 * number)
        made.add((tmp_path / "x").stat().st_ino)
        assert held_in(tmp_path / "x") == number
    # Three in each eighth of 512 KiB and of 1 MiB; some have the number of a file that has gone.
    assert 3 < len(made) <= 3 * 5


def test_small_contents_leave_no_spare(tmp_path: Path) -> None:
    for number in range(5):
        replace_large(tmp_path / "x", number, 1_000)
    assert sorted(os.listdir(tmp_path)) == ["x", "x.bak"]


def test_who_reads_the_file_or_has_linked_it_sees_no_later_content(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for number in range(4):
        replace_large(path, number)
    os.link(path, tmp_path / "kept")
    replace_large(path, 4)
    with path.open("rb", buffering=0) as reader:
        began = reader.read(100_000)
        for number in range(5, 12):
            replace_large(path, number)
        assert began + reader.read() == b"".join(large(4))
    assert held_in(tmp_path / "kept") == 3
    assert held_in(path) == 11


def test_something_else_in_the_place_of_the_spare_is_not_written_to(tmp_path: Path) -> None:
    path, other = tmp_path / "x", tmp_path / "other"
    other.write_bytes(b"mine")
    (tmp_path / "x.spare").symlink_to(other)
    replace_large(path, 0)
    assert other.read_bytes() == b"mine"
    (tmp_path / "x.spare").unlink()
    (tmp_path / "x.spare").mkdir()
    for number in range(1, 5):
        replace_large(path, number)
    assert held_in(path) == 4
    assert (tmp_path / "x.spare").is_dir()


@pytest.mark.parametrize("call", ["open", "writev", "ftruncate", "fsync", "link", "replace"])
@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_an_error_at_any_call_leaves_whole_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, fails_at: int
) -> None:
    path = tmp_path / "x"
    for number in range(4):
        replace_large(path, number)
    function, calls = getattr(os, call), []

    def failing(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        if len(calls) == fails_at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return function(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        with suppress(OSError):
            replace_large(path, 4)
    assert held_in(path) in (3, 4)
    assert held_in(tmp_path / "x.bak") in (2, 3)
    for number in range(5, 9):
        replace_large(path, number)
        assert held_in(path) == number


def test_more_pieces_than_one_call_takes_and_a_short_write_are_all_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writev = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, some: writev(fd, [bytes(some[0])[:7]]))
    pieces = [b"", *(b"%d " % number * 3 for number in range(2_500)), b""]
    write_synced(tmp_path / "x", pieces)
    assert (tmp_path / "x").read_bytes() == b"".join(pieces)
    write_synced(tmp_path / "empty", b"")
    assert (tmp_path / "empty").read_bytes() == b""
