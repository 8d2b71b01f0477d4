"""The name server over sockets: connections, expiry, the KV file."""

from __future__ import annotations

import asyncio
import itertools
import json
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path

import pytest

from aerobee.config.model import Settings
from aerobee.nameserver import server
from aerobee.nameserver.bodies import read_registration
from aerobee.nameserver.routes import QueueData, Registration
from aerobee.nameserver.server import NameServer, NameServerOptions
from aerobee.protocol.bodies.topics import DataVersion
from aerobee.protocol.frames.command import make_request
from aerobee.remoting.calling.caller import Caller
from aerobee.remoting.connection_limits import RemotingLimits
from aerobee.remoting.errors import RemotingListenError

pytestmark = pytest.mark.both_loops

REGISTRATION = {
    "brokerName": "b-a",
    "brokerAddr": "10.0.0.1:10911",
    "clusterName": "C1",
    "brokerId": "0",
    "haServerAddr": "",
}
BODY = json.dumps(
    {"topicConfigSerializeWrapper": {"topicConfigTable": {"T1": {"readQueueNums": 4}}}}
).encode()


class Clock:
    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> int:
        return self.ms


class Running:
    def __init__(self, server: NameServer, clock: Clock) -> None:
        self.server = server
        self.clock = clock
        self.callers: list[Caller] = []

    async def caller(self) -> Caller:
        caller = await Caller.connect("127.0.0.1", self.server.port, 5)
        self.callers.append(caller)
        return caller


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    clock = Clock()
    options = NameServerOptions(
        remoting=RemotingLimits(sweep_interval_s=0.02), first_scan_s=0.01, scan_interval_s=0.01
    )
    server = NameServer("127.0.0.1", 0, tmp_path / "kv.json", options, clock_ms=clock)
    await server.start()
    running = Running(server, clock)
    yield running
    for caller in running.callers:
        caller.close()
    await server.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - any condition, not an event
            await asyncio.sleep(0.002)


async def test_a_broker_is_dropped_the_moment_its_connection_closes(running):
    broker, client = await running.caller(), await running.caller()
    answer = await broker.call(make_request(103, REGISTRATION, BODY), 5)
    assert answer.code == 0
    assert (await client.call(make_request(105, {"topic": "T1"}), 5)).code == 0
    broker.close()
    await until(lambda: not running.server.routes.live)
    answer = await client.call(make_request(105, {"topic": "T1"}), 5)
    assert answer.code == 17
    assert "closed by peer" in answer.remark


async def test_a_silent_broker_is_dropped_and_its_connection_closed(running):
    broker, client = await running.caller(), await running.caller()
    await broker.call(make_request(103, REGISTRATION, BODY), 5)
    running.clock.ms = 120_001
    await until(lambda: broker.closed)
    assert not client.closed
    answer = await client.call(make_request(105, {"topic": "T1"}), 5)
    assert "did not register for 120 s" in answer.remark


def register(running: Running, name: str, topics: int) -> None:
    """A broker whose connection nobody closes."""
    known = {f"T{number}": QueueData(4, 4, 6, 0) for number in range(topics)}
    address = f"{name}:10911"
    running.server.routes.register(
        Registration("C1", name, 0, address, "", DataVersion(1, 1), known, (), name)
    )


def counted_turns(running: Running) -> list[int]:
    """How many topics there are at the beginning of each turn of the loop from now on; a look at
    the clock of the turns takes a millisecond."""
    ticks = itertools.count()
    running.server._turns.clock = lambda: next(ticks) / 1_000
    loop, found = asyncio.get_running_loop(), []

    def count() -> None:
        found.append(len(running.server.routes.topics))
        if found[-1]:
            loop.call_soon(count)

    count()
    return found


@pytest.mark.parametrize("why", ["closed", "silent"])
async def test_topics_of_a_large_broker_that_goes_go_in_several_turns(running, why):
    register(running, "b-a", 20_000)
    topics = counted_turns(running)
    if why == "closed":
        running.server.routes.connection_closed("b-a", "reset")
    else:
        running.clock.ms = 120_001
    await until(lambda: not topics[-1])
    assert max(before - after for before, after in pairwise(topics)) < 4_000
    client = await running.caller()
    answer = await client.call(make_request(105, {"topic": "T1"}), 5)
    assert "its broker b-a is gone" in answer.remark


