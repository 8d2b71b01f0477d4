"""`aerobee store rebuild`: what it says, what it refuses."""

import errno
import shutil
from pathlib import Path

import pytest

from aerobee.store.disk.files import Files
from tests.unit.cli.store_support import store, store_process
from tests.unit.store.at_rest import audit_support as at
from tests.unit.store.support import log_segment, queue_file, tree


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return at.make(tmp_path_factory.mktemp("rebuild") / "template")


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    return at.copy(template, tmp_path / "store")


def test_queues_and_index_are_made_again(root: Path) -> None:
    queue_file(root).unlink()
    shutil.rmtree(root / "index")
    sizes = ("--set", "store.index_slots=50", "--set", "store.index_entries=40")
    done = store_process("rebuild", root, *sizes)
    assert done.code == 0
    assert "read    106 records" in done.out
    assert "queues  4 with 103 entries" in done.out
    assert "index   6 files with 206 keys" in done.out
    assert "the old files are in lost+found-" in done.out
    assert store("verify", root).out.splitlines()[-1] == f"{root} is SOUND"


def test_one_of_both(root: Path) -> None:
    assert "index" not in store("rebuild", root, "--queues").out
    report = store("rebuild", root, "--index", "--json").json
    assert (report["queues"], report["index_files"], report["gaps"]) == (0, 6, [])
    assert Path(report["aside"]).is_dir()


def test_damage_on_the_way_is_said(root: Path) -> None:
    lost = at.of_queue(root, 1)[33]
    at.flip_log(root, lost.log_offset + 95)
    done = store("rebuild", root)
    assert done.code == 0
    assert f"damaged: {lost.size} bytes from {lost.log_offset}" in done.err
    assert "kept    1 slots of lost messages" in done.out


def test_what_cannot_be_done_exits_3_and_changes_nothing(root: Path, tmp_path: Path) -> None:
    log_segment(root, 4096).unlink()
    before = tree(root, ".")
    code, _, err = store("rebuild", root)
    assert code == 3
    assert "the segments between 4096 and 8192 are missing" in err
    assert tree(root, ".") == before
    assert store("rebuild", tmp_path / "none").code == 3
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("command", "text"), [("rebuild", "KiB have to be free"), ("truncate", "--discard")]
)
def test_full_disk_is_said_with_what_is_needed(
    root: Path, monkeypatch: pytest.MonkeyPatch, command: str, text: str
) -> None:
    def full(_files: Files, _fd: int, _position: int, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Files, "write", full)
    more = ["--at", "0", "--yes"] if command == "truncate" else []
    done = store(command, root, *more)
    assert done.code == 3
    assert text in done.err
