"""Every request of protocol/WIRE.md 5.1, without sockets."""

from __future__ import annotations

import asyncio
import gc
import json
import struct
import zlib
from collections.abc import Generator
from typing import Any

import pytest

from aerobee.nameserver.kv import KvTable
from aerobee.nameserver.name_server_requests import RequestOptions, Requests
from aerobee.nameserver.routes import RouteTable
from aerobee.protocol.frames.command import Command, make_request
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.remoting.calling.caller import caller_set
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Steps
from tests.unit.remoting.conftest import ScriptedHandler

IDENTITY = {
    "brokerName": "b-a",
    "brokerAddr": "10.0.0.1:10911",
    "clusterName": "C1",
    "brokerId": "0",
}
REGISTRATION = {**IDENTITY, "haServerAddr": "10.0.0.1:10912"}


def topic(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "order": False,
        "perm": 6,
        "readQueueNums": 8,
        "topicFilterType": "SINGLE_TAG",
        "topicName": name,
        "topicSysFlag": 0,
        "writeQueueNums": 8,
        **changes,
    }


def wrapper(*names: str, counter: int = 1) -> dict[str, Any]:
    return {
        "dataVersion": {"counter": counter, "timestamp": 1795178864021},
        "topicConfigTable": {name: topic(name) for name in names},
    }


def plain_body(*names: str, counter: int = 1, servers: tuple[str, ...] = ()) -> bytes:
    return json.dumps(
        {
            "filterServerList": list(servers),
            "topicConfigSerializeWrapper": wrapper(*names, counter=counter),
        }
    ).encode()


def block(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def compressed_body(*topics: str, count: int | None = None) -> bytes:
    data = block(b'{"counter":7,"timestamp":5}')
    data += struct.pack(">i", len(topics) if count is None else count)
    data += b"".join(block(text.encode()) for text in topics) + block(b"[]")
    return zlib.compress(data, 9)


async def _read_by_a_worker(steps: Steps) -> bytes | None:
    while True:
        try:
            waits_for = next(steps)
        except StopIteration as end:
            return end.value
        if waits_for is not None:
            await asyncio.wait([waits_for])


class Desk:
    """Requests with a clock at hand, asked in one line."""

    def __init__(self, **options: Any) -> None:
        self.kv = KvTable()
        self.routes = RouteTable(lambda: 0)
        self.requests = Requests(self.routes, self.kv, RequestOptions(**options))

    def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Command:
        frame = self.requests.handle("connection", make_request(code, ext, body))
        if isinstance(frame, Generator):
            frame = asyncio.run(_read_by_a_worker(frame))
        assert isinstance(frame, bytes)
        (answer,) = FrameDecoder().feed(frame)
        return answer

    def body(self, code: int, ext: dict[str, str] | None = None) -> Any:
        answer = self.ask(code, ext)
        assert answer.code == 0, answer.remark
        return json.loads(answer.body)

    def register(self, body: bytes = b"", **ext: str) -> Command:
        return self.ask(103, {**REGISTRATION, **ext}, body)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_route_has_every_member_clients_ask_for(desk):
    assert desk.register(plain_body("T1", servers=("10.0.0.9:1",))).code == 0
    assert desk.body(105, {"topic": "T1"}) == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": "10.0.0.1:10911"},
                "brokerName": "b-a",
                "cluster": "C1",
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {"10.0.0.1:10911": ["10.0.0.9:1"]},
        "queueDatas": [
            {
                "brokerName": "b-a",
                "perm": 6,
                "readQueueNums": 8,
                "topicSysFlag": 0,
                "writeQueueNums": 8,
            }
        ],
    }
    desk.register(plain_body("T1"))
    assert desk.body(105, {"topic": "T1"})["filterServerTable"] == {}


def test_a_missing_route_is_17_with_the_cause(desk):
    answer = desk.ask(105, {"topic": "T1"})
    assert answer.code == 17
    assert answer.remark.startswith("No topic route info in name server for the topic: T1")
    assert "no broker is registered" in answer.remark
    assert desk.ask(105).code == 1


