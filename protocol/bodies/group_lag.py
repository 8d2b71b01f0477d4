"""The answer to GROUP_LAG (31031): how far a group is in each queue, and all that a broker knows of
why it does not come on (protocol/WIRE.md 9).

A number that the broker does not know is null.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from aerobee.protocol.bodies.common import parse_body

_MAX_VALUES = 2_000_000


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of the answer; fields that a broker does not give have their defaults."""


class HeadMessage(_Part, frozen=True, kw_only=True):
    """The message that a group stands at in a queue."""

    offset: int
    #: The id that its producer gave it, else the broker's.
    msg_id: str
    stored_ms: int
    #: 1 for the first try of the group to consume it.
    attempt: int
    tags: str | None = None


class QueueLagState(_Part, frozen=True, kw_only=True):
    """A group in one queue."""

    topic: str
    queue_id: int
    #: Its offset, None without one.
    committed: int | None
    #: Where what it has not consumed begins, None where nobody knows.
    begin: int | None
    #: The end and the first message of the queue.
    end: int
    first: int = 0
    #: Messages not consumed, None where nobody knows.
    lag: int | None
    #: Those of them that members were given.
    given_out: int | None = None
    #: Store time of the last message that was consumed, None if that is not known.
    last_consumed_ms: int | None = None
    #: For how long its offset has stood with messages given out; None where it comes on.
    stands_s: float | None = None
    #: For how long it was given nothing though messages wait for it; None where it is.
    left_s: float | None = None
    is_stuck: bool = False
    is_left: bool = False
    #: The client that may consume the queue in order, by its lock.
    lock_owner: str | None = None
    #: The client whose pull waits in the queue for a message.
    puller: str | None = None
    head: HeadMessage | None = None


class Statement(_Part, frozen=True, kw_only=True):
    """A subscription to a topic, and the members that state it, some of many."""

    type: str
    expression: str
    members: int
    clients: list[str] = []


class TopicState(_Part, frozen=True, kw_only=True):
    """A topic that a group subscribes to or has offsets in."""

    topic: str
    #: Whether this broker has it; then its permission (4 read, 2 write).
    exists: bool
    perm: int = 0
    #: How its members subscribe: one statement where all subscribe alike.
    statements: list[Statement] = []
    #: Members, some of many, that do not subscribe to it while others do.
    without: list[str] = []
    #: How many of the newest messages were held against the filters of the group, and how many
    #: pass. Both are 0 where nothing was looked at, as with members that want all messages.
    looked: int = 0
    wanted: int = 0


class SharedId(_Part, frozen=True, kw_only=True):
    """A client id by which several connections are members."""

    client_id: str
    addresses: list[str]


class GroupSettings(_Part, frozen=True, kw_only=True):
    """The settings of a group that decide whether and how it consumes."""

    consume_enable: bool
    consume_broadcast_enable: bool
    retry_max_times: int
    retry_queue_nums: int = 1


class GroupState(_Part, frozen=True, kw_only=True):
    """The group itself, as one broker knows it."""

    group: str
    #: The broker's time, which ages are counted from.
    now_ms: int
    #: None for a group that the broker does not have.
    settings: GroupSettings | None = None
    #: Stated by its members; None while no member is online.
    consume_type: str | None = None
    message_model: str | None = None
    consume_from: str | None = None
    #: How many clients are online, and some of their ids.
    members: int = 0
    clients: list[str] = []
    shared_ids: list[SharedId] = []
    #: Messages that wait for their next try, in no queue yet; and those that it gave up on.
    retries: int | None = None
    dead: int | None = None
    #: The permission of the broker (4 read, 2 write).
    broker_perm: int | None = None
    topics: list[TopicState] = []


class GroupLag(msgspec.Struct, frozen=True):
    """The whole answer of one broker."""

    state: GroupState
    queues: list[QueueLagState]

    @classmethod
    def parse(cls, body: bytes) -> GroupLag:
        """Raises ValueError for a body that is no such answer."""
        value = parse_body(body, "answer about a group's lag", _MAX_VALUES)
        try:
            return msgspec.convert(value, cls, strict=True)
        except msgspec.ValidationError as error:
            raise ValueError(f"the answer about a group's lag is wrong: {error}") from error


def encode_group_lag(state: GroupState, queues: Iterable[bytes]) -> bytes:
    """The answer, of the encoded queues."""
    return b'{"state":%b,"queues":[%b]}' % (msgspec.json.encode(state), b",".join(queues))


def encode_queue(queue: QueueLagState) -> bytes:
    """A queue's part of the answer."""
    return msgspec.json.encode(queue)
