"""The largest input of each request code against a daemon that is full, beside a good client.

`tests/contract/test_budget.py` counts what a turn of the loop does; this measures what others have
of it: the worst send of a client of a hundred messages a second, the worst `/live`, the daemon's
memory. The times are printed, not asserted: the goals are 100 ms more than without, and 200 ms; the
memory is, against the sum of docs/limits.md.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from aerobee.config.memory import worst_cases
from aerobee.config.model import Settings
from tests import campaign
from tests.contract.largest_inputs import BROKER, NAME_SERVER, SETTINGS, Full, frames
from tests.crash.link import SEND, Link, send_fields
from tests.fuzz.target import Target
from tests.service.kit import Served

_SUITE = "largest inputs"
_SEND_GOAL_MS, _LIVE_GOAL_MS = 100, 200
_RATE = 100
#: Of a store that a daemon takes over from a target of the tests.
_LAYOUT = {
    "store.commit_log_segment_bytes": 1 << 24,
    "store.consume_queue_segment_bytes": 60_000,
    "store.index_slots": 5_000,
    "store.index_entries": 20_000,
}


def share() -> float:
    """Of all limits."""
    return 1.0 if campaign.is_full() else 1 / 16


class Seen(NamedTuple):
    """What others had of one input, in milliseconds, and what was done."""

    send_ms: float
    live_ms: float
    asked: int


async def _fill(folder: Path) -> Full:
    """A store of a full broker in `folder`; what is returned has its names."""
    settings: dict[str, Any] = {name: int(limit * share()) for name, limit in SETTINGS.items()}
    settings["commit_log_segment_bytes"] = _LAYOUT["store.commit_log_segment_bytes"]
    async with Target(folder, **settings) as target:
        full = Full(target, target._daemon.core, target._name_server, share())
        await full.fill()
        return full


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


def _asking(peer: socket.socket, data: bytes, answers: int) -> None:
    """Send the requests and take as many answers; notifications among them count as such."""
    peer.sendall(data)
    with peer.makefile("rb", buffering=1 << 16) as stream:
        for _ in range(answers):
            size = int.from_bytes(stream.read(4), "big")
            assert size > 0, "the connection was closed"
            left = size
            while left:
                left -= len(stream.read(min(left, 1 << 20)))


def _watched(daemon: Served, window_s: float, asks: Callable[[], None] | None) -> Seen:
    """What a good client and a probe see while `asks` goes on."""

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


def test_the_largest_input_of_each_code_beside_a_good_client(folder: Path) -> None:
    full = asyncio.run(_fill(folder))
    store = folder / "taken over"
    shutil.copytree(folder / "store", store)
    tables = (("broker", BROKER), ("name server", NAME_SERVER))
    cases = [(port, code, inputs) for port, table in tables for code, inputs in table.items()]
    rounds, window_s = (5, 0.6) if campaign.is_full() else (1, 0.4)
    sets = [text for key, value in _LAYOUT.items() for text in ("--set", f"{key}={value}")]
    daemon = Served(folder / "daemon", *sets, store=store)
    try:
        daemon.ready()
        with Link(daemon.port) as link:
            link.create_topic("Good", 4)
        alone = _watched(daemon, window_s, None)
        print(f"alone: {alone}")
        asked = held = 0
        for port, code, inputs in campaign.draw(_SUITE, cases):
            seen: list[Seen] = []
            largest = inputs(full)
            for _ in range(rounds):
                for requests in largest:
                    with socket.create_connection(
                        ("127.0.0.1", daemon.port if port == "broker" else daemon.name_server_port),
                        timeout=60,
                    ) as peer:
                        asks = partial(_asking, peer, frames(requests), len(requests))
                        seen.append(_watched(daemon, window_s, asks))
            send_ms = statistics.median(one.send_ms for one in seen)
            live_ms = statistics.median(one.live_ms for one in seen)
            held = max(held, _held_bytes(daemon))
            asked += sum(one.asked for one in seen)
            print(
                f"{port} code {int(code)}: worst send {send_ms:.0f} ms, /live {live_ms:.0f} ms, "
                f"held {_held_bytes(daemon) / 2**20:.0f} MiB"
            )
            campaign.note(
                _SUITE,
                1,
                sends_beyond_the_goal=int(send_ms > alone.send_ms + _SEND_GOAL_MS),
                probes_beyond_the_goal=int(live_ms > _LIVE_GOAL_MS),
            )
        assert asked
        assert held <= sum(one.bytes for one in worst_cases(Settings()))
        assert daemon.process.poll() is None
    finally:
        daemon.close()


def _held_bytes(daemon: Served) -> int:
    """Resident memory without the pages of files, which the kernel takes back when it has to."""
    for line in Path(f"/proc/{daemon.process.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")
