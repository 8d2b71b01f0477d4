"""Administration of deletion: queues of unknown topics, empty queues, expired messages.

Removing files takes longer than the loop can wait, so these requests are answered when a worker has
done them. What decides (is the topic still unknown? is the queue in use?) is asked on the loop, in
the same step in which the queues leave the store: a topic made anew in between keeps its queues.

DELETE_EXPIRED_COMMITLOG lets the next runs delete what has expired at any hour (FORMAT.md 10.1).
"""

from __future__ import annotations

import logging

from aerobee.broker.router import Handler
from aerobee.broker.tables.topics import TopicTable
from aerobee.broker.workers import AnswerLater
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command, encode_response
from aerobee.protocol.names import is_light
from aerobee.remoting.connection import Connection
from aerobee.store.disk.owner import OnOwner
from aerobee.store.message_store import MessageStore
from aerobee.store.retention.queue_cleaning import QueueCleaner
from aerobee.store.retention.retention import Retention

log = logging.getLogger("aerobee.broker.admin")


class CleaningRequests:
    """Serves administrators. Loop thread only."""

    def __init__(
        self,
        retention: Retention,
        cleaner: QueueCleaner,
        store: MessageStore,
        topics: TopicTable,
        on_loop: OnOwner,
        later: AnswerLater,
    ) -> None:
        self._retention = retention
        self._cleaner = cleaner
        self._store = store
        self._topics = topics
        self._on_loop = on_loop
        self._later = later

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_expired,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_unused,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_expired,
        }

    def delete_expired(self, _connection: Connection, command: Command) -> bytes:
        """Have expired segments deleted from the next run on, whatever the hour."""
        self._retention.arm()
        return encode_response(command, ResponseCode.SUCCESS)

    def clean_expired(self, connection: Connection, command: Command) -> bytes | None:
        """Free the files of queues all of whose messages are gone."""

        def work() -> None:
            count = self._cleaner.clean_expired(self._on_loop, self._in_use)
            log.info("expired queues cleaned count=%d", count)

        return self._later(connection, command, work)

    def clean_unused(self, connection: Connection, command: Command) -> bytes | None:
        """Remove the queues of topics that do not exist any more."""
        unused = sorted({topic for topic, _ in self._store.queues() if self._is_unused(topic)})

        def work() -> None:
            count = self._cleaner.remove_topics(unused, self._on_loop, self._is_unused)
            log.info("queues of unknown topics removed topics=%d queues=%d", len(unused), count)

        return self._later(connection, command, work)

    def _is_unused(self, topic: str) -> bool:
        """Not in the topic table, and not one of those that need not be: system topics, among them
        the delay queues and those of transactions, and light queues, which have no topic."""
        known = self._topics.get(topic) is not None
        return not known and not self._topics.is_system(topic) and not is_light(topic)

    def _in_use(self, topic: str, queue_id: int) -> bool:
        config = self._topics.get(topic)
        if config is None:
            return not self._is_unused(topic)
        return queue_id < max(config.read_queues, config.write_queues)
