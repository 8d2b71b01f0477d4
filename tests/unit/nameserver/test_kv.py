"""The KV table and its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aerobee.nameserver import kv
from aerobee.nameserver.kv import KvFile, KvTable, KvText
from aerobee.protocol.errors import BadRequest
from tests import campaign


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
    file.path.unlink(missing_ok=True)
    assert file.load().get("N", "k") == "1"


def test_damage_of_file_and_backup_is_kept_aside_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """A name server that does not start serves no route either."""
    file = KvFile(tmp_path / "kv.json")
    file.path.write_bytes(b"{")
    (tmp_path / "kv.json.bak").write_bytes(b"}")
    assert file.load().namespace("N") is None
    aside = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert aside == {"kv.json.damaged": b"{", "kv.json.bak.damaged": b"}"}
    assert f"lost, serving on without what it held path={file.path}" in caplog.text


def test_a_table_of_more_values_than_a_request_may_hold_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = KvFile(tmp_path / "kv.json")
    table = {"N": {str(number): "" for number in range(10)}}
    monkeypatch.setattr(kv.loads, "__defaults__", (5,))
    file.save(KvTable(table).to_json())
    assert file.load().namespace("N") == table["N"]


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
    (tmp_path / "kv.json.bak").write_bytes(b'{"configTable":{"N":{"k":"1"}}}')
    assert file.load().get("N", "k") == "1"
    assert (tmp_path / "kv.json.damaged").read_bytes() == damage


def test_it_is_said_that_the_backup_stands_in_for_a_missing_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "kv.json.bak").write_bytes(b'{"configTable":{"N":{"k":"1"}}}')
    assert KvFile(tmp_path / "kv.json").load().get("N", "k") == "1"
    assert "missing, using its backup" in caplog.text


def test_a_directory_in_the_place_of_the_file_is_kept_aside(tmp_path: Path):
    (tmp_path / "kv.json").mkdir()
    assert KvFile(tmp_path / "kv.json").load().namespace("N") is None
    assert (tmp_path / "kv.json.damaged").is_dir()


def test_the_bytes_are_those_of_the_plain_printer_whatever_changed():
    chance = campaign.rng("kv text")
    names = ["N", "M", "ORDER_TOPIC_CONFIG", 'ü"\\', "\x01"]
    loaded = {"old": {"b": "1", "a": "2"}, "empty": {}}
    table, text = KvTable({name: {**keys} for name, keys in loaded.items()}), KvText()
    for _ in range(300):
        namespace, key = chance.choice(names), chance.choice(names)
        if chance.random() < 0.3:
            table.delete(namespace, key)
        else:
            table.put(namespace, key, chance.choice(names) * chance.randrange(3))
        if chance.random() < 0.3:
            plain = json.dumps({"configTable": table._table}, ensure_ascii=False, sort_keys=True)
            assert text.text(table.take_changes()) == plain
            assert table.to_json() == plain
    sizes = [
        len((namespace + key + value).encode())
        for namespace, keys in table._table.items()
        for key, value in keys.items()
    ]
    assert table.bytes == sum(sizes)


def test_a_change_renders_one_key():
    """Found at 9 MB: every put made the whole text, 269 ms on the loop."""
    table, text = KvTable(), KvText()
    for number in range(1_000):
        table.put("N", str(number), "v")
    text.text(table.take_changes())
    table.put("N", "5", "w")
    assert table.take_changes() == {"N": {"5": "w"}}
    table.put("N", "5", "x")
    before = text.rendered
    assert '"5": "x"' in text.text(table.take_changes())
    assert text.rendered == before + 1


def test_the_bytes_of_the_table_are_bounded():
    """Found: 20,000 keys of 64 KB each were taken."""
    table = KvTable(max_bytes=1_000)
    table.put("N", "a", "v" * 900)
    with pytest.raises(BadRequest, match=r"would take 1102 bytes, the limit is 1000 \(limits\."):
        table.put("N", "b", "v" * 198)
    assert table.get("N", "b") is None
    table.put("N", "a", "ü" * 400)
    table.put("N", "b", "v" * 190)
    assert table.bytes == 994
    table.delete("N", "a")
    assert table.bytes == 192


def test_a_table_read_beyond_the_limit_serves_and_shrinks(tmp_path: Path):
    file = KvFile(tmp_path / "kv.json")
    file.path.write_text(json.dumps({"configTable": {"N": {"a": "v" * 2_000, "b": "1"}}}))
    table = file.load(max_bytes=1_000)
    with pytest.raises(BadRequest, match="delete keys"):
        table.put("N", "c", "1")
    table.put("N", "b", "2")
    table.put("N", "a", "v" * 500)
    table.put("N", "c", "1")


def test_the_name_that_a_killed_process_gave_is_durable_once_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    KvFile(tmp_path / "kv.json").save(KvTable().to_json())
    synced: list[Path] = []
    monkeypatch.setattr(kv, "sync_directory", synced.append)
    KvFile(tmp_path / "kv.json").load()
    assert synced == [tmp_path]
