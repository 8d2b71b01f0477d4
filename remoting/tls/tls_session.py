"""The server's end of TLS over one socket: what is read is handed to OpenSSL in bounded parts.

OpenSSL with a socket of its own reads on until it has data for its caller, and takes whatever
brings none (updates of keys, empty records) in that one call, for as long as a peer likes. Here the
socket is ours, and OpenSSL works on memory (`ssl.MemoryBIO`). A look at the kernel's bytes counts
the records in them; a read takes out and hands on as many records as it may, and the kernel keeps
the rest and says by itself that it has them. So nothing is held back for a peer but a record that
has not come whole.

Arrivals shake hands with it; then `TlsTransport` reads and writes, or the compiled sockets do and
have `read`, `send` and `flush` of their own (`native/sockets.pyx`) to the same rules. Loop
thread only; the socket does not block.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Final

# A record has type, version, length; then 2^14 bytes of data at most, and what protects them
# (RFC 8446, 5.2; 1.2 has more room for that).
HEAD_BYTES: Final = 5
RECORD_BYTES: Final = 1 << 14
# Bytes asked of the kernel in one go: a record with all that it may have around it. OpenSSL's
# buffers grow to the largest part they were given, and stay so.
PART_BYTES: Final = HEAD_BYTES + RECORD_BYTES + 2048
# One read takes no more of them: a record of one byte costs as much time as a full one.
RECORDS_A_READ: Final = 64
# Records in a whole handshake; a client's has some ten. A hello in one-byte records costs 100 ms.
_HANDSHAKE_RECORDS: Final = 256
# These bytes hold no more records than a read may take, since each record has a head, a tag and a
# byte at least: they need no look before they are taken. A request alone is smaller.
UNSEEN_BYTES: Final = RECORDS_A_READ * (HEAD_BYTES + 1 + 16)


class TooManyRecords(OSError):
    """A handshake is cut into more records than any client has a reason for."""


class TlsSession:
    """Owns the socket. After `read`, `ended` says that the peer has, and `failed` why no more can
    be read; what was read before that counts all the same."""

    __slots__ = (
        "_body_left",
        "_head",
        "_records",
        "_sealed",
        "_sealed_of",
        "_shaken",
        "ended",
        "failed",
        "incoming",
        "outgoing",
        "socket",
        "tls",
    )

    def __init__(self, context: ssl.SSLContext, connected: socket.socket) -> None:
        self.socket = connected
        self.ended = False
        self.failed: OSError | None = None
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)
        # The record that is coming: a part of its head that OpenSSL does not have yet, or how much
        # of its body is still to come.
        self._head = b""
        self._body_left = 0
        self._records = 0
        self._shaken = False
        # The rest of a sealed part that has not left yet, and how many bytes of data it carries.
        self._sealed = memoryview(b"")
        self._sealed_of = 0

    @property
    def is_owing(self) -> bool:
        """TLS itself has something to say, for which there was no room: no more is read before."""
        return bool(self.outgoing.pending or (self._sealed and not self._sealed_of))

    def shake(self) -> bool:
        """A step of the handshake; whether it is done, and all of it has left. OSError when it has
        failed.

        OpenSSL gets one record after the other, so what comes behind the handshake stays with the
        kernel. The step is over when there is an answer: to make that is the dear part."""
        if not self.flush():
            return False
        for _ in range(0 if self._shaken else RECORDS_A_READ):
            # The rest of one is no record more.
            taken, begun = self._take(0 if self._body_left else 1, PART_BYTES)
            if not taken and not self.ended:
                break
            self._records += begun
            if self._records > _HANDSHAKE_RECORDS:
                raise TooManyRecords(f"its handshake has more than {_HANDSHAKE_RECORDS} records")
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                if self.outgoing.pending:
                    self.flush()
                    break
            except OSError:
                with contextlib.suppress(OSError):
                    # The alert that says why.
                    self.flush()
                raise
            else:
                self._shaken = True
                assert not self._body_left
                assert not self._head
                assert not self.incoming.pending
                return self.flush()
        return self._shaken

    def read(self, view: memoryview) -> int:
        """How many bytes of data are in `view` now; no OSError is raised.

        `view` has room for a record at least."""
        size, records, asked = 0, RECORDS_A_READ, UNSEEN_BYTES
        try:
            if self.is_owing and not self.flush():
                return 0
            while records > 0:
                part = min(self._part(len(view) - size), asked)
                if part <= 0:
                    break
                asked = PART_BYTES
                taken, begun = self._take(records, part)
                records -= begun
                # To be told by an exception costs 5 us, and OpenSSL keeps no whole record back.
                while self.incoming.pending and not self.ended:
                    try:
                        opened: int = self.tls.read(len(view), view[size:])  # type: ignore[assignment]
                    except ssl.SSLWantReadError:
                        break
                    size += opened
                    self.ended = not opened
                if taken < part or self.ended:
                    break
        except OSError as error:
            self.failed = error
        with contextlib.suppress(OSError):
            # TLS's own answers leave; the next read shows if the socket is gone.
            self.flush()
        return size

    def send(self, data: memoryview) -> int:
        """Seal and send; how many bytes of it have left. The rest comes again, unchanged and
        first, when the socket has room. OSError when it is gone."""
        if not self.flush():
            return 0
        sent, self._sealed_of = self._sealed_of, 0
        while sent < len(data):
            part = data[sent : sent + RECORD_BYTES]
            self.tls.write(part)
            if not self.flush():
                self._sealed_of = len(part)
                break
            sent += len(part)
        return sent

    def flush(self) -> bool:
        """Send what is sealed; whether all of it has left. OSError when the socket is gone."""
        while True:
            if not self._sealed:
                if not self.outgoing.pending:
                    return True
                self._sealed = memoryview(self.outgoing.read())
            try:
                self._sealed = self._sealed[self.socket.send(self._sealed) :]
            except (BlockingIOError, InterruptedError):
                return False

    def say_goodbye(self) -> None:
        """Send the alert that says that nothing was cut off; the peer's own is not waited for."""
        with contextlib.suppress(OSError, ValueError):
            self.tls.unwrap()
        with contextlib.suppress(OSError):
            self.flush()

    def _part(self, room: int) -> int:
        """Bytes to ask the kernel for, so that the data in them finds room."""
        if not self._body_left:
            return room
        # The rest of a record may bring all that a record can have.
        over = room - RECORD_BYTES
        return over + self._body_left if over >= 0 else 0

    def _take(self, records: int, part: int) -> tuple[int, int]:
        """Hand OpenSSL what is there, at most `part` bytes and `records` records. Returns how many
        bytes the kernel gave, and how many records began in them. Raises the socket's OSError."""
        looks = part > UNSEEN_BYTES
        try:
            seen = self.socket.recv(part, socket.MSG_PEEK if looks else 0)
        except (BlockingIOError, InterruptedError):
            return 0, 0
        if not seen:
            self.ended = True
            self.incoming.write_eof()
            return 0, 0
        data = self._head + seen if self._head else seen
        begun, end = 0, self._body_left
        while end + HEAD_BYTES <= len(data) and (begun < records or not looks):
            end += HEAD_BYTES + int.from_bytes(data[end + 3 : end + HEAD_BYTES], "big")
            begun += 1
        taken = len(seen)
        self._body_left, self._head = max(0, end - len(data)), b""
        if end < len(data) and looks and begun == records:
            taken -= len(data) - end
        elif end < len(data):
            self._head = data[end:]
        if looks and len(self.socket.recv(taken)) != taken:
            raise ConnectionAbortedError("the kernel had more bytes when it was asked first")
        self.incoming.write(data[:end])
        return taken, begun
