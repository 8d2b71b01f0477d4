"""The doors of the drain: the request DRAIN (31035), and POST /drain at the HTTP port.

Both ask the one `Drain` of the daemon. The HTTP port knows no accounts, so a change is taken there
from this machine alone, or with the token of `drain.token`. A page in a browser on this machine
could send such a request as well, which browsers mark; and a proxy on this machine speaks for
strangers. Neither is taken without the token.
"""

from __future__ import annotations

import hmac
import ipaddress
from typing import Final
from urllib.parse import parse_qs

import msgspec

from aerobee.broker.lifecycle.drain import Drain
from aerobee.broker.monitoring.http import Request, Response, json_response
from aerobee.protocol.bodies.drain import BEGIN, DRAINING, SERVING, UNDO, DrainStatus
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.headers.admin import DrainHeader

_MARKS: Final = ("origin", "sec-fetch-site", "x-forwarded-for", "forwarded", "via")
_BEARER: Final = "Bearer "


def serve_request(drain: Drain, command: Command) -> bytes:
    """Carry out DRAIN and answer with the state. Raises BadRequest for another action."""
    header = DrainHeader.from_ext(command.ext)
    if header.action == BEGIN:
        drain.begin(everything=header.everything)
    elif header.action == UNDO:
        drain.undo()
    elif header.action:
        raise BadRequest(
            ResponseCode.SYSTEM_ERROR, f"the action of a drain is {BEGIN}, {UNDO} or left out"
        )
    return encode_success(command, drain.status().encode())


async def serve_http(drain: Drain, request: Request, token: str) -> Response:
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
    if "undo" in asked:
        drain.undo()
        return _answer(200, drain.status())
    status = await drain.begin_and_hear(everything="everything" in asked)
    if "wait" in asked and status.state == DRAINING:
        status = await drain.wait_over()
    return _answer(409 if status.state == SERVING else 200, status)


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
