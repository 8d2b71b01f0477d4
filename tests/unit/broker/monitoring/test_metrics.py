"""Claims about /metrics: names, values, formats, bounds, and what it costs the loop."""

import asyncio
import gzip
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import cast

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from aerobee import __version__
from aerobee.broker.broker_stats import OTHER, BrokerStats
from aerobee.broker.cluster.registration.registration import Registrar
from aerobee.broker.core import BrokerCore
from aerobee.broker.monitoring import broker_metrics, lag_metrics, network_metrics, store_metrics
from aerobee.broker.monitoring.health_checks import HealthChecks, LoopMonitor
from aerobee.broker.monitoring.http import HttpServer, Request, Response
from aerobee.broker.monitoring.metrics import Fill, Metrics, MetricsOptions, Page, Row
from aerobee.broker.tables.clients import ClientTable, ConsumerGroup, GroupMember
from aerobee.broker.tables.groups import GroupConfig, GroupTable
from aerobee.broker.tables.lag import ConsumerLag
from aerobee.broker.tables.offsets import ConsumerOffsets
from aerobee.broker.tables.retries_waiting import RetriesWaiting
from aerobee.broker.tables.topics import TopicTable
from aerobee.config.model import Settings
from aerobee.nameserver.server import NameServer, NameServerCounts
from aerobee.protocol.bodies.topics import TopicConfig
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.filters.subscription import Subscription
from aerobee.remoting.connection_stats import ServerStats, TlsFailure, TlsStats
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Turns
from aerobee.store.background.retention.disposal import DeletionCounts
from aerobee.store.disk.files import DiskSpace, Files
from aerobee.store.message_store import MessageStore
from aerobee.store.segments.transient_pool import NO_POOL
from aerobee.store.store_stats import StoreStats
from tests.unit.broker.second_step.second_step_support import no_retries

OPTIONS = MetricsOptions("Cluster", "broker-a", (("zone", "z1"),))
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def tables() -> list[Row]:
    return [Row("rocketmq_topic_number", 2, "Topics"), Row("aerobee_held_pulls", 0, "Held pulls")]


Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(response: Response) -> Samples:
    """Every sample of a plain page by name and sorted labels, without the base labels."""
    base = {"cluster", "node_type", "node_id", "zone"}
    return {
        (
            sample.name,
            tuple(sorted((k, v) for k, v in sample.labels.items() if k not in base)),
        ): sample.value
        for family in parse_plain(response.body.decode())
        for sample in family.samples
    }


def value(page: Samples, name: str, **labels: str) -> float:
    return page[name, tuple(sorted(labels.items()))]


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    metrics = Metrics(OPTIONS)
    yield metrics
    metrics.close()


async def scrape(metrics: Metrics, **headers: str) -> Response:
    names = {name.replace("_", "-"): text for name, text in headers.items()}
    return await metrics.route(Request("GET", "/metrics", headers=names))


class SystemTopics:
    def is_system(self, topic: str) -> bool:
        return topic == "SYS"


system = cast("TopicTable", SystemTopics())


async def test_traffic_by_topic_and_group(metrics: Metrics) -> None:
    stats = BrokerStats()
    stats.stored(stats.topic("T"), 2, 600)
    stats.stored(stats.topic("T", "fifo"), 1, 5000)
    stats.stored(stats.topic("%RETRY%G"), 1, 10)
    stats.delivered(stats.consumer("G", "SYS"), 3, 900)
    stats.consumer("G", "SYS").sent_back += 1
    stats.get_missed += 4
    metrics.add("traffic", broker_metrics.traffic, stats, system)
    page = samples(await scrape(metrics))
    plain = {"topic": "T", "message_type": "normal", "is_system": "false"}
    assert value(page, "rocketmq_messages_in_total", **plain) == 2
    assert value(page, "rocketmq_throughput_in_total", **plain) == 600
    assert value(page, "rocketmq_message_size_bucket", le="1024.0", **plain) == 2
    assert value(page, "rocketmq_message_size_sum", **plain) == 600
    fifo = {**plain, "message_type": "fifo"}
    assert value(page, "rocketmq_message_size_bucket", le="4096.0", **fifo) == 0
    assert value(page, "rocketmq_message_size_bucket", le="+Inf", **fifo) == 1
    out = {"topic": "SYS", "consumer_group": "G", "is_system": "true"}
    assert value(page, "rocketmq_messages_out_total", **out) == 3
    assert value(page, "rocketmq_throughput_out_total", **out) == 900
    assert value(page, "aerobee_pulls_total", outcome="nothing") == 4
    retry = {"topic": "%RETRY%G", "message_type": "normal", "is_system": "false"}
    assert ("rocketmq_messages_in_total", tuple(sorted(retry.items()))) not in page


