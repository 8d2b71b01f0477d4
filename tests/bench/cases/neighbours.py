"""`make bench-neighbours`: our broker beside Redis streams and NATS JetStream, sends alone.

    python -m tests.bench.cases.neighbours [--turns 9] [--secs 1] [--warm-up 3] [--loads P2,P5]
                                     [--only redis,nats] [--dry]

Each neighbour and ours run side by side on empty stores and take turns, as in `make bench`. The
requests have the same shape: 128 B, an acknowledgement for each, four queues, streams or subjects,
written to disk by the operating system or once a second, whichever is the server's own way:

- Redis: XADD to four streams, appendonly yes, appendfsync everysec, no rewrite of its file and no
  snapshots meanwhile, since they would run in the others' turns;
- NATS: PUB with a reply subject to a JetStream stream on files with four subjects, default sync;
- ours: ASYNC_FLUSH with index, queues and long polling, JSON headers.

neighbourload.c sends to both over rmqload's loop and checks every answer. Stored messages are
counted after each turn: XLEN, and the stream's number of messages.
"""

import argparse
import json
import os
import shutil
import socket
import sys
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench import report
from tests.bench.alone import interrupts_later, measured
from tests.bench.loads import (
    CACHE,
    LOADS,
    QUEUES,
    Load,
    LoadFailed,
    StartFailed,
    build,
    calibrate,
    generate,
)
from tests.bench.servers import OurServer, running, shape
from tests.bench.turns import Rounds, TakesTurns, add_turn_options, check_turns, rounds, warm_up
from tests.interop.processes import Child, wait_until
from tests.ports import free_port

PROGRAMS = CACHE / "neighbours"
FREE_BYTES_MIN = 20 << 30
_WAIT_S = 30


class Neighbour(TakesTurns):
    """A server of another kind, as a child process with a folder of its own."""

    acked = 0

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()

    def __enter__(self) -> "Neighbour":
        self._folder.mkdir(parents=True)
        with interrupts_later():
            self._child = Child(self.command(), self._folder / "log", self.environment())
        try:
            wait_until(self._answers, _WAIT_S, f"{self.kind} answers")
        except AssertionError as error:
            self.__exit__()
            raise StartFailed(f"{error}\n{self.last_words()}") from None
        return self

    def __exit__(self, *_: object) -> None:
        with interrupts_later():
            self._child.end()
            shutil.rmtree(self._folder / "data", ignore_errors=True)

    @abstractmethod
    def command(self) -> list[str]:
        """The command that starts the server."""

    def environment(self) -> dict[str, str]:
        return {}

    @abstractmethod
    def ask(self, *words: str) -> str:
        """A request's answer. Raises ConnectionError, and LoadFailed when it is refused."""

    @abstractmethod
    def ping(self) -> bool:
        """Whether the server takes requests."""

    def pids(self) -> list[int]:
        return [self._child.process.pid]

    def last_words(self) -> str:
        return self._child.tail(2000)

    def work(self, load: Load, **size: float) -> list[dict[str, Any]]:
        words = load.words.replace("send", self.kind.lower(), 1)
        return [generate(self.port, self.topic, words, "neighbourload", **size)]

    def _answers(self) -> bool:
        try:
            return self.ping()
        except ConnectionError:
            assert self._child.running, f"{self.kind} ended at its start"
            return False


