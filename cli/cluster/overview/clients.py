"""`aerobee client list` and `show`: who is connected, since when, and what it holds.

Brokers of ours list all connections (31032). RocketMQ's tell the members of a group that is named
(203, 204), so against them `--group` is needed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Final

from aerobee.cli.cluster.command_session import admin_of, client_command, say_unanswered
from aerobee.cli.cluster.overview.brokers_named import check_some_answer, silent_peers, unknown_name
from aerobee.cli.documents.clients import (
    Client,
    ClientDescription,
    ClientListing,
    HeldQueue,
    Subscribed,
)
from aerobee.cli.documents.document import print_document
from aerobee.cli.printing.output import CommandFailed, print_table, say, show
from aerobee.cli.printing.times import span_text, time_text
from aerobee.client.admin import Admin
from aerobee.client.administration.overview import (
    GroupMembers,
    Listed,
    Place,
    ask_all,
    ask_clients,
    members_at,
    running_info,
)
from aerobee.client.errors import ClientError, NetworkError
from aerobee.protocol.bodies.broker_status import ConnectedClient
from aerobee.protocol.bodies.statistics import ConnectionData
from aerobee.protocol.codes import version_name
from aerobee.protocol.headers.admin import ClientsHeader
from aerobee.remoting.peers import naming

_COLUMNS: Final = (
    *("client id", "broker", "address", "language", "version", "produces for", "consumes in"),
    *("since", "idle", "waiting", "pulls"),
)


@client_command
async def list_clients(parsed: argparse.Namespace) -> int:
    """Print the connections; those that are in no group only with `--all`."""
    header = ClientsHeader(parsed.group, parsed.topic, parsed.address)
    async with admin_of(parsed, leaves_out_silent=True) as admin:
        found = await _asked(admin, header)
        clients = [one for one in found.clients if parsed.all or _is_in_a_group(one)]
        if parsed.json:
            document = ClientListing(
                clients=clients, left_out=found.left_out, unanswered=await silent_peers(admin)
            )
            print_document(document, compact=parsed.watch is not None)
        else:
            print_table(_COLUMNS, [_row(one) for one in clients])
            if not clients:
                say("no client is connected that is in a group of that kind; --all shows all")
        _say_left_out(found)
        return await say_unanswered(admin)


class _Found:
    """The connections at all brokers, and the brokers that do not list them."""

    def __init__(self, listed: Sequence[Listed], members: Sequence[GroupMembers]) -> None:
        self.listed = listed
        #: The connections that brokers of ours have listed.
        self.told = [
            client for one in listed if one.clients is not None for client in one.clients.clients
        ]
        told = {one.place for one in members}
        self.silent = [one for one in listed if one.clients is None and one.place not in told]
        self.left_out = sum(one.clients.left_out for one in listed if one.clients is not None)
        clients = [
            _client(one.place.name, client)
            for one in listed
            if one.clients is not None
            for client in one.clients.clients
        ]
        clients += [client for one in members for client in _members(one)]
        self.clients = sorted(clients, key=lambda one: (one.client_id, one.broker, one.address))


async def _asked(admin: Admin, header: ClientsHeader) -> _Found:
    """The connections that are asked for. Raises CommandFailed if no broker lists any."""
    ports = await admin.admin_ports()

    async def ask(place: Place) -> tuple[Listed, GroupMembers | None]:
        listed = await ask_clients(admin, place, ports, header)
        if listed.clients is not None or listed.error is not None or header.group is None:
            return listed, None
        return listed, await members_at(admin, place, header.group)

    views, answers = await ask_all(admin, ask)
    check_some_answer(views)
    found = _Found(
        [listed for listed, _ in answers], [one for _, one in answers if one is not None]
    )
    if answers and len(found.silent) == len(answers):
        first = found.silent[0]
        if first.error is not None:
            raise first.error
        raise CommandFailed(f"{first.place.name}: {first.why_not}{_HINT}")
    return found


_HINT: Final = " which clients there are; --group NAME asks for the members of a group"


def _say_left_out(found: _Found) -> None:
    for one in found.silent:
        if one.error is None:
            say(f"{one.place.name} at {one.place.address}: {one.why_not}{_HINT}")
        elif not isinstance(one.error, NetworkError):
            say(naming(one.place.address, str(one.error)))
    if found.left_out:
        say(f"{found.left_out} more did not fit: --group, --topic or --address asks for fewer")


def _client(broker: str, one: ConnectedClient) -> Client:
    return Client(
        client_id=one.client_id,
        broker=broker,
        address=one.address,
        language=one.language,
        version=None if one.version is None else version_name(one.version),
        producer_groups=one.producer_groups,
        consumer_groups=one.consumer_groups,
        connected_timestamp_ms=one.connected_ms,
        last_active_timestamp_ms=one.last_active_ms,
        last_heartbeat_timestamp_ms=one.last_heartbeat_ms,
        waiting_bytes=one.waiting_bytes,
        unsent_bytes=one.unsent_bytes,
        held_pulls=one.held_pulls,
        groups_left_out=one.groups_left_out,
    )


def _members(found: GroupMembers) -> list[Client]:
    """The members of a group as RocketMQ tells of them: an entry for each connection."""
    by_address: dict[str, tuple[ConnectionData, list[str], list[str]]] = {}
    for producer in found.producers:
        by_address.setdefault(producer.address, (producer, [], []))[1].append(found.group)
    for consumer in found.consumers:
        by_address.setdefault(consumer.address, (consumer, [], []))[2].append(found.group)
    return [
        Client(
            client_id=one.client_id,
            broker=found.place.name,
            address=one.address,
            language=one.language,
            version=version_name(one.version),
            producer_groups=produces,
            consumer_groups=consumes,
            connected_timestamp_ms=None,
            last_active_timestamp_ms=None,
            last_heartbeat_timestamp_ms=None,
            waiting_bytes=None,
            unsent_bytes=None,
            held_pulls=None,
            groups_left_out=0,
        )
        for one, produces, consumes in by_address.values()
    ]


def _is_in_a_group(client: Client) -> bool:
    return bool(client.producer_groups or client.consumer_groups)


def _row(one: Client) -> tuple[object, ...]:
    since, active = one.connected_timestamp_ms, one.last_active_timestamp_ms
    waiting = one.waiting_bytes, one.unsent_bytes
    return (
        one.client_id or "-",
        one.broker,
        one.address,
        one.language or "",
        one.version or "",
        ", ".join(one.producer_groups),
        ", ".join(one.consumer_groups) + (", ..." if one.groups_left_out else ""),
        "?" if since is None else time_text(since)[:19],
        "?" if active is None else span_text(max(0.0, time.time() - active / 1000)),
        "?" if None in waiting else sum(filter(None, waiting)),
        "?" if one.held_pulls is None else one.held_pulls,
    )


@client_command
async def show_client(parsed: argparse.Namespace) -> int:
    """Print a client with its subscriptions, the queues that it holds and its threads."""
    async with admin_of(parsed, leaves_out_silent=True) as admin:
        header = ClientsHeader(group=parsed.group, client_id=parsed.client_id, details=True)
        found = await _asked(admin, header)
        mine = [one for one in found.clients if one.client_id == parsed.client_id]
        if not mine:
            everybody = await _asked(admin, ClientsHeader(group=parsed.group))
            ids = (one.client_id for one in everybody.clients if one.client_id)
            raise unknown_name("client", parsed.client_id, ids)
        stack = await _stack(admin, found, mine, parsed) if parsed.stack else None
        document = ClientDescription(
            client_id=parsed.client_id,
            connections=mine,
            subscriptions=_subscriptions(found),
            queues=_queues(found),
            queues_left_out=sum(one.queues_left_out for one in found.told),
            subscriptions_left_out=sum(one.subscriptions_left_out for one in found.told),
            stack=stack,
            unanswered=await silent_peers(admin),
        )
        if parsed.json:
            print_document(document)
        else:
            _print(document)
        _say_left_out(found)
        return await say_unanswered(admin)


def _subscriptions(found: _Found) -> list[Subscribed]:
    stated = {
        (group, topic): text
        for one in found.listed
        if one.clients is not None
        for client in one.clients.clients
        for group, topics in (client.subscriptions or {}).items()
        for topic, text in topics.items()
    }
    return [
        Subscribed(group=group, topic=topic, subscription=text)
        for (group, topic), text in sorted(stated.items())
    ]


def _queues(found: _Found) -> list[HeldQueue]:
    queues = [
        HeldQueue(
            broker=one.place.name,
            group=queue.group,
            topic=queue.topic,
            queue=queue.queue_id,
            kind=kind,
            offset=queue.offset,
            since_timestamp_ms=queue.since_ms,
        )
        for one in found.listed
        if one.clients is not None
        for client in one.clients.clients
        for kind, held in (("lock", client.locks), ("pull", client.pulls))
        for queue in held or ()
    ]
    # Several connections of one client id have the same locks.
    return sorted(set(queues), key=lambda one: (one.broker, one.topic, one.queue, one.kind))


async def _stack(
    admin: Admin, found: _Found, mine: Sequence[Client], parsed: argparse.Namespace
) -> str | None:
    """The stacks of the client's threads, asked through a broker that it is connected with."""
    addresses = {one.place.name: one.place.address for one in found.listed}
    group = parsed.group or next((name for one in mine for name in one.consumer_groups), None)
    if group is None:
        say(f"{parsed.client_id} consumes nothing: brokers ask consumers alone for their stacks")
        return None
    try:
        body = await running_info(admin, addresses[mine[0].broker], group, parsed.client_id)
    except ClientError as error:
        say(f"no stack: {error}")
        return None
    return stack_in(body)


def stack_in(body: bytes) -> str | None:
    """The stacks in the answer of a consumer; None without any. Raises CommandFailed."""
    from aerobee.protocol.bodies.common import parse_body, text_member
    from aerobee.protocol.errors import BadRequest

    try:
        return text_member(parse_body(body, "running info"), "jstack", "") or None
    except BadRequest as error:
        raise CommandFailed(f"the answer of the client cannot be read: {error.remark}") from error


def _print(shown: ClientDescription) -> None:
    print_table(_COLUMNS, [_row(one) for one in shown.connections])
    if shown.subscriptions:
        show("")
    print_table(
        ("group", "topic", "subscription"),
        [(one.group, one.topic, one.subscription) for one in shown.subscriptions],
    )
    if shown.queues:
        show("")
    print_table(
        ("broker", "group", "topic", "queue", "holds", "offset", "since"),
        [
            (
                *(one.broker, one.group, one.topic, one.queue, one.kind, one.offset),
                time_text(one.since_timestamp_ms or 0),
            )
            for one in shown.queues
        ],
    )
    if left_out := shown.queues_left_out + shown.subscriptions_left_out:
        say(f"{left_out} more subscriptions and queues are not shown")
    if shown.stack is not None:
        show("", *shown.stack.splitlines())
