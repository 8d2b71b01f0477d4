"""`aerobee check` and what `aerobee doctor` asks, against the real Java broker."""

from __future__ import annotations

import json
import queue
from pathlib import Path

import pytest

from aerobee.cli.main import main
from aerobee.client.blocking_roles import Admin, Producer, PushConsumer
from aerobee.client.message import Message, ReceivedMessage
from aerobee.client.options import ConsumeFrom, PushOptions
from tests.interop.brokers import Broker
from tests.interop.processes import wait_until

WAIT_S = 60.0


def test_each_check_tells_a_java_broker(
    java_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, topic, group = java_broker.name_server, "checked-orders", "checked"
    with Admin(server) as admin, Producer(server, "P") as producer:
        admin.create_topic(topic, queues=1)
        wait_until(lambda: topic in admin.topics(), WAIT_S, "the topic has a route")
        producer.send(Message(topic, b"first"))
        got: queue.Queue[ReceivedMessage] = queue.Queue()

        def listener(messages: list[ReceivedMessage]) -> None:
            for one in messages:
                got.put(one)

        options = PushOptions(consume_from=ConsumeFrom.FIRST, offset_store_interval_s=0.1)
        with PushConsumer(server, group, listener, options) as consumer:
            consumer.subscribe(topic)
            got.get(timeout=WAIT_S)
        for _ in range(3):
            producer.send(Message(topic, b"later"))

    def check(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["check", *words, "-n", server])
        return code, capsys.readouterr().out

    code, line = check("lag", group, "--warning", "2")
    assert (code, f"{group} has 3 messages before it" in line) == (1, True), line
    code, line = check("dlq", group)
    assert (code, "dead=0;" in line) == (0, True), line
    # A Java broker fails at this question until it has measured itself for the first time.
    disk = ("disk", "--warning", "100", "--critical", "100")
    wait_until(lambda: check(*disk)[0] == 0, WAIT_S, "the broker says how full its disk is")
    assert "interop=" in check(*disk)[1]
    code, line = check("connection", "--warning", "60", "--critical", "60")
    assert (code, "1 masters answer" in line) == (0, True), line

    capsys.readouterr()
    main(["doctor", "--json", "-n", server, "--set", f"store.path={tmp_path / 'none'}"])
    found = json.loads(capsys.readouterr().out)["findings"]
    states = {(one["check"], one["subject"]): one["state"] for one in found}
    assert states["name server", server] == "ok"
    assert states["address", java_broker.address] == "ok"
    assert states["clock", java_broker.address] == "ok"
