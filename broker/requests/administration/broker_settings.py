"""UPDATE_BROKER_CONFIG (protocol/WIRE.md 3.5): administrators change settings of a running broker.

Off unless `admin.remote_config` says otherwise: accounts may not be asked for, and a remote change
of settings has been RocketMQ's worst hole. What may be changed is what a reload may change
(`config/loading/remote_settings.py`), never a path or a host. A request is done as a whole or not
at all.
"""

from __future__ import annotations

import logging
from typing import Final

from aerobee.broker.background.live_settings import LiveSettings
from aerobee.broker.routing.router import Handler
from aerobee.config.errors import ConfigError
from aerobee.config.model import Settings
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Steps

log = logging.getLogger("aerobee.broker")

# Many times what all settings take that may be changed.
_BODY_BYTES: Final = 65_536
_SHOWN_CHARS: Final = 1_000
_SHOWN_VALUE_CHARS: Final = 64
_OFF: Final = (
    "the settings of this broker cannot be changed by a request: admin.remote_config is off; "
    "change them where the broker is started"
)


class SettingsRequests:
    """Serves administrators. Loop thread only."""

    def __init__(self, settings: Settings, live: LiveSettings | None) -> None:
        """`live` changes the settings; None where there is nothing they could be kept in."""
        self._settings = settings
        self._live = live

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {RequestCode.UPDATE_BROKER_CONFIG: self.update}

    def update(self, connection: Connection, command: Command) -> Steps:
        """Change settings, by lines `key=value`."""
        if not self._settings.remote_config or self._live is None:
            raise BadRequest(ResponseCode.NO_PERMISSION, _OFF)
        if len(command.body) > _BODY_BYTES:
            raise BadRequest.system_error(
                f"{len(command.body)} bytes of settings, {_BODY_BYTES} are the most: nothing was "
                "changed; send those that are to be changed alone"
            )
        changing = self._live.change(command.body)
        yield changing
        try:
            changing.result()
        except ConfigError as error:
            raise BadRequest.system_error(refusal_of(error)) from None
        except OSError as error:
            log.error("changed settings not written: %s", error)
            raise BadRequest.system_error(
                f"nothing was changed: the file of changed settings cannot be written "
                f"({error.strerror}); the broker's log says which"
            ) from None
        log.info("settings changed by a request peer=%s:%s", *connection.peer)
        return encode_success(command)


def refusal_of(error: ConfigError) -> str:
    """Say what is wrong with the settings of a request, without the places of files."""
    reasons = []
    for one in error.errors:
        value = one.value[:_SHOWN_VALUE_CHARS]
        subject = f"{one.key} = {value}" if value else one.key
        reasons.append(f"{subject}: {one.reason}" if subject else one.reason)
    return f"nothing was changed: {'; '.join(reasons)[:_SHOWN_CHARS]}"
