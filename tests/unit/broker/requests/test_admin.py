"""Administration: topics, groups, progress, connections, the runtime table."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.requests.administration.broker_runtime import (
    RuntimeRequests,
    config_lines,
    size_text,
)
from aerobee.broker.requests.administration.consumption import GroupRates, StatsRequests
from aerobee.broker.requests.administration.topic_removal import TopicRemoval
from aerobee.broker.requests.administration.topics_and_groups import TopicRequests
from aerobee.broker.requests.clients.heartbeats import ClientRequests
from aerobee.config.model import SETTINGS, Settings
from aerobee.protocol.bodies.common import MessageQueue, parse_kv_table, parse_topic_list
from aerobee.protocol.bodies.statistics import ConsumeStats, parse_connections, parse_topic_stats
from aerobee.protocol.bodies.topics import parse_topic_table
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_response
from aerobee.protocol.frames.fastjson import loads
from aerobee.protocol.message.record import StoreMessage, encode_record
from aerobee.protocol.message.record_layout import pack_host
from aerobee.store.disk.files import Clock
from aerobee.store.disk.owner import here
from aerobee.store.message_store import MessageStore
from aerobee.store.segments.transient_pool import NO_POOL
from aerobee.store.store_stats import StoreStats, StoreStatsService
from tests.inline_loop import drive, made
from tests.unit.broker.second_step.second_step_support import deletions
from tests.unit.broker.tables.clients_support import (
    BODIES,
    Endless,
    Peer,
    Queues,
    Tables,
    answer,
    heartbeat_body,
    no_pulls_held,
    request,
)

PEER = Peer(1)


class StillClock(Clock):
    """Time that a test moves, in seconds."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return int(self.seconds * 1000)


class Store:
    """The marks and counters of a store, set by hand."""

    def __init__(self) -> None:
        self.clock = StillClock()
        self.stats = StoreStats()
        self.stats_service = StoreStatsService(self.stats, self.clock)
        self.written = self.durable = self.dispatched = self.min_log_offset = 0
        self.committed, self.free_buffers = 0, NO_POOL
        self.record: bytes | None = None
        self.reader = self

    def record_at(self, log_offset: int) -> bytes | None:
        return self.record if log_offset == self.min_log_offset else None


def at_once(_connection: object, command: Command, work: Callable[[], object]) -> bytes:
    """Does at once the work that a worker would do later."""
    work()
    return encode_response(command, ResponseCode.SUCCESS)


class QueueStore:
    """The parts of a store from which queues are deleted."""

    def __init__(self, queues: Queues, admin: Admin) -> None:
        self.cleaning = queues
        self.written = 1_000
        self.queues = queues.queues
        self.retention = admin


