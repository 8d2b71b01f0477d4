"""Claims about a store that was damaged between two runs, as a consumer and an operator see it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from aerobee.client.blocking_roles import Producer, PullConsumer
from aerobee.client.consuming.puller import PullStatus
from aerobee.client.message import Message
from tests.service.kit import Served, metric, wait_until

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


def stopped(serve: Callable[..., Served]) -> Served:
    """A daemon that has taken all messages and was stopped in order."""
    daemon = serve().ready()
    send_all(daemon)
    daemon.terminate()
    assert daemon.wait() == 0, daemon.log
    return daemon


def lines_about_damage(daemon: Served) -> list[dict[str, object]]:
    events = [json.loads(line) for line in daemon.log.splitlines() if line.startswith("{")]
    return [event for event in events if event["event"].startswith("damaged record")]


def test_flipped_bit_costs_its_message_only_and_is_named(serve: Callable[..., Served]) -> None:
    segment = stopped(serve).store / "commitlog" / f"{0:020d}"
    log_offset = flip_a_bit(segment, VICTIM)
    daemon = serve("--set", "scrub.bytes_per_second=0").ready()
    assert metric(daemon, 'aerobee_store_damage_found_total{kind="record"}') == 0
    found = pull_all(daemon)
    assert found == [body_of(number) for number in range(COUNT) if number != VICTIM]
    assert metric(daemon, 'aerobee_store_damage_found_total{kind="record"}') == 1
    assert metric(daemon, "aerobee_store_damaged_reads_total") == 1
    assert metric(daemon, "aerobee_store_known_gaps") == 1
    (event,) = lines_about_damage(daemon)
    assert (event["level"], event["log_offset"]) == ("error", log_offset)
    assert (event["topic"], event["queue_offset"]) == (TOPIC, VICTIM)
    assert found == pull_all(daemon)


def test_scrub_finds_a_flipped_bit_before_anybody_reads_it(serve: Callable[..., Served]) -> None:
    segment = stopped(serve).store / "commitlog" / f"{0:020d}"
    log_offset = flip_a_bit(segment, VICTIM)
    daemon = serve().ready()
    wait_until(lambda: metric(daemon, "aerobee_scrub_passes_total") == 1, "a pass")
    (event,) = lines_about_damage(daemon)
    assert (event["log_offset"], event["topic"], event["queue_offset"]) == (
        log_offset,
        TOPIC,
        VICTIM,
    )
    assert metric(daemon, "aerobee_store_damaged_reads_total") == 0
    assert metric(daemon, 'aerobee_store_damage_found_total{kind="record"}') == 1
    assert metric(daemon, "aerobee_scrub_unchecked_bytes") > 0
    assert metric(daemon, "aerobee_scrub_longest_step_seconds") < 0.1
    found = pull_all(daemon)
    assert found == [body_of(number) for number in range(COUNT) if number != VICTIM]
    daemon.terminate()
    assert daemon.wait() == 0, daemon.log


def test_what_a_read_of_a_wrong_unit_looks_through_is_counted(serve: Callable[..., Served]) -> None:
    queues = stopped(serve).store / "consumequeue" / TOPIC
    (used,) = [path for path in queues.rglob(f"{0:020d}") if path.read_bytes().strip(b"\0")]
    daemon = serve("--set", "scrub.bytes_per_second=0").ready()
    assert metric(daemon, "aerobee_store_lookup_bytes_total") == 0
    with used.open("r+b") as file:
        file.seek(VICTIM * 20 + 5)
        file.write(b"\x55")
    assert pull_all(daemon) == [body_of(number) for number in range(COUNT)]
    assert metric(daemon, "aerobee_store_mended_units_total") == 1
    # From the entry before to the one behind: a piece of the log at a time.
    assert 0 < metric(daemon, "aerobee_store_lookup_bytes_total") <= 128 << 10


def test_wrong_unit_is_mended_while_the_broker_runs(serve: Callable[..., Served]) -> None:
    queues = stopped(serve).store / "consumequeue" / TOPIC
    (used,) = [path for path in queues.rglob(f"{0:020d}") if path.read_bytes().strip(b"\0")]
    right = used.read_bytes()
    with used.open("r+b") as file:
        file.seek(VICTIM * 20 + 5)
        file.write(b"\x55")
    daemon = serve().ready()
    wait_until(lambda: metric(daemon, "aerobee_store_mended_units_total") == 1, "mending")
    assert pull_all(daemon) == [body_of(number) for number in range(COUNT)]
    assert metric(daemon, 'aerobee_store_damage_found_total{kind="unit"}') == 1
    wait_until(lambda: metric(daemon, "aerobee_scrub_unchecked_bytes") == 0, "all in order")
    assert used.read_bytes() == right
