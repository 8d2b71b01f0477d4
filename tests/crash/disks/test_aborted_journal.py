"""A journal that another file's sync has found broken: no sync afterwards may be believed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from aerobee.store.disk.files import Files
from tests.crash.disks.extents import joined, journal_of
from tests.crash.disks.mounts import sync_file_system
from tests.crash.disks.write_back import written_back
from tests.crash.power_cuts.recorded_disk import RecordedDisk, make_file_system
from tests.tools import tool

_BLOCK = 4096
#: Otherwise ext4 commits every five seconds, on a busy machine perhaps just before the failure.
_NO_COMMIT_MEANWHILE = "commit=600"
_BYTES = b"acknowledged"


@pytest.fixture(autouse=True)
def _tools(recorded_disks: None) -> None:
    return


def _sync_too_late(folder: Path, sync: Callable[[int], None]) -> bytes:
    """`sync` a file whose newest bytes went with a transaction that failed in another's sync;
    returns the file's content after a new mount."""
    image = make_file_system(folder / "base", "ext4")
    with RecordedDisk(folder, image, options=_NO_COMMIT_MEANWHILE) as disk:
        log = os.open(disk.root / "log", os.O_RDWR | os.O_CREAT)
        queue = os.open(disk.root / "queue", os.O_RDWR | os.O_CREAT)
        try:
            for fd in (log, queue):
                os.posix_fallocate(fd, 0, _BLOCK)
            sync_file_system(log)
            os.pwrite(log, _BYTES, 0)
            written_back(log)
            for start, end in joined(journal_of(image)):
                disk.fail_writes(start, end)
            os.pwrite(queue, b"unit", 0)
            with pytest.raises(OSError, match="Input/output error"):
                os.fsync(queue)
            sync(log)
        finally:
            os.close(log)
            os.close(queue)
        disk.heal()
        disk.remount()
        return (disk.root / "log").read_bytes()[: len(_BYTES)]


def _sync_directory_of(fd: int) -> None:
    Files().sync_directory(os.path.dirname(os.readlink(f"/proc/self/fd/{fd}")))


@pytest.mark.parametrize("sync", [Files().data_sync, Files().sync, _sync_directory_of])
def test_sync_after_another_one_met_the_failure_is_refused(
    folder: Path, sync: Callable[[int], None]
) -> None:
    with pytest.raises(OSError, match="Read-only file system"):
        _sync_too_late(folder, sync)


def test_file_on_a_disk_mounted_to_read_is_as_synced_as_it_can_be(folder: Path) -> None:
    """Commit logs may have read-only paths, and a recovery syncs whatever it reads."""
    with RecordedDisk(folder, make_file_system(folder / "base", "ext4")) as disk:
        (disk.root / "log").write_bytes(_BYTES)
        subprocess.run([tool("mount"), "-o", "remount,ro", str(disk.root)], check=True)
        log = os.open(disk.root / "log", os.O_RDONLY)
        try:
            Files().sync(log)
            with pytest.raises(OSError, match="Read-only file system"):
                Files().sync_directory(str(disk.root))
        finally:
            os.close(log)


def test_kernel_that_is_believed_loses_what_it_said_was_synced(folder: Path) -> None:
    """The control: the reason for the refusal. A kernel that tells by itself is as good."""
    try:
        assert _sync_too_late(folder, os.fdatasync) == bytes(len(_BYTES))
    except OSError as error:
        print(f"this kernel says it by itself: {error}")
