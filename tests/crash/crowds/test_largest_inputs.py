"""The largest input of each request code against a daemon that is full, beside a good client.

`tests/budget/test_budget.py` counts what a turn of the loop does; this measures what others have
of it: the worst send of a client of a hundred messages a second, the worst `/live`, the daemon's
memory. The times are shown at the end of a campaign, not asserted: the goals are 100 ms more than
without, and 200 ms; the memory is, against the sum of docs/limits.md.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from aerobee.config.bounds.memory import worst_cases
from aerobee.config.model import Settings
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.frame import MAX_ANSWER_BYTES
from tests import campaign
from tests.budget.largest_inputs import BROKER, NAME_SERVER, SETTINGS, Full, Inputs, Request, frames
from tests.crash.running.link import SEND, Link, send_fields
from tests.fuzz.target import Target
from tests.service.kit import Served, wait_until

_SUITE = "largest inputs"
_SEND_GOAL_MS, _LIVE_GOAL_MS = 100, 200
_RATE = 100
_OTHERS = 64
#: The layout of a store that a daemon takes over from a target of the tests.
_LAYOUT = {
    # The largest batch has 190,000 messages without a byte, which are 25 MB of records.
    "store.commit_log_segment_bytes": 1 << 25,
    # There are a thousand queues; the largest batch fills seven files of a queue.
    "store.consume_queue_segment_bytes": 600_000,
    "store.index_slots": 5_000,
    "store.index_entries": 20_000,
}


def share() -> float:
    """The share of all limits that the inputs fill."""
    return 1.0 if campaign.is_full() else 1 / 16


class Seen(NamedTuple):
    """The waits of others during one input, in milliseconds, and the requests made."""

    send_ms: float
    live_ms: float
    asked: int


async def _fill(folder: Path) -> Full:
    """Make a store of a full broker in `folder`; return its names."""
    settings: dict[str, Any] = {name: int(limit * share()) for name, limit in SETTINGS.items()}
    for name in ("commit_log_segment_bytes", "consume_queue_segment_bytes"):
        settings[name] = _LAYOUT[f"store.{name}"]
    async with Target(folder, **settings) as target:
        full = Full(target, target._daemon.core, target._name_server, share())
        await full.fill()
        return full


@contextmanager
def _members(full: Full, port: int) -> Iterator[None]:
    """The groups' members, in a process of their own, as long as the block."""
    program = [sys.executable, str(Path(__file__).with_name("full_members.py"))]
    sizes = (len(full.connections), len(full.groups), full.producers, full.most(MAX_ANSWER_BYTES))
    members = subprocess.Popen(
        [*program, str(port), *map(str, sizes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert members.stdout is not None
        assert members.stdout.readline() == b"ready\n", "the members did not join"
        yield
        assert members.poll() is None, "the members have left"
    finally:
        members.communicate(timeout=60)


@contextmanager
def _repeated(work: Callable[[], None], every_s: float = 0.0) -> Iterator[list[float]]:
    """`work` again and again within the block, on a thread; how many milliseconds each took."""
    took_ms: list[float] = []
    failed: list[BaseException] = []
    over = threading.Event()

    def run() -> None:
        try:
            while not over.wait(every_s if took_ms else 0.0):
                began = time.monotonic()
                work()
                took_ms.append((time.monotonic() - began) * 1_000)
        except BaseException as error:  # noqa: BLE001 - raised at the block's end
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield took_ms
    finally:
        over.set()
        thread.join()
    if failed:
        raise failed[0]


class Asking:
    """Sends requests and takes their answers, and what it is notified of between them. The first
    time each answer is looked at: a refusal would be measured as if it were the largest input."""

    def __init__(self, peer: socket.socket, requests: list[Request]) -> None:
        self._peer = peer
        self._stream = peer.makefile("rb", buffering=1 << 16)
        self._requests = requests
        self._data = frames(requests)
        self._judged = False

    def __call__(self) -> None:
        self._peer.sendall(self._data)
        answers = 0
        while answers < len(self._requests):
            size = int.from_bytes(self._stream.read(4), "big")
            assert size > 0, "the connection was closed"
            length = int.from_bytes(self._stream.read(4)[1:], "big")
            head = json.loads(self._stream.read(length))
            left = size - 4 - length
            while left:
                left -= len(self._stream.read(min(left, 1 << 20)))
            if head["flag"] & 1:
                answers += 1
                asked = self._requests[head["opaque"]]
                refused = (asked.code, head["code"], head.get("remark"))
                assert self._judged or head["code"] == asked.answer, refused
        self._judged = True


def _watched(daemon: Served, window_s: float, asks: Callable[[], None] | None) -> Seen:
    """The waits of a good client and a probe while `asks` goes on."""

    def live() -> None:
        assert daemon.get("/live")[0] == 200

    with Link(daemon.port) as link:
        fields = send_fields("Good", 0, {"KEYS": "k"})

        def send() -> None:
            link.call(SEND, fields, b"good")

        with _repeated(send, 1 / _RATE) as sends, _repeated(live, 0.02) as probes:
            if asks is None:
                time.sleep(window_s)
                asked: list[float] = []
            else:
                with _repeated(asks) as asked:
                    time.sleep(window_s)
    return Seen(max(sends), max(probes), len(asked))


class Rounds(NamedTuple):
    """How often each input is asked, and for how long each time."""

    count: int
    window_s: float


def _worst(daemon: Served, port: int, requests: list[Request], rounds: Rounds) -> Seen:
    """The medians of one input, asked by a client of its own each time."""
    seen: list[Seen] = []
    for _ in range(rounds.count):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
            seen.append(_watched(daemon, rounds.window_s, Asking(peer, requests)))
    return _medians(seen)


def _medians(seen: list[Seen]) -> Seen:
    return Seen(
        statistics.median(one.send_ms for one in seen),
        statistics.median(one.live_ms for one in seen),
        sum(one.asked for one in seen),
    )


def _provide(daemon: Served, full: Full, codes: frozenset[int]) -> None:
    """Provide what some of the codes ask for, in any order of the codes: a value of the name
    server's table, and statistics of a topic, which are taken every ten seconds."""
    value = NAME_SERVER[RequestCode.PUT_KV_CONFIG](full)[-1]
    with socket.create_connection(("127.0.0.1", daemon.name_server_port), timeout=60) as peer:
        Asking(peer, value)()
    if RequestCode.VIEW_BROKER_STATS_DATA in codes:
        (asked,) = BROKER[RequestCode.VIEW_BROKER_STATS_DATA](full)[0]
        with Link(daemon.port) as link:
            assert link.call(SEND, send_fields(asked.ext["statsKey"], 0, {}), b"counted").code == 0
            wait_until(lambda: not link.call(asked.code, asked.ext).code, "there are statistics")


def _seen_of(
    daemon: Served, full: Full, port: str, inputs: Inputs, rounds: Rounds
) -> tuple[Seen, int]:
    """The worst of a code's inputs, and the bytes held then."""
    if port == "broker":
        seen = [_worst(daemon, daemon.port, one, rounds) for one in inputs(full)]
    else:
        registered = NAME_SERVER[RequestCode.REGISTER_BROKER](full)[-1]
        at = daemon.name_server_port
        with socket.create_connection(("127.0.0.1", at), timeout=60) as other:
            # Its topics exist while it is connected and not silent for two minutes.
            Asking(other, registered)()
            seen = [_worst(daemon, at, one, rounds) for one in inputs(full)]
    worst = Seen(
        max(one.send_ms for one in seen),
        max(one.live_ms for one in seen),
        sum(one.asked for one in seen),
    )
    return worst, _held_bytes(daemon)


def test_the_largest_input_of_each_code_beside_a_good_client(
    folder: Path, record_property: Callable[[str, object], None]
) -> None:
    full = asyncio.run(_fill(folder))
    store = folder / "taken over"
    shutil.copytree(folder / "store", store)
    tables = (("broker", BROKER), ("name server", NAME_SERVER))
    cases = [(port, code, inputs) for port, table in tables for code, inputs in table.items()]
    rounds = Rounds(5, 0.6) if campaign.is_full() else Rounds(1, 0.4)
    settings = {
        **_LAYOUT,
        "broker.name": full.core.settings.broker_name,
        "admin.remote_config": "true",
        # The connections of the members, and of the measured client.
        "limits.connections": len(full.connections) + _OTHERS,
        "limits.client_bytes": 128 << 20,
    }
    sets = [text for key, value in settings.items() for text in ("--set", f"{key}={value}")]
    daemon = Served(folder / "daemon", *sets, store=store)
    try:
        daemon.ready()
        with Link(daemon.port) as link:
            link.create_topic("Good", 4)
        with _members(full, daemon.port):
            alone = _medians([_watched(daemon, rounds.window_s, None) for _ in range(rounds.count)])
            record_property(
                "measured",
                f"the worst of a good client alone: send {alone.send_ms:.0f} ms, "
                f"/live {alone.live_ms:.0f} ms",
            )
            asked = most = 0
            drawn = campaign.draw(_SUITE, cases)
            _provide(daemon, full, frozenset(code for _, code, _ in drawn))
            for port, code, inputs in drawn:
                seen, held = _seen_of(daemon, full, port, inputs, rounds)
                asked += seen.asked
                most = max(most, held)
                record_property(
                    "measured",
                    f"{port} code {int(code)}: worst send {seen.send_ms:.0f} ms, "
                    f"/live {seen.live_ms:.0f} ms, held {held / 2**20:.0f} MiB",
                )
                campaign.note(
                    _SUITE,
                    1,
                    sends_beyond_the_goal=int(seen.send_ms > alone.send_ms + _SEND_GOAL_MS),
                    probes_beyond_the_goal=int(seen.live_ms > _LIVE_GOAL_MS),
                )
        assert asked
        assert most <= sum(one.bytes for one in worst_cases(Settings()))
        assert daemon.process.poll() is None
    finally:
        daemon.close()


def test_a_daemon_that_stands_still_is_seen(folder: Path) -> None:
    daemon = Served(folder / "daemon")
    try:
        daemon.ready()
        with Link(daemon.port) as link:
            link.create_topic("Good", 4)

        def stand() -> None:
            daemon.process.send_signal(signal.SIGSTOP)
            time.sleep(0.3)
            daemon.process.send_signal(signal.SIGCONT)
            time.sleep(0.1)

        seen = _watched(daemon, 1.0, stand)
        caught = seen.send_ms > _SEND_GOAL_MS and seen.live_ms > _LIVE_GOAL_MS
        campaign.note_control(_SUITE, "a daemon that stands still", int(caught), 1)
        assert caught, seen
    finally:
        daemon.process.send_signal(signal.SIGCONT)
        daemon.close()


def _held_bytes(daemon: Served) -> int:
    """Resident memory without the pages of files, which the kernel takes back when it has to."""
    for line in Path(f"/proc/{daemon.process.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")
