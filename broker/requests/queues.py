"""GET_MIN_OFFSET, GET_MAX_OFFSET, SEARCH_OFFSET_BY_TIMESTAMP, GET_EARLIEST_MSG_STORETIME
(protocol/WIRE.md 3.4).

None of them fails for a queue that does not exist: it has offsets 0 and no earliest time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command, encode_response
from aerobee.protocol.headers.client import QueueHeader, SearchOffsetHeader
from aerobee.remoting.connection import Connection

Handler = Callable[[Connection, Command], bytes | None]


class QueueRange(Protocol):
    """What is asked of the store."""

    def min_offset(self, topic: str, queue_id: int, /) -> int:
        """The queue's first offset."""
        ...

    def max_offset(self, topic: str, queue_id: int, /) -> int:
        """The offset the next message will get."""
        ...

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, /) -> int:
        """The offset of the message nearest in store time."""
        ...

    def earliest_store_time(self, topic: str, queue_id: int, /) -> int:
        """Store time in ms of the first message, -1 without one."""
        ...


class QueueRequests:
    """Serves questions about single queues. Loop thread only."""

    def __init__(self, store: QueueRange) -> None:
        self._store = store

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest,
        }

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
        offset = self._store.offset_by_time(header.topic, header.queue_id, header.timestamp)
        return _answer(command, "offset", max(offset, 0))

    def earliest(self, _connection: Connection, command: Command) -> bytes:
        """The store time of the first message, -1 without one."""
        header = QueueHeader.from_ext(command.ext)
        time_ms = self._store.earliest_store_time(header.topic, header.queue_id)
        return _answer(command, "timestamp", time_ms)


def _answer(command: Command, name: str, value: int) -> bytes:
    return encode_response(command, ResponseCode.SUCCESS, None, {name: str(value)})