async def test_groups_of_rocketmq_itself_count_as_system(metrics: Metrics) -> None:
    stats = BrokerStats()
    for group in ("TOOLS_CONSUMER", "CID_RMQ_SYS_X", "Own"):
        stats.delivered(stats.consumer(group, "T"), 1, 100)
    metrics.add("traffic", broker_metrics.traffic, stats, system)
    judged = lag_of(FakeQueues({}), {("T", "TOOLS_CONSUMER"): {0: 0}}, {"T": 1}, stats)
    metrics.add("lag", lag_metrics.lag, *judged)
    page = samples(await scrape(metrics))
    is_system = {"TOOLS_CONSUMER": "true", "CID_RMQ_SYS_X": "true", "Own": "false"}
    for group, expected in is_system.items():
        labels = {"topic": "T", "consumer_group": group, "is_system": expected}
        assert value(page, "rocketmq_messages_out_total", **labels) == 1
    labels = {"topic": "T", "consumer_group": "TOOLS_CONSUMER", "is_retry": "false"}
    assert value(page, "rocketmq_consumer_lag_messages", is_system="true", **labels) == 0


async def test_rocketmq_names_carry_its_labels_and_ours_do_not(metrics: Metrics) -> None:
    metrics.add("tables", tables)
    text = (await scrape(metrics)).body.decode()
    labels = 'cluster="Cluster",node_id="broker-a",node_type="broker",zone="z1"'
    assert f"rocketmq_topic_number{{{labels}}} 2.0\n" in text
    assert "\naerobee_held_pulls 0.0\n" in text


async def test_rocketmq_names_can_be_turned_off() -> None:
    metrics = Metrics(MetricsOptions("C", "b", rocketmq_names=False))
    metrics.add("tables", tables)
    text = (await scrape(metrics)).body.decode()
    assert "rocketmq_" not in text
    assert "aerobee_held_pulls" in text
    metrics.close()


async def test_request_latency_is_in_milliseconds_under_known_names(metrics: Metrics) -> None:
    stats = BrokerStats()
    stats.request_served(310, 0.004)
    stats.request_refused(10, 17, 0.004)
    stats.request_refused(54321, 3)
    stats.group_warnings.bump("mixed subscriptions")
    metrics.add("requests", broker_metrics.requests, stats)
    page = samples(await scrape(metrics))
    labels = {
        "protocol_type": "remoting",
        "request_code": "send_message_v2",
        "response_code": "success",
        "is_long_polling": "false",
        "result": "success",
    }
    name = "rocketmq_rpc_latency_milliseconds"
    assert value(page, f"{name}_bucket", le="3.0", **labels) == 0
    assert value(page, f"{name}_bucket", le="5.0", **labels) == 1
    assert value(page, f"{name}_sum", **labels) == pytest.approx(4)
    assert value(page, "aerobee_refused_requests_total", reason="topic_not_exist") == 1
    assert value(page, "aerobee_refused_requests_total", reason="request_code_not_supported") == 1
    assert value(page, "aerobee_group_warnings_total", kind="mixed_subscriptions") == 1
    assert any(("request_code", "unknown") in labels for _, labels in page)


async def test_a_request_that_finds_nothing_is_not_refused(metrics: Metrics) -> None:
    """Found: an idle consumer looked like an error every few seconds."""
    stats = BrokerStats()
    for code in (
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.NO_PERMISSION,
    ):
        stats.request_refused(RequestCode.PULL_MESSAGE, code)
    stats.request_refused(RequestCode.QUERY_CONSUMER_OFFSET, ResponseCode.QUERY_NOT_FOUND)
    # Tools and consumers ask this to hear that there is no member or no group.
    online = RequestCode.GET_CONSUMER_CONNECTION_LIST
    stats.request_refused(online, ResponseCode.CONSUMER_NOT_ONLINE)
    for code in (RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.VIEW_BROKER_STATS_DATA):
        stats.request_refused(code, ResponseCode.SYSTEM_ERROR)
    stats.request_refused(RequestCode.GET_TOPIC_CONFIG, ResponseCode.TOPIC_NOT_EXIST)
    metrics.add("requests", broker_metrics.requests, stats)
    page = samples(await scrape(metrics))
    refused = {labels for name, labels in page if name == "aerobee_refused_requests_total"}
    assert refused == {(("reason", "no_permission"),)}
    answered = {
        value
        for name, labels in page
        if name == "rocketmq_rpc_latency_milliseconds_count"
        for label, value in labels
        if label == "response_code"
    }
    assert answered > {
        "pull_not_found",
        "pull_retry_immediately",
        "pull_offset_moved",
        "query_not_found",
    }


async def test_connections_of_each_server(metrics: Metrics) -> None:
    broker, name_server = ServerStats(), ServerStats()
    broker.open, broker.outbound_bytes, broker.bad_frames = 7, 12345, 2
    broker.refused_address = 3
    broker.closed["frame too slow"] += 1
    metrics.add(
        "connections", network_metrics.connections, {"broker": broker, "nameserver": name_server}
    )
    page = samples(await scrape(metrics))
    assert value(page, "aerobee_connections_open", server="broker") == 7
    assert value(page, "aerobee_connections_open", server="nameserver") == 0
    assert value(page, "aerobee_write_buffer_bytes", server="broker") == 12345
    assert value(page, "aerobee_bad_frames_total", server="broker") == 2
    refused = {"server": "broker", "limit": "address"}
    assert value(page, "aerobee_connections_refused_total", **refused) == 3
    closed = {"server": "broker", "reason": "frame_too_slow"}
    assert value(page, "aerobee_connections_closed_total", **closed) == 1


