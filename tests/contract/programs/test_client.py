"""The client's promises, run against our broker and against the real Java broker.

One suite, two brokers: where both agree the client speaks the protocol and not just our broker's
idea of it. The Java broker takes part when its jars are there (tests/interop/setup.sh java).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

import aerobee.testing
from aerobee.client import (
    Admin,
    BadMessage,
    CallTimeout,
    ClientError,
    ClientOptions,
    Consumed,
    ConsumeFrom,
    HeaderForm,
    Message,
    MessageQueue,
    Model,
    Producer,
    ProducerOptions,
    PullConsumer,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    SendFailed,
    SendStatus,
    reply_to,
)
from aerobee.client.consuming.puller import PullStatus
from aerobee.client.errors import NoRoute, PeerFailed, RequestRefused
from tests.interop.brokers import JavaBroker, StoreShape
from tests.interop.kit import require

# Level 3 is short, so that the first retry is not waited for as long as in real life.
LEVELS = "1s 5s 1s 1s"
_counter = itertools.count()


@dataclass(frozen=True)
class Target:
    """A running broker to be tested against."""

    kind: str
    name_server: str
    address: str


@pytest.fixture(scope="module", params=["aerobee", "java"])
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    if request.param == "aerobee":
        with aerobee.testing.broker(message_delay_levels=LEVELS) as running:
            yield Target("aerobee", running.name_server, running.broker)
        return
    require("java-broker")
    shape = StoreShape(extra={"messageDelayLevel": LEVELS})
    java = JavaBroker(tmp_path_factory.mktemp("java"), shape).start()
    try:
        yield Target("java", java.name_server, java.address)
    finally:
        java.kill()  # nobody looks at its files; a clean stop takes it seconds


@pytest.fixture(params=[HeaderForm.JSON, HeaderForm.BINARY], ids=["json", "binary"])
def form(request: pytest.FixtureRequest) -> HeaderForm:
    return HeaderForm(request.param)


@pytest.fixture
async def admin(target: Target) -> AsyncIterator[Admin]:
    async with Admin(target.name_server) as admin:
        yield admin


@pytest.fixture
async def producer(target: Target) -> AsyncIterator[Producer]:
    async with Producer(target.name_server, "contract", ProducerOptions(send_timeout_s=10)) as one:
        yield one


@pytest.fixture
async def puller(target: Target) -> AsyncIterator[PullConsumer]:
    async with PullConsumer(target.name_server, f"pull-{next(_counter)}") as puller:
        yield puller


@pytest.fixture
async def topic(admin: Admin) -> str:
    """A new topic of four queues, known to the name server."""
    return await create(admin, f"T{next(_counter)}")


@pytest.fixture
async def consume(target: Target) -> AsyncIterator[Callable]:
    """Starts consumers and closes them at the end."""
    async with AsyncExitStack() as stack:

        async def consume(group: str, topic: str, listener, expression: str = "*", **options):
            options.setdefault("consume_from", ConsumeFrom.FIRST)
            consumer = PushConsumer(target.name_server, group, listener, PushOptions(**options))
            await consumer.subscribe(topic, expression)
            await stack.enter_async_context(consumer)
            return consumer

        yield consume


@pytest.fixture
def group() -> str:
    return f"G{next(_counter)}"


async def create(admin: Admin, topic: str, queues: int = 4) -> str:
    await admin.create_topic(topic, queues=queues)

    async def known() -> bool:
        try:
            return bool(await admin.route(topic))
        except NoRoute:
            return False

    await asked_until(known)
    return topic


async def eventually(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - any condition, not an event
            await asyncio.sleep(0.005)


async def asked_until(condition: Callable[[], Awaitable[bool]], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110 - the answer is the broker's
            await asyncio.sleep(0.01)


class Seen:
    """A listener that keeps what it got; `fail` says which deliveries are refused."""

    def __init__(self, fail: Callable[[ReceivedMessage], bool] = lambda message: False) -> None:
        self.messages: list[ReceivedMessage] = []
        self.refused: list[ReceivedMessage] = []
        self.fail = fail

    async def __call__(self, messages: list[ReceivedMessage]) -> Consumed:
        if any(self.fail(message) for message in messages):
            self.refused += messages
            return Consumed.RETRY
        self.messages += messages
        return Consumed.SUCCESS

    @property
    def bodies(self) -> set[bytes]:
        return {message.body for message in self.messages}


async def test_what_is_sent_can_be_pulled(target, topic, puller, form) -> None:
    options = ProducerOptions(header_form=form)
    async with Producer(target.name_server, "contract", options) as producer:
        message = Message(topic, "schön".encode(), "A", ("k1", "k2"), {"own": "ü 1"}, flag=7)
        sent = await producer.send(message)
    assert sent.status is SendStatus.OK
    result = await puller.pull(sent.queue, sent.queue_offset, wait_ms=20_000)
    assert result.status is PullStatus.FOUND
    found = result.messages[0]
    assert (found.body, found.tags, found.keys, found.flag) == (message.body, "A", ("k1", "k2"), 7)
    assert (found.msg_id, found.offset_msg_id) == (sent.msg_id, sent.offset_msg_id)
    assert (found.queue, found.queue_offset) == (sent.queue, sent.queue_offset)
    assert found.properties["own"] == "ü 1"
    assert abs(found.store_timestamp_ms - time.time() * 1000) < 60_000


async def test_many_in_flight_are_all_stored_and_told_where(
    target, topic, producer, puller
) -> None:
    messages = [Message(topic, b"%d" % number) for number in range(1000)]
    results = await producer.send_many(messages, key="one queue")
    if target.kind == "aerobee":  # Java's send threads overtake one another
        assert [result.queue_offset for result in results] == list(range(1000))
    bodies: list[bytes] = []
    while len(bodies) < 1000:
        result = await puller.pull(results[0].queue, len(bodies))
        bodies += [message.body for message in result.messages]
    offsets = [result.queue_offset for result in results]
    expected = sorted(zip(offsets, messages, strict=True), key=lambda pair: pair[0])
    assert bodies == [message.body for _, message in expected]


async def test_a_batch_is_stored_together_and_every_message_is_its_own(
    topic, producer, puller, admin
) -> None:
    messages = [Message(topic, b"b%d" % n, "A", f"batch-key-{n}", flag=n) for n in range(20)]
    sent = await producer.send_batch(messages)
    found: list[ReceivedMessage] = []
    while len(found) < len(messages):  # Java may be in the middle of dispatching them
        result = await puller.pull(sent.queue, sent.queue_offset + len(found))
        found += result.messages
    assert [(m.body, m.flag) for m in found] == [(m.body, m.flag) for m in messages]
    assert [m.msg_id for m in found] == sent.msg_id.split(",")
    assert [m.offset_msg_id for m in found] == sent.offset_msg_id.split(",")


async def test_oneway_messages_arrive(topic, producer, consume, group) -> None:
    seen = Seen()
    await consume(group, topic, seen)
    for number in range(50):
        await producer.send_oneway(Message(topic, b"%d" % number))
    await eventually(lambda: len(seen.bodies) == 50)


async def test_a_large_body_comes_back_whole(topic, producer, puller) -> None:
    body = b"compressible " * 50_000
    sent = await producer.send(Message(topic, body))
    found = (await puller.pull(sent.queue, sent.queue_offset, wait_ms=20_000)).messages[0]
    assert found.body == body
    assert found.size < len(body)


async def test_a_body_over_the_brokers_limit_is_refused_with_its_code(target, topic) -> None:
    options = ProducerOptions(max_body_bytes=8 * 1024 * 1024)
    async with Producer(target.name_server, "contract", options) as producer:
        with pytest.raises(RequestRefused) as caught:
            await producer.send(Message(topic, os.urandom(5 * 1024 * 1024)))
    assert caught.value.code == 13


async def test_a_topic_is_made_by_its_first_message(producer, puller) -> None:
    topic = f"AUTO{next(_counter)}"
    sent = await producer.send(Message(topic, b"first"))
    assert len(await queues_once_known(puller, topic)) == 4
    assert (await puller.pull(sent.queue, 0)).messages[0].body == b"first"


async def queues_once_known(puller: PullConsumer, topic: str) -> list[MessageQueue]:
    queues: list[MessageQueue] = []

    async def known() -> bool:
        try:
            queues[:] = await puller.queues(topic, refresh=True)
        except NoRoute:
            return False
        return True

    await asked_until(known)
    return queues


async def test_a_group_gets_every_message_once(topic, producer, consume, group, form) -> None:
    seen = Seen()
    await consume(group, topic, seen, header_form=form)
    await producer.send_many(Message(topic, b"%d" % number) for number in range(1000))
    await eventually(lambda: len(seen.messages) >= 1000)
    assert seen.bodies == {b"%d" % number for number in range(1000)}
    assert len(seen.messages) == 1000


async def answered_by(consume, group: str, topic: str, replier: Producer) -> None:
    """A member of the group that answers each request with its body, doubled."""

    async def answer(messages: list[ReceivedMessage]) -> None:
        for message in messages:
            reply = reply_to(message, message.body * 2, properties={"Seen": message.msg_id})
            assert (await replier.send(reply)).status is SendStatus.OK

    await consume(group, topic, answer)


@pytest.mark.parametrize("size", [3, 100_000], ids=["plain", "compressed"])
async def test_a_request_gets_the_reply_of_its_consumer(
    topic, target, producer, consume, group, size
) -> None:
    async with Producer(target.name_server, "repliers") as replier:
        await answered_by(consume, group, topic, replier)
        asked = [Message(topic, b"%d" % number * size) for number in range(5)]
        replies = await asyncio.gather(
            *(producer.request(message, timeout_s=30) for message in asked)
        )
    assert [reply.body for reply in replies] == [message.body * 2 for message in asked]
    assert len({reply.properties["Seen"] for reply in replies}) == 5
    assert all(int(reply.properties["ARRIVE_TIME"]) > 0 for reply in replies)


async def test_a_request_that_nobody_answers_ends_in_time(topic, producer, puller) -> None:
    with pytest.raises(CallTimeout, match=r"no reply to a request .* it was stored as"):
        await producer.request(Message(topic, b"anybody there?"), timeout_s=0.7)
    (queue,) = [one for one in await puller.queues(topic) if await puller.max_offset(one)]
    (message,) = (await puller.pull(queue, 0)).messages
    assert message.properties["TTL"] == "700"
    reply = reply_to(message, b"late")
    # It is still known and takes the reply, for which nobody waits.
    assert (await producer.send(reply)).status is SendStatus.OK


async def test_a_reply_to_a_client_that_has_gone_says_so(topic, target, producer, puller) -> None:
    async with Producer(target.name_server, "leaving") as asking:
        with pytest.raises(CallTimeout):
            await asking.request(Message(topic, b"gone"), timeout_s=0.3)
    (queue,) = [one for one in await puller.queues(topic) if await puller.max_offset(one)]
    (message,) = (await puller.pull(queue, 0)).messages
    with pytest.raises(SendFailed, match=r"channel of .* not found"):
        await producer.send(reply_to(message, b"too late"))


async def test_what_asks_for_no_reply_gets_none(topic, producer, puller) -> None:
    await producer.send(Message(topic, b"no question"))
    (queue,) = [one for one in await puller.queues(topic) if await puller.max_offset(one)]
    (message,) = (await puller.pull(queue, 0)).messages
    with pytest.raises(BadMessage, match="asks for no reply"):
        reply_to(message, b"an answer")


def fields_of(messages: list[ReceivedMessage]) -> list[list[str]]:
    """The records of trace in these messages, field by field."""
    text = b"".join(message.body for message in messages).decode()
    return [record.split("\x01") for record in text.split("\x02") if record]


async def test_sending_and_consuming_are_traced_as_java_clients_do(
    topic, target, admin, consume, group, puller
) -> None:
    trace_topic = await create(admin, f"trace-{next(_counter)}")
    seen = Seen(fail=lambda message: message.body == b"fails" and not message.reconsume_times)
    tracing = {"trace": True, "trace_topic": trace_topic}
    consumer = await consume(group, topic, seen, **tracing)
    options = ProducerOptions(send_timeout_s=10, **tracing)
    async with Producer(target.name_server, "traced", options) as producer:
        sent = await producer.send(Message(topic, b"works", "A", ("key-1", "key-2")))
        failing = await producer.send(Message(topic, b"fails"))
        delayed = await producer.send(Message(topic, b"later", delay_level=1))
        await eventually(lambda: len(seen.messages) >= 3 and bool(seen.refused), 60)
    await consumer.close()

    async def told() -> list[ReceivedMessage]:
        queues = await puller.queues(trace_topic)
        return [message for queue in queues for message in (await puller.pull(queue, 0)).messages]

    messages = await told()
    records = fields_of(messages)
    (first,) = [one for one in records if one[0] == "Pub" and one[5] == sent.msg_id]
    assert first[2:5] == ["DefaultRegion", "traced", topic]
    assert first[6:10] == ["A", "key-1 key-2", target.address, "5"]
    assert first[11:] == ["0", sent.offset_msg_id, "true"]
    (later,) = [one for one in records if one[0] == "Pub" and one[5] == delayed.msg_id]
    assert (later[6], later[7], later[11]) == ("null", "null", "3")
    before = {one[4]: one for one in records if one[0] == "SubBefore"}
    after = {one[1]: one for one in records if one[0] == "SubAfter"}
    assert set(before) == set(after)
    tries = [
        (one[6], after[request][4], after[request][6])
        for request, one in before.items()
        if one[5] == failing.msg_id
    ]
    assert sorted(tries) == [("0", "false", "4"), ("1", "true", "0")]
    assert all(one[8] == group for one in after.values())
    # They are found by the ids and keys of what they are about.
    assert any({sent.msg_id, "key-1", "key-2"} <= set(message.keys) for message in messages)


async def test_only_messages_with_the_tags_come(topic, producer, consume, group) -> None:
    seen = Seen()
    await consume(group, topic, seen, "Aa || C")
    for tag in ("Aa", "BB", "C", "D", ""):  # "Aa" and "BB" share a hash
        await producer.send(Message(topic, tag.encode() or b"none", tag))
    await eventually(lambda: len(seen.messages) == 2)
    assert seen.bodies == {b"Aa", b"C"}


async def test_two_members_share_the_queues_and_one_takes_over(
    topic, producer, consume, group
) -> None:
    seen, also_seen = Seen(), Seen()
    first = await consume(group, topic, seen)
    second = await consume(group, topic, also_seen)

    def own(consumer: PushConsumer) -> set[MessageQueue]:
        return {queue for queue in consumer.queues if queue.topic == topic}

    await eventually(lambda: len(own(first)) == len(own(second)) == 2)
    assert own(first) & own(second) == set()
    await producer.send_many(Message(topic, b"%d" % number) for number in range(100))
    await eventually(lambda: len(seen.bodies | also_seen.bodies) == 100)
    assert seen.messages
    assert also_seen.messages
    await second.close()
    await eventually(lambda: len(own(first)) == 4)
    await producer.send_many(Message(topic, b"later %d" % number) for number in range(100))
    await eventually(lambda: len(seen.bodies | also_seen.bodies) == 200)


async def test_a_group_goes_on_where_it_stopped(topic, producer, consume, group) -> None:
    seen = Seen()
    consumer = await consume(group, topic, seen)
    await producer.send_many(Message(topic, b"a%d" % number) for number in range(40))
    await eventually(lambda: len(seen.bodies) == 40)
    await consumer.close()
    await producer.send_many(Message(topic, b"b%d" % number) for number in range(40))
    later = Seen()
    await consume(group, topic, later)
    await eventually(lambda: len(later.bodies) == 40)
    assert later.bodies == {b"b%d" % number for number in range(40)}


async def test_a_failed_message_comes_again_through_the_retry_topic(
    topic, producer, consume, group
) -> None:
    seen = Seen(fail=lambda message: message.reconsume_times == 0)
    await consume(group, topic, seen)
    sent = await producer.send(Message(topic, b"twice", "A", "key"))
    await eventually(lambda: bool(seen.messages), 60)
    again = seen.messages[0]
    assert (again.topic, again.queue.topic) == (topic, f"%RETRY%{group}")
    assert (again.body, again.tags, again.keys) == (b"twice", "A", ("key",))
    assert (again.msg_id, again.reconsume_times) == (sent.msg_id, 1)
    assert len(seen.refused) == 1


async def test_a_message_that_fails_too_often_goes_to_the_dead_letters(
    topic, producer, consume, group, puller
) -> None:
    seen = Seen(fail=lambda message: True)
    await consume(group, topic, seen, max_reconsume=0)
    await producer.send(Message(topic, b"poison"))
    await eventually(lambda: bool(seen.refused))
    queues = await queues_once_known(puller, f"%DLQ%{group}")
    result = await puller.pull(queues[0], 0, wait_ms=5000)
    assert [message.body for message in result.messages] == [b"poison"]


async def test_orderly_consumption_keeps_the_order_over_failures(
    topic, producer, consume, group
) -> None:
    failures = {b"3": 2, b"7": 1}

    def fail(message: ReceivedMessage) -> bool:
        left = failures.get(message.body, 0)
        failures[message.body] = left - 1
        return left > 0

    seen = Seen(fail)
    for number in range(20):
        await producer.send(Message(topic, b"%d" % number), key="one queue")
    await consume(group, topic, seen, orderly=True, orderly_suspend_ms=10)
    await eventually(lambda: len(seen.messages) == 20)
    assert [message.body for message in seen.messages] == [b"%d" % n for n in range(20)]
    assert [message.body for message in seen.refused] == [b"3", b"3", b"7"]


async def test_an_orderly_queue_moves_only_after_its_lock_was_given_up(
    topic, producer, consume, group
) -> None:
    at_work: dict[MessageQueue, int] = {}
    together: list[MessageQueue] = []
    bodies: list[bytes] = []

    async def listener(messages: list[ReceivedMessage]) -> None:
        queue = messages[0].queue
        at_work[queue] = at_work.get(queue, 0) + 1
        if at_work[queue] > 1:
            together.append(queue)
        await asyncio.sleep(0.001)
        bodies.extend(message.body for message in messages)
        at_work[queue] -= 1

    await consume(group, topic, listener, orderly=True)
    sending = asyncio.ensure_future(
        producer.send_many((Message(topic, b"%d" % n) for n in range(500)), in_flight=4)
    )
    second = await consume(group, topic, listener, orderly=True)
    await eventually(lambda: bool(second.queues))
    await sending
    await eventually(lambda: len(set(bodies)) == 500)
    assert together == []


async def test_broadcasting_reaches_every_member_and_goes_on_from_its_file(
    topic, producer, consume, group, tmp_path
) -> None:
    async def member(name: str, seen: Seen) -> PushConsumer:
        return await consume(
            group,
            topic,
            seen,
            model=Model.BROADCASTING,
            instance_name=f"{name}-{group}",
            offset_directory=tmp_path,
        )

    first, second = Seen(), Seen()
    consumer = await member("first", first)
    await member("second", second)
    await producer.send_many(Message(topic, b"%d" % number) for number in range(20))
    await eventually(lambda: len(first.bodies) == len(second.bodies) == 20)
    await consumer.close()
    await producer.send(Message(topic, b"later"))
    again = Seen()
    await member("first", again)
    await eventually(lambda: bool(again.messages))
    assert again.bodies == {b"later"}


async def test_what_is_subscribed_to_while_pulls_are_held_is_not_passed_over(
    target: Target, admin: Admin, producer: Producer, consume: Callable, group: str
) -> None:
    """The held pulls were sent with the expression before; the broker goes by the new one."""
    topic = await create(admin, f"T{next(_counter)}", queues=2)
    queues = [MessageQueue(topic, (await admin.route(topic)).brokers[0].name, n) for n in range(2)]
    seen = Seen()
    consumer = await consume(group, topic, seen, "B", suspend_ms=3_000)
    for queue in queues:
        await producer.send(Message(topic, b"b", "B"), queue=queue)
    await eventually(lambda: len(seen.messages) == 2)
    await consumer.subscribe(topic, "C")
    for queue in queues * 3:
        await producer.send(Message(topic, b"c", "C"), queue=queue)
    await eventually(lambda: len(seen.messages) == 8)
    assert [message.tags for message in seen.messages] == ["B"] * 2 + ["C"] * 6
    # And back, by way of nothing at all.
    await consumer.unsubscribe(topic)
    await consumer.subscribe(topic, "B || D")
    for queue in queues * 2:
        await producer.send(Message(topic, b"d", "D"), queue=queue)
    await eventually(lambda: len(seen.messages) == 12)
    assert {message.tags for message in seen.messages[8:]} == {"D"}


async def test_a_waiting_pull_is_answered_when_a_message_arrives(topic, producer, puller) -> None:
    queue = (await puller.queues(topic))[0]
    assert (await puller.pull(queue, 0)).status in (PullStatus.NO_NEW, PullStatus.OFFSET_MOVED)
    waiting = asyncio.ensure_future(puller.pull(queue, 0, wait_ms=20_000))
    await producer.send(Message(topic, b"x"), queue=queue)
    async with asyncio.timeout(10):
        result = await waiting
    assert [message.body for message in result.messages] == [b"x"]


async def test_an_offset_beyond_the_end_is_told_with_the_valid_one(topic, producer, puller) -> None:
    sent = await producer.send(Message(topic, b"x"))
    await puller.pull(sent.queue, 0, wait_ms=20_000)  # Java answers before it has dispatched it
    result = await puller.pull(sent.queue, 100)
    assert (result.status, result.next_offset) == (PullStatus.OFFSET_MOVED, 1)


async def test_the_ends_of_a_queue_and_an_offset_by_time(topic, producer, puller) -> None:
    sent = await producer.send(Message(topic, b"x"))
    for _ in range(2):
        await producer.send(Message(topic, b"x"), queue=sent.queue)

    async def dispatched() -> bool:
        # Another broker's reput comes behind the acknowledgement.
        return await puller.max_offset(sent.queue) == 3

    await asked_until(dispatched)
    assert await puller.min_offset(sent.queue) == 0
    assert await puller.offset_at(sent.queue, 1) == 0


async def test_offsets_are_committed_and_found_again(topic, producer, puller) -> None:
    sent = await producer.send(Message(topic, b"x"))
    await puller.commit(sent.queue, 1)
    assert await puller.committed(sent.queue) == 1


async def test_messages_are_found_by_key_by_unique_id_and_by_the_brokers_id(
    topic, producer, admin
) -> None:
    sent = await producer.send(Message(topic, b"needle", keys=("k1", "k2")))
    await producer.send(Message(topic, b"hay", keys=("k3",)))

    async def found(key: str) -> list[bytes]:
        return [message.body for message in await admin.query_by_key(topic, key)]

    async def indexed() -> bool:  # the index follows the log a moment behind
        return await found("k2") == [b"needle"] and await found("k3") == [b"hay"]

    await asked_until(indexed)
    assert await found("k4") == []
    assert [m.body for m in await admin.query_by_unique_key(topic, sent.msg_id)] == [b"needle"]
    viewed = await admin.view(sent.offset_msg_id)
    assert (viewed.body, viewed.queue) == (b"needle", sent.queue)


async def test_a_brokers_id_that_leads_nowhere_is_an_error(topic, producer, admin) -> None:
    sent = await producer.send(Message(topic, b"x"))
    with pytest.raises(PeerFailed):
        await admin.view(sent.offset_msg_id[:-16] + f"{2**40:016X}")


async def test_topics_are_created_listed_described_and_deleted(
    target, admin, producer, topic
) -> None:
    assert topic in await admin.topics()
    route = await admin.route(topic)
    assert [span.write_queues for span in route.queues] == [4]
    await producer.send(Message(topic, b"x"))

    async def dispatched() -> bool:
        return sum(queue.max_offset for queue in (await admin.topic_stats(topic)).values()) == 1

    await asked_until(dispatched)
    assert len(await admin.topic_stats(topic)) == 4
    await admin.delete_topic(topic)
    assert topic not in await admin.topics()


async def test_progress_and_members_of_a_group_are_told(
    topic, producer, target, consume, group, admin
) -> None:
    seen = Seen()
    consumer = await consume(group, topic, seen)
    await producer.send_many(Message(topic, b"%d" % number) for number in range(10))
    await eventually(lambda: len(seen.messages) == 10)
    members = await admin.consumers(group)
    assert [(data.client_id, data.language) for data in members] == [(consumer.client_id, "PYTHON")]
    await consumer.close()
    sent = await producer.send(Message(topic, b"one more"))
    async with PullConsumer(target.name_server) as puller:  # Java answers before it has dispatched
        await puller.pull(sent.queue, sent.queue_offset, wait_ms=20_000)
    progress = await admin.consume_progress(group, topic)
    assert sum(entry.lag for entry in progress.values()) == 1
    assert sum(entry.consumer_offset for entry in progress.values()) == 10
    assert await admin.consumers(group) == []


async def test_the_cluster_and_a_brokers_figures_are_told(target, admin) -> None:
    info = await admin.cluster()
    assert [broker.addresses for broker in info.brokers.values()] == [{0: target.address}]
    figures = await admin.runtime_info(target.address)
    assert figures["brokerVersionDesc"].startswith("V4_9")


async def test_a_pulled_message_can_be_sent_back(topic, producer, target, consume, group) -> None:
    seen = Seen()
    consumer = await consume(group, f"%RETRY%{group}", seen)  # makes the group
    async with PullConsumer(target.name_server, group) as puller:
        sent = await producer.send(Message(topic, b"again"))
        pulled = await puller.pull(sent.queue, sent.queue_offset, wait_ms=20_000)
        message = pulled.messages[0]
        await puller.send_back(message, delay_level=1)
    await eventually(lambda: bool(seen.messages), 60)
    assert (seen.messages[0].topic, seen.messages[0].body) == (topic, b"again")
    assert consumer.queues


async def test_an_admin_speaks_binary_headers_too(target, topic) -> None:
    options = ClientOptions(header_form=HeaderForm.BINARY)
    async with Admin(target.name_server, options) as admin:
        assert topic in await admin.topics()
        assert len(await admin.topic_stats(topic)) == 4


async def test_the_whole_group_goes_on_after_its_connections_broke(
    topic, producer, consume, group
) -> None:
    seen = Seen()
    consumer = await consume(group, topic, seen, pull_retry_delay_s=0.05)
    await producer.send(Message(topic, b"before"))
    await eventually(lambda: b"before" in seen.bodies)
    for session in (consumer._session, producer._session):
        for caller in list(session.pool._callers.values()):
            caller.connection.close("test", abort=True)
    await producer.send(Message(topic, b"after"))
    await eventually(lambda: b"after" in seen.bodies)


def test_the_blocking_face_does_the_same(target: Target) -> None:
    from aerobee.client import blocking_roles

    topic, group = f"B{next(_counter)}", f"BG{next(_counter)}"
    bodies: set[bytes] = set()
    with blocking_roles.Admin(target.name_server) as admin:
        admin.create_topic(topic, queues=2)
        deadline = time.monotonic() + 10
        while topic not in admin.topics() and time.monotonic() < deadline:
            time.sleep(0.01)

        def listener(messages: list[ReceivedMessage]) -> None:
            bodies.update(message.body for message in messages)

        options = PushOptions(consume_from=ConsumeFrom.FIRST)
        with (
            blocking_roles.Producer(target.name_server) as producer,
            blocking_roles.PushConsumer(target.name_server, group, listener, options) as consumer,
        ):
            consumer.subscribe(topic)
            sent = producer.send(Message(topic, b"one", keys="k"))
            producer.send_many(Message(topic, b"%d" % number) for number in range(10))
            producer.send_batch([Message(topic, b"batch")])
            producer.send_oneway(Message(topic, b"oneway"))
            deadline = time.monotonic() + 20
            while len(bodies) < 13 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert len(bodies) == 13
        with blocking_roles.PullConsumer(target.name_server) as puller:
            assert len(puller.queues(topic)) == 2
            assert puller.pull(sent.queue, sent.queue_offset).messages[0].body == b"one"
            assert puller.max_offset(sent.queue) > 0
        assert admin.view(sent.offset_msg_id).body == b"one"
        with pytest.raises(ClientError):
            admin.route("UNKNOWN")
