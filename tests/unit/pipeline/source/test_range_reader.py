"""Ranges come whole, in order and once, from brokers that give much, little, or nothing."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.pipeline.brokers.brokers import Brokers
from aerobee.pipeline.brokers.offsets import Range
from aerobee.pipeline.errors import DataLoss, NoSuchTopic, Refused, Unreachable
from aerobee.pipeline.source.batch_plan import batch_ranges
from aerobee.pipeline.source.range_reader import Guess, PullForm, RangeReader
from aerobee.protocol.bodies.routes import TopicRoute
from aerobee.protocol.hashing import java_hash
from aerobee.remoting.errors import RemotingConnectError
from aerobee.testing import RunningBroker
from tests.unit.pipeline.support import bodies_of, create, options, queue, running, send

BODIES = [b"%d" % number * (1 + number % 7) for number in range(500)]

# Caps of answers: a Java broker's, its cap for cold messages, and ours.
JAVA = {"transfer_bytes_bulk": 0}
COLD = {"transfer_bytes_bulk": 0, "memory_ratio_percent": 0}
TINY = {"transfer_bytes_bulk": 1_000}


@pytest.fixture(scope="module", params=[{}, JAVA, COLD, TINY], ids=["ours", "java", "cold", "tiny"])
def filled(request: pytest.FixtureRequest) -> Iterator[RunningBroker]:
    with running(**request.param) as broker:
        create(broker)
        send(broker, BODIES, tags=lambda index: "ab"[index % 5 == 0])
        yield broker


@pytest.mark.parametrize(("start", "end"), [(0, 500), (0, 1), (499, 500), (123, 456)])
def test_a_range_comes_whole_in_order_and_once(filled: RunningBroker, start: int, end: int) -> None:
    assert bodies_of(options(filled), Range(queue(0), start, end)) == BODIES[start:end]


@pytest.mark.parametrize(("start", "end"), [(0, 500), (123, 456), (131, 134)])
def test_tags_leave_out_others_and_nothing_comes_twice(
    filled: RunningBroker, start: int, end: int
) -> None:
    wanted = [BODIES[number] for number in range(start, end) if number % 5 == 0]
    assert bodies_of(options(filled, subExpression="b"), Range(queue(0), start, end)) == wanted


def test_a_pull_batch_is_the_most_that_is_asked_for(filled: RunningBroker) -> None:
    small = options(filled, pullBatchSize="7")
    assert bodies_of(small, Range(queue(0), 3, 400)) == BODIES[3:400]


def test_messages_larger_than_an_answer_come_one_by_one() -> None:
    large = [bytes([number]) * 3_000 for number in range(20)]
    with running(transfer_bytes_bulk=1_000) as broker:
        create(broker)
        send(broker, large)
        assert bodies_of(options(broker), Range(queue(0), 0, 20)) == large


def test_tags_of_the_same_hash_are_told_apart() -> None:
    assert java_hash("Aa") == java_hash("BB")
    with running() as broker:
        create(broker)
        send(broker, BODIES[:10], tags=lambda index: ("Aa", "BB")[index % 2])
        found = bodies_of(options(broker, subExpression="Aa"), Range(queue(0), 0, 10))
    assert found == BODIES[0:10:2]


def test_columns_not_asked_for_do_not_come_with_the_tags(filled: RunningBroker) -> None:
    from aerobee.pipeline.source.range_rows import read_range

    wanted = options(filled, subExpression="a", columns="queueOffset,body")
    (batch, *_) = read_range(wanted, Range(queue(0), 0, 10))
    assert batch.schema.names == ["queueOffset", "body"]
    assert batch.num_rows == 8


def test_one_answer_brings_a_small_range(filled: RunningBroker) -> None:
    with Brokers(options(filled).access) as brokers:
        reader = RangeReader(brokers, Range(queue(0), 10, 13), PullForm("g"))
        assert [(one.low, one.high) for one in reader.chunks()] == [(10, 13)]


def test_an_answer_is_as_large_as_the_broker_allows(filled: RunningBroker) -> None:
    with Brokers(options(filled).access) as brokers:
        reader = RangeReader(brokers, Range(queue(0), 0, 500), PullForm("g"))
        chunks = list(reader.chunks())
    bulk = filled.settings.transfer_bytes_bulk
    assert all(len(one.records) <= (bulk or 256 << 10) for one in chunks)
    assert (len(chunks) == 1) == (bulk > 1_000_000)


# --- what is lost ------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "end", "left"), [(490, 510, 10), (500, 510, 0), (700, 800, 0)])
def test_offsets_beyond_the_queue_are_lost(
    filled: RunningBroker, start: int, end: int, left: int
) -> None:
    with pytest.raises(DataLoss, match=f"queue 0: offsets .* to {end - 1}") as caught:
        bodies_of(options(filled), Range(queue(0), start, end))
    assert "failOnDataLoss=false" in str(caught.value)
    tolerant = options(filled, failOnDataLoss="false")
    assert len(bodies_of(tolerant, Range(queue(0), start, end))) == left


def test_an_empty_queue_that_should_have_messages_is_lost(filled: RunningBroker) -> None:
    with pytest.raises(DataLoss, match="queue 1: offsets 0 to 4"):
        bodies_of(options(filled), Range(queue(1), 0, 5))
    assert bodies_of(options(filled, failOnDataLoss="false"), Range(queue(1), 3, 5)) == []


# --- peers that fail ---------------------------------------------------------------------------


def test_no_such_topic_and_no_such_queue_are_said(filled: RunningBroker) -> None:
    quick = options(filled, pullTimeoutMs="20")
    with pytest.raises(Unreachable, match=r"gave up after 0\.2 s: .* 'nothing' at the moment"):
        bodies_of(quick, Range(queue(0, "nothing"), 0, 5))
    with pytest.raises(Refused, match="queueId"):
        bodies_of(options(filled), Range(queue(9), 0, 5))


def test_a_name_server_that_was_never_there_is_an_error_at_once_when_planning() -> None:
    nobody = RunningBroker("127.0.0.1:1", "", "", "", None, None)  # type: ignore[arg-type]
    with pytest.raises(Unreachable, match="no name server answers"):
        batch_ranges(options(nobody))
    with pytest.raises(Unreachable, match=r"gave up after 0\.2 s"):
        bodies_of(options(nobody, pullTimeoutMs="20"), Range(queue(0), 0, 5))


def test_a_task_that_begins_while_everything_is_away_reads_when_it_is_back(
    filled: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that is killed takes its name server along, or its routes."""
    failures = [RemotingConnectError("away"), NoSuchTopic("no route"), RemotingConnectError("away")]
    fetch = Brokers._fetch_route

    def away_at_first(self: Brokers, topic: str) -> TopicRoute:
        if failures:
            raise failures.pop()
        return fetch(self, topic)

    monkeypatch.setattr(Brokers, "_fetch_route", away_at_first)
    assert bodies_of(options(filled), Range(queue(0), 0, 500)) == BODIES
    assert failures == []


