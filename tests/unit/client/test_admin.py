"""Administration against scripted brokers; the real ones are asked in tests/contract."""

from __future__ import annotations

import json

import pytest

from aerobee.client.admin import Admin
from aerobee.client.errors import (
    CallerError,
    ClientClosed,
    ConnectFailed,
    MasterAway,
    NoRoute,
    PeerFailed,
    RequestRefused,
)
from aerobee.client.message_ids import find_by_offset_id
from aerobee.client.options import ClientOptions
from aerobee.config.loading.properties_file import parse_properties
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.routes import BrokerRoute
from aerobee.protocol.bodies.statistics import QueueOffsets, encode_topic_stats
from aerobee.protocol.bodies.topics import TopicConfig
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import encode_response
from aerobee.protocol.headers.admin import CreateTopicHeader
from aerobee.protocol.message.record import StoreMessage, encode_record
from aerobee.protocol.message.record_layout import pack_host
from tests.inline_loop import drive


@pytest.fixture
async def two(cluster):
    """Brokers `a` and `b`, both with topic `T`."""
    brokers = {name: await cluster.add_broker(name) for name in "ab"}
    cluster.add_topic("T")
    return brokers


@pytest.fixture
async def admin(name_server: str):
    async with Admin(name_server, ClientOptions(call_timeout_s=5)) as admin:
        yield admin


def accept(broker, code: int) -> None:
    broker.answers[code] = lambda _, command: encode_response(command, 0)


async def test_a_topic_is_created_on_every_master(two, admin) -> None:
    for broker in two.values():
        accept(broker, RequestCode.UPDATE_AND_CREATE_TOPIC)
    await admin.create_topic("NEW", queues=3, perm=4)
    for broker in two.values():
        header = CreateTopicHeader.from_ext(broker.of(RequestCode.UPDATE_AND_CREATE_TOPIC)[0].ext)
        assert (header.topic, header.read_queue_nums, header.write_queue_nums) == ("NEW", 3, 3)
        assert (header.perm, header.topic_filter_type) == (4, "SINGLE_TAG")


async def test_a_topic_may_be_created_on_one_broker_only(two, admin) -> None:
    accept(two["b"], RequestCode.UPDATE_AND_CREATE_TOPIC)
    await admin.create_topic("NEW", broker="b")
    assert two["a"].requests == []


async def test_a_topics_settings_are_asked_of_the_brokers_themselves(two, admin) -> None:
    wide = TopicConfig("NEW", 7, 5, 4)
    shown = {"readQueueNums": 7, "writeQueueNums": 5, "perm": 4}
    for broker, topics in ((two["a"], {"NEW": shown}), (two["b"], {})):
        body = json.dumps({"topicConfigTable": topics}).encode()
        broker.answers[RequestCode.GET_ALL_TOPIC_CONFIG] = lambda _, command, body=body: (
            encode_response(command, 0, body=body)
        )
    assert await admin.topic_settings("NEW") == {"a": wide, "b": None}
    assert await admin.topic_settings("NEW", broker="b") == {"b": None}


async def test_settings_of_brokers_are_changed_by_lines_that_java_reads(two, admin) -> None:
    for broker in two.values():
        accept(broker, RequestCode.UPDATE_BROKER_CONFIG)
    settings = {"deleteWhen": "04;16", "key with:=#": " \\ a=b ü 😀 \n"}
    assert await admin.change_broker_settings(settings) == ["a", "b"]
    for broker in two.values():
        (command,) = broker.of(RequestCode.UPDATE_BROKER_CONFIG)
        assert command.body.isascii()
        found = {key: value for key, value, _line in parse_properties(command.body).entries}
        assert found == settings
    two["a"].answers[RequestCode.UPDATE_BROKER_CONFIG] = lambda _, command: encode_response(
        command, 16, "off"
    )
    with pytest.raises(RequestRefused, match="off"):
        await admin.change_broker_settings({"deleteWhen": "05"}, "a")


async def test_a_topics_settings_are_put_whole(two, admin) -> None:
    accept(two["a"], RequestCode.UPDATE_AND_CREATE_TOPIC)
    await admin.put_topic("a", TopicConfig("NEW", 7, 5, 4, sys_flag=2))
    (command,) = two["a"].of(RequestCode.UPDATE_AND_CREATE_TOPIC)
    header = CreateTopicHeader.from_ext(command.ext)
    assert (header.read_queue_nums, header.write_queue_nums, header.topic_sys_flag) == (7, 5, 2)
    assert two["b"].requests == []


