"""The KV table and its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aerobee.nameserver import kv
from aerobee.nameserver.kv import KvFile, KvFileDamaged, KvTable
from aerobee.protocol.errors import BadRequest


def test_keys_are_set_read_and_deleted():
    table = KvTable()
    assert table.namespace("N") is None
    table.put("N", "k", "v")
    table.put("N", "k", "w")
    assert table.get("N", "k") == "w"
    assert table.namespace("N") == {"k": "w"}
    table.delete("N", "k")
    assert table.changes == 3
    table.delete("N", "k")
    assert table.changes == 3
    assert table.get("N", "k") is None


def test_the_file_is_rocketmqs_and_is_read_again(tmp_path: Path):
    file = KvFile(tmp_path / "namesrv" / "kvConfig.json")
    table = file.load()
    table.put("ORDER_TOPIC_CONFIG", "Tü", "b-a:4")
    file.save(table.to_json())
    assert json.loads(file.path.read_bytes()) == {
        "configTable": {"ORDER_TOPIC_CONFIG": {"Tü": "b-a:4"}}
    }
    assert KvFile(file.path).load().get("ORDER_TOPIC_CONFIG", "Tü") == "b-a:4"
    assert not file.path.with_name("kvConfig.json.tmp").exists()


def test_a_damaged_file_is_read_from_its_backup(tmp_path: Path):
    file = KvFile(tmp_path / "kv.json")
    for value in ("1", "2"):
        table = KvTable()
        table.put("N", "k", value)
        file.save(table.to_json())
    for damage in (b"", b'{"configTable":', b"[]", b'{"configTable":{"N":5}}'):
        file.path.write_bytes(damage)
        assert file.load().get("N", "k") == "1"
    file.path.unlink()
    assert file.load().get("N", "k") == "1"


def test_damage_of_file_and_backup_stops_the_start(tmp_path: Path):
    file = KvFile(tmp_path / "kv.json")
    file.path.write_bytes(b"{")
    (tmp_path / "kv.json.bak").write_bytes(b"{")
    with pytest.raises(KvFileDamaged, match=r"kv\.json\.bak"):
        file.load()


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kv, "MAX_ENTRIES", 2)
    table = KvTable()
    table.put("N", "a", "1")
    table.put("M", "b", "1")
    with pytest.raises(BadRequest, match="the limit"):
        table.put("N", "c", "1")
    table.put("N", "a", "2")
    table.delete("M", "b")
    table.put("N", "c", "1")
    for namespace, key, value in (("n" * 2000, "k", "v"), ("n", "k" * 2000, "v")):
        with pytest.raises(BadRequest, match="the limit is 1024"):
            table.put(namespace, key, value)
    with pytest.raises(BadRequest, match="the field value"):
        table.put("N", "a", "v" * 70_000)


@pytest.mark.parametrize(
    "damage", [b"", b'{"configTablf":{"N":{"k":"2"}}}', b"{}", b'{"configTable":null}']
)
def test_damage_is_not_taken_for_an_empty_table(tmp_path: Path, damage: bytes):
    """All keys were forgotten, and nobody was told."""
    file = KvFile(tmp_path / "kv.json")
    file.path.write_bytes(damage)
    with pytest.raises(KvFileDamaged, match=r"kv\.json"):
        file.load()
    (tmp_path / "kv.json.bak").write_bytes(b'{"configTable":{"N":{"k":"1"}}}')
    assert file.load().get("N", "k") == "1"


def test_it_is_said_that_the_backup_stands_in_for_a_missing_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "kv.json.bak").write_bytes(b'{"configTable":{"N":{"k":"1"}}}')
    assert KvFile(tmp_path / "kv.json").load().get("N", "k") == "1"
    assert "missing, using its backup" in caplog.text


def test_a_directory_in_the_place_of_the_file_stops_the_start(tmp_path: Path):
    (tmp_path / "kv.json").mkdir()
    with pytest.raises(KvFileDamaged, match=r"kv\.json is a directory"):
        KvFile(tmp_path / "kv.json").load()
