"""Bytes of the log to one slave: from the file into its socket, plain or sealed by TLS.

Plain, the head of a block and its bytes leave with two calls, and the bytes never come into this
process (`sendfile`). A small block is read, and leaves with one call, which costs less. Sealed,
all have to be read. Neither call blocks; a block may take several.

`send_cold` may wait, for a disk and for the slave: a worker calls it, with a piece of the log that
may not be in memory, while the loop leaves the socket alone but for reading.
"""

from __future__ import annotations

import os
import select
import socket
from typing import Protocol

from aerobee.protocol.replication import encode_head
from aerobee.remoting.tls.tls_session import TlsSession
from aerobee.store.log.replication.feed import Piece

# Blocks up to this size are read.
_SMALL_BYTES = 16 << 10
# The bytes that are read and sealed in one go.
_SEALED_BYTES = 64 << 10
# How long a worker waits for room before it looks whether the connection has ended.
_ROOM_MS = 200
_RECEIVED_BYTES = 64 << 10
# Reports have eight bytes each, and of several only the last one counts.
_REPORTS_BYTES = 4 << 10


class Block:
    """A block on its way: the rest of its head, and where the rest of its bytes stands."""

    __slots__ = ("fd", "head", "left", "position")

    def __init__(self, piece: Piece) -> None:
        self.head = encode_head(piece.log_offset, piece.size)
        self.fd = piece.fd
        self.position = piece.position
        self.left = piece.size

    def read(self, most: int) -> None:
        """Put `most` of its bytes at most behind its head. Raises OSError."""
        size = min(self.left, most)
        if not size:
            return
        data = os.pread(self.fd, size, self.position)
        if len(data) != size:
            raise ConnectionError("the file of a segment has become shorter")
        self.head += data
        self.position += size
        self.left -= size


class Wire(Protocol):
    """One slave's socket. All raise OSError when it is gone."""

    socket: socket.socket

    def receive(self) -> bytes | None:
        """The bytes that have come; None without any, b"" when the slave has closed."""

    #: Whether a worker sends what it reads, or only brings it into memory.
    worker_sends: bool

    def push(self, block: Block) -> bool:
        """Send of the block what there is room for; whether all of it has left."""

    def send_sign(self, log_offset: int) -> None:
        """Send a sign of life, when nothing else is on its way."""

    def send_cold(self, piece: Piece, most: int) -> None:
        """Send a piece in blocks of at most `most` bytes; waits. A worker calls it."""


class PlainWire:
    """A socket as it is."""

    worker_sends = True

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected

    def receive(self) -> bytes | None:
        try:
            return self.socket.recv(_REPORTS_BYTES)
        except (BlockingIOError, InterruptedError):
            return None

    def push(self, block: Block) -> bool:
        if block.left <= _SMALL_BYTES:
            block.read(_SMALL_BYTES)
        try:
            while block.head:
                # The head waits for the bytes that follow, and leaves in their packet.
                more = socket.MSG_MORE if block.left else 0
                block.head = block.head[self.socket.send(block.head, more) :]
            while block.left:
                count = os.sendfile(self.socket.fileno(), block.fd, block.position, block.left)
                if not count:
                    raise ConnectionError("the file of a segment has become shorter")
                block.position += count
                block.left -= count
        except (BlockingIOError, InterruptedError):
            return False
        return True

    def send_sign(self, log_offset: int) -> None:
        head = encode_head(log_offset, 0)
        if self.socket.send(head) != len(head):
            # Twelve bytes do not fit: the slave has not read for long.
            raise ConnectionError("the slave takes nothing")

    def send_cold(self, piece: Piece, most: int) -> None:
        room = select.poll()
        room.register(self.socket, select.POLLOUT)
        for block in blocks_of(piece, most):
            while not self.push(block):
                room.poll(_ROOM_MS)


class SealedWire:
    """A socket below TLS."""

    worker_sends = False

    def __init__(self, session: TlsSession) -> None:
        self.socket = session.socket
        self._session = session
        self._into = memoryview(bytearray(_RECEIVED_BYTES))
        # The bytes to be sealed next.
        self._unsent = memoryview(b"")

    def receive(self) -> bytes | None:
        session = self._session
        count = session.read(self._into)
        if session.failed is not None:
            raise session.failed
        if session.is_owing:
            # Nothing is read before TLS's answer has left, and the loop would come back at once.
            raise ConnectionError("the slave does not take the answers of TLS")
        if count:
            return bytes(self._into[:count])
        return b"" if session.ended else None

    def push(self, block: Block) -> bool:
        while True:
            self._unsent = self._unsent[self._session.send(self._unsent) :]
            if self._unsent:
                return False
            if not block.head and not block.left:
                return True
            block.read(_SEALED_BYTES)
            self._unsent = memoryview(block.head)
            block.head = b""

    def send_sign(self, log_offset: int) -> None:
        head = memoryview(encode_head(log_offset, 0))
        if self._session.send(head) < len(head):
            # It may be sealed already, so that nothing else can be sent.
            raise ConnectionError("the slave takes nothing")

    def send_cold(self, piece: Piece, most: int) -> None:
        """Bring the piece into memory; the loop sends it, because TLS has one user at a time."""
        position, end = piece.position, piece.position + piece.size
        while position < end:
            position += len(os.pread(piece.fd, min(most, end - position), position)) or end


def blocks_of(piece: Piece, most: int) -> list[Block]:
    """The piece as blocks of at most `most` bytes."""
    return [
        Block(
            Piece(
                piece.fd,
                piece.position + done,
                piece.log_offset + done,
                min(most, piece.size - done),
                piece.hot,
            )
        )
        for done in range(0, piece.size, most)
    ]
