"""Metric sections about what clients send, take and ask, and about the parts that serve them.

Each section gets just the owners of the values that it shows. Those of traffic and requests have a
series for each topic, group or code: they hand counter objects to the worker thread as they are,
which reads their ints, and copy tables on the loop first.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from aerobee import __version__
from aerobee.broker.broker_stats import BrokerStats, ConsumerStats, RequestStats, is_refusal
from aerobee.broker.core import BrokerCore
from aerobee.broker.delay.delay_service import LevelStats, ScheduleMessageService
from aerobee.broker.delay.timer import TimerService
from aerobee.broker.monitoring.health_checks import HealthChecks, LoopMonitor
from aerobee.broker.monitoring.http import HttpServer
from aerobee.broker.monitoring.metrics import Fill, Page, Row, under
from aerobee.broker.second_step.deleted_topics import DeletedTopics
from aerobee.broker.second_step.second_step import SecondStep
from aerobee.broker.staging.stage_table import FINISHED_SHARE, STAGES_SHARE
from aerobee.broker.staging.staging import Staging
from aerobee.broker.tables.topics import TopicTable
from aerobee.broker.transactions.transactions import Transactions
from aerobee.config.bounds.memory import available_memory, memory_of, worst_cases
from aerobee.config.model import BY_NAME, Settings
from aerobee.native.form import CompiledForm, form_name
from aerobee.protocol.bodies.topics import TopicConfig
from aerobee.protocol.codes import ResponseCode, request_name
from aerobee.protocol.names import DLQ_PREFIX, RETRY_PREFIX, is_system_group
from aerobee.remoting.connection_stats import ServerStats

_INNER_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_MILLISECONDS = 1000.0
# Sends whose topic does not exist: a name straight from a frame is no label.
_NO_TOPIC = "__unknown__"
_TRIED_AGAIN = "Times a due message could not be stored and was tried again"
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


async def traffic(stats: BrokerStats, table: TopicTable) -> Fill:
    """Messages and bytes in and out by topic and group."""
    topics, consumers = stats.topics(), stats.consumers()

    def fill(page: Page) -> None:
        labels = ["topic", "message_type", "is_system"]
        messages = page.family("rocketmq_messages_in_total", "Messages stored", labels)
        bytes_in = page.family("rocketmq_throughput_in_total", "Bytes stored", labels)
        sizes = page.family(
            "rocketmq_message_size", "Stored bytes of a message", labels, histogram=True
        )
        failures = page.family(
            "aerobee_send_failures_total", "Sends that were refused or failed", ["topic"]
        )
        failures.add(stats.failures_without_topic, _NO_TOPIC)
        for topic in topics:
            failures.add(topic.failures, topic.topic)
            if topic.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                continue  # RocketMQ 5 does not count them as traffic
            values = (topic.topic, topic.message_type, yes_no(table.is_system(topic.topic)))
            messages.add(topic.messages_in, *values)
            bytes_in.add(topic.bytes_in, *values)
            sizes.add_buckets(topic.sizes, *values)
        _fill_consumers(page, consumers, table)
        pulls = {"found": stats.get_found, "nothing": stats.get_missed}
        page.show(Row("aerobee_pulls_total", pulls, "Answered pulls by outcome", "outcome"))

    return fill


def _fill_consumers(page: Page, consumers: Sequence[ConsumerStats], table: TopicTable) -> None:
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
        system = yes_no(table.is_system(consumer.topic) or is_system_group(consumer.group))
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
            if is_refusal(asked_for, code):
                refused.add(request.count, _response_name(code))
        page.show(
            Row("aerobee_group_warnings_total", warnings,
                "Consumer groups that look set up wrongly", "kind"),
            Row("aerobee_events_total", events, "Rare events worth counting", "event"),
            Row("aerobee_counters_overflowed_total", overflowed,
                "Look-ups of counters beyond the limit of their table", "table"),
            Row("aerobee_handler_failures_total", stats.handler_failures,
                "Requests that hit a bug of the broker"),
        )  # fmt: skip
        asked = page.family(
            "aerobee_client_call_seconds",
            "Time that clients took to answer the broker, by how it ended",
            ["request_code", "result"],
            histogram=True,
        )
        for (code, outcome), times in calls.items():
            asked.add_buckets(times, request_name(code), outcome)

    return fill


def _fill_latency(page: Page, served: list[RequestStats]) -> None:
    latency = page.family(
        "rocketmq_rpc_latency_milliseconds",
        "Time from a decoded request to its answer",
        ["protocol_type", "request_code", "response_code", "is_long_polling", "result"],
        histogram=True,
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


def delays(service: ScheduleMessageService) -> Iterator[Row]:
    """Delayed messages by level: how many wait, were delivered, and how late."""
    # All levels from the start: a rate needs the zero before.
    levels = {
        number: LevelStats(number, 0, 0, 0, 0, 0.0)
        for number in range(1, service.highest_level + 1)
    }
    levels |= {level.level: level for level in service.level_stats()}
    for number, level in sorted(levels.items()):
        rows = (
            Row("aerobee_delayed_messages", level.end - level.offset, "Messages that wait"),
            Row("aerobee_delayed_late_seconds", level.late_s,
                "For how long the oldest message that waits has been due"),
            Row("aerobee_delayed_delivered_messages_total", level.delivered, "Messages given out"),
            Row("aerobee_delayed_passed_over_messages_total", level.passed_over,
                "Messages that cannot be read or given out"),
        )  # fmt: skip
        yield from under(rows, level=str(number))
    yield Row("aerobee_delayed_put_failures_total", service.put_failures, _TRIED_AGAIN)


def second_step(place: SecondStep, deleted: DeletedTopics) -> Iterator[Row]:
    """Messages that have waited and were not stored in the place asked for."""
    counts = place.counts
    for name, by_kind, what in (
        ("dropped", counts.dropped, "dropped, because their topic was deleted meanwhile"),
        ("moved", counts.moved, "stored in another queue, because theirs has fallen away"),
        ("without_topic", counts.without_topic, "stored for a topic that is in no table"),
    ):
        name = f"aerobee_waiting_messages_{name}_total"
        text = f"Messages that have waited, and were {what}"
        yield Row(name, dict(by_kind), text, "waited")
    yield Row("aerobee_deleted_topics", len(deleted),
              "Deletions that are remembered, for messages wait from before")  # fmt: skip


def transactions(service: Transactions) -> tuple[Row, ...]:
    """Undecided half messages, the outcome of decisions, and the checks."""
    checks = service.checks
    asked = {"asked": checks.asked, "no_producer": checks.no_producer}
    return (
        Row("aerobee_transactions_pending", service.pending, "Undecided half messages"),
        Row("aerobee_transaction_check_rounds_total", checks.rounds,
            "Rounds of checks that were done"),
        Row("aerobee_transactions_put_aside_total", checks.put_aside,
            "Half messages put into TRANS_CHECK_MAX_TIME_TOPIC, checked too often or too old"),
        Row("aerobee_transactions_lost_total", checks.lost,
            "Half messages that cannot be read or stored again; the log names them"),
        Row("aerobee_transaction_decisions_total", service.ends.by_outcome(),
            "Decisions of producers by what became of them", "outcome"),
        Row("aerobee_transaction_checks_total", asked,
            "Checks of half messages, by whether there was a producer to ask", "outcome"),
    )  # fmt: skip


def tables(settings: Settings, core: BrokerCore) -> tuple[Row, ...]:
    """The sizes of the broker's tables, and their refusals."""
    return (
        Row("rocketmq_broker_permission", settings.broker_permission,
            "Registered permission, 2 write + 4 read"),
        Row("rocketmq_topic_number", len(core.topics), "Topics, system topics included"),
        Row("rocketmq_consumer_group_number", len(core.groups), "Consumer groups"),
        Row("aerobee_clients", len(core.clients), "Connections that are in some group"),
        Row("aerobee_held_pulls", len(core.held), "Pulls waiting for a message"),
        Row("aerobee_filters", len(core.filters), "SQL92 filters of consumer groups"),
        Row("aerobee_waiting_acks", len(core.answers.sends), "Sends waiting for their sync"),
        Row("aerobee_client_calls_waiting", len(core.client_calls),
            "Questions to clients that wait for their answers"),
        Row("aerobee_flush_timeouts_total", core.answers.sends.timed_out,
            "Sends answered before their sync, because it took too long"),
        Row("aerobee_topics_created_on_send_total", core.topics.created_on_send,
            "Topics made by the first send to them"),
        Row("aerobee_offsets_refused_total", core.offsets.refused,
            "Committed offsets beyond the end of their queue, of no queue, or beyond the limits"),
    )  # fmt: skip


