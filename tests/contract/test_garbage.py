"""A client that leaves, leaves no circle of objects behind: what a full collection has seen once is
not looked at again (`broker/process.py`), so a circle that closed later would stay for ever."""

from __future__ import annotations

import gc
import json

import aerobee.testing
from aerobee.remoting.connection import Connection
from tests.budget.largest_inputs import consumer, subscription
from tests.crash.link import PULL, SEND, Link, pull_fields, send_fields
from tests.service.kit import wait_until

_HEART_BEAT, _UNKNOWN = 34, 29_999


def _connections() -> int:
    return sum(isinstance(one, Connection) for one in gc.get_objects())


def _visit(port: int) -> None:
    """A producer and consumer that leaves with a pull that is held."""
    with Link(port) as link:
        link.create_topic("T", 1)
        sent = link.call(SEND, send_fields("T", 0, {"KEYS": "k"}), b"body")
        assert link.call(PULL, pull_fields("T", 0, int(sent.ext["queueOffset"]), 5)).body
        beat = {
            "clientID": "c",
            "producerDataSet": [{"groupName": "P"}],
            "consumerDataSet": [consumer("G", [subscription("T", 0)])],
        }
        link.ask(_HEART_BEAT, {}, json.dumps(beat).encode())
        answered = False
        while not answered:
            answered = any(answer.is_response for answer in link.answers())
        assert link.call(_UNKNOWN, {}).code == 3
        link.ask(PULL, pull_fields("T", 0, int(sent.ext["queueOffset"]) + 1, 5))


def test_a_closed_connection_is_freed_without_a_collection() -> None:
    with aerobee.testing.broker() as running:
        port = int(running.broker.rsplit(":")[-1])
        _visit(port)
        gc.collect()
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            before = _connections()
            for _ in range(5):
                _visit(port)
            wait_until(lambda: _connections() <= before, "all are freed without a collection")
        finally:
            if was_enabled:
                gc.enable()
