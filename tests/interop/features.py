"""Clients of Java in one process, led from a test: see java/features/Features.java.

A `Side` is a broker with the process whose clients use it; clients are named by their tests and end
with them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.interop.brokers import Broker
from tests.interop.kit import CACHE, HOME
from tests.interop.peers import JAVA_FLAGS
from tests.interop.processes import Child, Line

_ANSWER_S = 90  # two busy cores


class Features(Child):
    """The process; it is told what to do, and says what came of it, in any order."""

    def __init__(self, version: str, log: Path) -> None:
        jars = f"{CACHE}/java/client-{version}/*:{CACHE}/java/features-{version}"
        flags = (
            f"-Drocketmq.client.localOffsetStoreDir={log.parent / log.stem}-offsets",
            "-Drocketmq.client.rebalance.waitInterval=500",
            "-Dcom.rocketmq.remoting.client.connect.timeout=30000",
        )
        argv = ["java", *JAVA_FLAGS, *flags, "-cp", jars, "Features"]
        super().__init__(argv, log, {"HOME": str(HOME)}, stdin=True, lines=True)
        self.version = version
        self._numbers = itertools.count(1)
        self._writing = threading.Lock()

    def wait_ready(self) -> None:
        self.wait_lines(lambda lines: len(lines) > 0, _ANSWER_S)

    def begin(self, client: str, word: str, options: dict[str, object]) -> int:
        """Has it done; the number is for `ended`."""
        number = next(self._numbers)
        words = [str(number), client, word]
        for name, value in options.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        assert not any(set(word) & set("\t\n") for word in words)
        assert self.process.stdin is not None
        with self._writing:
            self.process.stdin.write("\t".join(words).encode() + b"\n")
            self.process.stdin.flush()
        return number

    def ended(self, number: int) -> Line:
        """The line that says how it ended."""
        return self._wait(lambda line: line.get("did") == number, 1)[0]

    def wait_events(self, client: str, what: str, count: int) -> list[Line]:
        """A client's events of a kind, once there are `count`."""
        return self._wait(lambda line: _is_event(line, client, what), count)

    def events(self, client: str, what: str) -> list[Line]:
        """The events that have come."""
        return [line for line in list(self.lines) if _is_event(line, client, what)]

    def _wait(self, wanted: Callable[[Line], bool], count: int) -> list[Line]:
        def enough(lines: list[Line]) -> bool:
            return sum(map(wanted, lines)) >= count

        return [line for line in self.wait_lines(enough, _ANSWER_S) if wanted(line)]


def _is_event(line: Line, client: str, what: str) -> bool:
    return line.get("event") == what and line.get("client") == client


@dataclass(frozen=True, slots=True)
class Client:
    """One client of a process."""

    java: Features
    name: str

    def begin(self, word: str, **options: object) -> int:
        return self.java.begin(self.name, word, options)

    def ended(self, number: int) -> Line:
        return self.java.ended(number)

    def ask(self, word: str, **options: object) -> Line:
        """Has it done; the answer may be an error."""
        return self.ended(self.begin(word, **options))

    def do(self, word: str, **options: object) -> Line:
        """Has it done; an error fails the test."""
        answer = self.ask(word, **options)
        assert "error" not in answer, f"{self.name} {word} {options}: {answer}\n{self.java.tail()}"
        return answer

    def messages(self, count: int) -> list[Line]:
        """The messages that a consumer got, once there are `count`; in the order of their
        coming."""
        return [line["message"] for line in self.java.wait_events(self.name, "message", count)]


@dataclass(slots=True)
class Side:
    """One broker, and one process with clients for it."""

    broker: Broker
    java: Features
    victim: Features  # another process, for a test to kill
    clients: list[Client] = field(default_factory=list)

    @property
    def is_java(self) -> bool:
        return self.broker.kind == "Java"

    def topic(self, name: str, queues: int = 2) -> str:
        return self.broker.create_topic(self.named(name), queues)

    def named(self, name: str) -> str:
        """For what two versions of a client may both want to have for themselves."""
        return f"{name}-{self.java.version.replace('.', '_')}"

    def make(self, kind: str, name: str, **options: object) -> Client:
        """A producer, consumer or puller, by its group's name unless that is among the options."""
        client, number = self.begin(kind, name, **options)
        answer = client.ended(number)
        assert "error" not in answer, f"{name}: {answer}\n{self.java.tail()}"
        return client

    def begin(self, kind: str, name: str, **options: object) -> tuple[Client, int]:
        """Does as `make`, and returns also the number by which to wait for it."""
        client = Client(self.java, f"{self.broker.kind}-{self.named(name)}")
        options = {"namesrv": self.broker.name_server, "group": self.named(name), **options}
        self.clients.append(client)
        return client, client.begin(kind, **options)

    def close(self) -> None:
        """End the clients that were made since the last time."""
        for client, number in [(client, client.begin("close")) for client in self.clients]:
            client.ended(number)
        self.clients.clear()
