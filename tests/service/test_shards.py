"""`aerobee serve --shards 2` as an operator meets it: two brokers, one of them lost and back."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aerobee.client import (
    ClientError,
    ConsumeFrom,
    Message,
    ProducerOptions,
    PushOptions,
    ReceivedMessage,
)
from aerobee.client.blocking_roles import Admin, Producer, PullConsumer, PushConsumer
from tests.ports import free_port
from tests.service.kit import SMALL_STORE, Served, aerobee, wait_until

MESSAGES = 40
# Three starts, and 10 s for which a producer passes over a broker that failed; on a slow machine.
ROLL_S = 90.0
# Routes are asked for every 30 s, which is what clients are not to need; and a refused connection
# is told at once, so a long time for an answer hides nothing.
ROUTES_S = 3600.0
SEND_TIMEOUT_S = 20.0


@pytest.fixture
def serve_shards(serve: Callable[..., Served]) -> Iterator[Callable[..., Served]]:
    """Two shards on free ports; what a failed test leaves of them is ended."""
    started: list[Served] = []

    def start(*arguments: str) -> Served:
        # Each lies above the one before it: so does what is counted from it.
        http_port, port = free_port(1, 2), free_port(10)
        ports = ("--port", str(port), "--http-port", str(http_port))
        daemon = serve("--shards", "2", *ports, *arguments)
        daemon.port, daemon.http_port = port, http_port
        started.append(daemon)
        return daemon

    yield start
    for daemon in started:
        daemon.terminate()
        with suppress(subprocess.TimeoutExpired):
            daemon.process.wait(20)


def page(daemon: Served, path: str) -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = json.loads(daemon.get(path)[1])
    return found


def pids(daemon: Served) -> list[int]:
    """The process ids of the shards alone."""
    found = [one["pid"] for one in page(daemon, "/shards")["shards"] if "broker" in one]
    return [pid for pid in found if isinstance(pid, int)]


def is_alive(pid: int) -> bool:
    """A process that has ended and waits for its parent to notice is not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def samples(daemon: Served) -> dict[tuple[str, str], float]:
    """Values of the merged page by name and shard, summed over other labels."""
    status, text = daemon.get("/metrics")
    assert status == 200
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = (sample.name, sample.labels.get("shard", ""))
            found[key] = found.get(key, 0) + sample.value
    return found


def send_all(name_server: str, topic: str, bodies: list[bytes]) -> set[str]:
    """Send each; the names of the brokers that took them."""
    with Producer(name_server) as producer:
        return {producer.send(Message(topic, body)).queue.broker_name for body in bodies}


def pull_all(name_server: str, topic: str) -> set[bytes]:
    bodies: set[bytes] = set()
    with PullConsumer(name_server, "readers") as consumer:
        for queue in consumer.queues(topic):
            offset, end = 0, consumer.max_offset(queue)
            while offset < end:
                result = consumer.pull(queue, offset)
                bodies.update(message.body for message in result.messages)
                offset = result.next_offset
    return bodies


