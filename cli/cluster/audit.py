"""`aerobee audit`: who has changed what, on all brokers and name servers, sorted by time."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from aerobee.cli.arguments.argument_types import duration
from aerobee.cli.cluster.command_session import admin_of, client_command
from aerobee.cli.documents.audit import AuditRecord
from aerobee.cli.documents.document import print_document
from aerobee.cli.printing.output import (
    CANNOT_CONNECT,
    OK,
    REFUSED,
    USAGE,
    CommandFailed,
    print_table,
    say,
)
from aerobee.cli.printing.times import parse_time, time_text
from aerobee.client.admin import Admin
from aerobee.client.administration.audit_events import AuditAnswer, audit_events
from aerobee.client.errors import CallTimeout, NetworkError
from aerobee.nearest_name import nearest_name
from aerobee.protocol.bodies.audit import AUDIT_WORDS, OTHER_WORDS, AuditEvent
from aerobee.protocol.bodies.routes import MASTER_ID

_AT_ONCE: Final = 16
# RocketMQ's name server never answers a request that it does not know.
_NAME_SERVER_S: Final = 2.0
_COLUMNS: Final = ("time", "at", "request", "object", "account", "address", "change", "outcome")


class _Peer(NamedTuple):
    """A broker, or a name server (without a number)."""

    name: str
    number: int | None
    address: str

    @property
    def shown(self) -> str:
        if self.number is None:
            return f"name server {self.name}"
        return self.name if self.number == MASTER_ID else f"{self.name} (slave {self.number})"


@client_command
async def show_audit(parsed: argparse.Namespace) -> int:
    """Print the events that the arguments ask for."""
    since_ms, wanted = _since_ms(parsed.since), _wanted(parsed)
    turns = asyncio.Semaphore(_AT_ONCE)
    async with admin_of(parsed) as admin:

        async def ask(peer: _Peer) -> AuditAnswer | NetworkError:
            timeout_s = None if peer.number is not None else min(parsed.timeout, _NAME_SERVER_S)
            try:
                async with turns:
                    return await audit_events(
                        admin.session, peer.address, since_ms, wanted, timeout_s
                    )
            except NetworkError as error:
                return error

        peers = await _peers(admin, parsed)
        answers = await asyncio.gather(*map(ask, peers))
    told = list(zip(peers, answers, strict=True))
    records = sorted(
        (
            _record(peer, event)
            for peer, answer in told
            if isinstance(answer, AuditAnswer)
            for event in answer.events
        ),
        key=lambda one: one.timestamp_ms,
    )
    if parsed.json:
        print_document(records)
    else:
        print_table(_COLUMNS, [_row(record) for record in records])
    code = _say_missing(told)
    if not records and code == OK:
        say("nobody has changed anything in that time that these arguments ask for")
    return code


async def _peers(admin: Admin, parsed: argparse.Namespace) -> list[_Peer]:
    """All that keep events, administrators' ports in place of those of their brokers."""
    brokers = (await admin.cluster()).brokers
    if parsed.broker is not None and parsed.broker not in brokers:
        near = nearest_name(parsed.broker, brokers)
        hint = f"did you mean {near}?" if near else f"there is {', '.join(sorted(brokers))}"
        raise CommandFailed(f"there is no broker {parsed.broker}: {hint}")
    ports = {
        (await admin.settings_at(address)).get("brokerName", ""): address
        for address in parsed.admin or ()
    }
    peers = [
        _Peer(name, number, ports.get(name, address) if number == MASTER_ID else address)
        for name, one in sorted(brokers.items())
        for number, address in sorted(one.addresses.items())
        if parsed.broker in (None, name)
    ]
    if parsed.broker is None:
        peers += [_Peer(address, None, address) for address in admin.session.name_servers]
    return peers


def _say_missing(told: Iterable[tuple[_Peer, AuditAnswer | NetworkError]]) -> int:
    """Say whose events are missing, and why; returns the exit code."""
    code, has_told = OK, False
    for peer, answer in told:
        if isinstance(answer, AuditAnswer):
            has_told |= answer.why_not is None
            if answer.why_not is not None:
                say(f"{peer.shown} cannot tell: {answer.why_not}")
            if answer.damaged:
                say(f"{peer.shown}: {answer.damaged} lines of its files cannot be read")
        elif peer.number is None and isinstance(answer, CallTimeout):
            # RocketMQ's name servers leave a request that they do not know without an answer.
            say(
                f"{peer.shown} has not told: {answer}. RocketMQ's name servers never answer this; "
                "one of ours that hangs would not either"
            )
        else:
            say(f"{peer.shown} did not answer, so its events are missing: {answer}")
            code = CANNOT_CONNECT
    return code if has_told or code else REFUSED


def _since_ms(text: str) -> int:
    try:
        if len(text) < 12 or not text.isdigit():
            return round((time.time() - duration(text)) * 1000)
    except argparse.ArgumentTypeError:
        pass
    return parse_time(text, "a time span such as 1h")


def _wanted(parsed: argparse.Namespace) -> Callable[[AuditEvent], bool]:
    words = frozenset(_word(text) for text in parsed.code)

    def wanted(event: AuditEvent) -> bool:
        return (
            (not words or event.request in words)
            and parsed.account in (None, event.account)
            and parsed.object in (None, event.object, *event.object.split())
        )

    return wanted


def _word(text: str) -> str:
    """The request that `--code` names: by its word, or by a request code."""
    known = {*AUDIT_WORDS.values(), *OTHER_WORDS}
    if text.isdigit() and int(text) in AUDIT_WORDS:
        return AUDIT_WORDS[int(text)]
    word = text.lower().replace("-", "_")
    if word not in known:
        near = nearest_name(word, known)
        hint = f"did you mean {near}?" if near else f"there is {', '.join(sorted(known))}"
        raise CommandFailed(f"no audited request is called {text}: {hint}", USAGE)
    return word


def _record(peer: _Peer, event: AuditEvent) -> AuditRecord:
    is_broker = peer.number is not None
    return AuditRecord(
        timestamp_ms=event.timestamp_ms,
        broker=peer.name if is_broker else None,
        broker_id=peer.number,
        name_server=None if is_broker else peer.name,
        request=event.request,
        object=event.object or None,
        account=event.account or None,
        address=event.address or None,
        client=event.client or None,
        before=event.before or None,
        after=event.after or None,
        outcome=event.outcome or None,
        why=event.why or None,
        times=event.times,
    )


def _row(record: AuditRecord) -> tuple[object, ...]:
    where = record.broker or f"name server {record.name_server}"
    if record.broker_id:
        where = f"{where} (slave {record.broker_id})"
    change = record.after or ""
    if record.before:
        # Clients make some changes after the answer: then only the state before is known.
        change = f"{record.before} -> {record.after or '?'}"
    outcome = record.outcome or "?"
    if record.times > 1:
        outcome = f"{outcome} {record.times} times"
    if record.why:
        outcome = f"{outcome}: {record.why}"
    return (
        time_text(record.timestamp_ms),
        where,
        record.request,
        record.object,
        record.account,
        record.address,
        change,
        outcome,
    )
