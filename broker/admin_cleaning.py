"""Administration of deletion: what operators ask for beside the hours and the disk's limits.

DELETE_EXPIRED_COMMITLOG lets the next runs delete what has expired at any hour (store spec 10.1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.command import Command, encode_response
from aerobee.remoting.connection import Connection

Handler = Callable[[Connection, Command], bytes | None]


class Armed(Protocol):
    """What is asked of the store's retention."""

    def arm(self) -> None:
        """Do not wait for the hour."""
        ...


class CleaningRequests:
    """Serves administrators. Loop thread only."""

    def __init__(self, retention: Armed) -> None:
        self._retention = retention

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_expired}

    def delete_expired(self, _connection: Connection, command: Command) -> bytes:
        """Have expired segments deleted from the next run on, whatever the hour."""
        self._retention.arm()
        return encode_response(command, ResponseCode.SUCCESS)
