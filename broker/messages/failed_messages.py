"""What is counted and logged of messages that a consumer group failed on.

They come two ways: a consumer gives one back (`retry.py`), or, when that request failed, sends it
to the group's retry topic itself (`send.py`). Both ways end in the retry topic, after a delay, or,
after the last try, in the dead letter topic. Loop thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from aerobee.broker.stats import BrokerStats
from aerobee.broker.tables.topics import TopicTable
from aerobee.protocol.message.properties import PROPERTY_RETRY_TOPIC
from aerobee.protocol.names import dlq_topic

log = logging.getLogger("aerobee.broker.retry")


class FailedMessages:
    """Counts retries and dead letters, and says so in the log."""

    def __init__(self, topics: TopicTable, stats: BrokerStats) -> None:
        self._topics = topics
        self._stats = stats

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

    def _original(self, topic: str, properties: Mapping[str, str]) -> str:
        """The topic the message was first sent to. The property is a client's: it only counts
        when there is such a topic, so that nobody can make series of other names.
        """
        original = properties.get(PROPERTY_RETRY_TOPIC, "")
        return original if self._topics.get(original) is not None else topic
