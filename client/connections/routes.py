"""The routes of one client's topics: asked of name servers, remembered, refreshed.

Name servers know everything alike, so one is asked until it fails, then the next. A topic that no
name server knows may still be sent to: the route of the template topic (TBW102) is assumed, and the
broker makes the topic with the first message. Refreshing replaces the assumption by the real route;
what a refresh cannot learn stays as it was, since the brokers may well be up.

protocol/WIRE.md 5.3 says which queues of a route a client may use: a producer uses only brokers
that have a master and the write right, a consumer every broker with the read right; an order
topic's queues are those its configuration names. Both lists come out sorted, which the average
assignment depends on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from aerobee.client.connections.background import TaskOwner, wait_shared
from aerobee.client.connections.pool import ConnectionPool
from aerobee.client.errors import (
    ClientError,
    ConnectFailed,
    NetworkError,
    NoNameServer,
    NoRoute,
    peer_error,
    reading,
    wrong_peer,
)
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.routes import MASTER_ID, PERM_READ, PERM_WRITE, BrokerRoute, TopicRoute
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.names import is_retry_topic

log = logging.getLogger(__name__)

MakeCommand = Callable[[RequestCode, dict[str, str]], Command]


class RouteCache:
    """Routes by topic, and the brokers they mention by name."""

    def __init__(
        self,
        pool: ConnectionPool,
        tasks: TaskOwner,
        name_servers: Sequence[str],
        timeout_s: float,
        make_command: MakeCommand,
        *,
        next_after_s: float | None = None,
    ) -> None:
        """With `next_after_s` the next name server is asked as well when one has not answered for
        so long; without, when its time is over."""
        assert name_servers
        self._pool = pool
        self._tasks = tasks
        self._name_servers = list(name_servers)
        self._timeout_s = timeout_s
        self._make_command = make_command
        self._routes: dict[str, TopicRoute] = {}
        self._write_queues: dict[str, list[MessageQueue]] = {}
        self._brokers: dict[str, BrokerRoute] = {}
        self._asking: dict[str, asyncio.Task[TopicRoute]] = {}
        self._next_after_s = next_after_s
        # With `next_after_s`: the questions that are under way, by name server.
        self._under_way: dict[asyncio.Task[Command], str] = {}
        #: The name servers that did not answer, with the reasons; with `next_after_s` only.
        self.unanswered: dict[str, NetworkError] = {}

    async def ask_name_server(self, code: RequestCode, ext: dict[str, str]) -> Command:
        """The answer of the first name server that gives one.

        Its code is not judged, except for that of a peer which is no name server: RequestRefused.
        """
        if self._next_after_s is not None:
            return await self._ask_in_a_hurry(code, ext, self._next_after_s)
        failure: NetworkError | None = None
        several = len(self._name_servers) > 1
        for address in tuple(self._name_servers):
            try:
                answer = await self._pool.call(
                    address, self._make_command(code, ext), self._timeout_s
                )
            except NetworkError as error:
                failure = error
                # The error that is raised says it all where there is a single one.
                if several:
                    log.warning("name server failed address=%s error=%s", address, error)
                # The next call starts with another server: do not wait for a dead server each time.
                if self._name_servers[0] == address:
                    self._name_servers.append(self._name_servers.pop(0))
                continue
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise wrong_peer(address, answer, asked="name server", found="broker")
            return answer
        assert failure is not None
        raise _no_name_server(failure)

    async def _ask_in_a_hurry(
        self, code: RequestCode, ext: dict[str, str], next_after_s: float
    ) -> Command:
        """The first answer. Servers that are silent, or have been, are not waited for while others
        are left."""
        busy = {*self._under_way.values(), *self.unanswered}
        left = [one for one in self._name_servers if one not in busy] or list(self._name_servers)
        mine: dict[asyncio.Task[Command], str] = {}
        failure: NetworkError | None = None
        while left or mine:
            if left:
                address = left.pop(0)
                mine[self._ask_one(address, code, ext)] = address
            done, _ = await asyncio.wait(
                mine, timeout=next_after_s if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                address = mine.pop(task)
                error = task.exception()
                if isinstance(error, NetworkError):
                    failure = error
                    continue
                answer = task.result()
                # The next question goes to this one first.
                self._name_servers.remove(address)
                self._name_servers.insert(0, address)
                if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise wrong_peer(address, answer, asked="name server", found="broker")
                return answer
        assert failure is not None
        raise _no_name_server(failure)

    def _ask_one(
        self, address: str, code: RequestCode, ext: dict[str, str]
    ) -> asyncio.Task[Command]:
        asking = self._pool.call(address, self._make_command(code, ext), self._timeout_s)
        task = self._tasks.spawn(asking, f"name server {address}", expected=ClientError)
        self._under_way[task] = address
        task.add_done_callback(self._answered)
        return task

    def _answered(self, task: asyncio.Task[Command]) -> None:
        address = self._under_way.pop(task)
        if not task.cancelled() and isinstance(error := task.exception(), NetworkError):
            self.unanswered.setdefault(address, error)

    async def settle(self) -> None:
        """Wait until the questions under way are answered, or their time is over."""
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def route(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        """The route of a topic, from the cache unless `refresh`; NoRoute or NetworkError."""
        known = self._routes.get(topic)
        if known is not None and not refresh:
            return known
        asking = self._asking.get(topic)
        if asking is None:
            asking = self._tasks.spawn(
                self._ask_route(topic), f"route {topic}", expected=ClientError
            )
            self._asking[topic] = asking
        return await wait_shared(asking)

    async def _ask_route(self, topic: str) -> TopicRoute:
        try:
            answer = await self.ask_name_server(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}
            )
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                raise NoRoute(
                    f"no name server knows topic {topic!r}: {answer.remark}",
                    code=answer.code,
                    remark=answer.remark,
                )
            if answer.code != ResponseCode.SUCCESS:
                raise peer_error(self._name_servers[0], answer)
            with reading(self._name_servers[0]):
                route = TopicRoute.parse(answer.body)
            self._remember(topic, route)
            return route
        finally:
            del self._asking[topic]

    def _remember(self, topic: str, route: TopicRoute) -> None:
        if self._routes.get(topic) == route:
            return
        names = ",".join(sorted(broker.name for broker in route.brokers))
        log.info("route topic=%s brokers=%s", topic, names or "none")
        self._routes[topic] = route
        self._write_queues[topic] = write_queues(topic, route)
        self._brokers = brokers_by_name(self._routes)

    def clusters(self, topic: str) -> list[str]:
        """The clusters whose brokers have a topic, as far as its route is known."""
        route = self._routes.get(topic)
        return sorted({broker.cluster for broker in route.brokers}) if route is not None else []

    def write_queues_nowait(self, topic: str) -> list[MessageQueue] | None:
        """The cached queues to send to, or None when the topic must be looked up first."""
        return self._write_queues.get(topic) or None

    async def write_queues(self, topic: str, template: str, queues: int) -> list[MessageQueue]:
        """The queues to send to; NoRoute without any, even by way of the template topic."""
        known = self._write_queues.get(topic)
        if known:
            return known
        try:
            await self.route(topic, refresh=True)
        except NoRoute as missing:
            await self._assume_template(topic, template, queues, missing)
        found = self._write_queues[topic]
        if not found:
            raise NoRoute(f"no broker of topic {topic!r} has a master and the write permission")
        return found

    async def _assume_template(
        self, topic: str, template: str, queues: int, missing: NoRoute
    ) -> None:
        try:
            known = await self.route(template, refresh=True)
        except NoRoute:
            raise missing from None  # the topic is the news, not the template
        self._remember(topic, route_by_template(known, queues))

    async def read_queues(self, topic: str, *, refresh: bool = False) -> list[MessageQueue]:
        """The queues to read from, sorted; NoRoute when the topic is unknown."""
        return read_queues(topic, await self.route(topic, refresh=refresh))

    async def refresh(self, topics: Sequence[str]) -> bool:
        """Ask again for these topics; what cannot be learnt now stays as it was. True when a broker
        that had one of them is missing now."""
        missing = False
        for topic in topics:
            before = self._routes.get(topic)
            try:
                after = await self.route(topic, refresh=True)
                missing |= before is not None and not _names(before) <= _names(after)
            except ClientError as error:
                # A retry topic appears in the routes a moment after the group's first heartbeat.
                level = logging.DEBUG if is_retry_topic(topic) else logging.WARNING
                log.log(level, "route not refreshed topic=%s error=%s", topic, error)
        return missing

    def brokers(self) -> dict[str, BrokerRoute]:
        """Every broker mentioned by a cached route, by name."""
        return self._brokers

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """The address of one broker, or None when no cached route mentions it."""
        broker = self._brokers.get(broker_name)
        return None if broker is None else broker.addresses.get(broker_id)

    def readable_address(self, broker_name: str, preferred_id: int) -> str | None:
        """The preferred broker's address, else any under that name (a slave serves reads)."""
        broker = self._brokers.get(broker_name)
        if broker is None or not broker.addresses:
            return None
        addresses = broker.addresses
        return addresses.get(preferred_id) or addresses[min(addresses)]


