"""The doors of the drain: DRAIN and DRAIN_STATUS (31035, 31036), and /drain at the HTTP port.

Both ask the one `Drain` of the daemon. The HTTP port knows no accounts, so a change is taken there
from this machine alone, or with the token of `drain.token`. A page in a browser on this machine
could send such a request as well, which browsers mark; and a proxy on this machine speaks for
strangers. Neither is taken without the token.
"""

from __future__ import annotations

import hmac
import ipaddress
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

import msgspec

from aerobee.broker.lifecycle.drain import Drain
from aerobee.broker.monitoring.http import Request, Response, json_response
from aerobee.protocol.bodies.audit import AUDIT_WORDS
from aerobee.protocol.bodies.drain import BEGIN, DRAINING, SERVING, UNDO, DrainStatus
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.headers.admin import DrainHeader

if TYPE_CHECKING:
    from aerobee.access.audit.auditing import Auditing

_MARKS: Final = ("origin", "sec-fetch-site", "x-forwarded-for", "forwarded", "via")
_BEARER: Final = "Bearer "


def serve_request(drain: Drain, command: Command) -> bytes:
    """Carry out DRAIN, or DRAIN_STATUS, and answer with the state. Raises BadRequest for another
    action."""
    if command.code == RequestCode.DRAIN:
        header = DrainHeader.from_ext(command.ext)
        if header.action == BEGIN:
            drain.begin(everything=header.everything)
        elif header.action == UNDO:
            drain.undo()
        else:
            raise BadRequest.system_error(f"the action of a drain is {BEGIN} or {UNDO}")
    return encode_success(command, drain.status().encode())


async def serve_http(
    drain: Drain, request: Request, token: str, audit: Auditing | None = None
) -> Response:
    """Answer GET /drain with the state, and carry out POST /drain. Of its query, `wait=true` holds
    the answer until there is nothing to wait for, `undo=true` undoes, and `everything=true` drains
    also topics that nobody else takes."""
    if request.method != "POST":
        return _answer(200, drain.status())
    if (refused := _why_not(request, token)) is not None:
        return Response(403, f"{refused}\n".encode())
    asked = {name for name, values in parse_qs(request.query).items() if values[-1] == "true"}
    if unknown := asked - {"wait", "undo", "everything"}:
        return Response(400, f"/drain knows no {min(unknown)!r}\n".encode())
    try:
        await _change(drain, asked, request.peer, audit)
    except BadRequest as error:  # nothing was changed, as it cannot be noted
        return Response(503, f"{error.remark}\n".encode())
    status = drain.status()
    if "undo" in asked:
        return _answer(200, status)
    if "wait" in asked and status.state == DRAINING:
        status = await drain.wait_over()
    return _answer(409 if status.state == SERVING else 200, status)


async def _change(drain: Drain, asked: set[str], peer: str, audit: Auditing | None) -> None:
    """Undo or begin, as an audit event. Raises BadRequest where that cannot be noted."""
    everything = "everything" in asked

    async def change() -> None:
        if "undo" in asked:
            drain.undo()
        else:
            await drain.begin_and_hear(everything=everything)

    if audit is None:
        await change()
        return
    action = UNDO if "undo" in asked else BEGIN
    name = f"{action}{' of everything' if everything else ''} by HTTP from {peer}"
    await audit.of_this_machine(AUDIT_WORDS[RequestCode.DRAIN], name, change, drain.text)


def _answer(code: int, status: DrainStatus) -> Response:
    return json_response(code, msgspec.to_builtins(status))


def _why_not(request: Request, token: str) -> str | None:
    """Why this peer may change nothing; None if it may."""
    given = request.headers.get("authorization", "")
    if token and hmac.compare_digest(given.encode(), (_BEARER + token).encode()):
        return None
    if not _is_loopback(request.peer):
        return "only this machine may drain the broker, or whoever has the token of drain.token"
    if marks := [name for name in _MARKS if name in request.headers]:
        return (
            f"a request with the header {marks[0]} comes from a browser or through a proxy: it "
            "needs the token of drain.token"
        )
    return None


def _is_loopback(peer: str) -> bool:
    try:
        return ipaddress.ip_address(peer).is_loopback
    except ValueError:
        return False
