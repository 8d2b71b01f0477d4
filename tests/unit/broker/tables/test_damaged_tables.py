"""Tables whose JSON is JSON, but not the table: the backup is used, nothing is guessed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.tables.files.state_file import JsonStateFile, StateFileError
from aerobee.broker.tables.groups import GroupTable
from aerobee.broker.tables.light_queues import LightConsumerOffsets
from aerobee.broker.tables.offsets import ConsumerOffsets
from aerobee.broker.tables.topics import TopicTable
from aerobee.config.model import Settings
from tests.inline_loop import INLINE

OPTIONS = Settings.for_tests(
    broker_name="broker-a",
    cluster_name="DefaultCluster",
    max_topics=1000,
    auto_create_per_minute=100,
)
GOOD = {
    "topicConfigTable": '{"topicConfigTable":{"Orders":{"perm":6}}}',
    "subscriptionGroupTable": '{"subscriptionGroupTable":{"billing":{"retryMaxTimes":5}}}',
    "offsetTable": '{"offsetTable":{"Orders@billing":{0:7}}}',
}


def topics(file: JsonStateFile) -> Any:
    return TopicTable(OPTIONS, file, lambda: 0, INLINE).get("Orders")


def groups(file: JsonStateFile) -> Any:
    table = GroupTable(OPTIONS.with_changes(auto_create_group=False), file, lambda: 0, INLINE)
    return table.find("billing")


def offsets(file: JsonStateFile) -> Any:
    return ConsumerOffsets(file, lambda _topic, _queue: 100).of("billing", "Orders") or None


LOADERS = {"topicConfigTable": topics, "subscriptionGroupTable": groups, "offsetTable": offsets}
VALUES = ["null", "1", '"x"', "[]", "[1]", "true", '{"x":1}', '{"x":null}', '{"x":[]}', '{"x":"y"}']


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(("table", "load"), LOADERS.items(), ids=LOADERS)
def test_a_table_of_another_shape_falls_back_to_its_backup(
    tmp_path: Path, table: str, load: Callable[[JsonStateFile], Any], value: str
) -> None:
    file = JsonStateFile(tmp_path / "x.json")
    file.backup.write_text(GOOD[table])
    file.path.write_text(f'{{"{table}":{value}}}')
    assert load(file) is not None
    file.backup.unlink()
    with pytest.raises(StateFileError, match=r"x\.json"):
        load(file)


@pytest.mark.parametrize("version", ["1", '"x"', "[1]", '{"counter":"x"}', '{"counter":[]}'])
@pytest.mark.parametrize("table", ["topicConfigTable", "subscriptionGroupTable"])
def test_a_version_of_another_shape_falls_back_to_the_backup(
    tmp_path: Path, table: str, version: str
) -> None:
    file = JsonStateFile(tmp_path / "x.json")
    file.backup.write_text(GOOD[table])
    file.path.write_text(f'{{"dataVersion":{version},"{table}":{{}}}}')
    assert LOADERS[table](file) is not None


def test_it_is_said_that_a_backup_stands_in_for_a_missing_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is one change older than what was acknowledged last."""
    file = JsonStateFile(tmp_path / "x.json")
    file.backup.write_text(GOOD["offsetTable"])
    assert offsets(file) == {0: 7}
    assert f"missing, using its backup {file.path}" in caplog.text


@pytest.mark.parametrize("damaged", ["lmqOffsetTable", "offsetTable"])
def test_both_tables_of_light_offsets_come_from_one_file(tmp_path: Path, damaged: str) -> None:
    """With a flipped bit in its name one table was empty, and nobody was told."""
    file, before = JsonStateFile(tmp_path / "lmq.json"), JsonStateFile(tmp_path / "plain.json")

    def load() -> LightConsumerOffsets:
        return LightConsumerOffsets(file, before, lambda _topic, _queue: 100)

    table = load()
    for offset in (3, 4):
        table.commit("%LMQ%light", "Orders", 0, offset)
        table.commit("plain", "Orders", 0, offset)
        table.flush()
    good = file.path.read_text()
    file.path.write_text(good.replace(f'"{damaged}"', f'"{damaged[:-1]}d"', 1))
    found = load()
    assert found.query("%LMQ%light", "Orders", 0) == found.query("plain", "Orders", 0) == 3
    file.backup.unlink()
    with pytest.raises(StateFileError, match=r"lmq\.json"):
        load()
