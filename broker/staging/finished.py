"""Finished batches that are remembered: the last batch of each query.

Remembered whole, a batch has the stages that its intent named on other brokers, by which a driver
that was killed between two brokers can go on. After `stage.remember_ms`, or where there is no more
room, a batch is forgotten but for its number. A batch that is forgotten for its age can neither be
written any more nor described: a driver that repeats it is refused, with the reason, instead of
having it written twice. So is a driver that repeats a batch which was forgotten for want of room
and had stages elsewhere.

Room is half of `limits.stage_state_bytes`. The dearest batches go first, so
that a driver that names many stages elsewhere takes room from itself; then numbers go for good,
those of the longest silent queries first.

Loop thread only.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.headers.stages import StagePart
from aerobee.summed_log import SummedLog

log = logging.getLogger("aerobee.broker.stages")

BatchKey = tuple[str, int]

# Memory of a stage that an intent names, and of a query whose batch or number is remembered,
# besides the texts.
PART_BYTES = 300
QUERY_BYTES = 600
NUMBER_BYTES = 400
# Queries that are looked at in one step.
_STEP = 100


def part_bytes(broker: str) -> int:
    """Memory of a stage of that broker in an intent."""
    return PART_BYTES + len(broker)


def parts_bytes(parts: Iterable[StagePart]) -> int:
    """Memory of the stages that an intent names."""
    return sum([part_bytes(part.broker) for part in parts])


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The newest batch of a query that is done; `others` are its stages on other brokers."""

    batch: int
    at_ms: int
    others: tuple[StagePart, ...] = ()
    #: Memory of those.
    others_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The number of such a batch; `whole` if nothing more was known of it."""

    batch: int
    at_ms: int
    whole: bool


class FinishedBatches:
    """The last batches by query. `changed` are the queries that are not saved as they are."""

    def __init__(
        self,
        room: Callable[[], int],
        remember_ms: Callable[[], int],
        clock_ms: Callable[[], int],
        sums: SummedLog,
    ) -> None:
        self._sums = sums
        self._room = room
        self._remember_ms = remember_ms
        self._clock_ms = clock_ms
        # Both in the order in which they finished, or were forgotten.
        self.queries: dict[str, LastBatch] = {}
        self.forgotten: dict[str, Forgotten] = {}
        self.changed: dict[str, None] = {}
        #: Moves with each change.
        self.state = 0
        #: Memory of all of it.
        self.bytes = 0
        # (less than 0 by what it takes, number, query, batch) of those with stages elsewhere.
        self._dear: list[tuple[int, int, str, LastBatch]] = []
        self._count = 0

    def is_done(self, query: str, batch: int) -> bool:
        """Whether it is the query's last batch, or one before that."""
        last = self.queries.get(query) or self.forgotten.get(query)
        return last is not None and batch <= last.batch

    def check_remembered(self, query: str, batch: int) -> None:
        """Raises BadRequest (STAGE_CLOSED) for a batch that was done and is forgotten."""
        forgotten = self.forgotten.get(query)
        if forgotten is None or batch > forgotten.batch:
            return
        days = self._remember_ms() / 86_400_000
        is_old = forgotten.at_ms < self._clock_ms() - self._remember_ms()
        if is_old or not forgotten.whole:
            why = (
                f"more than {days:g} days ago (stage.remember_ms)"
                if is_old
                else "and there was no room to remember its stages (limits.stage_state_bytes)"
            )
            raise BadRequest(
                ResponseCode.STAGE_CLOSED,
                f"batch {forgotten.batch} of {query} was published, {why}: batches up to that "
                "one can neither be written nor repeated. A new job needs a new jobId, a stream "
                "that begins anew a new checkpoint",
            )

    def put(self, query: str, last: LastBatch) -> None:
        """A batch is done."""
        known = self.queries.get(query) or self.forgotten.get(query)
        if known is not None and known.batch > last.batch:
            return
        self._take_out(query)
        self.queries[query] = last  # after all others
        self.bytes += _bytes_of(query, last)
        self._changed(query)
        if last.others:
            self._count += 1
            heapq.heappush(self._dear, (-len(last.others), self._count, query, last))
        self._make_room()

    def put_forgotten(self, query: str, forgotten: Forgotten) -> None:
        """Know no more than the number."""
        self._take_out(query)
        self.forgotten[query] = forgotten
        self.bytes += NUMBER_BYTES + len(query)
        self._changed(query)

    def load(self, query: str, last: LastBatch | Forgotten | None) -> None:
        """Take the state that a file has in the place of the known one; None forgets the query."""
        self._take_out(query)
        if isinstance(last, Forgotten):
            self.put_forgotten(query, last)
        elif last is not None:
            self.put(query, last)

    def replace(self, queries: Mapping[str, LastBatch | Forgotten | None]) -> None:
        """Take another broker's last batches in the place of all that are known."""
        for query in [*self.queries, *self.forgotten]:
            if queries.get(query) is None:
                self._take_out(query)
                self._changed(query)
        for query, last in queries.items():
            if self.get(query) != last:
                self.load(query, last)

    def forget_old(self) -> bool:
        """Forget some that are done for long enough; whether there may be more."""
        oldest = self._clock_ms() - self._remember_ms()
        some = list(islice(self.queries.items(), _STEP))
        old = [(query, last) for query, last in some if last.at_ms < oldest]
        for query, last in old:
            self.put_forgotten(query, Forgotten(last.batch, last.at_ms, not last.others))
        if old:
            log.info("finished batches forgotten for their age queries=%d", len(old))
        return len(old) == _STEP

    def get(self, query: str) -> LastBatch | Forgotten | None:
        """The last batch of a query, as far as it is remembered."""
        return self.queries.get(query) or self.forgotten.get(query)

    def _changed(self, query: str) -> None:
        self.changed[query] = None
        self.state += 1

    def _take_out(self, query: str) -> None:
        last = self.queries.pop(query, None)
        if last is not None:
            self.bytes -= _bytes_of(query, last)
        if self.forgotten.pop(query, None) is not None:
            self.bytes -= NUMBER_BYTES + len(query)

    def _make_room(self) -> None:
        room = self._room()
        while self.bytes > room and self._dear:
            _, _, query, last = heapq.heappop(self._dear)
            if self.queries.get(query) is last:
                self._say(
                    "finished batch forgotten for want of room query=%s batch=%d stages=%d",
                    query, last.batch, len(last.others),
                )  # fmt: skip
                self.put_forgotten(query, Forgotten(last.batch, last.at_ms, whole=False))
        if len(self._dear) > 2 * len(self.queries) + _STEP:
            # Most of them were followed by newer ones.
            self._dear = [one for one in self._dear if self.queries.get(one[2]) is one[3]]
            heapq.heapify(self._dear)
        while self.bytes > room and (self.forgotten or self.queries):
            query = next(iter(self.forgotten or self.queries))
            self._say("last batch forgotten for good for want of room query=%s", query)
            self._take_out(query)
            self._changed(query)

    def _say(self, text: str, *values: object) -> None:
        """Beyond the room each batch has one forgotten: a peer must not write a line with each."""
        self._sums.add(log, logging.WARNING, "room", text, *values)


def _bytes_of(query: str, last: LastBatch) -> int:
    return QUERY_BYTES + len(query) + last.others_bytes
