"""The compiled form of plain sends, between a connection and the log (`native/`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from aerobee.broker.messages.properties import NOT_PLAIN
from aerobee.broker.registration.addresses import Identity
from aerobee.broker.stats import MESSAGE_NORMAL, BrokerStats
from aerobee.broker.tables.topics import TopicTable, queues_of
from aerobee.config.model import Settings
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.headers.send import LONG_KEYS, SendReply
from aerobee.protocol.names import NO_SEND_TOPICS, RETRY_PREFIX, WAITING_TOPICS
from aerobee.remoting.connection import Connection
from aerobee.remoting.turns import Turns
from aerobee.store.message_store import MessageStore

try:
    from aerobee.native import plain_sends as compiled
except ImportError:
    compiled = None


def native_sends(
    settings: Settings,
    identity: Identity,
    store: MessageStore,
    topics: TopicTable,
    stats: BrokerStats,
    turns: Turns,
    reply: SendReply,
    appended: Callable[[], None],
) -> Callable[[Connection, memoryview], int] | None:
    """What a connection offers its reads to; None where sends are not plain, or nothing is built."""
    plain = not settings.sync_flush and not settings.append_property_crc
    if compiled is None or not plain or os.environ.get("AEROBEE_NATIVE") == "off":
        return None
    return PlainSendPath(settings, identity, store, topics, stats, turns, reply, appended).take


class PlainSendPath:
    """Loop thread only."""

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        store: MessageStore,
        topics: TopicTable,
        stats: BrokerStats,
        turns: Turns,
        reply: SendReply,
        appended: Callable[[], None],
    ) -> None:
        self._topics = topics
        self._stats = stats
        self._turns = turns
        self._appended = appended
        self._log = store.commit_log
        self._queue_of = store.commit_log._queue_of
        self._changes = topics.changes
        self._sends = compiled.PlainSends(
            store.commit_log,
            self._route,
            lambda name, queue_id: self._queue_of.get((name, queue_id)),
            lambda topic, size, queue_id: stats.stored(topic, 1, size, queue_id),
            cluster=settings.cluster_name.encode(),
            store_host=identity.store_host,
            json_parts=reply.json_parts(),
            long_keys=[key.encode() for key in LONG_KEYS],
            not_plain=[name.encode() for name in NOT_PLAIN],
            max_message_bytes=settings.max_message_bytes,
            safe_properties=store.commit_log._safe_properties,
        )

    def take(self, connection: Connection, read: memoryview) -> int:
        """Serve the plain sends at the head of a read; their bytes."""
        if self._changes != self._topics.changes:
            self._changes = self._topics.changes
            self._sends.forget_routes()
        began = self._turns.clock()
        taken, answers, count = self._sends.take(read, connection.packed_peer)
        if taken:
            self._turns.write(connection, answers)
            self._appended()
            spent_s = (self._turns.clock() - began) / count
            self._stats.requests_served(RequestCode.SEND_MESSAGE_V2, spent_s, count)
        return taken

    def _route(self, name: bytes) -> Any:
        topic = self._topics.get(name.decode())
        if topic is None or topic.order or topic.sys_flag:
            return None
        if topic.name in NO_SEND_TOPICS or topic.name in WAITING_TOPICS:
            return None
        if topic.name.startswith(RETRY_PREFIX):
            return None
        counted = self._stats.topic(topic.name, MESSAGE_NORMAL)
        return compiled.Route(topic.name, [None] * queues_of(topic), counted, 0)
