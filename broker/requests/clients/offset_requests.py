"""Requests about offsets: those that groups have committed (protocol/WIRE.md 3.3), and where a
queue begins, ends and was at a time (3.4).

QUERY_CONSUMER_OFFSET and UPDATE_CONSUMER_OFFSET. A group that never committed an offset in a queue
begins at 0 if the first message of the queue is still there and in memory, or if there is no
message yet: the answer is then the same as if the group had committed 0. If old messages are gone,
or only on disk, the answer is QUERY_NOT_FOUND, and the client applies its own rule of where to
begin. Where a start has lost offsets with a damaged file, such a group begins with the first
message that is there: the client's own rule may be to begin behind the last one.

GET_MIN_OFFSET, GET_MAX_OFFSET, SEARCH_OFFSET_BY_TIMESTAMP and GET_EARLIEST_MSG_STORETIME. None of
them fails for a queue that does not exist: it has offsets 0 and no earliest time.
"""

from __future__ import annotations

from aerobee.broker.routing.router import Handler
from aerobee.broker.tables.lag import ConsumerLag
from aerobee.broker.tables.offsets import NO_OFFSET, ConsumerOffsets
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command, encode_response, encode_success
from aerobee.protocol.headers.client import (
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from aerobee.remoting.connections.connection import Connection
from aerobee.store.message_store import MessageStore


class OffsetRequests:
    """Serves consumers. Loop thread only."""

    def __init__(self, offsets: ConsumerOffsets, lag: ConsumerLag, store: MessageStore) -> None:
        self._offsets = offsets
        self._lag = lag
        self._store = store

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest,
        }

    def query(self, connection: Connection, command: Command) -> bytes:
        """The group's next offset in a queue, 0 for a fresh queue, else QUERY_NOT_FOUND."""
        header = QueryConsumerOffsetHeader.from_ext(command.ext)
        topic, queue_id = header.topic, header.queue_id
        offset = self._offsets.query(header.consumer_group, topic, queue_id)
        if offset == NO_OFFSET:
            if self._offsets.are_lost:
                offset = self._lag.start(header.consumer_group, topic, queue_id)
                return encode_success(command, ext={"offset": str(offset)})
            told = 0 if self._lag.is_fresh(topic, queue_id) else None
            self._lag.note_asked(connection, header.consumer_group, topic, queue_id, told)
            if told is None:
                remark = "not found: the group has no offset in this queue; it may be new"
                return encode_response(command, ResponseCode.QUERY_NOT_FOUND, remark, {})
            offset = told
        return encode_success(command, ext={"offset": str(offset)})

    def update(self, _connection: Connection, command: Command) -> bytes:
        """Commit an offset; one beyond the queue's end, or of a queue that is not there, is refused
        with a reason (mostly unread: clients send this oneway)."""
        header = UpdateConsumerOffsetHeader.from_ext(command.ext)
        offset = header.commit_offset
        why = self._offsets.try_commit(header.consumer_group, header.topic, header.queue_id, offset)
        if not why:
            return encode_success(command, ext={})
        remark = f"offset {offset} refused: {why}"
        return encode_response(command, ResponseCode.SYSTEM_ERROR, remark, {})

    # --- queues

    def min_offset(self, _connection: Connection, command: Command) -> bytes:
        """The first offset of a queue."""
        header = QueueHeader.from_ext(command.ext)
        offset = self._store.min_offset(header.topic, header.queue_id)
        return _answer(command, "offset", max(offset, 0))

    def max_offset(self, _connection: Connection, command: Command) -> bytes:
        """The offset the next message will get."""
        header = QueueHeader.from_ext(command.ext)
        offset = self._store.max_offset(header.topic, header.queue_id)
        return _answer(command, "offset", max(offset, 0))

    def search(self, _connection: Connection, command: Command) -> bytes:
        """The offset nearest to a time."""
        header = SearchOffsetHeader.from_ext(command.ext)
        offset = self._store.search.offset_by_time(header.topic, header.queue_id, header.timestamp)
        return _answer(command, "offset", max(offset, 0))

    def earliest(self, _connection: Connection, command: Command) -> bytes:
        """The store time of the first message, -1 without one."""
        header = QueueHeader.from_ext(command.ext)
        time_ms = self._store.search.earliest_store_time(header.topic, header.queue_id)
        return _answer(command, "timestamp", time_ms)


def _answer(command: Command, name: str, value: int) -> bytes:
    return encode_success(command, ext={name: str(value)})
