"""A disk that becomes slow under a running daemon, and what its clients are told meanwhile
(docs/reliability.md R10).

strace is attached to the daemon and holds up each fsync and fdatasync before it is made; when it is
taken off again the disk is quick. A producer sends and waits; a bystander on a connection of its
own sends heartbeats and pulls all the while, and counts its answers. Nothing here is measured but
lower bounds: a sync of two seconds cannot have ended sooner.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.judges.history import History, Seen
from tests.crash.judges.records import records_of
from tests.crash.running.aside import Aside
from tests.crash.running.daemons import start_daemon
from tests.crash.running.link import (
    CREATE_TOPIC,
    PULL,
    SEND,
    SUCCESS,
    Link,
    pull_fields,
    send_fields,
)
from tests.crash.running.traffic import QUEUES, TOPIC, Marks, Traffic
from tests.service.kit import Served

HEART_BEAT, FLUSH_DISK_TIMEOUT = 34, 10
_ATTACH_S = 60.0
_HEARTBEAT = json.dumps(
    {"clientID": "bystander", "producerDataSet": [{"groupName": "PG"}], "consumerDataSet": []}
).encode()


@contextmanager
def slow_syncs(pid: int, delay_s: float, trace: Path) -> Iterator[None]:
    """Each sync of the process takes `delay_s` longer within the block; `trace` gets a line
    each."""
    calls = "fsync,fdatasync"
    command = [
        "strace", "-f", "-p", str(pid), "-o", str(trace), "-e", f"trace={calls}",
        "-e", f"inject={calls}:delay_enter={round(delay_s * 1_000_000)}",
    ]  # fmt: skip
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert tracer.stderr is not None
        line = tracer.stderr.readline()
        assert "attached" in line, f"strace: {line}"
        yield
    finally:
        tracer.send_signal(signal.SIGINT)
        try:
            tracer.communicate(timeout=_ATTACH_S)
        except subprocess.TimeoutExpired:
            tracer.kill()
            tracer.communicate()
            raise


def syncs_ended(trace: Path) -> int:
    """How many held-up syncs have ended so far."""
    return sum(1 for line in trace.read_text().splitlines() if ") = " in line or "resumed>" in line)


class Bystander(Aside):
    """Somebody who asks for nothing that needs the disk. `answers` counts."""

    def __init__(self, port: int, history: History) -> None:
        super().__init__()
        self.answers = 0
        self._port = port
        self._history = history

    def work(self) -> None:
        with Link(self._port) as link:
            positions = dict.fromkeys(range(QUEUES), 0)
            while not self._done.wait(0.005):
                assert link.call(HEART_BEAT, {}, _HEARTBEAT).code == SUCCESS
                queue_id = self.answers % QUEUES
                fields = pull_fields(TOPIC, queue_id, positions[queue_id], 0)
                answer = link.call(PULL, fields)
                positions[queue_id] = int(answer.ext["nextBeginOffset"])
                if answer.code == SUCCESS:
                    self._history.seen += [
                        Seen(TOPIC, queue_id, one.queue_offset, one.body)
                        for one in records_of(answer.body)
                    ]
                self.answers += 1


@dataclass
class Heard:
    """One request that needs the disk: its answer's code, how long it took, and how many rounds the
    bystander had meanwhile."""

    code: int
    took_s: float
    meanwhile: int


@dataclass
class Outcome:
    """The result of a scenario."""

    history: History
    heard: list[Heard] = field(default_factory=list)
    syncs: int = 0
    failure: BaseException | None = None


def run(
    folder: Path,
    store: Path,
    flush: str,
    delay_s: float,
    sends: int,
    *,
    control: str = "",
    topics: int = 0,
    timeout_ms: int = 5_000,
) -> Outcome:
    """Send messages one after the other, and make topics, in these numbers, on a slow disk; then on
    a quick disk one more message, and kill -9."""
    outcome = Outcome(History())
    more = {"store.sync_flush_timeout_ms": timeout_ms}
    daemon = start_daemon(folder, store, flush, control, more)
    try:
        daemon.ready()
        traffic = Traffic(outcome.history, Marks(lambda _number: None), seed=1)
        traffic.prepare(daemon.port)
        with Link(daemon.port) as link, Bystander(daemon.port, outcome.history) as bystander:
            _send(link, traffic, bystander, 0)
            trace = folder / "trace"
            with slow_syncs(daemon.process.pid, delay_s, trace):
                for number in range(sends):
                    outcome.heard.append(_send(link, traffic, bystander, number))
                for number in range(topics):
                    outcome.heard.append(_create(link, bystander, f"Slow{number}"))
                    outcome.history.topics[f"Slow{number}"] = 0
                outcome.syncs = syncs_ended(trace)
            last = _send(link, traffic, bystander, 0)
            assert last.code == SUCCESS, f"quick again, and the answer is {last.code}"
        outcome.failure = bystander.failure
        _kill(daemon)
    finally:
        daemon.close()
    return outcome


def _kill(daemon: Served) -> None:
    daemon.process.kill()
    daemon.process.wait(30)


def _send(link: Link, traffic: Traffic, bystander: Bystander, number: int) -> Heard:
    sent = traffic.make(0, number % QUEUES, 300)
    before, begun = bystander.answers, time.monotonic()
    answer = link.call(SEND, send_fields(sent.topic, sent.queue_id, sent.properties), sent.body)
    traffic.note(sent, answer)
    return Heard(answer.code, time.monotonic() - begun, bystander.answers - before)


def _create(link: Link, bystander: Bystander, topic: str) -> Heard:
    before, begun = bystander.answers, time.monotonic()
    answer = link.call(
        CREATE_TOPIC,
        {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1,
            "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
        },
    )  # fmt: skip
    return Heard(answer.code, time.monotonic() - begun, bystander.answers - before)


def judge(outcome: Outcome, *, code: int, least_s: float, meanwhile: int) -> list[str]:
    """The faults: a code that is not `code`, an answer within `least_s`, too soon for its promise
    to be true, a bystander with fewer rounds than `meanwhile` during a request."""
    wrong: list[str] = []
    if outcome.failure is not None:
        wrong.append(f"the bystander failed: {outcome.failure!r}")
    for number, one in enumerate(outcome.heard):
        if one.code != code:
            wrong.append(f"request {number} has code {one.code}, not {code}")
        if one.took_s < least_s:
            wrong.append(f"request {number} was answered after {one.took_s:.3f} s, before its sync")
        if one.meanwhile < meanwhile:
            wrong.append(f"others had {one.meanwhile} rounds during request {number}")
    return wrong
