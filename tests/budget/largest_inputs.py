"""The largest legal input of every request code, at a share of the limits that a broker has.

`Full` fills a daemon's tables up to that share of their limits and keeps what the inputs name;
`BROKER` and `NAME_SERVER` have for each code the requests that make most of it. A code that takes
nothing whose size a peer chooses has its plain request (`_plain`), and is measured beside full
tables all the same.
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from aerobee.broker.core import BrokerCore
from aerobee.broker.tables.clients import Heartbeat
from aerobee.broker.tables.groups import GroupConfig
from aerobee.nameserver.routes import QueueData, Registration
from aerobee.nameserver.server import NameServer
from aerobee.protocol.bodies.clients import ConsumerData, HeartbeatData
from aerobee.protocol.bodies.common import MAX_DIALECT_VALUES, MAX_REQUEST_VALUES
from aerobee.protocol.bodies.topics import SINGLE_TAG, DataVersion, TopicConfig
from aerobee.protocol.codes import RequestCode as Code
from aerobee.protocol.filters.property_filter import PropertyFilter
from aerobee.protocol.filters.sql_filter import compile_sql
from aerobee.protocol.filters.subscription import tag_subscription
from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.frame import MAX_ANSWER_BYTES
from aerobee.protocol.headers.log_ranges import MOST_PARTS, MOST_RANGE_BYTES
from aerobee.protocol.headers.replica_tables import TABLES
from aerobee.protocol.headers.stages import (
    Run,
    StagePart,
    chunk_crc,
    encode_chunk,
    encode_names,
    encode_parts,
)
from aerobee.protocol.message.batch import BatchItem, encode_batch
from aerobee.protocol.message.ids import offset_msg_id
from aerobee.protocol.message.recall import RecallHandle
from aerobee.protocol.message.record import StoreMessage
from aerobee.remoting.connections.connection import Connection
from aerobee.store.segments.results import PutResult
from tests.fuzz.seeds import BROKER_SEEDS, NAME_SERVER_SEEDS
from tests.fuzz.target import PIECE, Target
from tests.inline_loop import drive

KIB, MIB = 1 << 10, 1 << 20

#: Limits of the product: settings by name, and constants of the modules that keep them.
SETTINGS: dict[str, int] = {
    "max_topics": 20_000,
    "max_groups": 20_000,
    "max_queues": 200_000,
    "max_queues_per_topic": 1_024,
    "max_offsets": 500_000,
    "max_message_bytes": 4 * MIB,
    "max_request_bytes": 2 * MIB,
    "max_sql_chars": 8_192,
    "max_sql_nodes": 512,
    "sql_filter_bytes": 64 * MIB,
    "max_inflated_bytes": 16 * MIB,
    "max_kv_bytes": 8 * MIB,
    "connections": 10_000,
    "client_calls": 10_000,
    "client_calls_per_connection": 1_000,
    "held_pulls": 100_000,
    "query_max_messages": 64,
    "transfer_count_bulk": 32_768,
}
# The entries that fit one answer of 16 MiB, all producers or all progress, are fewer than the
# limits allow: 200,000 entries of clients, 500,000 offsets.
CLIENT_ENTRIES = 140_000
WIDE_GROUPS = 20
# Groups and subscriptions of a client, tags of a subscription.
LIST = 1_000
LOCKS = 20_000
PROPERTIES = 32_000
HEADER = 200 * KIB
KV_ENTRIES = 20_000
SETTINGS_BYTES = 64 * KIB
BROKERS, ROUTE_ENTRIES, TOPICS_OF_BROKER = 1_000, 200_000, 50_000

TOPIC, WIDE, ONE, GROUP, PRODUCERS = "Orders", "Wide", "One", "CG", "PG"
_UNIQUE = "A" * 255
_LATER = 9_223_372_036_854_775_807
#: The host that stored the messages.
HOST = bytes((127, 0, 0, 1, 0, 0, 0, 7))


class Request(NamedTuple):
    """A request, and the response code that a legal one gets."""

    code: int
    ext: dict[str, str]
    body: bytes = b""
    answer: int = 0


class Full:
    """A broker and a name server that are full, at `share` of their limits."""

    def __init__(self, target: Target, core: BrokerCore, server: NameServer, share: float) -> None:
        self.core = core
        self.server = server
        self._target = target
        self._share = share
        self._members = Members(self.most(MAX_ANSWER_BYTES))

    def most(self, limit: int) -> int:
        """The limit at this share."""
        return max(2, int(limit * self._share))

    async def fill(self) -> None:
        await self._fill_topics_and_groups()
        self._fill_queues()
        self._fill_offsets()
        self._fill_clients()
        self._fill_name_server()
        for topic in (TOPIC, *self.topics):
            self.core.stats.topic(topic)
        self.core._traffic.sample()
        await asyncio.sleep(0)

    async def _fill_topics_and_groups(self) -> None:
        topics, groups = self.core.topics, self.core.groups
        wide = self.most(SETTINGS["max_queues_per_topic"])
        self.topics = [f"T{number}" for number in range(self.most(18_000))]
        self.groups = [f"G{number}" for number in range(self.most(18_000))]
        for name, queues in [(TOPIC, 4), (WIDE, wide), ("Gone", 1), (ONE, 1)]:
            topics.update(TopicConfig(name, queues, queues, 6, SINGLE_TAG, 0, False))
        for name in self.topics:
            saved = topics.update(TopicConfig(name, 1, 1, 6, SINGLE_TAG, 0, False))
        for name in (GROUP, "Gone", *self.groups):
            made = self.core.groups.update(GroupConfig(name))
        await asyncio.gather(saved, made)
        del groups

    def put(self, topic: str, queue_id: int, body: bytes = b"x", key: str = "") -> int:
        """Store a message; where it is."""
        keys = (key,) if key else ()
        host = HOST
        text = f"KEYS\x01{key}\x02".encode() if key else b""
        message = StoreMessage(topic, queue_id, 0, 0, 1, host, host, 0, 0, body, text, 0, keys)
        return self.core.store.log.put(message).log_offset

    def _fill_queues(self) -> None:
        """Many messages in one queue, all with one key; one in each queue of the wide topic; queues
        of topics that are unknown."""
        body = b"x" * (self.most(SETTINGS["max_message_bytes"]) - KIB)
        self.large = self.put(TOPIC, 1, body)
        for _ in range(self.most(SETTINGS["transfer_count_bulk"])):
            self.put(TOPIC, 0, b"", "k1")
        for queue_id in range(self.most(SETTINGS["max_queues_per_topic"])):
            self.put(WIDE, queue_id)
        self.core.store.dispatch()
        # Undecided half messages, as large as they may be; one is to be committed, and so on.
        self.halves = [self._prepare(body) for _ in range(3)]

    def _prepare(self, body: bytes) -> PutResult:
        host = bytes((127, 0, 0, 1, 0, 0, 0, 7))
        pairs = "".join(f"{number:x}\x011\x02" for number in _many(self, PROPERTIES - 400, 7))
        text = f"PGROUP\x01{PRODUCERS}\x02{pairs}".encode()
        message = StoreMessage(TOPIC, 1, 0, 0, 1, host, host, 0, 0, body, text, 0, ())
        return self.core.transactions.prepare(message)

    def _fill_offsets(self) -> None:
        offsets = self.core.offsets
        # Without one, whether there is an answer depends on how much was sent since.
        offsets.commit(GROUP, TOPIC, 0, 0)
        for group in (GROUP, "Gone"):
            for topic in self.topics:
                offsets.commit(group, topic, 0, 0)
        wide = self.most(SETTINGS["max_queues_per_topic"])
        for group in self.groups:
            for topic in (ONE, "Gone"):
                offsets.commit(group, topic, 0, 0)
        for group in (GROUP, *self.groups[: WIDE_GROUPS - 1]):
            # The time of the last message is looked up where one was consumed: for one group.
            consumed = int(group == GROUP)
            for queue_id in range(wide):
                offsets.commit(group, WIDE, queue_id, consumed)

    def _fill_clients(self) -> None:
        """Connections that are all in one group of each kind, one of them in all groups."""
        beat = self.core.clients.heartbeat
        subscription = tag_subscription(TOPIC, "t1||t2", ("t1", "t2"), 1)
        joined = ConsumerData(GROUP, subscriptions=(subscription,))
        self.connections: list[Connection] = []
        for _ in range(self.most(SETTINGS["connections"])):
            heard = self._target.connect("broker", b"")
            heard.transport.written = Member(heard.connection, self._members)
            self.connections.append(heard.connection)
        for number, connection in enumerate(self.connections):
            data = HeartbeatData(f"client{number}", (PRODUCERS,), (joined,))
            drive(beat(Heartbeat(connection, "JAVA", 409, data)))
        all_groups = tuple(
            ConsumerData(name, subscriptions=(subscription,)) for name in self.groups
        )
        left = self.most(CLIENT_ENTRIES) - 2 * len(self.connections) - len(all_groups)
        self.producers = left - self.most(5_000)
        producers = tuple(f"P{number}" for number in range(self.producers))
        everything = HeartbeatData("client0", (PRODUCERS, *producers), (joined, *all_groups))
        drive(beat(Heartbeat(self.connections[0], "JAVA", 409, everything)))

    def _fill_name_server(self) -> None:
        routes = self.server.routes
        queues = QueueData(4, 4, 6, 3)
        many = {f"T{number}": queues for number in range(self.most(TOPICS_OF_BROKER))}
        self._register("first", 1, many)
        brokers = self.most(BROKERS) - 4
        some = self.most(ROUTE_ENTRIES - 2 * TOPICS_OF_BROKER) // brokers
        shared = {TOPIC: queues, **{f"T{number}": queues for number in range(some)}}
        for number in range(2, brokers):
            self._register(f"broker{number}", number, shared)
        assert len(routes.live) == brokers - 1
        count = self.most(KV_ENTRIES) - 8
        size = self.most(SETTINGS["max_kv_bytes"]) // count - 40
        for number in range(count):
            self.server._kv.put("N", f"key{number}", "v" * size)

    def _register(self, name: str, number: int, topics: Mapping[str, QueueData]) -> None:
        address = f"10.0.{number // 250}.{number % 250}:10911"
        self.server.routes.register(
            Registration(
                "DefaultCluster", name, 0, address, "", DataVersion(1, 1), topics, (), None
            )
        )


def member_answer(code: int, opaque: int, large: bytes) -> tuple[bytes, bytes]:
    """A member's answer, its header and its body: about its only queue, or with something
    `large`."""
    body = large
    if code == Code.GET_CONSUMER_STATUS_FROM_CLIENT:
        body = b'{"messageQueueTable":{{"brokerName":"b","queueId":0,"topic":"T"}:1}}'
    head = b'{"code":0,"flag":1,"language":"JAVA","opaque":%d,"version":409}' % opaque
    sizes = (4 + len(head) + len(body)).to_bytes(4, "big") + len(head).to_bytes(4, "big")
    return sizes + head, body


class Members:
    """Members of groups, whose largest answers fit a frame. An answer comes in a turn of its own.
    The broker's work is counted, so none of its code is used for that."""

    def __init__(self, most: int) -> None:
        self._large = b"x" * most
        self._answers: deque[tuple[Connection, bytes, bytes]] = deque()

    def asked(self, connection: Connection, frame: bytes) -> None:
        """A member got a frame."""
        size = int.from_bytes(frame[5:8], "big")
        header = json.loads(frame[8 : 8 + size])
        if header["flag"] & 3:
            return
        if not self._answers:
            asyncio.get_running_loop().call_soon(self._next)
        answer = member_answer(header["code"], header["opaque"], self._large)
        self._answers.append((connection, *answer))

    def _next(self) -> None:
        connection, head, body = self._answers.popleft()
        if self._answers:
            asyncio.get_running_loop().call_soon(self._next)
        view = memoryview(body)
        for piece in (head, *(view[at : at + PIECE] for at in range(0, len(view), PIECE))):
            connection.get_buffer(len(piece))[: len(piece)] = piece
            connection.buffer_updated(len(piece))