async def test_an_unregistration_of_a_large_broker_is_answered_when_all_is_done(running):
    register(running, "b-a", 20_000)
    client = await running.caller()
    topics = counted_turns(running)
    ext = {"brokerName": "b-a", "brokerAddr": "b-a:10911", "clusterName": "C1", "brokerId": "0"}
    answers = await asyncio.gather(
        client.call(make_request(205, {"brokerName": "b-a"}), 5),
        client.call(make_request(104, ext), 5),
        client.call(make_request(206), 5),
    )
    assert [answer.code for answer in answers] == [0, 0, 0]
    assert answers[0].ext == {"wipeTopicCount": "20000"}
    assert json.loads(answers[2].body) == {"topicList": []}
    assert len(topics) > 5


async def test_silent_brokers_go_some_in_a_turn(running):
    for number in range(100):
        register(running, f"b-{number}", 1)
    left: list[int] = []
    expire = running.server.routes.expire

    def counted(most: int) -> list[Registration]:
        gone = expire(most)
        left.append(len(running.server.routes.live))
        return gone

    running.server.routes.expire = counted
    running.clock.ms = 120_001
    await until(lambda: not running.server.routes.live)
    assert max(before - after for before, after in pairwise([100, *left])) <= 20


async def test_many_requests_of_one_read_are_answered_in_order(running):
    client = await running.caller()
    codes = [206, 9999, 105, 106]
    answers = await asyncio.gather(*(client.call(make_request(code), 5) for code in codes))
    assert [answer.code for answer in answers] == [0, 3, 1, 0]
    assert running.server.counts().requests == {206: 1, -1: 1, 105: 1, 106: 1}


def compressed(topics: int) -> bytes:
    def block(data: bytes) -> bytes:
        return struct.pack(">i", len(data)) + data

    data = block(b'{"counter":7,"timestamp":5}') + struct.pack(">i", topics)
    data += b"".join(block(b"T%d 4 4 6 SINGLE_TAG" % n) for n in range(topics)) + block(b"[]")
    return zlib.compress(data, 9)


async def test_a_large_registration_is_read_by_a_worker_while_others_are_served(
    running, monkeypatch
):
    broker, client = await running.caller(), await running.caller()
    may_read, threads = threading.Event(), []

    def slow(*args, **options):
        threads.append(threading.current_thread())
        may_read.wait(10)
        return read_registration(*args, **options)

    monkeypatch.setattr("aerobee.nameserver.name_server_requests.read_registration", slow)
    ext = {**REGISTRATION, "compressed": "true"}
    registering = asyncio.create_task(broker.call(make_request(103, ext, compressed(40_000)), 20))
    await until(lambda: bool(threads))
    assert (await client.call(make_request(105, {"topic": "T39999"}), 5)).code == 17
    assert threads[0] is not threading.main_thread()
    may_read.set()
    assert (await registering).code == 0
    assert (await client.call(make_request(105, {"topic": "T39999"}), 5)).code == 0


async def test_a_registration_whose_broker_has_gone_meanwhile_is_dropped(running, monkeypatch):
    broker = await running.caller()
    may_read, threads = threading.Event(), []

    def slow(*args, **options):
        threads.append(threading.current_thread())
        may_read.wait(10)
        return read_registration(*args, **options)

    monkeypatch.setattr("aerobee.nameserver.name_server_requests.read_registration", slow)
    ext = {**REGISTRATION, "compressed": "true"}
    broker.push(make_request(103, ext, compressed(20_000)))
    await until(lambda: bool(threads))
    broker.close()
    may_read.set()
    # The end of a connection is read behind the request that is in work.
    await until(lambda: running.server.stats.open == 0)
    assert not running.server.routes.live
    client = await running.caller()
    assert (await client.call(make_request(105, {"topic": "T1"}), 5)).code == 17


async def test_a_registration_of_too_many_topics_is_refused(running):
    broker = await running.caller()
    ext = {**REGISTRATION, "compressed": "true"}
    answer = await broker.call(make_request(103, ext, compressed(190_000)), 20)
    assert (answer.code, "190000 topics" in answer.remark) == (1, True)
    assert not running.server.routes.topics


async def test_the_shown_configuration_has_the_real_port(running):
    client = await running.caller()
    answer = await client.call(make_request(319), 5)
    assert f"listenPort={running.server.port}" in answer.body.decode().splitlines()


