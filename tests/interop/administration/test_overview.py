"""`aerobee status`, `client`, `topic explain` and `broker permission` against the real
Java broker."""

from __future__ import annotations

import json
import queue
from typing import Any

import pytest

from aerobee.cli.main import main
from aerobee.client.blocking_roles import Admin, Producer, PushConsumer
from aerobee.client.message import Message, ReceivedMessage
from aerobee.client.options import ConsumeFrom, PushOptions
from tests.interop.brokers import Broker
from tests.interop.processes import wait_until

WAIT_S = 60.0


def test_the_commands_of_a_bad_night_tell_a_java_broker(
    java_broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    server, topic, group = java_broker.name_server, "overview-orders", "overview"

    def shown(*words: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert main([*words, "--json", "-n", server]) == code
        return json.loads(capsys.readouterr().out)

    with Admin(server) as admin, Producer(server, "P") as producer:
        admin.create_topic(topic, queues=2)
        wait_until(lambda: topic in admin.topics(), WAIT_S, "the topic has a route")
        producer.send(Message(topic, b"first"))
        got: queue.Queue[ReceivedMessage] = queue.Queue()

        def listener(messages: list[ReceivedMessage]) -> None:
            for one in messages:
                got.put(one)

        with PushConsumer(
            server, group, listener, PushOptions(consume_from=ConsumeFrom.FIRST)
        ) as consumer:
            consumer.subscribe(topic)
            got.get(timeout=WAIT_S)
            (client,) = shown("client", "list", "--group", group)["clients"]
            assert client["client_id"] == consumer.client_id
            assert (client["consumer_groups"], client["held_pulls"]) == ([group], None)
            described = shown("client", "show", consumer.client_id, "--group", group, "--stack")
            assert "aerobee-client" in described["stack"]
            assert main(["client", "list", "-n", server]) == 1
    found = shown("topic", "explain", topic)
    assert (len(found["sent_on"]), found["findings"]) == (1, [])
    words = {one["finding"] for one in shown("topic", "explain", f"{topic}x", code=1)["findings"]}
    assert "another_name" in words
    name = found["sent_on"][0]

    def broker() -> Any:
        (one,) = shown("status")["brokers"]
        return one

    # It fails at the question for its runtime until it has measured itself for the first time.
    wait_until(lambda: broker()["version"], WAIT_S, "the broker tells its version")
    java = broker()
    assert (java["broker"], java["role"], java["rights"]) == (name, "master", "rw")
    assert java["version"].startswith("V4_9")
    # It tells none in its first ten seconds.
    wait_until(lambda: broker()["messages_in_per_s"] is not None, WAIT_S, "it tells its rates")
    assert java["tells_no_more"] == "RocketMQ's brokers do not tell"
    assert java["name_servers"] == [{"name_server": server, "registered": True, "reason": None}]
    try:
        changed = shown("broker", "permission", name, "--write", "no", "--yes")
        assert (changed["wanted_rights"], changed["changed"]) == ("r", True)
        assert broker()["rights"] == "r"
    finally:
        shown("broker", "permission", name, "--write", "yes", "--yes")
    assert broker()["rights"] == "rw"
