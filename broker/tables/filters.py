"""Filters of consumer groups: the messages of a topic that a group wants whose members subscribe by
an expression over properties (`config/consumerFilter.json`, store/FORMAT.md 11.2).

A heartbeat brings them: what the group's members have stated last (`statements.py`) replaces what
was here, whatever the client's clock says. The version is kept for the file, and for pulls that are
newer than the heartbeats. An expression that cannot be compiled takes the place of none and leaves
none, so that the group's pulls are refused with the reason instead of being served what it does not
want (protocol/WIRE.md 3.2).

With bit maps (store/FORMAT.md 5.6) the store is told of each filter, so that messages stored from
then on have its bits. They are believed from the log's end at that moment on, of this run of the
broker alone: what a crash or another broker did to the file in between is not known. Of a filter
that is known and not compiled all messages have the bits.

A filter is dead when the group's last member has left, or its heartbeats do not name the topic any
more. It is forgotten after `keep_ms`, or earlier for want of room. All are dead after a start, and
not compiled, until a heartbeat names them again.

Changed in memory at once, written by housekeeping and at the stop. Loop thread only, but for
`save`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import msgspec

from aerobee.broker.tables.files.state_file import JsonStateFile, members, pretty, read_document
from aerobee.broker.tables.offsets import PairIndex
from aerobee.config.model import Settings
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.filters.bloom import BloomFilter, map_mask
from aerobee.protocol.filters.property_filter import (
    CHAR_BYTES,
    FILTER_BYTES,
    NODE_COST,
    TAG_TYPE,
    MapTest,
    MessageFilter,
    PropertyFilter,
    TypedExpression,
)
from aerobee.protocol.filters.subscription import Subscription
from aerobee.protocol.message.properties import (
    PROPERTY_RETRY_TOPIC,
    chosen_properties,
    property_marks,
)
from aerobee.store.message_store import MessageStore

log = logging.getLogger("aerobee.broker.filters")

#: (topic, group)
Pair = tuple[str, str]

# Beside the filter: the entry, its names, its places.
_ENTRY_BYTES = 1024
# Subscriptions that are noted in one step.
_STEP = 4
# The reference's rule: a filter that was alive when the file was written counts as dead since then.
_DEAD_BEFORE_START_MS = 30_000
_RETRY_MARKS = property_marks((PROPERTY_RETRY_TOPIC,))


class ConsumerFilter(msgspec.Struct, frozen=True):
    """The filter of a group for a topic. `dead_ms` is 0 while a member states it; `compiled` is
    None if no member has stated it since the start. `positions` are its bits in bit maps."""

    topic: str
    group: str
    type: str
    expression: str
    client_version: int
    born_ms: int
    positions: tuple[int, ...]
    compiled: PropertyFilter | None = None
    dead_ms: int = 0
    # Bits in maps of messages below this log offset say nothing.
    mapped_from: int = 0

    @property
    def typed_expression(self) -> TypedExpression:
        """The type and the text of the expression."""
        return self.type, self.expression


class FilterTable:
    """The filters by topic and group."""

    def __init__(
        self,
        settings: Settings,
        file: JsonStateFile,
        clock_ms: Callable[[], int],
        store: MessageStore | None = None,
    ) -> None:
        """`store` has the bit maps, where it makes some. Raises StateFileError."""
        # Its limit of bytes may change.
        self._settings = settings
        self._file = file
        self._bloom = BloomFilter(settings.filter_error_percent, settings.filter_groups)
        self._clock_ms = clock_ms
        self._keep_ms = settings.filter_keep_ms
        self._store = store
        self._maps = None if store is None else store.bit_maps
        self._entries: dict[Pair, ConsumerFilter] = {}
        self._index = PairIndex(())
        # Those that are dead, in the order in which they died.
        self._dead: dict[Pair, None] = {}
        #: Bytes that the filters take.
        self.bytes = 0
        nothing: list[ConsumerFilter] = []
        stored = file.load(self._parse, nothing)
        for entry in sorted(stored, key=lambda one: one.dead_ms):
            self._put((entry.topic, entry.group), entry)
        self._changed = False
        self._newest: list[ConsumerFilter] = []
        self._saving = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, topic: str, group: str) -> ConsumerFilter | None:
        """The group's filter for the topic."""
        return self._entries.get((topic, group))

    def retry_filter(self, group: str) -> MessageFilter:
        """The group's filter for its retry topic: it judges each message by the group's filter for
        the topic that the message came from."""
        return _RetryFilter(self, group)

    def costliest(self, group: str) -> int:
        """The cost of the dearest filter of a group, 0 without any."""
        found = [self._entries[topic, group].compiled for topic in self._index.topics_of(group)]
        return max([one.cost for one in found if one is not None], default=0)

    def register(
        self,
        group: str,
        subscriptions: Sequence[Subscription],
        in_force: Mapping[str, Subscription],
        compiled: Mapping[TypedExpression, PropertyFilter],
    ) -> Generator[None, None, None]:
        """Note what a member's heartbeat says of its group, in steps: `subscriptions`, as far as
        they are those `in_force`. `compiled` has the expressions that could be compiled. Raises
        BadRequest when there is no room; what came before is noted."""
        for number, stated in enumerate(subscriptions, 1):
            one = in_force.get(stated.topic, stated)
            is_one = one.typed_expression == stated.typed_expression
            if is_one and one.type != TAG_TYPE and one.expression:
                self._register_one(group, one, compiled.get(one.typed_expression))
            if number % _STEP == 0:
                yield
        for topic in self._index.topics_of(group):
            if topic not in in_force:
                self._die((topic, group))

    def group_left(self, group: str) -> None:
        """The last member of a group has left."""
        for topic in self._index.topics_of(group):
            self._die((topic, group))

    def forget_dead(self, most: int = 256) -> None:
        """Drop filters that have been dead for too long, at most `most`. Called by a timer."""
        oldest = self._clock_ms() - self._keep_ms
        for pair in list(self._dead)[:most]:
            if self._entries[pair].dead_ms > oldest:
                break
            log.info("filter forgotten topic=%s group=%s", *pair)
            self._remove(pair)

    def _log_end(self) -> int:
        return 0 if self._store is None else self._store.written

    # --- the file

    def take_changes(self) -> list[ConsumerFilter] | None:
        """The filters if they have changed since the last call, else None."""
        if not self._changed:
            return None
        self._changed = False
        self._newest = list(self._entries.values())
        return self._newest

    def save(self, entries: list[ConsumerFilter]) -> None:
        """Write what `take_changes` gave, unless newer ones were taken. Any thread; OSError."""
        with self._saving:
            if entries is self._newest:
                self._file.save(pretty(self._document(entries)))

    def mark_unsaved(self) -> None:
        """A `save` failed: the next `take_changes` gives the table again."""
        self._changed = True

    def mark_lost(self) -> None:
        """The file is gone: the same, if there is anything in it."""
        self._changed = self._changed or bool(self._entries)

    def _document(self, entries: list[ConsumerFilter]) -> Mapping[str, Any]:
        by_topic: dict[str, dict[str, ConsumerFilter]] = {}
        for one in entries:
            by_topic.setdefault(one.topic, {})[one.group] = one
        return {
            "filterDataByTopic": {
                topic: {
                    "groupFilterData": {
                        group: self._members(one) for group, one in sorted(groups.items())
                    },
                    "topic": topic,
                }
                for topic, groups in sorted(by_topic.items())
            }
        }

    def _members(self, one: ConsumerFilter) -> Mapping[str, Any]:
        return {
            "bloomFilterData": {"bitNum": self._bloom.bits, "bitPos": one.positions},
            "bornTime": one.born_ms,
            "clientVersion": one.client_version,
            "consumerGroup": one.group,
            "dead": one.dead_ms >= one.born_ms,
            "deadTime": one.dead_ms,
            "expression": one.expression,
            "expressionType": one.type,
            "topic": one.topic,
        }

    def _parse(self, content: bytes) -> list[ConsumerFilter]:
        found: list[ConsumerFilter] = []
        now_ms = self._clock_ms()
        died_ms = now_ms - _DEAD_BEFORE_START_MS
        by_topic = members(members(read_document(content))["filterDataByTopic"])
        for topic, of_topic in by_topic.items():
            for group, one in members(members(of_topic)["groupFilterData"]).items():
                data = members(one)
                positions = self._bloom.positions(group, topic)
                bits = members(data.get("bloomFilterData") or {})
                stored = bits.get("bitNum"), bits.get("bitPos")
                # Maps of other sizes say nothing; RocketMQ takes those of later messages only.
                same = stored == (self._bloom.bits, list(positions))
                born_ms = int(data["bornTime"]) if same else now_ms
                found.append(
                    ConsumerFilter(
                        topic,
                        group,
                        str(data["expressionType"]),
                        str(data["expression"]),
                        int(data["clientVersion"]),
                        born_ms,
                        positions,
                        dead_ms=int(data["deadTime"]) or max(born_ms, died_ms),
                        mapped_from=self._log_end(),
                    )
                )
        return found

    # --- inside

    def _register_one(self, group: str, one: Subscription, compiled: PropertyFilter | None) -> None:
        pair = one.topic, group
        known = self._entries.get(pair)
        is_same = known is not None and one.typed_expression == known.typed_expression
        if known is not None and is_same and (compiled or known.compiled):
            self._renew(pair, known, one.version, compiled)
        elif compiled is None:
            log.warning("filter refused topic=%s group=%s type=%s", *pair, one.type[:64])
            self._remove(pair)
        else:
            self._check_room(pair, compiled)
            log.info("filter registered topic=%s group=%s version=%d", *pair, one.version)
            topic, kind, text = one.topic, one.type, one.expression
            positions = self._bloom.positions(group, topic)
            born_ms = self._clock_ms()
            if known is not None and known.compiled is not None:
                # Maps are the new one's from now on, and someone may still be reading by the old.
                known.compiled.map_test = None
            entry = ConsumerFilter(
                topic, group, kind, text, one.version, born_ms, positions, None, 0, self._log_end()
            )
            self._put(pair, msgspec.structs.replace(entry, compiled=self._mapped(entry, compiled)))

    def _renew(
        self, pair: Pair, known: ConsumerFilter, version: int, compiled: PropertyFilter | None
    ) -> None:
        """A heartbeat says what is known."""
        if version != known.client_version or known.dead_ms or known.compiled is None:
            renewed = msgspec.structs.replace(
                known,
                client_version=version,
                dead_ms=0,
                compiled=known.compiled or self._mapped(known, compiled),
            )
            self._put(pair, renewed)

    def _mapped(
        self, entry: ConsumerFilter, compiled: PropertyFilter | None
    ) -> PropertyFilter | None:
        """The expression as this group's, which bit maps know."""
        if self._maps is None or compiled is None:
            return compiled
        return PropertyFilter(
            compiled.compiled, MapTest(map_mask(entry.positions), entry.mapped_from)
        )

    def _check_room(self, pair: Pair, compiled: PropertyFilter) -> None:
        known = self._entries.get(pair)
        added = _ENTRY_BYTES + compiled.size
        added -= _bytes(known) if known is not None else 0
        most = self._settings.sql_filter_bytes
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
        self._changed = True
        self._entries[pair] = entry
        if self._maps is not None and (known is None or known.compiled is not entry.compiled):
            self._maps.know(*pair, map_mask(entry.positions), entry.compiled)
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
            self._changed = True
            self.bytes -= _bytes(entry)
            self._dead.pop(pair, None)
            self._index.discard(pair)
            if self._maps is not None:
                self._maps.forget(*pair)
                if entry.compiled is not None:
                    entry.compiled.map_test = None


class _RetryFilter:
    """Messages of a retry topic, by the filters of the topics that they came from."""

    __slots__ = ("_filters", "_group", "cost")
    # The filters are the table's.
    size = 0
    # Maps are by the message's own topic.
    map_test: MapTest | None = None

    def __init__(self, filters: FilterTable, group: str) -> None:
        self._filters = filters
        self._group = group
        self.cost = NODE_COST + filters.costliest(group)

    def matches(self, properties: bytes) -> bool:
        """See `MessageFilter.matches`; a group without a filter takes all messages."""
        topic = chosen_properties(properties, _RETRY_MARKS).get(PROPERTY_RETRY_TOPIC)
        found = self._filters.get(topic, self._group) if topic else None
        compiled = None if found is None else found.compiled
        return compiled is None or compiled.matches(properties)


def _bytes(entry: ConsumerFilter) -> int:
    if entry.compiled is not None:
        return _ENTRY_BYTES + entry.compiled.size
    return _ENTRY_BYTES + FILTER_BYTES + CHAR_BYTES * len(entry.expression)
