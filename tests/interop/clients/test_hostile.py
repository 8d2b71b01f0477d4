"""Bytes of no protocol, lies about sizes, idle crowds: a good client is served all the while."""

import random
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.broken_text import BROKEN_BYTES, BROKEN_ESCAPES
from tests.interop.brokers import Broker
from tests.interop.processes import wait_until
from tests.interop.wire import SEND_MESSAGE_V2, SUCCESS, Answer, Wire

MEMORY_BYTES = 60 << 20
IDLE = 1_000
# A good client's slowest request meanwhile. Java misses a waking now and then, and looks every 5 s.
PATIENCE_S = {"our": 1.0, "Java": 6.0}
SEED = 20_190_917


class GoodClient:
    """Sends and reads back, one message after another, until told to stop."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.sent = 0
        self.slowest_s = 0.0
        self.failure: Exception | None = None
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with self.broker.wire() as wire:
                while not self.stop.wait(0.01):
                    begun = time.monotonic()
                    body = f"good-{self.sent}"
                    answer = wire.send("good", 0, body.encode())
                    assert answer.code == SUCCESS
                    at = int(answer.ext["queueOffset"])
                    (found,), _ = wire.pull("good", 0, at, suspend_ms=5_000)
                    assert found.body == body
                    self.sent += 1
                    self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
        except (OSError, AssertionError, ValueError) as failure:  # for the test to report
            self.failure = failure

    def check_served(self) -> None:
        """A hundred more round trips, none failed, none slow."""
        goal = self.sent + 100
        wait_until(lambda: self.sent >= goal or self.failure is not None, 20, "good client served")
        assert self.failure is None
        assert self.slowest_s < PATIENCE_S[self.broker.kind]


@contextmanager
def good_client(broker: Broker) -> Iterator[GoodClient]:
    client = GoodClient(broker)
    client.thread.start()
    try:
        client.check_served()
        yield client
    finally:
        client.stop.set()
        client.thread.join()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 5)


def send_until_refused(port: int, data: bytes) -> None:
    """Sends all of it, or as much as the other side will read."""
    with connect(port) as hostile:
        try:
            hostile.sendall(data)
            hostile.shutdown(socket.SHUT_WR)
            while hostile.recv(65536):
                pass
        except OSError:  # reset, closed, or not even listened to for long enough
            return


def random_bytes(port: int) -> None:
    send_until_refused(port, random.Random(SEED).randbytes(1 << 20))


def frame_of_two_gigabytes(port: int) -> None:
    """The announcement, then as many bytes as would be a tenth of the memory allowed."""
    send_until_refused(port, struct.pack(">I", 2**31 - 1) + bytes(6 << 20))


def header_longer_than_its_frame(port: int) -> None:
    send_until_refused(port, struct.pack(">II", 100, 0xFFFFFF) + b"{" * 96)


def http_request(port: int) -> None:
    send_until_refused(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")


ATTACKS = (random_bytes, frame_of_two_gigabytes, header_longer_than_its_frame, http_request)


@pytest.fixture(scope="module")
def target(broker: Broker) -> Broker:
    broker.create_topic("good", 1)
    return broker


@pytest.mark.parametrize("attack", ATTACKS)
def test_nonsense_leaves_a_good_client_served(
    target: Broker, attack: Callable[[int], None]
) -> None:
    print(f"seed {SEED}")
    with good_client(target) as client:
        before = target.resident_bytes()
        for port in (target.port, target.name_server_port, target.port - 2):
            for _ in range(5):
                attack(port)
        client.check_served()
        assert target.resident_bytes() - before < MEMORY_BYTES


def test_a_thousand_idle_connections_leave_a_good_client_served(target: Broker) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * IDLE:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * IDLE), hard))
    with ExitStack() as crowd, good_client(target) as client:
        before = target.resident_bytes()
        for n in range(IDLE):
            idle = crowd.enter_context(connect(target.port))
            if n % 2:
                idle.sendall(struct.pack(">II", 4_000_000, 200))  # half of them begin a large frame
        client.check_served()
        assert target.resident_bytes() - before < MEMORY_BYTES


def send_raw(wire: Wire, properties: bytes) -> Answer:
    """A send whose property text is these bytes of JSON."""
    wire.opaque += 1
    numbers = b",".join(b'"%c":"0"' % letter for letter in b"efghj")
    header = (
        b'{"code":%d,"flag":0,"opaque":%d,"version":401,"language":"OTHER","extFields":{"a":"wire",'
        b'"b":"broken","c":"TBW102","d":"4",%s,"i":"%s","k":"false","m":"false"}}'
    ) % (SEND_MESSAGE_V2, wire.opaque, numbers, properties)
    wire.socket.sendall(struct.pack(">II", 8 + len(header), len(header)) + header + b"body")
    return wire.answer()


def test_broken_text_is_stored_as_java_stores_it_and_the_connection_goes_on(broker: Broker) -> None:
    broker.create_topic("broken", 1)
    table = BROKEN_BYTES + BROKEN_ESCAPES
    with broker.wire() as wire:
        for sent, _ in table:
            assert send_raw(wire, b"x\\u0001" + sent).code == SUCCESS
        wait_until(lambda: wire.max_offset("broken", 0) == len(table), 10, "all are in the queue")
        stored = [message.properties["x"].encode() for message in wire.read_queue("broken", 0)]
        assert stored == [kept for _, kept in table]
