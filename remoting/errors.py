"""Errors between two ends of a connection, named by what the caller may do about them.

A connection that could not be made or has closed: try another address. A time-out: the peer may
have acted on the request. Busy: this process has too many requests waiting on one connection.
"""

from __future__ import annotations

import os
import socket
import ssl

# The errors by which a loop says that the peer has gone.
_ENDED = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, ssl.SSLEOFError)


class RemotingError(Exception):
    """Base of everything remoting/ raises to its callers."""


class RemotingConnectError(RemotingError):
    """No connection could be made; nothing was sent."""


class RemotingUntrusted(RemotingConnectError):
    """The server's certificate was not accepted, and will not be next time."""


class RemotingClosed(RemotingError):
    """The connection closed before the answer came; the peer may have acted on the request."""


class RemotingTimeout(RemotingError):
    """No answer within the time given; the peer may have acted on the request."""


class RemotingBusy(RemotingError):
    """Too many requests wait for answers on this connection; nothing was sent."""


class RemotingListenError(RemotingError):
    """A server could not take its port."""


def connect_failure(error: OSError, host: str, *, over_tls: bool = False) -> str:
    """Why no connection could be made, in words for people: the loops have several for the same."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if over_tls and isinstance(error, _ENDED):
        return "it closed the connection in the TLS handshake, as one without TLS does"
    # TLS errors have numbers of their own, which are no errors of the system.
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error}"
    if isinstance(error, socket.gaierror):
        return f"the host {host} is not known ({error.strerror})"
    return os.strerror(error.errno) if error.errno else str(error)
