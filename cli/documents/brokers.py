"""Documents about brokers: their status, replication, settings and permission."""

from __future__ import annotations

from aerobee.cli.documents.document import Document


class Silent(Document, frozen=True, kw_only=True):
    """A name server or broker that did not answer."""

    address: str
    reason: str


class FailedCheck(Document, frozen=True, kw_only=True):
    """A check of /ready that fails. A note leaves the broker ready."""

    check: str
    since_timestamp_ms: int
    note: bool
    reason: str
    remedy: str


class Refusals(Document, frozen=True, kw_only=True):
    """Refusals of the last hour that are alike."""

    #: The remark of the last of them.
    cause: str
    #: The name of the response code, such as SYSTEM_BUSY, or its number.
    answer: str
    #: The name of the request, such as send_message_v2; null where several are counted together.
    request: str | None
    #: The host whose requests were refused; null where several are counted together.
    peer: str | None
    times: int
    last_timestamp_ms: int


class Limit(Document, frozen=True, kw_only=True):
    """How much of a limit is used; its name is that of the setting."""

    limit: str
    value: float
    bound: float


class NameServerState(Document, frozen=True, kw_only=True):
    """A name server of a broker."""

    name_server: str
    #: null: it was not asked, or does not answer, and the broker does not tell.
    registered: bool | None
    #: Why it is not registered, as far as the broker knows.
    reason: str | None


class BrokerReport(Document, frozen=True, kw_only=True):
    """A broker in `aerobee status`. Numbers that it does not tell are null."""

    broker: str
    broker_id: int
    cluster: str
    #: The address that name servers give to clients.
    address: str
    #: Why it has not answered; null where it has.
    error: str | None
    #: Why the rest is not known: it is RocketMQ's, or wants an administrator; null where it is.
    tells_no_more: str | None
    role: str | None
    version: str | None
    started_timestamp_ms: int | None
    #: Such as rw: what the broker as a whole allows.
    rights: str | None
    ready: bool | None
    failing: list[FailedCheck]
    messages_in_per_s: float | None
    messages_out_per_s: float | None
    received_bytes_per_s: float | None
    sent_bytes_per_s: float | None
    connections: int | None
    disk_used_ratio: float | None
    #: Sends are refused above.
    disk_refused_above_ratio: float | None
    #: The bytes that the log may grow by until then.
    disk_room_bytes: int | None
    disk_growth_bytes_per_s: float | None
    #: Until then at this growth, if nothing is deleted; null while the log does not grow.
    disk_full_in_s: int | None
    refusals: list[Refusals]
    #: Refusals of further kinds.
    refusals_left_out: int
    #: The fullest first.
    limits: list[Limit]
    name_servers: list[NameServerState]


class Status(Document, frozen=True, kw_only=True):
    """The answer of `aerobee status`."""

    brokers: list[BrokerReport]
    unanswered: list[Silent]


class HaRow(Document, frozen=True, kw_only=True):
    """A broker in `aerobee broker ha`."""

    broker: str
    #: null: it is connected to the master, and no name server knows it.
    id: int | None
    role: str
    address: str
    #: The end of its log.
    end: int | None
    #: Up to there a slave has the log, as its master knows.
    acknowledged: int | None
    lag: int | None
    state: str
    #: Why slaves are refused, or why this slave does not follow, or what it lacks.
    reason: str | None


class HaDescription(Document, frozen=True, kw_only=True):
    """The answer of `aerobee broker ha`."""

    brokers: list[HaRow]


class PermissionChange(Document, frozen=True, kw_only=True):
    """The answer of `aerobee broker permission`."""

    broker: str
    rights: str
    #: The rights that were asked for; null where none were.
    wanted_rights: str | None
    #: Topics are registered with what both they and their broker allow.
    changed: bool


#: Settings by their RocketMQ names, by broker: the answer of `aerobee broker config`.
SettingsByBroker = dict[str, dict[str, str]]


class Shard(Document, frozen=True, kw_only=True):
    """A shard in `aerobee shards`."""

    #: The name of its process, such as shard-0, or of the name server.
    shard: str
    #: null for the name server.
    broker: str | None = None
    address: str | None = None
    #: running, ready, stuck and the like.
    state: str
    pid: int | None = None
    #: How often it has ended without being told to.
    failures: int
    status: str | None = None


class Shards(Document, frozen=True, kw_only=True):
    """The answer of `aerobee shards`."""

    shards: list[Shard]