async def test_handshakes_of_each_port_by_what_became_of_them(metrics: Metrics) -> None:
    broker, http = TlsStats(arriving=3, handshakes=7), TlsStats()
    broker.failed[TlsFailure.PLAIN] += 2
    metrics.add("tls", network_metrics.tls, {"broker": broker, "http": http})
    page = samples(await scrape(metrics))
    assert value(page, "aerobee_tls_handshakes_total", server="broker") == 7
    assert value(page, "aerobee_connections_arriving", server="broker") == 3
    plain = {"server": "broker", "reason": "plain_on_enforcing"}
    assert value(page, "aerobee_tls_failures_total", **plain) == 2
    assert value(page, "aerobee_tls_failures_total", server="http", reason="timeout") == 0


async def test_runtime_shows_health_and_lag_of_the_loop(metrics: Metrics) -> None:
    health = HealthChecks()
    health.add("store", lambda: None, "")
    health.add("disk", lambda: "full", "")
    monitor = LoopMonitor(asyncio.get_running_loop())
    monitor.lag.add(0.02)
    stats = BrokerStats()
    stats.started_ms = 1_795_000_000_000
    metrics.add("runtime", broker_metrics.runtime, None, stats, health, monitor)
    page = samples(await scrape(metrics))
    assert value(page, "aerobee_ready") == 0
    assert value(page, "aerobee_check_ok", check="store") == 1
    assert value(page, "aerobee_check_ok", check="disk") == 0
    assert value(page, "aerobee_start_time_seconds") == 1_795_000_000
    assert value(page, "aerobee_loop_lag_seconds_count") == 1
    build = {("version", __version__), ("form", "plain")}
    assert any(name == "aerobee_build_info" and build <= set(labels) for name, labels in page)


async def test_used_part_of_each_limit_and_the_memory_they_allow(metrics: Metrics) -> None:
    settings = Settings.for_tests(held_pulls=200, max_queues=40)
    topics = [TopicConfig("A", 4, 8), TopicConfig("B", 2, 1)]
    ports = [ServerStats(inbound_bytes=1), ServerStats(inbound_bytes=64 << 20)]
    metrics.add("limits", broker_metrics.limits, settings, core_of(topics, 150), ports, None)
    page = samples(await scrape(metrics))
    name = "aerobee_limit_used_ratio"
    assert value(page, name, limit="limits.held_pulls") == 0.75
    assert value(page, name, limit="limits.inbound_bytes") == 0.5
    assert value(page, name, limit="limits.max_queues") == 0.25
    assert value(page, "aerobee_memory_worst_case_bytes") > 500 << 20
    assert value(page, "aerobee_memory_available_bytes") > 0


class Counted(list[object]):
    """A table with as many entries, and nothing else to count."""

    bytes = requests = pending = starts = 0

    def all(self) -> list[object]:
        return self

    def count(self) -> int:  # type: ignore[override]
        return 0


def core_of(topics: list[TopicConfig], held_pulls: int) -> BrokerCore:
    names = ("clients", "client_calls", "transactions", "filters", "expressions", "groups")
    tables = {name: Counted() for name in (*names, "offsets")}
    staged = SimpleNamespace(table=SimpleNamespace(bytes=0, finished=SimpleNamespace(bytes=0)))
    held = Counted([None] * held_pulls)
    core = SimpleNamespace(**tables, topics=Counted(topics), held=held, staging=staged)
    return cast("BrokerCore", core)


def member(language: str, version: int, peer: str) -> GroupMember:
    return GroupMember(cast("Connection", peer), peer, language, version, 0.0)


class FakeClients:
    def producer_groups(self) -> Iterator[tuple[str, list[GroupMember]]]:
        java = member("JAVA", 409, "p1")
        yield "P1", [java, member("GO", 123456, "p2")]
        yield "P2", [java]

    def consumer_groups(self) -> list[ConsumerGroup]:
        push = ConsumerGroup("G", "CONSUME_PASSIVELY", "CLUSTERING", "")
        for peer in ("c1", "c2"):
            consumer = member("JAVA", 409, peer)
            push.members[id(consumer.connection)] = consumer
        return [push]


async def test_clients_are_counted_by_connection(metrics: Metrics) -> None:
    metrics.add("clients", network_metrics.clients, FakeClients())
    page = samples(await scrape(metrics))
    java = {"language": "java", "version": "v4_9_8", "protocol_type": "remoting"}
    go = {**java, "language": "go", "version": "unknown"}
    assert value(page, "rocketmq_producer_connections", **java) == 1
    assert value(page, "rocketmq_producer_connections", **go) == 1
    group = {"consumer_group": "G", "consume_mode": "push", "is_system": "false"}
    assert value(page, "rocketmq_consumer_connections", **java, **group) == 2


async def test_name_servers_show_registration_and_routes(metrics: Metrics) -> None:
    counts = NameServerCounts(1, 12, {105: 7, -1: 2})
    server = cast("NameServer", SimpleNamespace(counts=lambda: counts))
    accepted = {"127.0.0.1:9876": True, "other:9876": False}
    registrar = cast("Registrar", SimpleNamespace(registered=accepted))
    metrics.add("name servers", network_metrics.name_servers, registrar, server)
    page = samples(await scrape(metrics))
    assert value(page, "aerobee_registered", name_server="127.0.0.1:9876") == 1
    assert value(page, "aerobee_registered", name_server="other:9876") == 0
    assert value(page, "aerobee_nameserver_topics") == 12
    name = "aerobee_nameserver_requests_total"
    assert value(page, name, request_code="get_routeinfo_by_topic") == 7
    assert value(page, name, request_code="unknown") == 2


