"""Topic tables and what brokers register with a name server (protocol/WIRE.md 4.5, 5.2).

A registration's body is JSON, or, when its header says `compressed`, one zlib stream of a compact
form: data version length i32, data version JSON; topic count i32; for each topic length i32 and
`name read write perm filterType`; filter server list length i32, JSON array. The compact form loses
topicSysFlag and order. Inflating is bounded: a small body must not become all memory.

Registrations of brokers older than version 37 carry the bare topic table.
"""

import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from aerobee.protocol.bodies.common import (
    as_object,
    bool_member,
    dumps,
    int_member,
    list_member,
    long_member,
    object_member,
    parse_body,
    text_list,
    text_member,
)
from aerobee.protocol.checksum import body_crc
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.names import check_topic_name

SINGLE_TAG = "SINGLE_TAG"
MULTI_TAG = "MULTI_TAG"
MAX_INFLATED_BYTES = 32 * 1024 * 1024
MAX_TOPICS = 200_000
_MAX_FILTER_SERVERS = 1_000
# Each topic is an object of seven members.
_MAX_VALUES = 2_000_000
_LENGTH = struct.Struct(">i")


class VersionStamp(NamedTuple):
    """The stamp of a table: equal only when all parts are. Only 5.x sends a state version."""

    timestamp_ms: int = 0
    counter: int = 0
    state_version: int = 0

    def json_members(self) -> Mapping[str, Any]:
        """Its JSON form; a state version of 0 is left out, as 4.x brokers know none."""
        return {
            "counter": self.counter,
            "stateVersion": self.state_version or None,
            "timestamp": self.timestamp_ms,
        }

    @classmethod
    def from_json(cls, value: Any) -> "VersionStamp":
        """A missing one is 0/0; BadRequest (code 1) for nonsense."""
        if value is None:
            return cls()
        members = as_object(value, "data version")
        return cls(
            long_member(members, "timestamp", 0),
            long_member(members, "counter", 0),
            long_member(members, "stateVersion", 0),
        )


class TopicData(msgspec.Struct, frozen=True):
    """A topic's configuration as it travels; defaults are those of missing members."""

    name: str
    read_queues: int = 16
    write_queues: int = 16
    perm: int = 6
    filter_type: str = SINGLE_TAG
    sys_flag: int = 0
    order: bool = False

    def json_members(self) -> Mapping[str, Any]:
        """Its JSON form in a topic table."""
        return {
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicFilterType": self.filter_type,
            "topicName": self.name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }

    @classmethod
    def from_json(cls, name: str, value: Any) -> "TopicData":
        """BadRequest (code 1) for an illegal name, a number that is none or queues out of range."""
        members = as_object(value, f"topic {name[:127]!r}")
        return _bounded(
            cls(
                check_topic_name(name),
                int_member(members, "readQueueNums", 16),
                int_member(members, "writeQueueNums", 16),
                int_member(members, "perm", 6),
                text_member(members, "topicFilterType", SINGLE_TAG),
                int_member(members, "topicSysFlag", 0),
                bool_member(members, "order", False),
            )
        )


def _bounded(topic: TopicData) -> TopicData:
    # 65,535 queues is far beyond any use and keeps a client's queue list within a frame.
    if not (0 <= topic.read_queues <= 0xFFFF and 0 <= topic.write_queues <= 0xFFFF):
        raise BadRequest.system_error(f"the topic {topic.name} has an impossible number of queues")
    return topic


class TopicTableData(msgspec.Struct, frozen=True):
    """A topic table with its stamp (answer to 21, part of a registration)."""

    version: VersionStamp
    topics: dict[str, TopicData]

    @classmethod
    def from_json(cls, members: Mapping[str, Any]) -> "TopicTableData":
        """BadRequest (code 1) names what is wrong or too much."""
        table = object_member(members, "topicConfigTable")
        if len(table) > MAX_TOPICS:
            raise BadRequest.system_error(f"{len(table)} topics, limit {MAX_TOPICS}")
        return cls(
            VersionStamp.from_json(members.get("dataVersion")),
            {name: TopicData.from_json(name, value) for name, value in table.items()},
        )

    def json_members(self) -> Mapping[str, Any]:
        """Its JSON form."""
        return {"dataVersion": self.version, "topicConfigTable": self.topics}


def parse_topic_table(body: bytes) -> TopicTableData:
    """The answer to GET_ALL_TOPIC_CONFIG."""
    return TopicTableData.from_json(parse_body(body, "topic table", _MAX_VALUES))


