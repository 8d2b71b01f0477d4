"""Offsets, queue ranges and queue locks, as clients ask for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aerobee.broker.requests.clients.offset_requests import OffsetRequests
from aerobee.broker.requests.clients.order_locks import LockRequests, OrderLocks
from aerobee.broker.tables.clients import Heartbeat
from aerobee.protocol.bodies.clients import HeartbeatData
from aerobee.protocol.bodies.topics import TopicConfig
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from tests.inline_loop import drive
from tests.unit.broker.tables.clients_support import (
    BODIES,
    Clock,
    Peer,
    Tables,
    answer,
    heartbeat_body,
    request,
)

PEER = Peer(1).connection


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path)


def committed(tables: Tables, offset: int, queue_id: int = 0) -> int:
    ext = {"consumerGroup": "g", "topic": "T", "queueId": queue_id, "commitOffset": offset}
    requests = OffsetRequests(tables.offsets, tables.lag, tables.queues)
    return answer(requests.update(PEER, request(15, ext))).code


def queried(tables: Tables, topic: str = "T") -> tuple[int, str | None]:
    ext = {"consumerGroup": "g", "topic": topic, "queueId": 0, "setZeroIfNotFound": "false"}
    requests = OffsetRequests(tables.offsets, tables.lag, tables.queues)
    reply = answer(requests.query(PEER, request(14, ext)))
    return reply.code, reply.ext.get("offset")


def test_a_committed_offset_is_told(tables: Tables) -> None:
    tables.queues.put("T", 0, range(10))
    assert committed(tables, 7) == ResponseCode.SUCCESS
    assert queried(tables) == (ResponseCode.SUCCESS, "7")
    assert committed(tables, 2) == ResponseCode.SUCCESS
    assert queried(tables) == (ResponseCode.SUCCESS, "2")


@pytest.mark.parametrize("offset", [-1, 11, 2**62])
def test_offsets_outside_the_queue_are_refused(tables: Tables, offset: int) -> None:
    tables.queues.put("T", 0, range(10))
    committed(tables, 7)
    assert committed(tables, offset) == ResponseCode.SYSTEM_ERROR
    assert queried(tables) == (ResponseCode.SUCCESS, "7")


def test_a_fresh_queue_starts_at_0(tables: Tables) -> None:
    assert queried(tables, "unknown") == (ResponseCode.SUCCESS, "0")
    tables.queues.put("T", 0, range(10))
    assert queried(tables) == (ResponseCode.SUCCESS, "0")


def test_a_queue_with_old_messages_gone_or_on_disk_has_no_start(tables: Tables) -> None:
    tables.queues.put("T", 0, range(10), min_offset=5)
    assert queried(tables) == (ResponseCode.QUERY_NOT_FOUND, None)
    tables.queues.put("T", 0, range(10))
    tables.queues.on_disk.add(("T", 0))
    assert queried(tables) == (ResponseCode.QUERY_NOT_FOUND, None)


def test_every_missing_field_is_an_answer(tables: Tables) -> None:
    requests = OffsetRequests(tables.offsets, tables.lag, tables.queues)
    with pytest.raises(BadRequest, match="consumerGroup"):
        requests.query(PEER, request(14, {}))
    with pytest.raises(BadRequest, match="commitOffset"):
        requests.update(PEER, request(15, {"consumerGroup": "g", "topic": "T", "queueId": 0}))


def test_ranges_of_a_queue(tables: Tables) -> None:
    tables.queues.put("T", 1, [1000, 2000, 3000], min_offset=40)
    requests = OffsetRequests(tables.offsets, tables.lag, tables.queues)
    ext = {"topic": "T", "queueId": 1, "bname": "b-a"}
    assert answer(requests.min_offset(PEER, request(31, ext))).ext == {"offset": "40"}
    assert answer(requests.max_offset(PEER, request(30, ext))).ext == {"offset": "43"}
    assert answer(requests.earliest(PEER, request(32, ext))).ext == {"timestamp": "1000"}
    search = request(29, {**ext, "timestamp": 2000, "boundaryType": "LOWER"})
    assert answer(requests.search(PEER, search)).ext == {"offset": "41"}


def test_an_unknown_queue_has_zeros_and_no_time(tables: Tables) -> None:
    requests = OffsetRequests(tables.offsets, tables.lag, tables.queues)
    ext = {"topic": "unknown", "queueId": 99}
    assert answer(requests.min_offset(PEER, request(31, ext))).ext == {"offset": "0"}
    assert answer(requests.max_offset(PEER, request(30, ext))).ext == {"offset": "0"}
    assert answer(requests.earliest(PEER, request(32, ext))).ext == {"timestamp": "-1"}
    search = request(29, {**ext, "timestamp": 5})
    assert answer(requests.search(PEER, search)).ext == {"offset": "0"}


def lock_body(client_id: str, *queue_ids: int, topic: str = "T") -> bytes:
    queues = [{"brokerName": "b-a", "queueId": i, "topic": topic} for i in queue_ids]
    batch = {"clientId": client_id, "consumerGroup": "g", "mqSet": queues, "onlyThisBroker": False}
    return json.dumps(batch).encode()


class Locking:
    """Lock requests of the group g, which subscribes to T."""

    def __init__(self, tables: Tables) -> None:
        self.clock = Clock()
        self.tables = tables
        self.locks = OrderLocks(60.0, self.clock)
        self.requests = LockRequests(self.locks, BODIES, tables.topics, tables.clients)
        for name in ("T", "U"):
            tables.topics.update(TopicConfig(name, 3, 3)).result()

    def join(self, number: int, client_id: str) -> Peer:
        peer = Peer(number)
        data = HeartbeatData.parse(heartbeat_body(client_id, {"g": {"T": "*"}}))
        drive(self.tables.clients.heartbeat(Heartbeat(peer.connection, "JAVA", 397, data)))
        return peer

    def lock(self, client_id: str, *queue_ids: int, topic: str = "T") -> list[int]:
        body = lock_body(client_id, *queue_ids, topic=topic)
        reply = answer(self.requests.lock(PEER, request(41, body=body)))
        return [queue["queueId"] for queue in json.loads(reply.body)["lockOKMQSet"]]


@pytest.fixture
def locking(tables: Tables) -> Locking:
    return Locking(tables)


def test_only_queues_now_held_are_answered(locking: Locking) -> None:
    locking.join(1, "c1")
    locking.join(2, "c2")
    assert locking.lock("c1", 0, 1) == [0, 1]
    assert locking.lock("c2", 0, 1, 2) == [2]
    reply = answer(locking.requests.unlock(PEER, request(42, body=lock_body("c1", 0, 2))))
    assert (reply.code, reply.body) == (ResponseCode.SUCCESS, b"")
    assert locking.lock("c2", 0, 1, 2) == [0, 2]
    locking.clock.now += 61
    assert locking.lock("c2", 1) == [1]


def test_queues_that_are_not_there_or_not_subscribed_to_are_not_locked(locking: Locking) -> None:
    locking.join(1, "c1")
    assert locking.lock("c1", -1, 0, 2, 3, 1000) == [0, 2]
    assert locking.lock("c1", 0, topic="U") == []
    assert locking.lock("c1", 0, topic="unknown") == []
    assert len(locking.locks) == 2


def test_a_client_that_is_no_member_yet_gets_nothing_and_asks_again(locking: Locking) -> None:
    assert locking.lock("c1", 0) == []
    assert len(locking.locks) == 0
    locking.join(1, "c1")
    assert locking.lock("c1", 0) == [0]


def test_a_client_that_has_lost_its_connection_renews_what_it_holds(locking: Locking) -> None:
    peer = locking.join(1, "c1")
    assert locking.lock("c1", 0) == [0]
    list(locking.tables.clients.connection_closed(peer.connection))
    locking.clock.now += 50
    assert locking.lock("c1", 0, 1) == [0]
    locking.clock.now += 50
    assert locking.lock("c1", 0) == [0]
    locking.clock.now += 61
    assert locking.lock("c1", 0) == []


def test_locks_take_only_names_that_can_be(locking: Locking) -> None:
    requests = locking.requests
    with pytest.raises(BadRequest, match="topic"):
        drive(requests.lock(PEER, request(41, body=lock_body("c1", 0, topic="../T"))))
    with pytest.raises(BadRequest, match="no body"):
        drive(requests.unlock(PEER, request(42)))
