"""QUERY_MESSAGE (12) and VIEW_MESSAGE_BY_ID (33): protocol/WIRE.md 3.2.

Both answer with whole records as stored. Key matches are matches of a hash; clients compare the
keys themselves. A query is served in steps, ends when its client has gone, and takes no more
records out of the store than one answer holds.
"""

from __future__ import annotations

from aerobee.broker.routing.router import Handler
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_response, encode_success
from aerobee.protocol.frames.frame import MAX_ANSWER_BYTES
from aerobee.protocol.headers.client import QueryMessageHeader, ViewMessageHeader
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Steps
from aerobee.store.message_store import MessageStore
from aerobee.store.segments.results import QueryResult

UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"


class QueryProcessor:
    """Finds single messages for people and tools."""

    def __init__(self, store: MessageStore, max_messages: int, unique_max_messages: int) -> None:
        self._store = store
        self._max_messages = max_messages
        self._unique_max_messages = unique_max_messages

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.QUERY_MESSAGE: self.query, RequestCode.VIEW_MESSAGE_BY_ID: self.view}

    def query(self, connection: Connection, command: Command) -> Steps:
        """Messages of a topic with a key, between two times. QUERY_NOT_FOUND without any."""
        header = QueryMessageHeader.from_ext(command.ext)
        limit = header.max_num
        if command.ext.get(UNIQUE_KEY_QUERY, "").lower() == "true":
            limit = self._unique_max_messages
        search = self._store.search.query_steps(
            header.topic,
            header.key,
            max(0, min(limit, self._max_messages)),
            header.begin_timestamp,
            header.end_timestamp,
            MAX_ANSWER_BYTES,
        )
        while True:
            try:
                next(search)
            except StopIteration as end:
                result: QueryResult = end.value
                break
            if connection.closed:
                return None
            yield None
        fields = {
            "indexLastUpdateTimestamp": str(result.last_update_timestamp_ms),
            "indexLastUpdatePhyoffset": str(result.last_update_log_offset),
        }
        if not result.records:
            return encode_response(
                command,
                ResponseCode.QUERY_NOT_FOUND,
                "can not find message, maybe time range not correct",
                fields,
            )
        return encode_success(command, b"".join(result.records), fields)

    def view(self, _connection: Connection, command: Command) -> bytes:
        """The message at a log offset; SYSTEM_ERROR when no message starts there."""
        header = ViewMessageHeader.from_ext(command.ext)
        record = self._store.reader.record_at(header.offset)
        if record is None:
            raise BadRequest.system_error(f"can not find message by the offset, {header.offset}")
        return encode_success(command, record, {})