async def test_http_port_counts_its_answers(metrics: Metrics) -> None:
    server = HttpServer("127.0.0.1", 0, {})
    server.requests[404] = 3
    server.refused = 2
    metrics.add("http", network_metrics.http_port, server)
    page = samples(await scrape(metrics))
    assert value(page, "aerobee_http_answers_total", status="404") == 3
    assert value(page, "aerobee_http_connections_refused_total") == 2


class FakeStore:
    written, committed, durable, dispatched, min_log_offset = 1000, 950, 900, 800, 100
    free_buffers = NO_POOL
    known_gaps = ((200, 300), (400, 500))

    def __init__(self) -> None:
        self.stats = StoreStats()
        self.marks = SimpleNamespace(replicated=700)


async def test_free_buffers_of_the_transient_pool_are_shown(
    metrics: Metrics, tmp_path: Path
) -> None:
    store = FakeStore()
    usage = store_metrics.DiskUsage(str(tmp_path))
    metrics.add("store", store_metrics.marks_and_times, store, usage)
    name = "aerobee_store_transient_buffers_free"
    assert name not in {sample[0] for sample in samples(await scrape(metrics))}
    store.free_buffers = 3
    page = samples(await scrape(metrics))
    assert value(page, name) == 3
    assert value(page, "aerobee_store_mark_bytes", mark="committed") == 950


async def test_store_marks_times_and_disk(metrics: Metrics, tmp_path: Path) -> None:
    store = FakeStore()
    store.stats.appended_messages = 5
    store.stats.put_failed("PageCacheBusy")
    store.stats.put_failed("MessageIllegal")
    store.stats.damage_found["record"] += 1
    store.stats.append_times.add(3_000)
    store.stats.commit_log_sync_times.add(2_000_000)
    (tmp_path / "commitlog").mkdir()
    segment = tmp_path / "commitlog" / "00000000000000000000"
    with segment.open("wb") as file:
        file.write(bytes(4096))
        os.fsync(file.fileno())  # some file systems find the blocks only now
    with (tmp_path / "index").open("wb") as sparse:
        sparse.truncate(1 << 30)
    usage = store_metrics.DiskUsage(str(tmp_path))
    metrics.add("store", store_metrics.marks_and_times, store, usage)
    page = samples(await scrape(metrics))
    for mark, expected in (("oldest", 100), ("replicated", 700), ("durable", 900)):
        assert value(page, "aerobee_store_mark_bytes", mark=mark) == expected
    local = {"storage_type": "local", "storage_medium": "disk"}
    assert value(page, "rocketmq_storage_flush_behind_bytes", **local) == 100
    assert value(page, "rocketmq_storage_dispatch_behind_bytes", **local) == 200
    assert value(page, "rocketmq_storage_size_bytes", **local) == sum(
        path.stat().st_blocks * 512 for path in (segment, tmp_path / "index")
    )
    assert value(page, "rocketmq_storage_size_bytes", **local) < 1 << 20
    assert value(page, "aerobee_store_appended_messages_total") == 5
    assert value(page, "aerobee_store_put_failures_total", reason="page_cache_busy") == 1
    assert value(page, "aerobee_store_put_failures_total", reason="message_illegal") == 1
    assert value(page, "aerobee_store_append_seconds_bucket", le="2.048e-06") == 0
    assert value(page, "aerobee_store_append_seconds_bucket", le="4.096e-06") == 1
    assert value(page, "aerobee_store_damage_found_total", kind="record") == 1
    assert value(page, "aerobee_store_damage_found_total", kind="unit") == 0
    assert value(page, "aerobee_store_known_gaps") == 2
    assert value(page, "aerobee_store_sync_seconds_sum") == pytest.approx(0.002)


class FakeDisks:
    def __init__(self, **disks: DiskSpace) -> None:
        self.disks = disks

    def disk_space(self, path: str) -> DiskSpace:
        if path not in self.disks:
            raise FileNotFoundError(path)
        return self.disks[path]


async def test_deletion_is_counted_by_reason_and_disks_are_shown_by_path(metrics: Metrics) -> None:
    counts = DeletionCounts()
    counts.segment("time", 1000)
    counts.segment("forced", 1000)
    counts.segment("forced", 1000)
    counts.queue_files, counts.index_files, counts.unconsumed, counts.failures = 3, 4, 5, 6
    store = SimpleNamespace(
        retention=SimpleNamespace(counts=counts, hanged=2),
        log_directories=["log", "gone"],
        queue_directory="queues",
    )
    disks = cast("Files", FakeDisks(log=DiskSpace(75, 25), queues=DiskSpace(10, 90)))
    settings = Settings.for_tests()
    metrics.add("deletion", store_metrics.deletions, cast("MessageStore", store), settings, disks)
    page = samples(await scrape(metrics))
    for reason, segments in (("time", 1), ("space", 0), ("manual", 0), ("forced", 2)):
        labels = {"reason": reason}
        assert value(page, "aerobee_store_deleted_segments_total", **labels) == segments
        assert value(page, "aerobee_store_deleted_bytes_total", **labels) == 1000 * segments
    assert value(page, "aerobee_store_deleted_queue_files_total") == 3
    assert value(page, "aerobee_store_deleted_index_files_total") == 4
    assert value(page, "aerobee_store_deleted_unconsumed_messages_total") == 5
    assert value(page, "aerobee_store_deletion_failures_total") == 6
    assert value(page, "aerobee_store_hanged_segments") == 2
    assert value(page, "aerobee_disk_used_ratio", path="log") == 0.75
    assert value(page, "aerobee_disk_free_bytes", path="queues") == 90
    assert value(page, "aerobee_disk_refusal_ratio") == settings.disk_warning_ratio


