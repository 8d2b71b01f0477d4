"""A connection of a load, which sends or reads, in a closed or an open loop.

Closed loop: a fixed number of requests is under way on each connection, and an answer makes room
for the next. Open loop: requests leave when they are due, whatever the answers do. A request may be
late because the connection is full or lost, or this process was busy; it leaves as soon as it can,
and its latency counts from the time when it was due. So if a broker stands still for a second, all
requests that were due in that second show it, and not a single one (coordinated omission).

A refused request is counted with the code's name; a connection that is lost is made again.
"""

import asyncio
import struct
import time
from collections import deque
from itertools import cycle
from typing import Any, Final

import msgspec

from aerobee.cli.bench.counts import Counts
from aerobee.cli.bench.generator.lane import Lane, Waiting
from aerobee.cli.bench.generator.request_frames import (
    STAMP_DIGITS,
    STAMP_HEAD,
    BatchBody,
    MessageValues,
    Shape,
    Template,
    batch_template,
    digits,
    offset_digits,
    pull_template,
    send_template,
)
from aerobee.cli.bench.generator.security import Secured
from aerobee.client.errors import code_name
from aerobee.client.options import split_address
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.message.record_layout import MIN_RECORD_BYTES, TOTAL_SIZE_POSITION
from aerobee.remoting.errors import connect_failure

_NS: Final = 1_000_000_000
_NO_ANSWER: Final = "NO_ANSWER"
_LOST: Final = "CONNECTION_LOST"
_UNREADABLE: Final = "UNREADABLE_ANSWER"
_FIRST_RETRY_S: Final = 0.1
_LONGEST_RETRY_S: Final = 2.0
# The pause after a refused pull of a queue, as consumers make it too.
_REFUSED_PAUSE_S: Final = 0.5
#: How long a consumer lets the broker hold an empty pull.
SUSPEND_MS: Final = 15_000
# Brokers look at the pulls they hold every 5 s.
_GRACE_S: Final = 10.0
_SIZE: Final = struct.Struct(">i")
_PLAIN: Final = Secured()
_END_OF_QUEUE: Final = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)


class LoadSettings(msgspec.Struct, frozen=True):
    """Settings that all connections of a run share; `rate` is the requests a second of all
    connections together, None for a closed loop."""

    in_flight: int
    timeout_s: float
    rate: float | None = None
    batch: int = 0  # messages a request; 0: single sends
    keyed: bool = False
    shuffled_keys: bool = False
    stamped: bool = False
    fetch: int = 32  # most messages a pull
    seed: int = 1


class SenderSpec(msgspec.Struct, frozen=True):
    """One sending connection, `number` of `connections`; its messages go to the queues in turn."""

    address: str
    topic: str
    queue_ids: list[int]
    number: int
    connections: int


class ReaderSpec(msgspec.Struct, frozen=True):
    """A reading connection, with the (queue id, offset) where it begins in each queue. If it
    `follows` it waits for new messages; if not it reads a queue from its beginning again when it
    has come to its end."""

    address: str
    topic: str
    queues: list[tuple[int, int]]
    number: int
    connections: int
    follows: bool


class Schedule:
    """The times when requests of an open loop are due on one connection: by the clock, never by
    answers.

    All connections together send `rate` requests a second, evenly: connection `number` has every
    `connections`-th place. Each time is counted from the start, so that neither rounding nor a late
    request moves the later ones: a late request is sent at once, and its latency counts from the
    time when it was due."""

    __slots__ = ("_connections", "_index", "_interval_ns", "_number", "_start_ns", "due_ns")

    def __init__(self, rate: float, number: int, connections: int, start_ns: int) -> None:
        assert rate > 0
        assert 0 <= number < connections
        self._interval_ns = _NS / rate
        self._number = number
        self._connections = connections
        self._start_ns = start_ns
        self._index = 0
        #: When the next request should leave, on the monotonic clock.
        self.due_ns = self._due()

    def advance(self) -> None:
        """Go on to the next request, because the request that was due has left."""
        self._index += 1
        self.due_ns = self._due()

    def _due(self) -> int:
        place = self._index * self._connections + self._number
        return self._start_ns + round(place * self._interval_ns)


