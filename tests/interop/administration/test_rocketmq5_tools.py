"""mqadmin of RocketMQ 5 sends to a broker of ours, and tells how far topics and groups are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aerobee import testing
from aerobee.client.blocking_roles import Admin, Producer, PushConsumer
from aerobee.client.message import Message
from aerobee.client.queue_offsets import MessageQueue
from tests.interop.administration.tools5 import TOOLS, mqadmin
from tests.interop.kit import require
from tests.interop.processes import wait_until
from tests.ports import free_port

TOPIC, OTHER, GROUP, QUEUES, BROKER = "Told", "Other", "CG", 4, "bee"
Command = Callable[..., str]


@pytest.fixture(params=TOOLS, ids=["java5", "5.5.0"])
def command(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Command]:
    """A command of a release, on a broker with a message in each queue of a topic. A group has
    consumed the first of them, and its members have been there, which makes its retry topic."""
    require(TOOLS[request.param])
    with testing.broker(broker_name=BROKER, nameserver_port=free_port()) as broker:
        with Admin(broker.name_server) as admin, Producer(broker.name_server) as producer:
            admin.create_topic(TOPIC, queues=QUEUES)
            queues = [MessageQueue(TOPIC, BROKER, number) for number in range(QUEUES)]
            for queue in queues:
                producer.send(Message(TOPIC, b"x"), queue=queue)
                admin.commit_offset(GROUP, queue, int(queue == queues[0]))
            admin.create_topic(OTHER, queues=1)
            with PushConsumer(broker.name_server, GROUP, lambda _: True) as consumer:
                consumer.subscribe(OTHER)
                wait_until(lambda: f"%RETRY%{GROUP}" in admin.topics(), 30, "the group is known")
        servers = ("-n", broker.name_server)
        yield lambda *words: mqadmin(request.param, tmp_path, *words, *servers)


def test_mqadmin_sends_and_tells_topics_and_groups(command: Command) -> None:
    sent = command("sendMessage", "-t", TOPIC, "-p", "hello", "-k", "K", "-i", "0", "-b", "bee")
    assert re.search(r"\b0\s+SEND_OK\s+[0-9A-F]{32}", sent), sent
    rows = re.findall(r"^bee\s+(\d)\s+(\d+)\s+(\d+)\s", command("topicStatus", "-t", TOPIC), re.M)
    assert rows == [("0", "0", "2"), ("1", "0", "1"), ("2", "0", "1"), ("3", "0", "1")]
    progress = command("consumerProgress", "-g", GROUP)
    assert "Diff Total: 4" in progress, progress
    rows = re.findall(rf"^{TOPIC}\s+bee\s+(\d)\s+(\d+)\s+(\d+)\s", progress, re.M)
    assert rows == [("0", "2", "1"), ("1", "1", "0"), ("2", "1", "0"), ("3", "1", "0")]
