"""Typed headers of AUDIT_EVENTS (protocol/WIRE.md 9)."""

from aerobee.protocol.headers.fields import Header, Int32, Int64


class AuditEventsHeader(Header):
    """The request: events of `since_timestamp` or later, from a place on. Without a place it begins
    with the oldest event."""

    since_timestamp: Int64 = 0
    file: Int64 = 0
    position: Int64 = 0


class AuditEventsResponse(Header):
    """The answer, whose body has lines of events: the place behind them, whether more may follow
    now, and how many lines of the page could not be read."""

    file: Int64
    position: Int64
    more: bool
    damaged: Int32 = 0
