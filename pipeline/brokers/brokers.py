"""Name servers and brokers as one blocking program sees them: routes, connections, requests.

Used by the driver for planning and by each executor's task for its range. One connection for each
peer, made when first needed. Several requests to one broker are sent ahead of their answers.

Brokers move, restart and are busy: a request that got no answer is asked again, along the route as
the name servers then know it, until TIMEOUTS_MAX times the time-out of one request has passed. Name
servers that never answered are an error at once: the address is probably wrong. So is a topic that
they do not know. A task tries for longer (`expected`): whoever planned it has met both.

One thread at a time. Close it, or use it as a context manager.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple, Self, TypeVar

from aerobee.pipeline.brokers.broker_options import Access
from aerobee.pipeline.brokers.offsets import Queue
from aerobee.pipeline.errors import BadData, NoSuchTopic, Refused, Unreachable, no_name_server
from aerobee.protocol.bodies.common import parse_topic_list
from aerobee.protocol.bodies.routes import MASTER_ID, PERM_READ, TopicRoute
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest, ProtocolError
from aerobee.protocol.frames.command import Command, make_request
from aerobee.protocol.names import check_topic_name
from aerobee.remoting.calling.blocking_caller import BlockingCaller
from aerobee.remoting.errors import RemotingError

T = TypeVar("T")

log = logging.getLogger("aerobee.pipeline")

#: Time-outs of one request that may pass before a peer counts as unreachable.
TIMEOUTS_MAX: Final = 10
# Requests on their way to one broker at the same time.
_AHEAD = 64
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
BUSY: Final = frozenset(
    {ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL}
)
_SUCCESS: Final = frozenset({int(ResponseCode.SUCCESS)})


class QueueRequest(NamedTuple):
    """A request about a queue, to be asked of the broker that has it."""

    queue: Queue
    code: RequestCode
    ext: dict[str, str]


class Retries:
    """Retries with backoff: `wait` pauses, longer each time, and gives up at the limit.

    The time counts from the first failure after a success.
    """

    def __init__(self, timeout_s: float) -> None:
        self._limit_s = TIMEOUTS_MAX * timeout_s
        self.restart()

    def restart(self) -> None:
        """Something worked."""
        self._since: float | None = None
        self._pause_s = _FIRST_PAUSE_S

    def wait(self, error: Exception) -> None:
        """Pause before another try; Unreachable with the reason when there have been enough."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if now - self._since + self._pause_s > self._limit_s:
            raise Unreachable(f"gave up after {self._limit_s:g} s: {error}") from error
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


class BrokerBusy(RemotingError):
    """The broker asks to come back later."""


