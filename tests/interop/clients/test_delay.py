"""Delayed messages: Java's clients with our broker, and stores with messages waiting in them that
wander between the brokers. Times are the records' own: a machine under load makes no test fail.
"""

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.brokers import Broker, StoreShape
from tests.interop.kit import require
from tests.interop.peers import PEERS
from tests.interop.processes import Child, wait_until
from tests.interop.wire import Stored, Wire

TOPIC = "delayed"
QUEUES = 2
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
SEND_BACK, DELAY_OFFSETS = 36, 45
LEVELS_MS = {1: 2_000, 2: 14_000, 3: 32_000}
SHAPE = StoreShape(
    segment_bytes=1 << 20, queue_segment_bytes=4_000, extra={"messageDelayLevel": "2s 14s 32s"}
)


def send(wire: Wire, turn: str) -> None:
    """A message of each level, in both queues, with what a client may give it."""
    for level in LEVELS_MS:
        for queue in range(QUEUES):
            body = f"{turn}-{level}-{queue}"
            properties = {"KEYS": body, "TAGS": "A", "UNIQ_KEY": f"U{body}", "DELAY": str(level)}
            assert wire.send(TOPIC, queue, body.encode(), **properties).code == 0


def delivered(broker: Broker) -> dict[str, list[Stored]]:
    """The messages that have come, by body."""
    found: dict[str, list[Stored]] = {}
    with broker.wire() as wire:
        for one in wire.read_topic(TOPIC, QUEUES):
            found.setdefault(one.body, []).append(one)
    return found


def waiting(broker: Broker) -> dict[str, Stored]:
    """The messages that wait or waited, by body."""
    with broker.wire() as wire:
        return {
            one.body: one for level in LEVELS_MS for one in wire.read_queue(SCHEDULE, level - 1)
        }


def wait_for(broker: Broker, *turns_and_levels: str) -> None:
    wanted = {f"{one}-{queue}" for one in turns_and_levels for queue in range(QUEUES)}
    wait_until(lambda: wanted <= delivered(broker).keys(), 60, f"{sorted(wanted)} are delivered")


def check(broker: Broker) -> None:
    """Everything came once, with its own properties, and not before its time."""
    came, stored = delivered(broker), waiting(broker)
    assert came.keys() <= stored.keys()
    for body, copies in came.items():
        (one,) = copies
        before = stored[body]
        assert one.properties == before.properties
        assert one.properties["REAL_QID"] == str(one.queue) == body[-1]
        assert one.store_ms >= before.store_ms + LEVELS_MS[int(body.split("-")[1])], body


