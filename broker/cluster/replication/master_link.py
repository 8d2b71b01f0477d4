"""A slave's link to its master: finds it, compares, takes its log, and comes again.

| step    | what happens                                                                          |
|---------|---------------------------------------------------------------------------------------|
| finding | the address comes from haMasterAddress, or from the name server's answers; connect    |
| asking  | the logs are compared (`comparison/`); what differs is refused, with what to do       |
| taking  | blocks are taken and reported (`block_reader.py`), until the connection ends          |

A refusal stays until a person has done something, so it is looked at again only now and then; a
lost connection is made anew at once, and after a pause when that fails. Connections that bring
nothing, as on a full disk, come after longer pauses, and their lines are summed.

Loop thread only; one task.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import ssl
from collections import Counter
from typing import Protocol

from aerobee.broker.cluster.comparison.comparing import Asked, RefusalKind, Refused
from aerobee.broker.cluster.comparison.log_route import LogConnection
from aerobee.broker.cluster.comparison.master_requests import MasterUnreachable
from aerobee.broker.cluster.replication.block_reader import BlockReader, Follows
from aerobee.broker.cluster.replication.rates import Rate
from aerobee.config.model import Settings
from aerobee.remoting.errors import connect_failure
from aerobee.remoting.peers import address_text
from aerobee.store.log.replication.appender import Appender
from aerobee.summed_log import SummedLog

log = logging.getLogger("aerobee.broker.replication")

_CONNECT_S = 5.0
# Between two tries: after a lost connection, when nobody answers, and after a refusal, which a
# person has to do something about.
_AT_ONCE_S = 0.1
_FAILED_S = 1.0
# A connection that soon ended without a record is followed by a pause that doubles up to this: a
# slave without room would come each second, with lines on both sides.
_FRUITLESS_S = 5.0
_SOON_S = 30.0
_REFUSED_S = 5.0
_LOOK_S = 0.2


class Step(enum.Enum):
    """See the module's story."""

    FINDING = "finding"
    ASKING = "asking"
    TAKING = "taking"
    REFUSED = "refused"


class Finder(Protocol):
    """Finds the master, and compares its log with this slave's."""

    def address(self) -> tuple[str, int] | Refused | None:
        """The HA port of the master; None while no master is known."""

    @property
    def unknown_because(self) -> str:
        """Why `address` is None, for people."""

    def look_again(self) -> None:
        """No master can be followed now: have name servers asked where it is."""

    async def compare(self, connection: LogConnection) -> Asked | Refused:
        """The log offset to ask the master for over `connection`. Raises MasterUnreachable."""


