"""Answers that wait until what they promise is kept.

An answer of success to a send, to the end of a transaction or to the intent of a staged batch says
that what was appended is kept. Which mark of the store tells that (`store/log/marks.py`) is the
policy. It is chosen here, when the broker is built; nothing else in the broker asks for the flush
mode.

| policy        | the answer leaves                | for                                         |
|---------------|----------------------------------|---------------------------------------------|
| `AtOnce`      | with the append                  | sends, decisions; the settings name no mark |
| `WhenKept`    | when `Marks.kept` has passed it  | sends, decisions; SYNC_FLUSH, SYNC_MASTER   |
| `WhenDurable` | when it is durable and kept      | intents, whatever the flush mode            |

Answers wait in append order, so that one reading of the mark releases every answer that it covers:
one hand-over per flushed batch, one write per connection.

Guarantees
- Loop thread only; `broker/appending/store_events.py` brings here what the store's threads see.
- An answer of success leaves only after the mark has passed the message's end.
- Different answers: kept (SUCCESS); not yet (FLUSH_DISK_TIMEOUT or FLUSH_SLAVE_TIMEOUT after the
  time-out; the message is stored and may still become durable, or be copied); kept here, but there
  are not enough slaves that could copy it (SLAVE_NOT_AVAILABLE, at once); failed
  (SERVICE_NOT_AVAILABLE: the store is broken).
- An answer that cannot be made is a fault of its own request only, which is answered as the router
  would (`refusal`).
- Of very many the first ones leave at once, and the others a slice a turn.
- Ends are non-decreasing in each queue: appends and waits both begin on the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.routing.router import refusal
from aerobee.config.model import Settings
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_response
from aerobee.protocol.frames.header_decode import decode_header
from aerobee.protocol.frames.pending_request import keep_for_answer
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Turns
from aerobee.store.message_store import MessageStore
from aerobee.store.store_stats import Histogram

# A stalled disk must not turn into all memory. A waiting send costs about 1 KB, so 50 MB here;
# beyond their number a decision is refused, and its producer is asked again.
MAX_SENDS = 50_000
MAX_DECISIONS = 20_000
# Drivers of jobs ask, one or two requests a query.
MAX_QUESTIONS = 10_000
# Answers between two looks at the clock, some 5 us each. What leaves in a slice leaves in one write
# a connection.
_LOOK = 64
# Only at stop, where a few milliseconds more do not matter.
_DRAIN_POLL_S = 0.005

#: An answer that says how things stand when it leaves, made with its code and remark.
MadeLater: TypeAlias = Callable[[int, str | None], bytes]


#: Opaque and serialization of a request that was not decoded.
Undecoded: TypeAlias = tuple[int, int]


class HeldAnswers(Protocol):
    """Answers of success that the compiled form has made, of messages that were stored in one go
    (`native/requests.pyx`)."""

    def __len__(self) -> int:
        """How many they are."""

    @property
    def end(self) -> int:
        """Log offset up to which it has to be kept for all of them."""

    def codes(self) -> list[tuple[int, int]]:
        """Code and number of the requests."""

    def each(self) -> list[tuple[Connection, int, int, int, int, bytes]]:
        """The connection, the end, the request's code, opaque and serialization, and the frame of
        success, for each answer."""

    def leave(self) -> None:
        """Send all of them."""


class _Group(NamedTuple):
    """Answers that wait together: one comparison releases them all."""

    end: int
    deadline: float
    held: HeldAnswers


class WaitingAnswer(NamedTuple):
    """The answer to a request with the code `code`, for when the mark has passed `end`: its frame
    of success, or what makes it."""

    end: int
    deadline: float
    connection: Connection
    code: int
    asked: Command | Undecoded
    made: bytes | MadeLater

    @property
    def request(self) -> Command:
        """The request, of which an undecoded one has the fields that an answer needs."""
        if isinstance(self.asked, Command):
            return self.asked
        opaque, serialization = self.asked
        return Command(code=self.code, opaque=opaque, serialization=serialization)


class _Parts(NamedTuple):
    """Shared by all answers of a broker."""

    loop: asyncio.AbstractEventLoop
    turns: Turns
    store: MessageStore
    stats: BrokerStats
    times: _Times


class _Times(NamedTuple):
    """How long an answer waits, in seconds: for what this machine does itself, and altogether."""

    here_s: float
    slaves_s: float

    @classmethod
    def of(cls, settings: Settings) -> _Times:
        """The times that the settings give. Without a flush to wait for only slaves are waited
        for."""
        slaves_s = settings.slave_timeout_ms / 1000
        here_s = settings.sync_flush_timeout_ms / 1000
        if not settings.waits_for_slaves:
            return cls(here_s, here_s)
        return cls(max(here_s, slaves_s) if settings.sync_flush else slaves_s, slaves_s)

    @property
    def first_s(self) -> float:
        """When the first of them is over."""
        return min(self.here_s, self.slaves_s)


class AtOnce:
    """Answers that need not wait."""

    #: Whether an answer may have to wait.
    waits: bool = False
    #: How many were answered because they had waited too long.
    timed_out: int = 0

    def __len__(self) -> int:
        return 0

    @property
    def full(self) -> bool:
        """Whether as many answers wait as may; the next request is refused before it appends."""
        return False

    @property
    def room(self) -> int:
        """How many more may wait."""
        return 0

    def when_kept(
        self, _connection: Connection, _request: Command, _end: int, made: bytes
    ) -> bytes | None:
        """Answer with `made`, a frame of success, when the log is kept up to `end`: now, where this
        is returned, or later, None."""
        return made

    def wait_made(self, held: HeldAnswers) -> None:
        """Have answers wait to requests that were not decoded."""
        raise AssertionError("no answer waits")

    def overload(self) -> BadRequest:
        """The refusal of a request while `full`."""
        raise AssertionError("no answer waits")

    def go_on(self) -> None:
        """Send the answers that need not wait any longer."""

    def fail(self, _reason: str) -> None:
        """Nothing more will be kept."""


class WhenKept(AtOnce):
    """Answers to `what` that wait for the mark `Marks.kept`, at most `most` of them. Those to sends
    count in `put_times`."""

    waits = True

    def __init__(
        self, what: str, most: int, parts: _Parts, put_times: Histogram | None = None
    ) -> None:
        self._what = what
        self._most = most
        self._put_times = put_times
        self._loop, self._turns, self._store, self._stats, times = parts
        #: Until an answer is looked at whether it has waited too long.
        self._timeout_s = times.first_s
        self._longer_s = times.here_s - times.first_s
        self._marks = parts.store.marks
        self._waiting: deque[WaitingAnswer | _Group] = deque()
        # How many more answers wait than `_waiting` has entries, because of its groups.
        self._grouped = 0
        # Why nothing more will be kept, None as long as it is.
        self._broken: str | None = None
        # Whether the turns go on with what a slice has left over.
        self._going = False
        self.timed_out = 0

    def __len__(self) -> int:
        return len(self._waiting) + self._grouped

    @property
    def full(self) -> bool:
        return len(self) >= self._most

    @property
    def room(self) -> int:
        return max(0, self._most - len(self))

    @property
    def mark(self) -> int:
        """Log offset up to which answers need not wait."""
        return self._marks.kept

    @property
    def mark_here(self) -> int:
        """Log offset up to which they wait for slaves only."""
        return self._marks.kept_here

    def overload(self) -> BadRequest:
        marks = self._marks
        behind = marks.kept < marks.kept_here
        slower = ("slaves", "they are") if behind else ("their sync", "the disk is")
        return BadRequest(
            ResponseCode.SYSTEM_BUSY,
            f"[OVERLOAD]system busy, {len(self)} {self._what} wait for {slower[0]}: {slower[1]} "
            "slower than what is sent; try again later",
        )

    def when_kept(
        self, connection: Connection, request: Command, end: int, made: bytes
    ) -> bytes | None:
        if request.is_oneway:
            return made
        # The body is in the log by now.
        keep_for_answer(request)
        deadline = self._loop.time() + self._timeout_s
        self._waiting.append(WaitingAnswer(end, deadline, connection, request.code, request, made))
        return None

    def wait_made(self, held: HeldAnswers) -> None:
        deadline = self._loop.time() + self._timeout_s
        self._waiting.append(_Group(held.end, deadline, held))
        self._grouped += len(held) - 1

    def fail(self, reason: str) -> None:
        """A sync failed; what is not kept by now is answered SERVICE_NOT_AVAILABLE."""
        self._broken = reason
        self.go_on()

    def go_on(self) -> None:
        """Send the answers that need not wait any longer, or have waited too long: a slice now,
        unless the turns are at it already."""
        waiting = self._waiting
        if not waiting or self._going:
            return
        # A slice opens a turn of the loop: not each time a mark moves, and not for one group.
        if len(waiting) == 1 and type(waiting[0]) is _Group and waiting[0].end <= self.mark:
            self._answer_group(self._loop.time() + self._timeout_s)
        elif self._slice():
            self._going = True
            self._turns.add(self._slice)

    def _slice(self) -> bool:
        """One slice of answers; whether there are more to give."""
        turns = self._turns
        until = turns.slice_until(turns.clock())
        more = False
        try:
            more = (
                self._answer_kept(until)
                or (self._broken is not None and self._fail_some(until))
                or (self._marks.lacks_slaves and self._give_up_slaves(until))
                or self._expire_some(until)
            )
        finally:
            # An error ends this round; the next mark begins another.
            self._going = self._going and more
        return more

    def _answer_group(self, latest_deadline: float) -> None:
        """Send a group, which is the first."""
        group = self._waiting.popleft()
        assert isinstance(group, _Group)
        held = group.held
        self._grouped -= len(held) - 1
        for code, times in held.codes():
            self._count(code, 0, latest_deadline - group.deadline, times)
        held.leave()

    def _spread(self) -> bool:
        """Have the answers of the first group wait one by one, since they may end differently;
        whether there was one."""
        group = self._waiting[0]
        if not isinstance(group, _Group):
            return False
        self._waiting.popleft()
        each = group.held.each()
        self._grouped -= len(each) - 1
        self._waiting.extendleft(
            WaitingAnswer(end, group.deadline, connection, code, (opaque, serialization), made)
            for connection, end, code, opaque, serialization, made in reversed(each)
        )
        return True

    def _take(self) -> WaitingAnswer:
        """Take out the first, which is in no group."""
        one = self._waiting.popleft()
        assert isinstance(one, WaitingAnswer)
        return one

    def _answer_kept(self, until: float) -> bool:
        mark, clock, left = self.mark, self._turns.clock, _LOOK
        waiting = self._waiting
        latest_deadline = self._loop.time() + self._timeout_s
        writes: dict[Connection, list[bytes]] = {}
        # Requests of one turn of the loop have one deadline: they are counted together.
        counted_deadline, counted_code, count = 0.0, 0, 0
        while left and waiting and waiting[0].end <= mark:
            if type(waiting[0]) is _Group:
                self._answer_group(latest_deadline)
                if clock() >= until:
                    left = 0
                continue
            left -= 1
            if not left and clock() < until:
                left = _LOOK
            one = self._take()
            _, deadline, connection, code, _, made = one
            if deadline != counted_deadline or code != counted_code:
                self._count(counted_code, 0, latest_deadline - counted_deadline, count)
                counted_deadline, counted_code, count = deadline, code, 0
            count += 1
            if type(made) is bytes:
                frame = made
            else:
                assert not isinstance(made, bytes)
                try:
                    frame = made(ResponseCode.SUCCESS, None)
                except Exception as error:  # noqa: BLE001 - the top of a request; `refusal` logs bugs
                    count -= 1
                    waited_s = latest_deadline - deadline
                    frame = self._refuse(error, connection, one.request, waited_s)
                if clock() >= until:
                    left = 0
            frames = writes.get(connection)
            if frames is None:
                writes[connection] = [frame]
            else:
                frames.append(frame)
        self._count(counted_code, 0, latest_deadline - counted_deadline, count)
        for connection, frames in writes.items():
            if not connection.closed:
                connection.write(frames[0] if len(frames) == 1 else b"".join(frames))
        return bool(waiting) and waiting[0].end <= mark

    def _count(self, code: int, response_code: int, waited_s: float, times: int) -> None:
        if times:
            self._stats.request(code, response_code).add(waited_s, times)
            if self._put_times is not None:
                self._put_times.add_many(int(waited_s * 1e9), times)

    def _fail_some(self, until: float) -> bool:
        remark = f"the store has stopped after a disk error: {self._broken}"
        waiting, clock = self._waiting, self._turns.clock
        while waiting:
            if self._spread():
                return True
            if self._put_times is not None:
                self._stats.failed()  # its topic went with its header
            self._send(self._take(), ResponseCode.SERVICE_NOT_AVAILABLE, remark)
            if clock() >= until:
                break
        return bool(waiting)

    def _give_up_slaves(self, until: float) -> bool:
        """Answer what is kept here, since nobody is there to copy it."""
        here, waiting, clock = self.mark_here, self._waiting, self._turns.clock
        while waiting:
            if self._spread():
                return True
            if waiting[0].end > here:
                break
            self._send(self._take(), ResponseCode.SLAVE_NOT_AVAILABLE, None)
            if clock() >= until:
                return True
        return False

    def _expire_some(self, until: float) -> bool:
        now, waiting, clock = self._loop.time(), self._waiting, self._turns.clock
        here = self.mark_here
        while waiting and waiting[0].deadline <= now:
            if self._spread():
                return True
            late = ResponseCode.FLUSH_SLAVE_TIMEOUT
            if waiting[0].end > here:
                # Not even this machine has it: its own time may be longer.
                if waiting[0].deadline + self._longer_s > now:
                    return False
                late = ResponseCode.FLUSH_DISK_TIMEOUT
            self.timed_out += 1
            self._send(self._take(), late, None)
            if clock() >= until:
                return True
        return False

    def _send(self, one: WaitingAnswer, code: int, remark: str | None) -> None:
        connection, request, made = one.connection, one.request, one.made
        waited_s = self._loop.time() + self._timeout_s - one.deadline
        try:
            if isinstance(made, bytes):
                # It says where the message went, whatever came of it.
                size = int.from_bytes(made[5:8], "big")
                success = decode_header(request.serialization, made[8 : 8 + size])
                frame = encode_response(request, code, remark, success.ext or None)
            else:
                frame = made(code, remark)
        except Exception as error:  # noqa: BLE001 - the top of a request; `refusal` logs bugs
            frame = self._refuse(error, connection, request, waited_s)
        else:
            self._count(request.code, code, waited_s, 1)
        if not connection.closed:
            connection.write(frame)

    def _refuse(
        self, error: Exception, connection: Connection, request: Command, waited_s: float
    ) -> bytes:
        code, remark = refusal(error, connection, request, self._stats)
        self._count(request.code, code, waited_s, 1)
        return encode_response(request, code, remark)


class WhenDurable(WhenKept):
    """Answers that wait for the sync under ASYNC_FLUSH too, which they do not leave to its
    interval."""

    @property
    def mark(self) -> int:
        return min(self._marks.kept, self._marks.durable)

    @property
    def mark_here(self) -> int:
        return min(self._marks.kept_here, self._marks.durable)

    def wait(self, connection: Connection, request: Command, end: int, make: MadeLater) -> None:
        """Answer with what `make` makes then. What ends before another that waits is answered with
        that one."""
        keep_for_answer(request)
        waiting, deadline = self._waiting, self._loop.time() + self._timeout_s
        if waiting:
            end = max(end, waiting[-1].end)
        waiting.append(WaitingAnswer(end, deadline, connection, request.code, request, make))
        self.hurry()
        self.go_on()

    def hurry(self) -> None:
        """Have the store sync what is in its files now."""
        self._store.sync_soon()

    def go_on(self) -> None:
        super().go_on()
        if self._waiting:
            # With a transient pool the last sync may have begun before it was in the file.
            self.hurry()


class Answers:
    """All answers of one broker that wait, by what they answer."""

    def __init__(
        self,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        turns: Turns,
        store: MessageStore,
        stats: BrokerStats,
    ) -> None:
        self._loop = loop
        self._store = store
        parts = _Parts(loop, turns, store, stats, _Times.of(settings))
        waits = store.marks.answers_wait
        #: To sends and recalls, to the ends of transactions.
        self.sends = (
            WhenKept("sends", MAX_SENDS, parts, store.stats.put_times) if waits else AtOnce()
        )
        self.decisions = WhenKept("decisions", MAX_DECISIONS, parts) if waits else AtOnce()
        #: To intents; staging lets no more wait, its other questions included.
        self.intents = WhenDurable("intents", MAX_QUESTIONS, parts)
        self._all: tuple[AtOnce, ...] = self.sends, self.decisions, self.intents

    def go_on(self) -> None:
        """Send the answers that need not wait any longer, or have waited too long. Called when the
        mark has moved, and by a timer of the loop."""
        for answers in self._all:
            answers.go_on()

    def fail(self, reason: str) -> None:
        """The store is broken: nothing more will be kept."""
        for answers in self._all:
            answers.fail(reason)

    async def wait_empty(self, timeout_s: float) -> bool:
        """Wait until every answer has left, at most `timeout_s` seconds; True when it has."""
        until = self._loop.time() + timeout_s
        while any(map(len, self._all)) and self._loop.time() < until:
            self._store.sync_soon()
            await asyncio.sleep(_DRAIN_POLL_S)
        return not any(map(len, self._all))
