"""Where the flush thread meets the event loop: sends that wait for the durable mark.

Under SYNC_FLUSH a send is appended at once and answered only when a completed sync covers it. The
send's answer waits here, in append order, so that one reading of the durable mark releases every
answer it covers: one hand-over per flushed batch, one write per connection.

Guarantees
- `on_durable` and `on_broken` may be called from any thread; everything else on the loop only.
- An answer of success leaves only after `store.durable` has passed the message's end.
- Three different answers: durable (SUCCESS), not yet (FLUSH_DISK_TIMEOUT after the time-out; the
  message is stored and may become durable), failed (SERVICE_NOT_AVAILABLE: the store is broken).
- An answer that cannot be made is a fault of its own send only, which is answered as the router
  would (`refusal`).
- Answers leave before `after_durable` is called; of very many the first ones do, and the others a
  slice a turn.
- Ends are non-decreasing in the queue: appends and `wait` both happen on the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from aerobee.broker.router import refusal
from aerobee.broker.stats import BrokerStats
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.frames.command import Command, encode_response
from aerobee.protocol.frames.header_decode import decode_header
from aerobee.protocol.frames.waiting import keep_for_answer
from aerobee.protocol.headers.send import SendReply
from aerobee.remoting.connection import Connection
from aerobee.remoting.turns import Turns
from aerobee.store.errors import StoreBroken
from aerobee.store.message_store import MessageStore
from aerobee.store.stats import Histogram

# A stalled disk must not turn into all memory: a waiting send costs about 1 KB, so 50 MB here.
MAX_WAITING = 50_000
# Answers between two looks at the clock, some 5 us each. What leaves in a slice leaves in one write
# a connection.
_LOOK = 64
# Only at stop, where a few milliseconds more do not matter.
_DRAIN_POLL_S = 0.005


class WaitingSend(NamedTuple):
    end: int
    deadline: float
    connection: Connection
    request: Command
    msg_id: str
    queue_id: int
    queue_offset: int
    #: Further fields of the answer.
    more: Mapping[str, str] | None
    #: The answer of success, where it was made with the append.
    made: bytes | None = None


class Acks:
    """Answers that wait for durability, in append order."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        turns: Turns,
        store: MessageStore,
        reply: SendReply,
        after_durable: Callable[[], None],
        timeout_s: float,
        stats: BrokerStats,
        put_times: Histogram,
    ) -> None:
        self._loop = loop
        self._turns = turns
        self._store = store
        self._answer = reply.encode
        self._after_durable = after_durable
        self._timeout_s = timeout_s
        self._stats = stats
        self._put_times = put_times
        self._waiting: deque[WaitingSend] = deque()
        self._flush_requested = False
        self._wake_pending = False
        self._broken: str | None = None
        # Whether the turns go on with what a slice has left over.
        self._going = False
        self.timed_out = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def broken(self) -> str | None:
        """Why nothing more will become durable, None as long as it does."""
        return self._broken

    @property
    def full(self) -> bool:
        """As many sends wait as may; the next one is to be refused before it is appended."""
        return len(self._waiting) >= MAX_WAITING

    @property
    def room(self) -> int:
        """How many more may wait."""
        return max(0, MAX_WAITING - len(self._waiting))

    def wait(
        self,
        end: int,
        connection: Connection,
        request: Command,
        msg_id: str,
        queue_id: int,
        queue_offset: int,
        more: Mapping[str, str] | None = None,
    ) -> None:
        """Answer `request` when the durable mark has passed `end` (a log offset)."""
        deadline = self._loop.time() + self._timeout_s
        # The body is in the log by now.
        keep_for_answer(request)
        self._waiting.append(
            WaitingSend(end, deadline, connection, request, msg_id, queue_id, queue_offset, more)
        )
        self._ask_for_flush()

    def wait_made(
        self, connection: Connection, answers: Iterable[tuple[int, int, int, int, bytes]]
    ) -> None:
        """As `wait`, for answers of success that were made already: of each the end, and its
        request's code, opaque and serialization."""
        deadline = self._loop.time() + self._timeout_s
        for end, code, opaque, serialization, made in answers:
            request = Command(code=code, opaque=opaque, serialization=serialization)
            self._waiting.append(
                WaitingSend(end, deadline, connection, request, "", 0, 0, None, made)
            )
        self._ask_for_flush()

    def _ask_for_flush(self) -> None:
        if not self._flush_requested:
            # One wake-up for everything read in this turn of the loop.
            self._flush_requested = True
            self._loop.call_soon(self._request_flush)

    def on_durable(self, _offset: int) -> None:
        """The store's flush thread: a sync moved the mark. Or its commit thread: a commit moved
        the mark up to which messages may be dispatched."""
        if not self._wake_pending:
            self._wake_pending = True
            self._call_loop(self._release)

    def on_broken(self, error: StoreBroken) -> None:
        """The store's flush thread: a sync failed, nothing more will become durable."""
        self._broken = error.remark
        self._call_loop(self._fail_all)

    def expire(self) -> None:
        """Answer FLUSH_DISK_TIMEOUT to what has waited too long. Called by a timer of the loop."""
        self._go_on()

    async def wait_empty(self, timeout_s: float) -> bool:
        """Wait until every answer has left, at most `timeout_s` seconds; True when it has."""
        until = self._loop.time() + timeout_s
        while self._waiting and self._loop.time() < until:
            self._store.request_flush()
            await asyncio.sleep(_DRAIN_POLL_S)
        return not self._waiting

    def _request_flush(self) -> None:
        self._flush_requested = False
        self._store.request_flush()

    def _call_loop(self, callback: Callable[[], None]) -> None:
        # The loop may be closed between the daemon's stop and the last sync of the store; then no
        # answer waits any more.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback)

    def _release(self) -> None:
        # Cleared before the mark is read: a sync that ends from here on wakes us again.
        self._wake_pending = False
        self._go_on()
        self._after_durable()

    def _go_on(self) -> None:
        """Answer what need not wait: a slice now, unless the turns are at it already."""
        if not self._going and self._slice():
            self._going = True
            self._turns.add(self._slice)

    def _slice(self) -> bool:
        """One slice of answers; whether there are more to give."""
        turns = self._turns
        until = turns.slice_until(turns.clock())
        more = False
        try:
            more = self._answer_durable(until)
            if not more and self._broken is not None:
                more = self._fail_some(until)
            if not more:
                more = self._expire_some(until)
        finally:
            # What raised ends this round; the next mark begins another.
            self._going = self._going and more
        return more

    def _answer_durable(self, until: float) -> bool:
        durable, clock, left = self._store.durable, self._turns.clock, _LOOK
        waiting, answer = self._waiting, self._answer
        latest_deadline = self._loop.time() + self._timeout_s
        writes: dict[Connection, list[bytes]] = {}
        # Sends of one turn of the loop have one deadline: they are counted together.
        counted_deadline, counted_code, count = 0.0, 0, 0
        while left and waiting and waiting[0].end <= durable:
            left -= 1
            if not left and clock() < until:
                left = _LOOK
            _, deadline, connection, request, msg_id, queue_id, queue_offset, more, made = (
                waiting.popleft()
            )
            if deadline != counted_deadline or request.code != counted_code:
                self._count(counted_code, latest_deadline - counted_deadline, count)
                counted_deadline, counted_code, count = deadline, request.code, 0
            count += 1
            try:
                frame = made or answer(request, 0, msg_id, queue_id, queue_offset, None, more)
            except Exception as error:  # noqa: BLE001 - the top of a request; `refusal` logs bugs
                count -= 1
                frame = self._refuse(error, connection, request, latest_deadline - deadline)
            frames = writes.get(connection)
            if frames is None:
                writes[connection] = [frame]
            else:
                frames.append(frame)
        self._count(counted_code, latest_deadline - counted_deadline, count)
        for connection, frames in writes.items():
            if not connection.closed:
                connection.write(frames[0] if len(frames) == 1 else b"".join(frames))
        return bool(waiting) and waiting[0].end <= durable

    def _count(self, code: int, waited_s: float, count: int) -> None:
        if count:
            self._stats.requests_served(code, waited_s, count)
            self._put_times.add_many(int(waited_s * 1e9), count)

    def _fail_all(self) -> None:
        self._go_on()
        self._after_durable()

    def _fail_some(self, until: float) -> bool:
        remark = f"the store has stopped after a disk error: {self._broken}"
        waiting, clock = self._waiting, self._turns.clock
        while waiting:
            self._stats.failed()  # its topic went with its header
            self._send(waiting.popleft(), ResponseCode.SERVICE_NOT_AVAILABLE, remark)
            if clock() >= until:
                break
        return bool(waiting)

    def _expire_some(self, until: float) -> bool:
        now, waiting, clock = self._loop.time(), self._waiting, self._turns.clock
        while waiting and waiting[0].deadline <= now:
            self.timed_out += 1
            self._send(waiting.popleft(), ResponseCode.FLUSH_DISK_TIMEOUT, None)
            if clock() >= until:
                return True
        return False

    def _send(self, item: WaitingSend, code: int, remark: str | None) -> None:
        _, deadline, connection, request, msg_id, queue_id, queue_offset, more, made = item
        waited_s = self._loop.time() + self._timeout_s - deadline
        try:
            if made is None:
                frame = self._answer(request, code, msg_id, queue_id, queue_offset, remark, more)
            else:
                # It says where the message went, whatever came of it.
                size = int.from_bytes(made[5:8], "big")
                success = decode_header(request.serialization, made[8 : 8 + size])
                frame = encode_response(request, code, remark, success.ext)
        except Exception as error:  # noqa: BLE001 - the top of a request; `refusal` logs bugs
            frame = self._refuse(error, connection, request, waited_s)
        else:
            self._stats.request_refused(request.code, code, waited_s)
            self._put_times.add_many(int(waited_s * 1e9), 1)
        if not connection.closed:
            connection.write(frame)

    def _refuse(
        self, error: Exception, connection: Connection, request: Command, waited_s: float
    ) -> bytes:
        code, remark = refusal(error, connection, request, self._stats)
        self._stats.request_refused(request.code, code, waited_s)
        self._put_times.add_many(int(waited_s * 1e9), 1)
        return encode_response(request, code, remark)
