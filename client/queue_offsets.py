"""Questions about one queue's offsets, asked of the broker that holds it (WIRE.md 3.3, 3.4)."""

from __future__ import annotations

from aerobee.client.connections.session import Role, Session
from aerobee.client.errors import reading
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.routes import MASTER_ID
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.headers.client import (
    OffsetResponse,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from aerobee.protocol.headers.fields import Header

_FOUND_OR_NOT = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)


async def _holder(session: Session, queue: MessageQueue) -> str:
    """The address of the master, and of a slave while no route mentions a master: a slave has the
    offsets of its group too, and keeps what is committed meanwhile."""
    routes, name = session.routes, queue.broker_name
    if routes.address(name) is None:
        await routes.route(queue.topic, refresh=True)
    return routes.readable_address(name, MASTER_ID) or session.master(name)


async def _offset(session: Session, queue: MessageQueue, code: RequestCode, header: Header) -> int:
    address = await _holder(session, queue)
    answer = await session.call(address, code, header.to_ext())
    return _read_offset(address, answer)


def _read_offset(address: str, answer: Command) -> int:
    with reading(address):
        return OffsetResponse.from_ext(answer.ext).offset


async def min_offset(session: Session, queue: MessageQueue) -> int:
    """The oldest offset that can still be read."""
    header = QueueHeader(queue.topic, queue.queue_id)
    return await _offset(session, queue, RequestCode.GET_MIN_OFFSET, header)


async def max_offset(session: Session, queue: MessageQueue) -> int:
    """The offset the next message will get."""
    header = QueueHeader(queue.topic, queue.queue_id)
    return await _offset(session, queue, RequestCode.GET_MAX_OFFSET, header)


async def offset_at(session: Session, queue: MessageQueue, timestamp_ms: int) -> int:
    """The offset whose store time is nearest to `timestamp_ms`, as the broker defines nearest."""
    header = SearchOffsetHeader(queue.topic, queue.queue_id, timestamp_ms)
    return await _offset(session, queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)


async def committed_offset(session: Session, group: str, queue: MessageQueue) -> int | None:
    """The group's stored offset, or None when the broker has none (code 22).

    A broker may answer 0 for a group it never saw, when the queue still has its first message
    (protocol/WIRE.md 3.3): such a group starts at the beginning, whatever its consume-from policy.
    """
    header = QueryConsumerOffsetHeader(group, queue.topic, queue.queue_id)
    address = await _holder(session, queue)
    answer = await session.call(
        address, RequestCode.QUERY_CONSUMER_OFFSET, header.to_ext(), accept=_FOUND_OR_NOT
    )
    found = answer.code == ResponseCode.SUCCESS
    return _read_offset(address, answer) if found else None


async def commit_offset(session: Session, group: str, queue: MessageQueue, offset: int) -> None:
    """Store the group's offset at the broker; returns when the broker says it has it.

    Java's consumers send this oneway. An offset lost with its connection would then count as stored
    here, and be missing at the next start.

    The first commit of a group for a topic goes alone. At that moment a Java broker 4.9 makes the
    table of the topic's queues. Each of its threads that finds no table makes its own, the last
    table stays, and the offsets in the others are lost although they were answered
    (ConsumerOffsetManager.commitOffset).
    """
    address = await _holder(session, queue)
    ext = UpdateConsumerOffsetHeader(group, queue.topic, queue.queue_id, offset).to_ext()
    async with session.commits.turn(commits_key(group, queue)):
        await session.call(address, RequestCode.UPDATE_CONSUMER_OFFSET, ext)


def commits_key(group: str, queue: MessageQueue) -> tuple[str, str, str]:
    """Names the table of offsets that a broker keeps."""
    return queue.broker_name, group, queue.topic


class OffsetsRole(Role):
    """A role whose callers may ask for the offsets of any queue."""

    async def min_offset(self, queue: MessageQueue) -> int:
        """The oldest offset that can still be read."""
        self._session.check_running()
        return await min_offset(self._session, queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset the next message will get."""
        self._session.check_running()
        return await max_offset(self._session, queue)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset whose store time is nearest to `timestamp_ms`."""
        self._session.check_running()
        return await offset_at(self._session, queue, timestamp_ms)
