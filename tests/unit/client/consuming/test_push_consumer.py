"""The push consumer against a scripted broker: sharing, offsets, failures, flow control."""

from __future__ import annotations

import asyncio
import threading

import pytest

from aerobee.client.consuming.listener import Consumed
from aerobee.client.consuming.push_consumer import PushConsumer
from aerobee.client.message import ReceivedMessage, queue_text
from aerobee.client.options import ConsumeFrom, PushOptions
from aerobee.protocol.bodies.clients import HeartbeatData, encode_consumer_list
from aerobee.protocol.bodies.common import MessageQueue, encode_offset_table
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import Command, encode_response, make_request
from aerobee.protocol.frames.fastjson import loads
from aerobee.protocol.headers.client import PullMessageHeader, SendBackHeader
from aerobee.protocol.headers.send import SendMessageHeader
from aerobee.protocol.message.properties import decode_properties
from aerobee.remoting.connections.connection import Connection
from tests.inline_loop import drive

RETRY = "%RETRY%g"
SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK
FAST = {
    "rebalance_interval_s": 60.0,
    "pull_retry_delay_s": 0.01,
    "offset_store_interval_s": 60.0,
    "close_timeout_s": 1.0,
}


def queue(number: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, "a", number)


class Seen:
    """A listener that keeps what it got, and answers as told."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []
        self.failing: set[bytes] = set()
        self.gate: asyncio.Event | None = None
        self.calls: list[int] = []

    async def __call__(self, messages: list[ReceivedMessage]) -> Consumed | None:
        self.calls.append(len(messages))
        if self.gate is not None:
            await self.gate.wait()
        self.messages += messages
        failed = any(message.body in self.failing for message in messages)
        return Consumed.RETRY if failed else None

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
async def start(cluster, broker, name_server):
    """Starts consumers of group `g` on topic `T`; closes them at the end."""
    cluster.add_topic(RETRY, queues=1)
    started: list[PushConsumer] = []

    async def start(listener, expression: str = "*", **options) -> PushConsumer:
        consumer = PushConsumer(name_server, "g", listener, PushOptions(**{**FAST, **options}))
        started.append(consumer)
        await consumer.subscribe("T", expression)
        await consumer.start()
        return consumer

    yield start
    for consumer in started:
        await consumer.close()


async def test_start_takes_up_every_queue_and_the_groups_retry_topic(start, seen) -> None:
    consumer = await start(seen)
    assert consumer.queues == [queue(0, RETRY), queue(0), queue(1)]


async def test_messages_reach_the_listener(broker, start, seen, until) -> None:
    await start(seen)
    for number in range(10):
        broker.append("T", number % 2, b"%d" % number)
    await until(lambda: len(seen.messages) == 10)
    assert set(seen.bodies) == {b"%d" % number for number in range(10)}


async def test_the_heartbeat_says_what_is_subscribed(broker, start, seen) -> None:
    await start(seen, "A || B", consume_from=ConsumeFrom.FIRST)
    heartbeat = HeartbeatData.parse(broker.of(RequestCode.HEART_BEAT)[-1].body)
    data = heartbeat.consumers[0]
    assert (data.group, data.message_model) == ("g", "CLUSTERING")
    assert data.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert {s.topic: set(s.tags) for s in data.subscriptions} == {"T": {"A", "B"}, RETRY: set()}


async def test_consumption_goes_on_at_the_stored_offset(broker, start, seen, until) -> None:
    for number in range(4):
        broker.append("T", 0, b"%d" % number)
    broker.committed["g", "T", 0] = 2
    await start(seen)
    await until(lambda: len(seen.messages) == 2)
    assert seen.bodies == [b"2", b"3"]


@pytest.mark.parametrize(
    ("consume_from", "expected"),
    [(ConsumeFrom.FIRST, 0), (ConsumeFrom.LAST, 3), (ConsumeFrom.TIMESTAMP, 1)],
)
async def test_a_group_without_offset_starts_as_told(
    broker, start, seen, consume_from, expected, until
) -> None:
    for number in range(3):
        broker.append("T", 0, b"%d" % number)
    await start(seen, consume_from=consume_from, consume_timestamp_ms=1)
    pulls = broker.of(RequestCode.PULL_MESSAGE)
    await until(lambda: len(broker.of(RequestCode.PULL_MESSAGE)) >= 3)
    headers = [PullMessageHeader.from_ext(c.ext) for c in broker.of(RequestCode.PULL_MESSAGE)]
    first = next(h for h in headers if (h.topic, h.queue_id) == ("T", 0))
    assert first.queue_offset == expected
    assert pulls is not None


async def test_where_a_new_group_started_is_stored_though_nothing_came(broker, start, seen) -> None:
    broker.append("T", 0, b"before")
    consumer = await start(seen)
    await consumer.close()
    assert broker.committed["g", "T", 0] == 1


async def test_close_stores_the_offsets_and_unregisters(broker, start, seen, until) -> None:
    consumer = await start(seen, consume_from=ConsumeFrom.FIRST)
    for number in range(5):
        broker.append("T", 0, b"%d" % number)
    await until(lambda: len(seen.messages) == 5)
    await consumer.close()
    assert broker.committed["g", "T", 0] == 5
    assert broker.members["g"] == {}


async def test_offsets_ride_along_with_pulls(broker, start, seen, until) -> None:
    await start(seen)
    for number in (1, 2):
        broker.append("T", 0, b"x")
        await until(lambda number=number: len(seen.messages) == number)
    await until(lambda: broker.committed.get(("g", "T", 0), 0) > 0)


async def test_an_unfinished_message_holds_the_offset_back(broker, start, seen, until) -> None:
    gate = asyncio.Event()

    async def listener(messages: list[ReceivedMessage]) -> None:
        if messages[0].body == b"0":
            await gate.wait()
        seen.messages += messages

    consumer = await start(listener, close_timeout_s=0.01)
    for number in range(3):
        broker.append("T", 0, b"%d" % number)
    await until(lambda: len(seen.messages) == 2)
    await consumer.close()
    assert broker.committed["g", "T", 0] == 0
    gate.set()


async def test_close_waits_for_listeners_at_work(broker, start, seen, until) -> None:
    seen.gate = asyncio.Event()
    consumer = await start(seen, close_timeout_s=5)
    broker.append("T", 0, b"x")
    await until(lambda: bool(seen.calls))
    closing = asyncio.ensure_future(consumer.close())
    await asyncio.sleep(0)
    assert not closing.done()
    seen.gate.set()
    await closing
    assert broker.committed["g", "T", 0] == 1


async def test_two_members_share_the_queues_and_take_over(broker, start, seen, until) -> None:
    first = await start(seen)
    all_queues = first.queues
    second = await start(seen)
    broker.notify("g", RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    await until(lambda: sorted(first.queues + second.queues) == all_queues)
    assert first.queues
    assert second.queues
    await second.close()
    broker.notify("g", RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    await until(lambda: len(first.queues) == 3)


async def test_a_queue_given_away_has_its_offset_stored_first(broker, start, seen, until) -> None:
    first = await start(seen)
    for number in (0, 1):
        broker.append("T", number, b"x")
    await until(lambda: len(seen.messages) == 2)
    asked: list[tuple[Connection, Command]] = []
    broker.answers[RequestCode.QUERY_CONSUMER_OFFSET] = lambda *request: asked.append(request)
    starting = asyncio.create_task(start(seen))
    await until(lambda: bool(asked))  # it is answered when the queue has been given away
    broker.notify("g", RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    await until(lambda: len(first.queues) < 3)
    given = ({queue(0), queue(1)} - set(first.queues)).pop()
    await until(lambda: broker.committed.get(("g", "T", given.queue_id)) == 1)
    del broker.answers[RequestCode.QUERY_CONSUMER_OFFSET]
    for connection, command in asked:
        connection.write(broker.answer(connection, command))
    second = await starting
    await until(lambda: given in second.queues)
    assert len(seen.messages) == 2


async def test_a_new_groups_start_is_stored_at_once(broker, start, seen) -> None:
    """Another member must not decide anew where a queue begins: it would skip what is there."""
    await start(seen)
    assert {("g", "T", number): 0 for number in range(2)}.items() <= broker.committed.items()


async def test_a_member_list_without_us_changes_nothing(broker, start, seen, until) -> None:
    consumer = await start(seen)
    asked = []

    def strangers(_, command):
        asked.append(command)
        return encode_response(command, 0, body=drive(encode_consumer_list(["stranger"])))

    broker.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = strangers
    heartbeats = len(broker.of(RequestCode.HEART_BEAT))
    broker.notify("g", RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    await until(lambda: bool(asked) and len(broker.of(RequestCode.HEART_BEAT)) > heartbeats)
    assert len(consumer.queues) == 3


async def test_a_topic_that_appears_later_is_taken_up(cluster, broker, start, seen, until) -> None:
    del cluster.name_server.routes["T"]
    consumer = await start(seen)
    assert consumer.queues == [queue(0, RETRY)]
    cluster.add_topic("T")
    await until(lambda: len(consumer.queues) == 3)


async def test_subscribing_while_running_takes_queues_up_and_unsubscribing_gives_them_away(
    cluster, broker, start, seen
) -> None:
    cluster.add_topic("U", queues=1)
    consumer = await start(seen)
    await consumer.subscribe("U")
    assert queue(0, "U") in consumer.queues
    await consumer.unsubscribe("U")
    assert queue(0, "U") not in consumer.queues


def pulls_of_queue_0(broker, offset: int) -> list[int]:
    """The versions of the pulls that asked for that offset."""
    headers = [PullMessageHeader.from_ext(one.ext) for one in broker.of(RequestCode.PULL_MESSAGE)]
    return [
        one.sub_version
        for one in headers
        if (one.topic, one.queue_id, one.queue_offset) == ("T", 0, offset)
    ]


@pytest.mark.parametrize(("expression", "kind"), [("C", "TAG"), ("n > 3", "SQL92")])
async def test_an_answer_to_a_pull_with_another_expression_is_thrown_away_and_pulled_again(
    broker, start, seen, until, expression, kind
) -> None:
    broker.answers[RequestCode.CHECK_CLIENT_CONFIG] = lambda _, command: encode_response(command, 0)
    consumer = await start(seen, "B")
    await until(lambda: broker.waits_at("T", 0, 0))
    await consumer.subscribe("T", expression, kind)
    # The broker knows the new expression, and answers the pull that it holds by that one.
    broker.append("T", 0, b"wanted", properties="TAGS\x01C\x02")
    await until(lambda: len(seen.bodies) == 1)
    first, second = pulls_of_queue_0(broker, 0)
    assert first < second
    await consumer.close()
    assert broker.committed["g", "T", 0] == 1


async def test_a_topic_subscribed_to_again_while_it_is_given_up_goes_on(
    broker, start, seen, until
) -> None:
    """The broker ends the held pull as soon as it hears that the topic is not wanted; the loop of
    the queue ends with it, and the next round of rebalancing sees a topic that is wanted again."""

    def is_pulled() -> bool:
        name = f":pull {queue_text(queue(0))}"
        return any(task.get_name().endswith(name) for task in asyncio.all_tasks())

    consumer = await start(seen, "B")
    await until(lambda: broker.waits_at("T", 0, 0) and is_pulled())
    beats: list[tuple[Connection, Command]] = []
    broker.answers[RequestCode.HEART_BEAT] = lambda *beat: beats.append(beat)
    leaving = asyncio.create_task(consumer.unsubscribe("T"))
    await until(lambda: len(beats) > 0)
    broker.append("T", 0, b"not wanted", properties="TAGS\x01X\x02")
    await until(lambda: not is_pulled())
    again = asyncio.create_task(consumer.subscribe("T", "C"))
    del broker.answers[RequestCode.HEART_BEAT]
    for connection, command in beats:
        connection.write(encode_response(command, 0))
    await asyncio.gather(leaving, again)
    broker.append("T", 0, b"wanted", properties="TAGS\x01C\x02")
    await until(lambda: seen.bodies == [b"wanted"])


async def test_a_failed_message_goes_back_to_the_broker(broker, start, seen, until) -> None:
    seen.failing = {b"bad"}
    consumer = await start(seen)
    offset = broker.append("T", 1, b"bad")
    await until(lambda: bool(broker.of(RequestCode.CONSUMER_SEND_MSG_BACK)))
    header = SendBackHeader.from_ext(broker.of(RequestCode.CONSUMER_SEND_MSG_BACK)[0].ext)
    assert (header.group, header.offset, header.delay_level) == ("g", 1_000_000 + offset, 0)
    assert (header.origin_topic, header.max_reconsume_times) == ("T", 16)
    await consumer.close()
    assert broker.committed["g", "T", 1] == 1


async def test_a_listener_that_raises_has_failed(broker, start, until) -> None:
    async def listener(messages: list[ReceivedMessage]) -> None:
        raise ValueError("bug in the program")

    await start(listener)
    broker.append("T", 0, b"x")
    await until(lambda: bool(broker.of(RequestCode.CONSUMER_SEND_MSG_BACK)))


async def test_without_send_back_the_message_is_sent_anew(broker, start, seen, until) -> None:
    seen.failing = {b"bad"}
    broker.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda _, c: encode_response(c, 1, "no")
    await start(seen)
    broker.append("T", 0, b"bad", properties="KEYS\x01k1 k2\x02TAGS\x01A\x02UNIQ_KEY\x01U")
    await until(lambda: bool(broker.of(RequestCode.SEND_MESSAGE_V2)))
    header = SendMessageHeader.from_command(broker.of(RequestCode.SEND_MESSAGE_V2)[0])
    assert (header.topic, header.reconsume_times, header.max_reconsume_times) == (RETRY, 1, 16)
    assert decode_properties(header.properties) == {
        "KEYS": "k1 k2",
        "TAGS": "A",
        "UNIQ_KEY": "U",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": "U",
        "DELAY": "3",
    }


async def test_a_retried_message_shows_its_own_topic(broker, start, seen, until) -> None:
    await start(seen)
    broker.append(RETRY, 0, b"again", properties="RETRY_TOPIC\x01T", reconsume_times=2)
    await until(lambda: bool(seen.messages))
    message = seen.messages[0]
    assert (message.topic, message.queue.topic, message.reconsume_times) == ("T", RETRY, 2)


async def test_tags_are_compared_again_and_others_are_passed(broker, start, seen, until) -> None:
    consumer = await start(seen, "Aa")
    for tag in ("BB", "Aa", "BB"):
        broker.append("T", 0, tag.encode(), properties=f"TAGS\x01{tag}")
    await until(lambda: bool(seen.messages))
    await until(lambda: broker.waits_at("T", 0, 3))
    await consumer.close()
    assert seen.bodies == [b"Aa"]
    assert broker.committed["g", "T", 0] == 3


async def test_a_full_cache_stops_pulling_until_there_is_room(broker, start, seen, until) -> None:
    seen.gate = asyncio.Event()
    for number in range(100):
        broker.append("T", 0, b"%d" % number)
    await start(seen, consume_from=ConsumeFrom.FIRST, cached_messages_per_queue=10, pull_batch=5)
    await until(lambda: len(seen.calls) == 10)

    def pulls() -> int:
        return sum(c.ext["queueId"] == "0" and c.ext["topic"] == "T" for c in broker.of(11))

    assert pulls() == 2
    seen.gate.set()
    await until(lambda: len(seen.messages) == 100)


async def test_an_offset_that_moved_is_taken_up_at_the_valid_one(
    broker, start, seen, until
) -> None:
    broker.append("T", 0, b"x")
    broker.committed["g", "T", 0] = 99
    await start(seen)
    await until(lambda: broker.committed["g", "T", 0] == 1)
    broker.append("T", 0, b"y")
    await until(lambda: seen.bodies == [b"y"])


async def test_a_failed_pull_is_tried_again(broker, start, seen, until) -> None:
    failures = []

    def once(connection, command):
        failures.append(command)
        del broker.answers[RequestCode.PULL_MESSAGE]
        return encode_response(command, 2, "busy")

    broker.answers[RequestCode.PULL_MESSAGE] = once
    await start(seen)
    for number in (0, 1):
        broker.append("T", number, b"x")
    await until(lambda: len(seen.messages) == 2)
    assert len(failures) == 1


async def test_a_broker_that_forgot_the_subscription_is_told_again(
    broker, start, seen, until
) -> None:
    await start(seen)
    heartbeats = len(broker.of(RequestCode.HEART_BEAT))
    broker.answers[RequestCode.PULL_MESSAGE] = lambda _, c: encode_response(c, 24, "who?")
    broker.append("T", 0, b"x")
    await until(lambda: len(broker.of(RequestCode.HEART_BEAT)) > heartbeats)


async def test_a_broker_that_comes_back_knows_the_group_before_it_is_pulled_from(
    broker, start, seen, until
) -> None:
    await start(seen)
    await until(lambda: len(broker.held) == 3)
    port = broker.server.port
    await broker.stop()
    broker.held.clear()
    broker.requests.clear()
    await broker.start(port)
    await until(lambda: len(broker.held) == 3)
    assert broker.requests[0].code == RequestCode.HEART_BEAT
    broker.append("T", 0, b"after")
    await until(lambda: seen.bodies == [b"after"])


async def test_a_reset_by_the_broker_takes_queues_up_where_it_says(
    broker, start, seen, until
) -> None:
    await start(seen, consume_from=ConsumeFrom.FIRST)
    for number in range(3):
        broker.append("T", 0, b"%d" % number)
    await until(lambda: len(seen.messages) == 3)
    seen.messages.clear()
    body = encode_offset_table({queue(0): 1})
    broker.notify("g", RequestCode.RESET_CONSUMER_CLIENT_OFFSET, body, topic="T")
    await until(lambda: seen.bodies == [b"1", b"2"])


async def ask(broker, code: int, **ext: str):
    connection = next(iter(broker.members["g"].values()))
    return await connection.call(make_request(code, {"group": "g", **ext}), 5)


async def test_tools_are_told_offsets_and_running_state(broker, start, seen, until) -> None:
    consumer = await start(seen)
    broker.append("T", 0, b"x")
    await until(lambda: len(seen.messages) == 1)
    status = loads((await ask(broker, 221, topic="T")).body)
    assert {loads(key)["queueId"] for key in status["messageQueueTable"]} == {0, 1}
    answer = await ask(
        broker, 307, consumerGroup="g", clientId=consumer.client_id, jstackEnable="true"
    )
    info = loads(answer.body)
    assert len(info["mqTable"]) == 3
    assert info["properties"]["PROP_CONSUMEORDERLY"] == "false"
    assert info["statusTable"]["T"]["consumeFailedMsgs"] == 0
    assert {entry["topic"] for entry in info["subscriptionSet"]} == {"T", RETRY}
    assert "MainThread" in info["jstack"]


@pytest.mark.parametrize(("failing", "result"), [(False, "CR_SUCCESS"), (True, "CR_LATER")])
async def test_a_tool_may_have_one_message_consumed_directly(
    broker, start, seen, stored, failing, result
) -> None:
    await start(seen)
    seen.failing = {b"direct"} if failing else set()
    connection = next(iter(broker.members["g"].values()))
    command = make_request(309, {"consumerGroup": "g", "brokerName": "a"})
    command.body = stored("T", 0, 0, b"direct")
    answer = await connection.call(command, 5)
    assert loads(answer.body)["consumeResult"] == result
    assert seen.bodies == [b"direct"]


async def test_batches_are_no_larger_than_told(broker, start, seen, until) -> None:
    for number in range(10):
        broker.append("T", 0, b"%d" % number)
    await start(seen, consume_from=ConsumeFrom.FIRST, consume_batch=4)
    await until(lambda: len(seen.messages) == 10)
    assert seen.calls == [4, 4, 2]


async def test_a_plain_function_runs_in_a_thread_of_its_own(broker, start, until) -> None:
    threads: list[str] = []

    def listener(messages: list[ReceivedMessage]) -> None:
        threads.append(threading.current_thread().name)

    await start(listener, concurrency=2)
    broker.append("T", 0, b"x")
    await until(lambda: bool(threads))
    assert threads[0].startswith("aerobee-listener")


async def test_what_cannot_go_back_is_consumed_again_here(broker, start, seen, until) -> None:
    for code in (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2):
        broker.answers[code] = lambda _, command: encode_response(command, 1, "no")
    seen.failing = {b"bad"}
    consumer = await start(seen, local_retry_delay_s=0.01)
    broker.append("T", 0, b"bad")
    await until(lambda: len(seen.messages) >= 2)
    seen.failing = set()
    await until(lambda: consumer._assignment.get(queue(0)).committable == 1)


UNREADABLE = {"body": b"no zlib", "sys_flag": 1}


async def test_a_message_that_cannot_be_read_is_given_back_and_never_acknowledged(
    broker, start, seen, until, caplog
) -> None:
    await start(seen, consume_batch=8)
    broker.append("T", 0, b"before")
    broker.append("T", 0, **UNREADABLE)
    broker.append("T", 0, b"behind")
    for _ in range(3):
        broker.append("T", 1, **UNREADABLE)
    await until(lambda: len(broker.of(SEND_BACK)) == 4 and len(seen.messages) == 2)
    assert sorted(seen.bodies) == [b"before", b"behind"]
    said = [record for record in caplog.records if "cannot be read" in record.getMessage()]
    assert [record.levelname for record in said] == ["ERROR"]
    assert "zlib is damaged" in said[0].getMessage()


async def test_a_message_that_cannot_be_given_back_keeps_its_offset(
    broker, start, seen, until
) -> None:
    broker.answers[SEND_BACK] = lambda _, command: encode_response(command, 1, "not now")
    consumer = await start(seen)
    broker.append("T", 0, **UNREADABLE)
    broker.append("T", 0, b"behind")
    await until(lambda: broker.of(SEND_BACK) and len(seen.messages) == 1)
    await consumer.close()
    assert broker.committed["g", "T", 0] == 0


async def test_an_orderly_listener_gets_nothing_behind_a_message_that_cannot_be_read(
    broker, start, seen, until, caplog
) -> None:
    consumer = await start(seen, orderly=True, consume_batch=8, orderly_suspend_ms=1)
    broker.append("T", 0, b"before")
    broker.append("T", 0, **UNREADABLE)
    broker.append("T", 0, b"behind")
    counters = consumer._state.counters
    await until(lambda: "T" in counters and counters["T"].failed >= 3)
    assert seen.bodies == [b"before"]
    assert sum("cannot be read" in record.getMessage() for record in caplog.records) == 1
    await consumer.close()
    assert broker.committed["g", "T", 0] == 1
