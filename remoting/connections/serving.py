"""Serves the requests of connections in their order, each turn of the loop for a bounded time.

A broker and a name server have this in common: commands are taken off the data that one connection
has read, one after the other, until the slice is over or their answers fill the connection's
output; the connection brings the others again. A request that is served in steps keeps the later
requests of its connection waiting, and nobody else's. All answers leave in the order of the
requests, but for those that a handler gives later by itself (held pulls, waiting sends).

Loop thread only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import partial
from typing import TypeAlias

from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.pending_request import request_bytes
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import LONG_S, Steps, StepsJob, Turns

#: A handler returns its answer, None if that comes later or never, or the steps that lead to it.
Answer: TypeAlias = bytes | Steps | None

_ONEWAY = 2


class Serving(ABC):
    """The handler of a server's connections; a subclass knows the requests."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def answered(self, code: int, spent_s: float) -> None:  # noqa: B027 - not every server counts
        """A request was answered after these seconds; a subclass may count it."""

    @abstractmethod
    def serve(self, connection: Connection, command: Command) -> Answer:
        """Serve one request; what it raises goes to `refuse`."""

    @abstractmethod
    def refuse(
        self, connection: Connection, command: Command, error: Exception, spent_s: float
    ) -> bytes:
        """The answer to a request that raised `error`, which is counted and, if a bug, logged."""

    def commands_received(self, connection: Connection, commands: Iterable[Command]) -> None:
        """Serve requests in order, at least one. Their answers leave in this turn."""
        turns = self._turns
        clock = turns.clock
        now = clock()
        until = turns.slice_until(now)
        # One request alone may fill it.
        room = connection.answer_room
        answers: list[bytes] = []
        for command in commands:
            started = now
            try:
                answer = self.serve(connection, command)
                if answer is not None and not isinstance(answer, bytes):
                    answer = self._first_slice(connection, command, answer, started, until)
            except _Unfinished:
                now = clock()
                if now - started > LONG_S:
                    turns.note_long(now - started, command.code, connection)
                break
            except Exception as error:  # noqa: BLE001 - the top of a request; `refuse` logs bugs
                now = clock()
                answer = self.refuse(connection, command, error, now - started)
            else:
                now = clock()
                if answer is not None:
                    self.answered(command.code, now - started)
            if answer is not None and not command.flag & _ONEWAY:
                answers.append(answer)
                room -= len(answer)
            if now - started > LONG_S:
                turns.note_long(now - started, command.code, connection)
            if now >= until or room < 0:
                break
        if answers:
            turns.write(connection, answers[0] if len(answers) == 1 else b"".join(answers))
        if now >= turns.until:
            turns.late = True

    # --- requests in steps

    def _first_slice(
        self, connection: Connection, command: Command, steps: Steps, started: float, until: float
    ) -> bytes | None:
        """The answer, when the steps end within this slice. Raises `_Unfinished`: they go on in
        later turns, and the connection is not served meanwhile; and what the steps raise."""
        finished = partial(self._finished, connection, command, started)
        job = StepsJob(self._turns, steps, finished, command.code, connection)
        try:
            waits_for = job.advance(until)
        except StopIteration as end:
            answer: bytes | None = end.value
            return answer
        connection.hold_reading()
        connection.keep(request_bytes(command))
        job.go_on_after(waits_for)
        raise _Unfinished

    def _finished(
        self,
        connection: Connection,
        command: Command,
        started: float,
        answer: bytes | None,
        error: Exception | None,
    ) -> None:
        spent_s = self._turns.clock() - started
        if error is not None:
            answer = self.refuse(connection, command, error, spent_s)
        elif answer is not None:
            self.answered(command.code, spent_s)
        if answer is not None and not command.flag & _ONEWAY:
            self._turns.write(connection, answer)
        connection.keep(0)
        connection.release_reading()


class _Unfinished(Exception):
    """A request goes on in later turns."""
