"""Claims about a store that was damaged between two runs, as a consumer and an operator see it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from aerobee.client.blocking import Producer, PullConsumer
from aerobee.client.message import Message
from aerobee.client.puller import PullStatus

from .kit import Served

COUNT = 2_000
VICTIM = 1_000
TOPIC = "Damage"
# The log record has its body at 88, behind the IPv4 hosts.
BODY_POSITION = 88


def body_of(number: int) -> bytes:
    return b"message %06d " % number + b"." * 100


def send_all(daemon: Served) -> None:
    with Producer(f"127.0.0.1:{daemon.name_server_port}") as producer:
        for number in range(COUNT):
            producer.send(Message(TOPIC, body_of(number)), key="one queue")


def pull_all(daemon: Served) -> list[bytes]:
    found: list[bytes] = []
    with PullConsumer(f"127.0.0.1:{daemon.name_server_port}") as consumer:
        for queue in consumer.queues(TOPIC):
            offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while offset < end:
                result = consumer.pull(queue, offset)
                assert result.status in (PullStatus.FOUND, PullStatus.NO_MATCH), result
                assert result.next_offset > offset
                found += [message.body for message in result.messages]
                offset = result.next_offset
    return found


def flip_a_bit(segment: Path, number: int) -> int:
    """Damage a message's body; the log offset of its record."""
    data = segment.read_bytes()
    at = data.index(body_of(number))
    with segment.open("r+b") as file:
        file.seek(at + 20)
        file.write(bytes((data[at + 20] ^ 1,)))
    return at - BODY_POSITION


def metric(daemon: Served, name: str) -> float:
    status, page = daemon.get("/metrics")
    assert status == 200
    match = re.search(rf"^{re.escape(name)} (\S+)$", page.decode(), re.MULTILINE)
    assert match, f"no {name} in {page.decode()}"
    return float(match[1])


def test_flipped_bit_costs_its_message_only_and_is_named(serve: Callable[..., Served]) -> None:
    first = serve().ready()
    send_all(first)
    first.terminate()
    assert first.wait() == 0, first.log
    log_offset = flip_a_bit(first.store / "commitlog" / f"{0:020d}", VICTIM)

    second = serve().ready()
    assert metric(second, 'aerobee_store_damage_found_total{kind="record"}') == 0
    found = pull_all(second)
    assert found == [body_of(number) for number in range(COUNT) if number != VICTIM]
    assert metric(second, 'aerobee_store_damage_found_total{kind="record"}') == 1
    assert metric(second, "aerobee_store_damaged_reads_total") == 1
    assert metric(second, "aerobee_store_known_gaps") == 1
    events = [json.loads(line) for line in second.log.splitlines() if "damaged record" in line]
    assert [(event["level"], event["log_offset"]) for event in events] == [("error", log_offset)]
    assert (events[0]["topic"], events[0]["queue_offset"]) == (TOPIC, VICTIM)
    assert found == pull_all(second)
