"""A start without a table of its own: readable files are served, the rest is kept aside."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from aerobee.broker.tables.files.offsets_text import rescued_offsets
from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.broker.tables.groups import GroupTable
from aerobee.broker.tables.light_queues import LightConsumerOffsets
from aerobee.broker.tables.offsets import ConsumerOffsets
from tests.inline_loop import INLINE


def any_end(_topic: str, _queue_id: int) -> int:
    return 1 << 40


def stored_offsets(path: Path) -> dict[str, dict[int, int]]:
    offsets = ConsumerOffsets(JsonStateFile(path), any_end)
    for number in range(20):
        for queue_id in range(3):
            offsets.commit(f"group{number}", "Orders", queue_id, 100 * number + queue_id)
    offsets.flush()
    return offsets.all()


def test_offsets_before_a_cut_are_read_and_written_again(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    stored = stored_offsets(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    (tmp_path / "offsets.json.bak").write_bytes(b"")
    offsets = ConsumerOffsets(JsonStateFile(path, sets_aside=True), any_end)
    found = offsets.all()
    assert 8 <= len(found) < 20
    assert found.items() <= stored.items()
    assert offsets.are_lost
    offsets.flush()
    again = ConsumerOffsets(JsonStateFile(path, sets_aside=True), any_end)
    assert again.all() == found
    assert again.are_lost  # as long as the damaged file lies there
    for aside in tmp_path.glob("*.damaged"):
        aside.unlink()
    assert not ConsumerOffsets(JsonStateFile(path, sets_aside=True), any_end).are_lost


def test_what_the_newer_file_lost_comes_from_the_older_one() -> None:
    newer = b'{"offsetTable":{"A@g":{0:9,1:8\n\t\t},\n"B@g":{0:7,'
    older = b'{"offsetTable":{"A@g":{0:1\n\t\t},\n\t\t"B@g":{0:3\n\t\t}\n\t}'
    assert rescued_offsets([newer, older]) == {("A", "g"): {0: 9, 1: 8}, ("B", "g"): {0: 3}}


def test_no_bytes_make_a_rescue_fail() -> None:
    chance = random.Random(35)
    parts = [b'"', b"@", b"{", b"}", b":", b",", b"1", b"99999999999999999999", b"A", b"\xff", b" "]
    for _ in range(500):
        data = b"".join(chance.choices(parts, k=60))
        for (topic, group), queues in rescued_offsets([data]).items():
            assert topic
            assert group
            assert all(offset < 1 << 63 for offset in queues.values())


def test_light_offsets_are_rescued_with_the_others(tmp_path: Path) -> None:
    path = tmp_path / "lmq.json"
    offsets = LightConsumerOffsets(JsonStateFile(path), JsonStateFile(tmp_path / "no"), any_end)
    offsets.commit("%LMQ%g", "%LMQ%t", 0, 5)
    offsets.commit("g", "Orders", 1, 6)
    offsets.flush()
    path.write_bytes(path.read_bytes()[:-3])
    (tmp_path / "lmq.json.bak").unlink()
    file = JsonStateFile(path, sets_aside=True)
    again = LightConsumerOffsets(file, JsonStateFile(tmp_path / "no"), any_end)
    assert again.query("%LMQ%g", "%LMQ%t", 0) == 5
    assert again.query("g", "Orders", 1) == 6


def test_groups_that_have_offsets_are_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "groups.json"
    path.write_text("damaged")
    table = GroupTable(
        JsonStateFile(path, sets_aside=True),
        auto_create=False,
        limit=lambda: 100,
        clock_ms=lambda: 0,
        loop=INLINE,
    )
    table.complete(["billing"])
    assert table.find("billing") is not None
    assert "because the table is lost" in caplog.text
