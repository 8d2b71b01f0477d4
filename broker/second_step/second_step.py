"""Stores messages that have waited, after a repetition of the checks of their acceptance.

Days may lie between the two. Now the table of topics decides:

| the topic              | its queue       | what becomes of the message                      |
|------------------------|-----------------|--------------------------------------------------|
| was deleted since      |                 | dropped, even if the topic was made anew         |
| is there               | may be read     | stored there                                     |
| is there               | has fallen away | stored in a queue that the topic has             |
| is not there, and      |                 | stored, as RocketMQ does: the table was lost, or |
| nobody deleted it here |                 | is another broker's                              |

Whether the topic may be written does not matter: it might be written when the client got the answer
that its message is stored (docs/decisions/0023). Each deviation from the client's request is
counted and logged: a line for the first of a topic, and a line a minute with their number and the
last id.

These pass through here: delayed messages, among them retries; timed ones, when they are delivered
and when they are rolled; transactions, when they are committed and when their half messages are
stored again; staged rows. Loop thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from aerobee.broker.second_step.deleted_topics import DeletedTopics
from aerobee.protocol.bodies.topics import TopicConfig
from aerobee.protocol.message.ids import offset_msg_id
from aerobee.protocol.message.properties import PROPERTY_UNIQUE_KEY, decode_properties
from aerobee.protocol.message.record import Message, StoreMessage
from aerobee.store.segments.results import PutResult
from aerobee.summed_log import SummedLog

log = logging.getLogger("aerobee.broker.second_step")

#: Stores a message, like `MessageStore.put`.
Put: TypeAlias = Callable[[StoreMessage], PutResult]
#: Why a message has waited, in log and metrics.
DELAYED: Final = "delayed"
TIMED: Final = "timed"
HALF: Final = "half"
STAGED: Final = "staged"
_KINDS: Final = (DELAYED, TIMED, HALF, STAGED)


class SecondStepCounts:
    """Messages that were not stored where the client asked for, by the reason why they waited."""

    def __init__(self) -> None:
        self.dropped = dict.fromkeys(_KINDS, 0)
        self.moved = dict.fromkeys(_KINDS, 0)
        self.without_topic = dict.fromkeys(_KINDS, 0)


class SecondStep:
    """The second step of a broker. `topic_of` finds a topic as it is now."""

    def __init__(
        self, topic_of: Callable[[str], TopicConfig | None], deleted: DeletedTopics, sums: SummedLog
    ) -> None:
        self._topic_of = topic_of
        self._deleted_at = deleted.offset_of
        self._sums = sums
        self.counts = SecondStepCounts()

    def put(self, kind: str, message: StoreMessage, log_offset: int, put: Put) -> PutResult | None:
        """Have `put` store a message that has waited at `log_offset`, in a queue that may be read.
        None: it was dropped. Raises what `put` raises; then nothing is counted."""
        name, asked_for = message.topic, message.queue_id
        topic = self._topic_of(name)
        if log_offset < self._deleted_at(name, 0):
            self._dropped(kind, name, log_offset, _id_of(message, log_offset))
            return None
        if topic is not None and asked_for < topic.read_queues:
            return put(message)
        if topic is not None:
            message.queue_id = queue_now(topic, asked_for)
        result = put(message)
        self._placed(kind, name, asked_for, message.queue_id, 1, _id_of(message, log_offset))
        return result

    def drops(self, kind: str, topic: str, message: Message) -> bool:
        """Whether a record that is about to wait further belongs to a deleted topic, and is
        dropped."""
        if message.log_offset >= self._deleted_at(topic, 0):
            return False
        msg_id = message.properties.get(PROPERTY_UNIQUE_KEY) or message.msg_id
        self._dropped(kind, topic, message.log_offset, msg_id)
        return True

    def is_deleted(self, topic: str, log_offset: int) -> bool:
        """Whether a message that waits at that log offset is of a topic that was deleted since.
        Counts nothing."""
        return log_offset < self._deleted_at(topic, 0)

    def queues_of(self, topic: str, queue_id: int) -> set[int]:
        """The queues in which a message for that queue may have been stored."""
        config = self._topic_of(topic)
        if config is None or queue_id < config.read_queues:
            return {queue_id}
        return {queue_id, queue_now(config, queue_id)}

    # --- rows of staged batches ---------------------------------------------------------------

    def queue_of_rows(self, topic: str, queue_id: int) -> int:
        """The queue in which staged rows for that queue are stored now."""
        config = self._topic_of(topic)
        if config is None or queue_id < config.read_queues:
            return queue_id
        return queue_now(config, queue_id)

    def rows_stored(self, topic: str, asked_for: int, now: int, rows: int, stage: str) -> None:
        """Count `rows` that were stored in the queue that `queue_of_rows` gave."""
        if rows and (now != asked_for or self._topic_of(topic) is None):
            self._placed(STAGED, topic, asked_for, now, rows, f"stage:{stage}")

    def rows_dropped(self, topic: str, log_offset: int, rows: int, stage: str) -> None:
        """Count `rows` of the chunk at `log_offset` that are dropped because of `is_deleted`."""
        self._dropped(STAGED, topic, log_offset, f"stage:{stage}", rows)

    # --- counts and log lines -----------------------------------------------------------------

    def _dropped(self, kind: str, topic: str, log_offset: int, msg_id: str, count: int = 1) -> None:
        self.counts.dropped[kind] += count
        self._sums.add(
            log,
            logging.WARNING,
            (kind, topic),
            "message dropped, its topic was deleted while it waited topic=%s waited=%s msg_id=%s "
            "log_offset=%d deleted_at=%d",
            topic, kind, msg_id, log_offset, self._deleted_at(topic, 0),
            count=count,
        )  # fmt: skip

    def _placed(
        self, kind: str, name: str, asked_for: int, now: int, count: int, msg_id: str
    ) -> None:
        """Count messages that were stored elsewhere than was asked for, or for no topic."""
        topic = self._topic_of(name)
        if topic is None:
            self.counts.without_topic[kind] += count
            text = (
                "message stored for a topic that is not in the topic table, and that nobody "
                "deleted here topic=%s waited=%s queue=%d asked_for=%d msg_id=%s advice=it can be "
                "read when the topic is there: aerobee topic create NAME --queues N"
            )
        else:
            self.counts.moved[kind] += count
            text = (
                "message stored in another queue, its topic has fewer than when it was accepted "
                "topic=%s waited=%s queue=%d asked_for=%d msg_id=%s"
            )
        values = name, kind, now, asked_for, msg_id
        self._sums.add(log, logging.WARNING, (kind, name), text, *values, count=count)


def queue_now(topic: TopicConfig, queue_id: int) -> int:
    """The queue that takes the place of a queue that has fallen away, always the same one: a queue
    that is read, and written too if the topic has such queues. A topic without any keeps the
    number."""
    queues = readable_queues(topic)
    return queue_id % queues if queues > 0 else queue_id


def readable_queues(topic: TopicConfig) -> int:
    """The number of queues for messages that the broker itself puts: queues that are read and
    written, or at least read."""
    return min(topic.read_queues, topic.write_queues) or topic.read_queues


def _id_of(message: StoreMessage, log_offset: int) -> str:
    """The id by which a person finds the message: the client's id, else the id of its place in the
    log."""
    properties: Mapping[str, str] = decode_properties(
        str(message.properties, "utf-8", "surrogatepass")
    )
    return properties.get(PROPERTY_UNIQUE_KEY) or offset_msg_id(message.store_host, log_offset)
