"""Sending against scripted brokers: results, retries, oneway, batches, order."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import pytest

from aerobee.client.errors import (
    BadAnswer,
    BadMessage,
    CallerError,
    CallTimeout,
    ClientClosed,
    NoRoute,
    PeerBusy,
    RequestRefused,
    SendFailed,
)
from aerobee.client.message import Message
from aerobee.client.options import ProducerOptions
from aerobee.client.producing.producer import Producer
from aerobee.client.producing.sender import SendStatus
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import encode_response
from aerobee.protocol.headers.send import SendMessageHeader
from aerobee.protocol.message.batch import decode_batch
from aerobee.protocol.message.properties import decode_properties

SEND = RequestCode.SEND_MESSAGE_V2


def refuse(code: int):
    return lambda _, command: encode_response(command, code, "scripted")


def headers(broker) -> list[SendMessageHeader]:
    return [SendMessageHeader.from_command(command) for command in broker.of(SEND)]


@pytest.fixture
async def producer(name_server: str):
    async with Producer(name_server, "pg", ProducerOptions(send_timeout_s=5)) as producer:
        yield producer


@pytest.fixture
async def two(cluster):
    """Brokers `a` and `b` with one queue each of topic `T`."""
    brokers = {name: await cluster.add_broker(name) for name in "ab"}
    cluster.add_topic("T", queues=1)
    return brokers


async def test_a_send_says_where_the_message_lies(broker, producer) -> None:
    result = await producer.send(Message("T", b"x"), queue=MessageQueue("T", "a", 1))
    assert (result.status, result.queue, result.queue_offset) == (
        SendStatus.OK,
        MessageQueue("T", "a", 1),
        0,
    )
    assert result.offset_msg_id == "ID0"


async def test_a_send_carries_all_of_the_message(broker, producer) -> None:
    message = Message("T", b"x", "A", ("k1", "k2"), {"own": "1"}, flag=7)
    result = await producer.send(message)
    header = headers(broker)[0]
    assert (header.producer_group, header.topic, header.flag) == ("pg", "T", 7)
    assert (header.default_topic, header.default_topic_queue_nums) == ("TBW102", 4)
    assert decode_properties(header.properties) == {
        "own": "1",
        "KEYS": "k1 k2",
        "TAGS": "A",
        "UNIQ_KEY": result.msg_id,
    }


async def test_ids_are_unique(broker, producer) -> None:
    results = await producer.send_many(Message("T", b"x") for _ in range(200))
    assert len({result.msg_id for result in results}) == 200


async def test_queues_take_turns(broker, producer) -> None:
    results = [await producer.send(Message("T", b"x")) for _ in range(4)]
    first, second, *rest = [result.queue.queue_id for result in results]
    assert {first, second} == {0, 1}
    assert rest == [first, second]


async def test_a_large_body_travels_compressed(broker, producer) -> None:
    await producer.send(Message("T", b"x" * 10_000))
    assert headers(broker)[0].sys_flag == 1
    assert zlib.decompress(broker.of(SEND)[0].body) == b"x" * 10_000


async def test_a_message_that_cannot_be_sent_costs_no_round_trip(cluster, producer) -> None:
    with pytest.raises(BadMessage):
        await producer.send(Message("T", b""))
    assert cluster.name_server.requests == []


@pytest.mark.parametrize("code", [1, 14, 16, 17, 204, 205])
async def test_a_failed_send_goes_to_another_broker(two, producer, code: int) -> None:
    two["a"].answers[SEND] = refuse(code)
    results = [await producer.send(Message("T", b"x")) for _ in range(4)]
    assert {result.queue.broker_name for result in results} == {"b"}
    assert len(two["a"].of(SEND)) <= 1  # passed over after its first failure


async def test_a_time_out_goes_to_another_broker(two, name_server) -> None:
    two["a"].answers[SEND] = lambda *_: None
    async with Producer(name_server, options=ProducerOptions(send_timeout_s=0.05)) as producer:
        results = [await producer.send(Message("T", b"x")) for _ in range(2)]
    assert {result.queue.broker_name for result in results} == {"b"}
    tried = {header.properties for header in headers(two["a"])}
    assert tried <= {header.properties for header in headers(two["b"])}  # the same unique id


async def test_a_dead_broker_is_no_obstacle(two, producer) -> None:
    await two["a"].stop()
    results = [await producer.send(Message("T", b"x")) for _ in range(3)]
    assert {result.queue.broker_name for result in results} == {"b"}


async def test_a_busy_broker_is_told_to_the_caller_at_once(broker, producer) -> None:
    broker.answers[SEND] = refuse(2)
    with pytest.raises(PeerBusy, match="scripted"):
        await producer.send(Message("T", b"x"))
    assert len(broker.of(SEND)) == 1


async def test_when_all_attempts_fail_each_is_told(broker, producer) -> None:
    broker.answers[SEND] = refuse(14)
    with pytest.raises(SendFailed, match="3 attempts") as caught:
        await producer.send(Message("T", b"x"))
    assert [name for name, _ in caught.value.attempts] == ["a", "a", "a"]
    assert (caught.value.code, caught.value.remark) == (14, "scripted")


async def test_what_all_attempts_say_is_said_once(broker, producer) -> None:
    broker.answers[SEND] = refuse(14)
    with pytest.raises(SendFailed) as caught:
        await producer.send(Message("T", b"x"))
    assert str(caught.value).count("SERVICE_NOT_AVAILABLE") == 1


async def test_a_broker_without_the_right_is_not_asked_again(broker, producer) -> None:
    broker.answers[SEND] = refuse(16)
    with pytest.raises(SendFailed, match=r"1 attempt failed: a: .*NO_PERMISSION"):
        await producer.send(Message("T", b"x"))
    assert len(broker.of(SEND)) == 1


async def test_another_broker_is_asked_where_the_right_is_missing(two, producer) -> None:
    for name in ("a", "b"):
        two[name].answers[SEND] = refuse(16)
    with pytest.raises(SendFailed, match="2 attempts failed") as caught:
        await producer.send(Message("T", b"x"))
    assert sorted(name for name, _ in caught.value.attempts) == ["a", "b"]


async def test_a_chosen_queue_is_never_exchanged_for_another(two, producer) -> None:
    two["a"].answers[SEND] = refuse(14)
    with pytest.raises(PeerBusy):
        await producer.send(Message("T", b"x"), queue=MessageQueue("T", "a", 0))
    assert two["b"].of(SEND) == []


async def test_stored_but_not_flushed_is_a_result_not_an_error(broker, producer) -> None:
    ext = {"msgId": "I", "queueId": "0", "queueOffset": "4"}
    broker.answers[SEND] = lambda _, command: encode_response(command, 10, None, ext)
    result = await producer.send(Message("T", b"x"))
    assert (result.status, result.queue_offset) == (SendStatus.FLUSH_DISK_TIMEOUT, 4)
    assert len(broker.of(SEND)) == 1


async def test_stored_but_not_flushed_is_retried_when_asked_for(two, name_server) -> None:
    ext = {"msgId": "I", "queueId": "0", "queueOffset": "4"}
    for broker in two.values():
        broker.answers[SEND] = lambda _, command: encode_response(command, 10, None, ext)
    options = ProducerOptions(retry_when_not_flushed=True, retries=1)
    async with Producer(name_server, options=options) as producer:
        result = await producer.send(Message("T", b"x"))
    assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
    assert [len(broker.of(SEND)) for broker in two.values()] == [1, 1]


async def test_an_answer_without_its_fields_is_the_brokers_fault(broker, producer) -> None:
    broker.answers[SEND] = lambda _, command: encode_response(command, 0)
    with pytest.raises(BadAnswer, match="msgId"):
        await producer.send(Message("T", b"x"))


async def test_a_selector_picks_the_queue(broker, producer) -> None:
    result = await producer.send(Message("T", b"x"), selector=lambda queues, _: queues[1])
    assert result.queue.queue_id == 1


async def test_one_key_always_goes_to_one_queue(cluster, broker, producer) -> None:
    cluster.add_topic("T", queues=8)
    found = {(await producer.send(Message("T", b"x"), key="order-7")).queue for _ in range(5)}
    assert len(found) == 1


async def test_oneway_returns_without_an_answer(broker, producer, until) -> None:
    broker.answers[SEND] = lambda *_: None
    await producer.send_oneway(Message("T", b"x"))
    await until(lambda: bool(broker.of(SEND)))
    assert broker.of(SEND)[0].is_oneway


async def test_a_batch_is_one_request_with_an_id_for_each_message(broker, producer) -> None:
    messages = [Message("T", f"m{number}".encode(), keys=f"k{number}") for number in range(3)]
    result = await producer.send_batch(messages)
    command = broker.of(RequestCode.SEND_BATCH_MESSAGE)[0]
    items = decode_batch(command.body)
    assert SendMessageHeader.from_command(command).batch
    assert [item.body for item in items] == [b"m0", b"m1", b"m2"]
    ids = [decode_properties(item.properties)["UNIQ_KEY"] for item in items]
    assert result.msg_id == ",".join(ids)
    assert result.offset_msg_id == "ID0,ID1,ID2"


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [Message("T", b"x"), Message("U", b"x")],
        [Message("T", b"x"), Message("T", b"x", wait_store=False)],
        [Message("T", b"x", delay_level=1)],
        [Message("%RETRY%g", b"x")],
        [Message("T", bytes(3_000_000)), Message("T", bytes(3_000_000))],
    ],
)
async def test_what_cannot_be_a_batch_is_refused(broker, producer, messages) -> None:
    with pytest.raises(BadMessage):
        await producer.send_batch(messages)
    assert broker.requests == []


async def test_a_batch_says_in_its_header_that_it_does_not_wait(broker, producer) -> None:
    await producer.send_batch([Message("T", b"x", wait_store=False)])
    header = SendMessageHeader.from_command(broker.of(RequestCode.SEND_BATCH_MESSAGE)[0])
    assert decode_properties(header.properties) == {"WAIT": "false"}


async def test_many_in_flight_keep_their_order_in_a_queue(broker, producer) -> None:
    messages = [Message("T", b"%d" % number) for number in range(500)]
    results = await producer.send_many(messages, key="k", in_flight=50)
    assert [result.queue_offset for result in results] == list(range(500))
    bodies = [command.body for command in broker.of(SEND)]
    assert bodies == [message.body for message in messages]


async def test_sends_really_are_in_flight_together(broker, producer, until) -> None:
    waiting = []
    broker.answers[SEND] = lambda connection, command: waiting.append((connection, command))
    sending = asyncio.ensure_future(producer.send_many([Message("T", b"x")] * 40, in_flight=20))
    await until(lambda: len(waiting) == 20)
    del broker.answers[SEND]
    for connection, command in waiting:
        connection.write(broker.on_310(connection, command))
    assert len(await sending) == 40


async def test_one_failure_among_many_is_raised_when_all_have_ended(broker, producer) -> None:
    def answer(connection, command):
        return (
            refuse(13)(connection, command)
            if command.body == b"7"
            else broker.on_310(connection, command)
        )

    broker.answers[SEND] = answer
    with pytest.raises(RequestRefused):
        await producer.send_many([Message("T", b"%d" % number) for number in range(20)])
    assert len(broker.of(SEND)) == 20


async def test_sends_above_the_limit_wait_for_their_turn(broker, name_server, until) -> None:
    waiting = []
    broker.answers[SEND] = lambda connection, command: waiting.append((connection, command))
    options = ProducerOptions(max_in_flight=2, send_timeout_s=5)
    async with Producer(name_server, options=options) as producer:
        sends = [asyncio.ensure_future(producer.send(Message("T", b"x"))) for _ in range(3)]
        await until(lambda: len(waiting) == 2)
        connection, command = waiting[0]
        connection.write(broker.on_310(connection, command))
        await until(lambda: len(waiting) == 3)
        for connection, command in waiting[1:]:
            connection.write(broker.on_310(connection, command))
        await asyncio.gather(*sends)


async def test_an_unknown_topic_is_no_route(broker, producer) -> None:
    with pytest.raises(NoRoute, match="'UNKNOWN'"):
        await producer.send(Message("UNKNOWN", b"x"))


async def test_before_start_and_after_close_a_send_is_refused(broker, name_server) -> None:
    producer = Producer(name_server)
    with pytest.raises(ClientClosed):
        await producer.send(Message("T", b"x"))
    producer.start()
    await producer.send(Message("T", b"x"))
    await producer.close()
    with pytest.raises(ClientClosed):
        await producer.send(Message("T", b"x"))


async def test_a_close_while_sending_is_told_to_the_sender(broker, name_server, until) -> None:
    broker.answers[SEND] = lambda *_: None
    producer = Producer(name_server, options=ProducerOptions(retries=0))
    producer.start()
    many = asyncio.ensure_future(producer.send_many([Message("T", b"x")] * 3))
    await until(lambda: len(broker.of(SEND)) == 3)
    await producer.close()
    with pytest.raises(ClientClosed):
        await many


async def test_a_time_out_of_one_send_can_be_set(broker, producer) -> None:
    broker.answers[SEND] = lambda *_: None
    queue = MessageQueue("T", "a", 0)
    with pytest.raises(CallTimeout):
        await producer.send(Message("T", b"x"), queue=queue, timeout_s=0.02)


def test_an_illegal_group_name_is_refused(name_server: str) -> None:
    with pytest.raises(CallerError, match="group"):
        Producer(name_server, "no/slash")


@pytest.mark.parametrize(
    ("handle", "said"),
    [
        (None, "a recall handle is the recall_handle of a message that waits .*, got None"),
        ("", "a recall handle is the recall_handle of a message that waits .*, got ''"),
        ("no handle", "'no handle' is no recall handle"),
    ],
)
async def test_what_is_no_recall_handle_is_said(broker, producer, handle: Any, said: str) -> None:
    with pytest.raises(BadMessage, match=said):
        await producer.recall("T", handle)
    assert broker.of(RequestCode.RECALL_MESSAGE) == []


@pytest.mark.parametrize("timeout_s", [-1, 0, float("nan"), "3", True])
async def test_a_time_out_that_is_none_is_the_callers_fault(
    broker, producer, timeout_s: Any
) -> None:
    message = Message("T", b"x")
    calls = [
        producer.request(message, timeout_s=timeout_s),
        producer.send(message, timeout_s=timeout_s),
        producer.send_batch([message], timeout_s=timeout_s),
    ]
    for call in calls:
        with pytest.raises(CallerError, match="timeout_s must be a number of seconds above 0"):
            await call
    assert broker.requests == []
