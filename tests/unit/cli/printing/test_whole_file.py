"""A file that is there whole or not at all, on file systems with and without hard links."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from aerobee.cli.printing.output import CommandFailed
from aerobee.cli.printing.whole_file import WholeFile


def no_links(*_: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_gets_its_name_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    if not has_links:
        monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "file"
    # A command that was killed has left this.
    (tmp_path / "file.part").write_bytes(b"half")
    with WholeFile(str(path)) as file:
        file.write(b"one ")
        assert not path.exists()
        file.write(b"two")
    assert (path.read_bytes(), file.size) == (b"one two", 7)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_that_came_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    if not has_links:
        monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "file"

    def write() -> None:
        with WholeFile(str(path)) as file:
            file.write(b"mine")
            path.write_bytes(b"another's")

    with pytest.raises(CommandFailed, match="exists already"):
        write()
    assert path.read_bytes() == b"another's"
    assert os.listdir(tmp_path) == ["file"]


def test_an_error_inside_leaves_nothing(tmp_path: Path) -> None:
    def write() -> None:
        with WholeFile(str(tmp_path / "file")) as file:
            file.write(b"half")
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        write()
    assert os.listdir(tmp_path) == []


def test_a_directory_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="No such file"), WholeFile(str(tmp_path / "a" / "b")):
        pass
