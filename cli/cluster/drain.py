"""`aerobee broker drain`: sends a broker's producers elsewhere, so that it can be stopped.

A broker of ours does it itself and tells how far it is. RocketMQ's brokers do not know the request:
the name servers are asked to take their right to write, as mqadmin's wipeWritePerm does. Such a
broker gets the right back when its topics change, and nobody is told who still sends to it; so the
count of what it stores is watched instead.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec.structs import replace

from aerobee.cli.cluster.command_session import admin_of, client_command, exit_code
from aerobee.cli.cluster.previews import check_expected, say_how_to
from aerobee.cli.cluster.topics import is_internal
from aerobee.cli.documents.document import print_document
from aerobee.cli.documents.draining import BrokerDrain
from aerobee.cli.printing.output import OK, REFUSED, CommandFailed, print_pairs, say
from aerobee.client.admin import Admin
from aerobee.client.administration.draining import (
    ask_drain,
    count_stored,
    other_takers,
    set_write_right,
    writable_topics,
)
from aerobee.client.errors import ClientError
from aerobee.nearest_name import nearest_name
from aerobee.protocol.bodies.drain import ASKING, BEGIN, SERVING, UNDO, DrainStatus

_LOOK_S: Final = 0.5
# RocketMQ's clients read routes every 30 s, and a quiet moment after that says that they have left.
_ROUTES_READ_S: Final = 32.0
_QUIET_S: Final = 2.0
_PATIENCE_S: Final = 60.0
_NAMED: Final = 20


class _Plan(NamedTuple):
    """The broker that is meant, and what a drain would do."""

    address: str
    topics: list[str]
    taken_by: list[str]
    untaken: list[str]
    status: DrainStatus | None


@client_command
async def drain(parsed: argparse.Namespace) -> int:
    """Show what a drain would do; with `--yes` drain, or undo it, and with `--wait` wait for it."""
    async with admin_of(parsed) as admin:
        await _check_known(admin, parsed.broker)
        plan = await _plan(admin, parsed.broker)
        preview = _document(parsed.broker, plan, plan.status, changed=False)
        if not parsed.yes:
            _show(parsed, preview)
            _warn(plan, undo=parsed.undo)
            say_how_to(parsed, preview)
            return OK
        check_expected(parsed, preview)
        if plan.status is None:
            return await _by_name_servers(parsed, admin, plan)
        return await _by_the_broker(parsed, admin, plan)


async def _check_known(admin: Admin, broker: str) -> None:
    names = (await admin.cluster()).brokers
    if broker not in names:
        near = nearest_name(broker, names)
        known = f"there is {', '.join(sorted(names))}" if names else "none is registered"
        hint = f"; did you mean {near}?" if near else f": {known}"
        raise CommandFailed(f"there is no broker {broker}{hint}")


async def _plan(admin: Admin, broker: str) -> _Plan:
    address = await admin.administered_at(broker)
    info = await admin.cluster()
    writable = await writable_topics(admin.session, address)
    topics = [topic for topic in writable if not is_internal(topic, info)]
    taken = await other_takers(admin.session, topics, broker)
    return _Plan(
        address,
        topics,
        sorted(set[str]().union(*taken.values())),
        sorted(topic for topic, brokers in taken.items() if not brokers),
        await ask_drain(admin.session, address),
    )


def _document(
    broker: str, plan: _Plan, status: DrainStatus | None, *, changed: bool
) -> BrokerDrain:
    return BrokerDrain(
        broker=broker,
        address=plan.address,
        changed=changed,
        state=None if status is None else status.state,
        # In a preview they would move its hash, though nothing else has changed.
        reason=(status.reason or None) if status is not None and changed else None,
        senders_left=status.senders_left if status is not None and changed else None,
        topics=len(plan.topics),
        taken_by=plan.taken_by,
        untaken=plan.untaken,
    )


def _show(parsed: argparse.Namespace, shown: BrokerDrain) -> None:
    if parsed.json:
        print_document(shown)
        return
    more = len(shown.untaken) - _NAMED
    rest = f" and {more} more (--json has all)" if more > 0 else ""
    left = {True: "yes", False: "no", None: "?"}[shown.senders_left]
    print_pairs(
        {
            "broker": f"{shown.broker} at {shown.address}",
            "state": shown.state or "? (this broker cannot tell)",
            **({"because": shown.reason} if shown.reason else {}),
            **({"producers have left": left} if shown.changed else {}),
            "topics to send to": shown.topics,
            "taken by": ", ".join(shown.taken_by) or "nobody",
            "taken by nobody else": (", ".join(shown.untaken[:_NAMED]) or "none") + rest,
        }
    )


def _warn(plan: _Plan, *, undo: bool) -> None:
    if undo:
        say("producers would come back as soon as they read their routes again")
    elif plan.untaken:
        say(
            f"warning: {len(plan.untaken)} of {len(plan.topics)} topics are taken by no other "
            "broker: sends to them will fail as soon as producers read their routes again"
        )


async def _by_the_broker(parsed: argparse.Namespace, admin: Admin, plan: _Plan) -> int:
    """Have a broker of ours drain itself."""
    action = UNDO if parsed.undo else BEGIN
    # The preview has named the topics that nobody else takes.
    everything = bool(plan.untaken)
    status = await ask_drain(admin.session, plan.address, action, everything=everything)

    def is_over(now: DrainStatus) -> bool:
        return now.is_over if parsed.wait else now.state != ASKING

    while status is not None and not is_over(status):
        await asyncio.sleep(_LOOK_S)
        before, status = status, await ask_drain(admin.session, plan.address)
        if status is not None and parsed.wait and status.reason != before.reason:
            say(f"{parsed.broker}: {status.reason or status.state}")
    _show(parsed, _document(parsed.broker, plan, status, changed=True))
    if status is None or parsed.undo:
        return OK
    if status.state == SERVING:
        say(f"{parsed.broker} is not drained: {status.reason}")
        return REFUSED
    if not parsed.wait:
        say(f"{parsed.broker} serves until its producers have left; --wait waits for that")
        return OK
    return OK if status.senders_left else REFUSED


async def _by_name_servers(parsed: argparse.Namespace, admin: Admin, plan: _Plan) -> int:
    """Have the name servers take the right to write from a broker of RocketMQ's, or give it."""
    done = await set_write_right(admin.session, parsed.broker, allowed=parsed.undo)
    code = OK
    for server, result in done.items():
        if isinstance(result, ClientError):
            say(f"{server}: not done: {result}")
            code = max(code, exit_code(result))
        else:
            verb = "may be written again" if parsed.undo else "may not be written any more"
            say(f"{server}: {result} topics of {parsed.broker} {verb}")
    if not parsed.undo:
        say(
            f"{parsed.broker} cannot tell who still sends to it, and the name servers give it the "
            "right back when its topics change"
        )
    left = None
    if parsed.wait and not parsed.undo and code == OK:
        left = await _wait_quiet(admin, plan.address, say)
    shown = _document(parsed.broker, plan, None, changed=True)
    _show(parsed, replace(shown, senders_left=left))
    return REFUSED if left is False else code


async def _wait_quiet(admin: Admin, address: str, tell: Callable[[str], None]) -> bool | None:
    """Wait until all clients have read their routes and nothing is stored any more; None where the
    broker does not count that. Delayed messages and retries count as stored, too."""
    clock = asyncio.get_running_loop().time
    tell(f"waiting {_ROUTES_READ_S:.0f} s, in which RocketMQ's clients read their routes")
    await asyncio.sleep(_ROUTES_READ_S)
    until = clock() + _PATIENCE_S
    count = await count_stored(admin.session, address)
    while count is not None and clock() < until:
        await asyncio.sleep(_QUIET_S)
        before, count = count, await count_stored(admin.session, address)
        if before == count:
            return True
    return None if count is None else False
