"""A process of the generator: `python -m aerobee.cli.bench.generator.worker open|closed`.

It reads JSON objects from standard input, one a line. Each names a step, and is answered with an
object on standard output; `fleet.py` is at the other end. The process ends when its input ends, so
that no worker is left over. Steps: `load` makes the connections, `start` begins, `report` gives the
counts since the last report, `pause` and `resume` are for readers, `end` begins no new requests and
waits for the answers (consumers go on), `close` closes the connections.
"""

import asyncio
import resource
import select
import selectors
import sys
import time
from typing import Any, Final

import msgspec

from aerobee.cli.bench.counts import Counts
from aerobee.cli.bench.generator.load import (
    Load,
    LoadSettings,
    PullLoad,
    ReaderSpec,
    Schedule,
    Sender,
    SenderSpec,
)
from aerobee.cli.bench.generator.request_frames import Keys, MessageValues, Payload
from aerobee.cli.bench.generator.security import PLAIN, Security
from aerobee.client.errors import CallerError
from aerobee.client.loop_thread import new_loop
from aerobee.client.options import local_ip
from aerobee.client.producing.sender import make_unique_ids

#: The longest line that either end takes: a load of many queues, a report of many latencies.
LINE_BYTES: Final = 64 * 1024 * 1024
_SWEEP_S: Final = 0.1
_END_POLL_S: Final = 0.01
_CONNECT_AT_ONCE: Final = 64


class WorkerSpec(msgspec.Struct, frozen=True):
    """The work of one process."""

    settings: LoadSettings
    payload: Payload
    senders: list[SenderSpec]
    readers: list[ReaderSpec]
    security: Security = PLAIN


if sys.platform == "linux":

    class _FineSelector(selectors.EpollSelector):
        """Waits to the microsecond. epoll alone waits to the millisecond, and requests of an open
        loop would leave half a millisecond late on average."""

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is not None and 0 < timeout < 0.01:
                select.select([self.fileno()], (), (), timeout)
                timeout = 0
            return super().select(timeout)
else:
    _FineSelector = selectors.DefaultSelector


class Worker:
    """The connections of one process, and what they count."""

    def __init__(self) -> None:
        self._counts = Counts()
        self._settings: LoadSettings | None = None
        self._loads: list[tuple[Load, SenderSpec | ReaderSpec]] = []
        self._reported_ns = time.monotonic_ns()
        self._reported_cpu_s = time.process_time()

    async def do(self, message: dict[str, Any]) -> dict[str, Any]:
        """Do a step; returns its answer."""
        match message["do"]:
            case "load":
                return await self._load(msgspec.convert(message["spec"], WorkerSpec))
            case "start":
                self._start(message["at_ns"])
            case "report":
                return self._report()
            case "pause" | "resume":
                for reader in self._readers():
                    reader.pause() if message["do"] == "pause" else reader.resume()
            case "end":
                await self._end(message["within_s"])
            case "close":
                for load, _ in self._loads:
                    load.close()
        return {}

    async def sweep(self) -> None:
        """Give up requests that nobody answered, again and again, until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            for load, _ in self._loads:
                load.sweep()

    async def _load(self, spec: WorkerSpec) -> dict[str, Any]:
        self._settings = spec.settings
        if failed := _room_for(len(spec.senders) + len(spec.readers)):
            return {"failed": failed}
        try:
            bodies = spec.payload.bodies(spec.settings.seed)
        except OSError as error:
            return {"failed": f"{spec.payload.file} cannot be read: {error.strerror}"}
        try:
            # Made once: all connections of the process have the same key and trust the same
            # certificates.
            secured = spec.security.secured()
        except CallerError as error:
            return {"failed": str(error)}
        for sender in spec.senders:
            made = Sender(
                spec=sender,
                settings=spec.settings,
                bodies=bodies,
                values=_values(spec.settings, sender.address, sender.number),
                counts=self._counts,
                secured=secured,
            )
            self._loads.append((made, sender))
        for reader in spec.readers:
            self._loads.append((PullLoad(reader, spec.settings, self._counts, secured), reader))
        return {"failed": await self._connect()}

    async def _connect(self) -> str:
        """Make all connections; returns why a connection could not be made, or ""."""
        turns = asyncio.Semaphore(_CONNECT_AT_ONCE)

        async def connect(load: Load) -> str:
            async with turns:
                return await load.connect()

        failures = await asyncio.gather(*(connect(load) for load, _ in self._loads))
        return next((f"cannot connect to {text}" for text in failures if text), "")

    def _start(self, at_ns: int) -> None:
        assert self._settings is not None
        rate = self._settings.rate
        # A closed loop begins now, an open loop when its first request is due.
        self._reported_ns = time.monotonic_ns() if rate is None else at_ns
        self._reported_cpu_s = time.process_time()
        for load, one in self._loads:
            schedule = None
            if rate is not None and not _follows(one):
                schedule = Schedule(rate, one.number, one.connections, at_ns)
            load.begin(schedule)

    def _report(self) -> dict[str, Any]:
        now_ns, cpu_s = time.monotonic_ns(), time.process_time()
        elapsed_s = (now_ns - self._reported_ns) / 1e9
        answer = {
            "counts": self._counts,
            "elapsed_s": elapsed_s,
            "cpu_s": cpu_s - self._reported_cpu_s,
            "unanswered": sum(load.unanswered for load, _ in self._loads),
        }
        fresh = Counts()
        self._counts = fresh
        for load, _ in self._loads:
            load.counts = fresh
        self._reported_ns, self._reported_cpu_s = now_ns, cpu_s
        return answer

    async def _end(self, within_s: float) -> None:
        """Send nothing more, and wait for the answers that are still to come."""
        ending = [load for load, one in self._loads if not _follows(one)]
        for load in ending:
            load.end()
        until_s = time.monotonic() + within_s
        while True:
            if time.monotonic() > until_s or not any(load.unanswered for load in ending):
                return
            await asyncio.sleep(_END_POLL_S)

    def _readers(self) -> list[PullLoad]:
        return [load for load, _ in self._loads if isinstance(load, PullLoad)]


def _follows(spec: SenderSpec | ReaderSpec) -> bool:
    return isinstance(spec, ReaderSpec) and spec.follows


def _values(settings: LoadSettings, address: str, number: int) -> MessageValues:
    ip = local_ip(address)
    # An id made from an IPv6 address is longer, and a template has room for one length only.
    ids = make_unique_ids("0.0.0.0" if ":" in ip else ip)
    keys = Keys(shuffled=settings.shuffled_keys, seed=settings.seed + number)
    return MessageValues(ids.next_id, keys.next)


def _room_for(connections: int) -> str:
    """Raise the limit of open files as far as the connections need; returns why that cannot be
    done, or ""."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 64
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            return (
                f"{connections} connections of one process are more than its limit of {hard} open "
                "files allows: give more --processes, or raise ulimit -n"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return ""


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    worker = Worker()
    async with asyncio.TaskGroup() as group:
        sweeping = group.create_task(worker.sweep())
        while line := await reader.readline():
            answer = await worker.do(msgspec.json.decode(line))
            sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
            sys.stdout.buffer.flush()
        sweeping.cancel()


def _fine_loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(_FineSelector())


def main() -> None:
    """Serve until the input ends."""
    factory = _fine_loop if sys.argv[1] == "open" else new_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_serve())


if __name__ == "__main__":
    main()
