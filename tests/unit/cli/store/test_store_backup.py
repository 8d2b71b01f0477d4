"""`aerobee store backup`, `restore` and `verify-backup`: what they say, and their exit codes."""

import errno
from pathlib import Path

import pytest

from aerobee.store.disk.files import Files
from tests.unit.cli.store_support import store, store_process
from tests.unit.store.at_rest import audit_support as at
from tests.unit.store.support import adopt, flip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return adopt(at.make(tmp_path / "store"))


def test_backup_is_made_verified_and_restored(root: Path, tmp_path: Path) -> None:
    target, again = tmp_path / "target", tmp_path / "again"
    done = store_process("backup", root, target)
    assert done.code == 0
    assert "log     0 to " in done.out
    assert store("verify-backup", target).out.splitlines()[-1] == f"{target} is SOUND"
    done = store("restore", target, again)
    assert done.code == 0
    assert "queues  4 with 103 entries" in done.out
    assert f"{again} is as the store was on 20" in done.out
    assert store("verify", again).out.splitlines()[-1].startswith(f"{again} is SOUND")


def test_scripts_get_the_mark_and_the_bytes(root: Path, tmp_path: Path) -> None:
    first = store("backup", root, tmp_path / "target", "--rate", "100", "--json").json
    second = store("backup", root, tmp_path / "target", "-q", "--json").json
    assert first["mark"] == second["mark"] == first["copied_bytes"] - second["copied_bytes"]
    check = store("verify-backup", tmp_path / "target", "--json").json
    assert (check["sound"], check["mark"], check["damaged"]) == (True, first["mark"], [])
    done = store("restore", tmp_path / "target", tmp_path / "again", "--json").json
    assert (done["mark"], done["units"], done["gaps"]) == (first["mark"], 103, [])


def test_damaged_backup_exits_1(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    store("backup", root, target)
    flip(target / "log" / f"{0:020d}", 50)
    done = store("verify-backup", target)
    assert done.code == 1
    assert f"DAMAGE  log/{0:020d}: its CRC-32C is not the manifest's" in done.out
    done = store("restore", target, tmp_path / "again")
    assert done.code == 1
    assert done.err.endswith("Nothing was restored.\n")
    flip(target / "manifest", 20)
    assert store("verify-backup", target).code == 1


def test_what_cannot_be_done_exits_3(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store("backup", root, root / "inside").code == 3
    assert store("backup", tmp_path / "none", tmp_path / "target").code == 3
    assert store("verify-backup", tmp_path / "none").code == 3
    assert store("restore", root, tmp_path / "again").code == 3

    def full(_files: Files, _fd: int, _position: int, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Files, "write", full)
    done = store("backup", root, tmp_path / "target")
    assert done.code == 3
    assert "make room there and run the same command again" in done.err
