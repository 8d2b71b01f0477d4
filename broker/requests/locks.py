"""LOCK_BATCH_MQ and UNLOCK_BATCH_MQ: the requests around `order_locks.py` (WIRE.md 3.4)."""

from __future__ import annotations

from collections.abc import Callable

from aerobee.broker.tables.order_locks import LockedQueue, OrderLocks
from aerobee.protocol.bodies.clients import LockBatch, encode_locked_queues
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command, encode_response
from aerobee.protocol.names import check_group_name, check_topic_name
from aerobee.remoting.connection import Connection

Handler = Callable[[Connection, Command], bytes | None]


class LockRequests:
    """Serves orderly consumers. Loop thread only."""

    def __init__(self, locks: OrderLocks) -> None:
        self._locks = locks

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
        }

    def lock(self, _connection: Connection, command: Command) -> bytes:
        """Lock or renew; the answer holds only the queues that are the client's now."""
        batch, queues = _read(command)
        held = self._locks.lock(batch.group, batch.client_id, queues)
        body = encode_locked_queues([MessageQueue(*queue) for queue in held])
        return encode_response(command, ResponseCode.SUCCESS, None, None, body)

    def unlock(self, _connection: Connection, command: Command) -> bytes:
        """Give up; queues held by others stay as they are."""
        batch, queues = _read(command)
        self._locks.unlock(batch.group, batch.client_id, queues)
        return encode_response(command, ResponseCode.SUCCESS)


def _read(command: Command) -> tuple[LockBatch, list[LockedQueue]]:
    batch = LockBatch.parse(command.body)
    check_group_name(batch.group)
    for topic in {queue.topic for queue in batch.queues}:
        check_topic_name(topic)
    return batch, [LockedQueue(*queue) for queue in batch.queues]
