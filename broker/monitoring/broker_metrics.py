"""Metric sections about what clients send, take and ask, and about the process that serves them.

Each section gets just the parts it reads. Counter objects are handed to the worker thread as they
are (their ints are read there); tables are copied on the loop first.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from aerobee.broker.delay.service import LevelStats, ScheduleMessageService
from aerobee.broker.monitoring.health import HealthChecks, LoopMonitor
from aerobee.broker.monitoring.metrics import Fill, Page
from aerobee.broker.stats import BrokerStats, RequestStats
from aerobee.broker.tables.groups import is_system_group
from aerobee.protocol.codes import ResponseCode, request_name
from aerobee.protocol.names import DLQ_PREFIX, RETRY_PREFIX
from aerobee.remoting.stats import ServerStats

_INNER_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_MILLISECONDS = 1000.0
# Sends whose topic does not exist: a name straight from a frame is no label.
_NO_TOPIC = "__unknown__"
_RESPONSE_NAMES = {code.value: code.name.lower() for code in ResponseCode}


def yes_no(value: bool) -> str:
    """A truth as RocketMQ's labels write it."""
    return "true" if value else "false"


def word(text: str) -> str:
    """A reason as a label value."""
    return text.replace(" ", "_")


def error_word(class_name: str) -> str:
    """The kind of an error as a label value, in the form of the response codes' names."""
    return _INNER_CAPITAL.sub("_", class_name).lower()


class Traffic:
    """Messages and bytes in and out by topic and group."""

    def __init__(self, stats: BrokerStats, is_system_topic: Callable[[str], bool]) -> None:
        self._stats = stats
        self._is_system_topic = is_system_topic

    async def snapshot(self) -> Fill:
        topics, consumers = self._stats.topics(), self._stats.consumers()
        totals = self._stats
        is_system_topic = self._is_system_topic

        def fill(page: Page) -> None:
            labels = ["topic", "message_type", "is_system"]
            messages = page.counter("rocketmq_messages_in_total", "Messages stored", labels)
            bytes_in = page.counter("rocketmq_throughput_in_total", "Bytes stored", labels)
            sizes = page.histogram("rocketmq_message_size", "Stored bytes of a message", labels)
            failures = page.counter(
                "aerobee_send_failures_total", "Sends that were refused or failed", ["topic"]
            )
            failures.add(totals.failures_without_topic, _NO_TOPIC)
            for topic in topics:
                failures.add(topic.failures, topic.topic)
                if topic.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                    continue  # RocketMQ 5 does not count them as traffic
                values = (topic.topic, topic.message_type, yes_no(is_system_topic(topic.topic)))
                messages.add(topic.messages_in, *values)
                bytes_in.add(topic.bytes_in, *values)
                sizes.add_buckets(topic.sizes, *values)
            fill_consumers(page)
            fill_totals(page)

        def fill_consumers(page: Page) -> None:
            labels = ["topic", "consumer_group", "is_system"]
            messages = page.counter("rocketmq_messages_out_total", "Messages delivered", labels)
            bytes_out = page.counter("rocketmq_throughput_out_total", "Bytes delivered", labels)
            back = page.counter(
                "aerobee_messages_sent_back_total",
                "Messages a group failed on and gave back",
                ["topic", "consumer_group"],
            )
            dead = page.counter(
                "rocketmq_send_to_dlq_messages_total",
                "Messages a group failed on for good",
                ["consumer_group", "topic", "is_system"],
            )
            for consumer in consumers:
                system = yes_no(is_system_topic(consumer.topic) or is_system_group(consumer.group))
                messages.add(consumer.messages_out, consumer.topic, consumer.group, system)
                bytes_out.add(consumer.bytes_out, consumer.topic, consumer.group, system)
                if consumer.sent_back:
                    back.add(consumer.sent_back, consumer.topic, consumer.group)
                if consumer.sent_to_dlq:
                    dead.add(consumer.sent_to_dlq, consumer.group, consumer.topic, system)

        def fill_totals(page: Page) -> None:
            pulls = page.counter("aerobee_pulls_total", "Answered pulls by outcome", ["outcome"])
            pulls.add(totals.get_found, "found")
            pulls.add(totals.get_missed, "nothing")

        return fill


