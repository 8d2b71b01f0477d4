"""Topics, groups and consumer offsets: rules, files, limits."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aerobee import file_replacement
from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.broker.tables.groups import GroupConfig, GroupTable
from aerobee.broker.tables.offsets import NO_OFFSET, ConsumerOffsets
from aerobee.broker.tables.topics import TopicTable
from aerobee.config.model import Settings
from aerobee.protocol.bodies.topics import TopicConfig
from aerobee.protocol.errors import BadRequest
from aerobee.store.errors import StoreNotWritable
from tests.inline_loop import INLINE, made

NOW_MS = 1_700_000_000_123


def topic_table(tmp_path: Path, **changes: object) -> TopicTable:
    values = {"broker_name": "b-a", "cluster_name": "C1", "max_topics": 1_000}
    settings = Settings.for_tests(**{**values, **changes})
    return TopicTable(settings, JsonStateFile(tmp_path / "topics.json"), lambda: NOW_MS, INLINE)


def create(topics: TopicTable, name: str, queues: int) -> TopicConfig | None:
    """The topic that a first send makes of the template."""
    made(topics.create_on_send(name, "TBW102", queues, 0))
    return topics.get(name)


def group_table(tmp_path: Path, *, auto_create: bool = True, limit: int = 100) -> GroupTable:
    file = JsonStateFile(tmp_path / "subscriptionGroup.json")
    return GroupTable(
        file, auto_create=auto_create, limit=lambda: limit, clock_ms=lambda: NOW_MS, loop=INLINE
    )


@contextmanager
def full_disk() -> Iterator[None]:
    """No state file can be written."""

    def refuse(path: Path, _: bytes, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_replacement, "write_synced", refuse)
        yield


# --- topics ---------------------------------------------------------------------------------------


def test_topics_of_a_broker_whose_name_no_topic_may_have_are_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = {"broker_name": "node1.example.org", "cluster_name": "Rack 1"}
    topics = topic_table(tmp_path, **names)
    create(topics, "Orders", 4)
    text = (tmp_path / "topics.json").read_text()
    file = text.replace('"readQueueNums":16,', '"readQueueNums":17,')
    assert file != text
    (tmp_path / "topics.json").write_text(file)
    cluster = topic_table(tmp_path, **names).get("Rack 1")
    assert cluster is not None
    assert cluster.read_queues == 17
    assert "name is illegal" not in caplog.text
    # Under another name they are topics like any other.
    assert topic_table(tmp_path).get("Rack 1") is None
    assert "name is illegal" in caplog.text


def test_system_topics_are_there_from_the_start(tmp_path: Path) -> None:
    topics = topic_table(tmp_path)
    template = topics.get("TBW102")
    assert template is not None
    assert (template.write_queues, template.perm) == (8, 7)
    for name, queues, perm in (
        ("SELF_TEST_TOPIC", 1, 6),
        ("BenchmarkTest", 1024, 6),
        ("C1", 16, 7),
        ("b-a", 1, 7),
        ("OFFSET_MOVED_EVENT", 1, 6),
        ("SCHEDULE_TOPIC_XXXX", 18, 6),
        ("C1_REPLY_TOPIC", 1, 6),
    ):
        topic = topics.get(name)
        assert topic is not None, name
        assert (topic.read_queues, topic.write_queues, topic.perm) == (queues, queues, perm)
        assert topics.is_system(name)


def test_a_first_send_creates_the_topic_from_its_template(tmp_path: Path) -> None:
    topics = topic_table(tmp_path)
    changed: list[list[TopicConfig]] = []
    topics.subscribe(changed.append)
    created = create(topics, "T1", 4)
    assert created == TopicConfig("T1", 4, 4, 6)
    assert changed == [[created]]
    assert create(topics, "T2", 99) == TopicConfig("T2", 8, 8, 6)


def test_a_template_that_is_not_there_or_not_inherited_creates_nothing(tmp_path: Path) -> None:
    topics = topic_table(tmp_path, auto_create_topic=False)
    assert topics.create_on_send("T1", "TBW102", 4, 0) is None
    assert topics.create_on_send("T1", "SELF_TEST_TOPIC", 4, 0) is None
    assert topics.get("T1") is None


@pytest.mark.parametrize("name", ["../x", "a.b", "a b", "", "x" * 128, "a/b", "t\u0001"])
def test_an_illegal_name_creates_nothing(tmp_path: Path, name: str) -> None:
    topics = topic_table(tmp_path)
    with pytest.raises(BadRequest):
        topics.create_on_send(name, "TBW102", 4, 0)
    assert not (tmp_path / "topics.json").exists()


def test_automatic_creation_stops_at_its_limits(tmp_path: Path) -> None:
    topics = topic_table(tmp_path, auto_create_per_minute=2)
    made = [topics.create_on_send(f"T{n}", "TBW102", 1, 0) is not None for n in range(3)]
    assert made == [True, True, False]
    full = topic_table(tmp_path, max_topics=len(topics))
    assert full.create_on_send("T9", "TBW102", 1, 0) is None


def test_topics_and_their_version_are_read_back(tmp_path: Path) -> None:
    topics = topic_table(tmp_path)
    create(topics, "T1", 4)
    topics.update(TopicConfig("T2", 3, 5, 4, "MULTI_TAG", 1, True)).result()
    again = topic_table(tmp_path)
    assert again.get("T2") == TopicConfig("T2", 3, 5, 4, "MULTI_TAG", 1, True)
    assert again.data_version == topics.data_version
    assert again.data_version.counter == 2
    again.delete("T2").result()
    assert "T2" not in again


def test_a_topics_file_of_the_java_broker_is_read(tmp_path: Path) -> None:
    (tmp_path / "topics.json").write_text(
        '{\n\t"dataVersion":{\n\t\t"counter":3,\n\t\t"timestamp":1700000000999\n\t},\n'
        '\t"topicConfigTable":{\n\t\t"T7":{\n\t\t\t"order":false,\n\t\t\t"perm":6,\n'
        '\t\t\t"readQueueNums":8,\n\t\t\t"topicFilterType":"SINGLE_TAG",\n'
        '\t\t\t"topicName":"T7",\n\t\t\t"topicSysFlag":0,\n\t\t\t"writeQueueNums":8\n\t\t}\n\t}\n}'
    )
    topics = topic_table(tmp_path)
    assert topics.get("T7") == TopicConfig("T7", 8, 8, 6)
    assert topics.data_version == (1700000000999, 3, 0)


@pytest.mark.parametrize("loss", ["damaged", "missing", "both missing"])
def test_topics_lost_with_their_file_are_made_again_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loss: str
) -> None:
    first = topic_table(tmp_path)
    first.update(TopicConfig("Kept")).result()
    first.update(TopicConfig("Lost", 4, 4)).result()
    path = tmp_path / "topics.json"
    path.write_bytes(b"{") if loss == "damaged" else path.unlink()
    if loss == "both missing":
        (tmp_path / "topics.json.bak").unlink()
    queues = [("Lost", 3), ("Lost", 0), ("SCHEDULE_TOPIC_XXXX", 2)]
    caplog.clear()
    table = topic_table(tmp_path)
    table.complete(queues)
    assert table.get("Lost") == TopicConfig("Lost", 4, 4)
    record = caplog.records[-1]
    assert record.levelname == "WARNING"
    assert "Lost (--queues 4);" in record.getMessage()
    assert "aerobee topic create NAME --queues N" in record.getMessage()
    assert "SCHEDULE" not in record.getMessage()


def damage_after(tmp_path: Path, *names: str) -> TopicTable:
    """The table of a file with one bad byte, whose backup has all `names` but the last."""
    table = topic_table(tmp_path)
    for name in names:
        table.update(TopicConfig(name, 2, 2)).result()
    path = tmp_path / "topics.json"
    path.write_bytes(b"[" + path.read_bytes()[1:])
    return topic_table(tmp_path)


def test_a_backup_is_completed_from_the_queues_of_the_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = damage_after(tmp_path, "Kept", "Lost")
    queues = ("rmq_sys_x", "%LMQ%a", "../x", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRACE_TOPIC")
    table.complete([("Kept", 5), ("Lost", 3), ("Lost", 0), *((name, 0) for name in queues)])
    assert table.get("Lost") == TopicConfig("Lost", 4, 4, 6)
    assert table.get("Kept") == TopicConfig("Kept", read_queues=6, write_queues=2)
    assert [name for name in queues if name in table] == ["SCHEDULE_TOPIC_XXXX"]
    assert "topics made again from the queues" in caplog.text
    assert "rmq_sys_x (--queues 1)" in caplog.messages[-1]  # what is not added is named
    assert topic_table(tmp_path).get("Lost") == TopicConfig("Lost", 4, 4, 6)


def test_groups_of_a_backup_are_completed_from_the_offsets(tmp_path: Path) -> None:
    groups = group_table(tmp_path)
    for name in ("kept", "lost"):
        groups.update(GroupConfig(name, retry_max_times=3)).result()
    path = tmp_path / "subscriptionGroup.json"
    path.write_bytes(path.read_bytes()[:-1])
    groups = group_table(tmp_path, auto_create=False, limit=len(groups) + 1)
    groups.complete(["kept", "lost", "stream-start", "%LMQ%g", "../g", "zz1", "zz2"])
    assert groups.find("kept") == GroupConfig("kept", retry_max_times=3)
    assert groups.find("lost") == GroupConfig("lost")
    assert len(groups) == 10  # the limit
    whole = group_table(tmp_path, auto_create=False)
    whole.complete(["other"])
    assert "other" not in whole


def test_a_damaged_file_does_not_take_the_place_of_its_backup(tmp_path: Path) -> None:
    table = damage_after(tmp_path, "Kept", "Lost")
    backup = (tmp_path / "topics.json.bak").read_bytes()
    table.update(TopicConfig("New")).result()
    assert (tmp_path / "topics.json.bak").read_bytes() == backup
    whole = (tmp_path / "topics.json").read_bytes()
    table.update(TopicConfig("Newer")).result()
    assert (tmp_path / "topics.json.bak").read_bytes() == whole


def test_many_lost_topics_are_counted_not_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic_table(tmp_path).complete((f"T{number:03}", 0) for number in range(500))
    message = caplog.records[-1].getMessage()
    assert "T009" in message
    assert "T010" not in message
    assert "and 490 more" in message


def test_queues_without_a_topic_beside_a_whole_file_are_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic_table(tmp_path).update(TopicConfig("Kept")).result()
    caplog.clear()
    topic_table(tmp_path).complete([("Kept", 0), ("Deleted", 0)])
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_order_topics_come_from_the_name_server(tmp_path: Path) -> None:
    topics = topic_table(tmp_path)
    create(topics, "T1", 4)
    topics.set_order_topics(frozenset(["T1"]))
    topic = topics.get("T1")
    assert topic is not None
    assert topic.order


def test_a_topic_that_could_not_be_written_is_not_there(tmp_path: Path) -> None:
    topics = topic_table(tmp_path)
    create(topics, "T1", 4)
    version, stored = topics.data_version, (tmp_path / "topics.json").read_bytes()
    told: list[list[TopicConfig]] = []
    topics.subscribe(told.append)
    with full_disk():
        with pytest.raises(StoreNotWritable, match=r"disk is full.*topics\.json"):
            create(topics, "T2", 4)
        with pytest.raises(StoreNotWritable):
            topics.update(TopicConfig("T1", 9, 9)).result()
        with pytest.raises(StoreNotWritable):
            topics.delete("T1").result()
    # Otherwise a second send would be stored in a topic that no restart knows.
    assert topics.get("T2") is None
    assert topics.get("T1") == TopicConfig("T1", 4, 4)
    assert (topics.data_version, told) == (version, [])
    assert (tmp_path / "topics.json").read_bytes() == stored
    assert create(topics, "T2", 4) == TopicConfig("T2", 4, 4)


# --- groups ---------------------------------------------------------------------------------------


def test_a_group_is_made_when_first_named_and_read_back(tmp_path: Path) -> None:
    assert group_table(tmp_path).get("CG") == GroupConfig("CG")
    assert group_table(tmp_path, auto_create=False).get("CG") == GroupConfig("CG")


def test_without_automatic_creation_only_system_groups_are_made(tmp_path: Path) -> None:
    groups = group_table(tmp_path, auto_create=False)
    assert groups.get("CG") is None
    assert groups.get("CID_RMQ_SYS_X") is not None
    assert groups.get("TOOLS_CONSUMER") is not None


def test_groups_are_bounded_and_their_names_checked(tmp_path: Path) -> None:
    groups = group_table(tmp_path, limit=8)
    assert groups.get("g1") is not None
    assert groups.get("g2") is None
    with pytest.raises(BadRequest):
        groups.get("../g")


def test_group_settings_survive_a_round_trip_and_default_when_missing() -> None:
    group = GroupConfig("CG", retry_max_times=3, consume_broadcast_enable=False)
    assert GroupConfig.from_json(group.to_json()) == group
    assert GroupConfig.from_json({"groupName": "CG", "attributes": {}}) == GroupConfig("CG")


def test_a_group_can_consume_although_it_cannot_be_written(tmp_path: Path) -> None:
    groups = group_table(tmp_path)
    with full_disk():
        assert groups.get("G1") == GroupConfig("G1")
        with pytest.raises(StoreNotWritable, match=r"disk is full.*subscriptionGroup\.json"):
            groups.update(GroupConfig("G2", retry_max_times=3)).result()
        with pytest.raises(StoreNotWritable):
            groups.delete("G1").result()
    assert groups.find("G1") is not None
    assert groups.find("G2") is None
    groups.get("G3")
    assert {"G1", "G3"} <= {group.name for group in group_table(tmp_path).all()}


# --- offsets --------------------------------------------------------------------------------------


def offsets(tmp_path: Path, queue_end: int = 100) -> ConsumerOffsets:
    file = JsonStateFile(tmp_path / "consumerOffset.json")
    return ConsumerOffsets(file, lambda _topic, _queue: queue_end)


def test_offsets_move_both_ways_and_are_read_back(tmp_path: Path) -> None:
    table = offsets(tmp_path)
    assert table.query("g", "T", 0) == NO_OFFSET
    assert table.commit("g", "T", 0, 10)
    assert table.commit("g", "T", 0, 7)
    table.commit("g", "%RETRY%g", 0, 1)
    table.flush()
    again = offsets(tmp_path)
    assert again.query("g", "T", 0) == 7
    assert sorted(again.topics_of("g")) == ["%RETRY%g", "T"]
    assert again.groups_of("T") == ["g"]


@pytest.mark.parametrize(("queue", "offset"), [(0, 101), (0, -1), (-1, 5), (0, 2**70)])
def test_an_offset_outside_the_queue_is_refused(tmp_path: Path, queue: int, offset: int) -> None:
    table = offsets(tmp_path)
    table.commit("g", "T", 0, 10)
    assert not table.commit("g", "T", queue, offset)
    assert table.query("g", "T", 0) == 10
    assert table.refused == 1


def test_an_unchanged_table_is_not_written_again(tmp_path: Path) -> None:
    table = offsets(tmp_path)
    table.commit("g", "T", 0, 10)
    assert table.take_changes() is not None
    table.commit("g", "T", 0, 10)
    assert table.take_changes() is None
    table.mark_unsaved()
    assert table.take_changes() is not None


def test_an_offset_file_of_the_java_broker_is_read(tmp_path: Path) -> None:
    (tmp_path / "consumerOffset.json").write_text(
        '{\n\t"offsetTable":{\n\t\t"%RETRY%g1@g1":{0:5\n\t\t},\n'
        '\t\t"T@g1":{0:0,1:10,2:20,3:30\n\t\t},\n\t\t"E@g":{}\n\t}\n}'
    )
    table = offsets(tmp_path)
    assert dict(table.of("g1", "T")) == {0: 0, 1: 10, 2: 20, 3: 30}
    assert table.query("g1", "%RETRY%g1", 0) == 5


def test_an_illegal_group_name_never_reaches_the_file(tmp_path: Path) -> None:
    table = offsets(tmp_path)
    with pytest.raises(BadRequest):
        table.commit("a@b", "T", 0, 1)
    assert table.take_changes() is None


def test_offsets_beyond_their_queues_are_named_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = JsonStateFile(tmp_path / "offsets.json")
    before = ConsumerOffsets(file, lambda _topic, _queue: 100)
    for queue_id, offset in ((0, 40), (1, 41)):
        before.commit("g", "T", queue_id, offset)
    before.flush()
    ConsumerOffsets(file, lambda _topic, _queue: 40)
    said = [line for line in caplog.messages if "beyond its queue" in line]
    assert len(said) == 1
    assert "group=g topic=T queue=1 offset=41 queue_end=40" in said[0]
