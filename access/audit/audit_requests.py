"""AUDIT_EVENTS (31034): shows what was changed, a page at a time (protocol/WIRE.md 9)."""

from __future__ import annotations

from aerobee.access.audit.auditing import Auditing, Steps
from aerobee.access.audit.sink import Place
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.headers.audit import AuditEventsHeader, AuditEventsResponse

OFF = "changes are not audited here: audit.target is off"


def audit_events(audit: Auditing | None, command: Command) -> Steps:
    """The steps to an answer; pages are read one at a time, on the thread of events."""
    if audit is None:
        raise BadRequest.system_error(OFF)
    header = AuditEventsHeader.from_ext(command.ext)
    place = Place(max(header.file, 0), max(header.position, 0))
    yield audit.recorder.flushed()
    reading = audit.recorder.page(place, header.since_timestamp)
    yield reading
    try:
        page = reading.result()
    except OSError as error:
        raise BadRequest.system_error(
            f"the files of audit events cannot be read ({error.strerror})"
        ) from error
    fields = AuditEventsResponse(page.next.file, page.next.position, page.more, page.damaged)
    return encode_success(command, page.lines, fields.to_ext())