def _no_name_server(failure: NetworkError) -> NetworkError:
    """The error when no name server has answered; `failure` is the last."""
    return NoNameServer(str(failure)) if type(failure) is ConnectFailed else failure


def _names(route: TopicRoute) -> set[str]:
    return {broker.name for broker in route.brokers}


def write_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """The queues a producer may send to, sorted."""
    if route.order_conf:
        return sorted(
            MessageQueue(topic, name, number)
            for name, count in route.ordered_queues()
            for number in range(count)
        )
    with_master = {broker.name for broker in route.brokers if MASTER_ID in broker.addresses}
    return sorted(
        MessageQueue(topic, span.broker_name, number)
        for span in route.queues
        if span.perm & PERM_WRITE and span.broker_name in with_master
        for number in range(span.write_queues)
    )


def read_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """The queues a consumer may read from, sorted; a slave alone is enough."""
    return sorted(
        MessageQueue(topic, span.broker_name, number)
        for span in route.queues
        if span.perm & PERM_READ
        for number in range(span.read_queues)
    )


def route_by_template(template: TopicRoute, queues: int) -> TopicRoute:
    """The route to assume for a topic that its first message will make (protocol/WIRE.md 5.3)."""
    spans = []
    for span in template.queues:
        count = min(queues, span.read_queues)
        spans.append(replace(span, read_queues=count, write_queues=count))
    return TopicRoute(tuple(spans), template.brokers)


def brokers_by_name(routes: dict[str, TopicRoute]) -> dict[str, BrokerRoute]:
    """Every broker that one of these routes mentions."""
    return {broker.name: broker for route in routes.values() for broker in route.brokers}