async def test_the_shown_configuration_has_every_name_of_the_references_but_paths(tmp_path):
    changes = {"nameserver_host": "127.0.0.1", "nameserver_port": 0}
    settings = Settings.for_tests(
        store_path=str(tmp_path), nameserver_order_messages=True, **changes
    )
    alone = NameServer.from_settings(settings)
    await alone.start()
    caller = await Caller.connect("127.0.0.1", alone.port, 5)
    lines = (await caller.call(make_request(319), 5)).body.decode().splitlines()
    shown = dict(line.split("=") for line in lines)
    names = """
        clusterTest listenPort orderMessageEnable productEnvName serverAsyncSemaphoreValue
        serverCallbackExecutorThreads serverChannelMaxIdleTimeSeconds serverOnewaySemaphoreValue
        serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog
        serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads useEpollNativeSelector
        writeBufferHighWaterMark writeBufferLowWaterMark
    """
    assert list(shown) == names.split()
    assert shown["orderMessageEnable"] == "true"
    assert shown["listenPort"] == str(alone.port)
    assert shown["serverSocketBacklog"] == "1024"
    # It is what clients get with a route, too.
    kv = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T1", "value": "b-a:4"}
    assert (await caller.call(make_request(100, kv), 5)).code == 0
    assert (await caller.call(make_request(103, REGISTRATION, BODY), 5)).code == 0
    route = json.loads((await caller.call(make_request(105, {"topic": "T1"}), 5)).body)
    assert route["orderTopicConf"] == "b-a:4"
    # It is set in the file alone.
    change = make_request(318, body=b"orderMessageEnable=false\n")
    assert (await caller.call(change, 5)).code == 16
    route = json.loads((await caller.call(make_request(105, {"topic": "T1"}), 5)).body)
    assert route["orderTopicConf"] == "b-a:4"
    caller.close()
    await alone.close()


async def test_a_change_of_the_kv_table_is_answered_when_it_is_on_disk(running, tmp_path):
    client = await running.caller()
    ext = {"namespace": "N", "key": "k", "value": "v"}
    assert (await client.call(make_request(100, ext), 5)).code == 0
    assert json.loads((tmp_path / "kv.json").read_bytes()) == {"configTable": {"N": {"k": "v"}}}
    again = NameServer("127.0.0.1", 0, tmp_path / "kv.json")
    await again.start()
    caller = await Caller.connect("127.0.0.1", again.port, 5)
    assert (await caller.call(make_request(101, ext), 5)).ext == {"value": "v"}
    caller.close()
    await again.close()


async def test_a_flood_of_changes_shares_few_saves_and_loses_none(running, tmp_path, monkeypatch):
    client = await running.caller()
    saves = 0
    save = running.server._kv_file.save

    def counted(text: str) -> None:
        nonlocal saves
        saves += 1
        save(text)

    monkeypatch.setattr(running.server._kv_file, "save", counted)
    puts = [make_request(100, {"namespace": "N", "key": str(n), "value": "v"}) for n in range(300)]
    answers = await asyncio.gather(*(client.call(put, 5) for put in puts))
    assert all(answer.code == 0 for answer in answers)
    stored = json.loads((tmp_path / "kv.json").read_bytes())["configTable"]["N"]
    assert len(stored) == 300
    assert saves < 100


async def test_answers_keep_the_order_of_requests_while_changes_are_saved(running):
    client = await running.caller()
    arrived: list[int] = []
    requests = [
        make_request(100, {"namespace": "N", "key": "k", "value": "v"}),
        make_request(101, {"namespace": "N", "key": "k"}),
        make_request(102, {"namespace": "N", "key": "none"}),
        make_request(100, {"namespace": "N", "key": "k", "value": "w" * 70_000}),
        make_request(206),
        make_request(102, {"namespace": "N", "key": "k"}),
        make_request(101, {"namespace": "N", "key": "k"}),
    ]

    async def ask(number: int) -> int:
        answer = await client.call(requests[number], 60)
        arrived.append(number)
        return answer.code

    codes = await asyncio.gather(*map(ask, range(len(requests))))
    assert codes == [0, 0, 0, 1, 0, 0, 22]
    assert arrived == list(range(len(requests)))


async def test_one_connection_cannot_have_more_changes_waiting_than_a_bound(running, monkeypatch):
    client = await running.caller()
    monkeypatch.setattr(server, "_CHANGES_WAITING", 10)
    monkeypatch.setattr(running.server._kv_file, "save", lambda _text: None)
    most = 0
    serve_now = running.server._serve_now

    def watched(connection, command):
        nonlocal most
        answer = serve_now(connection, command)
        most = max(most, *(one.count for one in running.server._waiting.values()))
        return answer

    monkeypatch.setattr(running.server, "_serve_now", watched)
    puts = [make_request(100, {"namespace": "N", "key": str(n), "value": "v"}) for n in range(45)]
    answers = await asyncio.gather(*(client.call(put, 30) for put in puts))
    assert all(answer.code == 0 for answer in answers)
    assert most == 10