def test_the_order_configuration_is_given_when_switched_on():
    for on in (False, True):
        desk = Desk(order_messages=on)
        desk.ask(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T1", "value": "b-a:4"})
        answer = desk.register(plain_body("T1"))
        assert json.loads(answer.body) == {"table": {"T1": "b-a:4"}}
        assert desk.body(105, {"topic": "T1"}).get("orderTopicConf") == ("b-a:4" if on else None)


def test_registration_needs_its_names(desk):
    for missing in ("brokerName", "brokerAddr", "clusterName", "brokerId"):
        ext = {key: value for key, value in REGISTRATION.items() if key != missing}
        answer = desk.ask(103, ext, plain_body("T1"))
        assert answer.code == 1
        assert missing in answer.remark
    for bad in ("", " ", "x" * 256, "a\nb"):
        assert desk.register(brokerName=bad).code == 1
    assert not desk.routes.live


def test_a_wrong_crc_is_refused_and_a_right_one_taken(desk):
    body = plain_body("T1")
    crc = zlib.crc32(body) & 0x7FFFFFFF
    answer = desk.register(body, bodyCrc32=str(crc ^ 1))
    assert (answer.code, answer.remark) == (1, "crc32 not match")
    assert desk.register(body, bodyCrc32=str(crc)).code == 0


def test_compressed_registrations_are_read(desk):
    answer = desk.register(
        compressed_body("T1 4 5 6 SINGLE_TAG", 'T2 1 1 4 MULTI_TAG {"a":"b c"}'), compressed="true"
    )
    assert answer.code == 0, answer.remark
    queues = desk.body(105, {"topic": "T1"})["queueDatas"][0]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (4, 5, 6)
    assert desk.body(105, {"topic": "T2"})["queueDatas"][0]["perm"] == 4
    assert json.loads(desk.ask(322, IDENTITY, b"{}").body) == {"counter": 7, "timestamp": 5}


@pytest.mark.parametrize(
    "body",
    [
        b"not zlib",
        compressed_body("T1 4 4 6 SINGLE_TAG")[:-5],
        zlib.compress(bytes(2_000_000)),
        compressed_body("T1 4 4"),
        compressed_body("T1 4 4 6 SINGLE_TAG", count=1_000_000),
        compressed_body("T1 4 4 6 SINGLE_TAG", count=5),
        zlib.compress(struct.pack(">i", -1)),
        zlib.compress(struct.pack(">i", 0x7FFFFFFF) + b"{}"),
        zlib.compress(b""),
    ],
)
def test_broken_compressed_bodies_are_code_1(body):
    desk = Desk(max_inflated_bytes=1_000_000)
    answer = desk.register(body, compressed="true")
    assert answer.code == 1
    assert "cannot be read" in answer.remark
    assert not desk.routes.live


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"topicConfigSerializeWrapper":5}',
        b'{"dataVersion":{"counter":"x"}}',
        b"\xff",
    ],
)
def test_broken_plain_bodies_are_code_1(desk, body):
    answer = desk.register(body)
    assert answer.code == 1
    assert not desk.routes.live


def test_javas_dialect_and_bare_wrappers_are_read(desk):
    dialect = b"{filterServerList:[],topicConfigSerializeWrapper:{dataVersion:{counter:1},"
    dialect += b"topicConfigTable:{'T1':{readQueueNums:3,},},}}"
    assert desk.register(dialect).code == 0
    assert desk.body(105, {"topic": "T1"})["queueDatas"][0]["readQueueNums"] == 3
    bare = json.dumps(wrapper("T2", counter=9)).encode()
    assert desk.register(bare).code == 0
    assert desk.ask(105, {"topic": "T2"}).code == 0
    assert desk.register(b"", brokerName="b-b", brokerAddr="x:1").code == 0


def test_topics_that_make_no_sense_do_not_keep_a_broker_out(desk, caplog):
    document = {"topicConfigSerializeWrapper": wrapper("good")}
    table = document["topicConfigSerializeWrapper"]["topicConfigTable"]
    table["queues"] = topic("queues", readQueueNums=-1)
    table["many"] = topic("many", writeQueueNums=10**9)
    table["perm"] = topic("perm", perm=99)
    table["word"] = topic("word", perm="six")
    table["none"] = None
    table["bad\nname"] = topic("x")
    table["x" * 300] = topic("x")
    assert desk.register(json.dumps(document).encode()).code == 0
    assert desk.body(206) == {"topicList": ["good"]}
    assert "count=7" in caplog.text


