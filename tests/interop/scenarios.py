"""The use of a broker that a client must be capable of, for any pair of the two."""

from collections import defaultdict
from pathlib import Path

from tests import campaign
from tests.interop.brokers import Broker
from tests.interop.peers import Peer, acknowledged
from tests.interop.processes import Child, Line, wait_until
from tests.interop.wire import Stored, Wire

QUEUES = 8
COUNT = campaign.size("clients")


def topic_of(broker: Broker, subject: str, peer: Peer) -> str:
    return broker.create_topic(f"{subject}-{peer.name.replace('.', '_')}", QUEUES)


def sequence(body: str) -> int:
    return int(body.rpartition("-")[2])


def send_and_consume_all(broker: Broker, peer: Peer, log: Path) -> None:
    """Messages in all modes of the client: none missing, none twice, queues in order."""
    topic = topic_of(broker, "all", peer)
    modes = [
        mode for mode in peer.modes if broker.kind != "Java" or mode not in peer.broken_on_java
    ]
    sent = peer.produce(broker, log, topic, COUNT, modes=",".join(modes), keys="yes").wait(120)
    assert sent[-1] == {"done": COUNT, "failed": 0}
    with broker.wire() as wire:
        stored_when_complete(wire, topic, COUNT)
        stored = wire.read_topic(topic, QUEUES)

    mode = "orderly" if peer.orderly else "concurrent"
    group = f"{topic}-group"
    consumed = peer.consume(broker, log, topic, group, count=COUNT, mode=mode).wait(120)

    assert sorted(sequence(one.body) for one in stored) == list(range(COUNT))
    check_places(acknowledged(sent), stored)
    check_send_order(peer, modes, stored)
    check_consumed(peer, consumed, stored)


def stored_when_complete(wire: Wire, topic: str, count: int) -> None:
    """One-way sends may still be on their way, and Java's queues lag a little behind its log."""

    def total() -> int:
        return sum(wire.max_offset(topic, queue) for queue in range(QUEUES))

    wait_until(lambda: total() >= count, 20, f"{count} messages stored in {topic}")
    assert total() == count


def check_places(acks: list[Line], stored: list[Stored]) -> None:
    """Each message lies where its acknowledgement said."""
    at = {(one.queue, one.queue_offset): one for one in stored}
    for ack in acks:
        if "queue" in ack and "offset" in ack:
            found = at[ack["queue"], ack["offset"]]
            assert sequence(found.body) == ack["ack"]
            assert found.properties["KEYS"] == found.body


