"""A client that leaves, leaves no circle of objects behind: what a full collection has seen once is
not looked at again (`broker/process.py`), so a circle that closed later would stay for ever."""

from __future__ import annotations

import gc
import json
import time

import aerobee.testing
from aerobee.remoting.connection import Connection
from tests.crash.link import PULL, SEND, Link, pull_fields, send_fields

_HEART_BEAT, _UNKNOWN = 34, 29_999
_GROUP = {
    "groupName": "G", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
    "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False,
    "subscriptionDataSet": [
        {
            "topic": "T", "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1,
            "classFilterMode": False, "expressionType": "TAG",
        }
    ],
}  # fmt: skip


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
            "consumerDataSet": [_GROUP],
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
            deadline = time.monotonic() + 10
            while _connections() > before:
                assert time.monotonic() < deadline, "connections stay until a collection of garbage"
                time.sleep(0.01)
        finally:
            if was_enabled:
                gc.enable()
