"""INVOKE_BROKER_TO_RESET_OFFSET: where a running group is to go on (protocol/WIRE.md 3.6, 3.8).

The broker looks up where each queue was at the time asked for, and tells the members
(RESET_CONSUMER_CLIENT_OFFSET, no answer). They drop what they hold, commit the new offsets
themselves and go on there; offsets that the broker has are not changed, for a member that has not
heard of it yet would commit over it. So it takes a member: without one the answer is
CONSUMER_NOT_ONLINE, on which administrators' tools, RocketMQ's and ours, commit the new offsets in
the group's place.

A caller may name one queue and the offset where it is to go on, as RocketMQ 5 has it; then the
other queues stay as they are.

Aerobee's tools may give the offsets themselves, in a body that RocketMQ's requests do not have: to
take a reset back (`aerobee offset undo`).

A group that has no offset in a queue, such as a group whose listener hangs on its first message,
gets an offset first: the offset at which it would start (`tables/lag.py`), so that nothing is
passed over if the members do not hear of the reset. RocketMQ refuses to reset such a group. Nothing
is committed for members that keep their offsets themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

from aerobee.broker.background.loop_workers import BodyReader
from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.requests.clients.running_consumers import LEAST_VERSION, check_version
from aerobee.broker.routing.router import Handler
from aerobee.broker.tables.clients import GroupMember
from aerobee.broker.tables.offsets import NO_OFFSET
from aerobee.broker.tables.tables import Tables
from aerobee.protocol.bodies.common import MessageQueue, parse_offset_table
from aerobee.protocol.bodies.offsets import reset_in_steps, reset_list_in_steps
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_response, make_request
from aerobee.protocol.headers.admin import ResetOffsetHeader, ResetPushHeader
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Steps
from aerobee.store.message_store import MessageStore

log = logging.getLogger("aerobee.broker.offsets")

#: The time that means the end of each queue.
END_OF_QUEUE = -1
#: How telling a member ended, as it is counted.
SENT, NOT_TAKEN = "sent", "not_taken"

_CPP = "CPP"
# In one step: queues that are looked up by time, some 30 us each, and members that are told.
_STEP_QUEUES = 8
_STEP_COMMITS = 32
_STEP_MEMBERS = 8


class ResetRequests:
    """Serves administrators. Loop thread only."""

    def __init__(
        self,
        broker_name: str,
        tables: Tables,
        store: MessageStore,
        stats: BrokerStats,
        bodies: BodyReader,
    ) -> None:
        self._broker_name = broker_name
        self._bodies = bodies
        self._topics = tables.topics
        self._offsets = tables.offsets
        self._clients = tables.clients
        self._lag = tables.lag
        self._store = store
        self._stats = stats

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset}

    def reset(self, _connection: Connection, command: Command) -> Steps:
        """Tell the members of a group where to go on; the answer has the offsets."""
        header = ResetOffsetHeader.from_ext(command.ext)
        if header.offset is not None and header.offset >= 0 and _queue_of(header) < 0:
            raise BadRequest.system_error(
                "offsets are reset by time here (timestamp, -1 for the end), or to one offset of "
                "one queue, which queueId has to name"
            )
        if command.body:
            offsets = yield from self._given(header, command.body)
        else:
            offsets = yield from self._targets(header)
        members = yield from self._members(header)
        yield from self._commit_missing(header.group, offsets)
        answer = yield from reset_in_steps(offsets)
        missed = yield from self._tell(command, header, offsets, members)
        log.info(
            "consumer group reset group=%s topic=%s timestamp=%d force=%s queues=%d members=%d",
            header.group,
            header.topic,
            header.timestamp,
            header.is_force,
            len(offsets),
            len(members) - missed,
        )
        remark = None
        if missed:
            remark = f"{missed} of {len(members)} members do not take what they are sent: ask again"
        return encode_response(command, ResponseCode.SUCCESS, remark, body=answer)

    # --- inside

    def _targets(self, header: ResetOffsetHeader) -> Generator[None, None, dict[MessageQueue, int]]:
        """Where each queue is to go on: at the time, or where it is if that is not forced ahead."""
        topic = self._topics.get(header.topic)
        if topic is None:
            raise BadRequest.system_error(f"there is no topic {header.topic} in this broker")
        self._check_group(header)
        targets: dict[MessageQueue, int] = {}
        queues = max(topic.read_queues, topic.write_queues)
        if header.offset is not None and header.offset >= 0:
            queue_id = _queue_of(header)
            if queue_id >= queues:
                raise BadRequest.system_error(
                    f"the topic {topic.name} has queues 0 to {queues - 1}, not {queue_id}"
                )
            end = max(self._store.max_offset(topic.name, queue_id), 0)
            queue = MessageQueue(topic.name, self._broker_name, queue_id)
            return {queue: min(header.offset, end)}
        for queue_id in range(queues):
            if queue_id % _STEP_QUEUES == _STEP_QUEUES - 1:
                yield None
            target = self._offset_at(topic.name, queue_id, header.timestamp)
            if not header.is_force:
                target = min(target, self._position(header.group, topic.name, queue_id))
            targets[MessageQueue(topic.name, self._broker_name, queue_id)] = target
        return targets

    def _given(
        self, header: ResetOffsetHeader, body: bytes
    ) -> Generator[asyncio.Future[Any] | None, None, dict[MessageQueue, int]]:
        """The offsets that the request names, each within its queue."""
        topic = self._topics.get(header.topic)
        if topic is None:
            raise BadRequest.system_error(f"there is no topic {header.topic} in this broker")
        self._check_group(header)
        given = yield from self._bodies.read(parse_offset_table, body)
        queues = max(topic.read_queues, topic.write_queues)
        for number, (queue, offset) in enumerate(given.items(), 1):
            if number % _STEP_COMMITS == 0:
                yield None
            if queue[:2] != (topic.name, self._broker_name) or not 0 <= queue.queue_id < queues:
                raise BadRequest.system_error(
                    f"{self._broker_name} has no queue {queue.queue_id} of {queue.topic} at "
                    f"{queue.broker_name} for a reset of {topic.name}"
                )
            end = max(self._store.max_offset(topic.name, queue.queue_id), 0)
            if not 0 <= offset <= end:
                raise BadRequest.system_error(
                    f"offset {offset} of queue {queue.queue_id} of {topic.name} is not within 0 "
                    f"and its end, {end}"
                )
        if not given:
            raise BadRequest.system_error("the body of the reset names no queue")
        return given

    def _check_group(self, header: ResetOffsetHeader) -> None:
        """Refuse a group that nobody knows, or that has nothing to do with the topic."""
        group, topic = header.group, header.topic
        if not self._lag.is_known(group):
            raise BadRequest.system_error(
                f"THe consumer group <{group}> not exist: it has no settings, no member online and "
                "no offset in this broker"
            )
        if not self._lag.concerns(group, topic):
            raise BadRequest.system_error(
                f"the consumer group {group} does not subscribe to {topic}, and has no offset there"
            )
        if self._lag.keeps_own_offsets(group) and not header.is_force:
            raise BadRequest.system_error(
                f"the members of {group} keep their offsets themselves (BROADCASTING): whether it "
                "would move ahead is not known here, so it is reset by force only"
            )

    def _position(self, group: str, topic: str, queue_id: int) -> int:
        committed = self._offsets.query(group, topic, queue_id)
        return self._lag.start(group, topic, queue_id) if committed == NO_OFFSET else committed

    def _commit_missing(
        self, group: str, queues: Iterable[MessageQueue]
    ) -> Generator[None, None, None]:
        """Give the group an offset where it has none: that of where it would start."""
        if self._lag.keeps_own_offsets(group):
            return
        for number, (topic, _, queue_id) in enumerate(queues, 1):
            if self._offsets.query(group, topic, queue_id) == NO_OFFSET:
                start = self._lag.start(group, topic, queue_id)
                if why := self._offsets.try_commit(group, topic, queue_id, start):
                    raise BadRequest.system_error(
                        f"{group} has no offset in queue {queue_id} of {topic}, and cannot get "
                        f"one: {why}"
                    )
            if number % _STEP_COMMITS == 0:
                yield None

    def _offset_at(self, topic: str, queue_id: int, timestamp: int) -> int:
        if timestamp == END_OF_QUEUE:
            return max(self._store.max_offset(topic, queue_id), 0)
        return max(self._store.search.offset_by_time(topic, queue_id, timestamp), 0)

    def _members(self, header: ResetOffsetHeader) -> Generator[None, None, list[GroupMember]]:
        """Those to be told: none, if one of them would not understand it."""
        group = self._clients.consumer_group(header.group)
        if group is None:
            raise BadRequest(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"the consumer group {header.group} has no member online that could be told: "
                "commit the offsets in its place (mqadmin resetOffsetByTime and aerobee offset "
                "reset do)",
            )
        members = list(group.members.values())
        for number, member in enumerate(members, 1):
            check_version(member, LEAST_VERSION)
            if number % _STEP_MEMBERS == 0:
                yield None
        return members

    def _tell(
        self,
        command: Command,
        header: ResetOffsetHeader,
        offsets: Mapping[MessageQueue, int],
        members: Sequence[GroupMember],
    ) -> Generator[asyncio.Future[Any] | None, None, int]:
        """Tell the members; how many did not take it. Consumers in C++ read another form, which
        their tools ask for by their own language."""
        frames: dict[bool, bytes] = {}
        missed = 0
        for number, member in enumerate(members, 1):
            as_list = _CPP in (command.language, member.language)
            frame = frames.get(as_list)
            if frame is None:
                frame = frames[as_list] = yield from _frame(header, offsets, as_list=as_list)
            takes = not member.connection.full and not member.connection.closed
            if takes:
                member.connection.write(frame)
            else:
                missed += 1
            code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
            self._stats.client_called(code, SENT if takes else NOT_TAKEN, 0.0)
            if number % _STEP_MEMBERS == 0:
                yield None
        return missed


def _queue_of(header: ResetOffsetHeader) -> int:
    """The one queue that is reset, -1 without one."""
    return -1 if header.queue_id is None else header.queue_id


def _frame(
    header: ResetOffsetHeader, offsets: Mapping[MessageQueue, int], *, as_list: bool
) -> Generator[None, None, bytes]:
    """Encode the whole request to the members."""
    body = yield from (reset_list_in_steps if as_list else reset_in_steps)(offsets)
    ext = ResetPushHeader(header.topic, header.group, header.timestamp).to_ext()
    code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    return make_request(code, ext, body, oneway=True).encode()
