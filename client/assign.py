"""Assigns the queues of a topic to the consumers of a group: pure functions.

Every consumer of a group computes this alone, from the same two lists, and must come to the same
answer as the others, Java ones included: sorted client ids, sorted queues, and the arithmetic of
RocketMQ's average strategy (its default). A strategy of one's own has to be used by all members.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aerobee.protocol.bodies.common import MessageQueue

Strategy = Callable[[Sequence[str], Sequence[MessageQueue], str], list[MessageQueue]]
"""(client ids sorted, queues sorted, own client id) -> the queues that are ours, sorted."""


def average(
    client_ids: Sequence[str], queues: Sequence[MessageQueue], own_id: str
) -> list[MessageQueue]:
    """Contiguous runs of queues; the first `len(queues) % len(client_ids)` clients get one more.

    An unknown `own_id` (our heartbeat has not arrived at the broker yet) owns nothing.
    """
    if own_id not in client_ids:
        return []
    index = client_ids.index(own_id)
    share, rest = divmod(len(queues), len(client_ids))
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (1 if index < rest else 0)])


def average_by_circle(
    client_ids: Sequence[str], queues: Sequence[MessageQueue], own_id: str
) -> list[MessageQueue]:
    """Queues dealt out in turn: spreads the queues of each broker over all consumers."""
    if own_id not in client_ids:
        return []
    return list(queues[client_ids.index(own_id) :: len(client_ids)])


def assign(
    strategy: Strategy, client_ids: Sequence[str], queues: Sequence[MessageQueue], own_id: str
) -> list[MessageQueue]:
    """Sort both lists as every other member does, and apply the strategy."""
    return strategy(sorted(set(client_ids)), sorted(set(queues)), own_id)
