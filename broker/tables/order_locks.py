"""LOCK_BATCH_MQ and UNLOCK_BATCH_MQ: which client may consume a queue in order (WIRE.md 3.4).

A lock belongs to (group, queue) and one client id, for `lease_s` from its last renewal; clients
renew every 20 s. A lock that has run out belongs to whoever asks next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple


class LockedQueue(NamedTuple):
    """A queue as clients name it."""

    topic: str
    broker_name: str
    queue_id: int


class _Lock(NamedTuple):
    client_id: str
    until: float


class OrderLocks:
    """Locks of all groups. Loop thread only; `clock` is monotonic, in seconds."""

    def __init__(self, lease_s: float, clock: Callable[[], float]) -> None:
        self._lease_s = lease_s
        self._clock = clock
        self._locks: dict[str, dict[LockedQueue, _Lock]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[LockedQueue]) -> list[LockedQueue]:
        """Lock or renew; returns those of `queues` that the client holds now."""
        now = self._clock()
        locks = self._locks.setdefault(group, {})
        held: list[LockedQueue] = []
        for queue in queues:
            owner = locks.get(queue)
            if owner is None or owner.client_id == client_id or owner.until <= now:
                locks[queue] = _Lock(client_id, now + self._lease_s)
                held.append(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[LockedQueue]) -> None:
        """Give up the locks the client holds; others' stay."""
        locks = self._locks.get(group)
        if locks is None:
            return
        for queue in queues:
            owner = locks.get(queue)
            if owner is not None and owner.client_id == client_id:
                del locks[queue]
        if not locks:
            del self._locks[group]

    def owner(self, group: str, queue: LockedQueue) -> str | None:
        """The client that holds a queue, None when nobody does."""
        owner = self._locks.get(group, {}).get(queue)
        return owner.client_id if owner is not None and owner.until > self._clock() else None

    def sweep(self) -> None:
        """Forget locks that ran out long ago, so that gone groups leave nothing behind."""
        now = self._clock()
        for group in list(self._locks):
            locks = self._locks[group]
            for queue in [queue for queue, owner in locks.items() if owner.until <= now]:
                del locks[queue]
            if not locks:
                del self._locks[group]
