"""Work that the loop hands to its worker threads, and the calls of that work on the loop.

A request whose work takes too long for the loop is done by a worker and answered when it is done
(`WorkerAnswers`). Work on a worker that has to read or change values of the loop does so in short
calls that run there (`LoopCalls`). A large body is read by a worker too (`BodyReader`).

Guarantees
- An answer is written on the loop: SUCCESS if the work returned, the store's code if it raised a
  `StoreError`, SYSTEM_ERROR for anything else. A client that has left, or wants no answer, gets no
  answer; the work is done all the same.
- A call on the loop runs in its own turn; the worker waits, and gets its result or the exception
  that it raised. If the loop is closed, the worker gets a RuntimeError; if the loop stops turning
  for good while a worker waits, that worker never ends. So the daemon ends its workers before its
  loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import Any, TypeAlias, TypeVar

from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.routing.router import known_refusal
from aerobee.protocol.bodies.common import SMALL_BODY
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.frames.command import Command, encode_response
from aerobee.protocol.frames.pending_request import keep_for_answer
from aerobee.remoting.connections.connection import Connection
from aerobee.store.log.collector import collector_paused

log = logging.getLogger("aerobee.broker")

T = TypeVar("T")

#: Has work done by a worker, and the request answered then, like `WorkerAnswers`.
AnswerLater: TypeAlias = Callable[[Connection, Command, Callable[[], object]], bytes | None]
#: Gets a request, and code and remark of its answer, which leaves when the future is done; None: at
#: once.
Ended: TypeAlias = Callable[[Command, int, str | None], "asyncio.Future[None] | None"]


class BodyReader:
    """Reads JSON bodies for a request's steps (`remoting.turns.Steps`).

    Standard JSON is read at native speed, but for the dialect of fastjson, for many tags and queues
    a large body takes up to a second. The interpreter changes between the threads every millisecond
    (`_be_prompt` in `broker_process.py`). There is one thread for all bodies, so that the loop
    never waits for more than one body.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="aerobee-bodies")

    def read(
        self, parse: Callable[[bytes], T], body: bytes
    ) -> Generator[asyncio.Future[Any], None, T]:
        """The result of `parse` for the body; an error of `parse` passes through."""
        if len(body) <= SMALL_BODY:
            return parse(body)
        reading = self._loop.run_in_executor(self._thread, _without_collections, parse, body)
        yield reading
        return reading.result()

    def close(self) -> None:
        """Read no further body."""
        self._thread.shutdown(cancel_futures=True)


def _without_collections(parse: Callable[[bytes], T], body: bytes) -> T:
    """Parse without collections: all objects stay until the end, and may be a hundred thousand."""
    with collector_paused():
        return parse(body)


class LoopCalls:
    """Makes calls on a loop. Worker threads only; on the loop itself it would wait for ever."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __call__(self, call: Callable[[], T], /) -> T:
        """Run `call` on the loop and return its result."""
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(call())
            except BaseException as error:  # noqa: BLE001 - raised again in the worker
                result.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return result.result()


class WorkerAnswers:
    """Called on the loop by a handler, which then returns None."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        stats: BrokerStats,
        ended: Ended = lambda _command, _code, _remark: None,
    ) -> None:
        """`ended` is called when the work has ended, before the answer."""
        self._loop = loop
        self._stats = stats
        self._ended = ended

    def __call__(
        self, connection: Connection, command: Command, work: Callable[[], object], /
    ) -> None:
        """Have `work` done, then answer `command`."""
        keep_for_answer(command)
        future = self._loop.run_in_executor(None, work)
        future.add_done_callback(partial(self._done, connection, command, perf_counter()))

    def _done(
        self,
        connection: Connection,
        command: Command,
        started: float,
        future: asyncio.Future[object],
    ) -> None:
        if future.cancelled():
            return
        took_s = perf_counter() - started
        error = future.exception()
        code, remark = int(ResponseCode.SUCCESS), None
        if error is None:
            self._stats.request_served(command.code, took_s)
        else:
            code, remark = known_refusal(error) or (
                ResponseCode.SYSTEM_ERROR,
                f"the broker failed on this request: {error}",
            )
            log.error("request failed code=%d", command.code, exc_info=error)
            self._stats.request_refused(command.code, code, took_s)
            self._stats.note_refusal(connection.peer[0], command.code, code, remark)
        answer = partial(_answer, connection, command, code, remark)
        before = self._ended(command, code, remark)
        if before is None:
            answer()
        else:
            before.add_done_callback(lambda _: answer())


def _answer(connection: Connection, command: Command, code: int, remark: str | None) -> None:
    if not command.is_oneway and not connection.closed:
        connection.write(encode_response(command, code, remark))
