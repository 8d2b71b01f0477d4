"""Reads the audit events of brokers and name servers, all pages of each (protocol/WIRE.md 9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from aerobee.client.connections.session import Session
from aerobee.client.errors import reading
from aerobee.protocol.bodies.audit import AuditEvent, parse_event
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.headers.audit import AuditEventsHeader, AuditEventsResponse

_ANSWERS: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    ResponseCode.NO_PERMISSION,
)


class AuditAnswer(NamedTuple):
    """The events that one peer has told, oldest first, and how many lines of its files it could not
    read. `why_not` says why it tells nothing, None where it does."""

    events: list[AuditEvent]
    damaged: int
    why_not: str | None


async def audit_events(
    session: Session,
    address: str,
    since_ms: int,
    wanted: Callable[[AuditEvent], bool],
    timeout_s: float | None = None,
) -> AuditAnswer:
    """The events of a broker or name server of `since_ms` or later that are `wanted`; those alone
    are kept. `timeout_s` is for one page. Raises NetworkError."""
    events: list[AuditEvent] = []
    damaged = 0
    header = AuditEventsHeader(since_ms)
    while True:
        answer = await session.call(
            address, RequestCode.AUDIT_EVENTS, header.to_ext(), timeout_s=timeout_s, accept=_ANSWERS
        )
        if answer.code != ResponseCode.SUCCESS:
            return AuditAnswer(events, damaged, _why_not(answer.code, answer.remark))
        with reading(address):
            told = AuditEventsResponse.from_ext(answer.ext)
            for line in answer.body.splitlines():
                event = parse_event(line)
                if event is None:
                    damaged += 1
                elif wanted(event):
                    events.append(event)
        damaged += told.damaged
        moved = (told.file, told.position) != (header.file, header.position)
        if not told.more or not moved:
            return AuditAnswer(events, damaged, None)
        header = AuditEventsHeader(since_ms, told.file, told.position)


def _why_not(code: int, remark: str | None) -> str:
    if code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return "it keeps no audit events: Aerobee's do from this release on, RocketMQ's never"
    return remark or f"it has answered {code}"
