"""Refuses sends while the transient pool has no free buffer (`fastFailIfNoBufferInStorePool`).

The disk is then slower than what is sent; a producer that is told so tries another broker or comes
again, instead of waiting for a segment. RocketMQ refuses whenever its pool is empty, whether or not
that setting is on, although it would go on without a buffer; here the setting decides
(store/FORMAT.md 3.5, protocol/WIRE.md 1.10).

Put around the handlers when the broker is built, so that sends of a store without a pool pass
nothing here.
"""

from __future__ import annotations

from typing import Protocol

from aerobee.broker.router import Handler
from aerobee.broker.stats import BrokerStats
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command
from aerobee.remoting.connection import Connection


class Buffers(Protocol):
    """The part of a store's commits that is asked."""

    @property
    def free_buffers(self) -> int: ...


def while_buffers_are_free(handle: Handler, buffers: Buffers, stats: BrokerStats) -> Handler:
    """`handle`, refused with SYSTEM_BUSY before anything else while no buffer is free."""

    def gated(connection: Connection, command: Command) -> bytes | None:
        if not buffers.free_buffers:
            stats.failed()
            raise BadRequest(
                ResponseCode.SYSTEM_BUSY,
                "[REJECTREQUEST]system busy, start flow control for a while: all buffers of the "
                "transient pool wait to be written to the disk",
            )
        return handle(connection, command)

    return gated
