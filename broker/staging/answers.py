"""Answers about staged batches: to intents when they are durable, to questions at the end of a
batch or of their time.

An intent waits for a mark of the store, with all other answers (`broker/appending/answers.py`). A
question waits for an event, the end of its batch: it is found by the batch when that comes, and by
when its time is over. So an event costs the questions that it concerns, and those are answered some
a turn, however many wait. A request that waits keeps what its answer needs, and nothing of what its
sender has put into it besides.

Loop thread only.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from aerobee.broker.appending.answers import MAX_QUESTIONS, WhenDurable
from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.routing.router import refusal
from aerobee.broker.staging.finished import BatchKey
from aerobee.broker.staging.stage_table import StageTable
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_response
from aerobee.protocol.frames.pending_request import keep_for_answer
from aerobee.protocol.headers.stages import DONE, OPEN, StageState, encode_parts
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Spread, Turns

# Answered ones that may stand among those that wait for their time, besides as many as wait.
_KEPT = 1_000


@dataclass(slots=True, eq=False)
class _Question:
    """One question for the end of a batch."""

    connection: Connection
    command: Command
    key: BatchKey
    existed: bool
    started: float
    answered: bool = False


class StageAnswers:
    """Answers of one broker; `clock` is monotonic, in seconds.

    `send_ready` is called when the durable mark has moved, and by a timer for questions whose time
    is over.
    """

    def __init__(
        self,
        intents: WhenDurable,
        table: StageTable,
        stats: BrokerStats,
        clock: Callable[[], float],
        turns: Turns,
    ) -> None:
        self._intents = intents
        self._table = table
        self._stats = stats
        self._clock = clock
        self._waiting = 0
        self._count = 0
        # By the end of their time; the number keeps questions from being compared.
        self._by_deadline: list[tuple[float, int, _Question]] = []
        self._by_batch: dict[BatchKey, dict[int, _Question]] = {}
        # Log offsets after done records that are not durable yet.
        self._done_ends: dict[BatchKey, int] = {}
        # Questions that are due.
        self._due: deque[_Question] = deque()
        self._sending = Spread(turns, self._send_next)
        # The parts of the batch that was answered last, as an answer has them: all who wait for it
        # get the same.
        self._parts: tuple[object, bytes] = ((), encode_parts(()))

    def __len__(self) -> int:
        """How many intents and questions wait."""
        return self._waiting + len(self._intents)

    def finished(self, key: BatchKey, end: int) -> None:
        """A done record ends at log offset `end`."""
        self._done_ends[key] = end
        self._intents.hurry()

    def wait_intent(
        self, connection: Connection, command: Command, key: BatchKey, end: int, *, existed: bool
    ) -> None:
        """Answer when the intent ending at `end` is durable."""
        self._check_room()
        make = partial(self.answer, command, key, existed=existed)
        self._intents.wait(connection, command, end, make)

    def wait_done(
        self,
        connection: Connection,
        command: Command,
        key: BatchKey,
        wait_s: float,
        *,
        existed: bool,
    ) -> None:
        """Answer when the batch is done, or its time over."""
        self._check_room()
        keep_for_answer(command)
        one = _Question(connection, command, key, existed, perf_counter())
        self._waiting += 1
        self._count += 1
        if self.state(key) != OPEN:
            self._due.append(one)
        else:
            self._by_batch.setdefault(key, {})[self._count] = one
        heapq.heappush(self._by_deadline, (self._clock() + wait_s, self._count, one))
        self._intents.hurry()
        self.send_ready()

    def _check_room(self) -> None:
        if len(self) >= MAX_QUESTIONS:
            raise BadRequest(ResponseCode.SYSTEM_BUSY, f"{len(self)} requests wait for batches")

    def state(self, key: BatchKey) -> str:
        """The table's state of a batch, but DONE only once that is durable."""
        state = self._table.state(key)
        return OPEN if state == DONE and key in self._done_ends else state

    def send_ready(self) -> None:
        """Send the answers that need not wait any longer, some of them now."""
        durable = self._intents.mark
        for key, end in list(self._done_ends.items()):
            if end <= durable:
                del self._done_ends[key]
                self._due.extend(self._by_batch.pop(key, {}).values())
        self._forget_answered()
        if self._done_ends:
            self._intents.hurry()
        if self._due or self._is_late():
            self._sending.go_on()

    def answer(
        self,
        command: Command,
        key: BatchKey,
        code: int,
        remark: str | None = None,
        *,
        existed: bool,
    ) -> bytes:
        """The frame that tells how a batch stands."""
        intent = self._table.open.get(key)
        state = StageState(self.state(key), existed)
        if intent is not None:
            state.published, state.rows = intent.published, intent.rows
        parts = self._table.parts_of(key)
        if self._parts[0] is not parts:
            self._parts = parts, encode_parts(parts)
        return encode_response(command, code, remark, state.to_ext(), self._parts[1])

    def _send_next(self) -> bool:
        """Send one answer that is due; False when none is."""
        if self._due:
            self._send(self._due.popleft())
            return True
        # Those whose time is over, and those that were answered before it was.
        if not self._is_late():
            return False
        _, number, one = heapq.heappop(self._by_deadline)
        waiting = self._by_batch.get(one.key)
        if waiting is not None:
            waiting.pop(number, one)
            if not waiting:
                del self._by_batch[one.key]
        self._send(one)
        return True

    def _is_late(self) -> bool:
        """Whether somebody's time is over, answered or not."""
        return bool(self._by_deadline) and self._by_deadline[0][0] <= self._clock()

    def _forget_answered(self) -> None:
        """An answer that has left is not kept until its time would be over."""
        if len(self._by_deadline) > 2 * self._waiting + _KEPT:
            self._by_deadline = [one for one in self._by_deadline if not one[2].answered]
            heapq.heapify(self._by_deadline)

    def _send(self, one: _Question) -> None:
        if one.answered:
            return
        one.answered = True
        self._waiting -= 1
        took_s = perf_counter() - one.started
        try:
            answer = self.answer(one.command, one.key, ResponseCode.SUCCESS, existed=one.existed)
        except Exception as error:  # noqa: BLE001 - the top of a request; `refusal` logs bugs
            code, remark = refusal(error, one.connection, one.command, self._stats)
            answer = encode_response(one.command, code, remark)
            self._stats.request_refused(one.command.code, code, took_s)
        else:
            self._stats.request_served(one.command.code, took_s)
        if not one.command.is_oneway and not one.connection.closed:
            one.connection.write(answer)
