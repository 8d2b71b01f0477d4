"""Draining a broker: its producers go to the other before it stops, and no send fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, cast

import pytest

from aerobee.broker.lifecycle import drain as drain_module
from aerobee.broker.lifecycle import drain_doors
from aerobee.broker.lifecycle.daemon import Daemon
from aerobee.broker.lifecycle.drain import Drain
from aerobee.broker.monitoring.http import Request
from aerobee.client.admin import Admin
from aerobee.client.consuming.pull_consumer import PullConsumer
from aerobee.client.message import Message
from aerobee.client.options import ProducerOptions
from aerobee.client.producing.producer import Producer
from aerobee.config.model import Settings
from aerobee.nameserver.server import NameServer
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.drain import DRAINED, DRAINING, SERVING
from aerobee.protocol.bodies.routes import PERM_READ, PERM_READ_WRITE
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import make_request
from aerobee.testing import SMALL
from tests.ports import free_port

TOPIC, OWN = "Orders", "OnlyHere"
# Clients of these tests read routes five times a second.
REFRESH_S = 0.2
OPTIONS = ProducerOptions(
    retries=0,
    route_refresh_interval_s=REFRESH_S,
    heartbeat_interval_s=REFRESH_S,
    avoid_failed_broker_s=0.0,
)


class World:
    """A name server beside the brokers, and those brokers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server = NameServer("127.0.0.1", 0, folder / "kv.json")
        self.daemons: dict[str, Daemon] = {}
        self.ports = {"a": free_port(), "b": free_port()}

    async def start(self) -> None:
        await self._server.start()
        self.address = f"127.0.0.1:{self._server.port}"

    async def broker(self, name: str, **changes: Any) -> Daemon:
        """Start a broker; one of a name that was here before has its store."""
        settings = Settings.for_tests(
            **{
                **SMALL,
                "broker_name": name,
                "listen_port": self.ports[name],
                "vip_port_enabled": False,
                "store_path": str(self.folder / name),
                "name_servers": self.address,
                "nameserver_enabled": False,
                "drain_route_refresh_ms": round(2000 * REFRESH_S),
                **changes,
            }
        )
        daemon = self.daemons[name] = Daemon(settings)
        await daemon.start()
        return daemon

    async def stop(self, name: str) -> None:
        await self.daemons.pop(name).stop()

    async def lose_name_server(self) -> None:
        await self._server.close()

    async def topic(self, topic: str, broker: str | None = None) -> None:
        async with Admin(self.address) as admin:
            await admin.create_topic(topic, queues=2, broker=broker)
        await until(lambda: len(self.rights(topic)) >= (1 if broker else len(self.daemons)))

    def rights(self, topic: str) -> dict[str, int]:
        """The permission of the topic at each broker, as the name server tells clients."""
        queues = self._server.routes.topics.get(topic, {})
        return {name: queue.perm for name, queue in queues.items()}

    async def await_rights(self, topic: str, expected: dict[str, int]) -> None:
        """The name server takes over the topics of a registration in steps."""
        await until(lambda: self.rights(topic) == expected)

    async def close(self) -> None:
        for daemon in self.daemons.values():
            await daemon.stop()
        await self._server.close()


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(drain_module, "_QUIET_S", 0.1)
    monkeypatch.setattr(drain_module, "_TICK_S", 0.02)
    monkeypatch.setattr(drain_module, "_LOOK_AGAIN_S", 0.2)
    monkeypatch.setattr(drain_module, "_LOOK_RARELY_S", 0.2)
    world = World(tmp_path)
    await world.start()
    yield world
    await world.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - any condition, not an event
            await asyncio.sleep(0.01)


def drain_of(daemon: Daemon) -> Drain:
    return daemon._the_drain()


