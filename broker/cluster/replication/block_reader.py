"""Reads the blocks of a master from a connection into the log of its slave.

The loop reads straight into the segment (`asyncio.BufferedProtocol`): the bytes of a block are
copied once, by the kernel. After each read the records that are whole by now are checked, a slice
at a time; what is left over goes on in the next turn, and nothing is read meanwhile. Then the
master hears how far this log is.

Loop thread only.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from aerobee.protocol.replication import HEAD_BYTES, BadReplication, decode_head, encode_report
from aerobee.store.errors import StoreError
from aerobee.store.log.replication.appender import Appender

# A look for a segment that is being made.
_AGAIN_S = 0.005
# A transport that is full of reports has a master that does not read.
_MOST_UNSENT = 1 << 16


class Follows(Protocol):
    """Does the work that follows an append (`appending/reput_service.py`)."""

    def appended(self) -> None:
        """Bytes were appended in this turn."""


class BlockReader(asyncio.BufferedProtocol):
    """One connection to a master, from `asked` on. `closed` is done when it has ended, with why."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, appender: Appender, follows: Follows, asked: int
    ) -> None:
        self._loop = loop
        self._appender = appender
        self._follows = follows
        self._asked = asked
        self._transport: asyncio.Transport | None = None
        self._head = bytearray(HEAD_BYTES)
        self._head_got = 0
        self._room: memoryview | None = None
        self._reported = -1
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        #: When the master was heard last, in seconds of the loop; when it was told something last.
        self.heard_at = self.told_at = loop.time()
        self.received_bytes = 0
        self.closed: asyncio.Future[str] = loop.create_future()

    # --- the connection -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._appender.connect(self._asked)
        self.report(again=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc) if exc is not None else "the master has closed the connection")

    def close(self, reason: str) -> None:
        """End the connection."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    def _end(self, reason: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._room = None
        if not self.closed.done():
            self.closed.set_result(reason)

    def report(self, *, again: bool = False) -> None:
        """Tell the master how far this log is, if it has moved or `again`."""
        transport, report = self._transport, self._appender.report
        if transport is None or self.closed.done() or (report <= self._reported and not again):
            return
        if transport.get_write_buffer_size() > _MOST_UNSENT:
            self.close("the master does not read the reports")
            return
        self._reported = max(report, self._reported)
        self.told_at = self._loop.time()
        transport.write(encode_report(self._reported))

    # --- reading ------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._room is not None:
            return self._room
        return memoryview(self._head)[self._head_got :]

    def buffer_updated(self, nbytes: int) -> None:
        if self.closed.done():
            return
        self.heard_at = self._loop.time()
        self.received_bytes += nbytes
        try:
            if self._room is None:
                self._head_got += nbytes
                if self._head_got == HEAD_BYTES:
                    self._begin_block()
            else:
                self._room = None
                self._appender.landed(nbytes)
                self._check()
        except (StoreError, BadReplication) as error:
            self.close(str(error))

    def _begin_block(self) -> None:
        self._head_got = 0
        log_offset, size = decode_head(self._head)
        self._appender.block(log_offset, size)
        if size:
            self._make_room()

    def _make_room(self) -> None:
        """Find where the next bytes go; while the segment is being made nothing is read."""
        self._room = self._appender.room()
        if self._room is None:
            self._pause()
            self._timer = self._loop.call_later(_AGAIN_S, self._make_room_later)
        else:
            self._resume()

    def _make_room_later(self) -> None:
        self._timer = None
        try:
            self._make_room()
        except StoreError as error:
            self.close(str(error))

    def _check(self) -> None:
        """Check a slice of what has come, and go on reading when all of it is checked."""
        before = self._appender.written
        more = self._appender.check()
        if self._appender.written > before:
            self._follows.appended()
            self.report()
        if more:
            self._pause()
            self._timer = self._loop.call_later(0, self._check_later)
        elif self._appender.left:
            self._make_room()
        else:
            self._resume()

    def _check_later(self) -> None:
        self._timer = None
        try:
            self._check()
        except StoreError as error:
            self.close(str(error))

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
