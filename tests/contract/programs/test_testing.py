"""A broker inside a test process: quick, complete, and gone afterwards."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import aerobee.testing
from aerobee.client.blocking_roles import Producer, PullConsumer
from aerobee.client.message import Message
from aerobee.client.producing.sender import SendStatus
from aerobee.store.errors import StoreInUse
from aerobee.testing import RunningBroker

aerobee_broker = aerobee.testing.aerobee_broker  # the fixture, for this module


def test_it_takes_messages_as_soon_as_the_block_begins() -> None:
    with aerobee.testing.broker() as running, Producer(running.name_server) as producer:
        assert producer.send(Message("T", b"x")).status is SendStatus.OK


def test_it_leaves_neither_files_nor_threads_nor_descriptors() -> None:
    with aerobee.testing.broker():
        pass  # what is opened once a process is open now
    threads, descriptors = set(threading.enumerate()), os.listdir("/proc/self/fd")
    with aerobee.testing.broker() as running:
        assert (running.store_path / "commitlog").is_dir()
    assert not running.store_path.exists()
    assert set(threading.enumerate()) == threads
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)


def test_a_store_of_ones_own_outlives_it(tmp_path: Path) -> None:
    with (
        aerobee.testing.broker(store_path=str(tmp_path)) as running,
        Producer(running.name_server) as producer,
    ):
        sent = producer.send(Message("T", b"kept"))
    with (
        aerobee.testing.broker(store_path=str(tmp_path)) as running,
        PullConsumer(running.name_server) as consumer,
    ):
        found = consumer.pull(sent.queue, sent.queue_offset)
    assert [message.body for message in found.messages] == [b"kept"]


def test_several_run_side_by_side_as_one_cluster() -> None:
    with (
        aerobee.testing.broker(broker_name="a") as first,
        aerobee.testing.broker(
            broker_name="b", name_servers=first.name_server, nameserver_enabled=False
        ),
        Producer(first.name_server) as producer,
    ):
        names = {producer.send(Message("BenchmarkTest", b"x")).queue.broker_name for _ in "12"}
        for queue in producer.queues("BenchmarkTest"):
            names.add(queue.broker_name)
    assert names == {"a", "b"}


def test_what_keeps_it_from_starting_is_raised(tmp_path: Path) -> None:
    with (
        aerobee.testing.broker(store_path=str(tmp_path)),
        pytest.raises(StoreInUse, match="already open"),
        aerobee.testing.broker(store_path=str(tmp_path)),
    ):
        pytest.fail("two brokers on one store")


def test_the_fixture_gives_a_broker_of_the_tests_own(aerobee_broker: RunningBroker) -> None:
    with PullConsumer(aerobee_broker.name_server) as consumer:
        assert consumer.queues("TBW102")
