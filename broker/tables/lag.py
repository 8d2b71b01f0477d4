"""How far each group is behind: one judgement, for GET_CONSUME_STATS and its like, for the metrics,
for resets, and through their answers for every command that says "behind".

A group is behind in each queue that can be read of each topic that it subscribes to, or has an
offset in. What it has not consumed of a queue begins

- at its offset, if it has committed one there;
- else where it would start (`start`): at 0 if QUERY_CONSUMER_OFFSET says so, at the first message
  where a start has lost the table of offsets, else where its members choose to;
- never below the queue's first message: what has expired cannot be consumed any more.

It ends with the queue. What was given out and is not committed lies inside.

What the group has failed on, and waits for its next try among the delayed messages, it has before
it as well, though no queue that it reads has it yet: `waiting_retries`, part of its retry topic.

Members that begin at the end of a queue choose that place once, when they are told that there is no
offset, and say nothing of it before they commit one. So it is noted at that answer (`note_asked`):
with a listener that hangs on the first message that it gets, no offset follows. The notes are those
of this run of the broker and go with the group's other counters.

Where the group would start is not known for a queue whose first messages are gone or on disk alone,
if no member is online that would say by which rule it begins, if it begins at a time that only it
knows, or if it has begun before this run of the broker. The lag there is unknown: it is neither 0
nor all messages of the queue. What has to be safe (a reset, the retention of messages) takes the
first message in its place.

A group whose members keep their own offsets (BROADCASTING) has no number here at all.

Loop thread only.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.tables.clients import ClientTable, ConsumerGroup
from aerobee.broker.tables.groups import GroupTable
from aerobee.broker.tables.offsets import (
    NO_OFFSET,
    ConsumerOffsets,
    OffsetTables,
    committed_by_queue,
    is_start_group,
)
from aerobee.broker.tables.retries_waiting import RetriesWaiting
from aerobee.broker.tables.topics import TopicTable
from aerobee.protocol.bodies.clients import BROADCASTING, FROM_FIRST_OFFSET, FROM_TIMESTAMP
from aerobee.protocol.names import RETRY_PREFIX, dlq_topic, is_retry_topic, retry_topic
from aerobee.remoting.connections.connection import Connection
from aerobee.store.background.retention.deletion_plan import OffsetsByQueue
from aerobee.store.disk.owner import OnOwner
from aerobee.store.message_store import MessageStore

# Queues that are looked at in one call on the loop, some microseconds each.
_STEP_STARTS: Final = 64


class QueueLag(NamedTuple):
    """The part of a queue that a group has not consumed: offsets from `begin` up to `end`."""

    queue_id: int
    #: The committed offset, `NO_OFFSET` without one.
    committed: int
    begin: int
    end: int
    #: The offset after the last message that it was given, from `begin` to `end`.
    given_out: int
    #: Whether the group begins at `begin`; otherwise it does there or later.
    is_known: bool = True

    @property
    def messages(self) -> int:
        """How many those are at most."""
        return self.end - self.begin

    @property
    def lag(self) -> int | None:
        """How many those are, None where nobody knows; 0 in an empty queue, whoever knows."""
        return self.messages if self.is_known or not self.messages else None

    @property
    def held(self) -> int | None:
        """How many of those the group was given and has not consumed; None as `lag`."""
        return self.given_out - self.begin if self.lag is not None else None

    @property
    def position(self) -> int:
        """Where the group is, for people: `begin`, or an offset beyond the end as it stands."""
        return max(self.begin, self.committed)


class ConsumerLag:
    """Judges the groups of one broker."""

    def __init__(
        self,
        *,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        clients: ClientTable,
        stats: BrokerStats,
        store: MessageStore,
        retries: RetriesWaiting,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._clients = clients
        self._stats = stats
        self._store = store
        self._retries = retries

    # --- which groups, topics and queues

    def is_known(self, group: str) -> bool:
        """Whether a group has settings, a member online or an offset."""
        return self._exists(group) or bool(self._offsets.topics_of(group))

    def _exists(self, group: str) -> bool:
        """Whether it has settings or a member: offsets alone are left of deleted ones."""
        return (
            self._groups.find(group) is not None or self._clients.consumer_group(group) is not None
        )

    def keeps_own_offsets(self, group: str) -> bool:
        """Whether its members are online and keep their offsets themselves."""
        live = self._clients.consumer_group(group)
        return live is not None and live.message_model == BROADCASTING

    def topics_of(self, group: str) -> list[str]:
        """The topics that a group has offsets in or subscribes to, and its retry topic if messages
        wait for it; some may not exist."""
        names = self._offsets.topics_of(group)
        live = self._clients.consumer_group(group)
        if live is not None:
            names += [one for one in live.subscriptions if not self._offsets.of(group, one)]
        if self.waiting_retries(group) and retry_topic(group) not in names:
            names.append(retry_topic(group))
        return names

    def concerns(self, group: str, topic: str) -> bool:
        """Whether a topic is one of these, or may be: nobody online says what is subscribed to."""
        if self._offsets.of(group, topic):
            return True
        if topic == retry_topic(group) and self.waiting_retries(group):
            return True
        live = self._clients.consumer_group(group)
        return live is None or not live.subscriptions or topic in live.subscriptions

    def pairs(self) -> Iterator[tuple[str, str] | None]:
        """Yield (topic, group) of all groups that exist and are judged, each once, and None in the
        place of a group that is passed over. The tables may change between two of them."""
        given: set[tuple[str, str]] = set()
        for topic in self._retries.topics():
            group = topic.removeprefix(RETRY_PREFIX)
            if self.waiting_retries(group):
                given.add((topic, group))
                yield topic, group
            else:
                yield None
        for live in self._clients.consumer_groups():
            for topic in list(live.subscriptions):
                if (topic, live.name) in given or self._offsets.of(live.name, topic):
                    yield None
                else:
                    given.add((topic, live.name))
                    yield topic, live.name
        for topic, group in self._offsets.pairs():
            passed = (topic, group) in given or not self._exists(group)
            yield None if passed else (topic, group)

    def queue_count(self, group: str, topic: str) -> int:
        """How many queues of a topic a group is judged in, from 0 on: those that can be read."""
        config = self._topics.get(topic)
        if config is None or is_start_group(group) or self.keeps_own_offsets(group):
            return 0
        return config.read_queues if self.is_known(group) else 0

    def starts(self) -> Iterator[tuple[str, int, str, int] | None]:
        """(topic, queue id, group, offset) of each queue in which a group that is online has no
        offset and would start there; None behind each that is passed over. As `pairs`."""
        for live in self._clients.consumer_groups():
            for topic in list(live.subscriptions):
                yield None
                for queue_id in range(self.queue_count(live.name, topic)):
                    if self._offsets.query(live.name, topic, queue_id) == NO_OFFSET:
                        start = self.start(live.name, topic, queue_id)
                        yield topic, queue_id, live.name, start
                    else:
                        yield None

    # --- the judgement

    def queues(self, group: str, topic: str) -> Iterator[QueueLag]:
        """A group's lag in each queue of a topic that it is judged in. The caller takes them in
        steps: there may be thousands."""
        offsets = self._offsets.of(group, topic)
        given_out = self._stats.pulled(group, topic)
        for queue_id in range(self.queue_count(group, topic)):
            committed = offsets.get(queue_id, NO_OFFSET)
            end = self._end(topic, queue_id)
            begin, is_known = committed, True
            if committed == NO_OFFSET:
                begin, is_known = self._start(group, topic, queue_id)
            begin = min(max(begin, self._store.min_offset(topic, queue_id)), end)
            out = min(max(given_out.get(queue_id, begin), begin), end)
            yield QueueLag(queue_id, committed, begin, end, out, is_known)

    def waiting_retries(self, group: str, topic: str | None = None) -> int:
        """How many messages that a group has failed on wait for their next try; with a topic: those
        that its lag there has, which only the lag of its retry topic has."""
        retry = retry_topic(group)
        if topic not in (None, retry) or not self._exists(group):
            return 0
        return self._retries.count(retry) if self.queue_count(group, retry) else 0

    def begin(self, group: str, topic: str, queue_id: int) -> int:
        """The first offset of a queue that a group has not consumed, if that is there."""
        committed = self._offsets.query(group, topic, queue_id)
        return self._begin(group, topic, queue_id, committed)

    def given_out(self, group: str, topic: str, queue_id: int, begin: int) -> int:
        """The offset after the last message of a queue that a group was given in this run of the
        broker, `begin` without one."""
        return max(self._stats.pulled(group, topic).get(queue_id, begin), begin)

    def _begin(self, group: str, topic: str, queue_id: int, committed: int) -> int:
        if committed == NO_OFFSET:
            return self.start(group, topic, queue_id)
        return max(committed, self._store.min_offset(topic, queue_id))

    def start(self, group: str, topic: str, queue_id: int) -> int:
        """Where a group starts in a queue that it has no offset in, or an offset before that."""
        return self._start(group, topic, queue_id)[0]

    def _start(self, group: str, topic: str, queue_id: int) -> tuple[int, bool]:
        """Returns what `start` does, and whether the group starts at that very offset."""
        first = self._first(topic, queue_id)
        if self._offsets.are_lost:
            return first, True
        noted = self._stats.began(group, topic).get(queue_id)
        if noted is not None:
            return max(noted, first), True
        if self.is_fresh(topic, queue_id):
            return first, True
        live = self._clients.consumer_group(group)
        if live is None:
            return first, False
        if not _begins_at_end(live, topic):
            return first, live.consume_from_where != FROM_TIMESTAMP
        if queue_id in self._stats.pulled(group, topic):
            # It has begun, before this run of the broker or too long ago to be noted still.
            return first, False
        return self._end(topic, queue_id), True

    def is_fresh(self, topic: str, queue_id: int) -> bool:
        """Whether nothing of the queue is gone or on disk alone; so for an unknown one too. Then
        groups start at 0, whatever they would choose."""
        store = self._store
        if store.min_offset(topic, queue_id) > 0:
            return False
        return store.max_offset(topic, queue_id) <= 0 or store.reader.is_in_memory(
            topic, queue_id, 0
        )

    def dead(self, group: str) -> int:
        """How many messages the group has given up on, of those that are not deleted yet."""
        topic = dlq_topic(group)
        config = self._topics.get(topic)
        if config is None:
            return 0
        queues = range(config.read_queues)
        return sum(self._end(topic, one) - self._first(topic, one) for one in queues)

    def note_asked(
        self, connection: Connection, group: str, topic: str, queue_id: int, offset: int | None
    ) -> None:
        """A group that has no offset in a queue asks for it. It is about to be told `offset`, or
        None: then it begins where it chooses. Note where it begins, of groups that would begin at
        the end of a queue a moment later.

        Only a member's own question takes the place of an earlier note: tools ask, too. A client
        may ask by another connection than it sends its heartbeats by, so the first question counts,
        whoever asks. Nothing is noted of a group that is not online."""
        live = self._clients.consumer_group(group)
        config = self._topics.get(topic) if live and topic in live.subscriptions else None
        if live is None or config is None or not 0 <= queue_id < config.read_queues:
            return
        is_member = id(connection) in live.members
        if not is_member and queue_id in self._stats.began(group, topic):
            return
        if _begins_at_end(live, topic):
            place = self._end(topic, queue_id) if offset is None else offset
            self._stats.begins(live.name, config.name, queue_id, place)

    def _first(self, topic: str, queue_id: int) -> int:
        return max(self._store.min_offset(topic, queue_id), 0)

    def _end(self, topic: str, queue_id: int) -> int:
        return max(self._store.max_offset(topic, queue_id), 0)


def needed_by_queue(on_loop: OnOwner, lag: ConsumerLag, *tables: OffsetTables) -> OffsetsByQueue:
    """Returns the offsets that groups still need, by queue: those of `committed_by_queue`, and
    those of groups online that have no offset in a queue, because a message that is deleted before
    they have consumed it is lost to them as well. Worker thread; it asks the loop for some at a
    time."""
    by_queue = committed_by_queue(on_loop, *tables)
    starts = lag.starts()
    while part := on_loop(lambda: list(islice(starts, _STEP_STARTS))):
        for one in part:
            if one is not None:
                topic, queue_id, group, offset = one
                by_queue.setdefault((topic, queue_id), {}).setdefault(group, offset)
    return by_queue


def _begins_at_end(live: ConsumerGroup, topic: str) -> bool:
    """Whether members begin at the end of a queue without an offset: as RocketMQ's do with each
    rule but two, and with none in their own retry topic."""
    at_end = live.consume_from_where not in (FROM_FIRST_OFFSET, FROM_TIMESTAMP)
    return at_end and not is_retry_topic(topic)