class RegistrationBody(msgspec.Struct, frozen=True):
    """What a broker registers: its topics and filter servers."""

    table: TopicTableData
    filter_servers: tuple[str, ...] = ()

    @classmethod
    def parse(
        cls, body: bytes, *, compressed: bool = False, crc32: int = 0, peer_version: int = 409
    ) -> "RegistrationBody":
        """BadRequest (code 1) names what is wrong; `crc32` 0 is not checked.

        A missing body is an empty table with stamp 0/0.
        """
        if crc32 and body_crc(body) != crc32:
            raise BadRequest.system_error("crc32 not match")
        if not body:
            return cls(TopicTableData(VersionStamp(), {}))
        if compressed:
            return _parse_compact(_inflate(body))
        members = parse_body(body, "registration", _MAX_VALUES)
        if peer_version < 37:
            return cls(TopicTableData.from_json(members))
        servers = list_member(members, "filterServerList", _MAX_FILTER_SERVERS)
        return cls(
            TopicTableData.from_json(object_member(members, "topicConfigSerializeWrapper")),
            tuple(text_list(servers, "filterServerList")),
        )

    def encode(self, *, compressed: bool = False) -> bytes:
        """The body as sent; its CRC (`body_crc`) goes into the header."""
        if compressed:
            return zlib.compress(self._compact(), 9)
        return dumps(
            {"filterServerList": self.filter_servers, "topicConfigSerializeWrapper": self.table}
        )

    def _compact(self) -> bytes:
        topics = self.table.topics.values()
        parts = [_with_length(dumps(self.table.version)), _LENGTH.pack(len(topics))]
        for topic in topics:
            words = (topic.name, topic.read_queues, topic.write_queues, topic.perm)
            parts.append(_with_length(f"{' '.join(map(str, words))} {topic.filter_type}".encode()))
        parts.append(_with_length(dumps(self.filter_servers)))
        return b"".join(parts)


def _with_length(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _inflate(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, MAX_INFLATED_BYTES)
    except zlib.error as error:
        raise BadRequest.system_error(f"the registration cannot be inflated: {error}") from error
    if not inflater.eof:
        # Either it goes on beyond the bound or it was cut off.
        raise BadRequest.system_error(
            f"the registration is cut off or larger than {MAX_INFLATED_BYTES} bytes"
        )
    return data


class _Cursor:
    """Takes counted pieces off a text of bytes, never more than there are."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self) -> int:
        end = self._position + 4
        if end > len(self._data):
            raise BadRequest.system_error("the registration ends too early")
        (number,) = _LENGTH.unpack_from(self._data, self._position)
        self._position = end
        return int(number)

    def piece(self) -> bytes:
        length = self.number()
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise BadRequest.system_error(f"the registration claims a piece of {length} bytes")
        piece = self._data[self._position : end]
        self._position = end
        return piece


def _parse_compact(data: bytes) -> RegistrationBody:
    cursor = _Cursor(data)
    version = VersionStamp.from_json(parse_body(cursor.piece(), "data version"))
    count = cursor.number()
    if not 0 <= count <= MAX_TOPICS:
        raise BadRequest.system_error(f"{count} topics, limit {MAX_TOPICS}")
    topics = {}
    for _ in range(count):
        topic = _compact_topic(cursor.piece())
        topics[topic.name] = topic
    servers = parse_body(b'{"list":' + (cursor.piece() or b"[]") + b"}", "filter server list")
    filter_servers = text_list(list_member(servers, "list", _MAX_FILTER_SERVERS), "filterServers")
    return RegistrationBody(TopicTableData(version, topics), tuple(filter_servers))


def _compact_topic(piece: bytes) -> TopicData:
    words = piece.decode("utf-8", "replace").split(" ")
    if len(words) != 5:
        raise BadRequest.system_error("a topic of the registration is not five words")
    name, read_queues, write_queues, perm, filter_type = words
    numbers = {"read": read_queues, "write": write_queues, "perm": perm}
    return _bounded(
        TopicData(
            check_topic_name(name),
            int_member(numbers, "read"),
            int_member(numbers, "write"),
            int_member(numbers, "perm"),
            filter_type,
        )
    )


def topic_table(version: VersionStamp, topics: Iterable[TopicData]) -> TopicTableData:
    """A table of some topics."""
    return TopicTableData(version, {topic.name: topic for topic in topics})
