"""Replacing a file as a whole: what is synced before what, and what an error leaves."""

from __future__ import annotations

import errno
import os
from pathlib import Path

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


def test_a_new_file_replaces_none(tmp_path: Path) -> None:
    write_synced(tmp_path / "x", b"mine", new=True)
    with pytest.raises(FileExistsError):
        write_synced(tmp_path / "x", b"other", new=True)
    assert (tmp_path / "x").read_bytes() == b"mine"
