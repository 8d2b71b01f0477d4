"""One connection of the generator: frames out, answers in, and the requests that still wait.

Beside `remoting/calling/caller.py` it saves a future, a command and a header a request, which is
most of what a request costs in Python. Answers are matched by opaque; requests that are not
answered in time are taken out by `expire`, and an answer that comes later is dropped. Loop thread
only.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, cast

from aerobee.cli.bench.generator.request_frames import FIRST_OPAQUE, LAST_OPAQUE
from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.frame import FrameDecoder

_READ_BYTES: Final = 256 * 1024
#: Every lane of a process reads through these: nothing is kept in them between two reads.
_BUFFER: Final = memoryview(bytearray(_READ_BYTES))


class Waiting(NamedTuple):
    """A request that is under way: when it was due and when it left (monotonic ns), how many
    messages it carries, and a note of its owner."""

    due_ns: int
    sent_ns: int
    messages: int
    what: object


OnAnswer = Callable[[Waiting, Command], None]
OnTurn = Callable[[], None]
OnLost = Callable[[str], None]


class Lane(asyncio.BufferedProtocol):
    """A connection. `on_turn` is called when the answers of one read were handed over."""

    def __init__(self, on_answer: OnAnswer, on_turn: OnTurn, on_lost: OnLost) -> None:
        self.waiting: dict[int, Waiting] = {}
        self.open = False
        self._on_answer = on_answer
        self._on_turn = on_turn
        self._on_lost = on_lost
        self._decoder = FrameDecoder()
        self._out: list[bytes] = []
        self._opaque = FIRST_OPAQUE
        self._transport: asyncio.Transport | None = None

    def next_opaque(self) -> int:
        """The number of the next request."""
        self._opaque = self._opaque + 1 if self._opaque < LAST_OPAQUE else FIRST_OPAQUE
        return self._opaque

    def put(self, opaque: int, frame: bytes, waiting: Waiting) -> None:
        """Have a request leave with the next `flush`."""
        self.waiting[opaque] = waiting
        self._out.append(frame)

    def flush(self) -> None:
        """Write the frames that were put."""
        if self._out and self._transport is not None:
            self._transport.write(self._out[0] if len(self._out) == 1 else b"".join(self._out))
        self._out.clear()

    def expire(self, before_ns: int) -> list[Waiting]:
        """Give up what left before a time; the oldest stand first."""
        late = []
        for opaque, waiting in self.waiting.items():
            if waiting.sent_ns >= before_ns:
                break
            late.append(opaque)
        return [self.waiting.pop(opaque) for opaque in late]

    def close(self) -> None:
        """End it without a call to anybody."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    # --- what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.open = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        for command in self._decoder.feed(_BUFFER[:nbytes]):
            waiting = self.waiting.pop(command.opaque, None) if command.is_response else None
            if waiting is not None:
                self._on_answer(waiting, command)
        if self._decoder.failed is not None:
            self._lost(f"what came is not the protocol: {self._decoder.failed}")
        else:
            self._on_turn()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(str(exc) if exc else "the broker closed the connection")

    def _lost(self, reason: str) -> None:
        if self.open:
            self.open = False
            assert self._transport is not None
            self._transport.abort()
            self._on_lost(reason)
