"""The core of a broker that is fed reads by hand, in one form or the other, and what came of them.

The wall clock stands still, and no sync begins while a read is served, so whatever the two forms do
differently shows in the files, in the answers or in the counters.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from aerobee.broker import core
from aerobee.broker.appending.store_events import StoreEvents
from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.cluster.registration.broker_address import Advertised, Identity
from aerobee.broker.messages.compiled_requests import CompiledRequests
from aerobee.config.model import Settings
from aerobee.native.form import CompiledForm
from aerobee.protocol.frames import command
from aerobee.remoting.connection_limits import RemotingLimits
from aerobee.remoting.connections.connection import Connection, Handler
from aerobee.remoting.connections.connection_set import ConnectionSet
from aerobee.store.flush.services import CommitLogSync
from aerobee.store.message_store import MessageStore
from tests.unit.store.support import ManualClock

#: Segments of some hundred messages, index files of as many keys: rolls are met.
SETTINGS: dict[str, Any] = {
    "broker_name": "test-broker",
    "commit_log_segment_bytes": 1 << 18,
    "consume_queue_segment_bytes": 20 * 300,
    "index_slots": 200,
    "index_entries": 1_000,
    "max_message_bytes": 1 << 14,
    "disk_warning_ratio": 1.0,
}
PEER = ("127.0.0.1", 4000)


class Read(NamedTuple):
    """The bytes that one connection got at once."""

    connection: int
    data: bytes
    #: Nothing more is read before it is answered.
    awaited: bool = False


class Outcome(NamedTuple):
    """The result of some reads."""

    #: All that was written to each connection.
    answers: list[bytes]
    #: The contents of the store's files, by path below it; those of the index by their order.
    files: dict[str, bytes]
    #: The counts, times excepted.
    counted: dict[str, Any]
    #: Requests that the compiled form took.
    taken: int


class Wire(asyncio.Transport):
    """Where a connection writes to."""

    def __init__(self) -> None:
        super().__init__({"peername": PEER, "sockname": ("127.0.0.1", 10911)})
        self.written = bytearray()
        self.ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Written bytes have left at once."""

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Reads come by hand."""

    def resume_reading(self) -> None:
        """Reads come by hand."""

    def close(self) -> None:
        self.ended = True

    abort = close


class ByHand(Connection):
    """A connection that is told its reads, of which the compiled form takes what is plain as it
    does of a socket's (`Sockets.read`), one after the other."""

    __slots__ = ("_compiled", "_seen")

    def __init__(
        self,
        shared: ConnectionSet,
        handler: Handler,
        compiled: CompiledRequests,
        seen: Callable[[int], None],
        peer: tuple[str, int] | None = None,
    ) -> None:
        """`seen` is told of each read how many of its requests the compiled form took."""
        super().__init__(shared, handler, peer)
        self._compiled = compiled
        self._seen = seen

    def buffer_updated(self, nbytes: int) -> None:
        shared = self._shared
        self.last_active = shared.now
        shared.stats.reads += 1
        shared.stats.bytes_in += nbytes
        taken = 0
        if not (self.decoder.buffered or self.aside or self.holds or shared.turns.late):
            try:
                taken = self._take(shared.read_view[:nbytes])
            except Exception:  # noqa: BLE001 - as the sockets do
                self.failed()
                return
        if taken < nbytes or self.held_bytes:
            self.decode(taken, nbytes)

    def _take(self, read: memoryview) -> int:
        compiled, turns = self._compiled, self._shared.turns
        may_pull = compiled.begin() and not self.overloaded
        began = turns.clock()
        taken, answers, held, served = compiled.requests.take(
            read,
            self.packed_peer,
            may_pull,
            compiled.may_wait,
            self.answer_room,
            turns.clock,
            turns.slice_until(began),
        )
        if answers:
            turns.write(self, answers)
        if held is not None:
            held.belong_to(self)
            compiled.wait_made(held)
        count = sum(times for _, times in served) + (0 if held is None else len(held))
        self._seen(count)
        self.commands_in += count
        self._shared.stats.commands_in += count
        if served:
            compiled.served(served, turns.clock() - began)
        return taken


async def replayed(
    folder: Path, reads: Sequence[Read], form: CompiledForm | None, **changes: Any
) -> Outcome:
    """Feed a new broker with `reads`, one after the other, each served to its end before the next
    one comes."""
    with pytest.MonkeyPatch.context() as patch:
        random.seed(0)  # the queue of a send that names none
        patch.setattr(time, "time_ns", lambda: 1_700_000_000 * 10**9)
        patch.setattr(time, "time", lambda: 1_700_000_000.0)
        patch.setattr(command, "_opaques", itertools.count(1))
        # Otherwise chance decides how many of a read's sends a pull behind them sees.
        reading = threading.RLock()
        sync = CommitLogSync.sync

        def sync_between_reads(self: CommitLogSync, least_pages: int = 0) -> bool:
            with reading:
                return sync(self, least_pages)

        patch.setattr(CommitLogSync, "sync", sync_between_reads)
        return await _replayed(folder, reads, form, changes, reading)


