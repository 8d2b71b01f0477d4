"""New store files have their length from the moment their name is there."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aerobee.store.disk.files import Files

WRITER = """
import sys
from aerobee.store.disk.files import Files
files = Files()
for number in range(1_000_000):
    path = f"{sys.argv[1]}/{number:07d}"
    files.close(files.create(path, 4096))
    if number > 50:
        files.remove(f"{sys.argv[1]}/{number - 50:07d}")
"""


def test_a_process_killed_at_any_moment_leaves_no_shorter_file(tmp_path: Path) -> None:
    for round_ in range(5):
        folder = tmp_path / str(round_)
        folder.mkdir()
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)])
        try:
            deadline = time.monotonic() + 30
            while not any(folder.iterdir()):
                assert time.monotonic() < deadline
        finally:
            writer.kill()
            writer.wait()
        sizes = {entry.stat().st_size for entry in folder.iterdir()}
        assert sizes == {4096}


def test_without_unnamed_files_it_is_made_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = os.open

    def refuse(path: str, flags: int, *more: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "Operation not supported", path)
        return made(path, flags, *more)

    monkeypatch.setattr(os, "open", refuse)
    files = Files()
    fd = files.create(str(tmp_path / "a"), 10)
    assert files.size(fd) == files.size_of(str(tmp_path / "a")) == 10
    files.close(fd)