def staging(staging: Staging) -> tuple[Row, ...]:
    """Batches from jobs: those that wait, and their rows by outcome."""
    table, publisher = staging.table, staging.publisher
    return (
        Row("aerobee_staged_bytes", table.staged_bytes,
            "Bytes of batches from jobs that are not published yet, decided or not"),
        Row("aerobee_staged_batches_open", len(table.open),
            "Batches that are decided and not yet published whole"),
        Row("aerobee_staged_rows_published_total", publisher.published_rows,
            "Rows of decided batches put into their topics"),
        Row("aerobee_staged_rows_lost_total", publisher.lost_rows,
            "Rows of decided batches that could not be published; the log names them"),
    )  # fmt: skip


def timer(service: TimerService) -> tuple[Row, ...]:
    """Messages with a time of their own."""
    counts = service.counts
    return (
        Row("aerobee_timer_messages", service.pending(),
            "Records that wait for a time of their own, those of recalled messages among them"),
        Row("aerobee_timer_recalls", service.recalls(),
            "Recalls of messages whose time comes in this hour or later"),
        Row("aerobee_timer_late_seconds", service.late_s(),
            "For how long the first of them has been due"),
        Row("aerobee_timer_delivered_messages_total", counts.delivered,
            "Messages delivered at a time of their own"),
        Row("aerobee_timer_rolled_messages_total", counts.rolled,
            "Records stored again because their time is further ahead than they are kept"),
        Row("aerobee_timer_recalled_messages_total", counts.recalled,
            "Messages not delivered because they were recalled"),
        Row("aerobee_timer_lost_messages_total", counts.lost,
            "Records that were gone or damaged when their time came; the log names them"),
        Row("aerobee_timer_passed_over_messages_total", counts.passed_over,
            "Messages that can never be stored where they go; the log names them"),
        Row("aerobee_timer_put_failures_total", service.put_failures, _TRIED_AGAIN),
    )  # fmt: skip


