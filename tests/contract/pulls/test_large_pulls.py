"""Pulls with maxMsgBytes (a 5.x field) bring more than others, within the broker's own bound."""

import pytest

from aerobee import testing
from aerobee.client.blocking_roles import Admin, Producer
from aerobee.client.message import Message
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import Command, make_request
from aerobee.protocol.headers.client import PULL_SUBSCRIPTION, PullMessageHeader
from aerobee.protocol.message.record import decode_records
from aerobee.remoting.calling.blocking_caller import BlockingCaller, ConnectOptions
from aerobee.testing import RunningBroker

COUNT = 300


def fill(broker: RunningBroker) -> None:
    with Admin(broker.name_server) as admin:
        admin.create_topic("t", queues=1)
    with Producer(broker.name_server) as producer:
        queue = MessageQueue("t", "test-broker", 0)
        for first in range(0, COUNT, 50):
            batch = [Message("t", b"x" * 100) for _ in range(first, first + 50)]
            producer.send_batch(batch, queue=queue)


def pull(broker: RunningBroker, most: int, most_bytes: int | None) -> Command:
    header = PullMessageHeader(
        "g", "t", 0, 0, most, PULL_SUBSCRIPTION, 0, 0, 0, "*", "TAG", most_bytes
    )
    with BlockingCaller(broker.broker, ConnectOptions()) as caller:
        return caller.call(make_request(RequestCode.PULL_MESSAGE, header.to_ext()))


def count(answer: Command) -> int:
    assert answer.code == 0, answer.remark
    return len(decode_records(answer.body))


def test_a_large_answer_is_for_who_asks_for_it() -> None:
    with testing.broker() as broker:
        fill(broker)
        assert count(pull(broker, 1_000, None)) == 32
        assert count(pull(broker, 1_000, 4 << 20)) == COUNT
        assert count(pull(broker, 200, 4 << 20)) == 200
        assert len(pull(broker, 1_000, 5_000).body) <= 5_000
        # One message always goes, whatever nonsense is asked.
        assert [count(pull(broker, 1_000, least)) for least in (0, -1, 1)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"transfer_bytes_bulk": 0}, 32),
        ({"transfer_count_bulk": 100}, 100),
        ({"transfer_bytes_bulk": 20_000}, None),
        # Old messages: a quarter.
        ({"transfer_bytes_bulk": 80_000, "memory_ratio_percent": 0}, None),
    ],
)
def test_the_broker_sets_the_bound(settings: dict[str, int], expected: int | None) -> None:
    with testing.broker(**settings) as broker:
        fill(broker)
        answer = pull(broker, 1_000, 4 << 20)
        if expected is not None:
            assert count(answer) == expected
        else:
            assert 15_000 < len(answer.body) <= 20_000


def test_thousands_of_messages_are_read_in_steps_and_come_in_one_answer() -> None:
    with testing.broker() as broker:
        for _ in range(10):
            fill(broker)
        assert count(pull(broker, 2_500, 4 << 20)) == 2_500
        assert count(pull(broker, 1 << 20, 4 << 20)) == 10 * COUNT
        assert 190_000 < len(pull(broker, 1 << 20, 200_000).body) <= 200_000


def test_a_field_that_is_no_number_is_named() -> None:
    with testing.broker() as broker:
        fill(broker)
        ext = PullMessageHeader("g", "t", 0, 0, 10, PULL_SUBSCRIPTION, 0, 0, 0, "*").to_ext()
        with BlockingCaller(broker.broker, ConnectOptions()) as caller:
            request = make_request(RequestCode.PULL_MESSAGE, ext | {"maxMsgBytes": "much"})
            answer = caller.call(request)
        assert answer.code == 1
        assert "maxMsgBytes" in (answer.remark or "")
