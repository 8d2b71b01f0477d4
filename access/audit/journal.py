"""Audit events in systemd's journal, which keeps, bounds and protects them by its own settings.

One datagram an event, by the journal's native protocol; `journalctl -t aerobee-audit -o cat` shows
the lines. A change that begins has a line of its own there, without an outcome: the journal has
nowhere to take it back from. The journal is not read here, so `aerobee audit` shows nothing of it.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final

from aerobee.access.audit.sink import Page, Place
from aerobee.protocol.errors import BadRequest

_SOCKET: Final = "/run/systemd/journal/socket"
_IDENTIFIER: Final = "aerobee-audit"
# LOG_NOTICE.
_PRIORITY: Final = 5
# A journal that takes nothing for so long cannot be written.
_TIMEOUT_S: Final = 5.0


class Journal:
    """Writes events to the journal. One thread at a time."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path or _SOCKET
        self._socket: socket.socket | None = None

    def write(self, events: Sequence[bytes]) -> None:
        """Send lines; returns once the journal has taken them. Raises OSError."""
        try:
            for line in events:
                self._connected().send(_datagram(line))
        except OSError:
            self.close()
            raise

    def begin(self, lines: Sequence[bytes], _under_way: int) -> None:
        """Send the lines of changes that begin. Raises OSError."""
        self.write(lines)

    def page(self, _place: Place, _since_ms: int) -> Page:
        """Raises BadRequest: the journal is read with its own tool."""
        raise BadRequest.system_error(
            "the audit events of this process are in the journal of its machine: "
            f"journalctl -t {_IDENTIFIER}"
        )

    def close(self) -> None:
        """Close the socket; a later call opens it again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connected(self) -> socket.socket:
        if self._socket is None:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            made.settimeout(_TIMEOUT_S)
            try:
                made.connect(self._path)
            except OSError:
                made.close()
                raise
            self._socket = made
        return self._socket


def _datagram(line: bytes) -> bytes:
    # A line has no line break but its last, so the form for texts without line breaks fits.
    return b"PRIORITY=%d\nSYSLOG_IDENTIFIER=%b\nMESSAGE=%b" % (
        _PRIORITY,
        _IDENTIFIER.encode(),
        line if line.endswith(b"\n") else line + b"\n",
    )
