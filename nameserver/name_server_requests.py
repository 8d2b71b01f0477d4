"""The handlers of the requests to a name server (protocol/WIRE.md 5.1). Pure: no sockets, no files.

A table leads from the request code to a plain function. `owner` is the connection a request came
on; it is only kept and compared, so that a broker goes when its connection does.

Intended differences from the reference:
- an unknown code is answered with code 3; 4.9.8 stays silent and the caller waits for its time-out;
- 318 (change configuration from afar) is always refused: no remote request may name a
  path or a host here (docs/reliability.md 8);
- 104 takes only the address that holds the broker id;
- the remark of a missing route (17) says which of the causes it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any, NamedTuple

from aerobee.nameserver.bodies import (
    RegistrationBody,
    cluster_body,
    encode,
    is_plain_name,
    kv_body,
    read_data_version,
    read_registration,
    read_topics,
    route_body,
    topic_list_body,
)
from aerobee.nameserver.kv import ORDER_TOPIC_NAMESPACE, KvTable
from aerobee.nameserver.routes import QueueData, Registration, RouteLimitReached, RouteTable
from aerobee.protocol.bodies.topics import UNIT, UNIT_SUB, DataVersion
from aerobee.protocol.checksum import body_crc
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_response, encode_success
from aerobee.protocol.headers.admin import (
    AddWritePermResponse,
    BrokerIdentityHeader,
    BrokerNameHeader,
    ClusterHeader,
    DeleteTopicHeader,
    KvHeader,
    KvNamespaceHeader,
    KvValueResponse,
    PutKvHeader,
    QueryDataVersionResponse,
    RegisterBrokerHeader,
    RegisterBrokerResponse,
    RouteHeader,
    UnregisterBrokerHeader,
    WipeWritePermResponse,
)
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.connections.serving import Answer
from aerobee.remoting.turns import Gate, Steps

log = logging.getLogger("aerobee.nameserver")

# Bodies above this are read by a worker. A compressed body may hold a thousand times as much.
_LARGE_REGISTRATION = 2 * 1024
_LARGE_COMPRESSED = 256


class RequestOptions(NamedTuple):
    """Options that answers depend on, besides the tables."""

    # Give clients the order configuration with a route (`orderMessageEnable`, off upstream).
    order_messages: bool = False
    max_inflated_bytes: int = 32 * 1024 * 1024
    # Settings that GET_NAMESRV_CONFIG shows; never a path or a secret.
    shown: Mapping[str, str] | None = None


class _ReadBody(NamedTuple):
    """A registration's body, and its topics as the table of routes takes them."""

    body: RegistrationBody
    topics: dict[str, QueueData]


def _is_large(command: Command) -> bool:
    compressed = command.ext.get("compressed", "").lower() == "true"
    return len(command.body) > (_LARGE_COMPRESSED if compressed else _LARGE_REGISTRATION)


def _refused(command: Command, error: BadRequest | RouteLimitReached) -> bytes:
    if isinstance(error, BadRequest):
        return encode_response(command, error.code, error.remark)
    log.warning("registration refused why=%s", error)
    return encode_response(command, ResponseCode.SYSTEM_ERROR, str(error))


