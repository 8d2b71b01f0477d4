"""Answers about staged batches that wait: for an intent to be durable, for a batch to be done.

A decision is told to nobody before it is on the disk, whatever the flush mode: the driver's next
step is to write it into its own checkpoint. So these answers wait for the durable mark even under
ASYNC_FLUSH, and ask the flush thread not to wait for its interval.

Loop thread only. `look` is called when the durable mark has moved, and by a timer for who has
waited long enough: a batch that is not done by then is answered OPEN, an intent that is not durable
FLUSH_DISK_TIMEOUT, and both may be asked for again.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

from aerobee.broker.router import refusal
from aerobee.broker.staging.table import BatchKey, StageTable
from aerobee.broker.stats import BrokerStats
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_response
from aerobee.protocol.headers.stages import DONE, OPEN, StageState, encode_parts
from aerobee.remoting.connection import Connection
from aerobee.store.message_store import MessageStore

# Drivers wait, one or two requests a query.
MAX_WAITING = 10_000


class Waiting(NamedTuple):
    """One answer; `end` is the log offset its intent ends at, None if it waits for DONE."""

    connection: Connection
    command: Command
    key: BatchKey
    end: int | None
    existed: bool
    deadline: float
    started: float


class StageWaits:
    """Of one broker; `clock` in seconds, monotonic."""

    def __init__(
        self,
        store: MessageStore,
        table: StageTable,
        stats: BrokerStats,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._table = table
        self._stats = stats
        self._clock = clock
        self._waiting: list[Waiting] = []
        # Log offsets behind done records that are not durable yet.
        self._done_ends: dict[BatchKey, int] = {}

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
        if len(self._waiting) >= MAX_WAITING:
            raise BadRequest(
                ResponseCode.SYSTEM_BUSY, f"{len(self._waiting)} requests wait for batches"
            )
        command.body = b""
        deadline = self._clock() + wait_s
        self._waiting.append(
            Waiting(connection, command, key, end, existed, deadline, perf_counter())
        )
        self._store.sync_soon()
        self.look()

    def state(self, key: BatchKey) -> str:
        """As the table says; DONE not before that is durable."""
        state = self._table.state(key)
        return OPEN if state == DONE and key in self._done_ends else state

    def look(self) -> None:
        """Answer who need not wait any more."""
        durable = self._store.durable
        for key, end in list(self._done_ends.items()):
            if end <= durable:
                del self._done_ends[key]
        if self._done_ends:
            self._store.sync_soon()
        if not self._waiting:
            return
        now = self._clock()
        left: list[Waiting] = []
        for one in self._waiting:
            is_done = self.state(one.key) != OPEN
            over = is_done if one.end is None else one.end <= durable
            if over:
                self._send(one, ResponseCode.SUCCESS)
            elif one.deadline <= now:
                late = ResponseCode.FLUSH_DISK_TIMEOUT if one.end is not None else 0
                self._send(one, late)
            else:
                left.append(one)
        self._waiting = left
        if any(one.end is not None for one in left):
            self._store.sync_soon()

    def answer(self, command: Command, key: BatchKey, code: int, *, existed: bool) -> bytes:
        """The frame that tells how a batch stands."""
        intent = self._table.open.get(key)
        state = StageState(self.state(key), existed)
        if intent is not None:
            state.published, state.rows = intent.published, intent.rows
        body = encode_parts(self._table.parts_of(key))
        return encode_response(command, code, None, state.to_ext(), body)

    def _send(self, one: Waiting, code: int) -> None:
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
        if not one.connection.closed:
            one.connection.write(answer)