class Member(bytearray):
    """Takes what a member is sent."""

    def __init__(self, connection: Connection, members: Members) -> None:
        super().__init__()
        self._connection = connection
        self._members = members

    def __iadd__(self, data: Any) -> Member:  # type: ignore[misc]
        self._members.asked(self._connection, data)
        return self


Inputs: TypeAlias = Callable[[Full], list[list[Request]]]


def _plain(code: int, answer: int = 0) -> Inputs:
    """Inputs of a code whose requests have no size that matters."""
    seeds = [one for one in (*BROKER_SEEDS, *NAME_SERVER_SEEDS) if one.code == code]
    assert seeds, code
    return lambda _full: [[Request(*one, answer)] for one in seeds]


def _changed_settings(full: Full) -> list[list[Request]]:
    """Lines of settings; all are read, and the last one of each counts."""
    line = b"fileReservedTime=72\n"
    body = line * (full.most(SETTINGS_BYTES) // len(line))
    return [[Request(Code.UPDATE_BROKER_CONFIG, {}, body)]]


def _fields(code: int) -> dict[str, str]:
    seeds = [one for one in (*BROKER_SEEDS, *NAME_SERVER_SEEDS) if one.code == code]
    return dict(seeds[0].ext)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# --- messages -------------------------------------------------------------------------------------


def _many(full: Full, limit: int, each: int) -> range:
    """A range over the items of `each` bytes that fit."""
    return range((full.most(limit) - 128) // each)


def _sends(code: int) -> Inputs:
    def inputs(full: Full) -> list[list[Request]]:
        ext = _fields(code)
        name = "properties" if code in (Code.SEND_MESSAGE, Code.SEND_REPLY_MESSAGE) else "i"
        body = b"x" * full.most(SETTINGS["max_message_bytes"])
        keys = " ".join(f"{number:x}" for number in _many(full, PROPERTIES, 5))
        pairs = "".join(f"{number:x}\x011\x02" for number in _many(full, PROPERTIES, 7))
        return [
            [Request(code, {**ext, name: "KEYS\x01a\x02"}, body)],
            [Request(code, {**ext, name: f"KEYS\x01{keys}\x02"}, b"x")],
            [Request(code, {**ext, name: pairs}, b"x")],
            *(_timed(full) if code == Code.SEND_MESSAGE else []),
        ]

    return inputs


def _replies(code: int) -> Inputs:
    """To a client that takes it."""
    name = "properties" if code == Code.SEND_REPLY_MESSAGE else "i"
    own = "REPLY_TO_CLIENT\x01client0\x02CORRELATION_ID\x011\x02"

    def inputs(full: Full) -> list[list[Request]]:
        return [
            [one._replace(ext={**one.ext, name: own + one.ext[name][: PROPERTIES - len(own)]})]
            for (one,) in _sends(code)(full)
        ]

    return inputs


def _timed(full: Full) -> list[list[Request]]:
    """Messages that wait for a time of their own, with as many properties as there may be."""
    ext = _fields(Code.SEND_MESSAGE)
    pairs = "".join(f"{number:x}\x011\x02" for number in _many(full, PROPERTIES, 8))
    asked = f"TIMER_DELAY_SEC\x013600\x02UNIQ_KEY\x01{_UNIQUE}\x02{pairs}"
    return [[Request(Code.SEND_MESSAGE, {**ext, "properties": asked}, b"x")]]


def _recalls(full: Full) -> list[list[Request]]:
    name = full.core.settings.broker_name
    deliver_ms = time.time_ns() // 1_000_000 + 3_600_000
    handle = RecallHandle(TOPIC, name, deliver_ms, _UNIQUE).encode()
    return [[Request(Code.RECALL_MESSAGE, {"topic": TOPIC, "recallHandle": handle})]]


def _batches(full: Full) -> list[list[Request]]:
    ext = {**_fields(Code.SEND_BATCH_MESSAGE), "i": "WAIT\x01true\x02"}
    size = SETTINGS["max_message_bytes"]
    empty = encode_batch([BatchItem(0, b"", b"") for _ in _many(full, size, 22)])
    own = b"KEYS\x01k1\x02TAGS\x01t\x02"
    keyed = encode_batch([BatchItem(0, b"x", own) for _ in _many(full, size, 23 + len(own))])
    return [[Request(Code.SEND_BATCH_MESSAGE, ext, body)] for body in (empty, keyed)]


def _send_back(full: Full) -> list[list[Request]]:
    ext = {**_fields(Code.CONSUMER_SEND_MSG_BACK), "offset": str(full.large)}
    return [[Request(Code.CONSUMER_SEND_MSG_BACK, ext)]]


def _ends(full: Full) -> list[list[Request]]:
    def end(half: PutResult, decision: int) -> list[Request]:
        ext = {
            "producerGroup": PRODUCERS, "tranStateTableOffset": str(half.queue_offset),
            "commitLogOffset": str(half.log_offset), "commitOrRollback": str(decision),
        }  # fmt: skip
        return [Request(Code.END_TRANSACTION, ext)]

    committed, rolled_back, _ = full.halves
    return [end(committed, 8), end(rolled_back, 12)]


def _resumed(full: Full) -> list[list[Request]]:
    host = bytes((127, 0, 0, 1, 0, 0, 0, 7))
    ext = {"msgId": offset_msg_id(host, full.halves[2].log_offset)}
    return [[Request(Code.RESUME_CHECK_HALF_MESSAGE, ext)]]


def _expression(full: Full, number: int = 0) -> str:
    """The most comparisons allowed, none of which any message meets; `number` tells it from
    others."""
    count = (full.most(SETTINGS["max_sql_nodes"]) - 1) // 3
    text = " OR ".join([f"k{one} = {number}" for one in range(count)])
    return text[: full.most(SETTINGS["max_sql_chars"])]


def _listed(full: Full) -> str:
    """An expression with all the values that have room."""
    values = ",".join(["''"] * ((full.most(SETTINGS["max_sql_chars"]) - len("k IN ()")) // 3))
    return f"k IN ({values})"


def _pulls(code: int) -> Inputs:
    def inputs(full: Full) -> list[list[Request]]:
        ext = {**_fields(code), "maxMsgNums": str(SETTINGS["transfer_count_bulk"])}
        ext["subscription"] = "*"
        tags = "||".join(f"{number:x}" for number in _many(full, HEADER, 6))
        sql = {**ext, "expressionType": "SQL92"}
        return [
            [Request(code, {**ext, "maxMsgBytes": str(4 * MIB)})],
            [Request(code, {**ext, "subscription": tags}, answer=20)],
            [Request(code, {**ext, "queueId": "1"})],
            *[
                [Request(code, {**sql, "subscription": text}, answer=20)]
                for text in (_expression(full), _listed(full))
            ],
        ]

    return inputs


def _views(full: Full) -> list[list[Request]]:
    return [[Request(Code.VIEW_MESSAGE_BY_ID, {"offset": str(full.large)})]]


# --- clients --------------------------------------------------------------------------------------


def consumer(group: str, subscriptions: list[Any]) -> dict[str, Any]:
    """A consumer group as a heartbeat names it."""
    return {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False,
        "subscriptionDataSet": subscriptions,
    }  # fmt: skip


def subscription(topic: str, tags: int) -> dict[str, Any]:
    """A group's subscription to a topic, by this number of tags; 0: to all."""
    names = [f"t{number}" for number in range(tags)]
    return {
        "topic": topic, "subString": "||".join(names) or "*", "tagsSet": names, "codeSet": [],
        "subVersion": 1, "classFilterMode": False, "expressionType": "TAG",
    }  # fmt: skip


def _cut(full: Full, entries: list[Any]) -> list[Any]:
    """The entries that fit a body's room, and its limit of values."""
    room = full.most(SETTINGS["max_request_bytes"]) - KIB
    size = len(_json(entries)) // len(entries) + 1
    values = full.most(MAX_REQUEST_VALUES) - 64
    return entries[: min(room // size, values // _values(entries[0]))]


def _values(value: Any) -> int:
    """How many values a document has, itself included."""
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_values, below))


def _heartbeats(full: Full) -> list[list[Request]]:
    """Heartbeats with many producers; with many groups, each with some topics; with many tags; with
    many expressions."""
    most = full.most(LIST)
    producers = [{"groupName": f"P{number}"} for number in range(most)]
    # Each group has few topics, and each topic few tags, so a body has room for the most groups and
    # topics.
    few = [subscription(topic, 0) for topic in full.topics[:11]]
    groups = [consumer(name, few) for name in full.groups[:most]]
    tagged = [subscription(name, 80) for name in full.topics[:most]]
    tags = [consumer(GROUP, _cut(full, tagged))]
    bodies = [
        {"clientID": "c1", "producerDataSet": producers, "consumerDataSet": []},
        {"clientID": "c2", "producerDataSet": [], "consumerDataSet": _cut(full, groups)},
        {"clientID": "c3", "producerDataSet": [], "consumerDataSet": tags},
    ]
    chosen = [
        {**subscription(name, 0), "expressionType": "SQL92", "subString": _expression(full, number)}
        for number, name in enumerate(full.topics[: _filters(full)])
    ]
    bodies.append(
        {
            "clientID": "c5",
            "producerDataSet": [],
            "consumerDataSet": [consumer("SG", _cut(full, chosen))],
        }
    )
    return [[Request(Code.HEART_BEAT, {}, body)] for body in (*map(_json, bodies), _odd(full))]


def _filters(full: Full) -> int:
    """How many filters there may be of such expressions."""
    of_one = KIB + PropertyFilter(compile_sql(_expression(full, LIST))).size
    return min(full.most(LIST), full.most(SETTINGS["sql_filter_bytes"]) // of_one)


def _odd(full: Full) -> bytes:
    """Python reads JSON that is not standard: escapes, of which eight count as a value."""
    text = b"\\n" * full.most(8 * (MAX_DIALECT_VALUES - 64))
    return b"{'clientID':'c4','producerDataSet':[],'others':'" + text + b"'}"


def _unregistered(full: Full) -> list[list[Request]]:
    """The group it leaves has as many members as there can be connections."""
    body = {
        "clientID": "c1", "producerDataSet": [{"groupName": PRODUCERS}],
        "consumerDataSet": [consumer(GROUP, [subscription(TOPIC, 2)])],
    }  # fmt: skip
    ext = {"clientID": "c1", "producerGroup": PRODUCERS, "consumerGroup": GROUP}
    return [[Request(Code.HEART_BEAT, {}, _json(body)), Request(Code.UNREGISTER_CLIENT, ext)]]


def _checked_config(full: Full) -> list[list[Request]]:
    tagged = subscription(TOPIC, full.most(LIST))
    asked = [
        tagged,
        *[
            {**tagged, "tagsSet": [], "expressionType": "SQL92", "subString": text}
            for text in (_expression(full), _listed(full))
        ],
    ]
    bodies = [_json({"clientId": "c1", "group": GROUP, "subscriptionData": one}) for one in asked]
    return [[Request(Code.CHECK_CLIENT_CONFIG, {}, body)] for body in bodies]


def _locks(code: int) -> Inputs:
    def inputs(full: Full) -> list[list[Request]]:
        queues = [
            {"topic": "T", "brokerName": "b", "queueId": number}
            for number in range(full.most(LOCKS))
        ]
        body = {"clientId": "c1", "consumerGroup": GROUP, "mqSet": _cut(full, queues)}
        return [[Request(code, {}, _json(body))]]

    return inputs


# --- administration -------------------------------------------------------------------------------


def _asked(code: int, *exts: dict[str, str]) -> Inputs:
    return lambda _full: [[Request(code, ext)] for ext in exts]


def _resets(full: Full) -> list[list[Request]]:
    """To a time, and to the offsets of a body that names all queues of the topic."""
    code = Code.INVOKE_BROKER_TO_RESET_OFFSET
    ext = {"topic": WIDE, "group": GROUP, "timestamp": "1", "isForce": "true"}
    queues = range(full.most(SETTINGS["max_queues_per_topic"]))
    given = [
        {
            "topic": WIDE,
            "brokerName": full.core.settings.broker_name,
            "queueId": queue_id,
            "offset": 0,
        }
        for queue_id in queues
    ]
    return [[Request(code, ext)], [Request(code, ext, _json({"offsetTable": given}))]]


def _of_a_member(code: int) -> Inputs:
    """Requests to the member that is found last, with the largest header, about the largest
    message; the answer is as large as an answer may be."""

    def inputs(full: Full) -> list[list[Request]]:
        ext = {
            "consumerGroup": GROUP, "clientId": f"client{len(full.connections) - 1}",
            "msgId": offset_msg_id(HOST, full.large), "more": "x" * full.most(HEADER),
        }  # fmt: skip
        return [[Request(code, ext)]]

    return inputs


def _created_topic(full: Full) -> list[list[Request]]:
    queues = str(full.most(SETTINGS["max_queues_per_topic"]))
    ext = {**_fields(Code.UPDATE_AND_CREATE_TOPIC), "readQueueNums": queues}
    return [[Request(Code.UPDATE_AND_CREATE_TOPIC, {**ext, "writeQueueNums": queues})]]


def _group_config(full: Full) -> list[list[Request]]:
    body = _json({"groupName": GROUP, "others": [0] * full.most(MAX_REQUEST_VALUES - 64)})
    return [[Request(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)]]


# --- stages ---------------------------------------------------------------------------------------

_BATCH = {"query": "budget", "batch": "1"}


def _chunks(full: Full) -> list[list[Request]]:
    size = SETTINGS["max_message_bytes"]
    rows = [BatchItem(0, b"", b"") for _ in _many(full, size, 22)]
    one_run = [Run(TOPIC, 0, len(rows), encode_batch(rows))]
    row = encode_batch([BatchItem(0, b"", b"")])
    runs = [Run(TOPIC, 0, 1, row) for _ in _many(full, 65_535 * 41, 41)]
    requests = []
    for number, (made, count) in enumerate(((one_run, len(rows)), (runs, len(runs)))):
        body = encode_chunk(made)
        ext = {
            **_BATCH, "partition": "0", "stage": f"{number:032x}", "chunk": "0",
            "rows": str(count), "crc": str(chunk_crc(body)),
        }  # fmt: skip
        requests.append([Request(Code.STAGE_CHUNK, ext, body)])
    return requests


def _parts(full: Full) -> bytes:
    part = StagePart("another", 0, "0" * 32, 1, 1, 1)
    count = full.most(SETTINGS["max_message_bytes"] - KIB) // (len(encode_parts([part])) + 1)
    return encode_parts(
        [StagePart("another", 0, f"{number:032x}", 1, 1, 1) for number in range(count)]
    )


def _intents(full: Full) -> list[list[Request]]:
    return [[Request(Code.STAGE_INTENT, {"query": "other", "batch": "2"}, _parts(full))]]


def _statuses(full: Full) -> list[list[Request]]:
    ext = {"query": "other", "batch": "3"}
    return [[Request(Code.STAGE_INTENT, ext, _parts(full)), Request(Code.STAGE_STATUS, ext)]]


def _aborts(full: Full) -> list[list[Request]]:
    names = [f"a{number:031x}" for number in _many(full, SETTINGS["max_request_bytes"], 35)]
    return [[Request(Code.STAGE_ABORT, {"query": "third", "batch": "1"}, encode_names(names))]]


BROKER: dict[int, Inputs] = {
    Code.HEART_BEAT: _heartbeats,
    Code.SEND_MESSAGE: _sends(Code.SEND_MESSAGE),
    Code.SEND_MESSAGE_V2: _sends(Code.SEND_MESSAGE_V2),
    Code.SEND_BATCH_MESSAGE: _batches,
    Code.SEND_REPLY_MESSAGE: _replies(Code.SEND_REPLY_MESSAGE),
    Code.SEND_REPLY_MESSAGE_V2: _replies(Code.SEND_REPLY_MESSAGE_V2),
    Code.RECALL_MESSAGE: _recalls,
    Code.CONSUMER_SEND_MSG_BACK: _send_back,
    Code.END_TRANSACTION: _ends,
    Code.RESUME_CHECK_HALF_MESSAGE: _resumed,
    Code.PULL_MESSAGE: _pulls(Code.PULL_MESSAGE),
    Code.LITE_PULL_MESSAGE: _pulls(Code.LITE_PULL_MESSAGE),
    Code.QUERY_MESSAGE: _plain(Code.QUERY_MESSAGE),
    Code.VIEW_MESSAGE_BY_ID: _views,
    Code.QUERY_CONSUMER_OFFSET: _plain(Code.QUERY_CONSUMER_OFFSET),
    Code.UPDATE_CONSUMER_OFFSET: _plain(Code.UPDATE_CONSUMER_OFFSET),
    Code.GET_MAX_OFFSET: _plain(Code.GET_MAX_OFFSET),
    Code.GET_MIN_OFFSET: _plain(Code.GET_MIN_OFFSET),
    Code.GET_EARLIEST_MSG_STORETIME: _plain(Code.GET_EARLIEST_MSG_STORETIME),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: _plain(Code.SEARCH_OFFSET_BY_TIMESTAMP),
    Code.UPDATE_AND_CREATE_TOPIC: _created_topic,
    Code.DELETE_TOPIC_IN_BROKER: _asked(Code.DELETE_TOPIC_IN_BROKER, {"topic": "Gone"}),
    Code.GET_TOPIC_CONFIG: _plain(Code.GET_TOPIC_CONFIG),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: _plain(Code.GET_SUBSCRIPTIONGROUP_CONFIG),
    Code.GET_ALL_TOPIC_CONFIG: _plain(Code.GET_ALL_TOPIC_CONFIG),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _plain(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _group_config,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _plain(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
    Code.DELETE_SUBSCRIPTIONGROUP: _plain(Code.DELETE_SUBSCRIPTIONGROUP),
    Code.GET_ALL_CONSUMER_OFFSET: _plain(Code.GET_ALL_CONSUMER_OFFSET),
    Code.GET_ALL_DELAY_OFFSET: _plain(Code.GET_ALL_DELAY_OFFSET),
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: _plain(Code.CLEAN_EXPIRED_CONSUMEQUEUE),
    Code.CLEAN_UNUSED_TOPIC: _plain(Code.CLEAN_UNUSED_TOPIC),
    # Refused before anything of them is looked at: this broker has no accounts.
    **{
        code: lambda _full, code=code, answer=answer: [[Request(code, {}, b"", answer)]]
        for code, answer in ((50, 209), (51, 210), (52, 1), (53, 211))
    },
    Code.DELETE_EXPIRED_COMMITLOG: _plain(Code.DELETE_EXPIRED_COMMITLOG),
    Code.GET_TOPIC_STATS_INFO: _asked(Code.GET_TOPIC_STATS_INFO, {"topic": WIDE}),
    Code.GET_CONSUME_STATS: _asked(
        Code.GET_CONSUME_STATS, {"consumerGroup": GROUP}, {"consumerGroup": GROUP, "topic": WIDE}
    ),
    Code.GET_BROKER_CONSUME_STATS: _plain(Code.GET_BROKER_CONSUME_STATS),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: _asked(Code.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": ONE}),
    Code.GET_CONSUMER_CONNECTION_LIST: _plain(Code.GET_CONSUMER_CONNECTION_LIST),
    Code.GET_PRODUCER_CONNECTION_LIST: _plain(Code.GET_PRODUCER_CONNECTION_LIST),
    Code.GET_ALL_PRODUCER_INFO: _plain(Code.GET_ALL_PRODUCER_INFO),
    Code.GET_BROKER_RUNTIME_INFO: _plain(Code.GET_BROKER_RUNTIME_INFO),
    Code.GET_BROKER_HA_STATUS: _plain(Code.GET_BROKER_HA_STATUS),
    Code.GET_BROKER_CONFIG: _plain(Code.GET_BROKER_CONFIG),
    Code.UPDATE_BROKER_CONFIG: _changed_settings,
    Code.VIEW_BROKER_STATS_DATA: _plain(Code.VIEW_BROKER_STATS_DATA),
    Code.UNREGISTER_CLIENT: _unregistered,
    Code.CHECK_CLIENT_CONFIG: _checked_config,
    Code.GET_CONSUMER_LIST_BY_GROUP: _plain(Code.GET_CONSUMER_LIST_BY_GROUP),
    Code.LOCK_BATCH_MQ: _locks(Code.LOCK_BATCH_MQ),
    Code.UNLOCK_BATCH_MQ: _locks(Code.UNLOCK_BATCH_MQ),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: _resets,
    Code.QUERY_CONSUME_TIME_SPAN: _asked(
        Code.QUERY_CONSUME_TIME_SPAN, {"topic": WIDE, "group": GROUP}
    ),
    Code.QUERY_CORRECTION_OFFSET: _asked(
        Code.QUERY_CORRECTION_OFFSET,
        {"topic": WIDE, "compareGroup": GROUP},
        {"topic": ONE, "compareGroup": GROUP},
    ),
    Code.CLONE_GROUP_OFFSET: _asked(
        Code.CLONE_GROUP_OFFSET, {"srcGroup": GROUP, "destGroup": "G0", "offline": "true"}
    ),
    Code.QUERY_CONSUME_QUEUE: _asked(
        Code.QUERY_CONSUME_QUEUE, {"topic": TOPIC, "count": "1000000", "consumerGroup": GROUP}
    ),
    Code.GET_CONSUMER_RUNNING_INFO: _of_a_member(Code.GET_CONSUMER_RUNNING_INFO),
    Code.CONSUME_MESSAGE_DIRECTLY: _of_a_member(Code.CONSUME_MESSAGE_DIRECTLY),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _asked(
        Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": TOPIC, "group": GROUP}
    ),
    Code.DRAIN: _asked(Code.DRAIN, {"action": "undo"}),
    Code.DRAIN_STATUS: _asked(Code.DRAIN_STATUS, {}),
    Code.AUDIT_EVENTS: _asked(Code.AUDIT_EVENTS, {}),
    Code.WAITING_MESSAGES: _asked(Code.WAITING_MESSAGES, {"topic": TOPIC}),
    Code.MESSAGE_STATE: _asked(Code.MESSAGE_STATE, {"offset": "0"}),
    Code.BROKER_STATUS: _asked(Code.BROKER_STATUS, {"topic": TOPIC}),
    Code.CLIENTS: _asked(Code.CLIENTS, {"details": "true"}),
    Code.GROUP_LAG: _asked(Code.GROUP_LAG, {"consumerGroup": GROUP}),
    Code.LOG_RANGES: _asked(
        Code.LOG_RANGES, {"start": "0", "end": str(MOST_RANGE_BYTES), "parts": str(MOST_PARTS)}
    ),
    Code.REPLICA_TABLES: _asked(Code.REPLICA_TABLES, dict.fromkeys(TABLES, "")),
    Code.STAGE_CAPABILITY: _plain(Code.STAGE_CAPABILITY),
    Code.STAGE_CHUNK: _chunks,
    Code.STAGE_INTENT: _intents,
    Code.STAGE_STATUS: _statuses,
    Code.STAGE_ABORT: _aborts,
}


# --- name server ----------------------------------------------------------------------------------


def _registered(full: Full) -> list[list[Request]]:
    """All topics of a broker, plain and compressed."""
    ext = _fields(Code.REGISTER_BROKER)
    names = [f"T{number}" for number in range(full.most(TOPICS_OF_BROKER))]
    table = {
        name: {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
        for name in names
    }
    wrapper = {"dataVersion": {"counter": 1, "timestamp": 1}, "topicConfigTable": table}
    plain = _json({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})

    def block(data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + data

    packed = zlib.compress(
        block(_json({"counter": 2, "timestamp": 2}))
        + len(names).to_bytes(4, "big")
        + b"".join([block(f"{name} 4 4 6 SINGLE_TAG".encode()) for name in names])
        + block(b"[]")
    )
    return [
        [Request(Code.REGISTER_BROKER, ext, plain)],
        [Request(Code.REGISTER_BROKER, {**ext, "compressed": "true"}, packed)],
    ]


def _unregistered_broker(_full: Full) -> list[list[Request]]:
    ext = {
        "brokerName": "first", "brokerAddr": "10.0.0.1:10911", "clusterName": "DefaultCluster",
        "brokerId": "0",
    }  # fmt: skip
    return [[Request(Code.UNREGISTER_BROKER, ext)]]


def _put_kv(_full: Full) -> list[list[Request]]:
    ext = {"namespace": "N", "key": "k", "value": "v" * 1_000}
    return [[Request(Code.PUT_KV_CONFIG, ext)]]


_CLUSTER = {"cluster": "DefaultCluster"}
_FIRST = {"brokerName": "first"}

NAME_SERVER: dict[int, Inputs] = {
    Code.PUT_KV_CONFIG: _put_kv,
    Code.GET_KV_CONFIG: _plain(Code.GET_KV_CONFIG),
    Code.DELETE_KV_CONFIG: _plain(Code.DELETE_KV_CONFIG),
    Code.GET_KVLIST_BY_NAMESPACE: _plain(Code.GET_KVLIST_BY_NAMESPACE),
    Code.REGISTER_BROKER: _registered,
    Code.QUERY_DATA_VERSION: _plain(Code.QUERY_DATA_VERSION),
    Code.GET_ROUTEINFO_BY_TOPIC: _plain(Code.GET_ROUTEINFO_BY_TOPIC),
    Code.GET_BROKER_CLUSTER_INFO: _plain(Code.GET_BROKER_CLUSTER_INFO),
    Code.WIPE_WRITE_PERM_OF_BROKER: _asked(Code.WIPE_WRITE_PERM_OF_BROKER, _FIRST),
    Code.ADD_WRITE_PERM_OF_BROKER: _asked(Code.ADD_WRITE_PERM_OF_BROKER, _FIRST),
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _plain(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
    Code.DELETE_TOPIC_IN_NAMESRV: _asked(Code.DELETE_TOPIC_IN_NAMESRV, {"topic": TOPIC}),
    Code.GET_TOPICS_BY_CLUSTER: _asked(Code.GET_TOPICS_BY_CLUSTER, _CLUSTER),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: _plain(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS),
    Code.GET_UNIT_TOPIC_LIST: _plain(Code.GET_UNIT_TOPIC_LIST),
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: _plain(Code.GET_HAS_UNIT_SUB_TOPIC_LIST),
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _plain(Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST),
    Code.UPDATE_NAMESRV_CONFIG: _plain(Code.UPDATE_NAMESRV_CONFIG, answer=16),
    Code.GET_NAMESRV_CONFIG: _plain(Code.GET_NAMESRV_CONFIG),
    # Last: its topics are gone then.
    Code.UNREGISTER_BROKER: _unregistered_broker,
}


def frames(requests: list[Request]) -> bytes:
    """The requests as they are sent, one behind the other."""
    return b"".join(
        Command(code=one.code, ext=one.ext, body=one.body, opaque=number).encode()
        for number, one in enumerate(requests)
    )
