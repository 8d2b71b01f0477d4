"""Peers with few rights that ask for all they can: `python few_rights.py PORT OTHER SHARE`, where
OTHER is the name server's port.

A process of its own, so that the good client of the tests does not share an interpreter with it. It
reads lines: `attack PEER PORT CODE` begins, for one code or for `all` of them, and is answered with
`ready` when the requests are made; `rest` ends that and is answered with what was done, as JSON.

Each connection plays one part against its port:

- *largest*: the largest legal requests of the code, and these padded to the limits of header and
  body, one behind the other; names in them differ each time, so that tables grow. One of two such
  connections never reads its answers.
- *beyond*: these a little above a limit, which closes most connections; the next connection comes.
- *bursts*: the smallest requests, filling one read of the broker.
- *crowd*: plain requests of many connections, each asked again when it was answered.

A peer with SUB on one group may use that group's retry topic freely, so its requests name that
topic every other time.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import resource
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[3]))

from aerobee.protocol.codes import RequestCode as Code
from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.signature import Signer
from tests.budget import largest_inputs
from tests.budget.largest_inputs import BROKER, GROUP, HEADER, NAME_SERVER, Request, consumer
from tests.fuzz.seeds import BROKER_SEEDS, NAME_SERVER_SEEDS

SECRET = "hidden-in-a-file"
#: Its rights name nothing, and one group.
NO_RIGHT, LEAST = "no-right", "sub-on-one-group"
RETRY = f"%RETRY%{GROUP}"
PORTS = {"broker": BROKER, "nameserver": NAME_SERVER}
_FRAME, _BODY, _READ = 16 << 20, 2 << 20, 256 << 10
_FULL_HEADER = 256 << 10
#: A connection that was closed is made again after this time at the earliest.
_AGAIN_S = 0.01
_TOPICS = re.compile(r"(Orders|Wide|One|Gone|T\d*)$")


class Frames:
    """Signs and encodes requests of one peer. A peer without a right says every other time not even
    who it is."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self._signer = Signer(SECRET)
        self._numbers = itertools.count()

    def __call__(self, request: Request) -> bytes:
        number = next(self._numbers)
        ext = request.ext
        if self.peer == LEAST or number % 2:
            ext = self._signer.signed(ext, request.body, self.peer)
        # Either form of a header in turn: JSON and the binary one.
        form = number // 2 % 2 if all(len(value) < 32_000 for value in ext.values()) else 0
        return Command(
            code=request.code, ext=ext, body=request.body, opaque=number, version=409,
            serialization=form,
        ).encode()  # fmt: skip


def _names(share: float, *, reaching: bool) -> Any:
    """Names of a full broker for the inputs; nothing of it is there. `reaching`: only names that
    the peer may reach."""
    size = max(2, int(18_000 * share))
    topics = [RETRY if reaching else f"T{number}" for number in range(size)]
    groups = [GROUP if reaching else f"G{number}" for number in range(size)]
    half = SimpleNamespace(queue_offset=0, log_offset=0)
    return SimpleNamespace(
        most=lambda limit: max(2, int(limit * share)), topics=topics, groups=groups,
        connections=[None] * 10, large=0, halves=[half] * 3, producers=0,
        core=SimpleNamespace(settings=SimpleNamespace(broker_name="broker-a")),
    )  # fmt: skip


@cache
def legal(port: str, code: int, peer: str, share: float) -> list[Request]:
    """The largest legal requests of a code."""
    found = _inputs(port, code, share, reaching=False)
    if peer == LEAST:
        found += _inputs(port, code, share, reaching=True)
    seeds = [Request(*one) for one in (*BROKER_SEEDS, *NAME_SERVER_SEEDS) if one.code == code]
    found += [_padded(one, share) for one in (*seeds, *map(_reaching, seeds))]
    return found


def _inputs(port: str, code: int, share: float, *, reaching: bool) -> list[Request]:
    kept = {name: getattr(largest_inputs, name) for name in ("TOPIC", "WIDE", "ONE")}
    try:
        for name in kept if reaching else ():
            setattr(largest_inputs, name, RETRY)
        lists = PORTS[port][code](_names(share, reaching=reaching))
    finally:
        for name, value in kept.items():
            setattr(largest_inputs, name, value)
    found = [one for some in lists for one in some]
    return [_reaching(one) for one in found] if reaching else found