class Proxy:
    """Between a reader and its broker: breaks the connection after some bytes of answers."""

    def __init__(self, target: str, allowances: Iterator[int]) -> None:
        self._target = target
        self._allowances = allowances
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            host, _, port = self._target.rpartition(":")
            peer = socket.create_connection((host, int(port)))
            self._one_way(client, peer, lambda: 1 << 40)
            self._one_way(peer, client, lambda: next(self._allowances))

    def _one_way(
        self, source: socket.socket, sink: socket.socket, allowance: Callable[[], int]
    ) -> None:
        left = allowance()

        def copy() -> None:
            nonlocal left
            try:
                while left > 0 and (data := source.recv(min(left, 4096))):
                    left -= len(data)
                    sink.sendall(data)
            except OSError:
                pass
            for one in (source, sink):
                with contextlib.suppress(OSError):
                    # Closing alone says nothing to the peer while the other thread reads from it.
                    one.shutdown(socket.SHUT_RDWR)
                one.close()

        threading.Thread(target=copy, daemon=True).start()


@pytest.mark.parametrize("allowance", [7, 5_000])
def test_a_broken_connection_loses_and_repeats_nothing(
    filled: RunningBroker, monkeypatch: pytest.MonkeyPatch, allowance: int
) -> None:
    proxy = Proxy(filled.broker, itertools.chain([allowance] * 4, itertools.repeat(1 << 40)))
    monkeypatch.setattr(Brokers, "address", lambda self, queue: proxy.address)
    try:
        patient = options(filled, pullTimeoutMs="5000")
        assert bodies_of(patient, Range(queue(0), 0, 500)) == BODIES
        assert proxy.connections > 1
    finally:
        proxy.close()


def test_a_broker_that_stays_away_is_an_error_after_a_while(
    filled: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Brokers, "address", lambda self, queue: "127.0.0.1:1")
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        bodies_of(options(filled, pullTimeoutMs="20"), Range(queue(0), 0, 5))


def test_a_broker_that_moved_is_found_again() -> None:
    with running() as broker:
        create(broker)
        send(broker, BODIES[:20])
        with Brokers(options(broker).access) as brokers:
            asked = queue(0)
            brokers.queues(asked.topic)
            brokers._addresses[asked.broker] = {0: "127.0.0.1:1"}
            reader = RangeReader(brokers, Range(asked, 0, 20), PullForm("g"))
            assert [(one.low, one.high) for one in reader.chunks()] == [(0, 20)]


def test_a_peer_that_is_no_broker_is_said() -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            client.recv(100)
            client.sendall(struct.pack(">iI", 1 << 30, 5))
            client.close()

    threading.Thread(target=answer, daemon=True).start()
    port = server.getsockname()[1]
    nobody = RunningBroker(f"127.0.0.1:{port}", "", "", "", None, None)  # type: ignore[arg-type]
    try:
        with pytest.raises(Unreachable, match="does not speak the protocol"):
            bodies_of(options(nobody), Range(queue(0), 0, 5))
    finally:
        server.close()


# --- guessing ----------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 40_000), st.integers(0, 1 << 22)), max_size=60))
def test_a_guess_stays_within_its_bounds(answers: list[tuple[int, int]]) -> None:
    guess = Guess(1_000)
    for brought, size in answers:
        asked = guess.next_length()
        assert 1 <= asked <= 1_000
        guess.learn(asked, brought, size)
        assert 1 <= guess.ahead <= 32


def test_the_guess_settles_on_what_a_broker_gives() -> None:
    guess = Guess(32_768)
    asked_in_vain = 0
    for _ in range(2_000):
        asked = guess.next_length()
        brought = min(asked, 32)
        asked_in_vain += asked > 32
        guess.learn(asked, brought, brought * 300)
    assert guess.length == 32
    assert asked_in_vain < 12


def test_the_guess_grows_when_messages_become_warm() -> None:
    guess = Guess(32_768)
    guess.learn(guess.next_length(), 8, 800)
    assert guess.length == 8
    for _ in range(100):
        asked = guess.next_length()
        guess.learn(asked, min(asked, 32), 100)
    assert guess.length == 32