async def test_all_connections_together_have_a_bound_of_changes_that_wait(running, monkeypatch):
    """A body with them means nothing, and is not kept."""
    clients = [await running.caller() for _ in range(6)]
    monkeypatch.setattr(server, "ALL_CHANGES_WAITING", 10)
    monkeypatch.setattr(running.server._kv_file, "save", lambda _text: None)
    most: list[int] = []
    serve_now = running.server._serve_now

    def watched(connection, command):
        answer = serve_now(connection, command)
        most.append(running.server._answers_due)
        assert all(one.command.body == b"" for one in running.server._unsaved)
        return answer

    monkeypatch.setattr(running.server, "_serve_now", watched)
    asked = []
    for number in range(60):
        ext = {"namespace": "N", "key": str(number), "value": "v"}
        asked.append(clients[number % 6].call(make_request(100, ext, bytes(1_000)), 30))
    answers = await asyncio.gather(*asked)
    assert all(answer.code == 0 for answer in answers)
    assert max(most) == 10
    assert running.server._answers_due == 0


async def test_answers_behind_a_save_leave_some_a_turn(running, monkeypatch):
    """The clock of the turns moves a millisecond with each answer, so a slice has a few."""
    client = await running.caller()
    may_save = threading.Event()
    monkeypatch.setattr(running.server._kv_file, "save", lambda _text: may_save.wait(10))
    monkeypatch.setattr(server, "_ANSWERED_AT_ONCE", 1)
    puts = [make_request(100, {"namespace": "N", "key": str(n), "value": "v"}) for n in range(200)]
    asked = [asyncio.create_task(client.call(put, 30)) for put in puts]
    await until(lambda: running.server._answers_due == 200)
    turns, let_leave = running.server._turns, running.server._let_leave
    loop = asyncio.get_running_loop()
    moved_s, turn = 0.0, 0
    left_in: Counter[int] = Counter()

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        if running.server._answers_due:
            loop.call_soon(next_turn)

    def slow(*args):
        nonlocal moved_s
        moved_s += 0.001
        left_in[turn] += 1
        return let_leave(*args)

    monkeypatch.setattr(turns, "clock", lambda: time.perf_counter() + moved_s)
    monkeypatch.setattr(running.server, "_let_leave", slow)
    loop.call_soon(next_turn)
    may_save.set()
    assert all(answer.code == 0 for answer in await asyncio.gather(*asked))
    assert left_in.total() == 200
    assert max(left_in.values()) <= 8


async def test_a_change_that_cannot_be_saved_is_an_error(running, monkeypatch):
    client = await running.caller()

    def fails(_text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(running.server._kv_file, "save", fails)
    ext = {"namespace": "N", "key": "k", "value": "v"}
    answer = await client.call(make_request(100, ext), 5)
    assert answer.code == 1
    assert "could not be written" in answer.remark


async def test_closing_waits_for_the_save(tmp_path):
    server = NameServer("127.0.0.1", 0, tmp_path / "kv.json")
    await server.start()
    client = await Caller.connect("127.0.0.1", server.port, 5)
    ext = {"namespace": "N", "key": "k", "value": "v"}
    call = asyncio.create_task(client.call(make_request(100, ext), 5))
    await until(lambda: server.counts().requests.get(100) == 1)
    await server.close()
    assert (await call).code == 0
    assert (tmp_path / "kv.json").exists()


async def test_a_bug_in_one_request_does_not_cost_the_connection(running, monkeypatch, caplog):
    client = await running.caller()
    monkeypatch.setattr(running.server.routes, "find", lambda _topic: 1 / 0)
    answer = await client.call(make_request(105, {"topic": "T1"}), 5)
    assert answer.code == 1
    assert "ZeroDivision" not in answer.remark
    assert "ZeroDivision" in caplog.text
    assert (await client.call(make_request(206), 5)).code == 0


async def test_a_taken_port_is_a_clear_error(running, tmp_path):
    second = NameServer("127.0.0.1", running.server.port, tmp_path / "kv2.json")
    with pytest.raises(RemotingListenError, match="Address already in use"):
        await second.start()
    await second.close()
