"""Documents about the clients of brokers."""

from __future__ import annotations

from aerobee.cli.documents.brokers import Silent
from aerobee.cli.documents.document import Document


class Client(Document, frozen=True, kw_only=True):
    """A connection of a client with a broker. What RocketMQ's brokers do not tell is null."""

    #: Empty until it has sent a heartbeat: tools and producers that only just came.
    client_id: str
    broker: str
    address: str
    language: str | None
    version: str | None
    producer_groups: list[str]
    consumer_groups: list[str]
    connected_timestamp_ms: int | None
    #: When bytes last went either way.
    last_active_timestamp_ms: int | None
    last_heartbeat_timestamp_ms: int | None
    #: Bytes that were read from it and are not served yet.
    waiting_bytes: int | None
    #: Bytes of answers that it has not taken.
    unsent_bytes: int | None
    held_pulls: int | None
    #: Groups that did not fit the answer of the broker.
    groups_left_out: int


class ClientListing(Document, frozen=True, kw_only=True):
    """The answer of `aerobee client list`."""

    clients: list[Client]
    #: Connections that did not fit the answers of the brokers.
    left_out: int
    unanswered: list[Silent]


class Subscribed(Document, frozen=True, kw_only=True):
    """A topic that a client subscribes to."""

    group: str
    topic: str
    subscription: str


class HeldQueue(Document, frozen=True, kw_only=True):
    """A queue that a client holds at a broker."""

    broker: str
    group: str
    topic: str
    queue: int
    #: lock: it consumes the queue in order. pull: a pull of it waits for messages.
    kind: str
    #: Where a pull waits, and since when.
    offset: int | None
    since_timestamp_ms: int | None


class ClientDescription(Document, frozen=True, kw_only=True):
    """The answer of `aerobee client show`."""

    client_id: str
    connections: list[Client]
    subscriptions: list[Subscribed]
    queues: list[HeldQueue]
    #: Queues that did not fit the answers of the brokers.
    queues_left_out: int
    #: Subscriptions that did not.
    subscriptions_left_out: int
    #: The stacks of its threads, with --stack; null where it was not asked or has none.
    stack: str | None
    unanswered: list[Silent]