class FakeQueues:
    def __init__(self, ends: Mapping[tuple[str, int], tuple[int, int]]) -> None:
        self.ends = ends
        self.asked: list[tuple[str, int, int]] = []
        self.reader = self.search = self

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self.ends.get((topic, queue_id), (0, 0))[0]

    def max_offset(self, topic: str, queue_id: int) -> int:
        return self.ends.get((topic, queue_id), (0, 0))[1]

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        self.asked.append((topic, queue_id, queue_offset))
        return 1_000_000 + queue_offset

    def is_in_memory(self, _topic: str, _queue_id: int, _queue_offset: int) -> bool:
        return True


class FakeOffsets:
    are_lost = False

    def __init__(self, table: dict[tuple[str, str], dict[int, int]]) -> None:
        self.table = table

    def pairs(self) -> list[tuple[str, str]]:
        return list(self.table)

    def of(self, group: str, topic: str) -> Mapping[int, int]:
        return self.table.get((topic, group), {})

    def query(self, group: str, topic: str, queue_id: int) -> int:
        return self.of(group, topic).get(queue_id, -1)


class TopicsOfSizes:
    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = counts

    def get(self, name: str) -> TopicConfig | None:
        count = self.counts.get(name)
        return None if count is None else TopicConfig(name, count, count)


class AllGroups:
    def find(self, name: str) -> GroupConfig:
        return GroupConfig(name)


class FakeSubscribers:
    """Groups online, and the topics that each subscribes to."""

    def __init__(self, groups: Mapping[str, Sequence[str]]) -> None:
        self.groups: dict[str, ConsumerGroup] = {}
        for name, topics in groups.items():
            made = ConsumerGroup(
                name, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET"
            )
            made.subscriptions.update({topic: Subscription(topic) for topic in topics})
            self.groups[name] = made

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        return self.groups.get(name)

    def consumer_groups(self) -> list[ConsumerGroup]:
        return list(self.groups.values())


LagArguments = tuple[ConsumerLag, MessageStore, TopicTable, bool, Callable[[], float]]


def lag_of(
    queues: FakeQueues,
    offsets: dict[tuple[str, str], dict[int, int]],
    topics: Mapping[str, int],
    stats: BrokerStats,
    online: Mapping[str, Sequence[str]] = MappingProxyType({}),
    retries: RetriesWaiting | None = None,
) -> LagArguments:
    """The arguments of the lag section, for these queues, offsets, numbers of queues by topic,
    topics of the groups online, and retries that wait."""
    store = cast("MessageStore", queues)
    lag = ConsumerLag(
        topics=cast("TopicTable", TopicsOfSizes(topics)),
        groups=cast("GroupTable", AllGroups()),
        offsets=cast("ConsumerOffsets", FakeOffsets(offsets)),
        clients=cast("ClientTable", FakeSubscribers(online)),
        stats=stats,
        store=store,
        retries=retries or no_retries(),
    )
    return lag, store, system, True, lambda: 2000.0


async def test_lag_counts_what_can_still_be_consumed(metrics: Metrics) -> None:
    queues = FakeQueues(
        {
            ("T", 0): (0, 100),
            ("T", 1): (50, 60),
            ("T", 2): (0, 5),
            ("R", 0): (0, 3),
            ("U", 0): (5, 9),
        }
    )
    offsets = {
        ("T", "G"): {0: 90, 1: 10, 2: 5},  # 10 behind; 50..60 left after expiry; none
        ("T", "NEW"): {2: 0},  # never committed in queues 0 and 1
        ("U", "NEW"): {1: 0},  # never committed in queue 0
        ("R", "DONE"): {0: 3},
        ("GONE", "G"): {0: 1},
        ("%LMQ%HIDDEN", "G"): {0: 1},
    }
    stats = BrokerStats()
    stats.consumer("G", "T").pulled.update({0: 94, 1: 20, 2: 5})
    stats.consumer("HANGS", "R").pulled[0] = 2
    counts, online = (
        {"T": 3, "R": 1, "U": 1, "%LMQ%HIDDEN": 1},
        {"HANGS": ["R", "GONE"], "G": ["T"]},
    )
    metrics.add("lag", lag_metrics.lag, *lag_of(queues, offsets, counts, stats, online))
    page = samples(await scrape(metrics))

    def lag(group: str, topic: str, what: str) -> float:
        name = f"rocketmq_consumer_{what}"
        labels = {"consumer_group": group, "topic": topic, "is_retry": "false"}
        return value(page, name, is_system="false", **labels)

    assert lag("G", "T", "lag_messages") == 20
    assert lag("G", "T", "lag_latency_milliseconds") == 2_000_000 - 1_000_050
    # Messages 90..94 of queue 0 are on their way; queue 1 has nothing that still counts.
    assert lag("G", "T", "inflight_messages") == 4
    assert lag("G", "T", "ready_messages") == 6 + 10
    # Where it would start in queue 1, whose first messages are gone, nobody knows.
    assert lag("NEW", "T", "ready_messages") == lag("NEW", "T", "lag_messages") == 100 + 5
    unknown = {labels for name, labels in page if name == "aerobee_consumer_lag_unknown_queues"}
    found = {(dict(labels)["topic"], dict(labels)["consumer_group"]) for labels in unknown}
    assert found == {("T", "NEW"), ("U", "NEW")}
    lags = {labels for name, labels in page if name == "rocketmq_consumer_lag_messages"}
    assert not any(("topic", "U") in labels for labels in lags)
    assert lag("DONE", "R", "lag_messages") == 0
    assert lag("DONE", "R", "lag_latency_milliseconds") == 0
    # Its listener has never come to an end: it has no offset at all.
    assert lag("HANGS", "R", "lag_messages") == 3
    assert lag("HANGS", "R", "inflight_messages") == 2
    assert lag("HANGS", "R", "lag_latency_milliseconds") == 2_000_000 - 1_000_000
    for name in ("GONE", "%LMQ%HIDDEN"):
        assert not any(("topic", name) in labels for _, labels in page)


