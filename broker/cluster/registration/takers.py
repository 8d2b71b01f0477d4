"""Asks a name server which topics other brokers take: where producers go when this broker leaves.

Another broker takes a topic when the topic's route names a master of another name whose queues may
be written. Routes are asked for one by one, some at a time, as clients ask: a name server has no
request for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from aerobee.broker.cluster.registration.namesake import NameServer, ask_brokers
from aerobee.protocol.bodies.routes import TopicRoute, masters
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import ProtocolError
from aerobee.protocol.frames.command import Command, make_request

# Routes that are asked for at once: their answers are read within a slice of the loop's turn.
_AT_ONCE: Final = 32
_ASK_S: Final = 1.0


async def find_taken(name_server: NameServer, own: str, topics: Sequence[str]) -> frozenset[str]:
    """Those of `topics` that a broker of another name than `own` takes. Raises RemotingError."""
    brokers = await ask_brokers(name_server)
    if not masters(brokers.values()).keys() - {own}:
        return frozenset()
    taken = set()
    for start in range(0, len(topics), _AT_ONCE):
        names = topics[start : start + _AT_ONCE]
        answers = await asyncio.gather(*(_ask_route(name_server, name) for name in names))
        for name, route in zip(names, answers, strict=True):
            if route is not None and route.writable_at() - {own}:
                taken.add(name)
    return frozenset(taken)


async def _ask_route(name_server: NameServer, topic: str) -> TopicRoute | None:
    request = make_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    return _read(await name_server.call(request, _ASK_S))


def _read(answer: Command) -> TopicRoute | None:
    if answer.code != ResponseCode.SUCCESS:
        return None
    try:
        return TopicRoute.parse(answer.body)
    except ProtocolError:
        return None
