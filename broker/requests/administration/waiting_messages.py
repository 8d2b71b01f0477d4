"""WAITING_MESSAGES (31010): what was accepted for a topic and is not in its queues yet.

An administrator asks before a topic is deleted, or made smaller (protocol/WIRE.md 9). Nothing is
changed; the records that wait are looked at in steps, and those beyond a number are not.
"""

from __future__ import annotations

from collections.abc import Iterable

from aerobee.broker.routing.router import Handler
from aerobee.broker.second_step.deleted_topics import DeletedTopics
from aerobee.broker.second_step.waiting_sources import Waits, count_waiting
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.headers.admin import TopicHeader
from aerobee.protocol.names import check_topic_name
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Gate, Steps


class WaitingRequests:
    """Serves administrators, one at a time. Loop thread only."""

    def __init__(self, sources: Iterable[Waits], deleted: DeletedTopics) -> None:
        self._sources = tuple(sources)
        self._deleted = deleted
        self._one_at_a_time = Gate(1)

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {RequestCode.WAITING_MESSAGES: self.waiting}

    def waiting(self, _connection: Connection, command: Command) -> Steps:
        """Count what waits for a topic, which need not be there."""
        topic = check_topic_name(TopicHeader.from_ext(command.ext).topic)
        yield from self._one_at_a_time.enter()
        try:
            found = yield from count_waiting(
                self._sources, topic, self._deleted.offset_of(topic, 0)
            )
        finally:
            self._one_at_a_time.leave()
        return encode_success(command, found.encode())
