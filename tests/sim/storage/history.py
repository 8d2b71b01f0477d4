"""The requests to a store and its answers: the side of the checker that is not the store.

A *life* is one disk from a state it begins with to the crash that ends it; within it the store may
be closed and opened again. Times are places in the life's journal: an event at 17 had happened when
the first 17 entries had, and not before.

`Expected` is the history as a checker needs it, for a crash at one place of one life.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

NEVER = 1 << 62
HALF = 4
ROLLBACK = 12
Queue = tuple[str, int]


@dataclass(slots=True, eq=False)
class Sent:
    """A message that a put was called with; `record` is what has to stand in the log."""

    number: int
    topic: str
    queue_id: int
    queue_offset: int
    transaction: int
    keys: tuple[str, ...]
    tags_code: int
    log_offset: int
    record: bytes
    store_ms: int
    # Log offset behind all that is acknowledged together with it (its batch).
    acked_with: int
    invoked: int
    returned: int

    @property
    def end(self) -> int:
        """Log offset behind the record."""
        return self.log_offset + len(self.record)

    @property
    def queue(self) -> Queue | None:
        """The queue it is visible in, None for half messages and rollbacks."""
        if self.transaction in (HALF, ROLLBACK):
            return None
        return self.topic, self.queue_id


class Mark(NamedTuple):
    """From `at` on something is known to reach up to `log_offset`."""

    at: int
    log_offset: int


class Seen(NamedTuple):
    """From `at` on consumers know that message under that offset."""

    at: int
    queue: Queue
    queue_offset: int
    number: int


class Deleted(NamedTuple):
    """A topic was deleted: from `at` on its messages below `log_offset` may be invisible."""

    at: int
    topic: str
    log_offset: int


@dataclass(slots=True)
class Expected:
    """The messages that must, may and must not be there after a crash."""

    # In log order: what may be in the log. All of it that ends at or below `must_end` is.
    records: list[Sent]
    must_end: int
    seen: list[Seen]
    deleted: dict[str, int]
    # Log offsets of records damaged by the test, and where the next one begins.
    damaged: dict[int, int] = field(default_factory=dict)

    def queue_of(self, sent: Sent) -> Queue | None:
        """The queue in which the message must be visible; None if it is in none, or may not be."""
        if sent.log_offset < self.deleted.get(sent.topic, 0):
            return None
        return sent.queue


@dataclass(slots=True)
class Life:
    """One disk from its first state to its crash."""

    # The messages in its log at the beginning, all of them durable.
    base: list[Sent]
    sync_flush: bool
    deleted: list[Deleted] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    acked: list[Mark] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)

    def expected(self, at: int, *, killed: bool = False) -> Expected:
        """The expectation after a crash at that place; `killed`: the disk lost nothing."""
        records = self.base + [sent for sent in self.sent if sent.invoked < at]
        must_end = max((mark.log_offset for mark in self.acked if mark.at <= at), default=0)
        must_end = max([must_end] + [sent.end for sent in self.base])
        if killed:
            must_end = max([must_end] + [sent.end for sent in self.sent if sent.returned <= at])
        deletions = {one.topic: one for one in self.deleted if one.at <= at}
        seen = [
            one
            for one in (self.seen if self.sync_flush else [])
            if one.at <= at
            and (one.queue[0] not in deletions or one.at > deletions[one.queue[0]].at)
        ]
        deleted = {topic: deletion.log_offset for topic, deletion in deletions.items()}
        return Expected(records, must_end, seen, deleted)

    def cut_at(self, at: int) -> "Life":
        """The life up to then; a put that had not returned never returns."""
        return Life(
            self.base,
            self.sync_flush,
            [deletion for deletion in self.deleted if deletion.at < at],
            [
                sent if sent.returned <= at else replace(sent, returned=NEVER)
                for sent in self.sent
                if sent.invoked < at
            ],
            [mark for mark in self.acked if mark.at <= at],
            [seen for seen in self.seen if seen.at <= at],
        )

    def settle(self, there: set[int], at: int) -> None:
        """Puts that never returned came through by `at` if they are at the log offsets `there`."""
        self.sent = [
            replace(sent, returned=min(sent.returned, at))
            for sent in self.sent
            if sent.returned != NEVER or sent.log_offset in there
        ]

    def forget_lost(self, there: set[int]) -> None:
        """After a restart: a message that was not promised and is at none of the log offsets is
        gone."""
        promised = max((mark.log_offset for mark in self.acked), default=0)
        self.sent = [sent for sent in self.sent if sent.end <= promised or sent.log_offset in there]

    def number_of(self, queue: Queue, queue_offset: int, dispatched: int) -> int:
        """The newest message that was given that queue offset and is dispatched.

        A deletion of its topic dispatches before it, and the next dispatch tells of that, too: by
        then the offset may have been given anew, to a message that is not dispatched yet.
        """
        for sent in reversed(self.base + self.sent):
            if (sent.queue, sent.queue_offset) == (queue, queue_offset) and sent.end <= dispatched:
                return sent.number
        return -1
