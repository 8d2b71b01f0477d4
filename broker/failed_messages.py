"""What is counted and logged of messages that a consumer group failed on.

They come two ways: a consumer gives one back (`retry.py`), or, when that request failed, sends it
to the group's retry topic itself (`send.py`). Both ways end in the retry topic or, after the last
try, in the dead letter topic.

Delay levels are not served by this version, so a retry is redelivered at once. That is logged for
each retry topic by its own count: the first one, then the second, fourth, eighth, ... A group that
fails in a loop cannot fill the log, and cannot hide a group that begins to fail later.

Bounded: past `_TOPICS_COUNTED` retry topics, newcomers share one count. Loop thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from aerobee.broker.stats import OTHER, BrokerStats
from aerobee.broker.topics import TopicTable
from aerobee.protocol.names import dlq_topic, retry_topic
from aerobee.protocol.properties import PROPERTY_RETRY_TOPIC

log = logging.getLogger("aerobee.broker.retry")

_TOPICS_COUNTED = 10_000


class FailedMessages:
    """Counts retries and dead letters, and says so in the log."""

    def __init__(self, topics: TopicTable, stats: BrokerStats) -> None:
        self._topics = topics
        self._stats = stats
        self._retries: dict[str, int] = {}

    def sent_back(self, group: str, topic: str, properties: Mapping[str, str]) -> None:
        """A consumer of `group` gave back a message it had from `topic`."""
        self._stats.consumer(group, self._original(topic, properties)).sent_back += 1

    def died(self, group: str, topic: str, properties: Mapping[str, str]) -> None:
        """A message that the group had from `topic` was stored as a dead letter."""
        original = self._original(topic, properties)
        self._stats.consumer(group, original).sent_to_dlq += 1
        log.warning(
            "message went to the dead letter topic group=%s topic=%s dead_letters=%s",
            group,
            original,
            dlq_topic(group),
        )

    def retried_at_once(self, group: str) -> None:
        """A retry was stored that does not wait for its delay level."""
        topic = retry_topic(group)
        if topic not in self._retries and len(self._retries) >= _TOPICS_COUNTED:
            topic = OTHER
        count = self._retries[topic] = self._retries.get(topic, 0) + 1
        if count & (count - 1) == 0:  # 1, 2, 4, 8, ...
            log.warning(
                "retry redelivered at once group=%s topic=%s count=%d reason=delay levels are not "
                "served by this version, nothing waits between two tries: maxReconsumeTimes is "
                "used up quickly",
                group,
                topic,
                count,
            )

    def _original(self, topic: str, properties: Mapping[str, str]) -> str:
        """The topic the message was first sent to. The property is a client's: it only counts
        when there is such a topic, so that nobody can make series of other names.
        """
        original = properties.get(PROPERTY_RETRY_TOPIC, "")
        return original if self._topics.get(original) is not None else topic
