"""Registering at name servers: our own over sockets, and a scripted server that records
requests."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.cluster.registration import name_server_link, namesake, registration
from aerobee.broker.cluster.registration.broker_address import Advertised, Identity
from aerobee.broker.cluster.registration.name_server_link import parse_server
from aerobee.broker.cluster.registration.registration import Registrar, registration_body
from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.broker.tables.topics import TopicTable
from aerobee.config.model import Settings
from aerobee.nameserver.bodies import read_registration, read_topics
from aerobee.nameserver.routes import QueueData, Registration
from aerobee.nameserver.server import NameServer
from aerobee.protocol.bodies.topics import DataVersion, TopicConfig
from aerobee.protocol.frames.command import Command, encode_response
from aerobee.remoting.connection_limits import RemotingLimits
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.listening.server import RemotingServer
from aerobee.store.errors import StoreNotWritable
from tests.inline_loop import INLINE

pytestmark = pytest.mark.both_loops


@dataclass
class Broker:
    topics: TopicTable
    identity: Identity


class ScriptedNameServer:
    """Answers what `answer` says and keeps every request."""

    def __init__(self) -> None:
        self.requests: list[Command] = []
        self.answer: Callable[[Command], bytes | None] = lambda c: encode_response(c, 0)
        self.connections: list[Connection] = []
        self._server = RemotingServer(self, RemotingLimits(sweep_interval_s=0.02))

    async def start(self, port: int = 0) -> str:
        return f"127.0.0.1:{await self._server.start('127.0.0.1', port)}"

    async def close(self) -> None:
        await self._server.close()

    def of(self, code: int) -> list[Command]:
        return [command for command in self.requests if command.code == code]

    def connection_opened(self, connection: Connection) -> None:
        self.connections.append(connection)

    def commands_received(self, connection: Connection, commands: Iterable[Command]) -> None:
        for command in commands:
            self.requests.append(command)
            answer = self.answer(command)
            if answer is not None:
                connection.write(answer)

    def connection_closed(self, connection: Connection, reason: str) -> None:
        pass


class World:
    """A broker, name servers, registrars; all stopped at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = Settings.for_tests(
            broker_name="b-a", register_interval_ms=30_000, store_path=str(path)
        )
        clock = iter(range(1_000_000, 10_000_000)).__next__
        options = Settings.for_tests(
            broker_name="b-a",
            cluster_name="DefaultCluster",
            max_topics=100,
            auto_create_per_minute=100,
        )
        table = TopicTable(options, JsonStateFile(path / "topics.json"), clock, INLINE)
        self.broker = Broker(table, Identity(Advertised("10.0.0.1", "10.0.0.1", ()), 10911))
        self._stop: list[Callable[[], Any]] = []

    async def scripted(self) -> tuple[ScriptedNameServer, str]:
        server = ScriptedNameServer()
        self._stop.append(server.close)
        return server, await server.start()

    async def name_server(self, port: int = 0) -> NameServer:
        server = NameServer("127.0.0.1", port, self.path / "kv.json")
        await server.start()
        self._stop.append(server.close)
        return server

    async def registrar(
        self, *servers: str, ha_address: str = "", port: int = 10911, **changes: Any
    ) -> Registrar:
        settings = self.settings.with_changes(**changes)
        identity = self.broker.identity._replace(port=port)
        registrar = Registrar(
            settings, identity, self.broker.topics, servers, ha_address=ha_address
        )
        self._stop.append(registrar.stop)
        await registrar.start()
        return registrar

    async def close(self) -> None:
        for stop in reversed(self._stop):
            await stop()


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(name_server_link, "_RETRY_FIRST_S", 0.01)
    monkeypatch.setattr(name_server_link, "_RETRY_LAST_S", 0.02)
    world = World(tmp_path)
    yield world
    await world.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - any condition, not an event
            await asyncio.sleep(0.002)


def topics_of(command: Command) -> set[str]:
    compressed = command.ext["compressed"] == "true"
    body = read_registration(command.body, compressed=compressed, max_inflated_bytes=1 << 20)
    return set(body.topics)


