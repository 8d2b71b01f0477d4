"""`aerobee broker permission`: what a broker as a whole allows, and a change of that.

Topics are registered with what both they and their broker allow, so a broker without the right to
write loses its senders within half a minute, and its consumers go on. The permission is a setting
of the broker (brokerPermission), which RocketMQ's take by UPDATE_BROKER_CONFIG, and ours where
admin.remote_config is on.
"""

from __future__ import annotations

import argparse

from aerobee.cli.cluster.command_session import admin_of, client_command
from aerobee.cli.cluster.overview.brokers_named import unknown_name
from aerobee.cli.cluster.previews import check_expected, say_how_to
from aerobee.cli.cluster.topics import rights_text
from aerobee.cli.documents.brokers import PermissionChange
from aerobee.cli.documents.document import print_document
from aerobee.cli.printing.output import OK, CommandFailed, say, show
from aerobee.client.admin import Admin
from aerobee.protocol.bodies.routes import PERM_READ, PERM_WRITE

_SETTING = "brokerPermission"


@client_command
async def change_permission(parsed: argparse.Namespace) -> int:
    """Show the permission of a broker; change it with `--read` or `--write`, and `--yes`."""
    async with admin_of(parsed) as admin:
        before = await _permission(admin, parsed.broker)
        after = _wanted(before, parsed)
        asked = parsed.read is not None or parsed.write is not None
        shown = _document(parsed.broker, before, after if asked else None)
        check_expected(parsed, shown)
        changes = before != after
        if changes and parsed.yes:
            await admin.change_broker_settings({_SETTING: str(after)}, parsed.broker)
            now = await _permission(admin, parsed.broker)
            if now != after:
                raise CommandFailed(
                    f"{parsed.broker} took the change, and its permission is {_text(now)}: a file "
                    "or flag of the broker counts above it"
                )
            shown = _document(parsed.broker, before, after, changed=True)
    _report(parsed, shown, asked=asked, changes=changes)
    return OK


async def _permission(admin: Admin, broker: str) -> int:
    """The permission of a broker's master, as the sum of the rights' bits. Raises CommandFailed."""
    known = (await admin.cluster()).brokers
    if broker not in known:
        raise unknown_name("broker", broker, known)
    settings = (await admin.broker_settings(broker))[broker]
    text = settings.get(_SETTING, "")
    if not text.isdecimal():
        raise CommandFailed(f"{broker} does not tell its permission ({_SETTING})")
    return int(text)


def _wanted(before: int, parsed: argparse.Namespace) -> int:
    after = before
    for bit, word in ((PERM_READ, parsed.read), (PERM_WRITE, parsed.write)):
        if word is not None:
            after = after | bit if word == "yes" else after & ~bit
    return after


def _document(
    broker: str, before: int, after: int | None, *, changed: bool = False
) -> PermissionChange:
    return PermissionChange(
        broker=broker,
        rights=_text(before),
        wanted_rights=None if after is None else _text(after),
        changed=changed,
    )


def _text(permission: int) -> str:
    return rights_text(permission) or "none"


def _report(
    parsed: argparse.Namespace, shown: PermissionChange, *, asked: bool, changes: bool
) -> None:
    if parsed.json:
        print_document(shown)
    elif not asked:
        show(f"{shown.broker} allows {shown.rights}")
    elif not changes:
        show(f"{shown.broker} allows {shown.rights} already")
    else:
        verb = "allows now" if shown.changed else "would allow"
        show(f"{shown.broker} {verb} {shown.wanted_rights}; before: {shown.rights}")
    if changes and not parsed.yes:
        _say_consequences(parsed)
        say_how_to(parsed, shown)


def _say_consequences(parsed: argparse.Namespace) -> None:
    if parsed.write == "no":
        say("producers send to other brokers as soon as they read the routes again, within 30 s; "
            "topics that only this broker has cannot be sent to")  # fmt: skip
    if parsed.read == "no":
        say("consumers get nothing from this broker any more, and what it has waits")