async def test_lag_counts_what_waits_for_its_next_try(metrics: Metrics) -> None:
    """0 before: a listener that fails on all that it gets consumes nothing."""
    retry = "%RETRY%FAILS"
    retries = no_retries()
    for _ in range(7):
        retries.waits(3, retry)
    retries.waits(3, "%RETRY%NOWHERE")
    queues = FakeQueues({("T", 0): (0, 100), (retry, 0): (0, 10)})
    offsets = {("T", "FAILS"): {0: 100}}
    counts = {"T": 1, retry: 1}
    judged = lag_of(queues, offsets, counts, BrokerStats(), {}, retries)
    metrics.add("lag", lag_metrics.lag, *judged)
    page = samples(await scrape(metrics))

    def lag(what: str, topic: str, is_retry: str) -> float:
        labels = {"consumer_group": "FAILS", "is_system": "false"}
        name = f"rocketmq_consumer_{what}"
        return value(page, name, topic=topic, is_retry=is_retry, **labels)

    assert lag("lag_messages", "T", "false") == 0
    # Ten lie in its retry topic already, where it has no offset yet.
    assert lag("lag_messages", retry, "true") == 7 + 10
    assert lag("ready_messages", retry, "true") == 10
    assert lag("lag_latency_milliseconds", retry, "true") == 2_000_000 - 1_000_000
    assert not any(("consumer_group", "NOWHERE") in labels for _, labels in page)


async def test_lag_of_many_groups_lets_the_loop_turn(metrics: Metrics) -> None:
    ends = {("T", queue): (0, 10) for queue in range(8)}
    offsets = {("T", f"G{number}"): {0: 1} for number in range(3000)}
    queues = FakeQueues(ends)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    await lag_metrics.lag(*lag_of(queues, offsets, {"T": 8}, BrokerStats()))
    counting.cancel()
    assert turns > 3
    assert len(queues.asked) <= 1000


async def test_series_beyond_the_limit_are_folded_and_reported() -> None:
    metrics = Metrics(MetricsOptions("C", "b", series_limit=10))
    stats = BrokerStats()
    for number in range(25):
        stats.stored(stats.topic(f"T{number}"), 1, 100)
    metrics.add("traffic", broker_metrics.traffic, stats, system)
    response = await scrape(metrics)
    metrics.close()
    page = samples(response)
    other = {"topic": OTHER, "message_type": "normal", "is_system": "false"}
    assert value(page, "rocketmq_messages_in_total", **other) == 15
    assert value(page, "rocketmq_message_size_count", **other) == 15
    folded = value(page, "aerobee_metrics_folded_series", family="rocketmq_messages_in_total")
    assert folded == 15


async def test_page_of_twenty_thousand_topics_is_bounded_and_its_sums_are_true() -> None:
    """8.6 MB and more before: one series for each topic and group, whatever their number."""
    metrics = Metrics(MetricsOptions("C", "b"))
    stats = BrokerStats()
    pairs = {}
    for number in range(20_000):
        stats.stored(stats.topic(f"T{number}"), 2, 300)
        stats.delivered(stats.consumer("G", f"T{number}"), 1, 100)
        pairs[f"T{number}", "G"] = {0: number % 50}
    metrics.add("traffic", broker_metrics.traffic, stats, system)
    queues = FakeQueues({(f"T{number}", 0): (0, 100) for number in range(20_000)})
    counts = {f"T{number}": 1 for number in range(20_000)}
    metrics.add("lag", lag_metrics.lag, *lag_of(queues, pairs, counts, stats))
    response = await scrape(metrics)
    metrics.close()
    assert len(response.body) < 4_000_000
    page = samples(response)

    def of(name: str) -> list[float]:
        return [amount for (sample, _), amount in page.items() if sample == name]

    for name, expected in (
        ("rocketmq_messages_in_total", 40_000),
        ("rocketmq_throughput_in_total", 6_000_000),
        ("rocketmq_message_size_count", 40_000),
        ("rocketmq_message_size_sum", 6_000_000),
        ("rocketmq_messages_out_total", 20_000),
        ("rocketmq_consumer_lag_messages", sum(100 - number % 50 for number in range(20_000))),
    ):
        assert (len(of(name)), sum(of(name))) == (1001, expected)
    # The largest are shown, and of the others' ages the oldest.
    assert (
        sorted(of("rocketmq_consumer_lag_messages"))[:-1] == [98] * 200 + [99] * 400 + [100] * 400
    )
    assert value(page, "aerobee_metrics_folded_series", family="rocketmq_messages_in_total") == 19e3


