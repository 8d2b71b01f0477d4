"""Drains brokers: ours by a request of our own, RocketMQ's by taking their rights at name servers.

The functions take the session of an `Admin` that is started, and belong to its loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from aerobee.client.connections.session import Session
from aerobee.client.errors import ClientError, NoRoute, reading
from aerobee.protocol.bodies.common import parse_kv_table
from aerobee.protocol.bodies.drain import DrainStatus
from aerobee.protocol.bodies.routes import PERM_WRITE
from aerobee.protocol.bodies.topics import parse_topic_table
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.headers.admin import (
    AddWritePermResponse,
    BrokerNameHeader,
    DrainHeader,
    WipeWritePermResponse,
)

# Routes that are asked for at the same time.
_AT_ONCE: Final = 32
_KNOWN_OR_NOT: Final = (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


async def ask_drain(
    session: Session, address: str, action: str = "", *, everything: bool = False
) -> DrainStatus | None:
    """Begin a drain, undo it, or look without an action; the state after that. None for a broker
    that does not know the request: RocketMQ's do not. Raises ClientError."""
    code = RequestCode.DRAIN if action else RequestCode.DRAIN_STATUS
    ext = DrainHeader(action=action, everything=everything).to_ext() if action else {}
    answer = await session.call(address, code, ext, accept=_KNOWN_OR_NOT)
    if answer.code != ResponseCode.SUCCESS:
        return None
    with reading(address):
        return DrainStatus.parse(answer.body)


async def writable_topics(session: Session, address: str) -> list[str]:
    """The topics of a broker that producers may send to, system topics among them. Raises
    ClientError."""
    answer = await session.call(address, RequestCode.GET_ALL_TOPIC_CONFIG)
    with reading(address):
        topics = parse_topic_table(answer.body).topics.values()
        return [topic.name for topic in topics if topic.perm & PERM_WRITE]


async def other_takers(
    session: Session, topics: Sequence[str], broker: str
) -> dict[str, frozenset[str]]:
    """The names of the brokers other than this one to which producers may send, by topic, as a name
    server says now. Raises ClientError."""
    found: dict[str, frozenset[str]] = {}
    for start in range(0, len(topics), _AT_ONCE):
        names = topics[start : start + _AT_ONCE]
        routes = await asyncio.gather(*(_writable_at(session, name) for name in names))
        found |= {name: frozenset(at - {broker}) for name, at in zip(names, routes, strict=True)}
    return found


async def _writable_at(session: Session, topic: str) -> set[str]:
    try:
        return (await session.routes.route(topic, refresh=True)).writable_at()
    except NoRoute:
        return set()


async def set_write_right(
    session: Session, broker: str, *, allowed: bool
) -> dict[str, int | ClientError]:
    """Take or give the right to write in all topics of a broker at each name server, as RocketMQ's
    tools do: how many topics that were, or why it was not done, by name server. It holds until the
    broker registers a change of its topics."""
    done: dict[str, int | ClientError] = {}
    for address in session.name_servers:
        try:
            done[address] = await _set_write_right(session, address, broker, allowed=allowed)
        except ClientError as error:
            done[address] = error
    return done


async def _set_write_right(session: Session, address: str, broker: str, *, allowed: bool) -> int:
    ext = BrokerNameHeader(broker).to_ext()
    if allowed:
        answer = await session.call(address, RequestCode.ADD_WRITE_PERM_OF_BROKER, ext)
        with reading(address):
            return AddWritePermResponse.from_ext(answer.ext).add_topic_count
    answer = await session.call(address, RequestCode.WIPE_WRITE_PERM_OF_BROKER, ext)
    with reading(address):
        return WipeWritePermResponse.from_ext(answer.ext).wipe_topic_count


async def count_stored(session: Session, address: str) -> int | None:
    """How many messages a broker has stored since its start; None where it does not say. Raises
    ClientError."""
    answer = await session.call(address, RequestCode.GET_BROKER_RUNTIME_INFO)
    with reading(address):
        text = parse_kv_table(answer.body).get("putMessageTimesTotal", "")
        return int(text) if text.isdecimal() else None
