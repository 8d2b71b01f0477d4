"""Fast failure: a request that has waited in the broker for too long is refused."""

from __future__ import annotations

from typing import cast

import pytest

from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.routing.patience import patience_s
from aerobee.broker.routing.router import Router
from aerobee.config.model import Settings
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_success, make_request
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Turns


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Waiting:
    """A connection whose commands have waited."""

    peer = ("192.0.2.1", 1)
    waiting_commands = 7

    def __init__(self, since: float) -> None:
        self.waited_since = since


def served(waited_s: float, code: int = RequestCode.SEND_MESSAGE_V2, **changes: object) -> bytes:
    clock = Clock()
    settings = Settings.for_tests(**changes)
    router = Router(
        {code: lambda _connection, command: encode_success(command)},
        stats=BrokerStats(),
        on_closed=lambda _connection: None,
        turns=Turns(clock),
        max_request_bytes=settings.max_request_bytes,
        patience_s=patience_s(settings),
    )
    connection = Waiting(clock.now - waited_s if waited_s else 0.0)
    answer = router.serve(cast("Connection", connection), make_request(code))
    assert isinstance(answer, bytes)
    return answer


@pytest.mark.parametrize(
    ("waited_s", "code"),
    [
        (0.3, RequestCode.SEND_MESSAGE_V2),
        (5.1, RequestCode.PULL_MESSAGE),
        (31.1, RequestCode.HEART_BEAT),
        (3.1, RequestCode.END_TRANSACTION),
    ],
)
def test_what_waited_longer_than_its_kind_may_is_refused(waited_s: float, code: int) -> None:
    with pytest.raises(BadRequest) as refused:
        served(waited_s, code)
    assert refused.value.code == ResponseCode.SYSTEM_BUSY


def test_a_send_that_waited_too_long_is_refused_as_busy() -> None:
    with pytest.raises(BadRequest) as refused:
        served(0.3)
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    assert refused.value.remark == (
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
        "300ms, size of queue: 7"
    )


@pytest.mark.parametrize(
    ("waited_s", "code", "changes"),
    [
        (0.0, RequestCode.SEND_MESSAGE_V2, {}),
        (0.1, RequestCode.SEND_MESSAGE_V2, {}),
        (0.3, RequestCode.PULL_MESSAGE, {}),
        (30.0, RequestCode.HEART_BEAT, {}),
        (2.9, RequestCode.END_TRANSACTION, {}),
        (99.0, RequestCode.END_TRANSACTION, {"transaction_queue_wait_ms": 0}),
        (99.0, RequestCode.GET_ALL_TOPIC_CONFIG, {}),
        (3.0, RequestCode.SEND_MESSAGE_V2, {"send_queue_wait_ms": 10_000}),
        (99.0, RequestCode.SEND_MESSAGE_V2, {"send_queue_wait_ms": 0}),
        (99.0, RequestCode.SEND_MESSAGE_V2, {"fast_failure": False}),
    ],
)
def test_what_waited_less_than_its_kind_may_is_served(
    waited_s: float, code: int, changes: dict[str, object]
) -> None:
    assert served(waited_s, code, **changes)


def test_bodies_of_requests_without_messages_are_bounded() -> None:
    def served_body(code: int) -> Command | None:
        router = Router(
            {code: lambda _connection, command: encode_success(command)},
            stats=BrokerStats(),
            on_closed=lambda _connection: None,
            turns=Turns(),
            max_request_bytes=1000,
            patience_s={},
        )
        request = make_request(code, body=bytes(1001))
        router.serve(cast("Connection", Waiting(0.0)), request)
        return request

    assert served_body(RequestCode.SEND_BATCH_MESSAGE)
    with pytest.raises(BadRequest, match="1001 bytes, the limit for code 34 is 1000"):
        served_body(RequestCode.HEART_BEAT)
