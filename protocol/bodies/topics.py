"""Topics and the topic tables of brokers (protocol/WIRE.md 4.5)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from aerobee.protocol.bodies.common import (
    as_object,
    bool_member,
    int_member,
    long_member,
    object_member,
    parse_body,
    text_member,
)
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.names import check_topic_name, is_valid_topic_name

SINGLE_TAG = "SINGLE_TAG"
MULTI_TAG = "MULTI_TAG"
#: Bits of topicSysFlag (protocol/WIRE.md 6.5): a topic of a unit, and a topic that units subscribe
#: to.
UNIT = 1
UNIT_SUB = 2
MAX_TOPICS = 200_000
# Each topic is an object of seven members.
_MAX_VALUES = 2_000_000


class DataVersion(NamedTuple):
    """The version of a table of topics or groups, which brokers, name servers and slaves compare
    (protocol/WIRE.md 4.5, store/FORMAT.md 11.2): time of the last change in ms, and how many
    changes there were. Equal only when all parts are; only 5.x has a state version.
    """

    timestamp_ms: int = 0
    counter: int = 0
    state_version: int = 0

    @classmethod
    def from_json(cls, value: Any) -> "DataVersion":
        """A missing one is 0/0; BadRequest (code 1) for nonsense."""
        if value is None:
            return cls()
        members = as_object(value, "data version")
        return cls(
            long_member(members, "timestamp", 0),
            long_member(members, "counter", 0),
            long_member(members, "stateVersion", 0),
        )

    def to_json(self) -> dict[str, int]:
        """The form that brokers and name servers write."""
        shown = {"counter": self.counter, "timestamp": self.timestamp_ms}
        if self.state_version:
            shown["stateVersion"] = self.state_version
        return shown


class TopicConfig(msgspec.Struct, frozen=True, gc=False):
    """One topic of a broker; defaults are those of missing members."""

    name: str
    read_queues: int = 16
    write_queues: int = 16
    perm: int = 6
    filter_type: str = SINGLE_TAG
    sys_flag: int = 0
    order: bool = False

    @classmethod
    def from_json(cls, name: str, value: Any) -> "TopicConfig":
        """BadRequest (code 1) for an illegal name, a number that cannot be read, or queues out of
        range."""
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

    def to_json(self) -> dict[str, Any]:
        """The form of the file and of the wire, keys in ascending order."""
        return {
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicFilterType": self.filter_type,
            "topicName": self.name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }


def _bounded(topic: TopicConfig) -> TopicConfig:
    # 65,535 queues is far beyond any use and keeps a client's queue list within a frame.
    if not (0 <= topic.read_queues <= 0xFFFF and 0 <= topic.write_queues <= 0xFFFF):
        raise BadRequest.system_error(f"the topic {topic.name} has an impossible number of queues")
    return topic


class TopicTableData(msgspec.Struct, frozen=True):
    """A topic table with its version (answer to 21).

    The topics that a broker has of its own name and its cluster's are left out where these are no
    legal names of topics, such as a host's name with dots: nobody may send to them.
    """

    version: DataVersion
    topics: dict[str, TopicConfig]

    @classmethod
    def from_json(cls, members: Mapping[str, Any]) -> "TopicTableData":
        """BadRequest (code 1) names what is wrong or too much."""
        table = object_member(members, "topicConfigTable")
        if len(table) > MAX_TOPICS:
            raise BadRequest.system_error(f"{len(table)} topics, limit {MAX_TOPICS}")
        return cls(
            DataVersion.from_json(members.get("dataVersion")),
            {
                name: TopicConfig.from_json(name, value)
                for name, value in table.items()
                if is_valid_topic_name(name)
            },
        )


def parse_topic_table(body: bytes) -> TopicTableData:
    """The answer to GET_ALL_TOPIC_CONFIG."""
    return TopicTableData.from_json(parse_body(body, "topic table", _MAX_VALUES))
