"""Cuts a byte stream into commands, incrementally and within limits (protocol/WIRE.md 1.1).

    0 total i32 = bytes that follow · 4 serialization u8 · 5 header length u24 · 8 header · body

The two length words are judged as soon as they are there, before anything is reserved for what they
announce: the buffer only ever holds bytes that have arrived. Bytes become commands singly, when
their turn to be served has come: a command takes ten times its bytes, and the smallest frame has 8.
After the first violation the decoder is finished: frames before it are good and returned,
everything after it is dropped.

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
    """`add` what a socket read, `cut` commands off singly; `feed` does both. `failed` says why
    the connection must be closed."""

    def __init__(
        self, max_frame_bytes: int = MAX_FRAME_BYTES, max_header_bytes: int = MAX_HEADER_BYTES
    ) -> None:
        self.failed: BadFrame | None = None
        #: The first bytes of what is no frame.
        self.failed_head = b""
        #: Bytes that were added and are in no command yet.
        self.buffered = 0
        #: Bytes that were added in all.
        self.added = 0
        self._max_total = max_frame_bytes - 4
        self._max_header_bytes = max_header_bytes
        # Frames are cut from `_at` on; the bytes in `_behind` came meanwhile.
        self._chunk = b""
        self._at = 0
        self._behind = bytearray()
        # Bytes that have to be there before a command can be cut or a new violation be seen.
        self._needed = 4

    @property
    def held(self) -> int:
        """Bytes of memory that `buffered` takes."""
        return len(self._chunk) + len(self._behind)

    @property
    def chunk(self) -> tuple[bytes, int]:
        """The bytes that are cut next, and where the next frame begins in them."""
        return self._chunk, self._at

    def feed(self, data: bytes | bytearray | memoryview) -> list[Command]:
        """The commands that are whole now, in order. Keeps nothing of `data` itself.

        On a violation returns the good commands before it and sets `failed`; later calls return
        an empty list.
        """
        self.add(data)
        commands: list[Command] = []
        while (command := self.cut()) is not None:
            commands.append(command)
        return commands

    def add(self, data: bytes | bytearray | memoryview) -> None:
        """Take a copy of what was read; nothing is decoded yet."""
        if self.failed is not None:
            return
        if self.buffered:
            self._behind += data
        else:
            self._chunk = bytes(data)
            self._at = 0
        self.buffered += len(data)
        self.added += len(data)

    def cut(self) -> Command | None:
        """The next command; None when none is whole, or after a violation, which sets `failed`."""
        while self.buffered >= self._needed:
            if len(self._chunk) - self._at < self._needed:
                self._join()
            try:
                command = self._cut_next()
            except BadFrame as error:
                self.failed = error
                self.failed_head = self._chunk[self._at : self._at + _WORDS_BYTES]
                self.drop()
                return None
            if command is not None:
                return command
        if self._chunk:
            # Only a part of a frame is left: what was in front of it is let go.
            self._behind[:0] = memoryview(self._chunk)[self._at :]
            self._chunk, self._at = b"", 0
        return None

    def skip(self, size: int) -> None:
        """The next `size` bytes of `chunk` were whole frames, and somebody else has served them."""
        self._at += size
        self.buffered -= size
        self._needed = 4
        if not self.buffered:
            self.drop()

    def drop(self) -> None:
        """Forget what was added."""
        self._chunk, self._at = b"", 0
        self._behind = bytearray()
        self.buffered = 0

    def count_whole(self, most: int) -> int:
        """How many whole frames wait where they lie together; no more than `most` are counted."""
        chunk, at = self._chunk, self._at
        found = 0
        while found < most and len(chunk) - at >= 4:
            (total,) = _TOTAL.unpack_from(chunk, at)
            if not 4 <= total <= len(chunk) - at - 4:
                break
            at += 4 + total
            found += 1
        return found

    # --- inside

    def _join(self) -> None:
        """The two pieces become one."""
        self._chunk = b"".join((memoryview(self._chunk)[self._at :], self._behind))
        self._at = 0
        self._behind = bytearray()

    def _cut_next(self) -> Command | None:
        """The command at the head of the chunk, which has what was needed; None: more is needed."""
        chunk, position = self._chunk, self._at
        here = len(chunk) - position
        if here < _WORDS_BYTES:
            (total,) = _TOTAL.unpack_from(chunk, position)
            if not 4 <= total <= self._max_total:
                raise _bad_total(total, self._max_total)
            self._needed = _WORDS_BYTES
            return None
        total, word = _WORDS.unpack_from(chunk, position)
        header_length = word & 0xFFFFFF
        if not 4 <= total <= self._max_total:
            raise _bad_total(total, self._max_total)
        if header_length > total - 4 or header_length > self._max_header_bytes:
            raise BadFrame(f"header of {header_length} bytes in a frame of {total}")
        if word >> 24 > MSGPACK:
            raise BadFrame(f"serialization type {word >> 24} is unknown")
        size = 4 + total
        if size > here:
            self._needed = size
            return None
        header_end = position + 8 + header_length
        header = chunk[position + 8 : header_end]
        if word <= 0xFFFFFF:
            try:
                command = decode_typed(header)
            except (ValueError, RecursionError):
                command = decode_header(0, header)
        else:
            command = decode_header(word >> 24, header)
        command.body = chunk[header_end : position + size]
        command.serialization = word >> 24
        self._at = position + size
        self.buffered -= size
        self._needed = 4
        if not self.buffered:
            self._chunk, self._at = b"", 0
        return command


def _bad_total(total: int, max_total: int) -> BadFrame:
    return BadFrame(f"frame length {total} is outside 4 to {max_total}")
