"""Connections, heartbeats and requests from the broker, shared by all roles."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aerobee.client.connections.session import Session
from aerobee.client.errors import (
    CallerError,
    CallTimeout,
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    PeerBusy,
    PeerFailed,
    RequestRefused,
)
from aerobee.client.options import ClientOptions, HeaderForm, parse_addresses, split_address
from aerobee.protocol.bodies.clients import ConsumerData, HeartbeatData
from aerobee.protocol.bodies.routes import TopicRoute
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import Command, encode_response, make_request, make_response
from aerobee.protocol.frames.signature import Signer
from tests.tls import CERTIFICATE, KEY

HEART_BEAT = RequestCode.HEART_BEAT
MAX_OFFSET = RequestCode.GET_MAX_OFFSET


class Member:
    """A group in the session; a consumer unless told otherwise."""

    def __init__(self, group: str = "g", consumer: bool = True) -> None:
        self.group = group
        self.topics = ["T"]
        self.consumer = consumer
        self.asked: list[Command] = []

    def consumer_data(self) -> ConsumerData | None:
        return ConsumerData(self.group) if self.consumer else None

    async def answer(self, command: Command) -> Command | None:
        self.asked.append(command)
        if command.code == 309:
            raise ValueError("bug")
        return make_response(command, 0, body=b"{}") if command.code == 307 else None


@pytest.fixture
async def session(name_server: str):
    session = Session(name_server, ClientOptions(call_timeout_s=5))
    session.start()
    yield session
    await session.close()


async def test_calls_at_the_same_time_share_one_new_connection(broker, session) -> None:
    ext = {"topic": "T", "queueId": "0"}
    await asyncio.gather(*(session.call(broker.address, MAX_OFFSET, ext) for _ in range(5)))
    assert len(broker.connections) == 1


async def test_a_lost_connection_is_made_anew(broker, session, until) -> None:
    ext = {"topic": "T", "queueId": "0"}
    await session.call(broker.address, MAX_OFFSET, ext)
    broker.connections[0].close("test", abort=True)
    await until(lambda: not session.pool.connected_addresses())
    await session.call(broker.address, MAX_OFFSET, ext)
    assert len(broker.of(MAX_OFFSET)) == 2


async def test_nobody_listening_is_connect_failed(session, free_port) -> None:
    with pytest.raises(ConnectFailed):
        await session.call(f"127.0.0.1:{free_port}", MAX_OFFSET)


async def test_no_answer_is_a_time_out(broker, session) -> None:
    broker.answers[MAX_OFFSET] = lambda *_: None
    with pytest.raises(CallTimeout):
        await session.call(broker.address, MAX_OFFSET, timeout_s=0.02)


async def test_a_connection_that_breaks_under_a_call_is_connection_lost(broker, session) -> None:
    broker.answers[MAX_OFFSET] = lambda connection, _: connection.close("test", abort=True)
    with pytest.raises(ConnectionLost):
        await session.call(broker.address, MAX_OFFSET)


@pytest.mark.parametrize(
    ("code", "kind"), [(2, PeerBusy), (14, PeerBusy), (1, PeerFailed), (13, RequestRefused)]
)
async def test_a_code_other_than_success_says_whose_fault_it_is(
    broker, session, code, kind
) -> None:
    broker.answers[MAX_OFFSET] = lambda _, command: encode_response(command, code, "because")
    with pytest.raises(kind) as caught:
        await session.call(broker.address, MAX_OFFSET)
    assert (caught.value.code, caught.value.remark) == (code, "because")
    assert caught.value.address == broker.address


async def test_requests_are_written_in_the_form_asked_for(broker, name_server) -> None:
    session = Session(name_server, ClientOptions(header_form=HeaderForm.BINARY))
    session.start()
    await session.call(broker.address, MAX_OFFSET, {"topic": "T", "queueId": "0"})
    assert broker.requests[-1].serialization == HeaderForm.BINARY
    await session.close()


async def test_a_new_connection_to_a_broker_is_greeted_before_it_is_used(broker, session) -> None:
    session.join(Member())
    await session.call(broker.address, MAX_OFFSET, {"topic": "T", "queueId": "0"})
    assert [command.code for command in broker.requests] == [HEART_BEAT, MAX_OFFSET]


async def test_name_servers_get_no_heartbeats(cluster, broker, session) -> None:
    session.join(Member())
    await session.routes.route("T")
    await session.heartbeat()
    assert cluster.name_server.of(HEART_BEAT) == []
    assert broker.of(HEART_BEAT)


async def test_a_heartbeat_names_every_group(broker, session) -> None:
    session.join(Member("consumers"))
    session.join(Member("producers", consumer=False))
    await session.routes.route("T")
    await session.heartbeat()
    heartbeat = HeartbeatData.parse(broker.of(HEART_BEAT)[-1].body)
    assert heartbeat.client_id == session.client_id
    assert [consumer.group for consumer in heartbeat.consumers] == ["consumers"]
    assert heartbeat.producer_groups == ("producers",)


async def test_one_dead_broker_does_not_keep_heartbeats_from_the_others(
    cluster, broker, session
) -> None:
    dead = await cluster.add_broker("b")
    cluster.add_topic("T")
    await dead.stop()
    session.join(Member())
    await session.routes.route("T")
    await session.heartbeat()
    assert broker.of(HEART_BEAT)


async def test_close_unregisters_every_group(broker, session) -> None:
    session.join(Member("consumers"))
    session.join(Member("producers", consumer=False))
    await session.routes.route("T")
    await session.heartbeat()
    await session.close()
    found = [command.ext for command in broker.of(RequestCode.UNREGISTER_CLIENT)]
    assert {"clientID": session.client_id, "consumerGroup": "consumers"} in found
    assert {"clientID": session.client_id, "producerGroup": "producers"} in found


async def test_close_ends_calls_that_wait(broker, session, until) -> None:
    broker.answers[MAX_OFFSET] = lambda *_: None
    call = asyncio.ensure_future(session.call(broker.address, MAX_OFFSET))
    await until(lambda: bool(broker.of(MAX_OFFSET)))
    await session.close()
    with pytest.raises(ConnectionLost):
        await call
    with pytest.raises(ClientClosed):
        await session.call(broker.address, MAX_OFFSET)


async def ask(broker, code: int, until, group: str = "g") -> Command:
    answer = broker.connections[0].call(make_request(code, {"consumerGroup": group}), 5)
    return await answer


async def test_a_brokers_request_goes_to_the_member_it_names(broker, session, until) -> None:
    member = Member()
    session.join(member)
    await session.call(broker.address, MAX_OFFSET, {"topic": "T", "queueId": "0"})
    assert (await ask(broker, 307, until)).body == b"{}"
    assert [command.code for command in member.asked] == [307]


async def test_a_request_nobody_knows_is_refused_with_code_3(broker, session, until) -> None:
    session.join(Member())
    await session.call(broker.address, MAX_OFFSET, {"topic": "T", "queueId": "0"})
    assert (await ask(broker, 999, until)).code == 3
    assert (await ask(broker, 307, until, group="stranger")).code == 3


async def test_a_request_that_fails_here_is_answered_with_code_1(broker, session, until) -> None:
    session.join(Member())
    await session.call(broker.address, MAX_OFFSET, {"topic": "T", "queueId": "0"})
    answer = await ask(broker, 309, until)
    assert answer.code == 1
    assert "bug" in (answer.remark or "")


def test_addresses_may_be_one_text_or_a_list() -> None:
    assert parse_addresses("a:1; b:2;a:1;") == ("a:1", "b:2")
    assert parse_addresses(["a:1", "b:2"]) == ("a:1", "b:2")
    assert split_address("[::1]:9876") == ("::1", 9876)


@pytest.mark.parametrize("wrong", ["", ";", "host", "host:", ":1", "host:0", "host:70000", "h:x"])
def test_a_wrong_address_is_the_callers_fault(wrong: str) -> None:
    with pytest.raises(CallerError):
        parse_addresses(wrong)


async def test_a_client_is_started_once(broker, session) -> None:
    with pytest.raises(CallerError, match="once"):
        session.start()


async def test_a_suspicion_refreshes_the_routes_but_not_without_end(
    cluster, broker, session, until
) -> None:
    session.join(Member())
    for _ in range(20):
        session.refresh_routes_soon()
    await until(lambda: bool(cluster.name_server.requests))
    for _ in range(20):
        session.refresh_routes_soon()
        await asyncio.sleep(0)
    assert len(cluster.name_server.requests) == 1


async def test_a_broker_that_has_gone_from_the_routes_is_soon_looked_for(
    cluster, broker, session, until
) -> None:
    cluster.add_topic("T")
    await cluster.add_broker("b")
    cluster.add_topic("T")
    session.join(Member())
    await session.routes.route("T")
    both = cluster.name_server.routes["T"]
    cluster.name_server.routes["T"] = TopicRoute(both.queues[:1], both.brokers[:1])
    session.refresh_routes_soon()
    await until(lambda: session.routes.address("b") is None)
    cluster.name_server.routes["T"] = both
    # Long before the next refresh that is due.
    await until(lambda: session.routes.address("b") is not None)


def test_two_clients_of_one_process_have_different_ids(name_server: str) -> None:
    ids = {Session(name_server, ClientOptions()).client_id for _ in range(100)}
    assert len(ids) == 100


async def test_requests_are_signed_with_the_keys_that_are_given(name_server, broker) -> None:
    options = ClientOptions(access_key="who", secret_key="hidden")
    assert "hidden" not in repr(options)
    session = Session(name_server, options)
    session.start()
    broker.answers[MAX_OFFSET] = lambda _, command: encode_response(command, 0)
    await session.call(broker.address, MAX_OFFSET, {"topic": "T", "queueId": "0"}, b"body")
    (asked,) = broker.of(MAX_OFFSET)
    assert asked.ext.pop("Signature") == Signer("hidden").signature(
        {"topic": "T", "queueId": "0", "AccessKey": "who"}, b"body"
    )
    assert asked.ext == {"topic": "T", "queueId": "0", "AccessKey": "who"}
    await session.close()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"access_key": "who"}, "belong together"),
        ({"trust_store": "/x.pem"}, "use_tls=True"),
        ({"use_tls": True, "trust_store": "/no/such.pem"}, "'/no/such.pem' .*No such file"),
        ({"use_tls": True, "trust_store": __file__}, "PEM file of certificates"),
        ({"certificate": "/x.pem"}, "certificate is for use_tls=True"),
        ({"use_tls": True, "certificate_key": "/x.pem"}, "needs certificate beside it"),
        ({"use_tls": True, "certificate": "/no/such.pem"}, "'/no/such.pem' .*No such file"),
        ({"use_tls": True, "certificate": __file__}, "certificate_key .* names one"),
        (
            {"use_tls": True, "certificate": str(CERTIFICATE), "certificate_key": __file__},
            "test_session.py' holds no private key in PEM$",
        ),
        ({"use_tls": True, "certificate": str(KEY)}, "cannot be read as PEM, with its key"),
    ],
)
def test_keys_and_trust_that_cannot_be_are_refused(
    name_server, given: dict[str, Any], reason: str
) -> None:
    with pytest.raises(CallerError, match=reason):
        Session(name_server, ClientOptions(**given))
