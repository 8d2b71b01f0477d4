"""Bit maps of SQL92 filters in extension files: the same messages and filters give the same bytes
as in the Java broker, and each broker serves by the maps of the other."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests import campaign
from tests.interop.brokers import Broker, StoreShape
from tests.interop.clients.sql_expressions import Generator
from tests.interop.processes import wait_until
from tests.interop.wire import PULL_MESSAGE, SUCCESS, Wire, records

TOPIC, OTHER, QUEUES = "mapped", "unmapped", 2
HEART_BEAT, RETRY_IMMEDIATELY, NOT_FOUND = 34, 20, 19
COUNT = 150
EXT_BYTES = 1_500
HEAD = struct.Struct(">hqqh")
#: The expressions by group.
WANTED = {
    "g-all": "a IS NULL OR a IS NOT NULL",
    "g-none": "a = 'nothing has this'",
    "g-five": "a = 5",
    "g-more": "a > 3 AND b IS NOT NULL",  # fails where a is no number
    "g-tag": "TAGS IN ('TagA', 'TagB')",
    "g-other": "NOT (c = 'x') OR b > 100",
}


def shape(**extra: str) -> StoreShape:
    return StoreShape(
        segment_bytes=1 << 20,
        queue_segment_bytes=1_000,
        extra={
            "enableConsumeQueueExt": "true",
            "enableCalcFilterBitMap": "true",
            "enablePropertyFilter": "true",
            "mappedFileSizeConsumeQueueExt": str(EXT_BYTES),
            # Replaced by what the other keys give.
            "bitMapLengthConsumeQueueExt": "64",
            **extra,
        },
    )


def join(wire: Wire, group: str, wanted: str, version: int = 1) -> None:
    """The connection is a member of the group, which wants this of the topic."""
    one = {"topic": TOPIC, "subString": wanted, "expressionType": "SQL92", "subVersion": version}
    data = {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [one],
    }  # fmt: skip
    beat = {"clientID": group, "producerDataSet": [], "consumerDataSet": [data]}
    wire.done(HEART_BEAT, {}, json.dumps(beat).encode())


def send(wire: Wire, topic: str, messages: list[dict[str, str]], prefix: str) -> None:
    for number, properties in enumerate(messages):
        body = f"{prefix}-{number}".encode()
        assert wire.send(topic, number % QUEUES, body, **properties).code == SUCCESS


def pulled(wire: Wire, group: str, queue: int) -> list[str]:
    """The bodies of all that the group gets of a queue."""
    found: list[str] = []
    place, end = 0, wire.max_offset(TOPIC, queue)
    while place < end:
        answer = wire.call(
            PULL_MESSAGE,
            {
                "consumerGroup": group, "topic": TOPIC, "queueId": queue, "queueOffset": place,
                "maxMsgNums": 32, "sysFlag": 0, "commitOffset": 0, "suspendTimeoutMillis": 0,
                "subVersion": 1, "expressionType": "SQL92",
            },
        )  # fmt: skip
        assert answer.code in (SUCCESS, RETRY_IMMEDIATELY, NOT_FOUND), (answer.code, answer.remark)
        if answer.code == SUCCESS:
            found += [one.body for one in records(answer.body)]
        place = max(place + (answer.code == NOT_FOUND), int(answer.ext["nextBeginOffset"]))
    return found


def units(store: Path, topic: str, queue: int) -> Iterator[tuple[str, int, int, bytes]]:
    """File, position, tags code and bit map of each unit, and of what ends a file."""
    for path in sorted((store / "consumequeue_ext" / topic / f"{queue}").iterdir()):
        data, place = path.read_bytes(), 0
        while place + HEAD.size <= len(data):
            size, tags_code, store_ms, map_size = HEAD.unpack_from(data, place)
            if size < HEAD.size:
                yield path.name, place, size, b""
                break
            assert size == HEAD.size + map_size
            assert store_ms > 0
            yield path.name, place, tags_code, data[place + HEAD.size : place + size]
            place += size


def filled(broker: Broker, messages: list[dict[str, str]]) -> Mapping[str, list[str]]:
    """Send, some before anybody filters and the most after it; return the messages that each group
    gets, by name."""
    broker.start()
    broker.create_topic(TOPIC, QUEUES)
    broker.create_topic(OTHER, QUEUES)
    with broker.wire() as wire:
        send(wire, TOPIC, messages[:10], "before")
        wait_dispatched(wire, TOPIC, 10)
        for group, wanted in WANTED.items():
            join(wire, group, wanted)
        send(wire, TOPIC, messages, "after")
        send(wire, OTHER, messages[:10], "other")
        wait_dispatched(wire, TOPIC, 10 + COUNT)
        wait_dispatched(wire, OTHER, 10)
        return results(wire)


def results(wire: Wire) -> dict[str, list[str]]:
    return {f"{group} {queue}": pulled(wire, group, queue) for group in WANTED for queue in (0, 1)}


def wait_dispatched(wire: Wire, topic: str, count: int) -> None:
    wait_until(
        lambda: sum(wire.max_offset(topic, queue) for queue in range(QUEUES)) == count,
        30,
        f"{count} messages in {topic}",
    )


@pytest.mark.parametrize(
    ("extra", "map_bytes"),
    [({}, 14), ({"expectConsumerNumUseFilter": "100", "maxErrorRateOfBloomFilter": "5"}, 78)],
    ids=["default", "larger"],
)
def test_bit_maps_are_those_of_the_java_broker_and_serve_either(
    new_broker: Callable[..., Broker], tmp_path: Path, extra: dict[str, str], map_bytes: int
) -> None:
    generator = Generator(campaign.rng("bit maps"))
    messages = [generator.properties() for _ in range(COUNT)]
    brokers = {kind: new_broker(kind, kind, shape=shape(**extra)) for kind in ("our", "java")}
    got = {}
    for kind, broker in brokers.items():
        got[kind] = filled(broker, messages)
        broker.stop()
    assert got["our"] == got["java"]
    assert any(got["our"].values())
    found = {
        kind: {
            (topic, queue): list(units(broker.store, topic, queue))
            for topic in (TOPIC, OTHER)
            for queue in range(QUEUES)
        }
        for kind, broker in brokers.items()
    }
    assert found["our"] == found["java"]
    maps = [one[-1] for queue in range(QUEUES) for one in found["our"][TOPIC, queue]]
    assert sum(len(one) == map_bytes for one in maps) == COUNT
    assert len({*maps}) > 5
    if extra:
        return
    for kind, other in (("our", "java"), ("java", "our")):
        heir = new_broker(
            kind, f"{kind}-on-{other}", shape=shape(**extra), store=brokers[other].store
        )
        heir.start()
        with heir.wire() as wire:
            for group, wanted in WANTED.items():
                join(wire, group, wanted)
            assert results(wire) == got["our"]
            send(wire, TOPIC, messages, "heir")
            wait_dispatched(wire, TOPIC, 10 + 2 * COUNT)
            after = results(wire)
        heir.stop()
        for name, bodies in got["our"].items():
            again = [f"heir-{one.split('-')[1]}" for one in bodies if one.startswith("after")]
            assert after[name] == bodies + again