async def test_age_of_the_rest_is_that_of_its_oldest_message() -> None:
    metrics = Metrics(MetricsOptions("C", "b", series_limit=1))
    offsets = {("T", f"G{number}"): {0: number} for number in range(3)}
    queues = FakeQueues({("T", 0): (0, 10)})
    metrics.add("lag", lag_metrics.lag, *lag_of(queues, offsets, {"T": 1}, BrokerStats()))
    page = samples(await scrape(metrics))
    metrics.close()
    other = {"consumer_group": OTHER, "topic": OTHER, "is_retry": "false", "is_system": "false"}
    name = "rocketmq_consumer_lag_latency_milliseconds"
    assert value(page, name, **other) == 2_000_000 - 1_000_001


async def test_scrapes_that_come_together_share_one_page(metrics: Metrics) -> None:
    made = 0
    may_go_on = asyncio.Event()

    async def slow_section() -> Fill:
        nonlocal made
        made += 1
        await may_go_on.wait()
        return lambda page: page.family("aerobee_made", "Pages made").add(made)

    metrics.add("slow", slow_section)
    async with asyncio.timeout(10):
        scrapes = [asyncio.create_task(scrape(metrics)) for _ in range(5)]
        while not made:  # noqa: ASYNC110 - begins at the loop's next turns
            await asyncio.sleep(0)
        scrapes[0].cancel()  # a scraper that gives up takes the page from nobody
        may_go_on.set()
        answers = await asyncio.gather(*scrapes, return_exceptions=True)
        assert isinstance(answers[0], asyncio.CancelledError)
        pages = [answer for answer in answers if isinstance(answer, Response)]
        assert [value(samples(page), "aerobee_made") for page in pages] == [1] * 4
        assert value(samples(await scrape(metrics)), "aerobee_made") == 2


class ManyClients:
    """A thousand groups of twenty producers and consumers each."""

    def __init__(self) -> None:
        self.members = {number: member("JAVA", 409, f"p{number}") for number in range(20)}

    def producer_groups(self) -> Iterator[tuple[str, list[GroupMember]]]:
        for number in range(1000):
            yield f"P{number}", list(self.members.values())

    def consumer_groups(self) -> list[ConsumerGroup]:
        groups = [
            ConsumerGroup(f"G{number}", "CONSUME_PASSIVELY", "CLUSTERING", "")
            for number in range(1000)
        ]
        for group in groups:
            group.members.update({id(one.connection): one for one in self.members.values()})
        return groups


async def test_counting_many_clients_lets_the_loop_turn() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    await network_metrics.clients(ManyClients())  # type: ignore[arg-type]
    counting.cancel()
    assert turns > 3


async def broken_section(in_thread: bool) -> Fill:
    if not in_thread:
        raise RuntimeError("a bug")

    def fill(_page: Page) -> None:
        raise RuntimeError("a bug")

    return fill


@pytest.mark.parametrize("in_thread", [False, True])
async def test_broken_section_hides_no_other(metrics: Metrics, in_thread: bool) -> None:
    metrics.add("broken", broken_section, in_thread)
    metrics.add("tables", tables)
    page = samples(await scrape(metrics))
    assert value(page, "aerobee_metrics_section_failures_total", section="broken") == 1
    assert value(page, "aerobee_held_pulls") == 0


async def test_format_is_what_the_scraper_asks_for(metrics: Metrics) -> None:
    metrics.add("requests", broker_metrics.requests, BrokerStats())
    metrics.add("connections", network_metrics.connections, {"broker": ServerStats()})
    plain = await scrape(metrics)
    assert plain.content_type == "text/plain; version=0.0.4; charset=utf-8"
    openmetrics = await scrape(metrics, accept=OPENMETRICS)
    assert openmetrics.content_type.startswith("application/openmetrics-text; version=1.0.0")
    families = parse_openmetrics(openmetrics.body.decode())  # type: ignore[no-untyped-call]
    names = {family.name for family in families}
    assert {"aerobee_connections_open", "process_resident_memory_bytes", "python_info"} <= names


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        "a;;;=,,\x00",
        "application/openmetrics-text; version=latest",
        "text/plain;version=x",
    ],
)
async def test_strange_accept_headers_get_the_plain_format(metrics: Metrics, accept: str) -> None:
    response = await scrape(metrics, accept=accept)
    assert response.status == 200
    assert "python_info" in response.body.decode()


