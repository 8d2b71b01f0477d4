"""The answers to BROKER_STATUS (31030) and CLIENTS (31032), as JSON (protocol/WIRE.md 9).

A number that the broker does not know is null. Readers pass over members that they do not know, and
a member that an older broker does not send has its default. Times are milliseconds since 1970.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T", bound="_Body")


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of an answer."""


class _Body(_Part, frozen=True, kw_only=True):
    """The body of an answer."""

    def encode(self) -> bytes:
        """The body."""
        return msgspec.json.encode(self)

    @classmethod
    def parse(cls: type[T], body: bytes) -> T:
        """Raises ValueError for a body that is no such answer."""
        try:
            return msgspec.json.decode(body, type=cls)
        except msgspec.MsgspecError as error:
            raise ValueError(f"it is no {cls.__name__}: {error}") from error


class Check(_Part, frozen=True, kw_only=True):
    """A check of /ready. `reason` is null while all is well; a note leaves the broker ready."""

    name: str
    reason: str | None
    remedy: str
    since_ms: int
    note: bool = False


class Rates(_Part, frozen=True, kw_only=True):
    """Messages a second over the last minute, bytes that the ports received and sent."""

    messages_in: float
    messages_out: float
    received_bytes: float | None
    sent_bytes: float | None


class Disk(_Part, frozen=True, kw_only=True):
    """The disks of the log. `full_in_s`: until sends are refused, at the growth of the last ten
    minutes and if nothing is deleted; null while it does not grow."""

    used_ratio: float | None
    refused_above_ratio: float
    room_bytes: int | None
    growth_bytes_per_s: float | None
    full_in_s: int | None


class RefusedKind(_Part, frozen=True, kw_only=True):
    """Refusals of the last hour that are alike. `cause` is the remark of the last of them."""

    cause: str
    response_code: int
    request_code: int
    peer: str
    count: int
    last_ms: int


class LimitUse(_Part, frozen=True, kw_only=True):
    """How much of a limit is used; `name` is the setting's."""

    name: str
    value: float
    bound: float


class NameServerLink(_Part, frozen=True, kw_only=True):
    """A name server that the broker registers with."""

    address: str
    registered: bool
    error: str | None = None


class TopicHere(_Part, frozen=True, kw_only=True):
    """A topic that was asked about: its settings, if it is there. `was_deleted`: messages from
    before its deletion still wait. `may_create`: a first send would make it."""

    name: str
    exists: bool
    is_system: bool
    was_deleted: bool
    may_create: bool
    perm: int | None = None
    read_queues: int | None = None
    write_queues: int | None = None


class BrokerStatus(_Body, frozen=True, kw_only=True):
    """The state of a broker."""

    broker: str
    cluster: str
    broker_id: int
    role: str
    version: str
    form: str
    started_ms: int
    #: The address that clients get.
    address: str
    permission: int
    ready: bool
    checks: list[Check]
    rates: Rates
    connections: dict[str, int]
    disk: Disk
    refusals: list[RefusedKind]
    #: Refusals of kinds that are not in the list.
    refusals_left_out: int
    limits: list[LimitUse]
    name_servers: list[NameServerLink]
    topic: TopicHere | None = None


class HeldQueue(_Part, frozen=True, kw_only=True):
    """A queue that a client holds: a pull that waits for messages at `offset` since then, or
    (without) a lock for consuming in order."""

    group: str
    topic: str
    queue_id: int
    offset: int | None = None
    since_ms: int | None = None


class ConnectedClient(_Part, frozen=True, kw_only=True):
    """A connection. `client_id` is "" until it has sent a heartbeat. `waiting_bytes` were read from
    it and are not served yet, `unsent_bytes` it has not taken."""

    client_id: str
    address: str
    language: str | None
    version: int | None
    producer_groups: list[str]
    consumer_groups: list[str]
    connected_ms: int
    last_active_ms: int
    last_heartbeat_ms: int | None
    waiting_bytes: int
    unsent_bytes: int
    held_pulls: int
    groups_left_out: int = 0
    #: The three below only where a single client was asked for.
    subscriptions: dict[str, dict[str, str]] | None = None
    pulls: list[HeldQueue] | None = None
    locks: list[HeldQueue] | None = None
    queues_left_out: int = 0
    subscriptions_left_out: int = 0


class ClientList(_Body, frozen=True, kw_only=True):
    """Connections of a broker; `left_out` more did not fit the answer."""

    broker: str
    clients: list[ConnectedClient]
    left_out: int = 0
