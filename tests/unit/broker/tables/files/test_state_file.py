"""State files: RocketMQ's form, replaced whole, never lost to a crash in between."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from aerobee import file_replacement
from aerobee.broker.tables.files import state_file
from aerobee.broker.tables.files.state_file import (
    JsonStateFile,
    StateFileError,
    pretty,
    read_document,
)


def parse(content: bytes) -> dict[str, int]:
    value = json.loads(content)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def test_pretty_writes_bare_whole_number_keys_on_one_line_as_rocketmq_does() -> None:
    table = {"offsetTable": {"%RETRY%g1@g1": {0: 5}, "T@g1": {0: 0, 1: 10}, "E@g": {}}}
    assert pretty(table) == (
        '{\n\t"offsetTable":{\n\t\t"%RETRY%g1@g1":{0:5\n\t\t},\n'
        '\t\t"T@g1":{0:0,1:10\n\t\t},\n\t\t"E@g":{}\n\t}\n}'
    )


def test_pretty_escapes_controls_and_leaves_other_text_as_it_is() -> None:
    assert pretty({"k": 'a"b\\\u0001\t\u4e2d'}) == '{\n\t"k":"a\\"b\\\\\\u0001\\t\u4e2d"\n}'


def test_a_missing_file_gives_the_default(tmp_path: Path) -> None:
    assert JsonStateFile(tmp_path / "x.json").load(parse, {"default": 1}) == {"default": 1}


def test_what_was_saved_is_loaded_and_the_one_before_is_the_backup(tmp_path: Path) -> None:
    file = JsonStateFile(tmp_path / "config" / "x.json")
    file.save('{"a":1}')
    file.save('{"a":2}')
    assert file.load(parse, {}) == {"a": 2}
    assert parse(file.backup.read_bytes()) == {"a": 1}
    assert not file.path.with_name("x.json.tmp").exists()


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]"])
def test_a_damaged_file_falls_back_to_its_backup(tmp_path: Path, damage: bytes) -> None:
    file = JsonStateFile(tmp_path / "x.json")
    file.save('{"a":1}')
    file.save('{"a":2}')
    file.path.write_bytes(damage)
    assert file.load(parse, {}) == {"a": 1}


def test_a_crash_between_keeping_the_old_and_renaming_leaves_the_backup(tmp_path: Path) -> None:
    file = JsonStateFile(tmp_path / "x.json")
    file.backup.write_bytes(b'{"a":1}')
    file.path.with_name("x.json.tmp").write_bytes(b'{"a"')
    assert file.load(parse, {}) == {"a": 1}


def test_file_and_backup_both_damaged_stop_the_start_and_name_both(tmp_path: Path) -> None:
    file = JsonStateFile(tmp_path / "x.json")
    file.path.write_bytes(b"{")
    file.backup.write_bytes(b"{")
    with pytest.raises(StateFileError, match=r"x\.json\.bak"):
        file.load(parse, {})


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b"\0\0\0"])
def test_a_damaged_file_without_a_backup_stops_the_start(tmp_path: Path, damage: bytes) -> None:
    """Starting with nothing would reset everybody's offsets."""
    file = JsonStateFile(tmp_path / "x.json")
    file.save('{"a":1}')
    file.backup.unlink()
    file.path.write_bytes(damage)
    with pytest.raises(StateFileError, match=r"x\.json.*restore"):
        file.load(parse, {})


@pytest.mark.parametrize("damage", [b"", b"{"])
def test_a_missing_file_with_a_damaged_backup_stops_the_start(
    tmp_path: Path, damage: bytes
) -> None:
    file = JsonStateFile(tmp_path / "x.json")
    file.backup.write_bytes(damage)
    with pytest.raises(StateFileError, match=r"x\.json\.bak"):
        file.load(parse, {})


