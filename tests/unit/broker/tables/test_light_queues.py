"""Claims about the tables of a broker with light queues, and about what clients may not write."""

from pathlib import Path

import pytest

from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.messages.stored_properties import stored_properties, without_own
from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.broker.tables.groups import GroupConfig
from aerobee.broker.tables.light_queues import (
    LightConsumerOffsets,
    LightGroupTable,
    LightTopicTable,
    load_offsets,
)
from aerobee.broker.tables.offsets import NO_OFFSET, ConsumerOffsets
from aerobee.config.model import Settings
from aerobee.protocol.bodies.topics import TopicConfig
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.message.demands import Carrier
from tests.inline_loop import INLINE, drive

LIGHT = "%LMQ%a"
FILE = """{
	"lmqOffsetTable":{
		"%LMQ%a@%LMQ%g":7,
		"T@%LMQ%g":3
	},
	"offsetTable":{
		"%LMQ%a@g":{0:5
		}
	}
}"""


def topics(tmp_path: Path) -> LightTopicTable:
    options = Settings.for_tests(
        broker_name="b", cluster_name="c", max_topics=100, auto_create_per_minute=100
    )
    return LightTopicTable(options, JsonStateFile(tmp_path / "topics.json"), lambda: 1, INLINE)


def offsets(tmp_path: Path, *, light: bool = True, end: int = 100) -> ConsumerOffsets:
    return load_offsets(
        lambda name: JsonStateFile(tmp_path / name), lambda _t, _q: end, light=light
    )


def test_a_light_topic_has_one_queue_and_stands_in_no_table(tmp_path: Path) -> None:
    table = topics(tmp_path)
    before = len(table)
    assert table.get(LIGHT) == TopicConfig(LIGHT, 1, 1, 6)
    assert table.get("ordinary") is None
    table.update(TopicConfig(LIGHT, 8, 8)).result()
    table.create_retry(LIGHT, 4)
    assert len(table) == before
    assert table.get(LIGHT) == TopicConfig(LIGHT, 1, 1, 6)
    assert LIGHT not in table


def test_light_topics_are_not_reported_as_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topics(tmp_path).complete([(LIGHT, 0), ("gone", 2)])
    assert "gone (--queues 3)" in caplog.text
    assert LIGHT not in caplog.text


def test_a_light_group_has_the_default_settings_and_stands_in_no_table(tmp_path: Path) -> None:
    file = JsonStateFile(tmp_path / "groups.json")
    table = LightGroupTable(Settings.for_tests(auto_create_group=False), file, lambda: 1, INLINE)
    before = len(table)
    assert table.get("%LMQ%g") == table.find("%LMQ%g") == GroupConfig("%LMQ%g")
    table.update(GroupConfig("%LMQ%g", consume_enable=False)).result()
    assert table.get("%LMQ%g") == GroupConfig("%LMQ%g")
    assert (len(table), table.get("g")) == (before, None)
    with pytest.raises(BadRequest):
        table.get("%LMQ%g/..")


def test_the_offsets_file_of_the_java_broker_is_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "lmqConsumerOffset.json"
    path.write_text(FILE)
    (tmp_path / "consumerOffset.json").write_text('{"offsetTable":{"%LMQ%a@g":{0:99}}}')
    table = offsets(tmp_path)
    assert table.query("%LMQ%g", "%LMQ%a", 0) == 7
    assert table.query("%LMQ%g", "T", 5) == 3  # whatever the queue
    assert table.query("g", "%LMQ%a", 0) == 5
    assert table.of("%LMQ%g", "%LMQ%a") == {0: 7}
    assert table.groups_of("%LMQ%a") == ["g", "%LMQ%g"]
    assert table.topics_of("%LMQ%g") == ["%LMQ%a", "T"]
    assert table.commit("%LMQ%g", "%LMQ%a", 0, 8)
    table.flush()
    assert path.read_text() == FILE.replace(":7", ":8")


def test_light_offsets_are_bounded_by_the_queue_and_forgotten_with_the_group(
    tmp_path: Path,
) -> None:
    table = offsets(tmp_path, end=10)
    assert not table.commit("%LMQ%g", LIGHT, 0, 11)
    assert not table.commit("%LMQ%g", LIGHT, 0, -1)
    assert table.refused == 2
    assert table.commit("%LMQ%g", LIGHT, 0, 10)
    for group, topic in (("%LMQ%g@h", LIGHT), ("%LMQ%g", "a@b")):
        with pytest.raises(BadRequest):
            table.commit(group, topic, 0, 1)
    drive(table.remove_group("%LMQ%g"))
    assert table.query("%LMQ%g", LIGHT, 0) == NO_OFFSET


def test_turning_light_queues_on_keeps_the_offsets_there_were(tmp_path: Path) -> None:
    plain = offsets(tmp_path, light=False)
    plain.commit("g", "T", 1, 5)
    plain.flush()
    table = offsets(tmp_path)
    assert isinstance(table, LightConsumerOffsets)
    assert table.query("g", "T", 1) == 5
    table.flush()
    assert '"T@g":{1:5' in (tmp_path / "lmqConsumerOffset.json").read_text()
    plain.commit("g", "T", 1, 6)
    plain.flush()
    assert offsets(tmp_path).query("g", "T", 1) == 5


def test_turning_them_off_says_which_offsets_are_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "lmqConsumerOffset.json").write_text(FILE)
    assert offsets(tmp_path, light=False).query("g", "%LMQ%a", 0) == NO_OFFSET
    assert "lmqConsumerOffset.json" in caplog.text


def test_light_queues_and_groups_are_counted_together() -> None:
    stats = BrokerStats(series_limit=3, light=True)
    for n in range(10):
        stats.delivered(stats.consumer(f"%LMQ%g{n}", f"%LMQ%{n}"), 2, 10)
        stats.stored(stats.topic(f"%LMQ%{n}"), 1, 5)
    stats.delivered(stats.consumer("g", "%LMQ%1"), 1, 1)
    counted = [(one.group, one.topic, one.messages_out) for one in stats.consumers()]
    assert counted == [("%LMQ%", "%LMQ%", 20), ("g", "%LMQ%", 1)]
    assert [(one.topic, one.messages_in) for one in stats.topics()] == [("%LMQ%", 10)]
    stats.consumer("h", "T")
    assert stats.consumer("%LMQ%other", "%LMQ%z").messages_out == 20


def test_what_speaks_of_another_record_is_dropped_from_what_clients_send() -> None:
    text = "A\x01b\x02INNER_MULTI_QUEUE_OFFSET\x0177\x02__CRC32#\x010123456789\x02KEYS\x01k"
    assert (
        stored_properties(text, "c", Carrier.SINGLE).encoded
        == b"A\x01b\x02KEYS\x01k\x02CLUSTER\x01c"
    )
    assert without_own(text.encode()) == b"A\x01b\x02KEYS\x01k"
    kept = b"INNER_MULTI_DISPATCH\x01a\x02X__CRC32#\x01b\x02"
    assert without_own(kept) == kept
