"""Metric sections about what clients send, take and ask, and about the process that serves them.

Each section gets just the parts it reads. Counter objects are handed to the worker thread as they
are (their ints are read there); tables are copied on the loop first.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from aerobee.access.control import AccessControl
from aerobee.broker.delay.service import LevelStats, ScheduleMessageService
from aerobee.broker.monitoring.health import HealthChecks, LoopMonitor
from aerobee.broker.monitoring.metrics import Fill, Number, Page
from aerobee.broker.second_step.deleted_topics import DeletedTopics
from aerobee.broker.second_step.place import SecondStep
from aerobee.broker.stats import BrokerStats, ConsumerStats, RequestStats
from aerobee.broker.tables.topics import TopicTable
from aerobee.broker.transactions.transactions import Transactions
from aerobee.config.memory import available_memory, memory_of, worst_cases
from aerobee.config.model import BY_NAME, Settings
from aerobee.protocol.codes import RequestCode, ResponseCode, request_name
from aerobee.protocol.names import DLQ_PREFIX, RETRY_PREFIX, is_system_group
from aerobee.remoting.stats import ServerStats, TlsFailure, TlsStats

_INNER_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_MILLISECONDS = 1000.0
# Sends whose topic does not exist: a name straight from a frame is no label.
_NO_TOPIC = "__unknown__"
# Answers of a request that was served: there is nothing (yet), a group has no offset or nobody is
# online in it, or the offset to go on from is another.
_ANSWERS = frozenset(
    {
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.QUERY_NOT_FOUND,
        ResponseCode.CONSUMER_NOT_ONLINE,
    }
)
# Questions whose answer "there is none" is an error code, which whoever asks expects: consumers
# about the members of their group, tools and exporters about all that there might be.
_NONE_THERE = frozenset(
    {
        (RequestCode.GET_CONSUMER_LIST_BY_GROUP, ResponseCode.SYSTEM_ERROR),
        (RequestCode.GET_PRODUCER_CONNECTION_LIST, ResponseCode.SYSTEM_ERROR),
        (RequestCode.VIEW_BROKER_STATS_DATA, ResponseCode.SYSTEM_ERROR),
        (RequestCode.GET_TOPIC_STATS_INFO, ResponseCode.TOPIC_NOT_EXIST),
        (RequestCode.GET_TOPIC_CONFIG, ResponseCode.TOPIC_NOT_EXIST),
        (RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    }
)
_RESPONSE_NAMES = {code.value: code.name.lower() for code in ResponseCode}


def yes_no(value: bool) -> str:
    """A truth as RocketMQ's labels write it."""
    return "true" if value else "false"