class Requests:
    """Serves a name server's requests from its two tables. Loop thread only."""

    def __init__(
        self, routes: RouteTable, kv: KvTable, options: RequestOptions | None = None
    ) -> None:
        self._routes = routes
        self._kv = kv
        self._options = options or RequestOptions()
        # The body, after the number of changes of the KV table that it belongs to.
        self._order_body = (-1, b"")
        # A body may become a hundred megabytes of objects; docs/limits.md counts a single one.
        self._large_registrations = Gate(1)
        self._handlers: dict[int, Callable[[object, Command], bytes | Steps]] = {
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._kv_namespace,
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: partial(self._set_write_perm, False),
            RequestCode.ADD_WRITE_PERM_OF_BROKER: partial(self._set_write_perm, True),
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._all_topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: partial(self._topics_with_flags, UNIT, 0),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: partial(self._topics_with_flags, UNIT_SUB, 0),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: partial(
                self._topics_with_flags, UNIT_SUB, UNIT
            ),
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
            RequestCode.GET_NAMESRV_CONFIG: self._get_config,
        }

    def handles(self, code: int) -> bool:
        """Whether a name server answers this request code."""
        return code in self._handlers

    def changes_kv(self, code: int) -> bool:
        """Whether a request of this code may change the KV table."""
        return code in (RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG)

    def handle(self, owner: object, command: Command) -> Answer:
        """The encoded answer, or None to a oneway request. A large registration, and a request that
        reads many topics, returns the steps to its answer. Bad input never raises."""
        if command.code == RequestCode.REGISTER_BROKER and _is_large(command):
            return self._register_large(owner, command)
        answer: bytes | Steps
        try:
            answer = self.change(owner, command)
        except (BadRequest, RouteLimitReached) as error:
            answer = _refused(command, error)
        return None if command.is_oneway and isinstance(answer, bytes) else answer

    def change(self, owner: object, command: Command) -> bytes | Steps:
        """The answer, also to a oneway request, or the steps to it. Raises BadRequest, and
        RouteLimitReached."""
        handler = self._handlers.get(command.code)
        if handler is None:
            raise BadRequest(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {command.code} not supported",
            )
        return handler(owner, command)

    # --- brokers

    def _register(self, owner: object, command: Command) -> bytes:
        header = self._registration_header(command)
        read = self._read_registration(command, header, self._known_version(header))
        master = self._routes.register(_registration(owner, header, read))
        return self._registered(command, master)

    def _register_large(self, owner: object, command: Command) -> Steps:
        """Like `_register`, but a worker reads the body: the body may hold many thousand topics.
        Large registrations are read one at a time, in the order in which they came."""
        yield from self._large_registrations.enter()
        try:
            answer = yield from self._registered_in_steps(owner, command)
        except (BadRequest, RouteLimitReached) as error:
            answer = _refused(command, error)
        finally:
            self._large_registrations.leave()
        return None if command.is_oneway else answer

    def _registered_in_steps(
        self, owner: object, command: Command
    ) -> Generator[asyncio.Future[Any] | None, None, bytes | None]:
        header = self._registration_header(command)
        loop = asyncio.get_running_loop()
        known = self._known_version(header)
        if isinstance(owner, Connection) and owner.closed:
            return None  # the broker has gone while others were read
        reading = loop.run_in_executor(None, self._read_registration, command, header, known)
        yield reading
        registration = _registration(owner, header, reading.result())
        yield from self._routes.check_room(registration)
        if isinstance(owner, Connection) and owner.closed:
            return None  # and nobody would notice any more
        master = yield from self._routes.register_in_steps(registration)
        return self._registered(command, master)

    def _registration_header(self, command: Command) -> RegisterBrokerHeader:
        header = RegisterBrokerHeader.from_ext(command.ext)
        _check_names(
            brokerName=header.broker_name,
            brokerAddr=header.broker_addr,
            clusterName=header.cluster_name,
        )
        return header

    def _read_registration(
        self, command: Command, header: RegisterBrokerHeader, known: DataVersion | None
    ) -> _ReadBody:
        """Read the body, and its topics unless the topics of its version are known already. Any
        thread; raises `BadRequest`."""
        if header.body_crc32 and body_crc(command.body) != header.body_crc32:
            raise BadRequest.system_error("crc32 not match")
        body = read_registration(
            command.body,
            compressed=header.compressed,
            max_inflated_bytes=self._options.max_inflated_bytes,
        )
        # An unchanged table is not even read: a registration comes every 30 s with every topic.
        return _ReadBody(body, {} if known == body.data_version else read_topics(body.topics))

    def _registered(self, command: Command, master: Registration | None) -> bytes:
        answer = RegisterBrokerResponse()
        if master is not None:
            answer = RegisterBrokerResponse(master.ha_address, master.address)
        return encode_success(command, self._order_topics(), answer.to_ext())

    def _order_topics(self) -> bytes:
        """The body of answers to registrations, made once for each state of the table."""
        known, body = self._order_body
        if known != self._kv.changes:
            topics = self._kv.namespace(ORDER_TOPIC_NAMESPACE)
            body = b"" if topics is None else kv_body(topics)
            self._order_body = (self._kv.changes, body)
        return body

    def _unregister(self, _owner: object, command: Command) -> Steps:
        header = UnregisterBrokerHeader.from_ext(command.ext)
        leave = self._routes.leave_for_restart if header.returns else self._routes.unregister
        leave(header.broker_name, header.broker_id, header.broker_addr)
        return self._unregistered(header.broker_name, command)

    def _unregistered(self, name: str, command: Command) -> Steps:
        yield from self._routes.finish_changes(name)
        return encode_success(command)

    def _query_data_version(self, _owner: object, command: Command) -> bytes:
        header = BrokerIdentityHeader.from_ext(command.ext)
        known = self._known_version(header)
        changed = known is None or known != read_data_version(command.body)
        if not changed:
            self._routes.renew(header.broker_addr)
        body = b"" if known is None else encode(known.to_json())
        return encode_success(command, body, QueryDataVersionResponse(changed).to_ext())

    def _known_version(
        self, header: RegisterBrokerHeader | BrokerIdentityHeader
    ) -> DataVersion | None:
        return self._routes.known_version(header.broker_name, header.broker_id, header.broker_addr)

    def _set_write_perm(self, allowed: bool, _owner: object, command: Command) -> Steps:
        name = BrokerNameHeader.from_ext(command.ext).broker_name
        return self._write_perm_set(allowed, name, command)

    def _write_perm_set(self, allowed: bool, name: str, command: Command) -> Steps:
        # A change that another request has begun is finished first.
        yield from self._routes.finish_changes(name)
        count = self._routes.set_write_perm(name, allowed)
        yield from self._routes.finish_changes(name)
        done = "given" if allowed else "taken"
        log.info("write permission %s broker=%r topics=%d", done, name, count)
        answer = AddWritePermResponse(count) if allowed else WipeWritePermResponse(count)
        return encode_success(command, ext=answer.to_ext())

    # --- routes and lists

    def _route(self, _owner: object, command: Command) -> bytes:
        topic = RouteHeader.from_ext(command.ext).topic
        routes = self._routes
        found = routes.find(topic)
        if found is None:
            raise BadRequest(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {topic[:255]} "
                f"({routes.why_missing(topic)})",
            )
        queues, groups = found
        order_conf = None
        if self._options.order_messages:
            order_conf = self._kv.get(ORDER_TOPIC_NAMESPACE, topic)
        body = route_body(queues, groups, routes.filter_servers(groups), order_conf)
        return encode_success(command, body)

    def _cluster_info(self, _owner: object, command: Command) -> bytes:
        return encode_success(command, cluster_body(self._routes.groups, self._routes.clusters))

    def _all_topics(self, _owner: object, command: Command) -> bytes:
        return encode_success(command, topic_list_body(self._routes.topics))

    def _topics_by_cluster(self, _owner: object, command: Command) -> Steps:
        cluster = ClusterHeader.from_ext(command.ext).cluster
        return _listed(command, self._routes.topics_of_cluster(cluster))

    def _system_topics(self, _owner: object, command: Command) -> bytes:
        routes = self._routes
        names = dict.fromkeys((*routes.clusters, *routes.groups))
        return encode_success(command, topic_list_body(names, routes.any_address()))

    def _topics_with_flags(
        self, having: int, lacking: int, _owner: object, command: Command
    ) -> Steps:
        return _listed(command, self._routes.topics_with_flags(having, lacking))

    def _delete_topic(self, _owner: object, command: Command) -> bytes:
        header = DeleteTopicHeader.from_ext(command.ext)
        self._routes.delete_topic(header.topic, header.cluster_name or None)
        log.info("topic deleted name=%r cluster=%r", header.topic, header.cluster_name)
        return encode_success(command)

    # --- key-value configuration

    def _put_kv(self, _owner: object, command: Command) -> bytes:
        header = PutKvHeader.from_ext(command.ext)
        self._kv.put(header.namespace, header.key, header.value)
        return encode_success(command)

    def _get_kv(self, _owner: object, command: Command) -> bytes:
        header = KvHeader.from_ext(command.ext)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            raise BadRequest(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return encode_success(command, ext=KvValueResponse(value).to_ext())

    def _delete_kv(self, _owner: object, command: Command) -> bytes:
        header = KvHeader.from_ext(command.ext)
        self._kv.delete(header.namespace, header.key)
        return encode_success(command)

    def _kv_namespace(self, _owner: object, command: Command) -> bytes:
        namespace = KvNamespaceHeader.from_ext(command.ext).namespace
        table = self._kv.namespace(namespace)
        if table is None:
            raise BadRequest(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}"
            )
        return encode_success(command, kv_body(table))

    # --- the name server's own configuration

    def _update_config(self, _owner: object, _command: Command) -> bytes:
        raise BadRequest.no_permission(
            "the configuration of a name server cannot be changed by a request; change it where "
            "the name server is started"
        )

    def _get_config(self, _owner: object, command: Command) -> bytes:
        shown = self._options.shown or {}
        text = "".join(f"{key}={value}\n" for key, value in sorted(shown.items()))
        return encode_success(command, text.encode())


def _check_names(**names: str) -> None:
    for field, text in names.items():
        if not is_plain_name(text):
            raise BadRequest.system_error(
                f"the field {field} must be 1 to 255 printable characters"
            )


def _listed(command: Command, topics: Generator[None, None, list[str]]) -> Steps:
    found = yield from topics
    return encode_success(command, topic_list_body(found))


def _registration(owner: object, header: RegisterBrokerHeader, read: _ReadBody) -> Registration:
    body, topics = read
    return Registration(
        cluster=header.cluster_name,
        name=header.broker_name,
        broker_id=header.broker_id,
        address=header.broker_addr,
        ha_address=header.ha_server_addr,
        data_version=body.data_version,
        topics=topics,
        filter_servers=body.filter_servers,
        owner=owner,
    )