def limits_used(
    core: BrokerCore, servers: Sequence[ServerStats], http: HttpServer | None
) -> dict[str, float]:
    """How much of each limit is used, by the setting, but for the queues, whose count takes long.
    `servers` are those of the ports for clients: the fuller one counts."""
    staged = core.staging.table
    used: dict[str, float] = {
        "connections": max(stats.open + stats.tls.arriving for stats in servers),
        "inbound_bytes": max(stats.inbound_bytes for stats in servers),
        "outbound_bytes": max(stats.outbound_bytes for stats in servers),
        "held_pulls": len(core.held),
        "held_pull_bytes": core.held.bytes,
        "client_bytes": core.clients.bytes,
        # Chunks are refused at a smaller share than intents.
        "stage_state_bytes": max(
            staged.bytes / STAGES_SHARE, staged.finished.bytes / FINISHED_SHARE
        ),
        "client_calls": max(len(core.client_calls), core.client_calls.requests),
        "pending_transactions": core.transactions.pending,
        "sql_filter_bytes": max(core.filters.bytes, core.expressions.bytes),
        "max_topics": len(core.topics),
        "max_groups": len(core.groups),
        "max_offsets": core.offsets.count(),
        "max_start_offsets": core.offsets.starts,
    }
    if http is not None:
        used["http_connections"] = http.open
    return used


def limits(
    settings: Settings, core: BrokerCore, servers: Sequence[ServerStats], http: HttpServer | None
) -> tuple[Row, ...]:
    """How near each limit is, by the setting's name, and the memory they allow. `servers` are those
    of the ports for clients: the fuller one counts."""
    used, topics = limits_used(core, servers, http), list(core.topics.all())
    return (
        Row("aerobee_limit_used_ratio", partial(_used_ratios, settings, used, topics),
            "Used part of a limit, 1 when it is hit", "limit"),
        Row("aerobee_memory_worst_case_bytes", partial(_worst_case_bytes, settings),
            "Memory that all limits together allow"),
        Row("aerobee_memory_available_bytes", partial(_available_bytes, settings),
            "Memory of the machine or the control group, or the share of it"),
    )  # fmt: skip


def _used_ratios(
    settings: Settings, used: Mapping[str, float], topics: Sequence[TopicConfig]
) -> dict[str, float]:
    queues = sum(max(topic.read_queues, topic.write_queues) for topic in topics)
    return {
        BY_NAME[name].full_key: number / getattr(settings, name)
        for name, number in {**used, "max_queues": queues}.items()
    }


def _worst_case_bytes(settings: Settings) -> int:
    return sum(case.bytes for case in worst_cases(settings))


def _available_bytes(settings: Settings) -> int | None:
    memory = memory_of(settings, available_memory())
    return None if memory is None else memory.bytes


def runtime(
    form: CompiledForm | None, stats: BrokerStats, health: HealthChecks, loop: LoopMonitor
) -> Iterator[Row]:
    """The process itself: version, form of the hot path, start, health, its loop."""
    verdicts = health.run()
    checks = {verdict.name: verdict.reason is None for verdict in verdicts}
    build = Row("aerobee_build_info", 1, "Version of the broker and form of its hot path, always 1")
    python = platform.python_version()
    yield from under([build], version=__version__, python=python, form=form_name(form))
    yield from (
        Row("aerobee_start_time_seconds", stats.started_ms / 1000, "Start, seconds of the epoch"),
        Row("aerobee_ready", all(verdict.ok for verdict in verdicts),
            "1 when /ready answers 200"),
        Row("aerobee_check_ok", checks, "1 when a check of /ready is well", "check"),
        Row("aerobee_loop_lag_seconds", loop.lag, "How late the event loop runs its timers"),
        Row("aerobee_loop_stalls_total", loop.stalls,
            "Turns of the event loop that took more than 100 ms"),
    )  # fmt: skip