class Admin:
    """All administrative handlers around real tables."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.tables = tables = Tables(folder)
        self.stats = tables.stats
        self.store = Store()
        self.armed = 0
        self.deleted = deletions(folder, 1 << 60)
        self.settings = Settings.for_tests(
            store_path=str(folder), broker_name="b-a", max_topics=50, max_queues=2_100, **changes
        )
        store = cast("MessageStore", QueueStore(tables.queues, self))
        self.removal = TopicRemoval(
            tables, stats=self.stats, store=store, on_loop=here, retries=tables.retries
        )
        requests = ClientRequests(
            self.settings, tables, no_pulls_held(), turns=Endless(), bodies=BODIES
        )
        self.handlers = {
            **TopicRequests(
                self.settings,
                tables,
                stats=self.stats,
                store=store,
                on_loop=here,
                later=at_once,
                bodies=BODIES,
                deleted=self.deleted,
                removal=self.removal,
            ).handlers(),
            **StatsRequests("b-a", "192.0.2.9:10911", tables, self.stats, tables.queues).handlers(),
            **RuntimeRequests(
                self.settings,
                tables.topics,
                self.store,
                self.stats,
                SimpleNamespace(level_stats=list),
            ).handlers(),
            **requests.handlers(),
        }

    def ask(
        self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"", peer: Peer = PEER
    ) -> Command:
        return answer(self.handlers[code](peer.connection, request(code, ext, body)))

    def refusal(
        self, code: int, ext: dict[str, Any] | None = None, body: bytes = b""
    ) -> BadRequest:
        with pytest.raises(BadRequest) as caught:
            self.ask(code, ext, body)
        return caught.value

    def arm(self) -> None:
        self.armed += 1

    def create(self, name: str, queues: int = 2, **ext: Any) -> None:
        self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext(name, queues, **ext))

    def consumer(self, group: str, topic: str, peer: Peer = PEER) -> None:
        body = heartbeat_body("c1", {group: {topic: "A"}}, ["pg"])
        self.ask(RequestCode.HEART_BEAT, body=body, peer=peer)


def topic_ext(name: str, queues: int = 2, **ext: Any) -> dict[str, Any]:
    fields = {"readQueueNums": queues, "writeQueueNums": queues, "perm": 6}
    return {
        "topic": name,
        "defaultTopic": "TBW102",
        "topicFilterType": "SINGLE_TAG",
        **fields,
        **ext,
    }


@pytest.fixture
def admin(tmp_path: Path) -> Admin:
    return Admin(tmp_path)


# --- topics and groups ----------------------------------------------------------------------------


def test_a_topic_is_created_changed_and_told(admin: Admin) -> None:
    told: list[str] = []
    admin.tables.topics.subscribe(lambda topics: told.extend(topic.name for topic in topics))
    admin.create("T", 4, order="true")
    topic = admin.tables.topics.get("T")
    assert topic is not None
    assert (topic.read_queues, topic.write_queues, topic.perm, topic.order) == (4, 4, 6, False)
    admin.create("T", 8, perm=4, topicFilterType="MULTI_TAG")
    topic = admin.tables.topics.get("T")
    assert topic is not None
    assert (topic.read_queues, topic.perm, topic.filter_type) == (8, 4, "MULTI_TAG")
    assert told == ["T", "T"]


@pytest.mark.parametrize(
    ("ext", "named"),
    [
        (topic_ext("../T"), "topic"),
        (topic_ext("x" * 128), "topic"),
        (topic_ext("TBW102"), "conflict with system topic"),
        (topic_ext("rmq_sys_x"), "conflict with system topic"),
        (topic_ext("T", topicFilterType="X"), "topicFilterType"),
        (topic_ext("T", 0), "read queues"),
        (topic_ext("T", 1025), "read queues"),
        (topic_ext("T", perm=16), "perm"),
        (topic_ext("T", perm=-1), "perm"),
        ({"topic": "T"}, "readQueueNums"),
    ],
)
def test_impossible_topics_are_refused(admin: Admin, ext: dict[str, Any], named: str) -> None:
    error = admin.refusal(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
    assert (error.code, named in error.remark) == (ResponseCode.SYSTEM_ERROR, True), error.remark
    assert admin.tables.topics.get("T") is None


def test_topics_and_queues_are_bounded(admin: Admin) -> None:
    admin.create("A", 900)
    assert "queues" in admin.refusal(17, topic_ext("B", 900)).remark
    for number in range(50 - len(admin.tables.topics)):
        admin.create(f"T{number}", 1)
    assert "50 topics" in admin.refusal(17, topic_ext("B", 1)).remark
    admin.create("A", 800)


def test_a_deleted_topic_loses_its_queues_and_an_unknown_one_is_no_error(admin: Admin) -> None:
    admin.create("T")
    for _ in range(2):
        assert admin.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
    assert admin.tables.topics.get("T") is None
    assert admin.tables.queues.deleted == ["T", "T"]
    for name in ("TBW102", "../x"):
        assert admin.refusal(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name}).code == 1


def consumed_by_many(admin: Admin) -> None:
    admin.create("T")
    admin.tables.queues.put("T", 0, [1, 2])
    for number in range(200):
        assert admin.tables.offsets.commit(f"g{number}", "T", 0, 1)


def test_offsets_of_a_deleted_topic_go_in_steps_and_it_is_made_anew_behind_them(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumed_by_many(admin)
    topics, offsets = admin.tables.topics, admin.tables.offsets
    left, creations = [200], []

    def on_loop(call: Callable[[], Any]) -> Any:
        result = call()
        left.append(len(offsets.groups_of("T")))
        if 0 < left[-1] < 200 and not creations:
            steps = admin.handlers[17](PEER.connection, request(17, topic_ext("T", 2)))
            creations.append((steps, next(steps)))
            assert topics.create_on_send("T", "TBW102", 4, 0) is creations[0][1]
            assert topics.get("T") is None
        return result

    monkeypatch.setattr(admin.removal, "_on_loop", on_loop)
    monkeypatch.setattr(admin.tables.queues, "remove_topics", partial(left_by, on_loop))
    assert admin.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
    assert max(before - after for before, after in pairwise(left)) <= 64
    assert left[-1] == 0
    ((steps, waited),) = creations
    assert waited.done()
    assert drive(steps) is not None
    config = topics.get("T")
    assert config is not None
    assert config.read_queues == 2
    assert offsets.query("g199", "T", 0) == -1


def left_by(
    on_loop: Callable[[Callable[[], Any]], Any],
    topics: Iterable[str],
    _on_owner: object,
    confirm: Callable[[str], bool],
) -> int:
    """A removal of queues that is at the end when they have left the store."""
    return sum(on_loop(partial(confirm, topic)) for topic in topics)


@pytest.mark.parametrize("known", [True, False])
def test_a_deletion_is_on_the_disk_when_it_is_answered(
    admin: Admin, tmp_path: Path, known: bool
) -> None:
    """Also of a topic that is in no table: a crash may have come between."""
    if known:
        admin.create("T", 4)
    admin.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert deletions(tmp_path, 1 << 60).offset_of("T") == 1_000


@pytest.mark.parametrize("left", [False, True])
def test_offsets_stay_with_queues_that_could_not_go(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    consumed_by_many(admin)

    def remove(topics: Iterable[str], _on_owner: object, confirm: Callable[[str], bool]) -> int:
        if left:
            assert all(confirm(topic) for topic in topics)
        raise OSError("no permission")

    monkeypatch.setattr(admin.tables.queues, "remove_topics", remove)
    with pytest.raises(OSError, match="no permission"):
        admin.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert admin.tables.offsets.query("g7", "T", 0) == (-1 if left else 1)
    assert admin.tables.topics.get("T") is None
    assert admin.tables.topics.under_way("T") is None


def test_queues_of_unknown_topics_are_cleaned(admin: Admin) -> None:
    admin.create("T")
    for topic in ("T", "gone", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "%LMQ%a"):
        admin.tables.queues.put(topic, 0, [1])
    assert admin.ask(RequestCode.CLEAN_UNUSED_TOPIC).code == 0
    assert admin.tables.queues.deleted == ["gone"]


def test_topic_made_anew_while_it_is_cleaned_keeps_its_queues(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.tables.queues.put("back", 0, [1])
    remove = admin.tables.queues.remove_topics

    def late(topics: Iterable[str], *more: Any) -> int:
        admin.create("back")
        return remove(topics, *more)

    monkeypatch.setattr(admin.tables.queues, "remove_topics", late)
    admin.ask(RequestCode.CLEAN_UNUSED_TOPIC)
    assert admin.tables.queues.deleted == []


def test_queues_of_their_topics_are_in_use_and_others_are_not(admin: Admin) -> None:
    admin.create("T", 2)
    for key in (("T", 0), ("T", 1), ("T", 2), ("gone", 0), ("%LMQ%a", 0)):
        admin.tables.queues.put(*key, [1])
    assert admin.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE).code == 0
    assert admin.tables.queues.kept == [("T", 0), ("T", 1), ("%LMQ%a", 0)]


def test_expired_messages_may_be_deleted_on_request(admin: Admin) -> None:
    assert admin.ask(RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0
    assert admin.armed == 1


def test_the_topic_table_is_told_whole(admin: Admin) -> None:
    admin.create("T", 3)
    table = parse_topic_table(admin.ask(RequestCode.GET_ALL_TOPIC_CONFIG).body)
    assert table.topics["T"].write_queues == 3
    assert table.version == admin.tables.topics.data_version
    assert len(table.topics) == len(admin.tables.topics)


def test_system_topics_are_listed_though_absent(admin: Admin) -> None:
    names = parse_topic_list(admin.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER).body)
    assert {"TBW102", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC", "b-a", "C1"} <= set(names)


def test_a_group_is_created_changed_and_deleted(admin: Admin) -> None:
    body = b'{"groupName":"g","retryMaxTimes":3,"attributes":{},"consumeEnable":false}'
    assert admin.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body).code == 0
    group = admin.tables.groups.find("g")
    assert group is not None
    assert (group.retry_max_times, group.consume_enable, group.retry_queue_nums) == (3, False, 1)
    table = loads(admin.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    assert table["subscriptionGroupTable"]["g"]["retryMaxTimes"] == 3
    admin.tables.queues.put("T", 0, [1, 2])
    admin.tables.offsets.commit("g", "T", 0, 1)
    for remove in ("false", "true"):
        ext = {"groupName": "g", "removeOffset": remove}
        assert admin.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext).code == 0
        assert admin.tables.offsets.query("g", "T", 0) == (1 if remove == "false" else -1)
    assert admin.tables.groups.find("g") is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"groupName":"a/b"}',
        b'{"groupName":5}',
        b'{"groupName":"g","retryQueueNums":-1}',
        b'{"groupName":"g","retryQueueNums":5000}',
        b'{"groupName":"g","retryMaxTimes":"x"}',
        b'{"groupName":"g","brokerId":99999999999}',
        b'{"groupName":"g","brokerId":[1]}',
    ],
)
def test_impossible_groups_are_refused(admin: Admin, body: bytes) -> None:
    error = admin.refusal(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert error.code == ResponseCode.SYSTEM_ERROR
    assert admin.tables.groups.find("g") is None


def test_all_offsets_are_told_as_slaves_read_them(admin: Admin) -> None:
    admin.tables.queues.put("T", 3, range(9))
    admin.tables.offsets.commit("g", "T", 3, 5)
    body = admin.ask(RequestCode.GET_ALL_CONSUMER_OFFSET).body
    assert body == b'{"offsetTable":{"T@g":{"3":5}}}'


# --- progress and connections ---------------------------------------------------------------------


def test_topic_statistics_have_every_write_queue(admin: Admin) -> None:
    admin.create("T", 2)
    admin.tables.queues.put("T", 0, [1000, 2000], min_offset=5)
    stats = parse_topic_stats(admin.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}).body)
    first, second = (stats[MessageQueue("T", "b-a", queue)] for queue in (0, 1))
    assert (first.min_offset, first.max_offset, first.last_update_ms) == (5, 7, 2000)
    assert (second.min_offset, second.max_offset, second.last_update_ms) == (0, 0, 0)
    assert admin.refusal(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "U"}).code == 17


def progress(admin: Admin, **ext: Any) -> dict[MessageQueue, tuple[int, int, int]]:
    body = admin.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", **ext}).body
    stats = ConsumeStats.parse(body)
    return {
        queue: (entry.broker_offset, entry.consumer_offset, entry.last_consumed_ms)
        for queue, entry in stats.queues.items()
    }


def test_progress_of_a_group_is_told_by_topic(admin: Admin) -> None:
    assert progress(admin) == {}
    admin.create("T", 2)
    admin.create("U", 1)
    admin.tables.groups.get("g")
    admin.tables.queues.put("T", 0, [1000, 2000, 3000])
    admin.tables.queues.put("U", 0, [1000])
    admin.tables.offsets.commit("g", "T", 0, 2)
    admin.tables.offsets.commit("g", "U", 0, 1)
    queues = {MessageQueue("T", "b-a", 0): (3, 2, 2000), MessageQueue("T", "b-a", 1): (0, 0, 0)}
    assert progress(admin, topic="T", topicList="x") == queues
    assert progress(admin) == {**queues, MessageQueue("U", "b-a", 0): (1, 1, 1000)}
    # Also where a member is online that does not subscribe to one of them.
    admin.consumer("g", "T")
    assert progress(admin) == {**queues, MessageQueue("U", "b-a", 0): (1, 1, 1000)}
    assert progress(admin, topic="missing") == {}


def test_unknown_groups_leave_nothing_behind(admin: Admin) -> None:
    admin.create("T", 1)
    assert progress(admin, consumerGroup="stranger", topic="T") == {}
    assert admin.stats.consumers() == []


def test_progress_of_all_groups_sums_the_lag(admin: Admin) -> None:
    admin.create("T", 1)
    admin.tables.groups.get("g")
    admin.tables.queues.put("T", 0, [1, 2, 3])
    admin.tables.offsets.commit("g", "T", 0, 1)
    body = admin.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}).body
    told = loads(body)
    assert (told["brokerAddr"], told["totalDiff"]) == ("192.0.2.9:10911", 2)
    assert list(told["consumeStatsList"][0]) == ["g"]
    body = admin.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "true"}).body
    assert loads(body)["consumeStatsList"] == []


def test_what_waits_for_its_next_try_is_told_beside_the_queues(admin: Admin) -> None:
    def told(**ext: Any) -> dict[str, Any]:
        body = admin.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", **ext}).body
        return loads(body)

    retry = "%RETRY%g"
    admin.create("T", 1)
    made(admin.tables.topics.create_retry(retry, 1))
    admin.tables.groups.get("g")
    admin.tables.offsets.commit("g", "T", 0, 0)
    assert list(told()) == ["consumeTps", "offsetTable"]
    for _ in range(4):
        admin.tables.retries.waits(3, retry)
    assert told()["waitingRetries"] == 4
    assert told(topic=retry)["waitingRetries"] == 4
    assert "waitingRetries" not in told(topic="T")
    # The retry topic's row is there, though the group has no offset in it.
    body = admin.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"}).body
    stats = ConsumeStats.parse(body)
    assert {queue.topic for queue in stats.queues} == {"T", retry}
    assert (stats.waiting_retries, stats.lag) == (4, 4)
    body = admin.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}).body
    assert loads(body)["totalDiff"] == 4
    assert b'"waitingRetries":4' in body


def test_of_a_deleted_retry_topic_nothing_waits_any_more(admin: Admin) -> None:
    made(admin.tables.topics.create_retry("%RETRY%g", 1))
    admin.tables.retries.waits(3, "%RETRY%g")
    admin.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "%RETRY%g"})
    assert admin.tables.retries.topics() == set()


def test_groups_of_a_topic_are_the_live_ones_and_those_with_offsets(admin: Admin) -> None:
    admin.tables.queues.put("T", 0, [1])
    admin.tables.offsets.commit("away", "T", 0, 1)
    admin.consumer("live", "T")
    body = admin.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"}).body
    assert loads(body) == {"groupList": ["away", "live"]}


def test_connections_of_groups_are_listed(admin: Admin) -> None:
    ext = {"consumerGroup": "g", "producerGroup": "pg"}
    assert admin.refusal(RequestCode.GET_CONSUMER_CONNECTION_LIST, ext).code == 206
    error = admin.refusal(RequestCode.GET_PRODUCER_CONNECTION_LIST, ext)
    assert (error.code, error.remark) == (1, "the producer group[pg] not exist")
    admin.consumer("g", "T", Peer(7, "2001:db8::1"))
    body = admin.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, ext).body
    [connection] = parse_connections(body)
    assert (connection.client_id, connection.address) == ("c1", "[2001:db8::1]:7")
    told = loads(body)
    assert told["consumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"
    assert told["subscriptionTable"]["T"]["tagsSet"] == ["A"]
    [producer] = parse_connections(admin.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, ext).body)
    assert producer == connection
    producers = loads(admin.ask(RequestCode.GET_ALL_PRODUCER_INFO).body)
    assert producers["data"]["pg"][0]["remoteIP"] == "/[2001:db8::1]:7"


def test_rates_are_measured_between_questions() -> None:
    stats = BrokerStats()
    now = 0.0
    rates = GroupRates(stats, lambda: now)
    stats.consumer("g", "T").messages_out = 50
    now = 10.0
    assert rates.messages_a_second("g", "T") == 5.0
    stats.consumer("g", "T").messages_out = 70
    now = 10.5
    assert rates.messages_a_second("g", "T") == 5.0
    now = 20.0
    assert rates.messages_a_second("g", "T") == 2.0


# --- runtime --------------------------------------------------------------------------------------

RUNTIME_KEYS = re.findall(
    r"\w+",
    """