class Brokers:
    """The cluster behind some name servers."""

    def __init__(self, access: Access, *, expected: bool = False) -> None:
        self._access = access
        self._expected = expected
        self._name_servers = list(access.name_servers)
        self._has_answered = expected
        self._callers: dict[str, BlockingCaller] = {}
        self._routes: dict[str, TopicRoute] = {}
        self._addresses: dict[str, dict[int, str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; it may be used again afterwards."""
        for caller in self._callers.values():
            caller.close()
        self._callers.clear()

    def retries(self) -> Retries:
        """A new series of retries that fits the time-out."""
        return Retries(self._access.manner.timeout_s)

    # --- name servers -----------------------------------------------------------------------

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        answer = self._call_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
        return sorted(_parsed(answer, parse_topic_list))

    def queues(self, topic: str, *, refresh: bool = False) -> list[Queue]:
        """The readable queues of a topic, sorted. NoSuchTopic when no name server knows it."""
        route = self._routes.get(topic)
        if route is None or refresh:
            try:
                route = self._fetch_route(topic)
            except NoSuchTopic as error:
                raise NoSuchTopic(f"{error}; {_advice(topic)}") from error
        return sorted(
            Queue(topic, span.broker_name, number)
            for span in route.queues
            if span.perm & PERM_READ
            for number in range(span.read_queues)
        )

    def _fetch_route(self, topic: str) -> TopicRoute:
        answer = self._call_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise NoSuchTopic(f"no name server knows topic {topic!r}")
        route = _parsed(answer, TopicRoute.parse)
        self._routes[topic] = route
        for broker in route.brokers:
            self._addresses[broker.name] = broker.addresses
        return route

    def _fetch_expected_route(self, topic: str) -> None:
        """A broker that was killed is forgotten by its name servers, and its topics, until it is
        back: for a task that is as if it did not answer."""
        try:
            self._fetch_route(topic)
        except NoSuchTopic as error:
            if self._expected:
                raise RemotingError(f"{error} at the moment") from error
            raise

    def _call_name_server(self, code: RequestCode, ext: dict[str, str]) -> Command:
        failure: RemotingError | None = None
        for address in tuple(self._name_servers):
            try:
                answer = self._caller(address).call(make_request(code, ext))
            except RemotingError as error:
                failure = error
                log.warning("name server failed address=%s error=%s", address, error)
                self._name_servers.append(self._name_servers.pop(0))
                continue
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise Refused(
                    f"option nameServer: {address} is no name server, it answers as a broker does; "
                    "a name server's port is 9876 mostly"
                )
            self._has_answered = True
            return answer
        assert failure is not None
        if self._has_answered:
            raise failure
        names = ", ".join(self._access.name_servers)
        raise Unreachable(no_name_server(names, failure)) from failure

    # --- brokers ----------------------------------------------------------------------------

    def call(self, request: QueueRequest, accept: Collection[int] = _SUCCESS) -> Command:
        """The answer to one request; as `call_each`."""
        return self.call_each([request], accept)[0]

    def call_each(
        self, requests: Sequence[QueueRequest], accept: Collection[int] = _SUCCESS
    ) -> list[Command]:
        """The answers in the order of the requests.

        Raises Unreachable, and Refused for an answer whose code is not in `accept`.
        """
        answers: dict[int, Command] = {}
        retries = self.retries()
        while len(answers) < len(requests):
            left = [number for number in range(len(requests)) if number not in answers]
            try:
                self._call_left(requests, left, answers, accept)
                retries.restart()
            except RemotingError as error:
                retries.wait(error)
                self.refresh_route(requests[left[0]].queue.topic)
        return [answers[number] for number in range(len(requests))]

    def _call_left(
        self,
        requests: Sequence[QueueRequest],
        left: Sequence[int],
        answers: dict[int, Command],
        accept: Collection[int],
    ) -> None:
        by_address: dict[str, list[int]] = {}
        for number in left:
            by_address.setdefault(self.address(requests[number].queue), []).append(number)
        for address, numbers in by_address.items():
            caller = self._caller(address)
            for first in range(0, len(numbers), _AHEAD):
                part = numbers[first : first + _AHEAD]
                opaques = {
                    caller.send(make_request(requests[number].code, requests[number].ext)): number
                    for number in part
                }
                while opaques:
                    answer = caller.receive()
                    answered = opaques.pop(answer.opaque, None)
                    if answered is not None:
                        check(address, answer, accept)
                        answers[answered] = answer

    def refresh_route(self, topic: str) -> None:
        """Ask the name servers where a topic is now; routes that they do not answer stay as they
        were."""
        try:
            self._fetch_route(topic)
        except (RemotingError, NoSuchTopic) as error:
            log.warning("route not refreshed topic=%s error=%s", topic, error)

    def address(self, queue: Queue) -> str:
        """The address of the master that has a queue; without a master, of a slave."""
        addresses = self._addresses.get(queue.broker)
        if not addresses:
            self._fetch_expected_route(queue.topic)
            addresses = self._addresses.get(queue.broker)
        if not addresses:
            raise RemotingError(f"no route mentions the broker of {queue}")
        return addresses.get(MASTER_ID) or addresses[min(addresses)]

    def caller(self, queue: Queue) -> BlockingCaller:
        """A connection with the broker of a queue. Raises RemotingError."""
        return self._caller(self.address(queue))

    def _caller(self, address: str) -> BlockingCaller:
        caller = self._callers.get(address)
        if caller is None or caller.closed:
            caller = self._callers[address] = BlockingCaller(address, self._access.manner)
        return caller


def _advice(topic: str) -> str:
    """The remedy for a topic that is missing: make it, if a topic can have that name."""
    try:
        check_topic_name(topic)
    except BadRequest as error:
        return f"no topic can have that name: {error.remark}"
    return f"'aerobee topic list' shows them, 'aerobee topic create {topic}' makes it"


def _parsed(answer: Command, parse: Callable[[bytes], T]) -> T:
    check("the name server", answer, _SUCCESS)
    try:
        return parse(answer.body)
    except ProtocolError as error:
        raise BadData(f"a name server's answer cannot be read: {error}") from error


def check(address: str, answer: Command, accept: Collection[int]) -> None:
    """Refused, or BrokerBusy, unless the answer's code is one of those."""
    if answer.code in accept:
        return
    try:
        name = ResponseCode(answer.code).name
    except ValueError:
        name = "unknown code"
    text = f"{address} answered {answer.code} {name}: {answer.remark or 'no remark'}"
    if answer.code in BUSY:
        raise BrokerBusy(text)
    raise Refused(" ".join(text.split()))