def all_topics(world: World) -> set[str]:
    return {topic.name for topic in world.broker.topics.all()}


async def test_all_name_servers_know_every_topic_after_the_start(world):
    servers = [await world.name_server(), await world.name_server()]
    addresses = [f"127.0.0.1:{server.port}" for server in servers]
    registrar = await world.registrar(*addresses)
    assert registrar.registered == dict.fromkeys(addresses, True)
    assert registrar.errors == dict.fromkeys(addresses)
    for server in servers:
        assert set(server.routes.topics) == all_topics(world)
        queues, (group,) = server.routes.find("TBW102")
        assert queues["b-a"].perm == 7
        assert group.addresses == {0: "10.0.0.1:10911"}
        assert group.cluster == "DefaultCluster"


async def test_the_request_is_as_the_reference_sends_it(world):
    server, address = await world.scripted()
    await world.registrar(address)
    (request,) = server.of(103)
    assert request.version >= 37
    assert request.ext == {
        "brokerName": "b-a",
        "brokerAddr": "10.0.0.1:10911",
        "clusterName": "DefaultCluster",
        "brokerId": "0",
        "haServerAddr": "",
        "compressed": "false",
        "bodyCrc32": str(zlib.crc32(request.body) & 0x7FFFFFFF),
    }
    document = json.loads(request.body)
    assert document["filterServerList"] == []
    wrapper = document["topicConfigSerializeWrapper"]
    assert wrapper["topicConfigTable"]["TBW102"] == {
        "order": False,
        "perm": 7,
        "readQueueNums": 8,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "TBW102",
        "topicSysFlag": 0,
        "writeQueueNums": 8,
    }
    assert set(wrapper["dataVersion"]) == {"counter", "timestamp"}


async def test_a_server_that_is_down_is_registered_when_it_comes(world):
    running = await world.name_server()
    late = await world.name_server()
    port = late.port
    await late.close()
    up, down = f"127.0.0.1:{running.port}", f"127.0.0.1:{port}"
    registrar = await world.registrar(up, down)
    assert registrar.registered == {up: True, down: False}
    assert "refused" in registrar.errors[down]
    late = await world.name_server(port)
    await until(lambda: registrar.registered[down])
    assert set(late.routes.topics) == all_topics(world)


async def test_a_restarted_name_server_gets_the_whole_table_again(world):
    first = await world.name_server()
    address = f"127.0.0.1:{first.port}"
    registrar = await world.registrar(address)
    await first.close()
    await until(lambda: not registrar.registered[address])
    # A change while nobody listens is part of the next whole registration.
    world.broker.topics.update(TopicConfig("new")).result()
    second = await world.name_server(first.port)
    await until(lambda: registrar.registered[address])
    assert set(second.routes.topics) == all_topics(world) >= {"new", "TBW102"}


async def test_a_changed_topic_is_told_at_once_and_alone(world):
    server, address = await world.scripted()
    await world.registrar(address)
    for name in ("one", "two"):
        world.broker.topics.update(TopicConfig(name)).result()
    await until(lambda: len(server.of(103)) == 2)
    assert topics_of(server.of(103)[1]) == {"one", "two"}
    version = json.loads(server.of(103)[1].body)["topicConfigSerializeWrapper"]["dataVersion"]
    assert version == world.broker.topics.data_version.to_json()


async def test_many_changes_in_one_save_are_one_registration(world):
    server, address = await world.scripted()
    loop = asyncio.get_running_loop()
    topics = world.broker.topics = TopicTable(
        world.settings, JsonStateFile(world.path / "topics.json"), lambda: 7, loop
    )
    await world.registrar(address)
    changes = [topics.update(TopicConfig(f"T{number}")) for number in range(300)]
    await asyncio.wait(changes)
    await until(lambda: len(server.of(103)) == 2)
    assert topics_of(server.of(103)[1]) == {f"T{number}" for number in range(300)}
    topics.delete("T0")
    topics.delete("T1")
    topics.update(TopicConfig("T2", 9, 9))
    await topics.flush()
    # One with the topic, one with the whole table.
    await until(lambda: len(server.of(103)) == 4)
    assert sorted(len(topics_of(command)) for command in server.of(103)[2:]) == [1, len(topics)]


