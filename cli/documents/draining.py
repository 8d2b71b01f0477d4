"""The document about a broker that is drained."""

from __future__ import annotations

from aerobee.cli.documents.document import Document


class BrokerDrain(Document, frozen=True, kw_only=True):
    """The answer of `aerobee broker drain`: the preview, or what was done."""

    broker: str
    address: str
    #: Whether something was changed; false in a preview.
    changed: bool
    #: serving, draining or drained; null of a broker that does not tell, such as RocketMQ's.
    state: str | None
    #: Why it is so, for people; null where there is nothing to say.
    reason: str | None
    #: Whether no producer sends there any more; null while nobody knows.
    senders_left: bool | None
    #: How many topics of users producers may send to there.
    topics: int
    #: The other brokers that take topics of this one.
    taken_by: list[str]
    #: Topics that nobody else takes: their producers have nowhere to go.
    untaken: list[str]
