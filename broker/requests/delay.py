"""GET_ALL_DELAY_OFFSET (45): how far each delay level has come, as slaves fetch it
(protocol/WIRE.md 3.5, 4.8).
"""

from __future__ import annotations

from collections.abc import Callable

from aerobee.broker.delay.delay import LevelFigures
from aerobee.broker.router import Handler
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command, encode_response
from aerobee.protocol.frames.fastjson import dumps
from aerobee.remoting.connection import Connection


class DelayRequests:
    """Serves slaves and administrators. Loop thread only."""

    def __init__(self, figures: Callable[[], list[LevelFigures]]) -> None:
        self._figures = figures

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {RequestCode.GET_ALL_DELAY_OFFSET: self.all_offsets}

    def all_offsets(self, _connection: Connection, command: Command) -> bytes:
        """The next queue offset of each level."""
        body = dumps({"offsetTable": {level.level: level.offset for level in self._figures()}})
        return encode_response(command, ResponseCode.SUCCESS, None, None, body)
