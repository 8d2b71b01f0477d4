"""Documents about topics."""

from __future__ import annotations

from aerobee.cli.documents.brokers import Silent
from aerobee.cli.documents.document import Document


class TopicOnBroker(Document, frozen=True, kw_only=True):
    """The queues of a topic on a broker."""

    broker: str
    read_queues: int
    write_queues: int
    rights: str


class TopicSummary(Document, frozen=True, kw_only=True):
    """A topic in `aerobee topic list`."""

    topic: str
    brokers: list[TopicOnBroker]


class TopicQueue(Document, frozen=True, kw_only=True):
    """A queue of a topic."""

    broker: str
    queue: int
    min_offset: int
    max_offset: int
    messages: int
    #: 0 for a queue without a message.
    last_store_timestamp_ms: int


class TopicDescription(Document, frozen=True, kw_only=True):
    """The answer of `aerobee topic describe`."""

    topic: str
    brokers: list[TopicOnBroker]
    queues: list[TopicQueue]


class Finding(Document, frozen=True, kw_only=True):
    """Something that keeps clients from a topic, or soon will."""

    #: A word that stays the same, such as not_registered.
    finding: str
    #: The broker or name server that it is about.
    where: str | None
    cause: str
    remedy: str


class TopicExplanation(Document, frozen=True, kw_only=True):
    """The answer of `aerobee topic explain`."""

    topic: str
    #: The brokers where it can be sent to, and read.
    sent_on: list[str]
    read_on: list[str]
    findings: list[Finding]
    unanswered: list[Silent]