def test_the_data_version_is_compared_and_renews(desk):
    version = wrapper()["dataVersion"]
    answer = desk.ask(322, IDENTITY, json.dumps(version).encode())
    assert (answer.ext, answer.body) == ({"changed": "true"}, b"")
    desk.register(plain_body("T1"))
    answer = desk.ask(322, IDENTITY, json.dumps(version).encode())
    assert answer.ext == {"changed": "false"}
    assert json.loads(answer.body) == version
    other = {**version, "counter": 2}
    assert desk.ask(322, IDENTITY, json.dumps(other).encode()).ext == {"changed": "true"}
    assert desk.ask(322, IDENTITY, b"[").code == 1


def test_a_slave_is_told_its_master(desk):
    slave = {"brokerId": "1", "brokerAddr": "10.0.0.2:10911"}
    assert desk.register(b"", **slave).ext == {}
    desk.register(plain_body("T1"))
    assert desk.register(b"", **slave).ext == {
        "haServerAddr": "10.0.0.1:10912",
        "masterAddr": "10.0.0.1:10911",
    }
    assert desk.body(105, {"topic": "T1"})["brokerDatas"][0]["brokerAddrs"] == {
        "0": "10.0.0.1:10911",
        "1": "10.0.0.2:10911",
    }


def test_a_slave_whose_master_left_is_in_the_route_alone(desk):
    slave = {"brokerId": "1", "brokerAddr": "10.0.0.2:10911", "haServerAddr": "10.0.0.2:10912"}
    desk.register(plain_body("T1"))
    desk.register(b"", **slave)
    assert desk.ask(104, IDENTITY).code == 0
    assert desk.register(b"", **slave).ext == {}
    (data,) = desk.body(105, {"topic": "T1"})["brokerDatas"]
    assert data["brokerAddrs"] == {"1": "10.0.0.2:10911"}


def test_unregistering_always_succeeds(desk):
    desk.register(plain_body("T1"))
    assert desk.ask(104, {**IDENTITY, "brokerAddr": "other:1"}).code == 0
    assert desk.ask(105, {"topic": "T1"}).code == 0
    assert desk.ask(104, IDENTITY).code == 0
    assert desk.ask(104, IDENTITY).code == 0
    assert "b-a is gone" in desk.ask(105, {"topic": "T1"}).remark


def test_cluster_info(desk):
    assert desk.body(106) == {"brokerAddrTable": {}, "clusterAddrTable": {}}
    desk.register(plain_body("T1"))
    assert desk.body(106) == {
        "brokerAddrTable": {
            "b-a": {
                "brokerAddrs": {"0": "10.0.0.1:10911"},
                "brokerName": "b-a",
                "cluster": "C1",
                "enableActingMaster": False,
            }
        },
        "clusterAddrTable": {"C1": ["b-a"]},
    }


def test_write_permission_requests_count_topics(desk):
    desk.register(plain_body("T1", "T2"))
    assert desk.ask(205, {"brokerName": "b-a"}).ext == {"wipeTopicCount": "2"}
    assert desk.body(105, {"topic": "T1"})["queueDatas"][0]["perm"] == 4
    assert desk.ask(327, {"brokerName": "b-a"}).ext == {"addTopicCount": "2"}
    assert desk.ask(205, {"brokerName": "nobody"}).ext == {"wipeTopicCount": "0"}
    assert desk.ask(205).code == 1


def test_lists_of_topics(desk):
    assert desk.body(304) == {"topicList": []}
    document = {"topicConfigSerializeWrapper": wrapper("plain")}
    table = document["topicConfigSerializeWrapper"]["topicConfigTable"]
    table["unit"] = topic("unit", topicSysFlag=1)
    table["sub"] = topic("sub", topicSysFlag=2)
    table["both"] = topic("both", topicSysFlag=3)
    desk.register(json.dumps(document).encode())
    assert desk.body(206) == {"topicList": ["plain", "unit", "sub", "both"]}
    assert desk.body(224, {"cluster": "C1"}) == desk.body(206)
    assert desk.body(224, {"cluster": "C9"}) == {"topicList": []}
    assert desk.body(304) == {"brokerAddr": "10.0.0.1:10911", "topicList": ["C1", "b-a"]}
    assert desk.body(311) == {"topicList": ["unit", "both"]}
    assert desk.body(312) == {"topicList": ["sub", "both"]}
    assert desk.body(313) == {"topicList": ["sub"]}
    assert desk.ask(216, {"topic": "plain"}).code == 0
    assert desk.ask(216, {"topic": "unit", "clusterName": "C1"}).code == 0
    assert desk.ask(216, {"topic": "sub", "clusterName": "C9"}).code == 0
    assert desk.body(206) == {"topicList": ["sub", "both"]}


