"""Reads the blocks of a master from a connection into the log of its slave.

The loop reads large blocks straight into the segment (`asyncio.BufferedProtocol`); small ones, of
which several may have come with their heads, are read in one go and copied there. After each read
the records that are whole by now are checked, a slice at a time; what is left over goes on in the
next turn, and nothing is read meanwhile. Then the master hears how far this log is.

Loop thread only.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from aerobee.protocol.replication import HEAD_BYTES, BadReplication, decode_head, encode_report
from aerobee.remoting.peers import plain_address
from aerobee.store.errors import StoreError
from aerobee.store.log.replication.appender import Appender

# A look for a segment that is being made.
_AGAIN_S = 0.005
# Bytes that are read in one go, and the rest of a block that is worth a read of its own.
_GATHERED_BYTES = 128 << 10
_DIRECT_BYTES = 32 << 10
# A transport that is full of reports has a master that does not read.
_MOST_UNSENT = 1 << 16
# A master closes like this where it does not admit a slave: it has no way to tell it why.
_UNSERVED = (
    "the master has closed the connection before it sent anything: its /ready says why, in the "
    "note 'slaves are served'. Most often it does not admit this slave, whose connection comes "
    "from {own}: add that address to haSlaveAddresses (replication.ha_slave_addresses) of the "
    "master. A master that takes TLS only wants tls.outgoing here. haMasterAddress, where it is "
    "set, has to be the master's port for slaves"
)


class Follows(Protocol):
    """Does the work that follows an append (`appending/reput_service.py`)."""

    def appended(self) -> None:
        """Bytes were appended in this turn."""


class BlockReader(asyncio.BufferedProtocol):
    """One connection to a master, which sends nothing until `ask`. `closed` is done when it has
    ended, with why."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, appender: Appender, follows: Follows
    ) -> None:
        self._loop = loop
        self._appender = appender
        self._follows = follows
        self._asked = False
        self._transport: asyncio.Transport | None = None
        #: The ends of the connection, once it is open; without a socket they have no name.
        self.own: tuple[str, int] = ("this machine", 0)
        self.peer: tuple[str, int] = ("", 0)
        # Small blocks are gathered, as many as have come; those bytes are behind `_taken`.
        self._gathered = memoryview(bytearray(_GATHERED_BYTES))
        self._taken = self._filled = 0
        self._room: memoryview | None = None
        self._reported = -1
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        #: From when on the master is silent, and has been told nothing, in seconds of the loop.
        self.heard_at = self.told_at = loop.time()
        self.received_bytes = 0
        self.closed: asyncio.Future[str] = loop.create_future()

    # --- the connection -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # A socket that is gone by now has no name.
        sockname, peername = map(transport.get_extra_info, ("sockname", "peername"))
        if sockname and peername:
            self.own, self.peer = plain_address(sockname), plain_address(peername)

    def ask(self, log_offset: int) -> None:
        """Ask the master for the log from `log_offset` on."""
        self._asked = True
        self._appender.connect(log_offset)
        self.report(again=True)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.received_bytes:
            self._end(_UNSERVED.format(own=self.own[0]))
        else:
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

    @property
    def heard(self) -> float | None:
        """When the master was heard last, in seconds of the loop; None when it was not."""
        return self.heard_at if self.received_bytes else None

    @property
    def told(self) -> float | None:
        """When the master was told something last, in seconds of the loop; None when it was not."""
        return self.told_at if self._reported >= 0 else None

    def report(self, *, again: bool = False) -> None:
        """Tell the master how far this log is, if it has moved or `again`."""
        transport, report = self._transport, self._appender.report
        if (
            transport is None
            or not self._asked
            or self.closed.done()
            or (report <= self._reported and not again)
        ):
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
        return self._gathered[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self.closed.done():
            return
        self.heard_at = self._loop.time()
        self.received_bytes += nbytes
        if not self._asked:
            self.close("the master sends before it was asked: is that the HA port of a RocketMQ?")
            return
        try:
            if self._room is not None:
                self._room = None
                self._appender.landed(nbytes)
                self._go_on()
            elif self._filled or not self._one_whole(nbytes):
                self._filled += nbytes
                self._go_on()
        except (StoreError, BadReplication) as error:
            self.close(str(error))

    def _one_whole(self, size: int) -> bool:
        """Take what was read if it is one block of whole records, as it is where the master has a
        message now and then. This way is short, because a sender waits for the report."""
        if self._appender.left or size <= HEAD_BYTES:
            return False
        head = decode_head(self._gathered[:HEAD_BYTES])
        block = self._gathered[HEAD_BYTES:size]
        if head.size != len(block) or not self._appender.take_whole(head.log_offset, block):
            return False
        self.report()
        self._follows.appended()
        return True

    def _go_on(self) -> None:
        """Bring over what was gathered, check a slice of it, report, and read on or come back."""
        self._timer = None
        before = self._appender.written
        whole = self._bring_over()
        more = self._appender.check()
        if self._appender.written > before:
            self._follows.appended()
            self.report()
        if more or not whole:
            self._pause(0 if more else _AGAIN_S)
            return
        if self._appender.left >= _DIRECT_BYTES:
            self._room = self._appender.room()
            if self._room is None:
                self._pause(_AGAIN_S)
                return
        self._resume()

    def _bring_over(self) -> bool:
        """Copy the gathered bytes into the log; False when the segment is still being made."""
        gathered, appender, at, end = self._gathered, self._appender, self._taken, self._filled
        while at < end:
            if not appender.left:
                if end - at < HEAD_BYTES:
                    break
                appender.block(*decode_head(gathered[at : at + HEAD_BYTES]))
                at += HEAD_BYTES
                continue
            room = appender.room()
            if room is None:
                self._taken = at
                return False
            count = min(len(room), end - at)
            room[:count] = gathered[at : at + count]
            at += count
            appender.landed(count)
        # A part of a head goes to the front.
        rest = end - at
        gathered[:rest] = gathered[at:end]
        self._taken, self._filled = 0, rest
        return True

    def _come_back(self) -> None:
        try:
            self._go_on()
        except (StoreError, BadReplication) as error:
            self.close(str(error))

    def _pause(self, again_s: float) -> None:
        """Read nothing, and go on in `again_s` seconds."""
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._timer = self._loop.call_later(again_s, self._come_back)

    def _resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
