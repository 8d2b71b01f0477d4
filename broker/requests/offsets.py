"""QUERY_CONSUMER_OFFSET and UPDATE_CONSUMER_OFFSET (protocol/WIRE.md 3.3).

A group that never committed in a queue whose first message is still there, and still in memory (or
that has no message yet), starts at 0: it is told so as if it had committed 0. Only when old
messages are gone or on disk is the answer QUERY_NOT_FOUND, on which clients apply their own rule of
where to begin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aerobee.broker.tables.offsets import NO_OFFSET, ConsumerOffsets
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command, encode_response
from aerobee.protocol.headers.client import QueryConsumerOffsetHeader, UpdateConsumerOffsetHeader
from aerobee.remoting.connection import Connection

Handler = Callable[[Connection, Command], bytes | None]


class QueueStart(Protocol):
    """What is asked of the store."""

    def min_offset(self, topic: str, queue_id: int, /) -> int:
        """The queue's first offset."""
        ...

    def max_offset(self, topic: str, queue_id: int, /) -> int:
        """The offset the next message will get."""
        ...

    def is_in_memory(self, topic: str, queue_id: int, queue_offset: int, /) -> bool:
        """Whether a message counts as not on disk alone."""
        ...


class OffsetRequests:
    """Serves consumers' offsets. Loop thread only."""

    def __init__(self, offsets: ConsumerOffsets, store: QueueStart) -> None:
        self._offsets = offsets
        self._store = store

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
        }

    def query(self, _connection: Connection, command: Command) -> bytes:
        """The group's next offset in a queue, 0 for a fresh queue, else QUERY_NOT_FOUND."""
        header = QueryConsumerOffsetHeader.from_ext(command.ext)
        topic, queue_id = header.topic, header.queue_id
        offset = self._offsets.query(header.consumer_group, topic, queue_id)
        if offset == NO_OFFSET:
            if not self._is_fresh(topic, queue_id):
                remark = "not found: the group has no offset in this queue; it may be new"
                return encode_response(command, ResponseCode.QUERY_NOT_FOUND, remark, {})
            offset = 0
        return encode_response(command, ResponseCode.SUCCESS, None, {"offset": str(offset)})

    def _is_fresh(self, topic: str, queue_id: int) -> bool:
        """Whether nothing of the queue is gone or on disk alone; so for an unknown one too."""
        store = self._store
        if store.min_offset(topic, queue_id) > 0:
            return False
        return store.max_offset(topic, queue_id) <= 0 or store.is_in_memory(topic, queue_id, 0)

    def update(self, _connection: Connection, command: Command) -> bytes:
        """Commit an offset; one beyond the queue's end is refused with a reason (mostly unread:
        clients send this oneway)."""
        header = UpdateConsumerOffsetHeader.from_ext(command.ext)
        if self._offsets.commit(
            header.consumer_group, header.topic, header.queue_id, header.commit_offset
        ):
            return encode_response(command, ResponseCode.SUCCESS, None, {})
        remark = (
            f"offset {header.commit_offset} refused: it is negative or beyond the end of queue "
            f"{header.queue_id} of {header.topic}"
        )
        return encode_response(command, ResponseCode.SYSTEM_ERROR, remark, {})