bootTimestamp runtime putMessageEntireTimeMax putMessageTimesTotal putMessageFailedTimes
putMessageSizeTotal putMessageDistributeTime putMessageAverageSize dispatchMaxBuffer
getMessageEntireTimeMax putTps getFoundTps getMissTps getTotalTps getTransferedTps putLatency99
putLatency999 commitLogDiskRatio consumeQueueDiskRatio commitLogMinOffset commitLogMaxOffset
remainTransientStoreBufferNumbs remainHowManyDataToFlush brokerVersionDesc brokerVersion
msgPutTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow msgGetTotalYesterdayMorning
msgGetTotalTodayMorning msgGetTotalTodayNow sendThreadPoolQueueSize sendThreadPoolQueueCapacity
pullThreadPoolQueueSize pullThreadPoolQueueCapacity queryThreadPoolQueueSize
queryThreadPoolQueueCapacity EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity
dispatchBehindBytes pageCacheLockTimeMills sendThreadPoolQueueHeadWaitTimeMills
pullThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueHeadWaitTimeMills earliestMessageTimeStamp
startAcceptSendRequestTimeStamp commitLogDirCapacity
    """,
)


def runtime(admin: Admin) -> dict[str, str]:
    return parse_kv_table(admin.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body)


def test_the_disk_ratio_is_the_one_that_df_shows(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 252 blocks of which 12 are used and 80 may be used by others than root: 12 / 92
    disk = os.statvfs_result((1, 1, 252, 240, 80, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: disk)
    assert runtime(admin)["commitLogDiskRatio"] == "0.1304"


def test_each_log_directory_has_its_ratio_and_the_emptiest_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = {str(tmp_path / "a"): 90, str(tmp_path / "b"): 30}
    for path in used:
        os.mkdir(path)

    def statvfs(path: str) -> os.statvfs_result:
        free = 100 - used.get(path, 50)
        return os.statvfs_result((1 << 20, 1 << 20, 100, free, free, 0, 0, 0, 0, 255, hash(path)))

    monkeypatch.setattr(os, "statvfs", statvfs)
    table = runtime(Admin(tmp_path, commit_log_path=",".join(used)))
    assert table["commitLogDiskRatio"] == table[f"commitLogDiskRatio_{tmp_path / 'b'}"] == "0.3"
    assert table[f"commitLogDiskRatio_{tmp_path / 'a'}"] == "0.9"
    assert table["consumeQueueDiskRatio"] == "0.5"
    assert table["commitLogDirCapacity"] == "Total : 200.0 MiB, Free : 80.0 MiB."


def test_the_runtime_table_has_every_key(admin: Admin) -> None:
    table = runtime(admin)
    assert set(RUNTIME_KEYS) <= set(table)
    assert (table["brokerVersion"], table["brokerVersionDesc"]) == ("409", "V4_9_8")
    assert table["putMessageTimesTotal"] == "1"
    assert table["earliestMessageTimeStamp"] == "-1"
    assert table["remainHowManyDataToFlush"] == "0 B"
    assert len(table["putTps"].split()) == 3
    assert 0 <= float(table["commitLogDiskRatio"]) <= 1
    assert re.fullmatch(r"\[ 0 days, 0 hours, 0 minutes, \d+ seconds \]", table["runtime"])
    assert table["putMessageDistributeTime"].startswith("[<=0ms]:0 [0~10ms]:0 ")
    assert table["putMessageDistributeTime"].endswith("[5~10s]:0 [10s~]:0 ")


def test_free_buffers_are_told_and_what_waits_in_them(admin: Admin) -> None:
    assert runtime(admin)["remainTransientStoreBufferNumbs"] == "2147483647"
    assert "remainHowManyDataToCommit" not in runtime(admin)
    admin.store.free_buffers = 3
    admin.store.written = 4096
    admin.store.committed = 1024
    table = runtime(admin)
    assert table["remainTransientStoreBufferNumbs"] == "3"
    assert table["remainHowManyDataToCommit"] == "3.0 KiB"


def test_runtime_figures_follow_the_counters(admin: Admin) -> None:
    store = admin.store
    store.written, store.durable, store.dispatched = 5000, 3464, 4000
    store.stats.appended_messages, store.stats.appended_bytes = 4, 1000
    for duration_ms in (0.02, 0.02, 5, 700):
        store.stats.append_times.add(int(duration_ms * 1e6))
    store.clock.seconds += 60
    store.stats_service.sample()
    host = pack_host("::1", 10911)
    message = StoreMessage("T", 0, 0, 0, 0, host, host, 0, 0, b"", b"")
    store.record = encode_record(message, 0, 0, 1_700_000_000_123)
    table = runtime(admin)
    assert table["earliestMessageTimeStamp"] == "1700000000123"
    assert table["remainHowManyDataToFlush"] == "1.5 KiB"
    assert table["dispatchBehindBytes"] == "1000"
    assert table["putMessageAverageSize"] == "250.0"
    assert table["putMessageEntireTimeMax"] == "700"
    assert 600 < float(table["putLatency999"]) <= 700
    assert table["putTps"] == "0.0667 0.0667 0.0667"
    assert table["msgPutTotalTodayNow"] == "4"
    assert "[<=0ms]:2 [0~10ms]:1 " in table["putMessageDistributeTime"]
    assert table["putMessageDistributeTime"].count(":1 ") == 2


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB")],
)
def test_sizes_are_written_as_tools_know_them(size: int, text: str) -> None:
    assert size_text(size) == text


# `mqadmin exportConfigs` of 4.9 copies these and fails when one is missing; `exportMetrics` shows
# the first as the machine's number of processors.
EXPORTED = """
    clientCallbackExecutorThreads autoCreateSubscriptionGroup autoCreateTopicEnable
    brokerClusterName brokerId brokerName brokerRole fileReservedTime filterServerNums
    flushDiskType maxMessageSize messageDelayLevel msgTraceTopicName slaveReadEnable traceOn
    traceTopicEnable useTLS
"""


def test_the_configuration_has_all_that_mqadmin_exports(admin: Admin) -> None:
    reply = admin.ask(RequestCode.GET_BROKER_CONFIG)
    lines = dict(line.split("=", 1) for line in reply.body.decode().splitlines())
    assert set(EXPORTED.split()) <= set(lines)
    assert lines["useTLS"] == "false"
    assert lines["clientCallbackExecutorThreads"] == str(len(os.sched_getaffinity(0)))


def test_the_configuration_is_told_without_secrets(admin: Admin) -> None:
    reply = admin.ask(RequestCode.GET_BROKER_CONFIG)
    lines = dict(line.split("=", 1) for line in reply.body.decode().splitlines())
    assert (lines["brokerName"], lines["flushDiskType"]) == ("b-a", "ASYNC_FLUSH")
    assert lines["autoCreateTopicEnable"] == "true"
    secret = {setting.rocketmq_key for setting in SETTINGS if setting.secret}
    assert not secret & set(lines)
    assert json.loads(reply.ext["version"])["counter"] == 0
    assert list(config_lines(admin.settings)) == sorted(config_lines(admin.settings))
