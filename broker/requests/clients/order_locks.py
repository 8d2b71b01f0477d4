"""LOCK_BATCH_MQ and UNLOCK_BATCH_MQ: which client may consume a queue in order
(protocol/WIRE.md 3.4).

A lock belongs to (group, queue) and one client id, for `lease_s` from its last renewal; clients
renew every 20 s. A lock that has run out goes to the next client that asks. Locks are kept in
memory alone.

Bounded: a queue is locked that this broker has, of a topic to which the group subscribes, by a
member of the group; a client that has lost its connection renews what it holds. There are at most
`MAX_LOCKS`. Nothing else is an error: the answer leaves it out, and the client asks again. A lock
stands in the second of a wheel in which it is looked at next, renewed or given up as it may be
meanwhile; so a sweep touches those alone whose second has come, some a slice.

Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from aerobee.broker.background.loop_workers import BodyReader
from aerobee.broker.routing.router import Handler
from aerobee.broker.tables.clients import ClientTable
from aerobee.broker.tables.topics import TopicTable
from aerobee.protocol.bodies.clients import LockBatch, encode_locked_queues
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.names import check_group_name, check_topic_name, is_light
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Steps

#: Some 500 bytes each.
MAX_LOCKS = 100_000

# Queues that are locked in one step, a microsecond each; a request may name 20,000.
_STEP = 100
# Locks that are looked at in one step, a tenth of a microsecond each.
_LOOK_STEP = 2_000

# A queue of this broker, by topic and number.
_Queue = tuple[str, int]


class _Lock(NamedTuple):
    """Nobody's when `until` has passed; `second` is when it is looked at next."""

    client_id: str
    until: float
    second: int


class OrderLocks:
    """Locks of all groups; `clock` is monotonic, in seconds."""

    def __init__(self, lease_s: float, clock: Callable[[], float]) -> None:
        self._lease_s = lease_s
        self._clock = clock
        self._locks: dict[str, dict[_Queue, _Lock]] = {}
        # (group, queue) of the locks that are looked at in a second, and the earliest of those.
        self._wheel: dict[int, list[tuple[str, _Queue]]] = {}
        self._next_second = int(clock())
        self._count = 0

    def __len__(self) -> int:
        """Locks that are kept, those that ran out and were not swept yet among them."""
        return self._count

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> list[MessageQueue]:
        """Lock or renew; returns those of `queues` that the client holds now."""
        now = self._clock()
        until = now + self._lease_s
        locks = self._locks.setdefault(group, {})
        held: list[MessageQueue] = []
        for queue in queues:
            key = (queue.topic, queue.queue_id)
            owner = locks.get(key)
            if owner is None:
                if self._count >= MAX_LOCKS:
                    continue
                self._count += 1
                second = int(until) + 1
                self._wheel.setdefault(second, []).append((group, key))
                locks[key] = _Lock(client_id, until, second)
            elif owner.client_id == client_id or owner.until <= now:
                locks[key] = _Lock(client_id, until, owner.second)
            else:
                continue
            held.append(queue)
        if not locks:
            del self._locks[group]
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Give up the locks the client holds; others' stay."""
        locks = self._locks.get(group, {})
        for queue in queues:
            key = (queue.topic, queue.queue_id)
            owner = locks.get(key)
            if owner is not None and owner.client_id == client_id:
                locks[key] = owner._replace(client_id="", until=0.0)

    def owner(self, group: str, queue: MessageQueue) -> str | None:
        """The client that holds a queue, None without one."""
        owner = self._locks.get(group, {}).get((queue.topic, queue.queue_id))
        return owner.client_id if owner is not None and owner.until > self._clock() else None

    def held_by(self, group: str, client_id: str) -> Iterator[list[_Queue]]:
        """The queues that a member of a group holds now, some at a time."""
        now = self._clock()
        locks = list(self._locks.get(group, {}).items())
        for at in range(0, len(locks), _LOOK_STEP):
            yield [
                queue
                for queue, lock in locks[at : at + _LOOK_STEP]
                if lock.client_id == client_id and lock.until > now
            ]

    def sweep_some(self) -> bool:
        """Forget some of the locks that ran out; False when there was nothing to look at."""
        now = self._clock()
        while self._next_second <= now:
            due = self._wheel.get(self._next_second)
            if due is None:
                self._next_second += 1
                continue
            for group, key in due[-_STEP:]:
                self._look(group, key, now)
            del due[-_STEP:]
            if not due:
                del self._wheel[self._next_second]
            return True
        return False

    def _look(self, group: str, key: _Queue, now: float) -> None:
        locks = self._locks[group]
        lock = locks[key]
        if lock.until > now:
            second = int(lock.until) + 1
            locks[key] = lock._replace(second=second)
            self._wheel.setdefault(second, []).append((group, key))
            return
        del locks[key]
        self._count -= 1
        if not locks:
            del self._locks[group]


class LockRequests:
    """Serves orderly consumers."""

    def __init__(
        self, locks: OrderLocks, bodies: BodyReader, topics: TopicTable, clients: ClientTable
    ) -> None:
        self._locks = locks
        self._bodies = bodies
        self._topics = topics
        self._clients = clients

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    def lock(self, _connection: Connection, command: Command) -> Steps:
        """Lock or renew; the answer holds only the queues that are the client's now."""
        batch = yield from self._bodies.read(_read, command.body)
        held: list[MessageQueue] = []
        for start in range(0, len(batch.queues), _STEP):
            some = self._lockable(batch, batch.queues[start : start + _STEP])
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

    def _lockable(self, batch: LockBatch, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Those that there are, and that the client holds or may take as a member of its group."""
        group = self._clients.consumer_group(batch.group)
        is_member = group is not None and batch.client_id in group.ids
        found = []
        for queue in queues:
            if not self._is_queue(queue):
                continue
            may_take = is_member and group is not None and queue.topic in group.subscriptions
            if may_take or self._locks.owner(batch.group, queue) == batch.client_id:
                found.append(queue)
        return found

    def _is_queue(self, queue: MessageQueue) -> bool:
        topic = self._topics.get(queue.topic)
        if topic is None:
            return is_light(queue.topic) and queue.queue_id == 0
        return 0 <= queue.queue_id < topic.read_queues


def _read(body: bytes) -> LockBatch:
    batch = LockBatch.parse(body)
    check_group_name(batch.group)
    for topic in {queue.topic for queue in batch.queues}:
        check_topic_name(topic)
    return batch
