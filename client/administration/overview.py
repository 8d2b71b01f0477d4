"""How brokers are and who is connected: asked of ours by requests of our own, of Java's by those
that RocketMQ 4.9 has.

An answer that a broker cannot give is None, and `Told.why_not` says why: it is RocketMQ's, or it
wants an administrator's account or port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, TypeVar

from aerobee.client.admin import Admin
from aerobee.client.errors import ClientError, NetworkError, PeerError, reading
from aerobee.protocol.bodies.broker_status import BrokerStatus, ClientList
from aerobee.protocol.bodies.routes import ClusterInfo, TopicRoute
from aerobee.protocol.bodies.statistics import ConnectionData, parse_connections
from aerobee.protocol.bodies.topics import TopicConfig, parse_topic_table
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.headers.admin import BrokerStatusHeader, ClientsHeader

T = TypeVar("T")

NOT_OURS: Final = "RocketMQ's brokers do not tell"
# A broker of RocketMQ's does not know the request; one of ours does not take it here.
_TOLD_OR_NOT: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    ResponseCode.NO_PERMISSION,
)
# "Nobody is online" has different codes for consumers and producers.
_MEMBERS_OR_NOT: Final = (
    *_TOLD_OR_NOT,
    ResponseCode.CONSUMER_NOT_ONLINE,
    ResponseCode.SYSTEM_ERROR,
)


class Place(NamedTuple):
    """A broker that a name server knows."""

    name: str
    broker_id: int
    address: str
    cluster: str


class NameServerView(NamedTuple):
    """The answer of a name server; `error` is why it has not come."""

    address: str
    info: ClusterInfo | None
    error: ClientError | None = None

    @property
    def places(self) -> list[Place]:
        """The brokers that it knows."""
        brokers = {} if self.info is None else self.info.brokers
        return [
            Place(name, broker_id, address, one.cluster)
            for name, one in brokers.items()
            for broker_id, address in one.addresses.items()
        ]


class RouteView(NamedTuple):
    """The route of a topic at one name server: None and its remark where it has none, None and the
    error where it does not answer."""

    address: str
    route: TopicRoute | None
    remark: str = ""
    error: ClientError | None = None


class Told(NamedTuple):
    """The answer of a broker about itself."""

    place: Place
    #: A broker of ours gives this.
    status: BrokerStatus | None = None
    #: Others give the runtime table, and their settings where they tell them.
    runtime: dict[str, str] | None = None
    settings: dict[str, str] | None = None
    why_not: str = ""
    error: ClientError | None = None


async def ask_all(
    admin: Admin, ask: Callable[[Place], Awaitable[T]]
) -> tuple[list[NameServerView], list[T]]:
    """Return what each name server knows, and what `ask` returns for each broker that they know,
    sorted by broker. Brokers are asked as soon as the first name server has named them, so that a
    silent name server and a silent broker cost one time-out together."""
    found: dict[Place, T | None] = {}

    async def look(address: str) -> NameServerView:
        view = await _view(admin, address)
        new = [place for place in view.places if place not in found]
        found.update(dict.fromkeys(new))
        found.update(zip(new, await asyncio.gather(*map(ask, new)), strict=True))
        return view

    views = await asyncio.gather(*map(look, admin.name_servers))
    answers = [answer for _, answer in sorted(found.items(), key=lambda item: item[0])]
    return list(views), [answer for answer in answers if answer is not None]


async def _view(admin: Admin, address: str) -> NameServerView:
    try:
        answer = await admin.ask(address, RequestCode.GET_BROKER_CLUSTER_INFO)
        with reading(address):
            return NameServerView(address, ClusterInfo.parse(answer.body))
    except ClientError as error:
        return NameServerView(address, None, error)


async def route_views(admin: Admin, topic: str) -> list[RouteView]:
    """The route of a topic at each name server."""
    accept = ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC

    async def view(address: str) -> RouteView:
        try:
            answer = await admin.ask(address, code, {"topic": topic}, accept=accept)
            if answer.code != ResponseCode.SUCCESS:
                return RouteView(address, None, answer.remark or "")
            with reading(address):
                return RouteView(address, TopicRoute.parse(answer.body))
        except ClientError as error:
            return RouteView(address, None, error=error)

    return list(await asyncio.gather(*map(view, admin.name_servers)))


async def ask_status(
    admin: Admin, place: Place, ports: Mapping[str, str], topic: str | None = None
) -> Told:
    """Ask a broker about itself, and about a topic. `ports` are those for administrators, by the
    brokers' names."""
    asked = _administered(place, ports)
    ext = BrokerStatusHeader(topic).to_ext()
    try:
        answer = await admin.ask(asked, RequestCode.BROKER_STATUS, ext, accept=_TOLD_OR_NOT)
        if answer.code == ResponseCode.SUCCESS:
            with reading(asked):
                return Told(place, BrokerStatus.parse(answer.body))
        runtime = await _runtime(admin, place.address)
        settings = await _settings(admin, asked)
        return Told(place, runtime=runtime, settings=settings, why_not=_why_not(answer))
    except ClientError as error:
        return Told(place, error=error)


