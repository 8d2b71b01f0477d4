"""Has audit events written by a thread, many in one write, and says when they are.

A change is written when it begins (`begin`), and only then made; where that cannot be written it is
refused, and nothing was changed. When it has ended (`end`), its event is written before it is
answered. If that fails the answer stays true: the event waits here, and no other change begins
until it is written. Requests that were refused before they began are summed (`refused`): the first
of a kind is an event at once, the others are one event a minute.

Loop thread only; the sink is used on the thread `aerobee-audit` alone.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

from msgspec.structs import replace

from aerobee.access.audit.sink import Page, Place, Sink
from aerobee.protocol.bodies.audit import DONE, FAILED, REFUSED, AuditEvent
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest

log = logging.getLogger("aerobee.audit")

#: The outcomes that are counted; what is unknown is found in files at a start.
COUNTED: Final = (DONE, REFUSED, FAILED)
#: Refusals of one kind are one event in this time.
EVERY_S: Final = 60.0
#: Kinds of refusals that are known at a time; of more, all are one kind.
MOST_KINDS: Final = 256
# A sink that has failed is tried again after this time.
_RETRY_S: Final = 5.0
#: Changes that may be under way at a time. While a sink fails as many lines of refusals wait;
#: further ones are counted only.
MOST_UNDER_WAY: Final = 1_000


class _Failures(NamedTuple):
    """Why events, and changes that begin, could not be written; None if they were."""

    events: OSError | None
    begun: OSError | None


@dataclass(slots=True)
class _Kind:
    """The refusals of a kind since its last event."""

    timer: asyncio.TimerHandle
    last: AuditEvent | None = None
    times: int = 0


class _Begun(NamedTuple):
    id: str
    line: bytes
    done: asyncio.Future[None]


class Recorder:
    """The events of one process."""

    def __init__(
        self, sink: Sink, loop: asyncio.AbstractEventLoop, clock_ms: Callable[[], int]
    ) -> None:
        self._sink = sink
        self._loop = loop
        self._clock_ms = clock_ms
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="aerobee-audit")
        self._prefix = f"{clock_ms():x}"
        self._numbers = itertools.count(1)
        # Lines of events that are not written yet, and what waits for them.
        self._events: list[bytes] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._begun: list[_Begun] = []
        # Changes that have begun and not ended.
        self._under_way: set[str] = set()
        self._writing: asyncio.Future[_Failures] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._kinds: dict[tuple[str, str, str], _Kind] = {}
        self._is_closed = False
        #: Why events cannot be written; None while they can.
        self.problem: str | None = None
        #: How many requests had an event, by outcome.
        self.counts = dict.fromkeys(COUNTED, 0)

    def new_event(self, request: str, **fields: str) -> AuditEvent:
        """An event of now, without an outcome."""
        number = next(self._numbers)
        return AuditEvent(
            id=f"{self._prefix}.{number:x}",
            timestamp_ms=self._clock_ms(),
            request=request,
            **fields,  # type: ignore[arg-type]
        )

    def begin(self, event: AuditEvent) -> asyncio.Future[None]:
        """Done when the change may be made. It has a BadRequest where the change cannot be
        written, or too many are under way, and so must not be made. Call `end` once it has been
        done without an error."""
        begun = _Begun(event.id, event.encode(), self._loop.create_future())
        if len(self._under_way) + len(self._begun) >= MOST_UNDER_WAY:
            begun.done.set_exception(
                BadRequest(ResponseCode.SYSTEM_BUSY, f"{MOST_UNDER_WAY} changes are under way")
            )
            return begun.done
        self._begun.append(begun)
        self._go_on()
        return begun.done

    def end(
        self, event: AuditEvent, outcome: str = DONE, *, why: str = "", after: str = ""
    ) -> asyncio.Future[None]:
        """Done when the event of a change that had begun is written, or cannot be: then it waits,
        and other changes are refused."""
        self._under_way.discard(event.id)
        return self._write(replace(event, outcome=outcome, why=why, after=after))

    def end_refused(self, event: AuditEvent, why: str) -> None:
        """A change that had begun was refused, and has changed nothing."""
        self._under_way.discard(event.id)
        self.refused(event, why)

    def refused(self, event: AuditEvent, why: str) -> None:
        """A request was refused before it had changed anything."""
        key = event.request, event.account, event.address
        if key not in self._kinds and len(self._kinds) >= MOST_KINDS:
            key = "", "", ""
        event = replace(event, outcome=REFUSED, why=why)
        kind = self._kinds.get(key)
        if kind is None:
            timer = self._loop.call_later(EVERY_S, self._minute_over, key)
            self._kinds[key] = _Kind(timer)
            self._write_refusal(event)
            return
        kind.last = event
        kind.times += 1

    def flushed(self) -> asyncio.Future[None]:
        """Done when the events of until now are written, or cannot be."""
        done: asyncio.Future[None] = self._loop.create_future()
        if self._writing is None and not self._events:
            done.set_result(None)
            return done
        self._waiting.append(done)
        self._go_on()
        return done

    def page(self, place: Place, since_ms: int) -> asyncio.Future[Page]:
        """Some of the events, read by the thread; it has what the sink raises."""
        return self._loop.run_in_executor(self._thread, self._sink.page, place, since_ms)

    async def close(self) -> None:
        """Write what waits, and let go of the sink. A change that is under way still is of unknown
        outcome for the next start; no other begins."""
        for key in list(self._kinds):
            self._kinds[key].timer.cancel()
            self._sum_up(key)
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        await self._wait_idle()
        if self._events:
            # A last try.
            self._go_on()
            await self._wait_idle()
        self._is_closed = True
        self._go_on()
        await self._loop.run_in_executor(self._thread, self._sink.close)
        self._thread.shutdown()

    async def _wait_idle(self) -> None:
        while self._writing is not None:
            await asyncio.wait([self._writing])
            # The callback, which may begin the next write, runs right after.
            await asyncio.sleep(0)

    # --- inside

    def _write(self, event: AuditEvent) -> asyncio.Future[None]:
        self.counts[event.outcome] += event.times
        done: asyncio.Future[None] = self._loop.create_future()
        self._events.append(event.encode())
        self._waiting.append(done)
        self._go_on()
        return done

    def _minute_over(self, key: tuple[str, str, str]) -> None:
        kind = self._kinds[key]
        if kind.last is None:
            del self._kinds[key]
            return
        self._sum_up(key)
        timer = self._loop.call_later(EVERY_S, self._minute_over, key)
        self._kinds[key] = _Kind(timer)

    def _sum_up(self, key: tuple[str, str, str]) -> None:
        kind = self._kinds.pop(key)
        if kind.last is not None:
            self._write_refusal(replace(kind.last, times=kind.times))

    def _write_refusal(self, event: AuditEvent) -> None:
        if len(self._events) < MOST_UNDER_WAY:
            self._write(event)
        else:
            self.counts[event.outcome] += event.times

    def _go_on(self) -> None:
        """Begin a write, unless one is under way."""
        if self._writing is not None:
            return
        if self._is_closed:
            self._give_up()
            return
        events, waiting, begun = self._events, self._waiting, self._begun
        self._events, self._waiting, self._begun = [], [], []
        under_way = len(self._under_way)
        self._under_way.update(one.id for one in begun)
        lines = [one.line for one in begun]
        writing = self._loop.run_in_executor(self._thread, self._put, events, lines, under_way)
        self._writing = writing
        writing.add_done_callback(lambda done: self._written(done.result(), events, waiting, begun))

    def _give_up(self) -> None:
        """Let nobody wait for a write any more."""
        waiting, begun = self._waiting, self._begun
        self._waiting, self._begun = [], []
        for one in waiting:
            if not one.done():
                one.set_result(None)
        for change in begun:
            if not change.done.done():
                change.done.set_exception(_refusal("the process ends"))

    def _put(self, events: list[bytes], begun: list[bytes], under_way: int) -> _Failures:
        """Write events, then changes that begin: none begins beside events that are not written.
        On the thread."""
        try:
            self._sink.write(events)
        except OSError as error:
            return _Failures(error, error)
        try:
            if begun:
                self._sink.begin(begun, under_way)
        except OSError as error:
            return _Failures(None, error)
        return _Failures(None, None)

    def _written(
        self,
        failures: _Failures,
        events: list[bytes],
        waiting: Sequence[asyncio.Future[None]],
        begun: Sequence[_Begun],
    ) -> None:
        self._writing = None
        if failures.events is not None:
            self._events = events + self._events
        self._judge(failures.begun)
        for one in waiting:
            if not one.done():
                one.set_result(None)
        for change in begun:
            if failures.begun is not None:
                self._under_way.discard(change.id)
                if not change.done.done():
                    change.done.set_exception(_refusal(str(failures.begun)))
            elif not change.done.done():
                change.done.set_result(None)
        if self._begun or self._waiting or (self._events and failures.begun is None):
            self._go_on()

    def _judge(self, error: OSError | None) -> None:
        if error is None:
            if self.problem is not None:
                log.info("audit events are written again")
            self.problem = None
            return
        if self.problem is None:
            log.error("audit events not written, changes are refused until they are why=%s", error)
        self.problem = f"audit events cannot be written ({error}); changes are refused"
        if self._retry is None:
            self._retry = self._loop.call_later(_RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._go_on()


def _refusal(why: str) -> BadRequest:
    return BadRequest(
        ResponseCode.SERVICE_NOT_AVAILABLE,
        f"nothing was changed: changes are audited, and the event cannot be written ({why}). "
        "Changes are taken again when it can (audit.target says where events go)",
    )
