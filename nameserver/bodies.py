"""Bodies that the name server reads and writes (protocol/WIRE.md 4.5, 5.2, 5.3).

Registrations come from our broker, from Java's and from others: JSON in fastjson's dialect, or the
compressed form, which is inflated within a bound. Their entries are checked one after the other, so
that a topic without sense does not keep a broker from registering.

Answers are standard JSON with sorted members and quoted numeric keys, which clients of every
generation read (4.1).
"""

from __future__ import annotations

import json
import logging
import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from aerobee.nameserver.routes import BrokerGroup, QueueData
from aerobee.protocol.bodies.topics import DataVersion
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.fastjson import JsonError, loads

log = logging.getLogger("aerobee.nameserver")

MAX_NAME_CHARS = 255
MAX_FILTER_SERVERS = 100
_MAX_QUEUES = 65_536
_PERM_ALL = 15
# Eight values a topic; the table of topics is bounded by RouteLimits afterwards.
_MAX_VALUES = 4_000_000
# A version has three numbers.
_MAX_VERSION_BYTES = 1024
_LENGTH = struct.Struct(">i")


class RegistrationBody(NamedTuple):
    """Body of REGISTER_BROKER; its topics are still unread (`read_topics`)."""

    data_version: DataVersion
    topics: Mapping[str, Any]
    filter_servers: tuple[str, ...]


NO_BODY = RegistrationBody(DataVersion(), {}, ())


def read_registration(
    body: bytes, *, compressed: bool, max_inflated_bytes: int
) -> RegistrationBody:
    """The body of REGISTER_BROKER. Raises `BadRequest` (code 1) when it cannot be read."""
    if not body:
        return NO_BODY
    try:
        if compressed:
            return _read_compressed(_inflate(body, max_inflated_bytes))
        return _read_plain(_object(loads(body, _MAX_VALUES)))
    except (JsonError, ValueError, struct.error) as error:
        raise BadRequest.system_error(f"the registration body cannot be read: {error}") from error


def read_data_version(body: bytes) -> DataVersion:
    """The body of QUERY_DATA_VERSION. Raises `BadRequest` (code 1)."""
    if len(body) > _MAX_VERSION_BYTES:
        raise BadRequest.system_error(
            f"the data version has {len(body)} bytes, limit {_MAX_VERSION_BYTES}"
        )
    try:
        return _version(loads(body)) if body else DataVersion()
    except (JsonError, ValueError) as error:
        raise BadRequest.system_error(f"the data version cannot be read: {error}") from error


def read_topics(topics: Mapping[str, Any]) -> dict[str, QueueData]:
    """Queues by topic. Entries that are no topics are left out, and the log says how many."""
    found: dict[str, QueueData] = {}
    for name, value in topics.items():
        data = _queue_data(value)
        if data is not None and is_plain_name(name):
            found[name] = data
    if len(found) < len(topics):
        log.warning("topics left out of a registration count=%d", len(topics) - len(found))
    return found


def is_plain_name(text: str) -> bool:
    """Whether a name fits tables and logs: not blank, not long, nothing unprintable."""
    return 0 < len(text) <= MAX_NAME_CHARS and text.isprintable() and not text.isspace()


def encode(value: Any) -> bytes:
    """Standard JSON, members sorted. Keys must be str, and no member None."""
    return msgspec.json.encode(value, order="sorted")


def route_body(
    queues: Mapping[str, QueueData],
    groups: Iterable[BrokerGroup],
    filter_servers: Mapping[str, list[str]],
    order_conf: str | None,
) -> bytes:
    """Answer of GET_ROUTEINFO_BY_TOPIC."""
    route: dict[str, Any] = {
        "brokerDatas": [_broker_json(group) for group in groups],
        "filterServerTable": filter_servers,
        "queueDatas": [
            {
                "brokerName": name,
                "perm": data.perm,
                "readQueueNums": data.read_queues,
                "topicSysFlag": data.sys_flag,
                "writeQueueNums": data.write_queues,
            }
            for name, data in sorted(queues.items())
        ],
    }
    if order_conf:
        route["orderTopicConf"] = order_conf
    return encode(route)


