"""How far groups are, and where others should begin (protocol/WIRE.md 3.6).

QUERY_CONSUME_TIME_SPAN says it in times. QUERY_CORRECTION_OFFSET gives the offsets from which on a
topic is still wanted by its groups; the reference forgets the offsets of the groups that are to be
left out while it looks, here they are left out and stay. CLONE_GROUP_OFFSET has a group begin where
another one is; without a topic it is done for all of that group's but its retry topic, where the
reference does nothing; and a topic that the source subscribes to and has not consumed anything of
is given by where it would start.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from contextlib import suppress

from aerobee.broker.routing.router import Handler
from aerobee.broker.tables.offsets import is_start_group
from aerobee.broker.tables.tables import Tables
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.queues import (
    UNKNOWN_TIME,
    TimeSpan,
    encode_correction_offsets,
    encode_time_spans,
)
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_response, encode_success
from aerobee.protocol.headers.admin import CloneOffsetHeader, CorrectionOffsetHeader, TimeSpanHeader
from aerobee.protocol.names import check_group_name, retry_topic
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Steps
from aerobee.store.message_store import MessageStore

log = logging.getLogger("aerobee.broker.offsets")

#: The corrected offset of a queue in which a group is behind all others: nothing to correct.
NOTHING_TO_CORRECT = 2**63 - 1
# In one step: queues whose times are looked up, 60 us each; offsets that are read or copied.
_STEP_TIMES = 8
_STEP_OFFSETS = 128
_STEP_COPIES = 32


class ProgressRequests:
    """Serves administrators. Loop thread only."""

    def __init__(self, broker_name: str, tables: Tables, store: MessageStore) -> None:
        self._broker_name = broker_name
        self._topics = tables.topics
        self._offsets = tables.offsets
        self._clients = tables.clients
        self._lag = tables.lag
        self._store = store

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_spans,
            RequestCode.QUERY_CORRECTION_OFFSET: self.correction_offsets,
            RequestCode.CLONE_GROUP_OFFSET: self.clone,
        }

    def time_spans(self, _connection: Connection, command: Command) -> Steps:
        """Store times of each write queue of a topic, and where a group is in it."""
        header = TimeSpanHeader.from_ext(command.ext)
        topic = self._topics.get(header.topic)
        if topic is None:
            raise BadRequest(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
        spans: list[bytes] = []
        for queue_id in range(topic.write_queues):
            if queue_id % _STEP_TIMES == _STEP_TIMES - 1:
                yield None
            spans.append(self._time_span(header.group, topic.name, queue_id).encode(_time_text))
        return encode_success(command, encode_time_spans(spans))

    def _time_span(self, group: str, topic: str, queue_id: int) -> TimeSpan:
        store = self._store
        end = store.max_offset(topic, queue_id)
        first_ms = store.search.earliest_store_time(topic, queue_id)
        committed = self._offsets.query(group, topic, queue_id)
        consumed_ms = first_ms
        if committed > 0:
            consumed_ms = store.search.store_time(topic, queue_id, committed - 1)
        delay_ms = 0
        begin = self._lag.begin(group, topic, queue_id)
        if begin < end:
            next_ms = store.search.store_time(topic, queue_id, begin)
            if next_ms != UNKNOWN_TIME:
                delay_ms = max(time.time_ns() // 1_000_000 - next_ms, 0)
        return TimeSpan(
            MessageQueue(topic, self._broker_name, queue_id),
            first_ms,
            store.search.store_time(topic, queue_id, end - 1),
            consumed_ms,
            delay_ms,
        )

    def correction_offsets(self, _connection: Connection, command: Command) -> Steps:
        """By queue the least offset of all groups but those left out. Where the group compared is
        behind it, there is nothing to correct."""
        header = CorrectionOffsetHeader.from_ext(command.ext)
        topic = header.topic
        left_out = {name.strip() for name in header.filter_groups.split(",")}
        least: dict[int, int] = {}
        begins: dict[int, int] = {}
        read = 0
        for group in self._offsets.groups_of(topic):
            read += 1
            if read % _STEP_OFFSETS == 0:
                yield None
            if group in left_out or is_start_group(group):
                continue
            for queue_id, offset in list(self._offsets.of(group, topic).items()):
                read += 1
                if read % _STEP_OFFSETS == 0:
                    yield None
                if queue_id not in begins:
                    begins[queue_id] = self._store.min_offset(topic, queue_id)
                if begins[queue_id] <= offset < least.get(queue_id, NOTHING_TO_CORRECT):
                    least[queue_id] = offset
        yield None
        for queue_id, offset in list(self._offsets.of(header.compare_group, topic).items()):
            if offset < least.get(queue_id, offset):
                least[queue_id] = NOTHING_TO_CORRECT
        return encode_success(command, encode_correction_offsets(least.items()))

    def clone(self, connection: Connection, command: Command) -> Steps:
        """Give a group the offsets of another one."""
        header = CloneOffsetHeader.from_ext(command.ext)
        source, group = header.src_group, check_group_name(header.dest_group)
        topic = header.topic.strip()
        topics = [topic] if topic else self._topics_to_clone(source)
        count = 0
        for name in topics:
            if not self._is_cloned(header, name):
                continue
            for queue_id, offset in self._positions(source, name):
                why = self._offsets.try_commit(group, name, queue_id, offset)
                if why:
                    raise BadRequest.system_error(
                        f"{count} offsets of {source} were given to {group}; that of queue "
                        f"{queue_id} of {name}, {offset}, is refused: {why}"
                    )
                count += 1
                if count % _STEP_COPIES == 0:
                    yield None
            yield None
        named = topic or "*"
        log.info("offsets cloned source=%s group=%s topic=%s count=%d", source, group, named, count)
        remark = None
        if not count:
            remark = f"{source} has no offset that {group} could be given"
        elif self._clients.consumer_group(group) is not None:
            remark = f"{group} is online: its members commit over what it was given"
        return encode_response(command, ResponseCode.SUCCESS, remark)

    def _topics_to_clone(self, source: str) -> list[str]:
        """All that the source has offsets in or subscribes to, but its own retry topic: no other
        group reads it."""
        topics = self._lag.topics_of(source)
        with suppress(ValueError):
            topics.remove(retry_topic(source))
        return topics

    def _positions(self, source: str, topic: str) -> Iterable[tuple[int, int]]:
        """(queue id, offset) of what the source has in a topic; where it has none at all and
        subscribes to it, those that it would start with."""
        offsets = self._offsets.of(source, topic)
        live = self._clients.consumer_group(source)
        if offsets or live is None or topic not in live.subscriptions:
            return list(offsets.items())
        return ((one.queue_id, one.begin) for one in self._lag.queues(source, topic))

    def _is_cloned(self, header: CloneOffsetHeader, topic: str) -> bool:
        """Whether the topic is there, and the source, if it is online, subscribes to it."""
        if self._topics.get(topic) is None:
            return False
        live = self._clients.consumer_group(header.src_group)
        return header.offline or live is None or topic in live.subscriptions


def _time_text(time_ms: int) -> str:
    """`2026-11-20#12:47:39:501` in this machine's zone, as the reference writes it."""
    seconds, ms = divmod(time_ms, 1000)
    return f"{time.strftime('%Y-%m-%d#%H:%M:%S', time.localtime(seconds))}:{ms:03}"
