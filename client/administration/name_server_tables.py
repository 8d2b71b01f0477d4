"""Asks one name server for what it tells clients, so that several can be compared.

`Admin` asks whichever name server answers first; these ask the server that is named.
"""

from __future__ import annotations

from aerobee.client.connections.session import Session
from aerobee.client.errors import reading
from aerobee.protocol.bodies.common import parse_topic_list
from aerobee.protocol.bodies.routes import ClusterInfo, TopicRoute
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.headers.admin import TopicHeader

_FOUND_OR_NOT = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)


async def cluster_at(session: Session, name_server: str) -> ClusterInfo:
    """The brokers that this name server knows. Raises ClientError."""
    answer = await session.call(name_server, RequestCode.GET_BROKER_CLUSTER_INFO)
    with reading(name_server):
        return ClusterInfo.parse(answer.body)


async def topics_at(session: Session, name_server: str) -> frozenset[str]:
    """The names of the topics that this name server knows. Raises ClientError."""
    answer = await session.call(name_server, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    with reading(name_server):
        return frozenset(parse_topic_list(answer.body))


async def route_at(session: Session, name_server: str, topic: str) -> TopicRoute | None:
    """The route that this name server tells, None if it does not know the topic. Raises
    ClientError."""
    answer = await session.call(
        name_server,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        TopicHeader(topic).to_ext(),
        accept=_FOUND_OR_NOT,
    )
    if answer.code != ResponseCode.SUCCESS:
        return None
    with reading(name_server):
        return TopicRoute.parse(answer.body)
