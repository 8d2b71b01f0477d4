"""The calling end of a connection for programs without an event loop: a plain blocking socket.

For Spark's workers, which do one thing at a time: requests may be sent ahead, and answers are
taken as they come, each with its `opaque`. A body is read straight into the bytes that the caller
gets, so an answer of several MiB is copied once. What a peer asks of us (brokers tell groups about
changes) is passed over: these programs are members of no group.

After a fork the connection is the parent's: in the child it counts as closed.

An error leaves the connection unusable; it is closed, and the caller makes another.
One thread at a time.
"""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from aerobee.protocol.errors import BadFrame
from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.frame import MAX_FRAME_BYTES, MAX_HEADER_BYTES
from aerobee.protocol.frames.header_decode import decode_header
from aerobee.protocol.frames.header_encode import MSGPACK
from aerobee.protocol.frames.signature import Signer
from aerobee.remoting.errors import (
    RemotingClosed,
    RemotingConnectError,
    RemotingTimeout,
    connect_failure,
)
from aerobee.remoting.origin import Origin
from aerobee.remoting.tls.client_tls import ShownCertificate, client_context

_WORDS = struct.Struct(">iI")
# Headers are read through this buffer; larger reads go past it.
_BUFFER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """How a peer is talked to. `timeout_s` bounds connecting, and the silence of a peer."""

    timeout_s: float = 3.0
    use_tls: bool = False
    trust_store: str | None = None  # a PEM file; without one every certificate is taken, as in Java
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    shown: ShownCertificate | None = None


class BlockingCaller:
    """One connection. Raises RemotingConnectError when it cannot be made."""

    def __init__(self, address: str, options: ConnectOptions) -> None:
        self.address = address
        self._origin = Origin()
        self._options = options
        self._signer = None if options.secret_key is None else Signer(options.secret_key)
        host, _, port = address.rpartition(":")
        try:
            plain = socket.create_connection((host.strip("[]"), int(port)), options.timeout_s)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = _secured(plain, options) if options.use_tls else plain
        except ValueError as error:
            raise RemotingConnectError(f"cannot connect to {address}: {error}") from error
        except OSError as error:
            why = connect_failure(error, host, over_tls=options.use_tls)
            raise RemotingConnectError(f"cannot connect to {address}: {why}") from error
        self._input = self._socket.makefile("rb", buffering=_BUFFER_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, command: Command) -> int:
        """Send a request, signed where there is a key for it; the opaque of its answer."""
        if self._signer is not None and self._options.access_key is not None:
            command.ext = self._signer.signed(command.ext, command.body, self._options.access_key)
        if self._origin.is_elsewhere:
            raise RemotingClosed(self._origin.inherited(f"the connection with {self.address}"))
        try:
            self._socket.sendall(command.encode())
        except OSError as error:
            raise self._failed(error) from error
        return command.opaque

    def receive(self) -> Command:
        """The next answer, whichever request it is for."""
        while True:
            command = self._frame()
            if command.is_response:
                return command

    def call(self, command: Command) -> Command:
        """Send one request and take its answer; no other may be on its way."""
        opaque = self.send(command)
        while (answer := self.receive()).opaque != opaque:
            pass
        return answer

    @property
    def closed(self) -> bool:
        """Whether another connection is needed."""
        return self._input.closed or self._origin.is_elsewhere

    def close(self) -> None:
        """End the connection; more than once does no harm."""
        with suppress(OSError):
            self._input.close()
        self._socket.close()

    def _frame(self) -> Command:
        total, word = _WORDS.unpack(self._exactly(_WORDS.size))
        header_bytes, kind = word & 0xFFFFFF, word >> 24
        if not 4 <= total <= MAX_FRAME_BYTES - 4 or header_bytes > min(total - 4, MAX_HEADER_BYTES):
            raise self._not_the_protocol(f"lengths {total} and {header_bytes}")
        if kind > MSGPACK:
            raise self._not_the_protocol(f"serialization {kind}")
        try:
            command = decode_header(kind, self._exactly(header_bytes))
        except BadFrame as error:
            raise self._not_the_protocol(str(error)) from error
        command.body = self._exactly(total - 4 - header_bytes)
        return command

    def _exactly(self, size: int) -> bytes:
        if self._origin.is_elsewhere:
            raise RemotingClosed(self._origin.inherited(f"the connection with {self.address}"))
        try:
            data: bytes = self._input.read(size)
        except (OSError, ValueError) as error:
            raise self._failed(error) from error
        if len(data) < size:
            self.close()
            raise RemotingClosed(f"{self.address} closed the connection")
        return data

    def _failed(self, error: Exception) -> RemotingClosed | RemotingTimeout:
        self.close()
        if isinstance(error, TimeoutError):
            return RemotingTimeout(f"{self.address}: no answer in {self._options.timeout_s:g} s")
        return RemotingClosed(f"the connection with {self.address} broke: {error}")

    def _not_the_protocol(self, what: str) -> RemotingClosed:
        self.close()
        return RemotingClosed(f"{self.address} does not speak the protocol: {what}")


def _secured(plain: socket.socket, options: ConnectOptions) -> ssl.SSLSocket:
    return client_context(options.trust_store, options.shown).wrap_socket(plain)
