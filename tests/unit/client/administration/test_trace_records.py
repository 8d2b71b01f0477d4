"""Records of trace: the forms that clients have written over the years, and their time line."""

from __future__ import annotations

import pytest

from aerobee.client.administration.trace_records import (
    CONSUMED,
    CONSUMING,
    SENT,
    TRANSACTION,
    TraceRecord,
    parse_trace,
    time_line,
)


def text(*records: tuple[object, ...]) -> str:
    return "".join("\x01".join(map(str, fields)) + "\x02" for fields in records)


_PUB = ("Pub", 100, "R", "P", "T", "ID", "tag", "k1 k2", "1.2.3.4:10911", 7, 3, 0)
_BEFORE = ("SubBefore", 200, "R", "G", "REQ", "ID", 2, "k1")


@pytest.mark.parametrize(
    ("more", "offset_id", "success", "host"),
    [
        ((), None, None, None),
        (("true",), None, True, None),
        (("OFFSET", "false"), "OFFSET", False, None),
        (("OFFSET", "true", "10.0.0.1"), "OFFSET", True, "10.0.0.1"),
    ],
)
def test_a_send_is_read_in_each_form(
    more: tuple[str, ...], offset_id: str | None, success: bool | None, host: str | None
) -> None:
    [found], unread = parse_trace(text((*_PUB, *more)))
    assert unread == 0
    assert (found.offset_msg_id, found.success, found.client_host) == (offset_id, success, host)
    assert (found.kind, found.timestamp_ms, found.group, found.topic) == (SENT, 100, "P", "T")
    assert (found.took_ms, found.body_bytes, found.keys) == (3, 7, "k1 k2")


@pytest.mark.parametrize(
    ("more", "timestamp_ms", "outcome"),
    [((), 205, None), ((2,), 205, "exception"), ((4, 222, "G"), 222, "failed")],
)
def test_the_end_of_a_consumption_gets_what_it_lacks_from_its_beginning(
    more: tuple[object, ...], timestamp_ms: int, outcome: str | None
) -> None:
    records, _ = parse_trace(text(("SubAfter", "REQ", "ID", 5, "false", "k1", *more), _BEFORE))
    begun, ended = time_line(records, "ID")
    assert (begun.kind, ended.kind) == (CONSUMING, CONSUMED)
    assert (ended.group, ended.tries, ended.success) == ("G", 2, False)
    assert (ended.timestamp_ms, ended.outcome) == (timestamp_ms, outcome)


def test_the_end_of_a_transaction_is_read() -> None:
    fields = ("EndTransaction", 150, "R", "P", "T", "ID", "null", "", "h:1", 2)
    [found], _ = parse_trace(text((*fields, "TX", "COMMIT_MESSAGE", "false")))
    assert (found.kind, found.outcome, found.tags) == (TRANSACTION, "COMMIT_MESSAGE", None)


def test_records_that_cannot_be_read_are_counted() -> None:
    broken = text(("Pub", "soon"), ("Unknown", 1), _BEFORE[:5]) + "\x02no record"
    assert parse_trace(text(_BEFORE) + broken)[1] == 4
    assert parse_trace("") == ([], 0)


def test_a_time_line_has_each_record_of_a_message_once_by_id_or_key() -> None:
    other = TraceRecord(kind=SENT, msg_id="OTHER", timestamp_ms=1, keys="k3")
    records, _ = parse_trace(text(_BEFORE, _PUB, _BEFORE))
    assert [one.kind for one in time_line([*records, other], "ID")] == [SENT, CONSUMING]
    assert [one.kind for one in time_line([*records, other], "k2")] == [SENT]
    assert time_line(records, "k") == []
