"""Keeps the tables of a slave as those of its master are.

A master of ours is asked every second for what has changed, RocketMQ every ten seconds for all
(`table_fetch.py`). Topics and groups are taken when they come. Consumer offsets, and the progress
of delays, timer and staged batches, say what was done with messages: they wait until this log has
all that the master's had by then, and has it on the disk. Otherwise a slave that becomes a master
would take a delayed message for delivered whose delivery never came. Tables that wait are not asked
for again meanwhile.

Nothing is asked while the log is not taken from the master: a broker whose log does not go together
with this one is no master of ours, and its tables would take topics away.

A table that cannot be read is refused whole and asked for again later, as is a table that cannot be
saved. Loop thread only; one task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from aerobee.broker.cluster.table_copies.config_copies import ConfigCopies
from aerobee.broker.cluster.table_copies.copied_table import CopiedTable
from aerobee.broker.cluster.table_copies.master_calls import MasterCalls, MasterRefused
from aerobee.broker.cluster.table_copies.offset_copies import OffsetCopies
from aerobee.broker.cluster.table_copies.table_fetch import Fetched, TableFetch
from aerobee.protocol.bodies.common import SMALL_BODY
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.headers.replica_tables import DELETIONS, GROUPS, OFFSETS, TABLES, TOPICS
from aerobee.remoting.errors import RemotingError
from aerobee.store.errors import StoreError
from aerobee.store.log.collector import collector_paused

log = logging.getLogger("aerobee.broker.replication")


class Times(NamedTuple):
    """Seconds: between two exchanges with a master of ours, with RocketMQ, after a failure; looks
    at what waits; and how long a failure may last before people are to know."""

    ours_s: float = 1.0
    rocketmq_s: float = 10.0
    failed_s: float = 5.0
    look_s: float = 0.05
    problem_s: float = 60.0


# A large table is asked for less often: its bytes in a second are no more than this.
_BYTES_PER_S: Final = 1 << 20


class Place(Protocol):
    """How far the log of this broker is (`MessageStore`)."""

    @property
    def dispatched(self) -> int: ...
    @property
    def durable(self) -> int: ...
    def sync_soon(self) -> None: ...


class Copies(NamedTuple):
    """The tables of this broker, each with its way to take a copy."""

    configs: ConfigCopies
    offsets: OffsetCopies
    whole: Sequence[CopiedTable]


class _Waiting(NamedTuple):
    """A copy that is taken when the log has come to its end."""

    value: Any
    log_end: int
    first: bool
    whole: bool


class TableSync:
    """Copies tables as long as the task runs."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        calls: MasterCalls,
        copies: Copies,
        place: Place,
        follows: Callable[[], bool],
        *,
        times: Times | None = None,
    ) -> None:
        """`follows` says whether the log is taken from the master. `calls` is closed with this."""
        self._loop = loop
        self._calls = calls
        self._copies = copies
        self._whole = {one.name: one for one in copies.whole}
        self._place = place
        self._follows = follows
        self._times = times or Times()
        self._fetch = TableFetch(calls)
        # The versions of the copies that were taken, or wait to be, and the connection by which
        # they came: on another one all is fetched again.
        self._versions: dict[str, str] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._connection = 0
        self._is_first = True
        self._task: asyncio.Task[None] | None = None
        #: Exchanges that went well, for tests and metrics.
        self.exchanges = 0
        #: The first log offset that the master had by the last exchange; None if it has not told.
        self.master_first: int | None = None
        self._why = "it has not been asked yet"
        self._went_well_at = loop.time()

    @property
    def problem(self) -> str | None:
        """Why the tables have not been copied for a minute; None when they were."""
        silent_s = self._loop.time() - self._went_well_at
        if silent_s < self._times.problem_s:
            return None
        return f"the tables of the master have not been copied for {silent_s:.0f} s: {self._why}"

    def start(self) -> None:
        """Begin to copy."""
        self._task = self._loop.create_task(self._run(), name="copies the tables of its master")
        self._task.add_done_callback(_surface)

    async def close(self) -> None:
        """Copy nothing more. What the log has not come far enough for is not taken."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._calls.close()
        await self._take_waiting(self._reached)

    # --- the task

    async def _run(self) -> None:
        while True:
            if self._follows():
                await self._wait(await self._try_exchange())
            else:
                self._why = "the log is not taken from the master"
                await self._wait(self._times.look_s)

    async def _try_exchange(self) -> float:
        """Do `_exchange`; after a failure the next one comes later."""
        try:
            return await self._exchange()
        except (RemotingError, MasterRefused, StoreError, OSError) as error:
            self._failed(str(error))
            return self._times.failed_s

    async def _exchange(self) -> float:
        """Fetch what has changed, and take what may be taken; the pause after it, in seconds."""
        await self._calls.caller()
        if self._connection != self._calls.connections:
            # The master was away, or it is another one.
            self._connection = self._calls.connections
            self._versions.clear()
            self._waiting.clear()
            self._is_first = True
            self.master_first = None
        asked = [name for name in TABLES if name not in self._waiting]
        fetched = await self._fetch.fetch({name: self._versions.get(name, "") for name in asked})
        self.master_first = fetched.log_first
        unread = await self._take_all(fetched)
        await self._take_reached()
        if unread:
            self._failed(unread)
            return self._times.failed_s
        self.exchanges += 1
        self._went_well_at = self._loop.time()
        self._why = ""
        if fetched.more:
            return 0.0
        usual_s = self._times.ours_s if self._fetch.is_ours else self._times.rocketmq_s
        return max(usual_s, fetched.size / _BYTES_PER_S)

    async def _take_all(self, fetched: Fetched) -> str:
        """Take what was fetched, or have it wait; the reason why a table is refused, or ""."""
        unread = ""
        for name, table in fetched.tables.items():
            try:
                value = await self._read(name, table)
            except (BadRequest, ValueError, KeyError, TypeError, OverflowError) as error:
                unread = f"its table of {name} cannot be taken: {error or repr(error)}"
                continue
            await self._take(name, value, fetched)
            self._versions[name] = fetched.versions[name]
        return unread

    async def _read(self, name: str, table: bytes) -> Any:
        """Read a table; a large one on a worker."""
        configs = self._copies.configs
        parse: Callable[[bytes], Any]
        if name == TOPICS:
            parse = configs.read_topics
        elif name == GROUPS:
            parse = configs.read_groups
        elif name == OFFSETS:
            parse = self._copies.offsets.read
        else:
            parse = self._whole[name].read
        if len(table) <= SMALL_BODY:
            return parse(table)
        return await self._loop.run_in_executor(None, partial(_without_collections, parse, table))

    async def _take(self, name: str, value: Any, fetched: Fetched) -> None:
        if name == TOPICS:
            await self._copies.configs.take_topics(value, fetched.log_begin, fetched.log_end)
        elif name == GROUPS:
            await self._copies.configs.take_groups(value)
        elif name in self._whole and self._whole[name].at_once:
            self._whole[name].replace(value)
            if name == DELETIONS:
                self._copies.configs.take_deletions(value, fetched.log_end)
        else:
            first = name == OFFSETS and self._is_first
            self._is_first = self._is_first and name != OFFSETS
            whole = self._fetch.is_ours
            self._waiting[name] = _Waiting(value, fetched.log_end, first, whole)

    @property
    def _reached(self) -> int:
        """The end of what this log has for good."""
        return min(self._place.dispatched, self._place.durable)

    async def _take_reached(self) -> None:
        """Take what the log has come far enough for, and let topics go."""
        reached = self._reached
        await self._take_waiting(reached)
        await self._copies.configs.remove_gone(reached)
        self._have_synced(reached)

    async def _take_waiting(self, reached: int) -> None:
        for name, one in list(self._waiting.items()):
            if one.log_end > reached:
                continue
            del self._waiting[name]
            if name == OFFSETS:
                for _ in self._copies.offsets.take(one.value, first=one.first, whole=one.whole):
                    await asyncio.sleep(0)
            else:
                self._whole[name].replace(one.value)

    def _have_synced(self, reached: int) -> None:
        """Have the log synced if that is all that a copy waits for."""
        if any(reached < one.log_end <= self._place.dispatched for one in self._waiting.values()):
            self._place.sync_soon()

    async def _wait(self, pause_s: float) -> None:
        """Wait for the next exchange, and take meanwhile what waits for the log."""
        until = self._loop.time() + pause_s
        while (left_s := until - self._loop.time()) > 0:
            if not self._waiting and not self._copies.configs.waits:
                await asyncio.sleep(left_s)
                return
            try:
                await self._take_reached()
                again_s = self._times.look_s
            except (StoreError, OSError) as error:
                self._failed(str(error))
                again_s = self._times.failed_s
            await asyncio.sleep(min(left_s, again_s))

    def _failed(self, why: str) -> None:
        # Once, not on every try.
        if why != self._why:
            log.warning("tables of the master not copied, will be tried again why=%s", why)
        self._why = why


def _without_collections(parse: Callable[[bytes], Any], table: bytes) -> Any:
    """Parse without collections: all objects stay until the end."""
    with collector_paused():
        return parse(table)


def _surface(task: asyncio.Task[None]) -> None:
    """The task ends by cancellation only; anything else is a bug and must be seen."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("copying the tables of the master has stopped", exc_info=error)