async def test_order_topics_that_cannot_be_written_do_not_end_the_registration(
    world, monkeypatch, caplog
):
    server, address = await world.scripted()
    body = json.dumps({"table": {"TBW102": "b-a:4"}}).encode()
    server.answer = lambda c: encode_response(c, 0, body=body)

    def full(self: JsonStateFile, _text: object) -> None:
        raise StoreNotWritable(f"the disk is full: {self.path}")

    monkeypatch.setattr(JsonStateFile, "save_or_refuse", full)
    await world.registrar(address, register_interval_ms=10)
    await until(lambda: len(server.of(103)) >= 4)
    assert "order topics not saved" in caplog.text
    assert not world.broker.topics.get("TBW102").order


async def test_a_deleted_topic_is_told_with_the_whole_table(world):
    server, address = await world.scripted()
    await world.registrar(address)
    world.broker.topics.update(TopicConfig("gone")).result()
    world.broker.topics.delete("gone").result()
    await until(lambda: any(topics_of(c) == all_topics(world) for c in server.of(103)[1:]))
    assert all("gone" not in topics_of(command) for command in server.of(103))


async def test_a_change_that_was_refused_is_mended_by_a_whole_registration(world):
    server, address = await world.scripted()
    await world.registrar(address)
    server.answer = lambda c: encode_response(c, 1 if topics_of(c) == {"one"} else 0)
    world.broker.topics.update(TopicConfig("one")).result()
    await until(lambda: len(server.of(103)) == 3)
    assert topics_of(server.of(103)[2]) == all_topics(world)


async def test_renewals_carry_everything_when_forced(world):
    server, address = await world.scripted()
    await world.registrar(address, register_interval_ms=10)
    await until(lambda: len(server.of(103)) >= 4)
    assert all(topics_of(command) == all_topics(world) for command in server.of(103))
    assert len(server.connections) == 1


async def test_unforced_renewals_ask_first(world):
    server, address = await world.scripted()
    changed = "false"

    def answer(command: Command) -> bytes:
        ext = {"changed": changed} if command.code == 322 else None
        return encode_response(command, 0, None, ext)

    server.answer = answer
    await world.registrar(address, register_interval_ms=10, force_register=False)
    await until(lambda: len(server.of(322)) >= 3)
    assert len(server.of(103)) == 1
    asked = server.of(322)[0]
    assert json.loads(asked.body) == world.broker.topics.data_version.to_json()
    assert asked.ext["brokerAddr"] == "10.0.0.1:10911"
    changed = "true"
    await until(lambda: len(server.of(103)) >= 2)


SLAVE: dict[str, Any] = {"broker_role": "SLAVE", "broker_id": 1, "port": 20911}


async def test_a_slave_learns_its_master_and_its_master_where_slaves_connect(world):
    server = await world.name_server()
    address = f"127.0.0.1:{server.port}"
    slave = await world.registrar(address, ha_address="10.0.0.1:20912", **SLAVE)
    assert slave.registered == {address: True}, "a slave without a master is registered"
    assert (slave.master.remoting, slave.master.ha, slave.master.changes) == (None, None, 0)
    master = await world.registrar(address, ha_address="10.0.0.1:10912")
    assert {live.broker_id: live.ha_address for live in server.routes.live.values()} == {
        0: "10.0.0.1:10912",
        1: "10.0.0.1:20912",
    }
    slave.ask_for_master()
    async with asyncio.timeout(5):
        await slave.master.wait_change(0)
    assert (slave.master.remoting, slave.master.ha) == ("10.0.0.1:10911", "10.0.0.1:10912")
    assert (master.master.remoting, master.master.ha) == (None, None)
    await master.stop()
    slave.ask_for_master()
    await until(lambda: not slave.master.known)
    assert slave.master.remoting == "10.0.0.1:10911", "it may be back in a moment"


