"""Starts the processes of the generator, and deals the work out to them.

A Python process keeps one core busy, so several processes make more load, as far as there are
cores. This process leads them by lines of JSON (`worker.py`), which also bring the keys that
requests are signed with. Each process has a session of its own: Ctrl-C reaches this process alone,
and it ends the others in order.
"""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any, Final, Self

import msgspec

from aerobee.cli.bench.bench_plan import BenchPlan
from aerobee.cli.bench.bench_topics import BenchTopic
from aerobee.cli.bench.generator.load import ReaderSpec, SenderSpec
from aerobee.cli.bench.generator.worker import LINE_BYTES, WorkerSpec
from aerobee.cli.printing.output import CANNOT_CONNECT, CommandFailed
from aerobee.protocol.bodies.common import MessageQueue

_START_S: Final = 60.0
_ANSWER_S: Final = 60.0
_CLOSE_S: Final = 5.0


class Fleet:
    """Running processes. A context manager; leaving it ends them."""

    def __init__(self, *, open_loop: bool) -> None:
        self._kind = "open" if open_loop else "closed"
        self._processes: list[asyncio.subprocess.Process] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in self._processes:
            try:
                await asyncio.wait_for(process.wait(), _CLOSE_S)
            except TimeoutError:
                process.kill()
                await process.wait()

    async def launch(self, specs: Sequence[WorkerSpec]) -> None:
        """Start a process for each spec, and have it make its connections. Raises CommandFailed if
        a process cannot."""
        for _ in specs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "aerobee.cli.bench.generator.worker", self._kind),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LINE_BYTES,
                start_new_session=True,
            )
            self._processes.append(process)
        messages = [{"do": "load", "spec": msgspec.to_builtins(spec)} for spec in specs]
        for answer in await self._ask(messages, _START_S):
            if answer["failed"]:
                raise CommandFailed(answer["failed"], CANNOT_CONNECT)

    async def tell(self, do: str, **more: Any) -> list[dict[str, Any]]:
        """Have every process do a step; returns their answers in order."""
        wait_s = _ANSWER_S + float(more.get("within_s", 0))
        return await self._ask([{"do": do, **more}] * len(self._processes), wait_s)

    async def _ask(self, messages: Sequence[dict[str, Any]], wait_s: float) -> list[dict[str, Any]]:
        try:
            async with asyncio.timeout(wait_s):
                return await asyncio.gather(
                    *(
                        _exchange(process, message)
                        for process, message in zip(self._processes, messages, strict=True)
                    )
                )
        except TimeoutError:
            raise CommandFailed(
                f"a process of the generator did not answer in {wait_s:g} s: give less load"
            ) from None


async def _exchange(process: asyncio.subprocess.Process, message: dict[str, Any]) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(msgspec.json.encode(message) + b"\n")
        await process.stdin.drain()
        line = await process.stdout.readline()
    except ConnectionError:
        line = b""
    if not line:
        code = await process.wait()
        raise CommandFailed(f"a process of the generator ended by itself, with exit code {code}")
    answer: dict[str, Any] = msgspec.json.decode(line)
    return answer


def specs_of(plan: BenchPlan, places: Sequence[BenchTopic]) -> list[WorkerSpec]:
    """The work of each process. Senders are dealt out to the processes in turn, and readers too,
    by a count of their own."""
    senders = [one for place in places for one in _senders(plan, place)]
    readers = [one for place in places for one in _pullers(plan, place)]
    readers += [one for place in places for one in _consumers(plan, place)]
    senders = [
        msgspec.structs.replace(one, number=number, connections=len(senders))
        for number, one in enumerate(senders)
    ]
    readers = [
        msgspec.structs.replace(one, number=number, connections=len(readers))
        for number, one in enumerate(readers)
    ]
    # No process is started without work.
    processes = max(1, min(plan.processes, len(senders) + len(readers)))
    return [
        WorkerSpec(
            plan.settings, plan.payload, senders[n::processes], readers[n::processes], plan.security
        )
        for n in range(processes)
    ]


def _senders(plan: BenchPlan, place: BenchTopic) -> list[SenderSpec]:
    """Each connection belongs to one broker; every broker has at least one."""
    brokers = _by_broker(place.write)
    count = max(plan.producers, len(brokers)) if plan.producers else 0
    names = sorted(brokers)
    return [
        SenderSpec(
            place.addresses[name], place.topic, [queue.queue_id for queue in brokers[name]], 0, 1
        )
        for name in (names[number % len(names)] for number in range(count))
    ]


def _pullers(plan: BenchPlan, place: BenchTopic) -> list[ReaderSpec]:
    """Connections that read the stored messages, from the beginning; queues without messages are
    left out. With more connections than queues, several read one queue."""
    queues = [
        queue
        for queue in place.read
        if queue in place.begun and place.begun[queue].max_offset > place.begun[queue].min_offset
    ]
    if plan.readers and not queues:
        raise CommandFailed(
            f"topic {place.topic} holds no messages to pull: leave --topic out, and one is made "
            "and filled"
        )
    specs = []
    for number in range(plan.readers):
        own = queues[number :: plan.readers] or [queues[number % len(queues)]]
        for broker, mine in _by_broker(own).items():
            begins = [(one.queue_id, place.begun[one].min_offset) for one in mine]
            address = place.addresses[broker]
            specs.append(ReaderSpec(address, place.topic, begins, 0, 1, follows=False))
    return specs


def _consumers(plan: BenchPlan, place: BenchTopic) -> list[ReaderSpec]:
    """The consumers of all subscriptions; the consumers of a subscription share the queues."""
    specs = []
    for _ in range(plan.subscriptions):
        for number in range(plan.consumers):
            own = place.read[number :: plan.consumers]
            for broker, mine in _by_broker(own).items():
                begins = [
                    (one.queue_id, place.begun[one].max_offset if one in place.begun else 0)
                    for one in mine
                ]
                address = place.addresses[broker]
                specs.append(ReaderSpec(address, place.topic, begins, 0, 1, follows=True))
    return specs


def _by_broker(queues: Sequence[MessageQueue]) -> dict[str, list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        found.setdefault(queue.broker_name, []).append(queue)
    return found