@pytest.mark.parametrize("where", [{"broker": "c"}, {"cluster": "elsewhere"}])
async def test_creating_where_nobody_is_is_no_route(two, admin, where) -> None:
    with pytest.raises(NoRoute):
        await admin.create_topic("NEW", **where)


@pytest.mark.parametrize(
    "change",
    [
        lambda admin: admin.create_topic("NEW"),
        lambda admin: admin.create_topic("NEW", cluster="C"),
        lambda admin: admin.topic_settings("NEW"),
        lambda admin: admin.delete_topic("T"),
        lambda admin: admin.clean(expired_log=True),
        lambda admin: admin.change_broker_settings({"deleteWhen": "05"}),
        lambda admin: admin.check_masters(["a", "b"]),
    ],
)
async def test_nothing_is_changed_anywhere_while_a_broker_has_slaves_alone(
    cluster, two, admin, change
) -> None:
    cluster.add_topic("T", slaves="a")
    with pytest.raises(MasterAway, match=r"no master of a is registered.*nothing was changed"):
        await change(admin)
    assert [broker.requests for broker in two.values()] == [[], []]
    assert cluster.name_server.of(RequestCode.DELETE_TOPIC_IN_NAMESRV) == []


async def test_one_broker_is_changed_while_another_has_slaves_alone(cluster, two, admin) -> None:
    cluster.add_topic("T", slaves="a")
    accept(two["b"], RequestCode.UPDATE_AND_CREATE_TOPIC)
    await admin.create_topic("NEW", broker="b")
    await admin.check_masters(["b"])
    assert len(two["b"].of(RequestCode.UPDATE_AND_CREATE_TOPIC)) == 1


async def test_an_illegal_topic_name_is_refused_here(cluster, two, admin) -> None:
    with pytest.raises(CallerError):
        await admin.create_topic("no/slash")
    assert cluster.name_server.requests == []


async def test_a_topic_is_deleted_on_brokers_first_and_then_at_every_name_server(
    cluster, two, name_server
) -> None:
    accept(cluster.name_server, RequestCode.DELETE_TOPIC_IN_NAMESRV)
    order: list[int] = []
    for broker in two.values():

        def answer(_, command):
            order.append(len(cluster.name_server.of(RequestCode.DELETE_TOPIC_IN_NAMESRV)))
            return encode_response(command, 0)

        broker.answers[RequestCode.DELETE_TOPIC_IN_BROKER] = answer
    same_again = name_server.replace("127.0.0.1", "localhost")
    async with Admin([name_server, same_again]) as admin:
        await admin.delete_topic("T")
    assert order == [0, 0]
    assert len(cluster.name_server.of(RequestCode.DELETE_TOPIC_IN_NAMESRV)) == 2


async def test_statistics_of_all_brokers_are_merged(two, admin) -> None:
    for name, broker in two.items():
        body = drive(encode_topic_stats({MessageQueue("T", name, 0): QueueOffsets(1, 2, 3)}))
        broker.answers[RequestCode.GET_TOPIC_STATS_INFO] = lambda _, command, body=body: (
            encode_response(command, 0, body=body)
        )
    stats = await admin.topic_stats("T")
    assert list(stats) == [MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)]


async def test_what_merely_shares_a_keys_hash_is_left_out(two, admin, stored) -> None:
    records = [
        stored("T", 0, 0, b"right", "KEYS\x01k1 k2"),
        stored("T", 0, 1, b"other key", "KEYS\x01k3"),
        stored("U", 0, 2, b"other topic", "KEYS\x01k2"),
    ]
    two["a"].answers[RequestCode.QUERY_MESSAGE] = lambda _, command: encode_response(
        command, 0, body=b"".join(records)
    )
    two["b"].answers[RequestCode.QUERY_MESSAGE] = lambda _, command: encode_response(command, 22)
    assert [message.body for message in await admin.query_by_key("T", "k2")] == [b"right"]


async def test_a_query_by_unique_id_says_so_to_the_broker(two, admin) -> None:
    for broker in two.values():
        broker.answers[RequestCode.QUERY_MESSAGE] = lambda _, c: encode_response(c, 22)
    assert await admin.query_by_unique_key("T", "U") == []
    assert two["a"].of(RequestCode.QUERY_MESSAGE)[0].ext["_UNIQUE_KEY_QUERY"] == "true"


VIEW = RequestCode.VIEW_MESSAGE_BY_ID


