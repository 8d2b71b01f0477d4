"""Errors of a client, named by whose fault they are.

Every error of this folder is a `ClientError`; anything else that escapes is a bug. The tree answers
the one question a caller has, "what do I do now":

    ClientError
      CallerError          the program using the client must change
        ClientClosed       used before start or after close
        InheritedClient    opened in another process, which forked into this one
        BadMessage         this message can never be sent
        OffsetFileInUse    two broadcasting consumers share one local offset file
      NoRoute              no name server knows a broker for the topic
        NoMaster           no name server knows a master of the broker or cluster that was named
          MasterAway       a change concerns a broker whose slaves alone are registered
      PeerError            the peer answered, with a code that is not success
        RequestRefused     this request is wrong for that peer, now and next time
          WrongPeer        a broker where a name server was meant, or the reverse
        PeerBusy           the same request may pass later
        PeerFailed         something broke over there
      BadAnswer            the peer answered with something that cannot be read
      UnreadableBody       a message is there, and its compressed body cannot be made plain here
      NetworkError         nothing was answered; the peer may or may not have acted
        ConnectFailed      surely not acted
          NoNameServer     no name server could be reached
          Untrusted        TLS: its certificate is not trusted, now and next time
        CallTimeout
        ConnectionLost
      ClientBusy           too much is in flight already on one connection; nothing was sent
      SendFailed           all attempts of a send were used up; `attempts` says how each ended

`code` is the response code (WIRE.md 2.3) and `remark` the peer's own words, where there are any.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest, ProtocolError
from aerobee.protocol.frames.command import Command


class ClientError(Exception):
    """Base of all errors raised by `aerobee.client`; carries the peer's `code` and `remark`."""

    def __init__(self, message: str, *, code: int | None = None, remark: str | None = None) -> None:
        # One line, whatever a peer put into its remark: the text goes into logs.
        super().__init__(" ".join(message.split()))
        self.code = code
        self.remark = remark


class CallerError(ClientError):
    """The calling program is at fault; repeating the call cannot help."""


class ClientClosed(CallerError):
    """The client was not started, or is closed."""


class InheritedClient(CallerError):
    """The client was opened by another process, and this process is its copy by fork()."""


class BadMessage(CallerError):
    """The message breaks a rule of the format or a limit; nothing was sent."""


class OffsetFileInUse(CallerError):
    """Another process on this machine holds the local offset file of the same group."""


class NoRoute(ClientError):
    """No name server knows a broker that serves the topic with the right asked for."""


class NoMaster(NoRoute):
    """No name server knows a master of the broker or cluster that was named, or any master."""


class MasterAway(NoMaster):
    """A change concerns a broker whose slaves alone are registered. It was made nowhere."""


class PeerError(ClientError):
    """The peer answered with a code other than success; `address` is the peer's."""

    def __init__(self, message: str, *, address: str, code: int, remark: str | None) -> None:
        super().__init__(message, code=code, remark=remark)
        self.address = address


class RequestRefused(PeerError):
    """The peer found the request wrong: unknown topic, no permission, illegal message..."""


class WrongPeer(RequestRefused):
    """A broker was asked what only name servers know, or a name server what brokers know."""


class PeerBusy(PeerError):
    """The peer is overloaded or not serving at the moment."""


class PeerFailed(PeerError):
    """The peer met an error of its own."""


class BadAnswer(ClientError):
    """The peer answered success, but its answer lacks a field or cannot be decoded."""


class UnreadableBody(ClientError):
    """A body cannot be made plain: its packages are not installed, it is damaged or too large."""


class NetworkError(ClientError):
    """No answer came; whether the peer acted on the request is unknown."""


class ConnectFailed(NetworkError):
    """No connection could be made, so nothing was sent."""


class NoNameServer(ConnectFailed):
    """No name server could be reached; `why` is the failure of the last.

    Mostly the broker that has it inside is not there.
    """

    def __init__(self, why: str) -> None:
        super().__init__(f"{why} (is a broker running?)")
        self.why = why


class Untrusted(ConnectFailed):
    """The peer's certificate is not among those of the trust store."""


class CallTimeout(NetworkError):
    """The answer did not come in time."""


class ConnectionLost(NetworkError):
    """The connection broke while the answer was awaited."""


class ClientBusy(ClientError):
    """Too many calls await their answers on one connection; nothing was sent."""


class SendFailed(ClientError):
    """Every attempt of a send failed; `attempts` are (broker name, error) in order."""

    def __init__(self, message: str, attempts: tuple[tuple[str, ClientError], ...]) -> None:
        last = attempts[-1][1]
        super().__init__(message, code=last.code, remark=last.remark)
        self.attempts = attempts


_BUSY: Final = frozenset(
    {ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL}
)
_FAILED: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)


@contextmanager
def reading(address: str) -> Iterator[None]:
    """Around the reading of an answer: what cannot be read is the fault of its sender."""
    try:
        yield
    except (ProtocolError, ValueError, LookupError, TypeError, AttributeError) as error:
        text = f"the answer of {address} cannot be read: {type(error).__name__}: {error}"
        raise BadAnswer(text) from error


@contextmanager
def checking_arguments() -> Iterator[None]:
    """For checks of the program's arguments: an argument that breaks a rule is the program's
    fault."""
    try:
        yield
    except BadRequest as error:
        raise CallerError(error.remark) from error


def code_name(code: int) -> str:
    """The name of a response code, or the number when protocol/WIRE.md 2.3 does not list it."""
    try:
        return ResponseCode(code).name
    except ValueError:
        return str(code)


def wrong_peer(address: str, response: Command, *, asked: str, found: str) -> WrongPeer:
    """The error for code 3 to a request that every peer of the kind asked knows: the port belongs
    to the other kind."""
    code, remark = response.code, response.remark
    text = f"{address} is a {found}, not a {asked}: it answered {code} {code_name(code)}"
    return WrongPeer(text, address=address, code=code, remark=remark)


def peer_error(address: str, response: Command) -> PeerError:
    """The error for an answer that is not success, of the class that says whose fault it is."""
    code, remark = response.code, response.remark
    kind: type[PeerError] = RequestRefused
    if code in _BUSY:
        kind = PeerBusy
    elif code in _FAILED:
        kind = PeerFailed
    text = f"{address} answered {code} {code_name(code)}: {remark or 'no remark'}"
    return kind(text, address=address, code=code, remark=remark)
