"""The brokers that are measured: ours and Java's, on stores of production sizes."""

import contextlib
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from aerobee.cli.bench.loads import BATCH
from tests.bench.alone import interrupts_later
from tests.bench.loads import QUEUES, Load, StartFailed, generate, stored
from tests.bench.turns import TakesTurns
from tests.interop.brokers import Broker, JavaBroker, OurBroker, StoreShape
from tests.interop.wire import Wire
from tests.ports import free_port

SEGMENT_BYTES = 256 << 20
#: Nothing is deleted for its age or for want of room: acknowledged messages are counted.
RETENTION = {"fileReservedTime": "720", "diskSpaceCleanForciblyRatio": "0.97"}
#: The messages that pulls read: 128 B each, more than a processor caches.
FILL = Load("fill", "not counted", BATCH)
FILL_REQUESTS = 10_000
_START_TRIES, _PORT_TAKEN = 5, "a port is in use"
_FIRST_SEND_WAIT_S = 300.0


class BenchJavaBroker(JavaBroker):
    """With its optimising compiler, and memory enough to do its best."""

    heap = ("-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=1g")
    compiler = ()
    tls = ()  # as it comes, for start and memory


KINDS: dict[str, type[Broker]] = {"our": OurBroker, "java": BenchJavaBroker}


def shape(flush: str) -> StoreShape:
    """Production sizes but for the segments, small enough to be removed after each life."""
    return StoreShape(
        flush=flush,
        segment_bytes=SEGMENT_BYTES,
        queue_segment_bytes=6_000_000,
        index_slots=5_000_000,
        index_entries=20_000_000,
        extra=dict(RETENTION),
    )


def flush_of(load: Load) -> str:
    return "SYNC_FLUSH" if load.sync else "ASYNC_FLUSH"


def first_send(broker: Broker) -> bool:
    try:
        with Wire(broker.address) as wire:
            return wire.send("bench-first", 0, b"first").code == 0
    except (ConnectionError, TimeoutError):
        return False


def to_first_send(broker: Broker) -> float:
    """Starts the broker; seconds from launch to the first acknowledged send."""
    begun = time.monotonic()
    broker.launch()
    while not first_send(broker):
        if time.monotonic() - begun > _FIRST_SEND_WAIT_S or not broker.children[-1].running:
            raise StartFailed(f"{broker.kind} took no send\n{broker.children[-1].tail()}")
        time.sleep(0.005)
    return time.monotonic() - begun


class BrokerServer(TakesTurns, Broker):
    """A broker, with its name server, that gets turns of a load."""

    acked = 0

    def come_up(self) -> None:
        """Starts the broker. Raises StartFailed."""
        for tries_left in reversed(range(_START_TRIES)):
            with interrupts_later():
                self.launch()
            try:
                self.wait_ready()
                return
            except AssertionError as error:
                # Others look for free ports too, and may listen on one before the server does.
                if _PORT_TAKEN not in str(error) or not tries_left:
                    raise StartFailed(f"{self.kind}: {error}") from None
            self.port, self.name_server_port = free_port(), free_port()
            if self.store.is_relative_to(self.root):
                shutil.rmtree(self.root)
                self.root.mkdir()

    def take_up(self, load: Load) -> None:
        self.topic, self.acked = f"bench-{load.name}", 0
        self.create_topic(self.topic, QUEUES)
        if load.pulls:
            self.turn(FILL, FILL_REQUESTS)

    def pids(self) -> list[int]:
        return [self.pid]

    def held(self) -> int:
        return stored(self, self.topic)

    def last_words(self) -> str:
        return self.children[-1].tail(2000)

    def work(self, load: Load, **size: float) -> list[dict[str, Any]]:
        return [generate(self.port, self.topic, load.words, **size)]


class OurServer(BrokerServer, OurBroker):
    """The working tree's."""


class JavaServer(BrokerServer, BenchJavaBroker):
    """The Java broker's."""


SERVERS: dict[str, type[BrokerServer]] = {"our": OurServer, "java": JavaServer}
S = TypeVar("S", bound=BrokerServer)


@contextlib.contextmanager
def running(servers: Sequence[S], folder: Path) -> Iterator[Sequence[S]]:
    """All of them up, one beside the other; they are ended, and `folder` is removed, after."""
    try:
        for server in servers:
            server.come_up()
        yield servers
    finally:
        with interrupts_later():
            for server in servers:
                server.kill()
            shutil.rmtree(folder)
