"""Features of clients in other languages than Java besides test_clients.py, with both brokers.

Each case runs one scenario against our broker and the Java broker at the same time, and the result
is the same with both. A test's parameters are the clients that have the feature.
"""

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from tests.interop.brokers import Broker, StoreShape
from tests.interop.conftest import make_broker
from tests.interop.kit import require
from tests.interop.peers import PEERS, Peer
from tests.interop.processes import Child, Line, wait_until
from tests.interop.scenarios import sequence
from tests.interop.wire import Wire

T = TypeVar("T")
QUEUES = 4
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
LEVELS_MS = {1: 1_000, 2: 2_000}
TRACES = "RMQ_SYS_TRACE_TOPIC"
SHAPE = {
    "messageDelayLevel": "1s 2s 1s",
    "enablePropertyFilter": "true",
    "traceTopicEnable": "true",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "transactionCheckMax": "100",
}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    """Our broker and the Java one, with the same settings."""
    brokers = [
        make_broker(
            kind, tmp_path_factory.mktemp(f"{kind}-features"), shape=StoreShape(extra=SHAPE)
        )
        for kind in ("our", "java")
    ]
    for broker in brokers:
        broker.launch()
    for broker in brokers:
        broker.wait_ready()
    yield brokers
    for broker in brokers:
        broker.kill()  # the Java broker takes seconds over an end that nobody looks at


class Stage:
    """One broker, and what a scenario starts there."""

    def __init__(self, broker: Broker, peer: Peer, log: Path, subject: str) -> None:
        self.broker = broker
        self.peer = peer
        self.log = log / broker.kind
        self.children: list[Child] = []
        self.topic = broker.create_topic(f"{subject}-{peer.name}", QUEUES)
        # Clients keep the offsets of a broadcast group in their user's home.
        self.group = f"{self.topic}-{uuid.uuid4().hex}"

    def run(self, command: str, **options: object) -> Child:
        options = {"topic": self.topic, "group": self.group, **options}
        log = self.log / f"{command}-{len(self.children)}"
        self.children.append(self.peer.run(command, self.broker, log, **options))
        return self.children[-1]

    def send(self, count: int, **options: object) -> list[Line]:
        options = {
            "count": count,
            "producer": self.peer.name,
            "modes": self.peer.modes[0],
            **options,
        }
        lines = self.run("produce", **options).wait(120)
        failures = [line for line in lines if "fail" in line]
        assert lines[-1] == {"done": count, "failed": 0}, failures
        return lines

    def ready(self, **options: object) -> Child:
        """A consumer that has started; it runs until it is stopped."""
        child = self.run("consume", **options)
        child.wait_lines(lambda lines: len(lines) > 0, 90)
        return child

    def stored(self) -> int:
        with self.broker.wire() as wire:
            return sum(wire.max_offset(self.topic, queue) for queue in range(QUEUES))


def numbers(lines: list[Line]) -> list[int]:
    return sorted(sequence(line["body"]) for line in lines if "body" in line)


def on_both(
    both: list[Broker], name: str, log: Path, subject: str, scenario: Callable[[Stage], T]
) -> dict[str, T]:
    """The result of the scenario, by the kind of the broker; both run at the same time."""
    require(PEERS[name].needs or name)
    stages = [Stage(broker, PEERS[name], log, subject) for broker in both]
    try:
        with ThreadPoolExecutor(len(stages)) as pool:
            outcomes = list(pool.map(scenario, stages))
    finally:
        for child in (child for stage in stages for child in stage.children):
            child.end()
    return {stage.broker.kind: outcome for stage, outcome in zip(stages, outcomes, strict=True)}