def has_at_149(broker, body: bytes, port: int) -> None:
    """The broker has a message there, which it stored when it had that port."""
    host = pack_host("127.0.0.1", port)
    message = StoreMessage("T", 0, 0, 0, 1, host, host, 0, 0, body, b"")
    record = encode_record(message, 0, 149, 2)
    broker.answers[VIEW] = lambda _, command: encode_response(command, 0, body=record)


def has_nothing(broker) -> None:
    broker.answers[VIEW] = lambda _, command: encode_response(command, 1, "can not find message")


async def test_a_message_is_viewed_at_the_address_in_its_id(two, admin) -> None:
    port = two["b"].server.port
    has_at_149(two["b"], b"x", port)
    found = await admin.view(f"7F000001{port:08X}{149:016X}")
    assert (found.body, found.queue.broker_name) == (b"x", "b")
    assert two["b"].of(VIEW)[0].ext == {"offset": "149"}
    assert two["a"].of(VIEW) == []


async def test_a_message_is_found_after_its_broker_has_moved(two, admin) -> None:
    """Another broker has another message at the same place of its log."""
    has_at_149(two["a"], b"another", 10912)
    has_at_149(two["b"], b"the one", 10911)
    found = await admin.view("7F00000100002A9F" + f"{149:016X}")
    assert (found.body, found.queue.broker_name) == (b"the one", "b")


async def test_an_address_that_is_none_hides_no_message_of_another_broker(two, admin) -> None:
    """Any peer may register at a name server, under any address."""
    has_at_149(two["b"], b"x", 10911)
    brokers = dict((await admin.cluster()).brokers)
    for number, address in enumerate(("a b:10911", f"{'a' * 70}.x:10911", "\0:10911", "nothing")):
        brokers[f"bad{number}"] = BrokerRoute(f"bad{number}", "C", {0: address})
        with pytest.raises(ConnectFailed):
            await admin._session.call(address, VIEW)
    msg_id = "7F00000100002A9F" + f"{149:016X}"
    assert (await find_by_offset_id(admin._session, brokers, msg_id)).body == b"x"
    for broker in two.values():
        has_nothing(broker)
    with pytest.raises(PeerFailed, match=r"could not be asked: bad0 .*, bad1 .*, bad2 .*, bad3 "):
        await find_by_offset_id(admin._session, brokers, msg_id)


async def test_a_message_that_is_nowhere_is_an_error_that_says_where_it_was_looked_for(
    two, admin
) -> None:
    has_nothing(two["a"])
    has_at_149(two["b"], b"another", 10912)
    with pytest.raises(
        PeerFailed, match=r"looked at a at 127.0.0.1:\d+, b at 127.0.0.1:\d+$"
    ) as failed:
        await admin.view("7F00000100002A9F" + f"{149:016X}")
    assert failed.value.address in (f"127.0.0.1:{one.server.port}" for one in two.values())
    await two["b"].stop()
    with pytest.raises(PeerFailed, match=r"looked at a at .*; could not be asked: b \(.*"):
        await admin.view("7F00000100002A9F" + f"{149:016X}")
    await two["a"].stop()
    with pytest.raises(ConnectFailed, match="no broker could be asked"):
        await admin.view("7F00000100002A9F" + f"{149:016X}")


async def test_a_text_that_is_no_id_is_the_callers_fault(two, admin) -> None:
    with pytest.raises(CallerError, match="hexadecimal"):
        await admin.view("no id")


async def test_a_brokers_failure_is_passed_on(two, admin) -> None:
    two["a"].answers[RequestCode.GET_TOPIC_STATS_INFO] = lambda _, c: encode_response(c, 1, "oops")
    with pytest.raises(PeerFailed, match="oops"):
        await admin.topic_stats("T")


async def test_after_close_calls_are_refused(two, admin) -> None:
    await admin.close()
    for call in (admin.topics(), admin.cluster(), admin.route("T"), admin.view("x")):
        with pytest.raises(ClientClosed):
            await call


async def test_a_name_server_asked_as_a_broker_is_recognised(two, admin, name_server) -> None:
    with pytest.raises(RequestRefused, match=f"{name_server} is a name server, not a broker"):
        await admin.runtime_info(name_server)


async def test_a_broker_asked_as_a_name_server_is_recognised(two) -> None:
    async with Admin(two["a"].address) as admin:
        for call in (admin.topics(), admin.cluster(), admin.route("T")):
            with pytest.raises(RequestRefused, match="is a broker, not a name server"):
                await call