def words(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts by reasons, which are label values without blanks."""
    return {text.replace(" ", "_"): count for text, count in counts.items()}


def error_word(class_name: str) -> str:
    """The kind of an error as a label value, in the form of the response codes' names."""
    return _INNER_CAPITAL.sub("_", class_name).lower()


async def traffic(stats: BrokerStats, is_system_topic: Callable[[str], bool]) -> Fill:
    """Messages and bytes in and out by topic and group."""
    topics, consumers = stats.topics(), stats.consumers()

    def fill(page: Page) -> None:
        labels = ["topic", "message_type", "is_system"]
        messages = page.family("rocketmq_messages_in_total", "Messages stored", labels)
        bytes_in = page.family("rocketmq_throughput_in_total", "Bytes stored", labels)
        sizes = page.histogram("rocketmq_message_size", "Stored bytes of a message", labels)
        failures = page.family(
            "aerobee_send_failures_total", "Sends that were refused or failed", ["topic"]
        )
        failures.add(stats.failures_without_topic, _NO_TOPIC)
        for topic in topics:
            failures.add(topic.failures, topic.topic)
            if topic.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                continue  # RocketMQ 5 does not count them as traffic
            values = (topic.topic, topic.message_type, yes_no(is_system_topic(topic.topic)))
            messages.add(topic.messages_in, *values)
            bytes_in.add(topic.bytes_in, *values)
            sizes.add_buckets(topic.sizes, *values)
        _fill_consumers(page, consumers, is_system_topic)
        pulls = {"found": stats.get_found, "nothing": stats.get_missed}
        page.tally("aerobee_pulls_total", "Answered pulls by outcome", "outcome", pulls)

    return fill


def _fill_consumers(
    page: Page, consumers: Sequence[ConsumerStats], is_system_topic: Callable[[str], bool]
) -> None:
    labels = ["topic", "consumer_group", "is_system"]
    messages = page.family("rocketmq_messages_out_total", "Messages delivered", labels)
    bytes_out = page.family("rocketmq_throughput_out_total", "Bytes delivered", labels)
    back = page.family(
        "aerobee_messages_sent_back_total",
        "Messages a group failed on and gave back",
        ["topic", "consumer_group"],
    )
    dead = page.family(
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


async def requests(stats: BrokerStats) -> Fill:
    """Requests by code and answer."""
    served = stats.requests()
    warnings, events = words(stats.group_warnings), words(stats.events)
    calls = dict(stats.client_calls)
    overflowed = words(stats.overflowed)

    def fill(page: Page) -> None:
        _fill_latency(page, served)
        refused = page.family(
            "aerobee_refused_requests_total", "Requests answered with an error", ["reason"]
        )
        for request in served:
            asked_for, code = request.key.code, request.key.response_code
            if code and code not in _ANSWERS and (asked_for, code) not in _NONE_THERE:
                refused.add(request.count, _response_name(code))
        for name, help_text, label, counts in (
            ("group_warnings", "Consumer groups that look set up wrongly", "kind", warnings),
            ("events", "Rare events worth counting", "event", events),
            (
                "counters_overflowed",
                "Look-ups of counters beyond the limit of their table",
                "table",
                overflowed,
            ),
        ):
            page.tally(f"aerobee_{name}_total", help_text, label, counts)
        asked = page.histogram(
            "aerobee_client_call_seconds",
            "Time that clients took to answer the broker, by how it ended",
            ["request_code", "result"],
        )
        for (code, outcome), times in calls.items():
            asked.add_buckets(times, request_name(code), outcome)
        page.family("aerobee_handler_failures_total", "Requests that hit a bug of the broker").add(
            stats.handler_failures
        )

    return fill


def _fill_latency(page: Page, served: list[RequestStats]) -> None:
    latency = page.histogram(
        "rocketmq_rpc_latency_milliseconds",
        "Time from a decoded request to its answer",
        ["protocol_type", "request_code", "response_code", "is_long_polling", "result"],
    )
    for request in served:
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


async def delays(service: ScheduleMessageService) -> Fill:
    """Delayed messages by level: how many wait, were delivered, and how late."""
    # All levels from the start: a rate needs the zero before.
    levels = {
        number: LevelStats(number, 0, 0, 0, 0, 0.0)
        for number in range(1, service.highest_level + 1)
    }
    levels |= {level.level: level for level in service.level_stats()}
    failures = service.put_failures

    def fill(page: Page) -> None:
        for number, level in sorted(levels.items()):
            page.numbers(
                [
                    ("aerobee_delayed_messages", "Messages that wait", level.end - level.offset),
                    (
                        "aerobee_delayed_late_seconds",
                        "For how long the oldest message that waits has been due",
                        level.late_s,
                    ),
                    (
                        "aerobee_delayed_delivered_messages_total",
                        "Messages given out",
                        level.delivered,
                    ),
                    (
                        "aerobee_delayed_passed_over_messages_total",
                        "Messages that cannot be read or given out",
                        level.passed_over,
                    ),
                ],
                level=str(number),
            )
        page.family(
            "aerobee_delayed_put_failures_total",
            "Times a due message could not be stored and was tried again",
        ).add(failures)

    return fill


async def second_step(place: SecondStep, deleted: DeletedTopics) -> Fill:
    """What has waited and was not stored as it was asked for."""
    counts, remembered = place.counts, len(deleted)

    def fill(page: Page) -> None:
        for name, help_text, by_kind in (
            ("dropped", "dropped, because their topic was deleted meanwhile", counts.dropped),
            ("moved", "stored in another queue, because theirs has fallen away", counts.moved),
            ("without_topic", "stored for a topic that is in no table", counts.without_topic),
        ):
            name = f"aerobee_waiting_messages_{name}_total"
            page.tally(name, f"Messages that have waited, and were {help_text}", "waited", by_kind)
        page.family(
            "aerobee_deleted_topics", "Deletions that are remembered, for messages wait from before"
        ).add(remembered)

    return fill


async def transactions(service: Transactions) -> Fill:
    """Undecided half messages, what became of decisions, and the checks."""
    pending, ends, checks = service.pending, service.ends.by_outcome(), service.checks
    asked = {"asked": checks.asked, "no_producer": checks.no_producer}

    def fill(page: Page) -> None:
        page.numbers(
            [
                ("aerobee_transactions_pending", "Undecided half messages", pending),
                (
                    "aerobee_transaction_check_rounds_total",
                    "Rounds of checks that were done",
                    checks.rounds,
                ),
                (
                    "aerobee_transactions_put_aside_total",
                    "Half messages put into TRANS_CHECK_MAX_TIME_TOPIC, checked too often or too "
                    "old",
                    checks.put_aside,
                ),
                (
                    "aerobee_transactions_lost_total",
                    "Half messages that cannot be read or stored again; the log names them",
                    checks.lost,
                ),
            ]
        )
        page.tally(
            "aerobee_transaction_decisions_total",
            "Decisions of producers by what became of them",
            "outcome",
            ends,
        )
        page.tally(
            "aerobee_transaction_checks_total",
            "Checks of half messages, by whether there was a producer to ask",
            "outcome",
            asked,
        )

    return fill


async def connections(servers: Mapping[str, ServerStats]) -> Fill:
    """Connections and bytes of each remoting server, by its name."""
    closed = {name: words(stats.closed) for name, stats in servers.items()}

    def fill(page: Page) -> None:
        refused = page.family(
            "aerobee_connections_refused_total",
            "Connections turned away at a limit",
            ["server", "limit"],
        )
        ended = page.family(
            "aerobee_connections_closed_total", "Connections ended", ["server", "reason"]
        )
        for server, stats in servers.items():
            page.numbers(_connection_numbers(stats), server=server)
            refused.add(stats.refused_total, server, "all")
            refused.add(stats.refused_address, server, "address")
            for reason, count in closed[server].items():
                ended.add(count, server, reason)

    return fill


async def access(controls: Mapping[str, AccessControl]) -> Fill:
    """Requests that were refused for want of a right, by the server that asks for accounts."""
    refused = {name: words(control.refused) for name, control in controls.items()}

    def fill(page: Page) -> None:
        family = page.family(
            "aerobee_access_refused_total",
            "Requests refused by access control, by why",
            ["server", "reason"],
        )
        for server, reasons in refused.items():
            for reason, count in reasons.items():
                family.add(count, server, reason)

    return fill


async def tls(ports: Mapping[str, TlsStats]) -> Fill:
    """Handshakes of each port that may take TLS, by its name."""

    def fill(page: Page) -> None:
        failures = page.family(
            "aerobee_tls_failures_total",
            "Connections not taken because of TLS, or for want of it",
            ["server", "reason"],
        )
        for server, stats in ports.items():
            page.numbers(
                [
                    (
                        "aerobee_tls_handshakes_total",
                        "TLS connections taken",
                        stats.handshakes,
                    ),
                    (
                        "aerobee_connections_arriving",
                        "Sockets that have not shown yet whether they are TLS, or are about it",
                        stats.arriving,
                    ),
                ],
                server=server,
            )
            # Each reason from the start on, so that its first is an increase.
            counts = {str(reason): stats.failed[reason] for reason in TlsFailure}
            for reason, count in words(counts).items():
                failures.add(count, server, reason)

    return fill


async def certificate(expires: Callable[[], datetime | None]) -> Fill:
    """The end of the ports' certificate; no value without one, or for one made at the start."""
    end = expires()

    def fill(page: Page) -> None:
        family = page.family(
            "aerobee_tls_certificate_expiration_timestamp_seconds",
            "When the certificate of the ports ends, in seconds of the epoch",
        )
        if end is not None:
            family.add(end.timestamp())

    return fill


def _connection_numbers(stats: ServerStats) -> list[Number]:
    return [
        ("aerobee_connections_open", "Open connections", stats.open),
        ("aerobee_connections_accepted_total", "Connections accepted", stats.accepted),
        (
            "aerobee_accept_pauses_total",
            "Times accepting paused for want of descriptors",
            stats.accept_errors,
        ),
        ("aerobee_bad_frames_total", "Frames that broke the protocol", stats.bad_frames),
        ("aerobee_commands_total", "Commands received", stats.commands_in),
        ("aerobee_network_receive_bytes_total", "Bytes received", stats.bytes_in),
        ("aerobee_network_transmit_bytes_total", "Bytes sent", stats.bytes_out),
        (
            "aerobee_reader_pauses_total",
            "Times reading paused until a peer took its output",
            stats.paused,
        ),
        ("aerobee_read_buffer_bytes", "Bytes of frames not yet whole", stats.inbound_bytes),
        ("aerobee_write_buffer_bytes", "Bytes waiting for slow readers", stats.outbound_bytes),
    ]


async def numbers(*sources: Callable[[], Sequence[Number]]) -> Fill:
    """Plain numbers of parts too small for a section of their own, read on the loop."""
    read = [number for source in sources for number in source()]
    return lambda page: page.numbers(read)


async def limits(
    settings: Callable[[], Settings], used: Mapping[str, Callable[[], float]], topics: TopicTable
) -> Fill:
    """How much of each limit is used, by the setting's attribute, and the memory they allow."""
    current = settings()
    numbers = {name: count() for name, count in used.items()}
    all_topics = list(topics.all())

    def fill(page: Page) -> None:
        numbers["max_queues"] = sum(
            max(topic.read_queues, topic.write_queues) for topic in all_topics
        )
        page.tally(
            "aerobee_limit_used_ratio",
            "Used part of a limit, 1 when it is hit",
            "limit",
            {
                BY_NAME[name].full_key: number / getattr(current, name)
                for name, number in numbers.items()
            },
        )
        page.family("aerobee_memory_worst_case_bytes", "Memory that all limits together allow").add(
            sum(case.bytes for case in worst_cases(current))
        )
        memory = memory_of(current, available_memory())
        if memory is not None:
            page.family(
                "aerobee_memory_available_bytes",
                "Memory of the machine or the control group, or the share of it",
            ).add(memory.bytes)

    return fill


async def runtime(
    version: str, form: str, started_s: float, health: HealthChecks, loop: LoopMonitor
) -> Fill:
    """The process itself: version, form of the hot path, start, health, its loop."""
    verdicts = health.run()
    ready = all(verdict.ok for verdict in verdicts)

    def fill(page: Page) -> None:
        page.family(
            "aerobee_build_info",
            "Version of the broker and form of its hot path, always 1",
            ["version", "python", "form"],
        ).add(1, version, platform.python_version(), form)
        page.numbers(
            [
                ("aerobee_start_time_seconds", "Start, seconds of the epoch", started_s),
                ("aerobee_ready", "1 when /ready answers 200", ready),
            ]
        )
        checks = {verdict.name: verdict.reason is None for verdict in verdicts}
        page.tally("aerobee_check_ok", "1 when a check of /ready is well", "check", checks)
        page.histogram(
            "aerobee_loop_lag_seconds", "How late the event loop runs its timers"
        ).add_buckets(loop.lag)
        page.family(
            "aerobee_loop_stalls_total", "Turns of the event loop that took more than 100 ms"
        ).add(loop.stalls)

    return fill