def clients(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", names)


@clients("go", "cpp", "node")
def test_messages_come_after_the_delay_of_their_level(
    both: list[Broker], name: str, tmp_path: Path
) -> None:
    def scenario(stage: Stage) -> set[str]:
        runs = [
            stage.run(
                "produce", count=4, modes=stage.peer.modes[0], producer=f"{stage.topic}-{level}",
                delay_level=level, retry_seconds=30,
            )
            for level in LEVELS_MS
        ]  # fmt: skip
        for run in runs:
            run.wait(120)
        lines = stage.run("consume", count=4 * len(LEVELS_MS)).wait(120)
        with stage.broker.wire() as wire:
            check_delays(wire, stage.topic)
        return {line["body"] for line in lines if "body" in line}

    bodies = {f"m-delay-{name}-{level}-{n}" for level in LEVELS_MS for n in range(4)}
    assert on_both(both, name, tmp_path, "delay", scenario) == {"our": bodies, "Java": bodies}


def check_delays(wire: Wire, topic: str) -> None:
    """Each message was stored in its topic when its delay was over."""
    for level, delay_ms in LEVELS_MS.items():
        waited = {one.body: one.store_ms for one in wire.read_queue(SCHEDULE, level - 1)}
        given = [one for one in wire.read_topic(topic, QUEUES) if one.body in waited]
        assert len({one.body for one in given}) == 4
        for one in given:
            assert one.store_ms - waited[one.body] >= delay_ms, one.body


@clients("rust")
def test_a_batch_of_one_cannot_wait_for_a_delay_level(
    both: list[Broker], name: str, tmp_path: Path
) -> None:
    """This client sends nothing but batches, which neither broker delays."""

    def scenario(stage: Stage) -> tuple[object, int]:
        lines = stage.run("produce", count=4, delay_level=1).wait(120)
        return lines[-1]["failed"], stage.stored()

    assert on_both(both, name, tmp_path, "delay", scenario) == {"our": (4, 0), "Java": (4, 0)}


@clients("node")
def test_a_start_deliver_time_is_kept_here_and_not_by_rocketmq_4(
    both: list[Broker], name: str, tmp_path: Path
) -> None:
    """The client sets `__STARTDELIVERTIME`, which only RocketMQ's cloud service and we know."""

    def scenario(stage: Stage) -> bool:
        consumer = stage.ready(count=4)
        acks = stage.send(4, deliver_in_ms=2_000)
        due_ms = {ack["ack"]: ack["deliverAt"] for ack in acks if "ack" in ack}
        assert numbers(consumer.wait(120)) == list(range(4))
        with stage.broker.wire() as wire:
            stored = wire.read_topic(stage.topic, QUEUES)
        return all(one.store_ms >= due_ms[sequence(one.body)] for one in stored)

    outcomes = on_both(both, name, tmp_path, "deliver", scenario)
    assert outcomes == {"our": True, "Java": False}


@clients("go", "node")
def test_a_sql_expression_chooses_by_properties_and_tags(
    both: list[Broker], name: str, tmp_path: Path
) -> None:
    def scenario(stage: Stage) -> list[int]:
        stage.send(10, property="n", tag="other")
        stage.send(10, property="n", tag="wanted")
        lines = stage.run("consume", count=4, sql="TAGS = 'wanted' AND n BETWEEN 3 AND 6").wait(120)
        return numbers(lines)

    outcomes = on_both(both, name, tmp_path, "sql", scenario)
    assert outcomes == {"our": [3, 4, 5, 6], "Java": [3, 4, 5, 6]}


@clients("go", "cpp", "node", "rust")
def test_broadcasting_reaches_every_consumer_of_the_group(
    both: list[Broker], name: str, tmp_path: Path
) -> None:
    def scenario(stage: Stage) -> list[set[int]]:
        consumers = [stage.ready(broadcast="yes", timeout=120) for _ in range(2)]
        wait_until_served(stage, consumers)
        stage.send(16)
        for one in consumers:
            one.wait_lines(lambda lines: len(own(lines)) == 16, 60)
        return [own(one.lines) for one in consumers]

    expected = [set(range(16))] * 2
    outcomes = on_both(both, name, tmp_path, "broadcast", scenario)
    assert outcomes == {"our": expected, "Java": expected}


def own(lines: list[Line]) -> set[int]:
    """The client's own messages, without those of `wait_until_served`."""
    return {sequence(line["body"]) for line in list(lines) if line.get("body", "").startswith("m-")}


def wait_until_served(stage: Stage, consumers: list[Child]) -> None:
    """Not every client begins with the first message: wait until each queue is read by each."""
    with stage.broker.wire() as wire:

        def served() -> bool:
            for queue in range(QUEUES):
                wire.send(stage.topic, queue, b"first-0")
            return all(
                len({line.get("queue") for line in list(one.lines)} - {None}) == QUEUES
                for one in consumers
            )

        wait_until(served, 60, "both consumers read each queue", every_s=0.2)


@clients("go", "cpp")
def test_pull_consumers_get_everything(both: list[Broker], name: str, tmp_path: Path) -> None:
    def scenario(stage: Stage) -> list[int]:
        stage.send(40, keys="yes")
        lines = stage.run("pull", count=40).wait(120)
        assert all(line["keys"] == line["body"] for line in lines if "body" in line)
        return numbers(lines)

    expected = list(range(40))
    outcomes = on_both(both, name, tmp_path, "pull", scenario)
    assert outcomes == {"our": expected, "Java": expected}


@clients("go", "cpp", "node")
def test_large_bodies_are_compressed_and_come_back_whole(
    both: list[Broker], name: str, tmp_path: Path
) -> None:
    large = "large" * 2_000

    def scenario(stage: Stage) -> set[str]:
        stage.send(4, prefix=large)
        lines = stage.run("consume", count=4).wait(120)
        log = (stage.broker.store / "commitlog" / f"{0:020d}").read_bytes()
        assert large.encode() not in log
        return {line["body"] for line in lines if "body" in line}

    expected = {f"{large}-{name}-{n}" for n in range(4)}
    outcomes = on_both(both, name, tmp_path, "large", scenario)
    assert outcomes == {"our": expected, "Java": expected}


@clients("node")
def test_messages_of_one_sharding_key_share_a_queue(
    both: list[Broker], name: str, tmp_path: Path
) -> None:
    def scenario(stage: Stage) -> tuple[int, int]:
        acks = stage.send(12, sharding_key="order-17")
        return len({ack["queue"] for ack in acks if "ack" in ack}), stage.stored()

    outcomes = on_both(both, name, tmp_path, "sharding", scenario)
    assert outcomes == {"our": (1, 12), "Java": (1, 12)}


@clients("go")
def test_transactions_end_as_their_producer_decides(
    both: list[Broker], name: str, tmp_path: Path
) -> None:
    """Each four transactions are: committed, rolled back, and committed or rolled back when the
    broker asks."""

    def scenario(stage: Stage) -> tuple[list[int], list[int], int]:
        consumer = stage.ready(count=4)
        lines = stage.run("transact", count=8, producer=name).wait(120)
        assert lines[-1] == {"done": 8, "failed": 0}
        begun = {line["prepared"]: line["id"] for line in lines if "prepared" in line}
        asked = {line["asked"]: line["id"] for line in lines if "asked" in line}
        assert asked.items() <= begun.items()
        committed = numbers(consumer.wait(120))
        return sorted(asked), committed, stage.stored()

    outcomes = on_both(both, name, tmp_path, "transactions", scenario)
    expected = ([2, 3, 6, 7], [0, 2, 4, 6], 4)
    assert outcomes == {"our": expected, "Java": expected}


@clients("go")
def test_requests_get_the_replies_of_their_consumer(
    both: list[Broker], name: str, tmp_path: Path
) -> None:
    def scenario(stage: Stage) -> dict[int, str]:
        replier = stage.run("reply", timeout=90)
        replier.wait_lines(lambda lines: len(lines) > 0, 90)
        options = {"modes": "sync,async", "producer": name, "timeout": 30}
        lines = stage.run("request", count=8, **options).wait(120)
        assert lines[-1] == {"done": 8, "failed": 0}
        replier.stop()
        return {line["answer"]: line["body"] for line in lines if "answer" in line}

    expected = {n: f"answer to m-{name}-{n}" for n in range(8)}
    outcomes = on_both(both, name, tmp_path, "requests", scenario)
    assert outcomes == {"our": expected, "Java": expected}


@clients("go")
def test_sending_and_consuming_are_traced(both: list[Broker], name: str, tmp_path: Path) -> None:
    def scenario(stage: Stage) -> set[tuple[str, str]]:
        consumer = stage.ready(trace="yes")
        producer = stage.run(
            "produce", count=4, modes="sync", keys="yes", trace="yes", prefix=stage.topic,
            producer=name,
        )  # fmt: skip
        keys = {f"{stage.topic}-{name}-{n}" for n in range(4)}
        with stage.broker.wire() as wire:
            wait_until(lambda: len(traced(wire, keys)) >= 12, 60, "all is traced")
            found = traced(wire, keys)
        assert producer.stop() == consumer.stop() == 0
        return found

    expected = {
        (what, f"traces-{name}-{name}-{n}")
        for what in ("Pub", "SubBefore", "SubAfter")
        for n in range(4)
    }
    outcomes = on_both(both, name, tmp_path, "traces", scenario)
    assert outcomes == {"our": expected, "Java": expected}


def traced(wire: Wire, keys: set[str]) -> set[tuple[str, str]]:
    """The traces of messages with these keys: the step and the key."""
    return {
        (fields[0], key)
        for one in wire.read_queue(TRACES, 0)
        for fields in (context.split("\x01") for context in one.body.split("\x02"))
        for key in fields
        if key in keys
    }
