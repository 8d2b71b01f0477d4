"""The locks that make orderly consumption safe: one client at a time holds a queue at its broker.

The broker's lease is 60 s, renewed by asking again; we ask each 20 s and trust a lock for 30 s, so
that we stop before the broker lets another client in, whatever our clocks say (WIRE.md 3.4).
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection
from typing import Final, NamedTuple

from aerobee.client.connections.session import Session
from aerobee.client.errors import ClientError, reading
from aerobee.protocol.bodies.clients import LockBatch, parse_locked_queues
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.codes import RequestCode

log = logging.getLogger(__name__)

LOCK_TRUST_S: Final = 30.0


class LockResult(NamedTuple):
    """The queues that this client holds now, and those that another client holds."""

    held: set[MessageQueue]
    refused: set[MessageQueue]


class OrderLocks:
    """Locks and unlocks queues of one group for this client."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group

    async def lock(self, queues: Collection[MessageQueue]) -> LockResult:
        """Ask for all these; the queues of a broker that did not answer are in neither set."""
        held: set[MessageQueue] = set()
        refused: set[MessageQueue] = set()
        parts = _by_broker(queues)
        answers = await asyncio.gather(*(self._lock_at(name, part) for name, part in parts.items()))
        for part, answer in zip(parts.values(), answers, strict=True):
            if answer is not None:
                held |= answer & set(part)
                refused |= set(part) - answer
        return LockResult(held, refused)

    async def unlock(self, queues: Collection[MessageQueue]) -> None:
        """Give locks up at once; a failure is logged, the lease ends by itself."""
        for name, part in _by_broker(queues).items():
            try:
                await self._session.call(
                    self._session.master(name), RequestCode.UNLOCK_BATCH_MQ, body=self._body(part)
                )
            except ClientError as error:
                log.warning("unlock failed broker=%s error=%s", name, error)

    async def _lock_at(self, broker: str, queues: list[MessageQueue]) -> set[MessageQueue] | None:
        try:
            address = self._session.master(broker)
            answer = await self._session.call(
                address, RequestCode.LOCK_BATCH_MQ, body=self._body(queues)
            )
            with reading(address):
                return set(parse_locked_queues(answer.body))
        except ClientError as error:
            log.warning("lock failed broker=%s error=%s", broker, error)
            return None

    def _body(self, queues: list[MessageQueue]) -> bytes:
        return LockBatch(self._session.client_id, self._group, tuple(queues)).encode()


def _by_broker(queues: Collection[MessageQueue]) -> dict[str, list[MessageQueue]]:
    parts: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in sorted(queues):
        parts[queue.broker_name].append(queue)
    return parts