class MasterLink:
    """Follows a master as long as the task runs."""

    def __init__(
        self,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        appender: Appender,
        follows: Follows,
        *,
        finder: Finder,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls` encrypts the connection to the master's HA port."""
        self._settings = settings
        self._loop = loop
        self._appender = appender
        self._follows = follows
        self._finder = finder
        self._tls = tls
        self._reader: BlockReader | None = None
        self._task: asyncio.Task[None] | None = None
        self.step = Step.FINDING
        #: The address of the master whose log is taken, "" without one.
        self.master = ""
        #: Why nothing is taken now; None while something is.
        self.problem: str | None = "the master is not known yet"
        #: The kind of refusal, None while this slave refuses nothing. It stays while the slave
        #: looks again.
        self.refusal: str | None = None
        self.connections = 0
        #: How often the master was not followed, by the reason.
        self.refusals: Counter[str] = Counter()
        self.received_bytes = 0
        #: Bytes a second, of late.
        self.rate = Rate()
        # When a master was heard and told last, on connections that have ended.
        self._heard_at: float | None = None
        self._told_at: float | None = None
        # Connections in a row that soon ended without a record.
        self._fruitless = 0
        self._sums = SummedLog(loop.time, call_later=loop.call_later)

    def start(self) -> None:
        """Begin to follow."""
        self._task = asyncio.create_task(self._run(), name="follows its master")

    async def close(self) -> None:
        """Follow no more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._leave("this broker stops")
        self._sums.close()

    def _leave(self, reason: str) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            self.received_bytes += reader.received_bytes
            self._heard_at = reader.heard or self._heard_at
            self._told_at = reader.told or self._told_at
            reader.close(reason)

    def durable_moved(self) -> None:
        """More is durable now, which may be what the master waits for."""
        if self._reader is not None:
            self._reader.report()

    async def _run(self) -> None:
        while True:
            pause_s = await self._follow()
            await asyncio.sleep(pause_s)

    async def _follow(self) -> float:
        """Follow until that ends; the pause before the next time, in seconds."""
        self.step = Step.FINDING if self.step is not Step.REFUSED else self.step
        address = self._finder.address()
        if address is None:
            self.step = Step.FINDING
            self._note(self._finder.unknown_because)
            self._finder.look_again()
            return _LOOK_S
        if isinstance(address, Refused):
            return self._refused(address)
        if not self._appender.may_ask:
            return _LOOK_S
        self.step = Step.ASKING
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, reader = await self._loop.create_connection(
                    lambda: BlockReader(self._loop, self._appender, self._follows),
                    *address,
                    ssl=self._tls,
                )
        except (OSError, TimeoutError) as error:
            return self._unreachable(address, error)
        self._reader = reader
        try:
            # Only now: a master that has restarted since is another one, and its connection ended.
            asked = await self._finder.compare(reader)
        except MasterUnreachable as error:
            self._leave("not compared")
            self._note(f"the master cannot be compared with: {error}")
            return _FAILED_S
        if isinstance(asked, Refused):
            self._leave("refused")
            return self._refused(asked)
        return await self._take(reader, address, asked.log_offset)

    def _refused(self, refused: Refused) -> float:
        self.step = Step.REFUSED
        self.refusals[refused.kind.value] += 1
        if refused.kind is RefusalKind.NOT_MASTER:
            # The roles may have changed.
            self._finder.look_again()
        self._note(refused.text, refused.kind.value)
        return _REFUSED_S

    def _unreachable(self, address: tuple[str, int], error: OSError) -> float:
        host, _ = address
        if isinstance(error, TimeoutError):
            why = "no answer"
        else:
            why = connect_failure(error, host, over_tls=self._tls is not None)
        self._note(f"cannot connect to {address_text(address)}: {why}")
        self._finder.look_again()
        return _FAILED_S

    async def _take(self, reader: BlockReader, address: tuple[str, int], start: int) -> float:
        if reader.closed.done():
            # The logs were compared meanwhile, and a master that refuses a slave closes at once.
            self._leave("the connection was closed")
            self.step = Step.FINDING
            self._note(reader.closed.result())
            return _FAILED_S
        self.step, self.problem, self.refusal = Step.TAKING, None, None
        self.master = address_text(address)
        self.connections += 1
        text = "following master=%s from=%d"
        self._sums.add(log, logging.INFO, self.master, text, self.master, start)
        reader.ask(start)
        began, written = self._loop.time(), self._appender.written
        try:
            while not reader.closed.done():
                await asyncio.wait({reader.closed}, timeout=1.0)
                self._look(reader)
        finally:
            self._leave("not followed any more")
        self.master = ""
        self._note(reader.closed.result())
        self.step = Step.FINDING
        return self._pause_after(self._loop.time() - began, self._appender.written > written)

    def _pause_after(self, lasted_s: float, brought: bool) -> float:
        """The pause after a connection, which has `brought` records or not."""
        if not brought and lasted_s < _SOON_S:
            pause_s = min(_FAILED_S * (1 << self._fruitless), _FRUITLESS_S)
            # No further than the pause grows.
            self._fruitless = min(self._fruitless + 1, 8)
            return pause_s
        self._fruitless = 0
        # The next lines are news again.
        self._sums.close()
        return _AT_ONCE_S if lasted_s > 1.0 else _FAILED_S

    def _look(self, reader: BlockReader) -> None:
        """Report now and then; leave a master that has gone silent."""
        now, settings = self._loop.time(), self._settings
        self.rate.look(now, self.received)
        if now - reader.heard_at > settings.ha_housekeeping_interval_ms / 1000:
            reader.close("the master has gone silent")
        elif now - reader.told_at >= settings.ha_heartbeat_interval_ms / 1000:
            reader.report(again=True)

    @property
    def received(self) -> int:
        """Bytes that were received from masters."""
        reader = self._reader
        return self.received_bytes + (0 if reader is None else reader.received_bytes)

    def all_refusals(self) -> dict[str, int]:
        """How often this slave has refused to follow, by why: each from the start on, so that its
        first is an increase."""
        return {kind.value: self.refusals[kind.value] for kind in RefusalKind}

    @property
    def heard_ago_s(self) -> float | None:
        """Seconds since a master was heard last, None when none was."""
        reader = self._reader
        at = None if reader is None else reader.heard
        at = self._heard_at if at is None else at
        return None if at is None else max(0.0, self._loop.time() - at)

    @property
    def told_ago_s(self) -> float | None:
        """Seconds since a master was told last how far this log is, None when none was."""
        reader = self._reader
        at = None if reader is None else reader.told
        at = self._told_at if at is None else at
        return None if at is None else max(0.0, self._loop.time() - at)

    @property
    def unwritten_bytes(self) -> int:
        """Bytes that have come and are not written yet: of records that are not whole, or not
        checked."""
        return self._appender.unwritten if self._reader is not None else 0

    @property
    def gaps(self) -> int:
        """Damaged places of the master's log that were passed over."""
        return self._appender.gaps

    def _note(self, problem: str, refusal: str | None = None) -> None:
        if problem != self.problem:
            text = "not following the master why=%s"
            self._sums.add(log, logging.WARNING, problem, text, problem)
        self.problem, self.refusal = problem, refusal
