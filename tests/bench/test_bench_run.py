"""The generators of `make bench` run on a broker of ours, in tenths of a second."""

import socket
import threading
from collections.abc import Iterator

import pytest

from aerobee.cli.bench.loads import SEND
from tests.bench.loads import LOADS, QUEUES, Load, Lost, build, generate
from tests.bench.servers import OurServer, running, shape
from tests.bench.turns import rounds

P7, P10, P12 = (next(one for one in LOADS if one.name == name) for name in ("P7", "P10", "P12"))
XADD = b"$1\r\nd\r\n$128\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurServer]:
    build()
    folder = tmp_path_factory.mktemp("bench") / "run"
    with running([OurServer(folder / "our", shape("ASYNC_FLUSH"))], folder) as [ours]:
        yield ours


def test_open_loop_sends_what_was_due_whatever_the_answers_take(server: OurServer) -> None:
    slow = Load("P10", "", P10.shape._replace(rate=500))
    server.take_up(slow)
    result = server.work(slow, secs=1, warmup=0)[0]
    assert 498 <= result["acked"] <= 501
    assert result["requests"] == result["acked"] == server.held()
    assert 0 < result["p50_us"] <= result["p99_us"]


def test_readers_beside_senders_read_everything_once(server: OurServer) -> None:
    server.take_up(P12)
    # A second turn begins at the queues' ends, not at their beginnings.
    for [turn] in rounds([server], range(2), P12, secs=0.3):
        assert turn.out_per_s > 0


def test_batches_of_large_messages_are_counted_one_by_one(server: OurServer) -> None:
    server.take_up(P7)
    [[turn]] = rounds([server], range(1), P7, secs=0.2)
    assert server.acked % 32 == 0
    assert turn.messages_per_s > 0


@pytest.mark.parametrize(
    ("answer", "errors"),
    [(b"$15\r\n1700000000000-1\r\n", 0), (b"-OOM no\r\n", 40), (b"$3\r\nnot\r\n", 40)],
)
def test_answers_of_a_neighbour_are_parsed(answer: bytes, errors: int) -> None:
    build()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=answer_each, args=(listener, answer), daemon=True)
        serving.start()
        port = listener.getsockname()[1]
        words = "redis --conns 1 --window 8"
        result = generate(port, "t", words, "neighbourload", requests=40, secs=10)
        serving.join(10)
    assert (result["errors"], result["acked"]) == (errors, 40 - errors)


def answer_each(listener: socket.socket, answer: bytes) -> None:
    """Answers every XADD of one connection."""
    connection, _ = listener.accept()
    with connection:
        pending = b""
        while data := connection.recv(65536):
            pending += data
            *whole, pending = pending.split(XADD)
            connection.sendall(answer * len(whole))


def test_refused_sends_end_the_run(server: OurServer) -> None:
    load = Load("P2", "", SEND._replace(connections=4))
    server.take_up(load)
    with server.wire() as wire:
        wire.create_topic(server.topic, QUEUES - 1)
    with pytest.raises(Lost, match=r"P2: .* errors, code 1"):
        server.turn(load, secs=0.1)