async def test_a_slave_registers_all_each_time_to_hear_of_its_master(world):
    server, address = await world.scripted()
    slave = await world.registrar(address, register_interval_ms=10, force_register=False, **SLAVE)
    await until(lambda: len(server.of(103)) >= 3)
    assert server.of(322) == []
    assert {command.ext["brokerId"] for command in server.of(103)} == {"1"}
    moved = {"masterAddr": "10.0.0.9:10911", "haServerAddr": "10.0.0.9:10912"}
    server.answer = lambda c: encode_response(c, 0, None, moved)
    await until(lambda: slave.master.ha == "10.0.0.9:10912")


async def test_what_a_lost_name_server_said_does_not_outweigh_another(world):
    server, first = await world.scripted()
    other, second = await world.scripted()
    for scripted, host in ((server, "a"), (other, "b")):
        said = {"masterAddr": f"{host}:10911", "haServerAddr": f"{host}:10912"}
        scripted.answer = lambda c, said=said: encode_response(c, 0, None, said)
    slave = await world.registrar(first, second, **SLAVE)
    assert slave.master.remoting == "a:10911"
    await server.close()
    await until(lambda: slave.master.remoting == "b:10911")


async def test_stopping_unregisters(world):
    server = await world.name_server()
    registrar = await world.registrar(f"127.0.0.1:{server.port}")
    await registrar.stop()
    assert not server.routes.live
    assert "unregistered" in server.routes.why_missing("TBW102")
    assert not any(registrar.registered.values())


async def test_a_broker_that_is_started_again_at_once_keeps_its_routes(world):
    server = await world.name_server()
    registrar = await world.registrar(f"127.0.0.1:{server.port}")
    await registrar.stop(returns=True)
    await until(lambda: not server.stats.open)
    assert server.routes.find("TBW102") is not None
    await world.registrar(f"127.0.0.1:{server.port}")
    (live,) = server.routes.live.values()
    assert live.owner is not None, "its connection speaks for it again"


async def test_a_broker_that_may_not_be_written_registers_no_writable_topic(world):
    server, address = await world.scripted()
    await world.registrar(address, broker_permission=4)
    (request,) = server.of(103)
    table = json.loads(request.body)["topicConfigSerializeWrapper"]["topicConfigTable"]
    assert {topic["perm"] for topic in table.values()} == {4, 5}
    assert table["TBW102"]["perm"] == 5
    assert world.broker.topics.get("TBW102").perm == 7


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("permission", "topics", "announced"),
    [(6, [0, 2, 4, 6, 7], [0, 2, 4, 6, 7]), (4, [0, 2, 4, 6, 7], [0, 0, 4, 4, 5]),
     (2, [0, 2, 4, 6, 7], [0, 2, 0, 2, 3]), (0, [2, 6, 7], [0, 0, 1])],
)  # fmt: skip
def test_a_topic_is_announced_with_what_it_and_its_broker_allow(
    permission: int, topics: list[int], announced: list[int], compressed: bool
) -> None:
    named = [TopicConfig(f"T{number}", perm=perm) for number, perm in enumerate(topics)]
    body = registration_body(DataVersion(1, 1), named, permission, compressed=compressed)
    found = read_registration(body, compressed=compressed, max_inflated_bytes=1 << 20)
    assert [one.perm for one in read_topics(found.topics).values()] == announced


async def test_the_compressed_form_says_the_same(world):
    server, address = await world.scripted()
    await world.registrar(address, compressed_register=True)
    (request,) = server.of(103)
    assert request.ext["compressed"] == "true"
    assert request.body[:2] == b"\x78\xda"
    assert int(request.ext["bodyCrc32"]) == zlib.crc32(request.body) & 0x7FFFFFFF
    body = read_registration(request.body, compressed=True, max_inflated_bytes=1 << 20)
    queues = read_topics(body.topics)
    assert set(queues) == all_topics(world)
    assert queues["TBW102"] == QueueData(8, 8, 7, 0)


async def test_a_long_reason_of_a_refusal_is_cut(world):
    """Each try logs it, and a frame holds 256 KiB of it."""
    server, address = await world.scripted()
    server.answer = lambda c: encode_response(c, 1, "x" * 50_000)
    registrar = await world.registrar(address)
    assert len(registrar.errors[address]) < 600


