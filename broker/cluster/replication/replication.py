"""Replication of one broker: its port for slaves, and on a slave the link to its master.

Made by `core.py` where the settings open the port; `daemon.py` gives it the port and a way to ask
the master. Loop thread only.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from aerobee.broker.cluster.replication.block_reader import Follows
from aerobee.broker.cluster.replication.ha_port import HaPort, Waiting
from aerobee.broker.cluster.replication.master_link import Finder, MasterLink, Step
from aerobee.broker.cluster.table_copies.table_sync import TableSync
from aerobee.broker.routing.role import Role
from aerobee.config.model import Settings
from aerobee.store.message_store import MessageStore

# A slave's consumers see messages this much later than its log has them: a dispatch costs a write
# to each queue, whatever the number of messages.
_DISPATCH_S = 0.005


class _DispatchLater:
    """Has what was appended in a few milliseconds dispatched at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, follows: Follows) -> None:
        self._loop = loop
        self._follows = follows
        self._scheduled = False

    def appended(self) -> None:
        """Bytes were appended in this turn."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_later(_DISPATCH_S, self._tell)

    def _tell(self) -> None:
        self._scheduled = False
        self._follows.appended()


class _SyncSoon:
    """Has what was appended synced at once, because the master waits for it. Under ASYNC_FLUSH
    nobody else asks for that: a sync would come when the thread's interval is over and enough pages
    are new, ten seconds later at worst, and meanwhile the slave could not even ask again."""

    def __init__(self, store: MessageStore, follows: Follows) -> None:
        self._store = store
        self._follows = follows

    def appended(self) -> None:
        """Bytes were appended in this turn."""
        self._follows.appended()
        self._store.sync_soon()


class Replication:
    """The replicating side of a broker. `close` once."""

    #: Between two looks for silent peers, in seconds.
    LOOK_S = 0.5

    def __init__(
        self,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        store: MessageStore,
        answers: Waiting,
        *,
        trust: Callable[[str], bool],
        role: Role,
    ) -> None:
        self._settings = settings
        self._loop = loop
        self._store = store
        #: The slaves.
        self.port = HaPort(settings, loop, store.make_feed(), answers, trust=trust, role=role)
        #: The link to the master, None on a master.
        self.link: MasterLink | None = None
        #: Copies the tables of the master, None on a master.
        self.tables: TableSync | None = None

    def follow(
        self, follows: Follows, finder: Finder, tls: ssl.SSLContext | None, tables: TableSync
    ) -> None:
        """Be a slave from now on, and have `tables` copied."""
        assert self.link is None
        appender = self._store.make_appender()
        if self._settings.ha_ack_durable:
            follows = _SyncSoon(self._store, follows)
        else:
            follows = _DispatchLater(self._loop, follows)
        self.link = MasterLink(
            self._settings, self._loop, appender, follows, finder=finder, tls=tls
        )
        self.link.start()
        self.tables = tables
        tables.start()

    @property
    def is_taking(self) -> bool:
        """Whether the log of a master is taken now."""
        return self.link is not None and self.link.step is Step.TAKING

    async def stop_following(self) -> None:
        """Be no slave any more."""
        tables, self.tables = self.tables, None
        if tables is not None:
            await tables.close()
        link, self.link = self.link, None
        if link is not None:
            await link.close()

    def appended(self) -> None:
        """Bytes were appended in the turn that ends: slaves get them."""
        self.port.appended()

    def marks_moved(self) -> None:
        """A thread of the store has moved a mark: more may be sent, or reported."""
        self.port.appended()
        if self.link is not None:
            self.link.durable_moved()

    async def close(self) -> None:
        """Follow nobody, and serve no slave."""
        await self.stop_following()
        await self.port.close()
