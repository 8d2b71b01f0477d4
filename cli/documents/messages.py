"""Documents about single messages."""

from __future__ import annotations

from aerobee.cli.documents.document import Document


class MessagePlace(Document, frozen=True, kw_only=True):
    """A message, and the place where it is stored."""

    topic: str
    broker: str
    queue: int
    offset: int
    #: The client's id, the broker's where the client gave none.
    msg_id: str
    offset_msg_id: str
    tags: str
    keys: list[str]
    born_timestamp_ms: int
    store_timestamp_ms: int
    size_bytes: int


class GroupWithMessage(Document, frozen=True, kw_only=True):
    """How far a group is with a message."""

    group: str
    #: "consumed", "passed" (its offset is behind the message; nobody says whether its filter takes
    #: it), "not yet", "given out", "waits for its next try", "in the retry queue", "dead",
    #: "filtered out", "began later", "members know" (broadcasting) or "unknown".
    state: str
    #: How often it was, or is to be, delivered again.
    tries: int
    #: How often it may be delivered again; null where nobody knows.
    limit: int | None
    #: When the next try is due, or since when it is dead or in the retry queue; null otherwise.
    timestamp_ms: int | None
    #: How many messages of the queue come before it; null unless the state is "not yet".
    ahead: int | None
    #: The expression that its members subscribe with; null where nobody knows.
    subscription: str | None


class WaitingFor(Document, frozen=True, kw_only=True):
    """The reason why a message is in no topic yet."""

    #: The topic that it was accepted for.
    topic: str
    #: "delayed", "timed" (it has a time of its own) or "half" (of a transaction that was not
    #: committed: it is not decided yet, or was rolled back).
    kind: str
    #: When it is delivered; null where nobody knows.
    due_timestamp_ms: int | None


class MessageShown(Document, frozen=True, kw_only=True):
    """A message in `aerobee message show`, and the groups that consume its topic."""

    message: MessagePlace
    #: Whether its broker says what only a broker knows: RocketMQ's do not tell what was given out,
    #: nor what filters of properties decide.
    broker_tells_all: bool
    groups: list[GroupWithMessage]
    #: null for a message that is in its topic.
    waiting: WaitingFor | None = None


class TraceEvent(Document, frozen=True, kw_only=True):
    """A line of `aerobee message trace`; null is what the client has not told."""

    #: "sent", "consuming", "consumed" or "transaction ended".
    event: str
    timestamp_ms: int | None
    msg_id: str
    group: str | None
    topic: str | None
    tries: int | None
    took_ms: int | None
    success: bool | None
    #: How the listener ended, or what was decided about a transaction.
    outcome: str | None
    store_host: str | None
    client_host: str | None


class MessageResend(Document, frozen=True, kw_only=True):
    """The answer of `aerobee message resend`."""

    message: MessagePlace
    #: The topic that the copy goes to: the message's own for all its groups, or the retry topic of
    #: one group.
    to: str
    groups: list[str]
    done: bool


class MessageSkip(Document, frozen=True, kw_only=True):
    """The answer of `aerobee message skip`."""

    group: str
    message: MessagePlace
    #: The topic that the message goes to.
    to: str
    #: The group's offset before and after.
    offset_before: int
    offset_after: int
    done: bool


class GroupMove(Document, frozen=True, kw_only=True):
    """A group that has messages of a topic before it, and how many."""

    group: str
    #: null where its members alone know (broadcasting).
    not_consumed: int | None
    online: bool


class TopicPurge(Document, frozen=True, kw_only=True):
    """The answer of `aerobee topic purge`."""

    topic: str
    #: How many messages its queues have.
    messages: int
    groups: list[GroupMove]
    done: bool