def cluster_body(groups: Mapping[str, BrokerGroup], clusters: Mapping[str, set[str]]) -> bytes:
    """Answer of GET_BROKER_CLUSTER_INFO."""
    return encode(
        {
            "brokerAddrTable": {name: _broker_json(group) for name, group in groups.items()},
            "clusterAddrTable": {name: sorted(names) for name, names in clusters.items()},
        }
    )


def topic_list_body(topics: Iterable[str], broker_address: str | None = None) -> bytes:
    """Answer of the requests that list names; in the answer to 304 a broker's address is added."""
    shown: dict[str, Any] = {"topicList": list(topics)}
    if broker_address:
        shown["brokerAddr"] = broker_address
    return encode(shown)


def kv_body(table: Mapping[str, str]) -> bytes:
    """A KV table, e.g. the order topics in the answer to a registration."""
    return encode({"table": table})


def _broker_json(group: BrokerGroup) -> dict[str, Any]:
    return {
        "brokerAddrs": {str(number): address for number, address in group.addresses.items()},
        "brokerName": group.name,
        "cluster": group.cluster,
        # 4.9 does not know it, but rocketmq-client-rust 1.0.0 refuses a route without it.
        "enableActingMaster": False,
    }


def _read_plain(document: Mapping[str, Any]) -> RegistrationBody:
    # Brokers before 3.0.11 send the bare topic wrapper.
    wrapper = _object(document.get("topicConfigSerializeWrapper") or document)
    servers = document.get("filterServerList") or []
    return RegistrationBody(
        _version(wrapper.get("dataVersion")),
        _object(wrapper.get("topicConfigTable") or {}),
        _filter_servers(servers),
    )


def _read_compressed(data: bytes) -> RegistrationBody:
    version, position = _block(data, 0)
    (count,) = _LENGTH.unpack_from(data, position)
    position += _LENGTH.size
    topics: dict[str, Any] = {}
    for _ in range(count):
        text, position = _block(data, position)
        # Five words; brokers of 5.x may have attributes after them.
        words = text.decode("utf-8").split(" ", 5)
        if len(words) < 5:
            raise ValueError(f"a topic of {len(words)} words")
        name, read_queues, write_queues, perm = words[:4]
        topics[name] = {"readQueueNums": read_queues, "writeQueueNums": write_queues, "perm": perm}
    servers, _ = _block(data, position)
    return RegistrationBody(_version(loads(version)), topics, _filter_servers(loads(servers)))


def _block(data: bytes, position: int) -> tuple[bytes, int]:
    (length,) = _LENGTH.unpack_from(data, position)
    start = position + _LENGTH.size
    end = start + length
    if length < 0 or end > len(data):
        raise ValueError(f"a block of {length} bytes, {len(data) - start} are left")
    return data[start:end], end


def _inflate(body: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(body, limit)
    except zlib.error as error:
        raise ValueError(f"not a zlib stream ({error})") from error
    if not stream.eof:
        reason = f"inflates to more than {limit} bytes" if stream.unconsumed_tail else "is cut off"
        raise ValueError(f"the compressed body {reason}")
    return data


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"an object is expected, not {type(value).__name__}")
    return value


def _version(value: Any) -> DataVersion:
    if not value:
        return DataVersion()
    shown = _object(value)
    return DataVersion(
        _int(shown.get("timestamp")), _int(shown.get("counter")), _int(shown.get("stateVersion"))
    )


def _int(value: Any, default: int = 0) -> int:
    if value is None:
        return default
    if not isinstance(value, int | str):
        raise ValueError(f"a whole number is expected, not {json.dumps(value)[:40]}")
    return int(value)


def _filter_servers(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(t for t in value if isinstance(t, str) and is_plain_name(t))[:MAX_FILTER_SERVERS]


def _queue_data(value: Any) -> QueueData | None:
    """Queues of a topic, with RocketMQ's defaults; None when they make no sense."""
    if not isinstance(value, dict):
        return None
    try:
        data = QueueData(
            _int(value.get("readQueueNums"), 16),
            _int(value.get("writeQueueNums"), 16),
            _int(value.get("perm"), 6),
            _int(value.get("topicSysFlag")),
        )
    except ValueError:
        return None
    queues_fit = 0 <= data.read_queues <= _MAX_QUEUES and 0 <= data.write_queues <= _MAX_QUEUES
    return data if queues_fit and 0 <= data.perm <= _PERM_ALL else None
