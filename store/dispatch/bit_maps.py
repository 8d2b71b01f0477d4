"""Bit maps of filters: which groups' filters each message met when it was dispatched
(store/FORMAT.md 5.6, `protocol/filters/bloom.py`).

Made with `enableCalcFilterBitMap` where queues have extension files, for messages of topics that
some group filters by SQL92. They spare such a group's pulls the properties of unwanted messages,
and are no more than that: a message without a map is judged by its properties. So recovery and a
rebuild, which know no filters, make entries without maps; and messages whose maps take too long get
none, because a round of dispatch is one step of a turn.

A group whose filter is known but cannot be evaluated has its bits in every map.

Threads: the store's caller only.
"""

from __future__ import annotations

from aerobee.protocol.filters.property_filter import MessageFilter
from aerobee.protocol.message.record_layout import properties_in
from aerobee.store.segments.mapped_file_queue import MappedFileQueue
from aerobee.store.store_stats import StoreStats

# In tenths of a microsecond: the cost of a message besides its filters, of a filter besides its
# expression, and the most for a round of dispatch; bytes of properties that cost 1.
_MESSAGE_COST = 35
_FILTER_COST = 20
_ROUND_COST = 20_000
_PROPERTY_BYTES = 3


class FilterBitMaps:
    """Makes the maps of dispatched messages, of `map_bytes` each; knows the filters by topic and
    group."""

    def __init__(self, segments: MappedFileQueue, map_bytes: int, stats: StoreStats) -> None:
        self._segments = segments
        self.map_bytes = map_bytes
        self._stats = stats
        # The bits and the filter of each group, by topic and group.
        self._topics: dict[str, dict[str, tuple[int, MessageFilter | None]]] = {}
        # The cost of a map without the properties, by topic; no topic costs more than the dearest.
        self._costs: dict[str, int] = {}
        self._dearest = 0
        self._left = 0

    def know(self, topic: str, group: str, mask: int, wanted: MessageFilter | None) -> None:
        """From the next message of the topic on, let maps say whether it met this filter; None:
        that it did."""
        self._topics.setdefault(topic, {})[group] = mask, wanted
        self._count(topic)

    def forget(self, topic: str, group: str) -> None:
        """Forget a filter: nobody asks for it any more."""
        groups = self._topics[topic]
        del groups[group]
        if not groups:
            del self._topics[topic]
        self._count(topic)

    def _count(self, topic: str) -> None:
        before, groups = self._costs.pop(topic, 0), self._topics.get(topic)
        if groups is not None:
            each = [_cost(one) for _, one in groups.values()]
            self._costs[topic] = _MESSAGE_COST + sum(each)
        now = self._costs.get(topic, 0)
        if now >= self._dearest:
            self._dearest = now
        elif before == self._dearest:
            self._dearest = max(self._costs.values(), default=0)

    def begin_round(self, most: int) -> int:
        """Begin a round of dispatch; return how many of at most `most` messages it should have."""
        self._left = _ROUND_COST
        return most if not self._dearest else max(1, min(most, _ROUND_COST // self._dearest))

    def of(self, topic: str, log_offset: int, size: int) -> bytes:
        """The map of a message; empty without a map."""
        groups = self._topics.get(topic)
        if groups is None:
            return b""
        properties = self._properties(log_offset, size)
        if properties is None:
            return b""
        read = len(properties) // _PROPERTY_BYTES
        left = self._left - _MESSAGE_COST
        bits = 0
        for mask, wanted in groups.values():
            left -= _cost(wanted) + (read if wanted is not None else 0)
            if left < 0:
                self._left = 0
                self._stats.bit_maps_left_out += 1
                return b""
            if wanted is None or wanted.matches(properties):
                bits |= mask
        self._left = left
        self._stats.bit_maps_made += 1
        return bits.to_bytes(self.map_bytes, "little")

    def _properties(self, log_offset: int, size: int) -> bytes | None:
        segment = self._segments.find(log_offset)
        if segment is None:
            return None
        position = log_offset - segment.start
        return properties_in(segment.view, position, position + size)


def _cost(wanted: MessageFilter | None) -> int:
    """The cost of a filter for a message, without the properties."""
    return 1 if wanted is None else wanted.cost + _FILTER_COST
