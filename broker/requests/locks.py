"""LOCK_BATCH_MQ and UNLOCK_BATCH_MQ: which client may consume a queue in order
(protocol/WIRE.md 3.4).

A lock belongs to (group, queue) and one client id, for `lease_s` from its last renewal; clients
renew every 20 s. A lock that has run out goes to the next client that asks. Locks are kept in
memory alone. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from aerobee.broker.router import Handler
from aerobee.broker.workers import BodyReader
from aerobee.protocol.bodies.clients import LockBatch, encode_locked_queues
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.names import check_group_name, check_topic_name
from aerobee.remoting.connection import Connection
from aerobee.remoting.turns import Steps

# Queues that are locked in one step, a microsecond each; a request may name 20,000.
_STEP = 100


class _Lock(NamedTuple):
    client_id: str
    until: float


class OrderLocks:
    """Locks of all groups; `clock` is monotonic, in seconds."""

    def __init__(self, lease_s: float, clock: Callable[[], float]) -> None:
        self._lease_s = lease_s
        self._clock = clock
        self._locks: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> list[MessageQueue]:
        """Lock or renew; returns those of `queues` that the client holds now."""
        now = self._clock()
        locks = self._locks.setdefault(group, {})
        held: list[MessageQueue] = []
        for queue in queues:
            owner = locks.get(queue)
            if owner is None or owner.client_id == client_id or owner.until <= now:
                locks[queue] = _Lock(client_id, now + self._lease_s)
                held.append(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
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

    def owner(self, group: str, queue: MessageQueue) -> str | None:
        """The client that holds a queue, None without one."""
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


class LockRequests:
    """Serves orderly consumers."""

    def __init__(self, locks: OrderLocks, bodies: BodyReader) -> None:
        self._locks = locks
        self._bodies = bodies

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
        }

    def lock(self, _connection: Connection, command: Command) -> Steps:
        """Lock or renew; the answer holds only the queues that are the client's now."""
        batch = yield from self._bodies.read(_read, command.body)
        held: list[MessageQueue] = []
        for start in range(0, len(batch.queues), _STEP):
            some = batch.queues[start : start + _STEP]
            held += self._locks.lock(batch.group, batch.client_id, some)
            yield None
        body = yield from encode_locked_queues(held)
        return encode_success(command, body)

    def unlock(self, _connection: Connection, command: Command) -> Steps:
        """Give up; queues held by others stay as they are."""
        batch = yield from self._bodies.read(_read, command.body)
        for start in range(0, len(batch.queues), _STEP):
            some = batch.queues[start : start + _STEP]
            self._locks.unlock(batch.group, batch.client_id, some)
            yield None
        return encode_success(command)


def _read(body: bytes) -> LockBatch:
    batch = LockBatch.parse(body)
    check_group_name(batch.group)
    for topic in {queue.topic for queue in batch.queues}:
        check_topic_name(topic)
    return batch
