"""A client that leaves, leaves no circle of objects behind: what a full collection has seen once is
not looked at again (`broker/process.py`), so a circle that closed later would stay for ever."""

from __future__ import annotations

import gc
import inspect
import json
from collections.abc import Collection

import aerobee.testing
from aerobee.remoting.connection import Connection
from tests.budget.largest_inputs import consumer, subscription
from tests.crash.link import PULL, SEND, Link, pull_fields, send_fields
from tests.service.kit import wait_until

_HEART_BEAT, _UNKNOWN = 34, 29_999


def _left(ports: Collection[int]) -> list[Connection]:
    """The connections of these clients that are still there; the broker has others, to the name
    server, that come when they come."""
    found = [one for one in gc.get_objects() if isinstance(one, Connection)]
    return [one for one in found if one.peer[1] in ports]


def _told(ports: Collection[int]) -> str:
    """What the first of them is, and who holds it."""
    first = _left(ports)[0]
    holders = [repr(one)[:300] for one in gc.get_referrers(first) if not inspect.isframe(one)]
    return f"{first} closed={first.closed} is held by {holders}"


def _visit(port: int) -> int:
    """A producer and consumer that leaves with a pull that is held; its port."""
    with Link(port) as link:
        own_port = link.own_port
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
        return own_port


def test_a_closed_connection_is_freed_without_a_collection() -> None:
    with aerobee.testing.broker() as running:
        port = int(running.broker.rsplit(":")[-1])
        _visit(port)
        gc.collect()
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            ports = {_visit(port) for _ in range(5)}
            try:
                wait_until(lambda: not _left(ports), "all are freed without a collection")
            except AssertionError as error:
                raise AssertionError(_told(ports)) from error
        finally:
            if was_enabled:
                gc.enable()
