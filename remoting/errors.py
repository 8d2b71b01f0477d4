"""What can go wrong between two ends of a connection, named by what the caller may do about it.

A connection that could not be made or has closed: try another address. A time-out: the peer may
have acted on the request. Busy: this process has too many requests waiting on one connection.
"""

from __future__ import annotations


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