def _reaching(request: Request) -> Request:
    """This request about names that a peer with the least right may reach."""
    ext = {
        name: RETRY if _TOPICS.match(value) and name not in ("defaultTopic", "c") else value
        for name, value in request.ext.items()
    }
    body = request.body
    if request.code == Code.HEART_BEAT and not body.startswith(b"{'"):
        body = body.replace(b'"topic": "Orders"', b'"topic": "%s"' % RETRY.encode())
    return request._replace(ext=ext, body=body)


def _padded(request: Request, share: float) -> Request:
    """With a header and a body as large as they may be; a pull waits as long as it may."""
    ext = {**request.ext, "more": "x" * int(HEADER * share)}
    if "suspendTimeoutMillis" in ext:
        ext |= {"sysFlag": "6", "suspendTimeoutMillis": "30000", "queueOffset": "0"}
    body = request.body or b" " * int((_BODY - 1_024) * share)
    return request._replace(ext=ext, body=body)


def beyond(request: Request) -> list[Request]:
    """This request a little above a limit."""
    ext, body = request.ext, request.body
    numbers = {name: str(1 << 63) for name, value in ext.items() if value.isdigit()}
    return [
        request._replace(body=body.ljust(_BODY + 1)),
        request._replace(ext={**ext, "more": "x" * (_FULL_HEADER - 100)}),
        request._replace(ext={**ext, **numbers}),
        request._replace(body=b"[" * 100_000),
        request._replace(body=body[:-1]),
    ]


_OF_BATCHES = (Code.STAGE_CHUNK, Code.STAGE_INTENT, Code.STAGE_STATUS, Code.STAGE_ABORT)
_CLIENT = re.compile(rb'"clientI[dD]": ?"[^"]*"')


def varied(request: Request, number: int) -> Request:
    """This request with other names, so that a table that keeps it keeps one entry more."""
    ext = dict(request.ext)
    others = {"clientID": f"c{number}", "clientId": f"c{number}", "stage": f"{number:032x}"}
    if request.code in _OF_BATCHES:
        others["batch"] = str(number)
    ext |= {name: value for name, value in others.items() if name in ext}
    body = request.body
    if body[:1] == b"{":
        name = b'"clientI%s":"c%d"' % (b"D" if request.code == Code.HEART_BEAT else b"d", number)
        body = _CLIENT.sub(name, body, count=1)
        body = body.replace(b'"groupName":"P', b'"groupName":"P%d-' % number)
        body = body.replace(b'"topic":"T"', b'"topic":"T%d"' % number)
    return request._replace(ext=ext, body=body)


# --- parts ----------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A code at a port."""

    port: str
    code: int


Chosen = Callable[[], Case]


def _largest(choose: Chosen, frames: Frames, share: float) -> Iterator[bytes]:
    for number in itertools.count(random.randrange(1 << 40)):
        requests = legal(*choose(), frames.peer, share)
        yield frames(varied(requests[number % len(requests)], number))


def _beyond(choose: Chosen, frames: Frames, share: float) -> Iterator[bytes]:
    while True:
        some = beyond(random.choice(legal(*choose(), frames.peer, min(share, 0.1))))
        yield frames(random.choice(some))
        # A frame that is announced with more than there may be.
        if random.random() < 0.1:
            yield (_FRAME + 1).to_bytes(4, "big") + bytes(100)


