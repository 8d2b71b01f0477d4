"""Messages that wait for their second step: counts those of a topic, and finds the oldest of all.

Each part of the broker in which messages wait gives the places of their records (`Waits`). A person
who deletes a topic, or makes it smaller, learns what waits for it (WAITING_MESSAGES, 31010). And a
deletion is forgotten when no older message waits: the first waiting message of each queue is looked
at, which is the oldest there, because queues grow with the log.

Both go in steps, because millions may wait. Loop thread only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Final, Protocol

from aerobee.broker.second_step.deleted_topics import DeletedTopics
from aerobee.protocol.bodies.waiting import WaitingMessages
from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.properties import PROPERTY_REAL_TOPIC, real_queue
from aerobee.protocol.message.record import decode_record
from aerobee.remoting.turns import Spread, Turns
from aerobee.store.log.marks import Marks

#: Records that are looked at for one question, 25 us each.
MOST_LOOKED: Final = 50_000


class Waits(Protocol):
    """A part of the broker in which messages wait."""

    #: The reason why they wait, a word of second_step.py.
    kind: str

    def oldest(self) -> Iterator[int | None]:
        """The log offset of each queue's first waiting message; None: this step found nothing."""

    def places(self) -> Iterator[int | None]:
        """The log offset of each waiting record, of all topics; None: this step found nothing."""

    def sizes(self) -> Iterator[int]:
        """The number of records in `places`, or a few more, in parts."""

    def found(self, topic: str, log_offset: int) -> Iterable[tuple[int, int]]:
        """The messages for a topic in the record there: queue id and number each."""


class WaitingRecords:
    """Finds the queue that the properties of a record with a single waiting message name."""

    def __init__(self, record_at: Callable[[int], bytes | None]) -> None:
        self._record_at = record_at

    def found(self, topic: str, log_offset: int) -> Iterable[tuple[int, int]]:
        """See `Waits.found`."""
        record = self._record_at(log_offset)
        # Most records are of other topics, which this shows without a decoding.
        if record is None or f"{PROPERTY_REAL_TOPIC}\x01{topic}".encode() not in record:
            return ()
        try:
            name, queue_id = real_queue(decode_record(record).properties)
        except CorruptRecord:
            return ()
        return ((queue_id, 1),) if name == topic else ()


def count_waiting(
    sources: Iterable[Waits], topic: str, deleted_at: int
) -> Generator[None, None, WaitingMessages]:
    """Count the messages that wait for a topic, in steps, without those that were accepted before
    its deletion at log offset `deleted_at`."""
    counts: dict[str, Counter[int]] = {}
    left, unlooked = MOST_LOOKED, 0
    for source in sources:
        queues = counts[source.kind] = Counter()
        before = left
        for log_offset in source.places() if left else ():
            if log_offset is not None and log_offset >= deleted_at:
                for queue_id, messages in source.found(topic, log_offset):
                    queues[queue_id] += messages
            left -= log_offset is not None
            # A record may be large: each is a step.
            yield None
            if not left:
                break
        if not left:
            waiting = 0
            for size in source.sizes():
                waiting += size
                yield None
            unlooked += max(0, waiting - before)
    return WaitingMessages(counts, unlooked)


class Forgetting:
    """Forgets deletions before which nothing waits any more. Messages above the mark `dispatched`
    may wait and not be visible yet.

    A message that does not wait any more waits again after a kill, until its progress is on the
    disk. So a deletion goes when two rounds have found nothing before it: `look` is called less
    often than progress is saved."""

    def __init__(
        self,
        turns: Turns,
        deleted: DeletedTopics,
        sources: Iterable[Waits],
        marks: Marks,
        *,
        leads: bool = True,
    ) -> None:
        """`leads`: no slave, which forgets nothing before `lead`."""
        self._deleted = deleted
        self._sources = tuple(sources)
        self._marks = marks
        self._round: Iterator[None] | None = None
        # The log offset that the last round has found.
        self._oldest = 0
        self._leads = leads
        self._spread = Spread(turns, self._step)

    def lead(self, *, anew: bool) -> None:
        """See `Led`: the deletions of another master may lie above the end of the log."""
        if anew:
            self._deleted.lower_to(self._marks.written)
        self._leads = True

    def follow(self) -> None:
        """See `Led`: the master knows what waits, and its deletions are copied."""
        self._leads = False
        self._round = None
        self._oldest = 0

    def look(self) -> None:
        """Begin a round if a deletion is remembered. Call it now and then."""
        if not self._leads:
            return
        if self._round is None and len(self._deleted):
            self._round = self._steps()
        self._spread.go_on()

    def _step(self) -> bool:
        if self._round is None:
            return False
        for _ in self._round:
            return True
        self._round = None
        return False

    def _steps(self) -> Iterator[None]:
        oldest = self._marks.dispatched
        for source in self._sources:
            for log_offset in source.oldest():
                if log_offset is not None:
                    oldest = min(oldest, log_offset)
                yield None
        self._deleted.forget_up_to(min(oldest, self._oldest))
        self._oldest = oldest