@pytest.mark.parametrize("kinds", [("our", "java", "our"), ("java", "our", "java")], ids="-".join)
def test_waiting_messages_wander_between_the_brokers(
    kinds: tuple[str, str, str], new_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    """Each delivers what another stored, once, because all of them stop in order."""
    store = tmp_path / "store"
    first, second, third = (
        new_broker(kind, f"{turn}-{kind}", shape=SHAPE, store=store)
        for turn, kind in enumerate(kinds)
    )
    first.start()
    first.create_topic(TOPIC, QUEUES)
    with first.wire() as wire:
        send(wire, "a")
    wait_for(first, "a-1")
    assert delivered(first).keys().isdisjoint({"a-2-0", "a-3-0"})
    first.stop()

    second.start()
    with second.wire() as wire:
        send(wire, "b")
    wait_for(second, "a-2", "b-1")
    check(second)
    second.stop()

    third.start()
    wait_for(third, *(f"{turn}-{level}" for turn in "ab" for level in LEVELS_MS))
    check(third)
    third.stop()
    assert progress_file(store) == dict.fromkeys(LEVELS_MS, 2 * QUEUES)


def progress_file(store: Path) -> dict[int, int]:
    text = (store / "config" / "delayOffset.json").read_text()
    entries = text.split("{")[-1].strip("}\n\t").split(",")
    return {int(level): int(offset) for level, _, offset in (one.partition(":") for one in entries)}


def test_records_are_those_the_java_broker_writes(
    new_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    """A delayed send, a level too high, a retry: as they wait, and as they are given out."""
    shapes = {}
    for kind in ("our", "java"):
        broker = new_broker(kind, kind, shape=SHAPE).start()
        broker.create_topic(TOPIC, QUEUES)
        with broker.wire() as wire:
            wire.send(TOPIC, 1, b"one", TAGS="A", KEYS="k", UNIQ_KEY="U1", DELAY="1")
            wire.send(TOPIC, 0, b"highest", DELAY="99", own="\u00e9")
            plain = wire.send(TOPIC, 0, b"plain", TAGS="A", UNIQ_KEY="U2")
            back = {
                "offset": int(plain.ext["msgId"][-16:], 16), "group": "g", "delayLevel": 1,
                "originMsgId": plain.ext["msgId"], "originTopic": TOPIC, "unitMode": "false",
                "maxReconsumeTimes": 16,
            }  # fmt: skip
            assert wire.call(SEND_BACK, back).code == 0
        wait_until(lambda at=broker: delivered_both(at), 30, "what is due is given out")
        with broker.wire() as wire:
            table = json.loads(bare_keys_quoted(wire.done(DELAY_OFFSETS).body.decode()))
            assert table["offsetTable"]["1"] == 2
        broker.stop()
        shapes[kind] = list(shapes_of(broker.store))
    assert shapes["our"] == shapes["java"]
    assert len(shapes["our"]) == 6


def delivered_both(broker: Broker) -> bool:
    with broker.wire() as wire:
        return wire.max_offset(TOPIC, 1) == 1 and wire.max_offset("%RETRY%g", 0) == 1


def bare_keys_quoted(text: str) -> str:
    for level in LEVELS_MS:
        text = text.replace(f"{{{level}:", f'{{"{level}":').replace(f",{level}:", f',"{level}":')
    return text


RECORD = struct.Struct(">iIiiiqqiq4siq4siiqi")
MAGIC = 0xDAA320A7
OWN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"  # names the broker's port


def shapes_of(store: Path) -> Iterator[tuple[object, ...]]:
    """All of each record but times, ports and log offsets; properties without their order."""
    log = (store / "commitlog" / f"{0:020d}").read_bytes()
    at = 0
    while True:
        (
            size, magic, crc, queue, flag, queue_offset, _, sys_flag, _, born, _, _, host, _, tries,
            prepared, body_size,
        ) = RECORD.unpack_from(log, at)  # fmt: skip
        if magic != MAGIC:
            return
        body_at = at + RECORD.size
        body = log[body_at : body_at + body_size]
        topic_at = body_at + body_size
        properties_at = topic_at + 1 + log[topic_at]
        topic = log[topic_at + 1 : properties_at].decode()
        text = log[properties_at + 2 : at + size].decode()
        properties = dict(entry.split("\x01", 1) for entry in text.split("\x02") if entry)
        if OWN_MESSAGE_ID in properties:
            properties[OWN_MESSAGE_ID] = properties[OWN_MESSAGE_ID][:8]
        yield (
            topic, queue, queue_offset, flag, sys_flag, crc, body, born, host, tries, prepared,
            text.endswith("\x02"), properties,
        )  # fmt: skip
        at += size


def test_a_java_client_s_delay_levels_are_kept(broker: Broker, tmp_path: Path) -> None:
    require("java-4.9.8")
    peer = PEERS["java-4.9.8"]
    topic = broker.create_topic("java-delay", QUEUES)
    for level in (1, 2):
        options = {"prefix": f"level-{level}", "delay_level": level, "keys": "yes"}
        run = peer.produce(broker, tmp_path, topic, 20, modes="sync,async", **options)
        assert run.wait(30)[-1]["failed"] == 0
    lines = peer.consume(broker, tmp_path, topic, f"{topic}-group", count=40).wait(60)
    bodies = [line["body"] for line in lines if "body" in line]
    assert sorted(bodies) == sorted(f"level-{x}-java-4.9.8-{n}" for x in (1, 2) for n in range(20))
    with broker.wire() as wire:
        stored = {
            one.body: one.store_ms for level in (0, 1) for one in wire.read_queue(SCHEDULE, level)
        }
        for one in wire.read_topic(topic, QUEUES):
            delay_ms = {"level-1": 1_000, "level-2": 5_000}[one.body[:7]]
            assert one.store_ms - stored[one.body] >= delay_ms


def test_a_java_consumer_s_retries_wait(
    new_broker: Callable[..., Broker], tmp_path: Path, children: list[Child]
) -> None:
    """The first retry is of level 3."""
    require("java-4.9.8")
    shape = StoreShape(extra={"messageDelayLevel": "1s 1s 3s 5s"})
    broker = new_broker(shape=shape).start()
    broker.create_topic(TOPIC, QUEUES)
    peer = PEERS["java-4.9.8"]
    earlier = peer.consume(broker, tmp_path / "earlier", TOPIC, "g", timeout=20)
    earlier.wait_lines(lambda lines: len(lines) > 0, 20)
    earlier.stop()
    with broker.wire() as wire:
        for n in range(8):
            wire.send(TOPIC, n % QUEUES, b"%d" % n)
    options = {"count": 8, "reject_first": "yes", "timeout": 50}
    lines = peer.consume(broker, tmp_path, TOPIC, "g", **options).wait(60)
    assert {line["reconsume"] for line in lines if "body" in line} == {1}
    with broker.wire() as wire:
        sent_back = {one.body: one.store_ms for one in wire.read_queue(SCHEDULE, 2)}
        retried = wire.read_queue("%RETRY%g", 0)
    assert len(retried) == len(sent_back) == 8
    for one in retried:
        assert one.store_ms - sent_back[one.body] >= 3_000
    broker.stop()
