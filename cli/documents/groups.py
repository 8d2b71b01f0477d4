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
    #: The messages that it has before it; null where nobody knows, or its members alone
    #: (broadcasting).
    lag: int | None
    #: That number without the queues of which nobody knows it.
    lag_at_least: int
    #: How many queues those are.
    unknown_queues: int
    #: The messages that members were given and have not consumed; null where nobody knows.
    given_out: int | None
    #: The messages that wait for their next try, and those that it gave up on; null for brokers
    #: that do not tell.
    retries: int | None
    dead: int | None
    #: Queues whose offset has stood for a minute though messages were given out; null as before.
    stuck_queues: int | None


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
    #: These five are those of GroupSummary.
    lag: int | None
    lag_at_least: int
    unknown_queues: int
    given_out: int | None
    stuck_queues: int | None


class HeadMessage(Document, frozen=True, kw_only=True):
    """The message that a group stands at in a queue."""

    offset: int
    message_id: str
    #: For how long it has been stored.
    age_s: float
    #: 1 for the first try to consume it.
    attempt: int


class StuckQueue(Document, frozen=True, kw_only=True):
    """A queue whose offset has stood for a minute though messages of it were given out."""

    topic: str
    broker: str
    queue: int
    stands_s: float | None
    given_out: int | None
    #: null if the message cannot be had any more.
    head: HeadMessage | None
    #: The client that has the queue; null if that is not known.
    member: str | None
    #: The client that has locked the queue, in groups that consume in order.
    lock_owner: str | None


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
    #: These two are those of GroupSummary.
    retries: int | None
    dead: int | None
    stuck: list[StuckQueue]


class Finding(Document, frozen=True, kw_only=True):
    """A reason why a group does not come on, or could not."""

    #: A stable word, such as `no_member`.
    kind: str
    #: `problem` keeps messages from being consumed; `notice` may be meant so.
    level: str
    #: The topic, broker and queue that it is about; null for all.
    topic: str | None
    broker: str | None
    queue: int | None
    cause: str
    remedy: str


class GroupExplanation(Document, frozen=True, kw_only=True):
    """The answer of `aerobee group explain`."""

    group: str
    members: int
    #: The lag in GroupSummary is the same.
    lag: int | None
    findings: list[Finding]
    #: The brokers that cannot tell all of it, because they are RocketMQ's, and those that did not
    #: answer.
    cannot_tell: list[str]
    silent: list[str]


class GroupSettings(Document, frozen=True, kw_only=True):
    """The settings of a group; RocketMQ's names are retryMaxTimes, retryQueueNums, consumeEnable,
    consumeBroadcastEnable and notifyConsumerIdsChangedEnable."""

    retries: int
    retry_queues: int
    consume: bool
    broadcast: bool
    notify: bool


class GroupChange(Document, frozen=True, kw_only=True):
    """A group's settings at a broker, before and after a change; null where it is not there."""

    group: str
    broker: str
    before: GroupSettings | None
    after: GroupSettings | None


class GroupChanged(Document, frozen=True, kw_only=True):
    """The answer of `aerobee group create`, `update` and `delete`."""

    group: str
    #: False for a preview.
    done: bool
    changes: list[GroupChange]
