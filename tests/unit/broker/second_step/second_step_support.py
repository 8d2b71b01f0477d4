"""The second step of storing around what a test has of topics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from aerobee.broker.second_step.deleted_topics import DeletedTopics
from aerobee.broker.second_step.second_step import SecondStep
from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.broker.tables.retries_waiting import RetriesWaiting
from aerobee.protocol.bodies.topics import TopicConfig
from aerobee.summed_log import SummedLog

if TYPE_CHECKING:
    from aerobee.store.message_store import MessageStore
    from aerobee.store.reading.delay_queues import DelayQueues


class _NoFile:
    """A file that nobody has written."""

    def load(self, _parse: object, default: object) -> object:
        return default


def no_deletions() -> DeletedTopics:
    """That no topic was deleted; a test adds some."""
    return DeletedTopics(cast("JsonStateFile", _NoFile()), 1 << 60)


def deletions(config: Path, log_end: int) -> DeletedTopics:
    """The deletions that a directory has."""
    return DeletedTopics(JsonStateFile(config / "deletedTopics.json"), log_end)


def second_step(
    topic_of: Callable[[str], TopicConfig | None] = lambda _: None,
    deleted: DeletedTopics | None = None,
) -> SecondStep:
    """The place that all passes. By default no topic is in a table, and none was deleted."""
    if deleted is None:
        deleted = no_deletions()
    return SecondStep(topic_of, deleted, SummedLog(lambda: 0.0))


def no_retries() -> RetriesWaiting:
    """That no message waits for its next try; a test has some wait."""
    return RetriesWaiting(cast("DelayQueues", None), lambda _: None, no_deletions().offset_of)


def retries_of(store: MessageStore, deleted: DeletedTopics | None = None) -> RetriesWaiting:
    """The count of those that wait in a store."""
    known = deleted or no_deletions()
    return RetriesWaiting(store.delays, store.reader.record_at, known.offset_of)