class Redis(Neighbour):
    kind = "Redis"

    def command(self) -> list[str]:
        data = self._folder / "data"
        data.mkdir()
        return [
            str(PROGRAMS / "redis" / "usr" / "bin" / "redis-server"), "--port", str(self.port),
            "--bind", "127.0.0.1", "--dir", str(data), "--save", "", "--appendonly", "yes",
            "--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0",
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        inherited = os.environ.get("LD_LIBRARY_PATH", "")
        libraries = str(PROGRAMS / "redis" / "libraries")
        return {"LD_LIBRARY_PATH": f"{libraries}:{inherited}" if inherited else libraries}

    def ping(self) -> bool:
        return self.ask("PING") == "+PONG"

    def take_up(self, load: Load) -> None:
        self.topic, self.acked = f"bench-{load.name}", 0

    def held(self) -> int:
        lengths = (self.ask("XLEN", f"{self.topic}-{queue}") for queue in range(QUEUES))
        return sum(int(length.removeprefix(":")) for length in lengths)

    def ask(self, *words: str) -> str:
        """A command's answer of one line."""
        request = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        with socket.create_connection(("127.0.0.1", self.port), _WAIT_S) as connection:
            connection.sendall(request.encode())
            answer = line_of(connection.makefile("rb"))
        if answer.startswith("-"):
            raise LoadFailed(f"Redis answers {' '.join(words)} with {answer}")
        return answer


class Nats(Neighbour):
    kind = "NATS"

    def command(self) -> list[str]:
        return [
            str(PROGRAMS / "nats-server"), "--addr", "127.0.0.1", "--port", str(self.port),
            "--jetstream", "--store_dir", str(self._folder / "data"),
        ]  # fmt: skip

    def ping(self) -> bool:
        return "memory" in self.ask("$JS.API.INFO", "")

    def take_up(self, load: Load) -> None:
        self.topic, self.acked = f"bench-{load.name}", 0
        stream = {
            "name": self.topic, "subjects": [f"{self.topic}.*"], "storage": "file",
            "retention": "limits", "discard": "new", "num_replicas": 1,
            "max_msgs": -1, "max_bytes": -1, "max_age": 0, "max_consumers": -1,
        }  # fmt: skip
        self.ask(f"$JS.API.STREAM.CREATE.{self.topic}", json.dumps(stream))

    def held(self) -> int:
        said = json.loads(self.ask(f"$JS.API.STREAM.INFO.{self.topic}", ""))
        return int(said["state"]["messages"])

    def ask(self, *words: str) -> str:
        """The JSON text that is the answer to a payload on a subject."""
        subject, payload = words
        with socket.create_connection(("127.0.0.1", self.port), _WAIT_S) as connection:
            lines = connection.makefile("rb")
            line_of(lines)  # INFO
            connection.sendall(
                b'CONNECT {"verbose":false}\r\nSUB _INBOX.ask 1\r\n'
                + f"PUB {subject} _INBOX.ask {len(payload)}\r\n{payload}\r\n".encode()
            )
            head = line_of(lines)
            while head == "PING":
                connection.sendall(b"PONG\r\n")
                head = line_of(lines)
            if not head.startswith("MSG _INBOX.ask 1 "):
                raise LoadFailed(f"NATS answers {subject} with {head}")
            answer = lines.read(int(head.rpartition(" ")[2])).decode()
        if "error" in json.loads(answer):
            raise LoadFailed(f"NATS answers {subject} with {answer}")
        return answer


def line_of(lines: Any) -> str:
    line: bytes = lines.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionError("closed by the server")
    return line[:-2].decode()


NEIGHBOURS: dict[str, type[Neighbour]] = {"redis": Redis, "nats": Nats}
HEAD = (
    "| # | load | neighbour | Aerobee, messages/s | neighbour | ratio | CPU us a message "
    "| ratio, neighbour / Aerobee | p50 us | p99 us |\n" + "|---" * 10 + "|"
)


def measure(load: Load, kind: type[Neighbour], options: argparse.Namespace, folder: Path) -> Rounds:
    ours = OurServer(folder / "our", shape("ASYNC_FLUSH"))
    with running([ours], folder), kind(folder / kind.kind) as neighbour:
        both = [ours, neighbour]
        for server in both:
            server.take_up(load)
        warm_up(both, load, options.secs, options.warm_up)
        return rounds(both, range(options.turns), load, secs=options.secs)


def row(load: Load, neighbour: str, found: Rounds) -> str:
    """The page's line of a load beside a neighbour."""
    line = next(report.load_rows(load, found))
    cells = (line.name, line.what, neighbour, line.ours, line.theirs, line.ratio)
    tail = (line.cpu_us, line.cpu_ratio, line.p50_us, line.p99_us)
    return f"| {' | '.join((*cells, *tail))} |"


def lines_of(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    """A line for each load beside each neighbour."""
    loads = [load for load in LOADS if load.name in options.loads.upper().split(",")]
    kinds = [kind for name, kind in NEIGHBOURS.items() if name in options.only.split(",")]
    for load in loads:
        for kind in kinds:
            yield row(load, kind.kind, measure(load, kind, options, folder))


def compare(options: argparse.Namespace, folder: Path) -> None:
    """Prints the table, and replaces the page's."""
    check_turns(options.turns, options.secs)
    build()
    before = calibrate()
    lines = []
    for line in lines_of(options, folder):
        lines.append(line)
        print(line, flush=True)
    heading = report.heading("make bench-neighbours", [before, calibrate()])
    text = "\n".join([heading, "", HEAD, *lines])
    if not options.dry:
        report.replace_table("neighbours", text)
    print(f"\n{text}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="neighbours", description=__doc__.partition("\n\n")[0])
    add_turn_options(parser, "each server")
    parser.add_argument("--warm-up", type=float, default=3, help="seconds for each, at least")
    parser.add_argument("--loads", default="P2,P5")
    parser.add_argument("--only", default=",".join(NEIGHBOURS))
    parser.add_argument("--dry", action="store_true", help="leave docs/benchmarks.md as it is")
    options = parser.parse_args()
    return measured("bench-neighbours", compare, options, CACHE, FREE_BYTES_MIN)


if __name__ == "__main__":
    sys.exit(main())