class Requests:
    """Requests by code and answer."""

    def __init__(self, stats: BrokerStats) -> None:
        self._stats = stats

    async def snapshot(self) -> Fill:
        stats, requests = self._stats, self._stats.requests()
        tallies = [
            ("aerobee_group_warnings_total", "kind", dict(stats.group_warnings)),
            ("aerobee_events_total", "event", dict(stats.events)),
            ("aerobee_counters_overflowed_total", "table", dict(stats.overflowed)),
        ]

        def fill(page: Page) -> None:
            _fill_latency(page, requests)
            refused = page.counter(
                "aerobee_refused_requests_total", "Requests answered with an error", ["reason"]
            )
            for request in requests:
                if request.key.response_code:
                    refused.add(request.count, _response_name(request.key.response_code))
            for name, label, tally in tallies:
                family = page.counter(name, _TALLY_HELP[name], [label])
                for text, count in tally.items():
                    family.add(count, word(text))
            page.counter(
                "aerobee_handler_failures_total", "Requests that hit a bug of the broker"
            ).add(stats.handler_failures)

        return fill


_TALLY_HELP = {
    "aerobee_group_warnings_total": "Consumer groups that look set up wrongly",
    "aerobee_events_total": "Rare events worth counting",
    "aerobee_counters_overflowed_total": "Look-ups of counters beyond the limit of their table",
}


def _fill_latency(page: Page, requests: list[RequestStats]) -> None:
    latency = page.histogram(
        "rocketmq_rpc_latency_milliseconds",
        "Time from a decoded request to its answer",
        ["protocol_type", "request_code", "response_code", "is_long_polling", "result"],
    )
    for request in requests:
        key = request.key
        latency.add_buckets(
            request,
            "remoting",
            request_name(key.code),
            _response_name(key.response_code),
            yes_no(key.long_polling),
            key.result,
            scale=_MILLISECONDS,
        )


def _response_name(code: int) -> str:
    return _RESPONSE_NAMES.get(code, "unknown")


class Delays:
    """Delayed messages by level: how many wait, were delivered, and how late."""

    def __init__(self, service: ScheduleMessageService) -> None:
        self._service = service

    async def snapshot(self) -> Fill:
        service = self._service
        # All levels from the start: a rate needs the zero before.
        levels = {
            number: LevelStats(number, 0, 0, 0, 0, 0.0)
            for number in range(1, service.highest_level + 1)
        }
        levels |= {figures.level: figures for figures in service.level_stats()}
        failures = service.put_failures

        def fill(page: Page) -> None:
            waiting = page.gauge("aerobee_delayed_messages", "Messages that wait", ["level"])
            late = page.gauge(
                "aerobee_delayed_late_seconds",
                "For how long the oldest message that waits has been due",
                ["level"],
            )
            delivered = page.counter(
                "aerobee_delayed_delivered_messages_total", "Messages given out", ["level"]
            )
            passed_over = page.counter(
                "aerobee_delayed_passed_over_messages_total",
                "Messages that cannot be read or given out",
                ["level"],
            )
            for number, figures in sorted(levels.items()):
                level = str(number)
                waiting.add(figures.end - figures.offset, level)
                late.add(figures.late_s, level)
                delivered.add(figures.delivered, level)
                passed_over.add(figures.passed_over, level)
            page.counter(
                "aerobee_delayed_put_failures_total",
                "Times a due message could not be stored and was tried again",
            ).add(failures)

        return fill