def test_one_is_killed_and_comes_back_while_the_other_serves(
    serve_shards: Callable[..., Served],
) -> None:
    daemon = serve_shards().ready()
    name_server = f"127.0.0.1:{daemon.name_server_port}"
    with Admin(name_server) as admin:
        admin.create_topic("Both", queues=2)
    bodies = [b"%d" % number for number in range(MESSAGES)]
    brokers = send_all(name_server, "Both", bodies)
    assert len(brokers) == 2
    assert pull_all(name_server, "Both") == {*bodies}

    values = samples(daemon)
    for shard in ("0", "1"):
        assert values["aerobee_shard_up", shard] == 1
        assert values["rocketmq_messages_in_total", shard] >= MESSAGES / 4
    assert daemon.get("/ready")[0] == daemon.get("/live")[0] == 200

    view = subprocess.run(
        [*aerobee(), "shards", "--http", f"127.0.0.1:{daemon.http_port}"],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert [line.split()[0] for line in view] == ["SHARD", "shard-0", "shard-1", "nameserver"]
    assert f"127.0.0.1:{daemon.port + 10}" in view[2]
    # One cell for each column, so that a script can cut them.
    assert view[3].split()[1:4] == ["-", "-", "ready"]

    first, second = pids(daemon)
    os.kill(second, signal.SIGKILL)
    wait_until(lambda: daemon.get("/ready")[0] == 503, "the loss is seen")
    assert daemon.get("/live")[0] == 200
    more = [b"meanwhile %d" % number for number in range(4)]
    send_all(name_server, "Both", more)
    wait_until(lambda: daemon.get("/ready")[0] == 200, "the shard is back")
    assert pids(daemon)[0] == first
    assert pids(daemon)[1] != second
    assert pull_all(name_server, "Both") == {*bodies, *more}
    values = samples(daemon)
    assert values["aerobee_shard_failures_total", "0"] == 0
    assert values["aerobee_shard_failures_total", "1"] == 1

    children = pids(daemon)
    daemon.terminate()
    assert daemon.wait() == 0, daemon.log
    assert not any(map(is_alive, children))
    for number in (0, 1):
        assert (daemon.store / f"shard-{number}" / "commitlog").is_dir()
        assert not (daemon.store / f"shard-{number}" / "abort").exists()

    assert "shard-0, shard-1" in refused(daemon.store)
    (daemon.store / "shard-2").mkdir()
    (daemon.store / "shard-2" / "commitlog").mkdir()
    assert "--shards 3" in refused(daemon.store, "--shards", "2")


def refused(store: Path, *arguments: str) -> str:
    """The output of a start on this directory, which the configuration must forbid."""
    command = [*aerobee(), "serve", "--store", str(store), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 78, done.stderr
    return done.stderr


def test_a_rolling_restart_and_the_end_of_the_supervisor(
    serve_shards: Callable[..., Served],
) -> None:
    daemon = serve_shards("--set", "shards.restart_pause_ms=0").ready()
    with Admin(f"127.0.0.1:{daemon.name_server_port}") as admin:
        admin.create_topic("Both", queues=2)
    before = pids(daemon)
    daemon.process.send_signal(signal.SIGUSR2)
    wait_until(lambda: "rolling restart is done" in daemon.log, "all were restarted", ROLL_S)
    after = pids(daemon)
    assert len({*before, *after}) == 4
    # The name server was the last, and knows all of them again: a new client finds both at once.
    with PullConsumer(f"127.0.0.1:{daemon.name_server_port}", "readers") as consumer:
        assert len({queue.broker_name for queue in consumer.queues("Both")}) == 2
    # Which of them a line is from is said in it.
    assert '"part": "shard-1"' in daemon.log
    assert '"part": "nameserver"' in daemon.log

    daemon.process.kill()
    wait_until(lambda: not any(map(is_alive, after)), "they end without their supervisor")
    assert not (daemon.store / "shard-1" / "abort").exists()


class Traffic:
    """Sends all the time, and what a group consumes of it, by the names of brokers."""

    def __init__(self, name_server: str, topic: str) -> None:
        self.sent: dict[str, list[bytes]] = {}
        self.consumed: set[bytes] = set()
        self.failures: list[ClientError] = []
        self._topic = topic
        self._ended = threading.Event()
        options = PushOptions(consume_from=ConsumeFrom.FIRST, route_refresh_interval_s=ROUTES_S)
        self._consumer = PushConsumer(name_server, "readers", self._consume, options)
        sending = ProducerOptions(send_timeout_s=SEND_TIMEOUT_S, route_refresh_interval_s=ROUTES_S)
        self._producer = Producer(name_server, options=sending)
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> Traffic:
        self._consumer.start()
        self._consumer.subscribe(self._topic)
        self._producer.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._producer.close()
        self._consumer.close()

    def mark(self) -> dict[str, int]:
        """How many were sent to each broker by now."""
        return {name: len(bodies) for name, bodies in self.sent.items()}

    def flows_since(self, mark: dict[str, int]) -> bool:
        """Whether each broker has got messages since, and some of these are consumed."""
        return all(self.consumed.intersection(self.sent[name][at:]) for name, at in mark.items())

    def _consume(self, messages: list[ReceivedMessage]) -> None:
        self.consumed.update(message.body for message in messages)

    def _send(self) -> None:
        number = 0
        while not self._ended.wait(0.01):
            number += 1
            body = b"%d" % number
            try:
                result = self._producer.send(Message(self._topic, body))
            except ClientError as error:
                self.failures.append(error)
            else:
                self.sent.setdefault(result.queue.broker_name, []).append(body)


def test_clients_do_not_notice_a_rolling_restart(serve_shards: Callable[..., Served]) -> None:
    daemon = serve_shards("--set", "shards.restart_pause_ms=1000").ready()
    name_server = f"127.0.0.1:{daemon.name_server_port}"
    with Admin(name_server) as admin:
        admin.create_topic("Both", queues=2)
    with Traffic(name_server, "Both") as traffic:
        wait_until(lambda: len(traffic.sent) == 2, "both are sent to")
        wait_until(lambda: traffic.flows_since(dict.fromkeys(traffic.sent, 0)), "and read")
        daemon.process.send_signal(signal.SIGUSR2)
        wait_until(lambda: "rolling restart is done" in daemon.log, "all were restarted", ROLL_S)
        mark = traffic.mark()
        wait_until(lambda: traffic.flows_since(mark), "both are used again", ROLL_S)
    assert not traffic.failures, traffic.failures
    pulled = pull_all(name_server, "Both")
    missing = {name: sorted({*bodies} - pulled) for name, bodies in traffic.sent.items()}
    assert not any(missing.values()), f"{missing} of {traffic.mark()}\n{daemon.log}"


def test_ports_that_are_taken_are_said_all_at_once(
    serve_shards: Callable[..., Served], tmp_path: Path
) -> None:
    http_port, names_port, port = free_port(1, 2), free_port(), free_port(10)
    taken = (port + 10, http_port, http_port + 2, names_port)
    listeners = [socket.create_server(("127.0.0.1", one)) for one in taken]
    command = [*aerobee(), "serve", "--shards", "2", "--store", str(tmp_path / "store")]
    command += ["--port", str(port), "--http-port", str(http_port)]
    command += ["--nameserver-port", str(names_port), "--set", SMALL_STORE[0]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    for listener in listeners:
        listener.close()
    assert done.returncode == 3, done.stderr
    assert "4 ports are in use" in done.stderr
    for one in taken:
        assert f"127.0.0.1:{one}" in done.stderr
    assert "shard 1" in done.stderr
    assert not (tmp_path / "store").exists()
