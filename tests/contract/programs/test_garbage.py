"""A client that leaves, leaves no circle of objects behind: objects that a full collection has seen
once are not looked at again (`broker/lifecycle/broker_process.py`), so a circle that closed later
would stay for ever."""

from __future__ import annotations

import gc
import inspect
import json
from collections.abc import Collection

import aerobee.testing
from aerobee.remoting.connections.connection import Connection
from tests.budget.largest_inputs import consumer, subscription
from tests.crash.running.link import PULL, SEND, Link, pull_fields, send_fields
from tests.service.kit import wait_until

_HEART_BEAT, _UNKNOWN = 34, 29_999


def _connections() -> list[Connection]:
    return [one for one in gc.get_objects() if isinstance(one, Connection)]


def _left(ports: Collection[int]) -> list[Connection]:
    """The connections of these clients that are still there."""
    return [one for one in _connections() if one.peer[1] in ports]


def _holders() -> list[str]:
    """Each closed connection that is still there, and who holds it."""
    said = []
    for one in [one for one in _connections() if one.closed]:
        holders = [repr(by)[:300] for by in gc.get_referrers(one) if not inspect.isframe(by)]
        said.append(f"{one} is held by {holders}")
    return said


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
            before = len(_connections())
            ports = {_visit(port) for _ in range(5)}
            try:
                wait_until(
                    lambda: not _left(ports) and len(_connections()) <= before,
                    "all are freed without a collection",
                )
            except AssertionError as error:
                raise AssertionError(_holders()) from error
        finally:
            if was_enabled:
                gc.enable()
