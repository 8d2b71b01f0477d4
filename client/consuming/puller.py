"""One pull of one queue: the request, and what its answer means.

Reads go to the master unless its last answer suggested a slave. Messages are filtered again here by
tag equality: brokers filter by hash only, and two tags may share one (protocol/WIRE.md 6.7).
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass

from aerobee.client.connections.session import Session
from aerobee.client.errors import NetworkError, NoRoute, checking_arguments, peer_error, reading
from aerobee.client.message import ReceivedMessage, received_until_full
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.routes import MASTER_ID
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.filters.property_filter import TAG_TYPE, check_type
from aerobee.protocol.filters.subscription import Subscription, parse_tag_expression
from aerobee.protocol.frames.command import Command
from aerobee.protocol.headers.client import (
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullMessageHeader,
    PullMessageResponse,
)
from aerobee.protocol.message.record import iterate_records
from aerobee.protocol.names import check_topic_name

# A broker looks at parked pulls every 5 s, so an answer may come that much after the suspend time.
_GRACE_S = 15.0


def make_subscription(
    topic: str, expression: str = "*", expression_type: str = TAG_TYPE
) -> Subscription:
    """A subscription; its version, the time in ms, tells the broker which of two is newer.

    Raises CallerError for what no broker would take. What an expression of another type than TAG
    means is the broker's affair.
    """
    version = time.time_ns() // 1_000_000
    with checking_arguments():
        check_topic_name(topic)
        if expression_type == TAG_TYPE:
            return parse_tag_expression(topic, expression, version)
        check_type(expression_type)
        return Subscription(topic, expression, expression_type, version)


class PullStatus(enum.Enum):
    """The finding of a pull."""

    FOUND = int(ResponseCode.SUCCESS)
    NO_NEW = int(ResponseCode.PULL_NOT_FOUND)  # nothing at or after the offset yet
    NO_MATCH = int(ResponseCode.PULL_RETRY_IMMEDIATELY)  # all filtered out: go on at next_offset
    OFFSET_MOVED = int(ResponseCode.PULL_OFFSET_MOVED)  # no such offset: the valid offset is given


_STATUS = {status.value: status for status in PullStatus}


@dataclass(frozen=True, slots=True)
class PullResult:
    """The answer to a pull; the next pull starts at `next_offset`."""

    status: PullStatus
    messages: list[ReceivedMessage]
    next_offset: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """A question for messages. `suspend_ms` 0 answers at once; `commit` rides along with the pull.

    `inline` sends the subscription with the pull, for groups that do not heartbeat.
    """

    queue: MessageQueue
    offset: int
    subscription: Subscription
    max_messages: int = 32
    suspend_ms: int = 0
    commit: int | None = None
    inline: bool = False

    def header(self, group: str) -> PullMessageHeader:
        """The request's header."""
        flags = PULL_SUBSCRIPTION if self.inline else 0
        flags |= PULL_SUSPEND if self.suspend_ms else 0
        flags |= 0 if self.commit is None else PULL_COMMIT_OFFSET
        return PullMessageHeader(
            consumer_group=group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            queue_offset=self.offset,
            max_msg_nums=self.max_messages,
            sys_flag=flags,
            commit_offset=self.commit or 0,
            suspend_timeout_millis=self.suspend_ms,
            subscription=self.subscription.expression if self.inline else None,
            sub_version=self.subscription.version,
            expression_type=self.subscription.type,
        )


class Puller:
    """Pulls for one group; remembers which broker each queue's answers suggested."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._suggested: dict[MessageQueue, int] = {}

    async def pull(self, pull: Pull) -> PullResult:
        """Carry out one pull; raises NoRoute, NetworkError, or PeerError for other codes."""
        queue = pull.queue
        address = await self._address(queue)
        session = self._session
        ext = pull.header(self._group).to_ext()
        command = session.command(RequestCode.PULL_MESSAGE, ext)
        timeout_s = pull.suspend_ms / 1000 + _GRACE_S
        try:
            answer = await session.pool.call(address, command, timeout_s)
        except NetworkError:
            self._suggested.pop(queue, None)
            raise
        return self._result(pull, address, answer)

    async def _address(self, queue: MessageQueue) -> str:
        routes = self._session.routes
        suggested = self._suggested.get(queue, MASTER_ID)
        address = routes.readable_address(queue.broker_name, suggested)
        if address is None:
            await routes.route(queue.topic, refresh=True)
            address = routes.readable_address(queue.broker_name, suggested)
        if address is None:
            raise NoRoute(f"no route mentions broker {queue.broker_name!r} of {queue.topic!r}")
        return address

    def _result(self, pull: Pull, address: str, answer: Command) -> PullResult:
        status = _STATUS.get(answer.code)
        if status is None:
            raise peer_error(address, answer)
        queue = pull.queue
        messages: list[ReceivedMessage] = []
        left_at: int | None = None
        with reading(address):
            header = PullMessageResponse.from_ext(answer.ext)
            if status is PullStatus.FOUND:
                records = iterate_records(answer.body)
                messages, left_at = received_until_full(records, queue, pull.max_messages)
        if tags := pull.subscription.tags:
            messages = [message for message in messages if message.tags in tags]
        if header.suggest_which_broker_id != MASTER_ID:
            self._suggested[queue] = header.suggest_which_broker_id
        elif self._suggested:
            self._suggested.pop(queue, None)
        return PullResult(
            status=status,
            messages=messages,
            next_offset=header.next_begin_offset if left_at is None else left_at,
            min_offset=header.min_offset,
            max_offset=header.max_offset,
        )
