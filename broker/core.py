"""One broker without its sockets: tables and request handlers around an open store.

Built whole in the constructor, so that nothing here is ever half there. Only this module and
`daemon.py` know all the parts; each part is given just what it uses.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from aerobee.broker.delay.delay import ScheduleMessageService
from aerobee.broker.delay.progress import DelayProgress
from aerobee.broker.housekeeping import Housekeeping
from aerobee.broker.loop_calls import LoopCalls
from aerobee.broker.messages.acks import Acks
from aerobee.broker.messages.dispatch import Dispatcher
from aerobee.broker.messages.failed_messages import FailedMessages
from aerobee.broker.messages.held_pulls import HeldPulls
from aerobee.broker.messages.offset_moved import offset_moved_message
from aerobee.broker.messages.pool_gate import while_buffers_are_free
from aerobee.broker.messages.pull import PullOptions, PullProcessor
from aerobee.broker.messages.query import QueryProcessor
from aerobee.broker.messages.retry import RetryProcessor
from aerobee.broker.messages.send import SendOptions, SendProcessor
from aerobee.broker.registration.addresses import Advertised
from aerobee.broker.requests.cleaning import CleaningRequests
from aerobee.broker.requests.clients import ClientRequests
from aerobee.broker.requests.delay import DelayRequests
from aerobee.broker.requests.locks import LockRequests
from aerobee.broker.requests.offsets import OffsetRequests
from aerobee.broker.requests.queues import QueueRequests
from aerobee.broker.requests.runtime import RuntimeRequests
from aerobee.broker.requests.stats import StatsRequests
from aerobee.broker.requests.topics import TopicRequests
from aerobee.broker.requests.traffic import SAMPLE_S, TrafficHistory, TrafficRequests
from aerobee.broker.requests.worker_answers import WorkerAnswers
from aerobee.broker.retention_duty import FIRST_AFTER, RetentionDuty
from aerobee.broker.router import Handler, Router, TurnWrites
from aerobee.broker.staging.staging import Staging
from aerobee.broker.stats import BrokerStats
from aerobee.broker.tables.clients import ClientTable
from aerobee.broker.tables.groups import GroupTable
from aerobee.broker.tables.light_queues import LightGroupTable, LightTopicTable, load_offsets
from aerobee.broker.tables.order_locks import OrderLocks
from aerobee.broker.tables.saving import saver
from aerobee.broker.tables.state_file import JsonStateFile
from aerobee.broker.tables.topics import PERM_READ, PERM_WRITE, TopicOptions, TopicTable
from aerobee.config.model import Settings
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.headers.client import PullMessageHeader, SendReply
from aerobee.remoting.connection import Connection
from aerobee.store.errors import StoreError
from aerobee.store.message_store import MessageStore
from aerobee.store.reading.reader import ReadLimits

log = logging.getLogger("aerobee.broker")

# Held pulls and waiting acks are looked at this often; a hold lasts at most this much too long.
_SWEEP_S = 0.2
_CLIENT_SWEEP_S = 10.0


@dataclass(frozen=True, slots=True)
class Identity:
    """What this broker tells of itself: `store_host` is the record form of its address."""

    advertised: Advertised
    port: int

    @property
    def endpoint(self) -> str:
        return self.advertised.endpoint(self.port)

    @property
    def store_host(self) -> bytes:
        return self.advertised.packed(self.port)


def wall_clock_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class BrokerCore:
    """Everything between a decoded command and the store. Loop thread only."""

    def __init__(
        self,
        settings: Settings,
        store: MessageStore,
        identity: Identity,
        stats: BrokerStats,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.settings = settings
        self.store = store
        self.identity = identity
        self.stats = stats
        self._loop = loop
        self._on_loop = LoopCalls(loop)
        stats.light = settings.lmq_enabled
        self._build_tables()
        self._build_data_path()
        self._build_handlers()

    def _build_tables(self) -> None:
        settings = self.settings
        light = settings.lmq_enabled
        self.topics = (LightTopicTable if light else TopicTable)(
            TopicOptions(
                settings.broker_name,
                settings.cluster_name,
                settings.default_topic_queues,
                settings.auto_create_topic,
                settings.cluster_topic,
                settings.broker_topic,
                settings.trace_topic_name if settings.trace_topic else "",
                settings.max_topics,
                settings.auto_create_per_minute,
            ),
            self._state_file("topics.json"),
            wall_clock_ms,
        )
        self.groups = (LightGroupTable if light else GroupTable)(
            self._state_file("subscriptionGroup.json"),
            auto_create=settings.auto_create_group,
            limit=settings.max_groups,
            clock_ms=wall_clock_ms,
        )
        self.offsets = load_offsets(self._state_file, self.store.max_offset, light=light)
        self.clients = ClientTable(self._loop.time, settings.client_expiry_ms / 1000)
        self.failed_messages = FailedMessages(self.topics, self.stats)
        self.locks = OrderLocks(settings.lock_lease_ms / 1000, self._loop.time)

    def _state_file(self, name: str) -> JsonStateFile:
        return JsonStateFile(os.path.join(self.settings.store_path, "config", name))

    def _build_data_path(self) -> None:
        settings, store, loop = self.settings, self.store, self._loop
        reply = SendReply(settings.region_id, settings.trace_on)
        self.held = HeldPulls(loop.time, settings.held_pulls)
        self.dispatcher = Dispatcher(loop, store, self.held.arrived)
        self.appended = self._after_appends()
        self.acks = Acks(
            loop,
            store,
            reply.encode,
            self._after_durable,
            settings.sync_flush_timeout_ms / 1000,
            self.stats,
            store.stats.put_times,
        )
        self._build_delays()
        store.listen(
            durable=self.acks.on_durable,
            committed=self.acks.on_durable,
            broken=self.acks.on_broken,
            closing=self.delays.save_last,
        )
        self.staging = self._make_staging()
        endpoint = self.identity.endpoint
        self.send = SendProcessor(
            SendOptions(
                settings.cluster_name,
                self.identity.store_host,
                settings.sync_flush,
                settings.start_accept_send_timestamp_ms,
                settings.max_message_bytes,
                wall_clock_ms,
                lambda: bool(settings.broker_permission & PERM_WRITE),
                endpoint,
            ),
            store,
            self.delays.put,
            self.topics,
            self.groups,
            self.acks,
            reply,
            self.stats,
            self.failed_messages,
            self.appended,
        )
        self._build_pull()

    def _build_pull(self) -> None:
        settings = self.settings
        self.pull = PullProcessor(
            PullOptions(
                self.identity.endpoint,
                bool(settings.broker_permission & PERM_READ),
                settings.long_polling,
                settings.short_polling_ms / 1000,
                settings.slave_read,
                ReadLimits.bulk(settings) if settings.transfer_bytes_bulk else None,
            ),
            self.store,
            self.topics,
            self.groups,
            self.clients,
            self.offsets,
            self.held,
            self.stats,
            self._offset_moved,
        )

    def _after_appends(self) -> Callable[[], None]:
        """What is to be called when messages were appended.

        Where they become visible by a mark that a thread of the store moves, that thread is woken;
        it calls back, and then they are dispatched. Otherwise they are dispatched at once, and the
        flush thread is woken only if it does not keep to its interval.
        """
        settings = self.settings
        schedule, request_flush = self.dispatcher.schedule, self.store.request_flush
        if settings.sync_flush or settings.transient_pool_effective:
            return request_flush
        if settings.flush_timed:
            return schedule

        def schedule_and_flush() -> None:
            schedule()
            request_flush()

        return schedule_and_flush

    def _build_delays(self) -> None:
        settings, store = self.settings, self.store
        progress = self._delay_progress = DelayProgress(
            self._state_file("delayOffset.json"), lambda: store.durable
        )
        self.delays = ScheduleMessageService(
            self._loop,
            store,
            progress,
            self.stats,
            self.appended,
            wall_clock_ms,
            count_deliveries=settings.schedule_message_stats,
        )

    def _make_staging(self) -> Staging:
        return Staging(
            self.settings,
            self._loop,
            self.store,
            self.topics,
            self.stats,
            self._state_file("stages.json"),
            self.identity.store_host,
            self.appended,
            wall_clock_ms,
            self.delays,
        )

    def _after_durable(self) -> None:
        """The durable mark has moved: what it made visible, and who waits for a decision."""
        self.dispatcher.run()
        self.staging.waits.look()

    def _build_handlers(self) -> None:
        settings, store = self.settings, self.store
        retry = RetryProcessor(
            store,
            self.delays.put,
            self.topics,
            self.groups,
            self.failed_messages,
            self.identity.store_host,
            self.appended,
        )
        query = QueryProcessor(
            store, settings.query_max_messages, settings.unique_query_max_messages
        )
        handlers: dict[int, Handler] = {
            **self._gated(
                {
                    RequestCode.SEND_MESSAGE: self.send.handle,
                    RequestCode.SEND_MESSAGE_V2: self.send.handle,
                    RequestCode.SEND_BATCH_MESSAGE: self.send.handle,
                    **retry.handlers(),
                }
            ),
            **self.staging.handlers(),
            **query.handlers(),
            **ClientRequests(
                settings, self.clients, self.topics, self.groups, self.stats
            ).handlers(),
            **OffsetRequests(self.offsets, store).handlers(),
            **QueueRequests(store).handlers(),
            **LockRequests(self.locks).handlers(),
            **self._admin_handlers(),
        }
        pulls: dict[int, Handler] = {
            RequestCode.PULL_MESSAGE: self.pull.handle,
            RequestCode.LITE_PULL_MESSAGE: self.pull.handle,
        }
        writes = TurnWrites(self._loop)
        # Pulls are not served on the VIP port (protocol/WIRE.md 1.9).
        self.main_router = Router({**handlers, **pulls}, self.stats, self.connection_closed, writes)
        self.vip_router = Router(handlers, self.stats, self.connection_closed, writes)

    def _gated(self, handlers: dict[int, Handler]) -> dict[int, Handler]:
        """Handlers that append, as the settings want them."""
        settings, store = self.settings, self.store
        if not (settings.transient_pool_effective and settings.transient_pool_fail_fast):
            return handlers
        return {
            code: while_buffers_are_free(handle, store, self.stats)
            for code, handle in handlers.items()
        }

    def _admin_handlers(self) -> dict[int, Handler]:
        """Codes that none of these lists are answered with REQUEST_CODE_NOT_SUPPORTED, among them
        UPDATE_BROKER_CONFIG: remote change of settings is off (docs/reliability.md 8).
        """
        settings, store, stats = self.settings, self.store, self.stats
        topics, groups, offsets = self.topics, self.groups, self.offsets
        self.traffic = TrafficHistory(stats, store.stats_service, settings.cluster_name)
        statistics = StatsRequests(
            settings.broker_name,
            self.identity.endpoint,
            topics,
            groups,
            offsets,
            self.clients,
            stats,
            store,
        )
        later = WorkerAnswers(self._loop, stats)
        return {
            **TopicRequests(
                settings, topics, groups, offsets, stats, store.cleaning, self._on_loop, later
            ).handlers(),
            **statistics.handlers(),
            **RuntimeRequests(settings, topics, store, stats, self.delays.figures).handlers(),
            **DelayRequests(self.delays.figures).handlers(),
            **TrafficRequests(self.traffic).handlers(),
            **CleaningRequests(
                store.retention, store.cleaning, store, topics, self._on_loop, later
            ).handlers(),
        }

    def start_duties(self, housekeeping: Housekeeping) -> None:
        """Begin what has to be done again and again."""
        settings = self.settings
        self.staging.start_duties(housekeeping)
        housekeeping.every(_SWEEP_S, "held pulls", self.held.sweep)
        housekeeping.every(_SWEEP_S, "waiting acks", self.acks.expire)
        housekeeping.every(_CLIENT_SWEEP_S, "silent clients", self.clients.expire)
        housekeeping.every(settings.lock_lease_ms / 1000, "order locks", self.locks.sweep)
        housekeeping.every(
            settings.flush_consumer_offset_interval_ms / 1000,
            "consumer offsets",
            saver(self._loop, "consumer offsets", self.offsets),
        )
        housekeeping.every(
            settings.flush_delay_offset_interval_ms / 1000,
            "delay progress",
            saver(self._loop, "delay progress", self._delay_progress),
        )
        housekeeping.every(1.0, "rates", self.store.stats_service.sample)
        housekeeping.every(SAMPLE_S, "traffic", self.traffic.sample)
        housekeeping.every(1.0, "mending queues", self.store.repair_queues)
        clean_s = settings.clean_interval_ms / 1000
        duty = RetentionDuty(
            self.store.retention, self._on_loop, self.offsets, self._delay_progress
        )
        housekeeping.every(
            clean_s, "retention", duty.run, blocking=True, first_s=FIRST_AFTER * clean_s
        )
        self.delays.start()

    def connection_closed(self, connection: Connection) -> None:
        self.clients.connection_closed(connection)

    def close(self) -> None:
        """Answer who waits, write what is only in memory. The servers are closed already."""
        self.delays.close()
        self.held.release_all()
        self.staging.close()
        self.dispatcher.run()
        self.offsets.flush()

    def _offset_moved(self, header: PullMessageHeader, new_offset: int) -> None:
        message = offset_moved_message(
            header, new_offset, self.settings.broker_name, self.identity.store_host
        )
        try:
            self.store.put(message)
        except StoreError as error:
            log.warning("offset moved event not stored why=%s", error)
            return
        self.appended()
