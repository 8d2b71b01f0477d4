"""Takes the consumer offsets of a master on its slave.

Each group's offsets in a topic are replaced as a whole, by smaller ones too, because a group may
have been reset. But while a master is away consumers commit at its slave; and a master that returns
would take them back to where it saw them last. So the first exchange after an absence, of this
broker or of the master, takes the larger offset of each queue; and what the slave keeps so stays
until the master says something else about the queue than it said then: until its consumer has
committed there, or was reset.

A master of ours has all the offsets that count, so others are forgotten. RocketMQ's has no more
than it was sent: what it does not name stays, as it does on its own slaves, while there is room.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from aerobee.broker.tables.files.offsets_text import Pair
from aerobee.broker.tables.offsets import NO_OFFSET, ConsumerOffsets, OffsetTable

# Groups in topics that are taken in one step, some microseconds each.
_STEP: Final = 64


class OffsetCopies:
    """Takes copies, one after the other. Loop thread only."""

    def __init__(self, offsets: ConsumerOffsets, most: int) -> None:
        """`most` is the limit of the number of offsets."""
        self._offsets = offsets
        self._most = most
        # Where this broker's offset is kept: what the master said of the queue at the first
        # exchange, `NO_OFFSET` for nothing.
        self._kept: dict[Pair, dict[int, int]] = {}

    def read(self, body: bytes) -> OffsetTable:
        """A copy, as `ConsumerOffsets.read` reads it. Raises ValueError for too many offsets, too.
        Any thread."""
        table = ConsumerOffsets.read(body)
        count = sum(map(len, table.values()))
        if count > self._most:
            raise ValueError(f"it has {count} offsets, and the limit is {self._most}")
        return table

    def take(self, table: OffsetTable, *, first: bool, whole: bool) -> Iterator[None]:
        """Take a copy, in steps. `first`: the first one after an absence. `whole`: it has all
        offsets of the master."""
        if first:
            self._kept.clear()
        is_full = self._offsets.count() + self._offsets.starts > self._most
        others = self._offsets.all_pairs() if first or whole or is_full else ()
        pairs = [*table, *[pair for pair in others if pair not in table]]
        for number, pair in enumerate(pairs, 1):
            self._take_one(pair, table.get(pair, {}), first=first)
            if number % _STEP == 0:
                yield None

    def _take_one(self, pair: Pair, theirs: Mapping[int, int], *, first: bool) -> None:
        topic, group = pair
        own = self._offsets.of(group, topic)
        if first:
            kept = {
                queue: theirs.get(queue, NO_OFFSET)
                for queue, offset in own.items()
                if offset > theirs.get(queue, NO_OFFSET)
            }
        else:
            kept = {
                queue: said
                for queue, said in self._kept.get(pair, {}).items()
                if theirs.get(queue, NO_OFFSET) == said and queue in own
            }
        if kept:
            self._kept[pair] = kept
        else:
            self._kept.pop(pair, None)
        self._offsets.put(group, topic, {**theirs, **{queue: own[queue] for queue in kept}})
