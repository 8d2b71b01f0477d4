"""Answers about staged batches that wait: for the durable mark, for the end of a batch, for their
time to be over.

Who waits is found by what happens: intents by the log offset that has to be durable, questions for
the end of a batch by the batch, all by when their time is over. So an event costs those it
concerns, and those are answered some a turn, however many wait. A request that waits keeps what its
answer needs, and nothing of what its sender has put into it besides.

Loop thread only.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from aerobee.broker.router import refusal
from aerobee.broker.staging.finished import BatchKey
from aerobee.broker.staging.table import StageTable
from aerobee.broker.stats import BrokerStats
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_response
from aerobee.protocol.frames.waiting import keep_for_answer
from aerobee.protocol.headers.stages import DONE, OPEN, StageState, encode_parts
from aerobee.remoting.connection import Connection
from aerobee.remoting.turns import Spread, Turns
from aerobee.store.message_store import MessageStore

#: Drivers wait, one or two requests a query.
MAX_WAITING = 10_000
# Answered ones that may stand among those that wait for their time, or for the durable mark,
# besides as many as wait.
_KEPT = 1_000


@dataclass(slots=True, eq=False)
class _WaitingAnswer:
    """One answer; `end` is the log offset its intent ends at, None if it waits for DONE. `code` is
    that of the answer, once it is due."""

    connection: Connection
    command: Command
    key: BatchKey
    end: int | None
    existed: bool
    started: float
    code: int | None = None


class StageAnswers:
    """Answers of one broker that wait; `clock` is monotonic, in seconds.

    `send_ready` is called when the durable mark has moved, and by a timer for answers whose time is
    over.
    """

    def __init__(
        self,
        store: MessageStore,
        table: StageTable,
        stats: BrokerStats,
        clock: Callable[[], float],
        turns: Turns,
    ) -> None:
        self._store = store
        self._table = table
        self._stats = stats
        self._clock = clock
        self._waiting = 0
        self._count = 0
        # By log offset, and by the end of their time; the number keeps answers from being compared.
        self._by_end: list[tuple[int, int, _WaitingAnswer]] = []
        self._by_deadline: list[tuple[float, int, _WaitingAnswer]] = []
        self._by_batch: dict[BatchKey, dict[int, _WaitingAnswer]] = {}
        # Log offsets behind done records that are not durable yet.
        self._done_ends: dict[BatchKey, int] = {}
        # Answers that are due, those of one event together.
        self._due: deque[deque[_WaitingAnswer]] = deque()
        self._sending = Spread(turns, self._send_next)
        # The parts of the batch that was answered last, as an answer has them: all who wait for it
        # get the same.
        self._parts: tuple[object, bytes] = ((), encode_parts(()))

    def __len__(self) -> int:
        """How many wait."""
        return self._waiting

    def finished(self, key: BatchKey, end: int) -> None:
        """A done record ends at log offset `end`."""
        self._done_ends[key] = end
        self._store.sync_soon()

    def wait(
        self,
        connection: Connection,
        command: Command,
        key: BatchKey,
        end: int | None,
        wait_s: float,
        *,
        existed: bool,
    ) -> None:
        """Answer when the intent ending at `end` is durable, or the batch done."""
        if self._waiting >= MAX_WAITING:
            raise BadRequest(ResponseCode.SYSTEM_BUSY, f"{self._waiting} requests wait for batches")
        keep_for_answer(command)
        one = _WaitingAnswer(connection, command, key, end, existed, perf_counter())
        self._waiting += 1
        self._count += 1
        if end is None and self.state(key) != OPEN:
            self._due.append(deque((one,)))
        elif end is None:
            self._by_batch.setdefault(key, {})[self._count] = one
        else:
            heapq.heappush(self._by_end, (end, self._count, one))
        heapq.heappush(self._by_deadline, (self._clock() + wait_s, self._count, one))
        self._store.sync_soon()
        self.send_ready()

    def state(self, key: BatchKey) -> str:
        """As the table says; DONE not before that is durable."""
        state = self._table.state(key)
        return OPEN if state == DONE and key in self._done_ends else state

    def send_ready(self) -> None:
        """Send the answers that need not wait any longer, some of them now."""
        durable = self._store.durable
        for key, end in list(self._done_ends.items()):
            if end <= durable:
                del self._done_ends[key]
                waiting = self._by_batch.pop(key, None)
                if waiting is not None:
                    self._due.append(deque(waiting.values()))
        due: deque[_WaitingAnswer] = deque()
        while self._by_end and self._by_end[0][0] <= durable:
            due.append(heapq.heappop(self._by_end)[2])
        if due:
            self._due.append(due)
        self._forget_answered()
        if self._done_ends or self._by_end:
            self._store.sync_soon()
        if self._due or self._is_late():
            self._sending.go_on()

    def answer(self, command: Command, key: BatchKey, code: int, *, existed: bool) -> bytes:
        """The frame that tells how a batch stands."""
        intent = self._table.open.get(key)
        state = StageState(self.state(key), existed)
        if intent is not None:
            state.published, state.rows = intent.published, intent.rows
        parts = self._table.parts_of(key)
        if self._parts[0] is not parts:
            self._parts = parts, encode_parts(parts)
        return encode_response(command, code, None, state.to_ext(), self._parts[1])

    def _send_next(self) -> bool:
        """Send one answer that is due; False when none is."""
        while self._due:
            if self._due[0]:
                self._send(self._due[0].popleft(), ResponseCode.SUCCESS)
                return True
            self._due.popleft()
        # Those whose time is over, and those that were answered before it was.
        if not self._is_late():
            return False
        _, number, one = heapq.heappop(self._by_deadline)
        waiting = self._by_batch.get(one.key)
        if one.end is None and waiting is not None:
            waiting.pop(number, one)
            if not waiting:
                del self._by_batch[one.key]
        late = ResponseCode.SUCCESS if one.end is None else ResponseCode.FLUSH_DISK_TIMEOUT
        self._send(one, late)
        return True

    def _is_late(self) -> bool:
        """Whether somebody's time is over, answered or not."""
        return bool(self._by_deadline) and self._by_deadline[0][0] <= self._clock()

    def _forget_answered(self) -> None:
        """An answer that has left is not kept until its time would be over, or, when it was late,
        until a disk that hangs goes on."""
        most = 2 * self._waiting + _KEPT
        if len(self._by_deadline) > most:
            self._by_deadline = [one for one in self._by_deadline if one[2].code is None]
            heapq.heapify(self._by_deadline)
        if len(self._by_end) > most:
            self._by_end = [one for one in self._by_end if one[2].code is None]
            heapq.heapify(self._by_end)

    def _send(self, one: _WaitingAnswer, code: int) -> None:
        if one.code is not None:
            return
        one.code = code
        self._waiting -= 1
        took_s = perf_counter() - one.started
        try:
            answer = self.answer(one.command, one.key, code, existed=one.existed)
        except Exception as error:  # noqa: BLE001 - the top of a request; `refusal` logs bugs
            code, remark = refusal(error, one.connection, one.command, self._stats)
            answer = encode_response(one.command, code, remark)
        if code:
            self._stats.request_refused(one.command.code, code, took_s)
        else:
            self._stats.request_served(one.command.code, took_s)
        if not one.command.is_oneway and not one.connection.closed:
            one.connection.write(answer)