def test_key_value_requests(desk):
    key = {"namespace": "N", "key": "k"}
    assert desk.ask(101, key).code == 22
    assert desk.ask(219, {"namespace": "N"}).code == 22
    assert desk.ask(100, key).code == 1
    assert desk.ask(100, {**key, "value": "v\u4e2d"}).code == 0
    assert desk.ask(101, key).ext == {"value": "v\u4e2d"}
    assert desk.body(219, {"namespace": "N"}) == {"table": {"k": "v\u4e2d"}}
    assert desk.ask(102, key).code == 0
    assert desk.ask(102, key).code == 0
    assert desk.ask(101, key).code == 22


def test_configuration_is_shown_and_never_changed():
    desk = Desk(shown={"listenPort": "9876"})
    assert desk.ask(319).body == b"listenPort=9876\n"
    answer = desk.ask(318, body=b"kvConfigPath=/tmp/x\n")
    assert answer.code == 16
    assert "cannot be changed" in answer.remark


def test_unknown_codes_are_answered_and_oneways_never(desk):
    answer = desk.ask(310)
    assert (answer.code, answer.remark) == (3, " request type 310 not supported")
    assert desk.requests.handle("c", make_request(310, oneway=True)) is None
    oneway = make_request(103, REGISTRATION, plain_body("T1"), oneway=True)
    assert desk.requests.handle("c", oneway) is None
    assert desk.ask(105, {"topic": "T1"}).code == 0


def test_answers_copy_the_request_s_serialization(desk):
    request = make_request(206, serialization=1)
    frame = desk.requests.handle("c", request)
    assert frame is not None
    assert frame[4] == 1


def test_too_many_topics_are_code_1_with_the_limit(desk):
    desk.routes._limits = desk.routes._limits.__class__(queue_entries=1)
    answer = desk.register(plain_body("T1", "T2"))
    assert answer.code == 1
    assert "limit" in answer.remark


async def test_a_broken_large_registration_of_a_broker_that_has_gone_is_nobody_s_error(desk):
    gone = Connection(caller_set(), ScriptedHandler())
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
    steps = desk.requests.handle(gone, make_request(103, REGISTRATION, b"{" * 10_000))
    await asyncio.wait([next(steps)])
    gone.closed = True
    assert await _read_by_a_worker(steps) is not None
    del steps
    gc.collect()
    assert errors == []


async def test_large_registrations_are_read_one_after_the_other(desk, monkeypatch):
    """A registration may decode to a hundred megabytes, and anybody may send some."""
    reading, most = [], []
    read = desk.requests._read_registration

    def counted(*args: Any) -> Any:
        reading.append(args)
        most.append(len(reading))
        try:
            return read(*args)
        finally:
            reading.pop()

    monkeypatch.setattr(desk.requests, "_read_registration", counted)
    body = plain_body(*[f"T{number}" for number in range(2_000)])
    asked = [make_request(103, REGISTRATION, body) for _ in range(4)]
    asked[2].body = b"{" * 10_000
    waiting = [desk.requests.handle("c", one) for one in asked]
    first = [next(steps) for steps in waiting]
    assert [future.done() for future in first[1:]] == [False] * 3
    for steps, future in zip(waiting, first, strict=True):
        await asyncio.wait([future])
        assert await _read_by_a_worker(steps) is not None
    assert most == [1, 1, 1, 1]
    assert len(desk.routes.topics) == 2_000


async def test_a_broker_that_goes_while_its_topics_are_counted_does_not_come(desk):
    """Nobody would notice its end any more: it would stand there for two minutes."""
    owner = Connection(caller_set(), ScriptedHandler())
    body = plain_body(*[f"T{number}" for number in range(2_000)])
    steps = desk.requests.handle(owner, make_request(103, REGISTRATION, body))
    await asyncio.wait([next(steps)])
    next(steps)
    assert desk.routes.live == {}
    owner.closed = True
    assert await _read_by_a_worker(steps) is None
    assert desk.routes.live == {} == desk.routes.topics