class Sending:
    """A producer that sends all the time, without tries of its own."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stopping = False
        self.sent: list[str] = []
        self.failed: list[str] = []
        self.brokers: set[str] = set()

    async def run(self) -> None:
        async with Producer(self._address, "pg", OPTIONS) as producer:
            number = 0
            while not self._stopping:
                body = str(number)
                number += 1
                try:
                    result = await producer.send(Message(TOPIC, body.encode()))
                except Exception as error:  # noqa: BLE001 - each is counted
                    self.failed.append(f"{body}: {error}")
                else:
                    self.sent.append(body)
                    self.brokers.add(result.queue.broker_name)
                await asyncio.sleep(0.002)

    def stop(self) -> None:
        self._stopping = True


async def stored(address: str) -> list[str]:
    found = []
    async with PullConsumer(address) as consumer:
        for queue in await consumer.queues(TOPIC):
            offset, end = 0, await consumer.max_offset(queue)
            while offset < end:
                batch = await consumer.pull(queue, offset)
                found += [message.body.decode() for message in batch.messages]
                offset = batch.next_offset
    return found


@pytest.mark.parametrize("by_stop", [True, False])
async def test_a_rolling_restart_under_a_sending_producer_fails_no_send(
    world: World, by_stop: bool
) -> None:
    for name in "ab":
        await world.broker(name)
    await world.topic(TOPIC)
    sending = Sending(world.address)
    task = asyncio.create_task(sending.run())
    await until(lambda: sending.brokers == {"a", "b"})
    for name in "ab":
        daemon = world.daemons[name]
        if by_stop:
            await daemon.let_producers_go()
        else:
            await drain_of(daemon).begin_and_hear()
            await drain_of(daemon).wait_over()
        assert drain_of(daemon).status().state == DRAINED
        assert drain_of(daemon).status().senders_left
        await world.stop(name)
        await world.broker(name)
        sending.brokers.clear()
        await until(lambda: sending.brokers == {"a", "b"})
    sending.stop()
    await task
    assert sending.failed == []
    assert sorted(await stored(world.address)) == sorted(sending.sent)


async def test_the_only_broker_is_not_drained_and_stops_at_once(world: World) -> None:
    only = await world.broker("a")
    await world.topic(TOPIC)
    began = asyncio.get_running_loop().time()
    await only.let_producers_go()
    assert asyncio.get_running_loop().time() - began < 0.5
    status = drain_of(only).status()
    assert (status.state, status.withheld) == (SERVING, 0)
    assert "no other master" in status.reason
    await world.await_rights(TOPIC, {"a": PERM_READ_WRITE})
    assert only.health.ready


async def test_a_broker_whose_topics_nobody_else_has_is_not_drained(world: World) -> None:
    first = await world.broker("a")
    await world.broker("b")
    await world.topic(OWN, "a")
    assert (await drain_of(first).begin_and_hear()).state == SERVING


async def test_a_drained_broker_is_not_ready_and_serves_until_it_is_undone(world: World) -> None:
    first = await world.broker("a")
    await world.broker("b")
    await world.topic(TOPIC)
    await world.topic(OWN, "a")
    drain = drain_of(first)
    status = await drain.begin_and_hear()
    assert (status.state, status.untaken) == (DRAINING, [OWN])
    status = await drain.wait_over()
    assert (status.state, status.senders_left) == (DRAINED, True)
    await world.await_rights(TOPIC, {"a": PERM_READ, "b": PERM_READ_WRITE})
    await world.await_rights(OWN, {"a": PERM_READ_WRITE})
    assert [one.name for one in first.health.run() if not one.ok] == ["draining"]
    async with Producer(world.address, "late", OPTIONS) as late:
        await late.send(Message(TOPIC, b"by an old route"), queue=MessageQueue(TOPIC, "a", 0))
    assert await stored(world.address) == ["by an old route"], "pulls go on"
    # A second drain changes nothing, and one of everything takes the rest as well.
    assert (await drain.begin_and_hear()).state == DRAINED
    drain.begin(everything=True)
    await until(lambda: first.registrar.all_told)
    await world.await_rights(OWN, {"a": PERM_READ})
    assert drain.status().untaken == [OWN]
    drain.undo()
    drain.undo()
    await until(lambda: first.registrar.all_told)
    await world.await_rights(TOPIC, {"a": PERM_READ_WRITE, "b": PERM_READ_WRITE})
    await world.await_rights(OWN, {"a": PERM_READ_WRITE})
    assert drain.status().state == SERVING
    assert first.health.ready


async def test_topics_get_their_rights_back_once_the_others_have_gone(world: World) -> None:
    first = await world.broker("a")
    await world.broker("b")
    await world.topic(TOPIC)
    await drain_of(first).begin_and_hear()
    await until(lambda: first.registrar.all_told)
    await world.stop("b")
    await until(lambda: drain_of(first).status().withheld == 0)
    assert first.health.ready, "it is the only one again"
    await until(lambda: first.registrar.all_told)
    await world.await_rights(TOPIC, {"a": PERM_READ_WRITE})
    await first.let_producers_go()  # nobody is waited for


async def test_two_brokers_that_stop_together_wait_for_each_other_no_longer(world: World) -> None:
    both = [await world.broker(name, drain_timeout_ms=60_000) for name in "ab"]
    await world.topic(TOPIC)
    async with Producer(world.address, "pg", OPTIONS) as producer:
        for _ in range(4):
            await producer.send(Message(TOPIC, b"x"))
        async with asyncio.timeout(5):
            await asyncio.gather(*(daemon.let_producers_go() for daemon in both))


async def test_producers_that_go_on_are_waited_for_until_the_time_is_over(world: World) -> None:
    first = await world.broker("a", drain_timeout_ms=600)
    await world.broker("b")
    await world.topic(TOPIC)
    async with Producer(world.address, "stubborn", OPTIONS) as stubborn:

        async def send() -> None:
            while True:
                await stubborn.send(Message(TOPIC, b"x"), queue=MessageQueue(TOPIC, "a", 0))
                await asyncio.sleep(0.01)

        sending = asyncio.create_task(send())
        await drain_of(first).begin_and_hear()
        status = await drain_of(first).wait_over()
        sending.cancel()
    assert (status.state, status.senders_left) == (DRAINED, False)
    assert "its time is over" in status.reason


async def test_a_rare_producer_is_given_the_time_to_read_its_routes(world: World) -> None:
    first = await world.broker("a", drain_route_refresh_ms=60_000, drain_timeout_ms=60_000)
    await world.broker("b")
    await world.topic(TOPIC)
    async with Producer(world.address, "rare", OPTIONS) as rare:
        await rare.send(Message(TOPIC, b"x"), queue=MessageQueue(TOPIC, "a", 0))
        await until(lambda: first.core.clients.producers("rare"))
        await drain_of(first).begin_and_hear()
        await until(lambda: "may send by their old routes" in drain_of(first).text())
        assert drain_of(first).status().producer_groups == 1
    await until(lambda: drain_of(first).status().state == DRAINED)


async def test_without_a_name_server_nobody_can_be_sent_elsewhere(world: World) -> None:
    first = await world.broker("a", drain_timeout_ms=300)
    await world.broker("b")
    await world.topic(TOPIC)
    await drain_of(first).begin_and_hear()
    await until(lambda: first.registrar.all_told)
    await world.lose_name_server()
    assert (await drain_of(first).wait_over()).state == DRAINED, "its time ends all the same"
    drain_of(first).undo()
    assert (await drain_of(first).begin_and_hear()).state == SERVING
    assert "no name server" in drain_of(first).status().reason
    async with asyncio.timeout(1):
        await first.let_producers_go()


async def test_a_bug_of_the_drain_keeps_no_stop_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = await world.broker("a")
    monkeypatch.setattr(Drain, "_ask_taken", lambda _self: 1 / 0)
    async with asyncio.timeout(2):
        await first.let_producers_go()
    assert "draining has stopped" in caplog.text
    assert "the drain has failed" in (await drain_of(first).begin_and_hear()).reason


async def test_a_slave_has_nobody_to_let_go(world: World) -> None:
    daemon = await world.broker("a")
    daemon.core.role.become(slave=True)
    await daemon.let_producers_go()
    assert "a slave takes no sends" in (await drain_of(daemon).begin_and_hear()).reason
    daemon.core.role.become(slave=False)


async def test_a_broker_that_may_not_be_written_has_nobody_to_let_go(world: World) -> None:
    first = await world.broker("a", broker_permission=PERM_READ)
    await world.broker("b")
    await world.topic(TOPIC)
    assert "lets nobody send" in (await drain_of(first).begin_and_hear()).reason


async def test_before_its_start_and_after_its_stop_a_broker_is_not_drained(world: World) -> None:
    daemon = await world.broker("a")
    await world.stop("a")
    with pytest.raises(BadRequest, match="starting or stopping"):
        daemon._the_drain()
    answer = await daemon._drain_route(Request("GET", "/drain"))
    assert answer.status == 503


def ask_http(port: int, method: str, path: str, **headers: str) -> tuple[int, dict[str, Any]]:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text.startswith(b"{") else {"text": text}
    finally:
        connection.close()


async def test_the_http_port_drains_for_this_machine(world: World) -> None:
    port = free_port()
    first = await world.broker("a", http_enabled=True, http_port=port)

    async def ask(method: str, path: str, **headers: str) -> tuple[int, dict[str, Any]]:
        return await asyncio.to_thread(ask_http, port, method, path, **headers)

    await world.topic(TOPIC)
    assert (await ask("POST", "/drain"))[0] == 409, "nobody takes over"
    await world.broker("b")
    await world.topic(TOPIC)
    assert (await ask("GET", "/drainz"))[1]["state"] == SERVING
    assert (await ask("POST", "/drain", Origin="http://evil.example"))[0] == 403
    assert (await ask("POST", "/drain?force=true"))[0] == 400
    assert (await ask("POST", "/ready"))[0] == 405
    assert (await ask("PUT", "/drain"))[0] == 405
    status, body = await ask("POST", "/drain?wait=true")
    assert (status, body["state"], body["sendersLeft"]) == (200, DRAINED, True)
    status, body = await ask("GET", "/ready")
    assert status == 503
    assert [one["check"] for one in body["checks"] if not one["ok"]] == ["draining"]
    assert (await ask("POST", "/drain?undo=true"))[1]["state"] == SERVING
    assert first.health.ready


@pytest.mark.parametrize(
    ("peer", "headers", "code"),
    [
        ("127.0.0.1", {}, 200),
        ("::1", {}, 200),
        ("10.0.0.1", {}, 403),
        ("", {}, 403),
        ("127.0.0.1", {"x-forwarded-for": "10.0.0.1"}, 403),
        ("10.0.0.1", {"authorization": "Bearer s3cret"}, 200),
        ("10.0.0.1", {"authorization": "Bearer s3cre"}, 403),
        ("10.0.0.1", {"authorization": "s3cret"}, 403),
    ],
)
async def test_strangers_need_the_token(
    world: World, peer: str, headers: dict[str, str], code: int
) -> None:
    drain = drain_of(await world.broker("a"))
    request = Request("POST", "/drain", "undo=true", headers, peer)
    assert (await drain_doors.serve_http(drain, request, "s3cret")).status == code
    if headers:
        assert (await drain_doors.serve_http(drain, request, "")).status == 403


async def test_a_request_with_another_action_is_refused(world: World) -> None:
    drain = drain_of(await world.broker("a"))
    with pytest.raises(BadRequest, match="begin or undo"):
        drain_doors.serve_request(drain, make_request(31035, {"action": "end"}))


async def test_a_drain_by_http_is_an_audit_event(world: World) -> None:
    daemon = await world.broker("a")
    drain = drain_of(daemon)
    noted: list[tuple[object, ...]] = []

    class Audit:
        async def of_this_machine(
            self, word: str, name: str, change: Callable[[], Awaitable[None]], after: object
        ) -> None:
            if noted:
                raise BadRequest.system_error("the disk is full")
            await change()
            noted.append((word, name))

    audit = cast("Any", Audit())
    request = Request("POST", "/drain", "", {}, "127.0.0.1")
    assert (await drain_doors.serve_http(drain, request, "", audit)).status == 409
    assert noted == [("drain", "begin by HTTP from 127.0.0.1")]
    assert (await drain_doors.serve_http(drain, request, "", audit)).status == 503