def _bursts(choose: Chosen, frames: Frames, _share: float) -> Iterator[bytes]:
    while True:
        one = frames(Request(choose().code, {}))
        yield one * max(1, _READ // len(one))


def _crowd(choose: Chosen, frames: Frames, _share: float) -> Iterator[bytes]:
    while True:
        _, code = choose()
        for one in (*BROKER_SEEDS, *NAME_SERVER_SEEDS):
            if one.code == code:
                request = varied(Request(*one), random.randrange(1 << 40))
                yield frames(_reaching(request) if random.random() < 0.5 else request)
        yield frames(Request(Code.HEART_BEAT, {}, _joins()))


def _joins() -> bytes:
    """A heartbeat of the group that a peer with the least right may join."""
    body = {"clientID": f"m{random.randrange(1 << 20)}", "consumerDataSet": [consumer(GROUP, [])]}
    return json.dumps({**body, "producerDataSet": []}).encode()


class Part(NamedTuple):
    """How many connections play it, of a whole attack."""

    source: Callable[[Chosen, Frames, float], Iterator[bytes]]
    count: int
    reads: bool = True
    #: One request at a time.
    waits: bool = False


PARTS = {
    "largest": Part(_largest, 2),
    "unread": Part(_largest, 2, reads=False),
    "beyond": Part(_beyond, 2),
    "bursts": Part(_bursts, 4),
    "crowd": Part(_crowd, 100, waits=True),
}


class Player:
    """One connection of a part, made again when it was closed."""

    def __init__(
        self, port: int, part: Part, source: Iterator[bytes], done: dict[str, int]
    ) -> None:
        self.part = part
        self.again = 0.0
        self.socket: socket.socket | None = None
        self._port = port
        self._source = source
        self._rest = memoryview(b"")
        self._done = done

    def connect(self) -> bool:
        peer = socket.socket()
        peer.bind(("127.0.0.2", 0))
        peer.settimeout(1)
        try:
            peer.connect(("127.0.0.1", self._port))
        except OSError:
            peer.close()
            return False
        peer.setblocking(False)
        self.socket, self._rest = peer, memoryview(b"")
        self._done["connections"] += 1
        return True

    def send(self) -> bool:
        """Some bytes more; whether there are more of the same request."""
        assert self.socket is not None
        if not self._rest:
            self._rest = memoryview(next(self._source))
            self._done["requests"] += 1
        with suppress(BlockingIOError):
            count = self.socket.send(self._rest)
            self._rest = self._rest[count:]
            self._done["bytes"] += count
        return bool(self._rest)

    def receive(self) -> bool:
        """Whether the connection is still there."""
        assert self.socket is not None
        with suppress(BlockingIOError):
            data = self.socket.recv(1 << 18)
            self._done["read"] += len(data)
            return bool(data)
        return True


class Attack(threading.Thread):
    """All parts against one code or many, until `over` is set."""

    def __init__(self, ports: dict[str, int], cases: list[Case], peer: str, share: float) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.done = {"connections": 0, "requests": 0, "bytes": 0, "read": 0}
        self._selector = selectors.DefaultSelector()
        self._absent: list[Player] = []
        frames = Frames(peer)
        for case in cases:
            legal(*case, peer, share)
            legal(*case, peer, min(share, 0.1))
        for name, port in ports.items():
            own = [case for case in cases if case.port == name]
            if own:
                part_of = len(own) / len(cases)
                self._absent += list(self._players(port, own, frames, share, part_of))

    def _players(
        self, port: int, cases: list[Case], frames: Frames, share: float, part_of: float
    ) -> Iterator[Player]:
        def choose() -> Case:
            return random.choice(cases)

        for part in PARTS.values():
            for _ in range(max(1, round(part.count * share * part_of))):
                yield Player(port, part, part.source(choose, frames, share), self.done)

    def run(self) -> None:
        while not self.over.is_set():
            self._join()
            for key, events in self._selector.select(_AGAIN_S):
                try:
                    self._turn(key.data, events)
                except OSError:
                    self._leave(key.data)
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]

    def _join(self) -> None:
        now = time.monotonic()
        absent, self._absent = self._absent, []
        for one in absent:
            if one.again > now or not one.connect():
                self._absent.append(one)
            else:
                assert one.socket is not None
                self._selector.register(one.socket, selectors.EVENT_WRITE, one)

    def _turn(self, one: Player, events: int) -> None:
        both = selectors.EVENT_WRITE | selectors.EVENT_READ
        if events & selectors.EVENT_WRITE:
            more = one.send()
            if one.part.waits and not more:
                self._wants(one, selectors.EVENT_READ)
            elif one.part.reads:
                self._wants(one, both)
        if events & selectors.EVENT_READ:
            if not one.receive():
                raise ConnectionError
            if one.part.waits:
                self._wants(one, selectors.EVENT_WRITE)

    def _wants(self, one: Player, events: int) -> None:
        assert one.socket is not None
        if self._selector.get_key(one.socket).events != events:
            self._selector.modify(one.socket, events, one)

    def _leave(self, one: Player) -> None:
        assert one.socket is not None
        self._selector.unregister(one.socket)
        one.socket.close()
        one.again = time.monotonic() + _AGAIN_S
        self._absent.append(one)


def main() -> None:
    ports = {"broker": int(sys.argv[1]), "nameserver": int(sys.argv[2])}
    share = float(sys.argv[3])
    os.nice(5)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    attack: Attack | None = None
    for line in sys.stdin:
        word, *more = line.split()
        if word == "attack":
            peer, port, code = more
            every = [Case(name, int(one)) for name, table in PORTS.items() for one in table]
            cases = every if code == "all" else [Case(port, int(code))]
            attack = Attack(ports, cases, peer, share)
            attack.start()
            print("ready", flush=True)
        elif attack is not None:
            attack.over.set()
            attack.join(10)
            print(json.dumps(attack.done), flush=True)


if __name__ == "__main__":
    main()
