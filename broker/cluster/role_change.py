"""A change of the role while the broker runs (`routing/role.py`).

What follows the role by itself asks it each time: refusals, pulls, tables. This does the rest in
its order: the link to the master ends, all that it brought becomes visible, numbering goes on, and
the parts that work on a master only start (`background/leading.py`).

Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from aerobee.broker.background.leading import Leading
from aerobee.broker.routing.role import Role
from aerobee.store.message_store import DURABLE_S, MessageStore

if TYPE_CHECKING:
    from aerobee.broker.cluster.replication.replication import Replication


class RoleChange:
    """Changes the role of one broker."""

    def __init__(
        self,
        role: Role,
        leading: Leading,
        *,
        loop: asyncio.AbstractEventLoop,
        store: MessageStore,
        dispatch: Callable[[], None],
        replication: Replication,
        noted: Callable[[str, str], None] = lambda _before, _after: None,
    ) -> None:
        """`dispatch` makes durable messages visible; `noted` gets the names of the role before and
        after each change."""
        self._noted = noted
        self._role = role
        self._leading = leading
        self._loop = loop
        self._store = store
        self._dispatch = dispatch
        self._replication = replication

    async def become_master(self) -> None:
        """Stop following, and take messages. A part that has to read the log does it in one go.
        Raises TimeoutError when the end of the log does not become visible: then this broker is a
        slave still, which follows nobody."""
        if not self._role.is_slave:
            return
        await self._replication.stop_following()
        await self._have_all_visible()
        self._store.number_on()
        self._become(slave=False)
        self._leading.follow_role()

    def become_slave(self) -> None:
        """Take no more messages; `BrokerCore.follow` is next. Requests that are under way store
        nothing any more. Answers that wait for a sync or for slaves still leave: the caller sees to
        it that no slave misses the messages that were stored."""
        self._become(slave=True)
        self._store.refuse_puts()
        self._leading.follow_role()

    def _become(self, *, slave: bool) -> None:
        before = self._role.name
        self._role.become(slave=slave)
        if self._role.name != before:
            self._noted(before, self._role.name)

    async def _have_all_visible(self) -> None:
        store, until = self._store, self._loop.time() + DURABLE_S
        while store.dispatched < store.written:
            if self._loop.time() > until:
                raise TimeoutError("the end of the log is not visible yet; it stays a slave")
            await self._loop.run_in_executor(None, store.wait_all_durable)
            self._dispatch()
