"""A client port chosen by the kernel, kept until the broker listens on it."""

from __future__ import annotations

import contextlib
import socket

from aerobee.config.ports import VIP_BELOW

_TRIES = 50


class ReservedPorts:
    """A free port whose VIP neighbour (port - 2) is free as well, both kept from everybody who
    lets the kernel choose a port: other parts of this process (the embedded name server, outgoing
    connections) and other processes. A listener that sets SO_REUSEADDR can still bind them.
    """

    def __init__(self, host: str) -> None:
        """Raises OSError if there is no such pair."""
        self._kept = contextlib.ExitStack()
        self.port = 0
        for _ in range(_TRIES):
            with contextlib.ExitStack() as kept:
                port = _bound(kept, host, 0)
                try:
                    _bound(kept, host, port - VIP_BELOW)
                except OSError:
                    continue
                self.port = port
                self._kept = kept.pop_all()
                return
        raise OSError("no pair of free ports (port and port - 2) was found; name one with --port")

    def release(self) -> None:
        """Give both back; who listens on them by now goes on."""
        self._kept.close()


def _bound(kept: contextlib.ExitStack, host: str, port: int) -> int:
    held = kept.enter_context(socket.socket())
    # Without it a listener could not bind the port while it is kept.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((host, port))
    return int(held.getsockname()[1])
