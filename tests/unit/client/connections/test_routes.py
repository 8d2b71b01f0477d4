"""The route cache against scripted name servers."""

from __future__ import annotations

import asyncio

import pytest

from aerobee.client.connections.session import Session
from aerobee.client.errors import BadAnswer, ConnectFailed, NoRoute, RequestRefused
from aerobee.client.options import ClientOptions
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import encode_response

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


@pytest.fixture
async def session(name_server: str):
    session = Session(name_server, ClientOptions())
    session.start()
    yield session
    await session.close()


async def test_a_route_is_asked_for_once_and_then_remembered(cluster, broker, session) -> None:
    for _ in range(3):
        await session.routes.route("T")
    assert len(cluster.name_server.of(ROUTE)) == 1


async def test_callers_at_the_same_time_share_one_question(cluster, broker, session) -> None:
    await asyncio.gather(*(session.routes.route("T") for _ in range(10)))
    assert len(cluster.name_server.of(ROUTE)) == 1


async def test_an_unknown_topic_is_no_route_and_asked_for_again(cluster, broker, session) -> None:
    for _ in range(2):
        with pytest.raises(NoRoute, match="No topic route"):
            await session.routes.route("U")
    assert len(cluster.name_server.of(ROUTE)) == 2


async def test_a_topic_to_be_made_takes_the_route_of_the_template(cluster, broker, session) -> None:
    cluster.add_topic("TBW102", queues=8, perm=7)
    queues = await session.routes.write_queues("NEW", "TBW102", 4)
    assert [(queue.topic, queue.queue_id) for queue in queues] == [("NEW", n) for n in range(4)]


async def test_the_real_route_replaces_the_template_at_the_next_refresh(
    cluster, broker, session
) -> None:
    cluster.add_topic("TBW102", queues=8, perm=7)
    await session.routes.write_queues("NEW", "TBW102", 4)
    cluster.add_topic("NEW", queues=1)
    await session.routes.refresh(["NEW"])
    assert len(await session.routes.write_queues("NEW", "TBW102", 4)) == 1


async def test_without_a_template_the_missing_topic_is_named(cluster, broker, session) -> None:
    with pytest.raises(NoRoute, match="'NEW'"):
        await session.routes.write_queues("NEW", "TBW102", 4)


async def test_a_topic_without_write_permission_has_no_queues_to_send_to(
    cluster, broker, session
) -> None:
    cluster.add_topic("READ_ONLY", perm=4)
    with pytest.raises(NoRoute, match="write permission"):
        await session.routes.write_queues("READ_ONLY", "TBW102", 4)


async def test_the_next_name_server_is_asked_when_one_fails(cluster, broker, free_port) -> None:
    dead = f"127.0.0.1:{free_port}"
    session = Session([dead, cluster.name_server.address], ClientOptions())
    session.start()
    assert (await session.routes.route("T")).brokers[0].name == "a"
    await session.routes.route("T", refresh=True)
    await session.close()


async def test_no_name_server_at_all_is_a_network_error(free_port) -> None:
    session = Session(f"127.0.0.1:{free_port}", ClientOptions())
    session.start()
    with pytest.raises(ConnectFailed):
        await session.routes.route("T")
    await session.close()


async def test_what_is_known_stays_when_the_name_server_forgets_or_dies(
    cluster, broker, session
) -> None:
    await session.routes.route("T")
    del cluster.name_server.routes["T"]
    await session.routes.refresh(["T"])
    assert session.routes.address("a") == broker.address
    await cluster.name_server.stop()
    await session.routes.refresh(["T"])
    assert (await session.routes.route("T")).brokers[0].name == "a"


async def test_an_answer_that_is_no_route_is_the_name_servers_fault(
    cluster, broker, session
) -> None:
    cluster.name_server.answers[ROUTE] = lambda _, command: encode_response(command, 0, body=b"{]")
    with pytest.raises(BadAnswer):
        await session.routes.route("T")


async def test_another_code_than_unknown_topic_is_passed_on(cluster, broker, session) -> None:
    cluster.name_server.answers[ROUTE] = lambda _, command: encode_response(command, 16, "no")
    with pytest.raises(RequestRefused, match="NO_PERMISSION"):
        await session.routes.route("T")


async def test_a_slave_serves_reads_when_there_is_no_master(cluster, broker, session) -> None:
    route = cluster.name_server.routes["T"]
    route.brokers[0].addresses.clear()
    route.brokers[0].addresses[1] = "127.0.0.1:1"
    await session.routes.route("T")
    assert session.routes.address("a") is None
    assert session.routes.readable_address("a", 0) == "127.0.0.1:1"
