"""Readiness says which tables cannot be kept, and which lie damaged beside those served."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from aerobee.broker.background.scheduler import SaveFailure
from aerobee.broker.monitoring.health_checks import Problem
from aerobee.broker.monitoring.kept_tables import aside_probe, saving_probe
from aerobee.broker.tables.files.table_directory import TableDirectory
from aerobee.store.errors import StoreNotWritable


class Disk:
    """A file system with the given room."""

    def __init__(self) -> None:
        self.room = 1 << 30
        self.inodes = 10

    def statvfs(self, path: str) -> os.statvfs_result:
        os.stat(path)
        return os.statvfs_result((4096, 1, 0, 0, self.room, 100, 0, self.inodes, 0, 255))


def directory(path: Path) -> TableDirectory:
    return TableDirectory(str(path), lambda: None)


def test_a_full_disk_is_told_before_a_save_has_met_it(tmp_path: Path) -> None:
    disk = Disk()
    probe = saving_probe(directory(tmp_path), lambda: [None], disk.statvfs)
    assert probe() is None
    disk.room = 1000
    reason = probe()
    assert reason is not None
    assert "cannot be saved: its disk is full (1000 bytes are free" in reason
    disk.room = 100_000
    assert probe() is None
    (tmp_path / "consumerOffset.json").write_bytes(bytes(200_000))
    assert probe() is not None
    # The next save is written over it.
    (tmp_path / "consumerOffset.json.spare").write_bytes(bytes(190_000))
    assert probe() is None
    disk.inodes = 0
    assert "(no inode)" in (probe() or "")


def test_what_the_last_saves_met_is_told(tmp_path: Path) -> None:
    failures = [None, SaveFailure("filters", "EIO"), None]
    probe = saving_probe(directory(tmp_path), lambda: failures)
    assert probe() == "filters cannot be saved: EIO"
    failures.clear()
    assert probe() is None


def test_one_fault_of_several_tables_is_told_once(tmp_path: Path) -> None:
    """Path and fault were there twice for each, and the sentence ended in ".;"."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "topics.json.tmp"))
    refused = StoreNotWritable("the disk is full: topics.json cannot be written (...).")
    refused.__cause__ = full
    failures = [
        SaveFailure.of("/c/topics.json", refused),
        SaveFailure.of("/c/subscriptionGroup.json", refused),
        SaveFailure.of("filters", OSError(errno.EIO, os.strerror(errno.EIO))),
        SaveFailure.of("consumer offsets", full),
        SaveFailure.of("delay progress", FileNotFoundError("the store is gone: /c")),
    ]
    assert saving_probe(directory(tmp_path), lambda: failures)() == (
        "/c/topics.json, /c/subscriptionGroup.json, consumer offsets cannot be saved: the disk is "
        "full (No space left on device); filters cannot be saved: Input/output error; delay "
        "progress cannot be saved: the store is gone: /c"
    )


def test_a_directory_that_no_save_has_made_yet_is_no_reason(tmp_path: Path) -> None:
    assert saving_probe(directory(tmp_path / "config"), list)() is None


def test_a_directory_that_is_gone_is_told_with_what_to_do(tmp_path: Path) -> None:
    tables = directory(tmp_path / "config")
    tables.check()
    (tmp_path / "config").rmdir()
    tables.look()
    said = saving_probe(tables, lambda: [SaveFailure("one", "too")])()
    assert isinstance(said, Problem)
    assert said.reason == f"no table can be saved: {tables.problem}"
    assert "move it back as it was, or stop the broker in order" in said.remedy


def test_what_is_kept_aside_is_told_until_it_is_taken_away(tmp_path: Path) -> None:
    for name in ("topics.json", "topics.json.damaged", "stages.json.bak.damaged-2"):
        (tmp_path / name).touch()
    probe = aside_probe([str(tmp_path), str(tmp_path / "none")])
    said = probe()
    assert said is not None
    assert f"{tmp_path}/stages.json.bak.damaged-2, {tmp_path}/topics.json.damaged" in said
    (tmp_path / "topics.json.damaged").unlink()
    assert "topics" not in (probe() or "")
    (tmp_path / "stages.json.bak.damaged-2").unlink()
    assert probe() is None
