"""Finds the master of a slave, and where its log goes on there."""

from __future__ import annotations

from aerobee.broker.cluster.registration.master_address import MasterAddress, split_address
from aerobee.broker.cluster.replication.master_link import Asked, Refused
from aerobee.store.message_store import MessageStore


class MasterFinder:
    """What a `MasterLink` asks before it connects."""

    def __init__(self, master: MasterAddress, store: MessageStore) -> None:
        self._master = master
        self._store = store

    async def __call__(self) -> Asked | Refused | None:
        """The address of the master's HA port and where to go on; None while it is not known."""
        if self._master.ha is None:
            return None
        return Asked(split_address(self._master.ha), self._store.written or 1)