async def _runtime(admin: Admin, address: str) -> dict[str, str] | None:
    """The runtime table; None from a broker of RocketMQ's that has not measured itself yet, which
    fails at the request."""
    try:
        return await admin.runtime_info(address)
    except PeerError:
        return None


async def _settings(admin: Admin, address: str) -> dict[str, str] | None:
    try:
        return await admin.settings_at(address)
    except PeerError:
        return None


def _why_not(answer: Command) -> str:
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return NOT_OURS
    return f"it tells administrators alone ({answer.remark or 'no permission'})"


def _administered(place: Place, ports: Mapping[str, str]) -> str:
    return ports.get(place.name, place.address) if place.broker_id == 0 else place.address


class Listed(NamedTuple):
    """The clients of one broker; None, and `why_not` or `error`, where it does not tell."""

    place: Place
    clients: ClientList | None = None
    why_not: str = ""
    error: ClientError | None = None


async def ask_clients(
    admin: Admin, place: Place, ports: Mapping[str, str], header: ClientsHeader
) -> Listed:
    """The connections of a broker that `header` asks for."""
    address = _administered(place, ports)
    ext = header.to_ext()
    try:
        answer = await admin.ask(address, RequestCode.CLIENTS, ext, accept=_TOLD_OR_NOT)
        if answer.code != ResponseCode.SUCCESS:
            return Listed(place, why_not=_why_not(answer))
        with reading(address):
            return Listed(place, ClientList.parse(answer.body))
    except ClientError as error:
        return Listed(place, error=error)


class GroupMembers(NamedTuple):
    """The members of a group at one broker, by RocketMQ's requests; empty lists for nobody."""

    place: Place
    group: str
    producers: list[ConnectionData]
    consumers: list[ConnectionData]


async def members_at(admin: Admin, place: Place, group: str) -> GroupMembers | None:
    """The producers and consumers of a group at a broker; None if it does not answer."""

    async def ask(code: RequestCode, field: str) -> list[ConnectionData]:
        answer = await admin.ask(place.address, code, {field: group}, accept=_MEMBERS_OR_NOT)
        if answer.code != ResponseCode.SUCCESS:
            return []
        with reading(place.address):
            return parse_connections(answer.body)

    try:
        producers, consumers = await asyncio.gather(
            ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, "producerGroup"),
            ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, "consumerGroup"),
        )
    except NetworkError:
        return None
    return GroupMembers(place, group, producers, consumers)


async def running_info(admin: Admin, address: str, group: str, client_id: str) -> bytes:
    """The answer of a consumer about itself with the stacks of its threads, as JSON, through the
    broker at this address."""
    ext = {"consumerGroup": group, "clientId": client_id, "jstackEnable": "true"}
    answer = await admin.ask(address, RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
    return answer.body


async def topic_table(admin: Admin, place: Place) -> dict[str, TopicConfig]:
    """All topics of a broker with their settings, by name. Raises ClientError."""
    answer = await admin.ask(place.address, RequestCode.GET_ALL_TOPIC_CONFIG)
    with reading(place.address):
        return dict(parse_topic_table(answer.body).topics)
