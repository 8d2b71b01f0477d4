"""Reads message trace: the records that producers and consumers send to the trace topic.

`client/producing/message_trace.py` describes the form. Clients of RocketMQ have added fields at the
ends of records over the years, so what a record does not have is None; a record that cannot be read
is counted. A record of the end of a consumption names its beginning by the request id, from which
it gets group and time where older clients leave them out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

FIELD_SEPARATOR: Final = "\x01"
RECORD_SEPARATOR: Final = "\x02"
#: The kinds of records.
SENT, CONSUMING, CONSUMED, TRANSACTION = "Pub", "SubBefore", "SubAfter", "EndTransaction"
# How a listener ended, by RocketMQ's numbers (ConsumeReturnType).
_OUTCOMES: Final = ("success", "time out", "exception", "returned nothing", "failed")
_NONE: Final = "null"


class TraceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One record. Times are ms since 1970, `took_ms` is how long it took."""

    kind: str
    msg_id: str
    timestamp_ms: int | None = None
    group: str | None = None
    topic: str | None = None
    keys: str | None = None
    tags: str | None = None
    store_host: str | None = None
    client_host: str | None = None
    request_id: str | None = None
    offset_msg_id: str | None = None
    took_ms: int | None = None
    body_bytes: int | None = None
    tries: int | None = None
    success: bool | None = None
    #: How the listener ended, or what was decided about a transaction.
    outcome: str | None = None


def parse_trace(body: str) -> tuple[list[TraceRecord], int]:
    """The records of a message of trace, and how many could not be read."""
    found, unread = [], 0
    for text in body.split(RECORD_SEPARATOR):
        if not text:
            continue
        try:
            found.append(_record(text.split(FIELD_SEPARATOR)))
        except (ValueError, IndexError):
            unread += 1
    return found, unread


def _record(fields: Sequence[str]) -> TraceRecord:
    """Raises ValueError or IndexError for what is no record."""
    readers = {SENT: _sent, CONSUMING: _consuming, CONSUMED: _consumed, TRANSACTION: _ended}
    reader = readers.get(fields[0])
    if reader is None:
        raise ValueError(f"unknown kind of record {fields[0]!r}")
    return reader([*fields])


def _text_at(fields: list[str], place: int) -> str | None:
    """A field that records of older clients do not have."""
    return _text(fields[place]) if len(fields) > place else None


def _sent(fields: list[str]) -> TraceRecord:
    # The oldest clients end with the success, later ones put the broker's id before it.
    has_id = len(fields) >= 14
    success = fields[13] if has_id else fields[12] if len(fields) == 13 else None
    return TraceRecord(
        kind=SENT,
        timestamp_ms=int(fields[1]),
        group=_text(fields[3]),
        topic=_text(fields[4]),
        msg_id=fields[5],
        tags=_text(fields[6]),
        keys=_text(fields[7]),
        store_host=_text(fields[8]),
        body_bytes=int(fields[9]),
        took_ms=int(fields[10]),
        offset_msg_id=_text(fields[12]) if has_id else None,
        success=None if success is None else _flag(success),
        client_host=_text_at(fields, 14),
    )


def _consuming(fields: list[str]) -> TraceRecord:
    return TraceRecord(
        kind=CONSUMING,
        timestamp_ms=int(fields[1]),
        group=_text(fields[3]),
        request_id=fields[4],
        msg_id=fields[5],
        tries=int(fields[6]),
        keys=_text_at(fields, 7),
        client_host=_text_at(fields, 8),
    )


def _consumed(fields: list[str]) -> TraceRecord:
    return TraceRecord(
        kind=CONSUMED,
        request_id=fields[1],
        msg_id=fields[2],
        took_ms=int(fields[3]),
        success=_flag(fields[4]),
        keys=_text_at(fields, 5),
        outcome=_outcome(int(fields[6])) if len(fields) > 6 else None,
        timestamp_ms=int(fields[7]) if len(fields) > 7 else None,
        group=_text_at(fields, 8),
    )


def _ended(fields: list[str]) -> TraceRecord:
    return TraceRecord(
        kind=TRANSACTION,
        timestamp_ms=int(fields[1]),
        group=_text(fields[3]),
        topic=_text(fields[4]),
        msg_id=fields[5],
        tags=_text(fields[6]),
        keys=_text(fields[7]),
        store_host=_text(fields[8]),
        outcome=_text(fields[11]),
    )


def _text(field: str) -> str | None:
    return None if field in ("", _NONE) else field


def _flag(field: str) -> bool:
    return field.lower() == "true"


def _outcome(number: int) -> str:
    return _OUTCOMES[number] if 0 <= number < len(_OUTCOMES) else f"code {number}"


def time_line(records: Iterable[TraceRecord], name: str) -> list[TraceRecord]:
    """The records about the message of that id or key, each once, by their times; a consumption's
    end stands behind its beginning."""
    mine: dict[TraceRecord, None] = {}
    for record in records:
        if name == record.msg_id or name in (record.keys or "").split():
            mine[record] = None
    begun = {one.request_id: one for one in mine if one.kind == CONSUMING}
    completed = [_completed(one, begun.get(one.request_id)) for one in mine]
    ends = (CONSUMED, TRANSACTION)
    return sorted(completed, key=lambda one: (one.timestamp_ms or 0, one.kind in ends))


def _completed(record: TraceRecord, begun: TraceRecord | None) -> TraceRecord:
    if record.kind != CONSUMED or begun is None:
        return record
    assert begun.timestamp_ms is not None
    return msgspec.structs.replace(
        record,
        group=record.group or begun.group,
        tries=begun.tries,
        timestamp_ms=record.timestamp_ms or begun.timestamp_ms + (record.took_ms or 0),
    )
