"""Broadcasting: every queue is ours, offsets are local, failures are passed over."""

from __future__ import annotations

import pytest

from aerobee.client.consuming.listener import Consumed
from aerobee.client.consuming.push_consumer import PushConsumer
from aerobee.client.errors import OffsetFileInUse
from aerobee.client.message import ReceivedMessage
from aerobee.client.options import ConsumeFrom, Model, PushOptions
from aerobee.protocol.bodies.clients import HeartbeatData
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.codes import RequestCode


@pytest.fixture
async def start(broker, name_server, tmp_path):
    started: list[PushConsumer] = []

    async def start(listener, **options) -> PushConsumer:
        defaults = {
            "model": Model.BROADCASTING,
            "consume_from": ConsumeFrom.FIRST,
            "offset_directory": tmp_path,
            "offset_store_interval_s": 0.01,
            "instance_name": f"member-{len(started)}",
        }
        consumer = PushConsumer(name_server, "g", listener, PushOptions(**{**defaults, **options}))
        started.append(consumer)
        await consumer.subscribe("T")
        await consumer.start()
        return consumer

    yield start
    for consumer in started:
        await consumer.close()


async def test_every_member_has_every_queue_and_no_retry_topic(broker, start) -> None:
    async def listener(messages: list[ReceivedMessage]) -> None:
        """Nothing."""

    members = [await start(listener) for _ in range(2)]
    both = [MessageQueue("T", "a", number) for number in (0, 1)]
    assert [member.queues for member in members] == [both, both]
    heartbeat = HeartbeatData.parse(broker.of(RequestCode.HEART_BEAT)[-1].body)
    assert heartbeat.consumers[0].message_model == "BROADCASTING"
    assert [s.topic for s in heartbeat.consumers[0].subscriptions] == ["T"]


async def test_a_second_member_on_the_same_offset_file_is_refused(broker, start) -> None:
    async def listener(messages: list[ReceivedMessage]) -> None:
        """Nothing."""

    await start(listener, instance_name="same")
    with pytest.raises(OffsetFileInUse):
        await start(listener, instance_name="same")


async def test_a_failed_message_is_passed_over_and_offsets_stay_here(
    broker, start, tmp_path, until
) -> None:
    bodies: list[bytes] = []

    async def listener(messages: list[ReceivedMessage]) -> Consumed:
        bodies.append(messages[0].body)
        return Consumed.RETRY

    await start(listener)
    for number in range(3):
        broker.append("T", 0, b"%d" % number)
    file = tmp_path / "member-0" / "g.json"
    await until(lambda: file.exists() and '"queueId":0,"topic":"T"}:3' in file.read_text())
    assert bodies == [b"0", b"1", b"2"]
    assert broker.committed == {}
    assert broker.of(RequestCode.CONSUMER_SEND_MSG_BACK) == []
    assert broker.of(RequestCode.QUERY_CONSUMER_OFFSET) == []