class Load:
    """A connection that sends requests in a closed or an open loop."""

    def __init__(
        self, address: str, settings: LoadSettings, counts: Counts, secured: Secured
    ) -> None:
        self.counts = counts
        self._address = address
        self._settings = settings
        self._tls = secured.tls
        self._window = settings.in_flight
        self._patience_s = settings.timeout_s
        self._lane = Lane(self._on_answer, self._go, self._on_lost)
        self._schedule: Schedule | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._running = False
        self._retrying: asyncio.Task[None] | None = None

    async def connect(self) -> str:
        """Make the connection; returns why it could not be made, or ""."""
        host, port = split_address(self._address)
        loop = asyncio.get_running_loop()
        lane = Lane(self._on_answer, self._go, self._on_lost)
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                await loop.create_connection(lambda: lane, host, port, ssl=self._tls)
        except OSError as error:
            reason = connect_failure(error, host, over_tls=self._tls is not None)
            return f"{self._address}: {reason or 'no answer'}"
        self._lane = lane
        return ""

    def begin(self, schedule: Schedule | None) -> None:
        """Start: an open loop with a schedule, a closed loop without a schedule."""
        self._schedule = schedule
        self._running = True
        self._go()

    def end(self) -> None:
        """Begin nothing more; answers are still taken."""
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
        if self._retrying is not None:
            self._retrying.cancel()

    def close(self) -> None:
        """End the connection."""
        self.end()
        self._lane.close()

    @property
    def unanswered(self) -> int:
        """Messages of the requests under way."""
        return sum(waiting.messages for waiting in self._lane.waiting.values())

    def sweep(self) -> None:
        """Give up requests that nobody answered in time."""
        late = self._lane.expire(time.monotonic_ns() - round(self._patience_s * _NS))
        remark = f"no answer of {self._address} in {self._patience_s:g} s"
        for waiting in late:
            self._fail(waiting, _NO_ANSWER, remark)
        if late:
            self._go()

    # --- defined by senders and readers

    def _ready(self) -> bool:
        """Whether there is something to ask for."""
        return True

    def _request(self, due_ns: int, now_ns: int) -> None:
        """Put one request into the lane."""
        raise NotImplementedError

    def _answered(self, waiting: Waiting, answer: Command, now_ns: int) -> None:
        """Count an answer."""
        raise NotImplementedError

    def _fail(self, waiting: Waiting, name: str, remark: str) -> None:
        """Count a request that failed."""
        self.counts.fail(name, remark)

    # --- inside

    def _go(self) -> None:
        if not self._running or not self._lane.open:
            return
        if self._schedule is None:
            waiting = self._lane.waiting
            while len(waiting) < self._window and self._ready():
                now_ns = time.monotonic_ns()
                self._request(now_ns, now_ns)
        else:
            self._go_by(self._schedule)
        self._lane.flush()

    def _go_by(self, schedule: Schedule) -> None:
        """Send the requests that are due, and come back for the next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting = self._lane.waiting
        while len(waiting) < self._window and self._ready():
            now_ns = time.monotonic_ns()
            if schedule.due_ns > now_ns:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later((schedule.due_ns - now_ns) / _NS, self._go)
                return
            self._request(schedule.due_ns, now_ns)
            schedule.advance()

    def _on_answer(self, waiting: Waiting, answer: Command) -> None:
        try:
            self._answered(waiting, answer, time.monotonic_ns())
        except (KeyError, ValueError, struct.error) as error:
            self._fail(waiting, _UNREADABLE, f"{type(error).__name__}: {error}")

    def _on_lost(self, reason: str) -> None:
        waiting, self._lane.waiting = self._lane.waiting, {}
        for one in waiting.values():
            self._fail(one, _LOST, f"{self._address}: {reason}")
        if self._running:
            self._retrying = asyncio.get_running_loop().create_task(self._connect_again())

    async def _connect_again(self) -> None:
        pause_s = _FIRST_RETRY_S
        while self._running:
            failed = await self.connect()
            if not failed:
                self._go()
                return
            self.counts.fail("CANNOT_CONNECT", failed)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_RETRY_S)


class Sender(Load):
    """Sends messages, or batches of them."""

    def __init__(
        self,
        *,
        spec: SenderSpec,
        settings: LoadSettings,
        bodies: list[bytes],
        values: MessageValues,
        counts: Counts,
        secured: Secured = _PLAIN,
    ) -> None:
        super().__init__(spec.address, settings, counts, secured)
        self._account = secured.account
        self._values = values
        self._shape = Shape(settings.keyed, settings.stamped)
        self._messages = settings.batch or 1
        self._bytes = len(bodies[0]) * self._messages
        self._bodies = cycle(bodies)
        self._batch: BatchBody | None = None
        if settings.batch:
            own = [next(self._bodies) for _ in range(settings.batch)]
            self._batch = BatchBody(own, self._shape)
        # Connections begin at different queues.
        first = spec.number % len(spec.queue_ids)
        queue_ids = spec.queue_ids[first:] + spec.queue_ids[:first]
        self._templates = cycle([self._template(spec.topic, number) for number in queue_ids])

    def _template(self, topic: str, queue_id: int) -> Template:
        if self._batch is not None:
            return batch_template(topic, queue_id, self._batch.size, self._account)
        return send_template(topic, queue_id, self._bytes, self._shape, self._account)

    def _request(self, due_ns: int, now_ns: int) -> None:
        lane = self._lane
        opaque = lane.next_opaque()
        parts = [digits(opaque), b"%d" % (time.time_ns() // 1_000_000)]
        template = next(self._templates)
        if self._batch is not None:
            frame = template.fill(parts, self._batch.fill(due_ns, self._values))
        else:
            parts += self._values.of(self._shape, due_ns)
            frame = template.fill(parts, next(self._bodies))
        lane.put(opaque, frame, Waiting(due_ns, now_ns, self._messages, None))
        counts = self.counts
        counts.sent += self._messages
        if self._schedule is not None:
            counts.delay.record((now_ns - due_ns) // 1000, self._messages)

    def _answered(self, waiting: Waiting, answer: Command, now_ns: int) -> None:
        if answer.code != ResponseCode.SUCCESS:
            self._fail(waiting, code_name(answer.code), answer.remark or "")
            return
        counts = self.counts
        counts.acked += waiting.messages
        counts.acked_bytes += self._bytes
        counts.publish.record((now_ns - waiting.due_ns) // 1000, waiting.messages)

    def _fail(self, waiting: Waiting, name: str, remark: str) -> None:
        self.counts.failed += waiting.messages
        super()._fail(waiting, name, remark)


def _stamp(body: bytes, start: int, end: int) -> int:
    """The time when the record in [start, end) was due to be sent; 0 if it has no stamp."""
    # The search goes from the right: properties stand at the end of a record.
    found = body.rfind(STAMP_HEAD, start, end)
    if found < 0:
        return 0
    first = found + len(STAMP_HEAD)
    try:
        return int(body[first : first + STAMP_DIGITS], 16)
    except ValueError:
        return 0


class _Cursor:
    """The offset that the reading of a queue has reached."""

    __slots__ = ("offset", "template")

    def __init__(self, template: Template, offset: int) -> None:
        self.template = template
        self.offset = offset


class PullLoad(Load):
    """Pulls queues: one pull of a queue at a time, since only its answer says where to go on."""

    def __init__(
        self, spec: ReaderSpec, settings: LoadSettings, counts: Counts, secured: Secured = _PLAIN
    ) -> None:
        super().__init__(spec.address, settings, counts, secured)
        suspend_ms = SUSPEND_MS if spec.follows else 0
        self._follows = spec.follows
        self._stamped = settings.stamped
        if spec.follows:
            # Each queue has a pull under way, which may last as long as the broker may hold it.
            self._window = len(spec.queues)
            self._patience_s += SUSPEND_MS / 1000 + _GRACE_S
        self._paused = False
        shape = (settings.fetch, suspend_ms, secured.account)
        self._idle = deque(
            _Cursor(pull_template(spec.topic, queue_id, *shape), offset)
            for queue_id, offset in spec.queues
        )

    def pause(self) -> None:
        """Pull nothing more until `resume`."""
        self._paused = True

    def resume(self) -> None:
        """Go on."""
        self._paused = False
        self._go()

    def _ready(self) -> bool:
        return bool(self._idle) and not self._paused

    def _request(self, due_ns: int, now_ns: int) -> None:
        lane = self._lane
        cursor = self._idle.popleft()
        opaque = lane.next_opaque()
        frame = cursor.template.fill((digits(opaque), offset_digits(cursor.offset)))
        lane.put(opaque, frame, Waiting(due_ns, now_ns, 0, cursor))

    def _answered(self, waiting: Waiting, answer: Command, now_ns: int) -> None:
        cursor = waiting.what
        assert isinstance(cursor, _Cursor)
        counts = self.counts
        if answer.code == ResponseCode.SUCCESS:
            count = self._count_records(answer.body, now_ns)
            cursor.offset = int(answer.ext["nextBeginOffset"])
            counts.received += count
            counts.received_bytes += len(answer.body)
            if not self._follows:
                counts.pulls += 1
                counts.pull.record((now_ns - waiting.due_ns) // 1000)
        elif answer.code in _END_OF_QUEUE and not self._follows:
            cursor.offset = int(answer.ext["minOffset"])
        elif answer.code in (*_END_OF_QUEUE, ResponseCode.PULL_RETRY_IMMEDIATELY):
            cursor.offset = int(answer.ext["nextBeginOffset"])
        else:
            self._fail(waiting, code_name(answer.code), answer.remark or "")
            return
        self._idle.append(cursor)

    def _count_records(self, body: bytes, now_ns: int) -> int:
        """The number of messages that came. In a run with stamps only messages with a stamp count,
        since others have another sender. ValueError when the sizes of the records do not add up."""
        count = position = 0
        end = len(body)
        record = self.counts.end_to_end.record
        while position < end:
            (size,) = _SIZE.unpack_from(body, position + TOTAL_SIZE_POSITION)
            following = position + size
            if size < MIN_RECORD_BYTES or following > end:
                raise ValueError(f"a record of {size} bytes at {position} of {end}")
            if not self._stamped:
                count += 1
            elif stamp_ns := _stamp(body, position, following):
                record((now_ns - stamp_ns) // 1000)
                count += 1
            position = following
        return count

    def _fail(self, waiting: Waiting, name: str, remark: str) -> None:
        super()._fail(waiting, name, remark)
        loop = asyncio.get_running_loop()
        loop.call_later(_REFUSED_PAUSE_S, self._try_again, waiting.what)

    def _try_again(self, cursor: Any) -> None:
        self._idle.append(cursor)
        self._go()