def check_send_order(peer: Peer, modes: list[str], stored: list[Stored]) -> None:
    """Within a mode that waits for each answer, a queue holds a producer's messages as sent."""
    for i, mode in enumerate(modes):
        if mode not in peer.ordered:
            continue
        part = range(COUNT * i // len(modes), COUNT * (i + 1) // len(modes))
        for queue in range(QUEUES):
            numbers = [sequence(one.body) for one in stored if one.queue == queue]
            of_mode = [number for number in numbers if number in part]
            assert of_mode == sorted(of_mode), f"{mode}, queue {queue}"


def check_consumed(peer: Peer, consumed: list[Line], stored: list[Stored]) -> None:
    """None is missing, none came twice, and each queue was handed over in its order."""
    offsets = defaultdict(list)
    for line in consumed:
        if "queue" in line:
            assert line["reconsume"] == 0
            offsets[line["queue"]].append(line["offset"])
    expected = defaultdict(list)
    for one in stored:
        expected[one.queue].append(one.queue_offset)
    assert offsets == expected
    bodies = {(one.queue, one.queue_offset): one.body for one in stored}
    for line in consumed:
        if "queue" in line:
            assert bodies[line["queue"], line["offset"]] == line["body"]
            if peer.reads_properties:
                assert line["keys"] == line["body"]


class Shares:
    """Sends rounds of one message a queue, and says which consumer took which queue."""

    def __init__(self, wire: Wire, topic: str, consumers: list[Child]) -> None:
        self.wire = wire
        self.topic = topic
        self.consumers = consumers
        self.rounds = 0

    def round(self) -> list[set[int]]:
        """The queues each consumer served in a new round, once all its messages have come."""
        names = {f"share-wire-{self.rounds * QUEUES + queue}" for queue in range(QUEUES)}
        self.rounds += 1
        for queue, name in enumerate(sorted(names)):
            assert self.wire.send(self.topic, queue, name.encode()).code == 0

        def owners() -> list[set[int]]:
            return [
                {line["queue"] for line in list(child.lines) if line.get("body") in names}
                for child in self.consumers
            ]

        wait_until(
            lambda: len(set().union(*owners())) == QUEUES, 40, f"round {self.rounds} consumed"
        )
        return owners()

    def until(self, sizes: list[int], what: str) -> list[set[int]]:
        served: list[set[int]] = []

        def shared() -> bool:
            served[:] = self.round()
            return [len(one) for one in served] == sizes

        wait_until(shared, 60, what)
        return served


def share_queues(broker: Broker, peers: list[Peer], log: Path, children: list[Child]) -> None:
    """Two members of one group have half of the queues each; one goes, the other has them all."""
    topic = topic_of(broker, "share", peers[1])
    for turn, peer in enumerate(peers):
        children.append(peer.consume(broker, log / str(turn), topic, f"{topic}-group", timeout=180))
    with broker.wire() as wire:
        shares = Shares(wire, topic, children)
        first, second = shares.until([4, 4], "both consumers have half of the queues")
        assert first | second == set(range(QUEUES))
        children[1].stop()
        shares.until([8, 0], "the consumer that stayed has all queues")
    got = {line["body"] for child in children for line in child.lines if "body" in line}
    assert got == {f"share-wire-{n}" for n in range(shares.rounds * QUEUES)}


def filter_by_tag(broker: Broker, peer: Peer, log: Path) -> None:
    """Half of the messages carry the tag subscribed to; that half arrives."""
    topic = topic_of(broker, "tag", peer)
    with broker.wire() as wire:
        for n in range(200):
            wire.send(topic, n % QUEUES, f"tag-wire-{n}".encode(), TAGS="odd" if n % 2 else "even")
    child = peer.consume(broker, log, topic, f"{topic}-group", count=100, tag="even")
    bodies = {line["body"] for line in child.wait(120) if "body" in line}
    assert bodies == {f"tag-wire-{n}" for n in range(0, 200, 2)}


def refuse_once(broker: Broker, peer: Peer, log: Path) -> None:
    """A message that a consumer refuses comes back once more, by way of its group's retry topic.

    The group has had a member before: the very first one often asks for the retry topic's route
    just before its own heartbeat makes the topic, with either broker, and asks again 30 s later.
    """
    topic = topic_of(broker, "retry", peer)
    earlier = peer.consume(broker, log / "earlier", topic, f"{topic}-group", timeout=60)
    earlier.wait_lines(lambda lines: len(lines) > 0, 60)
    earlier.stop()
    with broker.wire() as wire:
        for n in range(16):
            wire.send(topic, n % QUEUES, f"retry-wire-{n}".encode(), KEYS=f"retry-wire-{n}")
    options = {"count": 16, "reject_first": "yes", "timeout": 110}
    lines = peer.consume(broker, log, topic, f"{topic}-group", **options).wait(120)
    back = [line for line in lines if "body" in line]
    assert {line["body"] for line in back} == {f"retry-wire-{n}" for n in range(16)}
    assert {line["reconsume"] for line in back} == {1}


def consume_from_wire(broker: Broker, peer: Peer, log: Path) -> None:
    """A thousand messages that no client wrote arrive, each where it lies."""
    topic = topic_of(broker, "plain", peer)
    with broker.wire() as wire:
        for n in range(1_000):
            wire.send(topic, n % QUEUES, f"plain-wire-{n}".encode(), KEYS=f"plain-wire-{n}")
        stored_when_complete(wire, topic, 1_000)
        stored = wire.read_topic(topic, QUEUES)
    lines = peer.consume(broker, log, topic, f"{topic}-group", count=1_000).wait(120)
    check_consumed(peer, lines, stored)