async def _replayed(
    folder: Path,
    reads: Sequence[Read],
    form: CompiledForm | None,
    changes: dict[str, Any],
    reading: threading.RLock,
) -> Outcome:
    loop = asyncio.get_running_loop()
    settings = Settings.for_tests(store_path=str(folder / "store"), **(SETTINGS | changes))
    events = StoreEvents(loop)
    store = MessageStore.open(
        settings,
        clock=ManualClock(),
        compiled=None if form is None else form.store,
        listener=events,
    )
    stats = BrokerStats()
    identity = Identity(Advertised("127.0.0.1", "127.0.0.1", ()), 10911)
    broker = core.BrokerCore(
        settings=settings,
        store=store,
        events=events,
        identity=identity,
        stats=stats,
        loop=loop,
        form=form,
    )
    try:
        broker.complete_tables()
        broker.staging.lead(anew=False)
        # No turn is ever over: the dispatch between two requests does not go by time.
        broker.turns.clock = lambda: 0.0
        shared = ConnectionSet(RemotingLimits(), "replayed", turns=broker.turns)
        compiled = broker.compiled
        wires = [Wire() for _ in range(1 + max(read.connection for read in reads))]
        taken: list[int] = []
        connections = [
            Connection(shared, broker.main_router)
            if compiled is None
            else ByHand(shared, broker.main_router, compiled, taken.append)
            for _ in wires
        ]
        for connection, wire in zip(connections, wires, strict=True):
            connection.connection_made(wire)
        for read in reads:
            connection, wire = connections[read.connection], wires[read.connection]
            if not connection.closed:
                before = len(wire.written)
                with reading:
                    receive(connection, read.data)
                    await _served(broker, connections)
                while read.awaited and len(wire.written) == before:
                    await settled(broker, store, connections)
            await settled(broker, store, connections)
        counted = _counted(stats, store, shared)
    finally:
        await broker.close()
        assert store.close(broker.save_last)
    return Outcome(
        [bytes(wire.written) for wire in wires], _files(folder / "store"), counted, sum(taken)
    )


def receive(connection: Connection, data: bytes) -> None:
    """Receive as a transport does: in pieces, where a hurt length asked for less room than there
    is."""
    left = memoryview(data)
    while left and not connection.closed:
        room = connection.get_buffer(0)
        size = min(len(room), len(left))
        room[:size] = left[:size]
        connection.buffer_updated(size)
        left = left[size:]


async def _served(broker: core.BrokerCore, connections: Sequence[Connection]) -> None:
    """Until what was read is served; some of it waits for a table to be saved, none for a sync."""
    async with asyncio.timeout(60):
        while _waits(connections):
            await broker.topics.flush()
            await broker.groups.flush()
            await asyncio.sleep(0.001)


def _waits(connections: Sequence[Connection]) -> bool:
    """Whether something that was read is not served yet. A closed connection keeps its holds, and
    nothing of it is served any more."""
    return any((one.aside or one.holds) and not one.closed for one in connections)


async def settled(
    broker: core.BrokerCore, store: MessageStore, connections: Sequence[Connection]
) -> None:
    """Until what was read is served, stored and dispatched."""
    quiet = 0
    async with asyncio.timeout(30):
        while quiet < 4:
            await asyncio.sleep(0)
            await broker.topics.flush()
            await broker.groups.flush()
            served = not _waits(connections)
            # A worker or a slow disk serves the rest: spinning would take the time of others.
            if not served or len(broker.answers.sends):
                await asyncio.sleep(0.001)
            busy = (
                broker.turns.waiting
                or store.dispatched < store.written
                or len(broker.answers.sends)
                or broker.staging.table.open
                or not served
            )
            quiet = 0 if busy else quiet + 1


def _files(store: Path) -> dict[str, bytes]:
    found = {}
    for number, path in enumerate(sorted((store / "index").iterdir())):
        found[f"index/{number}"] = path.read_bytes()
    for folder in ("commitlog", "consumequeue"):
        for path in sorted((store / folder).rglob("*")):
            if path.is_file():
                found[str(path.relative_to(store))] = path.read_bytes()
    return found


def _counted(stats: BrokerStats, store: MessageStore, shared: ConnectionSet) -> dict[str, Any]:
    topics = {
        (one.topic, one.message_type): (
            one.messages_in,
            one.bytes_in,
            list(one.sizes.counts),
            one.sizes.total,
            {number: (queue.messages, queue.size) for number, queue in one.queues.items()},
        )
        for one in stats.topics()
    }
    consumers = {
        (one.group, one.topic): (
            one.messages_out,
            one.bytes_out,
            dict(one.pulled),
            {number: (queue.messages, queue.size) for number, queue in one.queues.items()},
        )
        for one in stats.consumers()
    }
    requests = {one.key: one.count for one in stats.requests()}
    return {
        "topics": topics,
        "consumers": consumers,
        "requests": requests,
        "failures": (stats.put_failures, stats.get_found, stats.get_missed),
        "appended": (store.stats.appended_messages, store.stats.appended_bytes),
        "found": (store.stats.get_found, store.stats.get_messages, store.stats.get_missed),
        "dispatched": store.stats.dispatched_messages,
        "connections": {
            name: value
            for name, value in dataclasses.asdict(shared.stats).items()
            if isinstance(value, int)
        },
    }
