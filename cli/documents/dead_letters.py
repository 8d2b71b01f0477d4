"""Documents about dead letters."""

from __future__ import annotations

from aerobee.cli.documents.document import Document


class DeadLetterGroup(Document, frozen=True, kw_only=True):
    """A group with dead letters in `aerobee dlq list`. The numbers are those of the brokers that
    answered."""

    group: str
    messages: int
    #: How many of them `aerobee dlq resend` has not sent again.
    not_resent: int
    #: When the first and the last one came; null where nobody knows.
    oldest_timestamp_ms: int | None
    newest_timestamp_ms: int | None
    #: The brokers that have some.
    brokers: list[str]
    #: The brokers that did not answer, which may have more.
    brokers_unanswered: list[str]


class DeadLetter(Document, frozen=True, kw_only=True):
    """A dead letter: a line of `aerobee dlq peek`, and of the file of `aerobee dlq export`."""

    group: str
    #: The topic that it was first sent to; null where it does not say.
    original_topic: str | None
    #: The client's id, the broker's where the client gave none.
    msg_id: str
    #: The broker's id of the message when it was first stored; null where it does not say.
    original_msg_id: str | None
    #: The broker's id of the dead letter.
    offset_msg_id: str
    broker: str
    queue: int
    offset: int
    #: How often it was delivered again.
    tries: int
    #: "tries used up" or "given up by the consumer".
    reason: str
    #: When it became a dead letter.
    dead_timestamp_ms: int
    born_timestamp_ms: int
    tags: str
    keys: list[str]
    properties: dict[str, str]
    #: The text of the body; null where it is no text, or cannot be made plain.
    body: str | None
    #: The body where it is no text, and as it is stored where it cannot be made plain.
    body_base64: str | None = None
    #: Why the body cannot be made plain; null where it can.
    unreadable: str | None = None


class DeadLetterExport(Document, frozen=True, kw_only=True):
    """The answer of `aerobee dlq export`."""

    group: str
    file: str
    messages: int
    size_bytes: int


class DeadLetterQueueRange(Document, frozen=True, kw_only=True):
    """Dead letters of one broker: queue offsets from `begin` up to `end`."""

    broker: str
    queue: int
    begin: int
    end: int
    oldest_timestamp_ms: int | None
    newest_timestamp_ms: int | None


class DeadLetterResend(Document, frozen=True, kw_only=True):
    """The answer of `aerobee dlq resend`."""

    group: str
    #: The topic that they go to, which the group alone consumes.
    to: str
    done: bool
    queues: list[DeadLetterQueueRange]
    #: The letter that was chosen by its id; null for all.
    offset_msg_id: str | None = None
    #: How many were sent now; null for a preview.
    sent: int | None = None
    #: How many had a copy already, and were passed over; null for a preview.
    passed_over: int | None = None


class DeadLetterPurge(Document, frozen=True, kw_only=True):
    """The answer of `aerobee dlq purge`."""

    group: str
    topic: str
    messages: int
    not_resent: int
    done: bool
    queues: list[DeadLetterQueueRange]