async def test_a_refusal_shows_its_reason_and_is_tried_again(world):
    server, address = await world.scripted()
    server.answer = lambda c: encode_response(c, 1, "crc32 not match")
    registrar = await world.registrar(address)
    assert registrar.registered == {address: False}
    assert registrar.errors[address] == "refused with code 1: crc32 not match"
    server.answer = lambda c: encode_response(c, 0)
    await until(lambda: registrar.registered[address])
    assert registrar.errors[address] is None


async def test_a_server_that_closes_without_a_word_may_want_tls(world, caplog):
    server, address = await world.scripted()
    server.answer = lambda _c: server.connections[-1].close("scripted")
    registrar = await world.registrar(address)
    hint = "(does it take nothing but TLS? tls.enable=true speaks it)"
    assert registrar.errors[address].endswith(f"closed: closed by peer {hint}")
    assert caplog.text.count(hint) == 1, "not at each try"
    # A server that has answered is spoken to as it wants.
    server.answer = lambda c: encode_response(c, 0)
    await until(lambda: registrar.registered[address])
    caplog.clear()
    server.answer = lambda _c: server.connections[-1].close("scripted")
    world.broker.topics.update(TopicConfig("one")).result()
    await until(lambda: "the connection ended: closed by peer" in caplog.text)
    assert hint not in caplog.text.partition("the connection ended")[0]
    assert "'the connection ended: closed by peer'" in caplog.text


async def test_a_server_that_does_not_answer_does_not_hold_up_the_start(world, monkeypatch):
    monkeypatch.setattr(registration, "_FIRST_TRY_S", 0.5)
    silent, silent_address = await world.scripted()
    silent.answer = lambda _c: None
    good = await world.name_server()
    good_address = f"127.0.0.1:{good.port}"
    async with asyncio.timeout(3):
        registrar = await world.registrar(silent_address, good_address)
    assert registrar.registered == {silent_address: False, good_address: True}


async def test_order_topics_come_from_the_first_server_only(world):
    first, first_address = await world.scripted()
    second, second_address = await world.scripted()
    world.broker.topics.update(TopicConfig("T1")).result()
    world.broker.topics.update(TopicConfig("T2")).result()
    first.answer = lambda c: encode_response(c, 0, body=b'{"table":{"T1":"b-a:4"}}')
    second.answer = lambda c: encode_response(c, 0, body=b'{"table":{"T2":"b-a:4"}}')
    await world.registrar(first_address, second_address, register_interval_ms=10)
    counts = len(first.requests), len(second.requests)
    await until(lambda: len(first.of(103)) > counts[0] + 3 and len(second.of(103)) > counts[1] + 3)
    assert world.broker.topics.get("T1").order
    assert not world.broker.topics.get("T2").order


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"table":5}', b'{"table":null}'])
async def test_a_strange_answer_does_not_end_registering(world, body):
    server, address = await world.scripted()
    server.answer = lambda c: encode_response(c, 0, body=body)
    registrar = await world.registrar(address, register_interval_ms=10)
    await until(lambda: len(server.of(103)) >= 3)
    assert registrar.registered[address]


async def test_without_name_servers_the_start_says_so(world, caplog):
    registrar = await world.registrar()
    assert registrar.registered == {}
    assert "no name server" in caplog.text


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("10.0.0.1:9876", ("10.0.0.1", 9876)),
        (" ns ", ("ns", 9876)),
        ("[::1]:9877", ("::1", 9877)),
        ("[::1]", ("::1", 9876)),
        ("fe80::1", ("fe80::1", 9876)),
    ],
)
def test_addresses_of_name_servers(text, parsed):
    assert parse_server(text) == parsed


@pytest.mark.parametrize("text", ["", ":9876", "ns:x", "ns:0", "ns:70000", "[::1]9876", "ns:-1"])
def test_addresses_that_are_none(text):
    with pytest.raises(ValueError, match="host:port"):
        parse_server(text)


# --- another broker of the same name