@pytest.mark.parametrize("name", ["x.json", "x.json.bak"])
def test_a_directory_in_the_place_of_a_file_stops_the_start_and_is_named(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(StateFileError, match=f"{name} is a directory"):
        JsonStateFile(tmp_path / "x.json").load(parse, {})


@pytest.mark.parametrize("name", ["x.json", "x.json.bak"])
def test_what_is_damaged_is_kept_aside_and_the_rest_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """A start never dies of a table of its own; each damage keeps a name of its own."""
    for number in ("", "-2", "-3"):
        file = JsonStateFile(tmp_path / "x.json", sets_aside=True)
        (tmp_path / name).write_text(f"damaged{number}")
        assert file.load(parse, {"default": 1}, lambda contents: {"rescued": contents}) == {
            "rescued": [f"damaged{number}".encode()]
        }
        assert file.is_lost
        aside = tmp_path / f"{name}.damaged{number}"
        assert aside.read_text() == f"damaged{number}"
        assert aside in file.set_aside()
    assert f"damaged file kept aside path={aside}" in caplog.text


def test_damage_beside_a_backup_is_kept_aside_too(tmp_path: Path) -> None:
    """The next save would have written over it."""
    file = JsonStateFile(tmp_path / "x.json", sets_aside=True)
    file.save('{"a": 1}')
    file.path.write_text("damaged")
    assert file.load(parse, {}) == {"a": 1}
    file.save('{"a": 2}')
    assert (tmp_path / "x.json.damaged").read_text() == "damaged"
    assert (not file.is_lost, file.load(parse, {})) == (True, {"a": 2})


def test_a_directory_in_the_place_of_a_file_is_kept_aside(tmp_path: Path) -> None:
    (tmp_path / "x.json" / "mine").mkdir(parents=True)
    assert JsonStateFile(tmp_path / "x.json", sets_aside=True).load(parse, {"a": 1}) == {"a": 1}
    assert (tmp_path / "x.json.damaged" / "mine").is_dir()


def test_a_save_does_not_make_the_folder_of_a_store_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        JsonStateFile(tmp_path / "gone" / "config" / "x.json").save("{}")
    assert not (tmp_path / "gone").exists()


def test_a_document_of_ours_is_read_however_many_values_it_has() -> None:
    """A table that was written was refused by the next start: "more than 1000000 values"."""
    assert len(read_document(b"[" + b"0," * 1_000_001 + b"0]")) == 1_000_002


def test_first_text_has_a_backup(tmp_path: Path) -> None:
    file = JsonStateFile(tmp_path / "x.json")
    file.save('{"a": 1}')
    (tmp_path / "x.json").write_bytes(b'{"a" 1}')
    assert file.load(json.loads, None) == {"a": 1}


def test_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "config").write_bytes(b"mine")
    with pytest.raises(StateFileError, match=f"{tmp_path}/config is a file"):
        JsonStateFile(tmp_path / "config" / "x.json").load(json.loads, None)


@pytest.mark.parametrize("fails_at", [1, 2])
def test_full_disk_at_the_first_save_leaves_nothing_that_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """Found by a tmpfs filled to the last byte: an empty backup stood beside a missing file."""
    writes = []

    def write(path: Path, content: bytes, **_: object) -> None:
        writes.append(path.name)
        path.write_bytes(content[: len(content) // 2] if len(writes) == fails_at else content)
        if len(writes) == fails_at:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(file_replacement, "write_synced", write)
    monkeypatch.setattr(state_file, "write_synced", write)
    file = JsonStateFile(tmp_path / "x.json")
    if fails_at == 1:
        with pytest.raises(OSError, match="No space"):
            file.save('{"a":1}')
    else:
        file.save('{"a":1}')
    assert writes == ["x.json.tmp", "x.json.bak"][:fails_at]
    assert not file.backup.exists()
    assert file.load(parse, {}) == ({} if fails_at == 1 else {"a": 1})
    file.save('{"a":2}')
    assert file.backup.exists()


def test_the_name_that_a_killed_process_gave_is_durable_once_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the crash model: killed between rename and sync, read, found unchanged and so not
    written again, and gone at a power cut."""
    synced: list[Path] = []
    monkeypatch.setattr(state_file, "sync_directory", lambda path, **_: synced.append(path))
    file = JsonStateFile(tmp_path / "x.json")
    assert file.load(parse, {}) == {}
    assert synced == []
    file.path.write_bytes(b'{"a":1}')
    assert file.load(parse, {}) == {"a": 1}
    assert synced == [tmp_path]
