"""Cuts a byte stream into commands, incrementally and within limits (protocol/WIRE.md 1.1).

    0 total i32 = bytes that follow · 4 serialization u8 · 5 header length u24 · 8 header · body

The two length words are judged as soon as they are there, before anything is reserved for what they
announce: the buffer only ever holds bytes that have arrived. A read that brings whole frames, the
usual case, is cut where it lies and nothing is kept. After the first violation the decoder is
finished: frames before it are good and returned, everything after it is dropped.

Pure: one decoder for each connection, fed by whoever owns the socket; no thread safety.
"""

import struct

from aerobee.protocol.errors import BadFrame
from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.header_decode import decode_header, decode_typed
from aerobee.protocol.frames.header_encode import MSGPACK

# Including the 4 bytes of the length word; the reference's limit, which clients know too.
MAX_FRAME_BYTES = 16_777_216
# The body of an answer that fits the frame a client accepts, with its header.
MAX_ANSWER_BYTES = MAX_FRAME_BYTES - 4 - 65_536
# Properties may have 32,767 bytes and JSON escaping multiplies by up to six (reliability.md 8).
MAX_HEADER_BYTES = 262_144

_WORDS_BYTES = 8
_WORDS = struct.Struct(">iI")
_TOTAL = struct.Struct(">i")


class FrameDecoder:
    """`feed` it what a socket read; `failed` says why the connection must be closed."""

    def __init__(
        self, max_frame_bytes: int = MAX_FRAME_BYTES, max_header_bytes: int = MAX_HEADER_BYTES
    ) -> None:
        self.failed: BadFrame | None = None
        # Bytes that wait for the rest of their frame: those of `_pending`.
        self.buffered = 0
        self._max_total = max_frame_bytes - 4
        self._max_header_bytes = max_header_bytes
        self._pending = bytearray()
        # No frame can be cut and no new violation seen before `_pending` is this long.
        self._needed = 4

    def feed(self, data: bytes | bytearray | memoryview) -> list[Command]:
        """The commands that are whole now, in order. Keeps nothing of `data` itself.

        On a violation returns the good commands before it and sets `failed`; later calls return
        an empty list.
        """
        if self.failed is not None:
            return []
        pending = self._pending
        if pending:
            pending += data
            self.buffered = len(pending)
            if self.buffered < self._needed:
                return []
            chunk = bytes(pending)
            self._pending = bytearray()
            self.buffered = 0
        else:
            chunk = bytes(data)
        commands: list[Command] = []
        try:
            position = self._cut(chunk, commands)
        except BadFrame as error:
            self.failed = error
            return commands
        if position < len(chunk):
            self._pending += chunk[position:] if position else chunk
            self.buffered = len(chunk) - position
        return commands

    def _cut(self, chunk: bytes, commands: list[Command]) -> int:
        """Appends every whole frame of `chunk` and returns the position behind the last one."""
        position = 0
        end = len(chunk)
        max_total = self._max_total
        while end - position >= _WORDS_BYTES:
            total, word = _WORDS.unpack_from(chunk, position)
            header_length = word & 0xFFFFFF
            if not 4 <= total <= max_total:
                raise _bad_total(total, max_total)
            if header_length > total - 4 or header_length > self._max_header_bytes:
                raise BadFrame(f"header of {header_length} bytes in a frame of {total}")
            if word >> 24 > MSGPACK:
                raise BadFrame(f"serialization type {word >> 24} is unknown")
            frame_end = position + 4 + total
            if frame_end > end:
                self._needed = 4 + total
                return position
            header_end = position + 8 + header_length
            header = chunk[position + 8 : header_end]
            if word <= 0xFFFFFF:
                try:
                    command = decode_typed(header)
                except (ValueError, RecursionError):
                    command = decode_header(0, header)
            else:
                command = decode_header(word >> 24, header)
            command.body = chunk[header_end:frame_end]
            command.serialization = word >> 24
            commands.append(command)
            position = frame_end
        self._needed = _WORDS_BYTES
        if end - position >= 4:
            (total,) = _TOTAL.unpack_from(chunk, position)
            if not 4 <= total <= max_total:
                raise _bad_total(total, max_total)
        else:
            self._needed = 4
        return position


def _bad_total(total: int, max_total: int) -> BadFrame:
    return BadFrame(f"frame length {total} is outside 4 to {max_total}")
