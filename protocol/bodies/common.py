"""JSON bodies: what all of them share, and the small ones (protocol/WIRE.md 4).

Bodies of one subject have a module each: clients (heartbeats, locks), topics (topic tables), routes
(routes, clusters), stats (statistics, connections). Reading is strict about types and bounds and
deaf to members it does not know; what is wrong is answered with code 1 and the member's name.
Writing goes through `dumps`: sorted members, nulls dropped, queues as map keys written as real
objects.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.fastjson import JsonError, dumps, loads

# Requests are small; these bound what one may cost: some 20 ms in either reader. What is written by
# fastjson and not standard JSON has object keys: tables of queues, of five values each.
MAX_REQUEST_VALUES = 100_000
MAX_DIALECT_VALUES = 10_000
#: A body up to this size is read in some 2 ms, whatever is in it.
SMALL_BODY = 2048
# A table of all queues of a topic, which clients read.
_MAX_OFFSET_VALUES = 1_000_000
_I32_MAX = 2**31 - 1
_I64_MAX = 2**63 - 1


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker; sorts by topic, broker, number, as RocketMQ's own."""

    topic: str
    broker_name: str
    queue_id: int

    def json_members(self) -> Mapping[str, Any]:
        """Its JSON form, in a map key's place too."""
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}

    @classmethod
    def from_json(cls, value: Any) -> "MessageQueue":
        """BadRequest (code 1) unless `value` is such an object."""
        members = as_object(value, "queue")
        return cls(
            text_member(members, "topic"),
            text_member(members, "brokerName", ""),
            int_member(members, "queueId"),
        )

    @classmethod
    def from_key(cls, key: str) -> "MessageQueue":
        """The queue that a map key, as `loads` gives it, stands for."""
        return cls.from_json(parse_body(key.encode(), "queue"))


def parse_body(body: bytes, what: str, max_values: int = MAX_REQUEST_VALUES) -> dict[str, Any]:
    """The object in a body; BadRequest (code 1) when the body is missing, broken or something else.

    `what` names the body in the answer. Of more values than requests have, whoever reads it sees
    to it that nobody waits: on a worker, or in a client.
    """
    if not body:
        raise BadRequest.system_error(f"the {what} has no body")
    is_request = max_values <= MAX_REQUEST_VALUES
    try:
        value = loads(body, max_values, dialect_values=MAX_DIALECT_VALUES if is_request else None)
    except JsonError as error:
        raise BadRequest.system_error(f"the {what} cannot be read: {error}") from error
    return as_object(value, what)


def as_object(value: Any, what: str) -> dict[str, Any]:
    """`value` if it is an object, else BadRequest (code 1)."""
    if not isinstance(value, dict):
        raise BadRequest.system_error(f"the {what} is not an object")
    return value


def text_member(members: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A text; a missing or null one is `default`, or BadRequest without one."""
    value = members.get(name)
    if value is None:
        if default is None:
            raise BadRequest.system_error(f"the member {name} is missing")
        return default
    if isinstance(value, str):
        return value
    raise BadRequest.system_error(f"the member {name} must be a text")


def int_member(
    members: Mapping[str, Any], name: str, default: int | None = None, highest: int = _I32_MAX
) -> int:
    """A whole number within 32 bits (or `-highest - 1` to `highest`), as text too."""
    value = members.get(name)
    if value is None or value == "":
        if default is None:
            raise BadRequest.system_error(f"the member {name} is missing")
        return default
    try:
        number = int(value)
    except (ValueError, TypeError, OverflowError):
        raise BadRequest.system_error(f"the member {name} must be a number") from None
    if not -highest - 1 <= number <= highest:
        raise BadRequest.system_error(f"the member {name} is out of range")
    return number


def long_member(members: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A whole number within 64 bits."""
    return int_member(members, name, default, _I64_MAX)


def bool_member(members: Mapping[str, Any], name: str, default: bool) -> bool:
    """A boolean; texts and numbers count as fastjson counts them."""
    value = members.get(name)
    if value is None or value == "":
        return default
    if isinstance(value, str):
        return value.lower() in ("true", "1", "y", "t")
    return bool(value)


def list_member(members: Mapping[str, Any], name: str, limit: int) -> list[Any]:
    """A list of at most `limit` elements; a missing or null one is empty."""
    value = members.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadRequest.system_error(f"the member {name} must be a list")
    if len(value) > limit:
        raise BadRequest.system_error(f"the member {name} has {len(value)} entries, limit {limit}")
    return value


def object_member(members: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object; a missing or null one is empty."""
    value = members.get(name)
    return {} if value is None else as_object(value, f"member {name}")


def text_list(values: Iterable[Any], what: str) -> list[str]:
    """`values` as texts; BadRequest when a value is no text."""
    texts = list(values)
    if not all(isinstance(text, str) for text in texts):
        raise BadRequest.system_error(f"the member {what} must hold texts")
    return texts


def encode_kv_table(table: Mapping[str, str]) -> bytes:
    """A table of texts (runtime info, KV configuration; protocol/WIRE.md 4.8)."""
    return dumps({"table": table})


def parse_kv_table(body: bytes) -> dict[str, str]:
    """The table in such a body; BadRequest when it holds no table."""
    table = object_member(parse_body(body, "table"), "table")
    return {key: value for key, value in table.items() if isinstance(value, str)}


def encode_topic_list(topics: Iterable[str], broker_address: str | None = None) -> bytes:
    """A list of topics; the broker address belongs to the answer to 304 alone (WIRE.md 5.1)."""
    return dumps({"brokerAddr": broker_address, "topicList": list(topics)})


def parse_topic_list(body: bytes) -> list[str]:
    """The topics in such a body; BadRequest when it holds no list of topics."""
    members = parse_body(body, "topic list", _I32_MAX)
    return text_list(list_member(members, "topicList", _I32_MAX), "topicList")


def encode_offset_table(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Offsets by queue, object keys (codes 220 and 222; protocol/WIRE.md 4.10)."""
    return dumps({"offsetTable": offsets})


def parse_offset_table(body: bytes) -> dict[MessageQueue, int]:
    """Reads either form of the table; BadRequest when the body holds neither."""
    members = parse_body(body, "offset table", _MAX_OFFSET_VALUES)
    table = members.get("offsetTable")
    if isinstance(table, list):
        return {MessageQueue.from_json(entry): long_member(entry, "offset") for entry in table}
    table = object_member(members, "offsetTable")
    return {MessageQueue.from_key(key): long_member(table, key) for key in table}