async def test_large_page_is_packed_for_who_takes_it(metrics: Metrics) -> None:
    stats = BrokerStats()
    for number in range(200):
        stats.stored(stats.topic(f"T{number}"), 1, 100)
    metrics.add("traffic", broker_metrics.traffic, stats, system)
    plain = await scrape(metrics)
    packed = await scrape(metrics, accept_encoding="deflate, gzip;q=0.8")
    assert packed.headers == (("Content-Encoding", "gzip"),)
    assert len(packed.body) < len(plain.body) / 5
    assert b"rocketmq_messages_in_total" in gzip.decompress(packed.body)


def test_importing_the_metrics_does_not_import_prometheus_client() -> None:
    code = (
        "import sys, aerobee.broker.monitoring.broker_metrics;"
        "import aerobee.broker.monitoring.store_metrics;"
        "sys.exit('prometheus_client' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def watching(
    served: list[str],
    clock: Callable[[], float],
    processor_clock: Callable[[], float] | None = None,
) -> LoopMonitor:
    """A monitor of this loop that looks at each millisecond, and is told what was served."""
    turns = SimpleNamespace(last_long=lambda: served.pop() if served else None)
    return LoopMonitor(
        asyncio.get_running_loop(),
        cast("Turns", turns),
        interval_s=0.001,
        stall_s=0.1,
        clock=clock,
        processor_clock=processor_clock or clock,
    )


async def turned(monitor: LoopMonitor, times: int) -> None:
    """Let the monitor's timer fire so often."""
    before = sum(monitor.lag.counts)
    async with asyncio.timeout(10):
        while sum(monitor.lag.counts) < before + times:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0)


async def test_a_stall_is_logged_with_what_was_served_in_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its clock is the test's: two stalls within a second are one line, the next second has its
    own; requests served before a stall are not blamed for it."""
    now = 100.0
    served: list[str] = []
    monitor = watching(served, lambda: now)
    monitor.start()
    served.append("code=34 peer=192.0.2.1:1 ms=90")
    await turned(monitor, 1)
    assert not caplog.records
    for stall_s, text in ((0.25, "code=12 peer=192.0.2.1:1 ms=250"), (0.4, ""), (0.3, "")):
        now += stall_s
        served += [text] if text else []
        await turned(monitor, 2)
    assert monitor.stalls == 3
    assert caplog.messages == [
        "event loop stalled ms=249 processor_ms=250 stalls=1 "
        "longest=code=12 peer=192.0.2.1:1 ms=250"
    ]
    now += 0.09
    await turned(monitor, 2)
    now += 1.0
    await turned(monitor, 2)
    assert monitor.stalls == 4
    assert caplog.messages[1:] == [
        "event loop stalled ms=999 processor_ms=1000 stalls=3 "
        "longest=no request; a task of the broker or the machine"
    ]
    monitor.stop()


async def test_a_loop_that_was_not_running_says_so_and_seldom(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "aerobee.broker.health")
    now = 100.0
    monitor = watching([], lambda: now, lambda: now / 10)
    monitor.start()
    for _ in range(40):
        now += 1.001
        await turned(monitor, 2)
    assert monitor.stalls == 40
    first, second = caplog.messages
    assert first.startswith("event loop stalled ms=1000 processor_ms=100 stalls=1 ")
    assert "stalls=30 " in second
    monitor.stop()


@pytest.mark.parametrize(
    ("part", "served", "level"),
    [
        (0.01, None, logging.INFO),
        (0.01, "code=310 peer=192.0.2.1:1 ms=900", logging.WARNING),  # it may have met the disk
        (0.4, None, logging.WARNING),
        (1.0, None, logging.WARNING),
    ],
)
async def test_a_machine_that_was_late_is_no_warning(
    caplog: pytest.LogCaptureFixture, part: float, served: str | None, level: int
) -> None:
    """Found: on a loaded machine an idle broker warned every 30 s of what was not its own."""
    caplog.set_level(logging.INFO, "aerobee.broker.health")
    now = 100.0
    monitor = watching([served] if served else [], lambda: now, lambda: now * part)
    monitor.start()
    now += 1.0
    await turned(monitor, 1)
    monitor.stop()
    assert [record.levelno for record in caplog.records] == [level]


async def test_one_stall_of_the_broker_makes_the_line_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The longest was the machine's, the one after it was not, and both are in one line."""
    caplog.set_level(logging.INFO, "aerobee.broker.health")
    now = ran = 100.0
    monitor = watching([], lambda: now, lambda: ran)
    monitor.start()
    for stall_s, ran_s in ((1.0, 0.0), (5.0, 0.0), (0.5, 0.5), (1.0, 0.0)):
        now += stall_s
        ran += ran_s
        await turned(monitor, 1)
    monitor.stop()
    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.WARNING]
    assert "ms=4999 " in caplog.messages[1]


async def test_loop_monitor_sees_a_blocked_loop() -> None:
    loop = asyncio.get_running_loop()
    monitor = LoopMonitor(loop, interval_s=0.01)
    monitor.start()
    blocked_until = loop.time() + 0.1
    while loop.time() < blocked_until:
        pass
    assert monitor.stuck_s() > 0.05
    async with asyncio.timeout(5):
        while not sum(monitor.lag.counts):  # noqa: ASYNC110 - the monitor tells nobody
            await asyncio.sleep(0)
    monitor.stop()
    assert monitor.lag.total > 0.05
    assert monitor.stuck_s() < 0.05
