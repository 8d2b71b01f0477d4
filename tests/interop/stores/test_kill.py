"""kill -9 in mid-stream: acknowledged messages are there, in their place, and can be found."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import campaign, drawing
from tests.interop.brokers import Broker, StoreShape
from tests.interop.kit import require
from tests.interop.peers import PEERS, acknowledged, found, query
from tests.interop.processes import Child, Dialogue, Line, wait_until
from tests.interop.scenarios import QUEUES
from tests.interop.wire import Stored
from tests.parts import begin_watch_anew

COUNT = campaign.size("clients and a kill")
# Each of them works at least this long: on a busy machine they begin half a minute apart.
SENDING_S = 60
TOPIC = "kill"
FAR_FUTURE_MS = 9_999_999_999_999
SECOND_MS = 1_000  # the index keeps whole seconds, rounded down


@contextmanager
def senders(broker: Broker, log: Path, children: list[Child]) -> Iterator[dict[str, Child]]:
    """One of each client that this run takes, sending at a pace that keeps all of them at it when
    the broker dies."""
    interval_ms = SENDING_S * 1_000 // COUNT
    options = {"keys": "yes", "interval_ms": interval_ms, "retry_seconds": 60}
    running = {}
    for name, peer in PEERS.items():
        if not peer.acknowledges or not drawing.takes(name):
            continue
        require(peer.needs or name)
        running[name] = peer.produce(broker, log, TOPIC, COUNT, **options)
        children.append(running[name])
    yield running


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_nothing_acknowledged_is_lost(
    flush: str, new_broker: Callable[..., Broker], tmp_path: Path, children: list[Child]
) -> None:
    broker = new_broker(shape=StoreShape(flush=flush)).start()
    broker.create_topic(TOPIC, QUEUES)
    consumer = PEERS["java-4.9.8"].consume(broker, tmp_path, TOPIC, "reader", timeout=400)
    children.append(consumer)
    with senders(broker, tmp_path, children) as running:
        wait_until(
            lambda: all(map(_is_at_it, running.values())),
            180,
            "every client has a tenth of its messages acknowledged",
        )
        begin_watch_anew()
        broker.kill()
        broker.start()
        sent = {name: child.wait(240) for name, child in running.items()}

    with broker.wire() as wire:
        stored = wire.read_topic(TOPIC, QUEUES)
    assert sum("fail" in line for lines in sent.values() for line in lines) > 0
    for name, lines in sent.items():
        check_acknowledged(name, lines, stored)
    check_offsets_continue(stored)
    check_queries(broker, sent, stored)
    check_java_queries(query(broker, tmp_path), sent, stored)
    bodies = {one.body for one in stored}
    begin_watch_anew()
    consumer.wait_lines(lambda lines: {line.get("body") for line in lines} >= bodies, 120)
    broker.stop()


def _is_at_it(child: Child) -> bool:
    """Whether a tenth is acknowledged; the client must not have come to an end."""
    assert child.running, child.tail()
    return len(acknowledged(list(child.lines))) > COUNT // 10


def check_acknowledged(name: str, lines: list[Line], stored: list[Stored]) -> None:
    """All of a client's messages were acknowledged in the end, and each lies where it was told."""
    acks = acknowledged(lines)
    assert sorted(ack["ack"] for ack in acks) == list(range(COUNT)), name
    at = {(one.queue, one.queue_offset): one for one in stored}
    for ack in acks:
        assert at[ack["queue"], ack["offset"]].body == f"m-{name}-{ack['ack']}"


def check_offsets_continue(stored: list[Stored]) -> None:
    """Queue offsets run on over the restart without a gap, as log offsets and store times rise."""
    by_queue = defaultdict(list)
    for one in stored:
        by_queue[one.queue].append(one)
    for queue in by_queue.values():
        assert [one.queue_offset for one in queue] == list(range(len(queue)))
        assert queue == sorted(queue, key=lambda one: (one.log_offset, one.store_ms))


def samples(sent: dict[str, list[Line]], step: int) -> list[tuple[str, Line]]:
    """Some of every client's acknowledgements, from before the kill and from after it."""
    return [
        (f"m-{name}-{ack['ack']}", ack)
        for name, lines in sent.items()
        for ack in acknowledged(lines)[::step]
    ]


def check_queries(broker: Broker, sent: dict[str, list[Line]], stored: list[Stored]) -> None:
    at = {(one.queue, one.queue_offset): one for one in stored}
    with broker.wire() as wire:
        for body, ack in samples(sent, COUNT // 40):
            one = at[ack["queue"], ack["offset"]]
            assert one in wire.by_key(TOPIC, body, 0, FAR_FUTURE_MS)
            begin_ms = one.store_ms - SECOND_MS
            assert one in wire.by_key(TOPIC, body, begin_ms, one.store_ms)
            assert one not in wire.by_key(TOPIC, body, one.store_ms + SECOND_MS, FAR_FUTURE_MS)
            if "UNIQ_KEY" in one.properties:
                key = one.properties["UNIQ_KEY"]
                assert one in wire.by_key(TOPIC, key, 0, FAR_FUTURE_MS, unique=True)
            assert wire.by_log_offset(one.log_offset) == one
        for queue in range(QUEUES):
            own = [one for one in stored if one.queue == queue]
            for one in own[:: COUNT // 25]:
                # any of those stored in that millisecond: RocketMQ 4.9 takes what it meets first
                assert own[wire.search_offset(TOPIC, queue, one.store_ms)].store_ms == one.store_ms


def check_java_queries(java: Dialogue, sent: dict[str, list[Line]], stored: list[Stored]) -> None:
    """The reference client finds them too: by key, by either id, and within a time range only."""
    at = {(one.queue, one.queue_offset): one for one in stored}
    for body, ack in samples(sent, COUNT // 4):
        one = at[ack["queue"], ack["offset"]]
        if "offsetId" in ack:
            assert found(java, f"id {TOPIC} {ack['offsetId']}")[0]["body"] == body
        if "UNIQ_KEY" in one.properties:
            assert one.properties["UNIQ_KEY"] == ack["id"]
            assert found(java, f"unique {TOPIC} {ack['id']}")[0]["body"] == body
        around = found(java, f"key {TOPIC} {body} {one.store_ms - SECOND_MS} {one.store_ms}")
        assert {each["body"] for each in around} == {body}
        later = java.ask(f"key {TOPIC} {body} {stored[-1].store_ms + 60_000} {FAR_FUTURE_MS}")
        assert "error" in later
    java.close()
