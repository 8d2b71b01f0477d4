"""Filters of consumer groups: what the members of a group that subscribe by SQL92 want of a topic.

A heartbeat brings them, and its version (the client's milliseconds) says which of two is newer: a
newer one replaces, an older one is ignored. An expression that cannot be compiled takes the place
of none and leaves none, so that the group's pulls are refused with the reason instead of being
served what it does not want (protocol/WIRE.md 3.2).

A filter is dead when the group's last member has left, or its heartbeats do not name the topic any
more. It is forgotten after `keep_ms`, or earlier for want of room.

Loop thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence

import msgspec

from aerobee.broker.tables.offsets import PairIndex
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.filters.property_filter import NODE_COST, MessageFilter, PropertyFilter
from aerobee.protocol.filters.subscription import TAG_TYPE, Subscription
from aerobee.protocol.message.properties import (
    PROPERTY_RETRY_TOPIC,
    chosen_properties,
    property_marks,
)

log = logging.getLogger("aerobee.broker.filters")

#: (topic, group)
Pair = tuple[str, str]

# Beside the filter: the entry, its names, its places.
_ENTRY_BYTES = 1024
# Subscriptions that are noted in one step.
_STEP = 4
_RETRY_MARKS = property_marks((PROPERTY_RETRY_TOPIC,))


class ConsumerFilter(msgspec.Struct, frozen=True):
    """What one group wants of one topic; `dead_ms` is 0 while it has a member that says so."""

    topic: str
    group: str
    type: str
    expression: str
    client_version: int
    born_ms: int
    compiled: PropertyFilter
    dead_ms: int = 0


class FilterTable:
    """The filters by topic and group."""

    def __init__(
        self, clock_ms: Callable[[], int], keep_ms: int, limit_bytes: Callable[[], int]
    ) -> None:
        """`limit_bytes` is asked for at each filter that is new: it may change."""
        self._clock_ms = clock_ms
        self._keep_ms = keep_ms
        self._limit_bytes = limit_bytes
        self._entries: dict[Pair, ConsumerFilter] = {}
        self._index = PairIndex(())
        # Those that are dead, in the order in which they died.
        self._dead: dict[Pair, None] = {}
        #: What they take.
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, topic: str, group: str) -> ConsumerFilter | None:
        """What the group wants of the topic."""
        return self._entries.get((topic, group))

    def retry_filter(self, group: str) -> MessageFilter:
        """What the group wants of its retry topic: of each message what it wants of the topic that
        it came from."""
        return _RetryFilter(self, group)

    def costliest(self, group: str) -> int:
        """The cost of the dearest filter of a group, 0 without any."""
        found = [self._entries[topic, group] for topic in self._index.topics_of(group)]
        return max([one.compiled.cost for one in found], default=0)

    def register(
        self,
        group: str,
        subscriptions: Sequence[Subscription],
        compiled: Mapping[str, PropertyFilter],
    ) -> Generator[None, None, None]:
        """Note what a member's heartbeat says of its group, in steps; `compiled` has its SQL92
        expressions that are some. Raises BadRequest when there is no room; what came before is
        noted."""
        for number, one in enumerate(subscriptions, 1):
            if one.type != TAG_TYPE and one.expression:
                self._register_one(group, one, compiled.get(one.expression))
            if number % _STEP == 0:
                yield
        if topics := self._index.topics_of(group):
            named = {one.topic for one in subscriptions}
            for topic in topics:
                if topic not in named:
                    self._die((topic, group))

    def group_left(self, group: str) -> None:
        """The last member of a group has left."""
        for topic in self._index.topics_of(group):
            self._die((topic, group))

    def forget_dead(self, most: int = 256) -> None:
        """Drop those that have been dead for too long, so many at most. Called by a timer."""
        oldest = self._clock_ms() - self._keep_ms
        for pair in list(self._dead)[:most]:
            if self._entries[pair].dead_ms > oldest:
                break
            log.info("filter forgotten topic=%s group=%s", *pair)
            self._remove(pair)

    # --- inside

    def _register_one(self, group: str, one: Subscription, compiled: PropertyFilter | None) -> None:
        pair = one.topic, group
        known = self._entries.get(pair)
        if known is not None and (one.type, one.expression) == (known.type, known.expression):
            if one.version >= known.client_version and (
                known.dead_ms or one.version > known.client_version
            ):
                self._put(
                    pair, msgspec.structs.replace(known, client_version=one.version, dead_ms=0)
                )
        elif known is not None and one.version <= known.client_version:
            log.info(
                "older filter ignored topic=%s group=%s version=%d known=%d",
                *pair,
                one.version,
                known.client_version,
            )
        elif compiled is None:
            log.warning("filter refused topic=%s group=%s type=%s", *pair, one.type[:64])
            self._remove(pair)
        else:
            self._check_room(pair, compiled)
            log.info("filter registered topic=%s group=%s version=%d", *pair, one.version)
            born_ms = self._clock_ms()
            self._put(
                pair,
                ConsumerFilter(*pair, one.type, one.expression, one.version, born_ms, compiled),
            )

    def _check_room(self, pair: Pair, compiled: PropertyFilter) -> None:
        known = self._entries.get(pair)
        added = _ENTRY_BYTES + compiled.size
        added -= _bytes(known) if known is not None else 0
        most = self._limit_bytes()
        while self.bytes + added > most and self._dead:
            oldest = next(iter(self._dead))
            if oldest == pair:
                added += _bytes(self._entries[pair])
            self._remove(oldest)
        if added > 0 and self.bytes + added > most:
            raise BadRequest.system_error(
                f"filters of consumers take {self.bytes} bytes, that of group {pair[1]} for topic "
                f"{pair[0]} {added} more, and the limit is {most}: shorten the expressions, or "
                "raise limits.sql_filter_bytes"
            )

    def _put(self, pair: Pair, entry: ConsumerFilter) -> None:
        known = self._entries.get(pair)
        self.bytes += _bytes(entry) - (_bytes(known) if known is not None else 0)
        self._entries[pair] = entry
        self._index.add(pair)
        self._dead.pop(pair, None)
        if entry.dead_ms:
            self._dead[pair] = None

    def _die(self, pair: Pair) -> None:
        entry = self._entries[pair]
        if not entry.dead_ms:
            self._put(pair, msgspec.structs.replace(entry, dead_ms=self._clock_ms()))

    def _remove(self, pair: Pair) -> None:
        entry = self._entries.pop(pair, None)
        if entry is not None:
            self.bytes -= _bytes(entry)
            self._dead.pop(pair, None)
            self._index.discard(pair)


class _RetryFilter:
    """Messages of a retry topic, by the filters of the topics that they came from."""

    __slots__ = ("_filters", "_group", "cost")
    # The filters are the table's.
    size = 0

    def __init__(self, filters: FilterTable, group: str) -> None:
        self._filters = filters
        self._group = group
        self.cost = NODE_COST + filters.costliest(group)

    def matches(self, properties: bytes) -> bool:
        """As `MessageFilter.matches`; where the group has no filter, all are wanted."""
        topic = chosen_properties(properties, _RETRY_MARKS).get(PROPERTY_RETRY_TOPIC)
        found = self._filters.get(topic, self._group) if topic else None
        return found is None or found.compiled.matches(properties)


def _bytes(entry: ConsumerFilter) -> int:
    return _ENTRY_BYTES + entry.compiled.size
