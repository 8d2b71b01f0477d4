"""A slave's link to its master: finds it, compares, takes its log, and comes again.

| step    | what happens                                                                          |
|---------|---------------------------------------------------------------------------------------|
| finding | the address comes from haMasterAddress, or from the name server's answers             |
| asking  | the logs are compared (`comparison/`); what differs is refused, with what to do       |
| taking  | blocks are taken and reported (`block_reader.py`), until the connection ends          |

A refusal stays until a person has done something, so it is looked at again only now and then; a
lost connection is made anew at once, and after a pause when that fails.

Loop thread only; one task.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

from aerobee.broker.cluster.comparison.comparing import Refused
from aerobee.broker.cluster.comparison.master_requests import MasterUnreachable
from aerobee.broker.cluster.replication.block_reader import BlockReader, Follows
from aerobee.config.model import Settings
from aerobee.remoting.errors import connect_failure
from aerobee.remoting.peers import address_text
from aerobee.store.log.replication.appender import Appender

log = logging.getLogger("aerobee.broker.replication")

_CONNECT_S = 5.0
# Between two tries: after a lost connection, when nobody answers, and after a refusal, which a
# person has to do something about.
_AT_ONCE_S = 0.1
_FAILED_S = 1.0
_REFUSED_S = 5.0
_LOOK_S = 0.2


class Step(enum.Enum):
    """See the module's story."""

    FINDING = "finding"
    ASKING = "asking"
    TAKING = "taking"
    REFUSED = "refused"


class Target(NamedTuple):
    """The HA port of the master, and the log offset to ask it for."""

    address: tuple[str, int]
    log_offset: int


#: Finds the master and compares the logs; None while no master is known. Raises MasterUnreachable.
Ask: TypeAlias = Callable[[], Awaitable[Target | Refused | None]]


class MasterLink:
    """Follows a master as long as the task runs."""

    def __init__(
        self,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        appender: Appender,
        follows: Follows,
        *,
        ask: Ask,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls` encrypts the connection to the master's HA port."""
        self._settings = settings
        self._loop = loop
        self._appender = appender
        self._follows = follows
        self._ask = ask
        self._tls = tls
        self._reader: BlockReader | None = None
        self._task: asyncio.Task[None] | None = None
        self.step = Step.FINDING
        #: The address of the master whose log is taken, "" without one.
        self.master = ""
        #: Why nothing is taken now; None while something is.
        self.problem: str | None = "the master is not known yet"
        self.connections = 0
        #: How often the master was not followed, by the reason.
        self.refusals: Counter[str] = Counter()
        self.received_bytes = 0

    def start(self) -> None:
        """Begin to follow."""
        self._task = asyncio.create_task(self._run(), name="follows its master")

    async def close(self) -> None:
        """Follow no more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._reader is not None:
            self._reader.close("this broker stops")
            self._reader = None

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
        try:
            asked = await self._ask()
        except MasterUnreachable as error:
            self._note(f"the master cannot be compared with: {error}")
            return _FAILED_S
        if asked is None:
            self.step = Step.FINDING
            self._note("the master is not known yet: the name servers know none of this name")
            return 1.0
        if isinstance(asked, Refused):
            self.step = Step.REFUSED
            self.refusals[asked.kind.value] += 1
            self._note(asked.text)
            return _REFUSED_S
        if not self._appender.may_ask:
            return _LOOK_S
        self.step = Step.ASKING
        host, port = asked.address
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, reader = await self._loop.create_connection(
                    lambda: BlockReader(
                        self._loop, self._appender, self._follows, asked.log_offset
                    ),
                    host,
                    port,
                    ssl=self._tls,
                )
        except (OSError, TimeoutError) as error:
            why = "no answer" if isinstance(error, TimeoutError) else connect_failure(error, host)
            self._note(f"cannot connect to {address_text(asked.address)}: {why}")
            return _FAILED_S
        return await self._take(reader, asked)

    async def _take(self, reader: BlockReader, asked: Target) -> float:
        self._reader, self.step, self.problem = reader, Step.TAKING, None
        self.master = address_text(asked.address)
        self.connections += 1
        log.info("following master=%s from=%d", self.master, asked.log_offset)
        began = self._loop.time()
        try:
            while not reader.closed.done():
                await asyncio.wait({reader.closed}, timeout=1.0)
                self._look(reader)
        finally:
            self._reader = None
            self.received_bytes += reader.received_bytes
            reader.close("not followed any more")
        self.master = ""
        self._note(reader.closed.result())
        self.step = Step.FINDING
        return _AT_ONCE_S if self._loop.time() - began > 1.0 else 1.0

    def _look(self, reader: BlockReader) -> None:
        """Report now and then; leave a master that has gone silent."""
        now, settings = self._loop.time(), self._settings
        if now - reader.heard_at > settings.ha_housekeeping_interval_ms / 1000:
            reader.close("the master has gone silent")
        elif now - reader.told_at >= settings.ha_heartbeat_interval_ms / 1000:
            reader.report(again=True)

    @property
    def received(self) -> int:
        """Bytes that were received from masters."""
        reader = self._reader
        return self.received_bytes + (0 if reader is None else reader.received_bytes)

    def _note(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("not following the master why=%s", problem)
        self.problem = problem
