"""Documents about consumer groups."""

from __future__ import annotations

from aerobee.cli.documents.document import Document


class GroupSummary(Document, frozen=True, kw_only=True):
    """A group in `aerobee group list`."""

    group: str
    #: The brokers that know it.
    brokers: list[str]
    #: How many members are online.
    members: int
    #: How many topics it consumes.
    topics: int
    #: The messages that it has before it; null where its members alone know (broadcasting).
    lag: int | None


class Member(Document, frozen=True, kw_only=True):
    """A member of a group that is online."""

    client_id: str
    address: str
    language: str
    version: str


class GroupTopic(Document, frozen=True, kw_only=True):
    """A topic that a group consumes, subscribes to, or has messages to try again in."""

    topic: str
    #: The expression that its members subscribe with; null while none is online.
    subscription: str | None
    queues: int
    #: The messages that the group has before it there; null where its members alone know.
    lag: int | None


class GroupDescription(Document, frozen=True, kw_only=True):
    """The answer of `aerobee group describe`."""

    group: str
    brokers: list[str]
    #: CONSUME_PASSIVELY (push) or CONSUME_ACTIVELY (pull); null while no member is online.
    consume_type: str | None
    #: CLUSTERING or BROADCASTING; null while no member is online.
    message_model: str | None
    members: list[Member]
    topics: list[GroupTopic]
