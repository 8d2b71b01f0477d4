"""Takes the consumer offsets of a master on its slave.

Each group's offsets in a topic are replaced as a whole, by smaller ones too, because a group may
have been reset. But while a master is away consumers commit at its slave; and a master that returns
would take them back to where it saw them last. So the first exchange after an absence, of this
broker or of the master, takes the larger offset of each queue; and what the slave keeps so stays
until the master says something else about the queue than it said then: until its consumer has
committed there, or was reset.

A master of ours has all the offsets that count, so others are forgotten. RocketMQ's has no more
than it was sent: what it does not name stays, as it does on its own slaves.
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

    def __init__(self, offsets: ConsumerOffsets) -> None:
        self._offsets = offsets
        # Where this broker's offset is kept: what the master said of the queue at the first
        # exchange, `NO_OFFSET` for nothing.
        self._kept: dict[Pair, dict[int, int]] = {}

    def take(self, table: OffsetTable, *, first: bool, whole: bool) -> Iterator[None]:
        """Take a copy, in steps. `first`: the first one after an absence. `whole`: it has all
        offsets of the master."""
        if first:
            self._kept.clear()
        own = {pair for pair in self._pairs() if pair not in table} if whole or first else set()
        for number, pair in enumerate([*table, *own], 1):
            self._take_one(pair, table.get(pair, {}), first=first)
            if number % _STEP == 0:
                yield None

    def _pairs(self) -> list[Pair]:
        return self._offsets.all_pairs()

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
