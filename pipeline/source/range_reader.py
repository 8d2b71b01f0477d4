"""Reads the offsets [start, end) of one queue, with several pulls on their way at the same time.

A pull names an offset and how many messages are wanted; how many come is the broker's decision:
ours gives up to 4 MiB to a pull with `maxMsgBytes`, Java's 32 messages or 256 KiB, 8 of cold ones.
So the first pull asks for all, and what it brings is the guess for the next ones, which are sent
ahead of their answers. Where an answer falls short of its guess, the rest is asked for at once;
chunks come out in the order of the offsets whatever the order of answers.

    slots, in the order of offsets:  [a, b) answered · [b, c) on its way · [c, d) on its way
                                      ^ given out next                       ^ asked last

A filtered answer may reach past its slot. What it covers is not asked for again, and slots that are
covered in part give out the rest: a chunk says which offsets count (`low`, `high`), and its reader
leaves out what lies outside, so no message comes twice.

What was lost (retention, a power cut, a deleted topic) is an error or a warning, as asked. A broken
connection, a broker that moved or is busy, and a broker that does not get on are tried again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from aerobee.pipeline.brokers.brokers import Brokers, check
from aerobee.pipeline.brokers.offsets import Range
from aerobee.pipeline.brokers.queue_offsets import PULL_CODES, pull_header
from aerobee.pipeline.errors import BadData, DataLoss
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import ProtocolError
from aerobee.protocol.frames.command import Command, make_request
from aerobee.protocol.headers.client import PullMessageResponse
from aerobee.remoting.calling.blocking_caller import BlockingCaller
from aerobee.remoting.errors import RemotingError

log = logging.getLogger("aerobee.pipeline")

#: Asked of brokers that know the field; one decode of this much is as quick as of more.
PULL_BYTES: Final = 4 << 20
_MOST_MESSAGES = 32_768
# Answers on their way together: enough to hide the round trip, little enough to hold.
_AHEAD_BYTES, _MOST_AHEAD, _LEAST_AHEAD = 8 << 20, 32, 3
# After this many answers as guessed, the next guess is twice as long, to see whether more comes.
_BEFORE_TRYING, _LONGEST_BEFORE_TRYING = 16, 1024
_REMOVED = "MESSAGE_WAS_REMOVING"


class PulledRecords(NamedTuple):
    """Records as they are stored, side by side; those of offsets in [low, high) count.

    `exact` says that no record lies outside.
    """

    records: bytes
    low: int
    high: int
    exact: bool


@dataclass(frozen=True, slots=True)
class PullForm:
    """How pulls ask: the group they name, the tags, the most messages of a pull (None: no
    limit)."""

    group: str
    expression: str = "*"
    most_messages: int | None = None
    fail_on_data_loss: bool = True


class _Slot:
    """Offsets [start, end) that one pull asks for."""

    __slots__ = ("answer", "end", "opaque", "start")

    def __init__(self, start: int, end: int, opaque: int) -> None:
        self.start, self.end, self.opaque = start, end, opaque
        self.answer: Command | None = None


class Guess:
    """How many offsets a pull is expected to bring, learnt from what pulls brought."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.length = most
        self.ahead = 1
        self._as_guessed = 0
        self._before_trying = _BEFORE_TRYING

    def learn(self, asked: int, brought: int, size: int) -> None:
        """An answer of `size` bytes to a pull of `asked` offsets took it on by `brought`."""
        per_pull = max(1, size)
        self.ahead = min(_MOST_AHEAD, max(_LEAST_AHEAD, _AHEAD_BYTES // per_pull))
        if brought < asked:
            if asked > self.length:
                self._before_trying = min(2 * self._before_trying, _LONGEST_BEFORE_TRYING)
            # Long ones differ a little with the sizes of messages: leave some air.
            self.length = max(1, brought - brought // 16 if brought > 64 else brought)
            self._as_guessed = 0
            return
        self.length = min(self._most, max(self.length, brought))
        self._as_guessed += 1

    def next_length(self) -> int:
        """The number of offsets to ask for now."""
        if self._as_guessed < self._before_trying:
            return self.length
        self._as_guessed = 0
        return min(self._most, 2 * self.length)


class RangeReader:
    """Reads one range; make it inside the task, iterate over `chunks` once."""

    def __init__(self, brokers: Brokers, whole: Range, form: PullForm) -> None:
        self._brokers = brokers
        self._queue = whole.queue
        self._next = whole.start
        self._end = whole.end
        self._form = form
        self._guess = Guess(min(form.most_messages or _MOST_MESSAGES, _MOST_MESSAGES))
        self._slots: deque[_Slot] = deque()
        self._retries = brokers.retries()
        #: Offsets that were lost and passed over.
        self.lost = 0

    def chunks(self) -> Iterator[PulledRecords]:
        """Everything of the range, in order. Raises PipelineError of its several kinds."""
        while self._next < self._end:
            try:
                slot, answer, address = self._first_answer()
                yield from self._digest(slot, answer, address)
            except RemotingError as error:
                self._slots.clear()
                self._retries.wait(error)
                self._brokers.refresh_route(self._queue.topic)

    def _first_answer(self) -> tuple[_Slot, Command, str]:
        """Send ahead, then take answers until the first slot's is there."""
        caller = self._brokers.caller(self._queue)
        self._send_ahead(caller)
        first = self._slots[0]
        while first.answer is None:
            answer = caller.receive()
            for slot in self._slots:
                if slot.opaque == answer.opaque:
                    slot.answer = answer
                    break
        self._slots.popleft()
        return first, first.answer, caller.address

    def _send_ahead(self, caller: BlockingCaller) -> None:
        position = self._slots[-1].end if self._slots else self._next
        while position < self._end and len(self._slots) < self._guess.ahead:
            end = min(self._end, position + self._guess.next_length())
            self._slots.append(self._send(caller, position, end))
            position = end

    def _send(self, caller: BlockingCaller, start: int, end: int) -> _Slot:
        form = self._form
        header = pull_header(form.group, self._queue, start, end - start, form.expression)
        header.expression_type = "TAG"
        header.max_msg_bytes = PULL_BYTES
        command = make_request(RequestCode.PULL_MESSAGE, header.to_ext())
        return _Slot(start, end, caller.send(command))

    def _digest(self, slot: _Slot, answer: Command, address: str) -> Iterator[PulledRecords]:
        """Give out what an answer brought, and ask for what it left of its slot."""
        check(address, answer, PULL_CODES)
        try:
            following = PullMessageResponse.from_ext(answer.ext).next_begin_offset
        except ProtocolError as error:
            raise BadData(f"{self._queue}: the answer of {address} cannot be read: {error}") from (
                error
            )
        reached = self._reached(slot, answer, following)
        if reached <= slot.start:
            raise RemotingError(
                f"{self._queue}: {address} does not get on from offset {slot.start} "
                f"({answer.code} {answer.remark})"
            )
        self._retries.restart()
        self._guess.learn(slot.end - slot.start, following - slot.start, len(answer.body))
        low = self._next
        self._next = min(max(reached, low), self._end)
        while self._slots and self._slots[0].end <= self._next:
            self._slots.popleft()
        if reached < slot.end:
            caller = self._brokers.caller(self._queue)
            self._slots.appendleft(self._send(caller, reached, slot.end))
        if answer.code == ResponseCode.SUCCESS and self._next > low:
            exact = low == slot.start and following <= self._end
            yield PulledRecords(answer.body, low, self._next, exact)

    def _reached(self, slot: _Slot, answer: Command, following: int) -> int:
        """Where to go on after an answer; skipped offsets are lost and reported."""
        if answer.code == ResponseCode.SUCCESS:
            return following
        if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            if answer.remark == _REMOVED and following > slot.start:
                self._report_loss(slot.start, min(following, slot.end), "were removed")
            return following
        # Not found or moved: below the queue's beginning, beyond its end, or a hole in the queue.
        if following > slot.start:
            self._report_loss(slot.start, min(following, slot.end), "are gone")
            return following
        self._report_loss(slot.start, self._end, f"are not there, the queue ends at {following}")
        return self._end

    def _report_loss(self, start: int, end: int, what: str) -> None:
        text = f"{self._queue}: offsets {start} to {end - 1} {what}"
        if self._form.fail_on_data_loss:
            raise DataLoss(f"{text}; with failOnDataLoss=false the query goes on without them")
        self.lost += end - start
        log.warning("data loss %s lost=%d", text, self.lost)
