"""LOG_RANGES (31020): a slave compares its log with this one (protocol/WIRE.md 9).

The answer tells who this broker is and where its log begins and ends, and has checksums of a part
of the log. At most 64 MiB are read for a request, by a worker, some MiB at a time, for a single
request at once: a slow disk holds up the slaves that ask, and nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from aerobee.broker.routing.role import Role
from aerobee.broker.routing.router import Handler
from aerobee.config.model import Settings
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.headers.log_ranges import (
    MOST_PARTS,
    MOST_RANGE_BYTES,
    LogRangesHeader,
    LogRangesResponse,
    encode_sums,
    parts_of,
)
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Gate, Steps
from aerobee.store.message_store import MessageStore

if TYPE_CHECKING:
    from aerobee.store.log.replication.log_ranges import LogRanges

_SLAVE = "SLAVE"


class LogRangeRequests:
    """Serves slaves, one request at a time. Loop thread only."""

    def __init__(
        self, settings: Settings, role: Role, store: MessageStore, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._settings = settings
        self._role = role
        self._store = store
        self._loop = loop
        self._one_at_a_time = Gate(1)

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {RequestCode.LOG_RANGES: self.compare}

    def compare(self, connection: Connection, command: Command) -> Steps:
        """Tell who this is, and the checksums of a range's parts."""
        header = LogRangesHeader.from_ext(command.ext)
        if header.start < 0 or not 0 <= header.end - header.start <= MOST_RANGE_BYTES:
            raise BadRequest.system_error(
                f"the range from {header.start} to {header.end} is none of at most "
                f"{MOST_RANGE_BYTES} bytes"
            )
        if not 0 < header.parts <= MOST_PARTS:
            raise BadRequest.system_error(f"{header.parts} parts, 1 to {MOST_PARTS} are possible")
        yield from self._one_at_a_time.enter()
        try:
            ranges = self._store.make_log_ranges()
            start, end = ranges.cut(header.start, header.end)
            parts = parts_of(start, end, header.parts)
            sums = yield from self._sums(connection, ranges.checksums(parts))
        finally:
            self._one_at_a_time.leave()
        answer = self._answer(ranges, start, end)
        return encode_success(command, encode_sums(sums), answer.to_ext())

    def _sums(
        self, connection: Connection, steps: Generator[None, None, list[int]]
    ) -> Generator[asyncio.Future[Any], None, list[int]]:
        """The checksums, read by a worker until the slave has gone."""
        # Most brokers are never asked.
        from aerobee.store.log.replication.log_ranges import next_step

        sums: list[int] | None = None
        while sums is None and not connection.closed:
            reading = self._loop.run_in_executor(None, next_step, steps)
            yield reading
            sums = reading.result()
        return sums or []

    def _answer(self, ranges: LogRanges, start: int, end: int) -> LogRangesResponse:
        settings = self._settings
        # The setting is that of the start; the role may have changed since.
        of_master = "ASYNC_MASTER" if settings.broker_role == _SLAVE else settings.broker_role
        return LogRangesResponse(
            cluster_name=settings.cluster_name,
            broker_name=settings.broker_name,
            broker_role=_SLAVE if self._role.is_slave else of_master,
            broker_id=settings.broker_id,
            segment_bytes=ranges.segment_bytes,
            min_offset=ranges.first,
            max_offset=ranges.end,
            start=start,
            end=end,
        )
