"""Chooses the queue of the next message, and the failures that are worth another broker: pure.

Round robin over the queues of a topic, starting at a random one so that many producers do not walk
in step. A broker that failed a send is passed over for a while, if there is another: with a dead
broker among three, only a message every ten seconds pays for finding out that it is still dead.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import Final

from aerobee.client.errors import ClientError, NetworkError, PeerError
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.codes import ResponseCode

RETRY_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)
"""Codes after which a 4.9 producer tries another broker (WIRE.md 1.10); 2 is not among them."""


def worth_retrying(error: ClientError) -> bool:
    """True when another broker may well take what this one did not."""
    if isinstance(error, PeerError):
        return error.code in RETRY_CODES
    return isinstance(error, NetworkError)


def only_elsewhere(error: ClientError) -> bool:
    """True when the broker that gave this answer would give it again."""
    return isinstance(error, PeerError) and error.code == ResponseCode.NO_PERMISSION


class QueueChooser:
    """Round robin with a short memory for brokers that failed."""

    def __init__(
        self, avoid_s: float, clock: Callable[[], float], start: Callable[[int], int] | None = None
    ) -> None:
        self._avoid_s = avoid_s
        self._clock = clock
        self._start = start or random.randrange
        self._next: dict[str, int] = {}
        self._failed_until: dict[str, float] = {}

    def choose(
        self, topic: str, queues: Sequence[MessageQueue], tried: Collection[str] = ()
    ) -> MessageQueue:
        """The next queue, not on a broker in `tried` or lately failed, if there is such a one."""
        assert queues
        count = len(queues)
        first = self._next[topic] if topic in self._next else self._start(count)
        if not tried and not self._failed_until:
            self._next[topic] = first + 1
            return queues[first % count]
        for avoided in (self._failing() | set(tried), set(tried)):
            for step in range(count):
                queue = queues[(first + step) % count]
                if queue.broker_name not in avoided:
                    self._next[topic] = first + step + 1
                    return queue
        self._next[topic] = first + 1
        return queues[first % count]

    def failed(self, broker_name: str) -> None:
        """A send to this broker failed: pass it over for a while."""
        self._failed_until[broker_name] = self._clock() + self._avoid_s

    def succeeded(self, broker_name: str) -> None:
        """A send to this broker worked: it is as good as any again."""
        if self._failed_until:
            self._failed_until.pop(broker_name, None)

    def _failing(self) -> set[str]:
        now = self._clock()
        self._failed_until = {b: t for b, t in self._failed_until.items() if t > now}
        return set(self._failed_until)


def queue_by_key(queues: Sequence[MessageQueue], hash_of_key: int) -> MessageQueue:
    """The queue all messages of one key share, as Java's hash selector computes it."""
    return queues[abs(hash_of_key) % len(queues)]
