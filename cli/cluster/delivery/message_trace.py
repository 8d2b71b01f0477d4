"""`aerobee message trace`: when a message was sent and consumed, by whom, and how that went.

Clients tell it that have trace switched on, in messages of their own (RMQ_SYS_TRACE_TOPIC).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Final

from aerobee.cli.cluster.command_session import admin_of, client_command
from aerobee.cli.cluster.delivery.asking import all_brokers, say_unanswered
from aerobee.cli.documents.document import print_document
from aerobee.cli.documents.messages import TraceEvent
from aerobee.cli.printing.output import CommandFailed, print_table, say
from aerobee.cli.printing.times import time_text
from aerobee.client.administration.foreign_places import query_key
from aerobee.client.administration.trace_records import (
    CONSUMED,
    CONSUMING,
    SENT,
    TRANSACTION,
    TraceRecord,
    parse_trace,
    time_line,
)
from aerobee.client.message import ReceivedMessage, UnreadableMessage

# The most messages of one key that RocketMQ's brokers give, unless they are set otherwise.
_MAY_BE_CUT: Final = 32
_EVENTS: Final = {
    SENT: "sent",
    CONSUMING: "consuming",
    CONSUMED: "consumed",
    TRANSACTION: "transaction ended",
}


@client_command
async def trace(parsed: argparse.Namespace) -> int:
    """Print the time line of a message."""
    async with admin_of(parsed, reads_slaves=True) as admin:
        asked = await all_brokers(admin)
        found = await query_key(asked, parsed.trace_topic, parsed.id)
    records, unread = _records(found)
    line = time_line(records, parsed.id)
    if not line:
        code = say_unanswered(asked)
        raise CommandFailed(
            f"no trace of {parsed.id} in {parsed.trace_topic}: clients send it where trace is "
            "switched on (enableMsgTrace, or trace=True of ours)",
            code or 1,
        )
    events = [_event(one) for one in line]
    if parsed.json:
        print_document(events)
    else:
        _print(events)
    if unread:
        say(f"{unread} records of trace cannot be read, and are left out")
    if len(found) >= _MAY_BE_CUT:
        say(f"{len(found)} messages of trace were looked at, the newest; there may be older ones")
    return say_unanswered(asked)


def _records(messages: Iterable[ReceivedMessage]) -> tuple[list[TraceRecord], int]:
    records: list[TraceRecord] = []
    unread = 0
    for message in messages:
        if isinstance(message, UnreadableMessage):
            unread += 1
            continue
        found, failed = parse_trace(message.body.decode("utf-8", "replace"))
        records += found
        unread += failed
    return records, unread


def _event(record: TraceRecord) -> TraceEvent:
    return TraceEvent(
        event=_EVENTS[record.kind],
        timestamp_ms=record.timestamp_ms,
        msg_id=record.msg_id,
        group=record.group,
        topic=record.topic,
        tries=record.tries,
        took_ms=record.took_ms,
        success=record.success,
        outcome=record.outcome,
        store_host=record.store_host,
        client_host=record.client_host,
    )


def _print(events: Iterable[TraceEvent]) -> None:
    print_table(
        ("time", "event", "group", "try", "took ms", "result", "where"),
        [
            (
                "?" if one.timestamp_ms is None else time_text(one.timestamp_ms),
                one.event,
                one.group or "?",
                "" if one.tries is None else one.tries,
                "" if one.took_ms is None else one.took_ms,
                _result(one),
                _where(one),
            )
            for one in events
        ],
    )


def _result(event: TraceEvent) -> str:
    if event.success is None:
        return event.outcome or ""
    if event.success:
        return "success"
    return event.outcome or "failed"


def _where(event: TraceEvent) -> str:
    stored = f"stored at {event.store_host}" if event.store_host else ""
    client = f"by {event.client_host}" if event.client_host else ""
    topic = event.topic or ""
    return "  ".join(part for part in (topic, stored, client) if part)
