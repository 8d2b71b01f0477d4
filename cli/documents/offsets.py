"""Documents about the offsets of consumer groups."""

from __future__ import annotations

from aerobee.cli.documents.document import Document


class QueueOffset(Document, frozen=True, kw_only=True):
    """A group in a queue, in `aerobee offset show`."""

    topic: str
    broker: str
    queue: int
    #: The offset that it has committed; null without one. RocketMQ's brokers say 0 for none.
    offset: int | None
    #: Where what it has not consumed begins; null where nobody knows.
    begin: int | None
    end: int
    #: The messages from there to the end; null where nobody knows.
    lag: int | None
    #: Those of them that members were given; null where nobody knows.
    given_out: int | None
    #: When the last message that it has consumed was stored; null if that is not known.
    last_consumed_timestamp_ms: int | None


class OffsetMove(Document, frozen=True, kw_only=True):
    """A queue in which a group goes on somewhere else."""

    topic: str
    broker: str
    queue: int
    #: The offset before; null if it had none.
    before: int | None
    after: int | None
    #: How many messages it misses; those that it gets again are below 0.
    change: int


class OffsetsMoved(Document, frozen=True, kw_only=True):
    """The answer of `aerobee offset reset`, `clone` and `undo`."""

    group: str
    #: False for a preview.
    done: bool
    #: The members that were informed, or would be, by broker.
    told: dict[str, list[str]]
    queues: list[OffsetMove]