async def listening(world: World) -> str:
    """The address of a port that takes connections, as a broker's would."""
    _, address = await world.scripted()
    return address


async def gone(world: World) -> str:
    server, address = await world.scripted()
    await server.close()
    return address


async def registered_elsewhere(
    world: World, address: str, name: str = "b-a", broker_id: int = 0
) -> str:
    """A name server that knows a broker of this name and id at `address`."""
    server = await world.name_server()
    register_at(server, address, name, broker_id)
    return f"127.0.0.1:{server.port}"


def register_at(server: NameServer, address: str, name: str = "b-a", broker_id: int = 0) -> None:
    """Have a name server know a broker of this name and id at `address`."""
    body = read_registration(b"{}", compressed=False, max_inflated_bytes=1)
    server.routes.register(
        Registration(
            *("DefaultCluster", name, broker_id, address, ""),
            *(body.data_version, body.topics, (), "its connection"),
        )
    )


async def test_a_live_broker_of_the_same_name_is_warned_of_once(world, caplog):
    other = await listening(world)
    registrar = await world.registrar(await registered_elsewhere(world, other))
    (warning,) = registrar.warnings
    assert f"another broker, at {other}, is registered as b-a with id 0" in warning
    assert "10.0.0.1:10911" in warning
    # The commoner reason comes first: two machines of one name are meant as a pair.
    assert 0 < warning.index("brokerRole=SLAVE") < warning.index("brokerName")
    assert [r.getMessage() for r in caplog.records].count(warning) == 1
    # It is let in all the same: it may be this very broker, at a new address.
    assert all(registrar.registered.values())


async def test_two_that_start_at_one_time_see_each_other_in_a_later_round(world, caplog):
    server = await world.name_server()
    registrar = await world.registrar(f"127.0.0.1:{server.port}", register_interval_ms=100)
    assert registrar.namesake_problem() is None
    other = await listening(world)

    def registers() -> str | None:
        register_at(server, other)
        return registrar.namesake_problem()

    await until(registers)
    assert f"another broker, at {other}, is registered as b-a" in registrar.namesake_problem()
    # Once it stops the note goes, and comes again with it.
    await until(lambda: registrar.namesake_problem() is None)
    await until(registers)
    said = [one.getMessage() for one in caplog.records if "another broker, at" in one.getMessage()]
    assert len(said) == 2


async def test_a_live_slave_of_the_same_id_is_warned_of(world):
    other = await listening(world)
    elsewhere = await registered_elsewhere(world, other, broker_id=1)
    registrar = await world.registrar(elsewhere, broker_role="SLAVE", broker_id=1)
    (warning,) = registrar.warnings
    assert f"another slave, at {other}, is registered as b-a with id 1" in warning
    assert "brokerId" in warning
    assert all(registrar.registered.values())
    beside = await registered_elsewhere(world, other, broker_id=2)
    alone = await world.registrar(beside, broker_role="SLAVE", broker_id=1)
    assert alone.warnings == ()


@pytest.mark.parametrize("case", ["gone", "another name", "same address"])
async def test_nobody_else_is_warned_of(world, case):
    address, name = await listening(world), "b-a"
    if case == "gone":
        address = await gone(world)
    elif case == "another name":
        name = "b-b"
    else:
        address = world.broker.identity.endpoint
    registrar = await world.registrar(await registered_elsewhere(world, address, name))
    assert registrar.warnings == ()
    assert all(registrar.registered.values())


@pytest.mark.parametrize("body", [b"", b"{", b'{"brokerAddrTable":[]}', None])
async def test_a_name_server_that_does_not_tell_its_brokers_is_registered_at(
    world, monkeypatch, body
):
    monkeypatch.setattr(namesake, "_ASK_S", 0.05)
    server, address = await world.scripted()

    def answer(command):
        if command.code != 106:
            return encode_response(command, 0)
        return None if body is None else encode_response(command, 0, body=body)

    server.answer = answer
    registrar = await world.registrar(address)
    await until(lambda: registrar.registered[address])
    assert registrar.warnings == ()
    assert len(server.of(106)) == 1