class Connections:
    """Connections and bytes of each remoting server, by its name."""

    def __init__(self, servers: Mapping[str, ServerStats]) -> None:
        self._servers = dict(servers)

    async def snapshot(self) -> Fill:
        closed = {name: dict(stats.closed) for name, stats in self._servers.items()}

        def fill(page: Page) -> None:
            refused = page.counter(
                "aerobee_connections_refused_total",
                "Connections turned away at a limit",
                ["server", "limit"],
            )
            ended = page.counter(
                "aerobee_connections_closed_total", "Connections ended", ["server", "reason"]
            )
            for server, stats in self._servers.items():
                for kind, name, help_text, value in _connection_figures(stats):
                    make = page.counter if kind == "counter" else page.gauge
                    make(name, help_text, ["server"]).add(value, server)
                refused.add(stats.refused_total, server, "all")
                refused.add(stats.refused_address, server, "address")
                for reason, count in closed[server].items():
                    ended.add(count, server, word(reason))

        return fill


def _connection_figures(stats: ServerStats) -> list[tuple[str, str, str, int]]:
    return [
        ("gauge", "aerobee_connections_open", "Open connections", stats.open),
        ("counter", "aerobee_connections_accepted_total", "Connections accepted", stats.accepted),
        (
            "counter",
            "aerobee_accept_pauses_total",
            "Times accepting paused for want of descriptors",
            stats.accept_errors,
        ),
        ("counter", "aerobee_bad_frames_total", "Frames that broke the protocol", stats.bad_frames),
        ("counter", "aerobee_commands_total", "Commands received", stats.commands_in),
        ("counter", "aerobee_network_receive_bytes_total", "Bytes received", stats.bytes_in),
        ("counter", "aerobee_network_transmit_bytes_total", "Bytes sent", stats.bytes_out),
        (
            "counter",
            "aerobee_reader_pauses_total",
            "Times reading paused until a peer took its output",
            stats.paused,
        ),
        (
            "gauge",
            "aerobee_read_buffer_bytes",
            "Bytes of frames not yet whole",
            stats.inbound_bytes,
        ),
        (
            "gauge",
            "aerobee_write_buffer_bytes",
            "Bytes waiting for slow readers",
            stats.outbound_bytes,
        ),
    ]


class SimpleMetric(NamedTuple):
    """One number without labels: `read` is called on the loop; a name in `_total` is a counter."""

    name: str
    help_text: str
    read: Callable[[], float]


class SimpleMetrics:
    """Plain numbers of parts too small for a section of their own."""

    def __init__(self, figures: Sequence[SimpleMetric]) -> None:
        self._figures = tuple(figures)

    async def snapshot(self) -> Fill:
        values = [(figure, figure.read()) for figure in self._figures]

        def fill(page: Page) -> None:
            for figure, value in values:
                make = page.counter if figure.name.endswith("_total") else page.gauge
                make(figure.name, figure.help_text).add(value)

        return fill


class Runtime:
    """The process itself: version, start, health, its loop."""

    def __init__(
        self, version: str, started_s: float, health: HealthChecks, loop: LoopMonitor
    ) -> None:
        self._version = version
        self._started_s = started_s
        self._health = health
        self._loop = loop

    async def snapshot(self) -> Fill:
        verdicts = self._health.run()

        def fill(page: Page) -> None:
            page.gauge(
                "aerobee_build_info", "Version of the broker, always 1", ["version", "python"]
            ).add(1, self._version, platform.python_version())
            page.gauge("aerobee_start_time_seconds", "Start, seconds of the epoch").add(
                self._started_s
            )
            page.gauge("aerobee_ready", "1 when /ready answers 200").add(
                all(verdict.ok for verdict in verdicts)
            )
            checks = page.gauge("aerobee_check_ok", "1 when a check of /ready is well", ["check"])
            for verdict in verdicts:
                checks.add(verdict.ok, verdict.name)
            page.histogram(
                "aerobee_loop_lag_seconds", "How late the event loop runs its timers"
            ).add_buckets(self._loop.lag)

        return fill
