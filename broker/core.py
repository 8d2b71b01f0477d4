"""A broker without its sockets: the tables and request handlers around an open store.

The constructor builds all of it, so that no part is ever missing. `daemon.py` gives it ports, a
name server and a life; only these two know all the parts, and each part gets only the parts that it
uses.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from aerobee.access.administration import AUDITED_OF_BROKERS, OF_BROKERS
from aerobee.access.control import AccessControl
from aerobee.broker.appending.answers import Answers
from aerobee.broker.appending.appending import Appending
from aerobee.broker.appending.held_pulls import HeldPulls
from aerobee.broker.appending.reput_service import ReputService
from aerobee.broker.appending.store_events import StoreEvents
from aerobee.broker.background.leading import Leading
from aerobee.broker.background.live_settings import LiveSettings
from aerobee.broker.background.loop_workers import BodyReader, LoopCalls, WorkerAnswers
from aerobee.broker.background.scheduler import Savable, SaveFailure, Saver, Scheduler, save_all
from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.cluster.registration.broker_address import Identity
from aerobee.broker.delay.delay_service import ScheduleMessageService
from aerobee.broker.delay.delayed_waiting import DelayedWaiting, TimedWaiting
from aerobee.broker.delay.delivery_progress import DelayProgress, TimerProgress
from aerobee.broker.delay.timer import TimerService
from aerobee.broker.messages.compiled_requests import CompiledRequests
from aerobee.broker.messages.pull import PullProcessor
from aerobee.broker.messages.query import QueryProcessor
from aerobee.broker.messages.recall import RecallProcessor
from aerobee.broker.messages.retry import FailedMessages, RetryProcessor
from aerobee.broker.messages.send import SendProcessor, refused_without_buffer
from aerobee.broker.requests.administration.account_requests import AccessRequests
from aerobee.broker.requests.administration.broker_runtime import RuntimeRequests
from aerobee.broker.requests.administration.broker_settings import SettingsRequests
from aerobee.broker.requests.administration.consumption import StatsRequests
from aerobee.broker.requests.administration.group_offsets import ProgressRequests
from aerobee.broker.requests.administration.queue_entries import QueueRequests
from aerobee.broker.requests.administration.topic_removal import TopicRemoval
from aerobee.broker.requests.administration.topics_and_groups import TopicRequests
from aerobee.broker.requests.administration.traffic_statistics import (
    SAMPLE_S,
    TrafficHistory,
    TrafficRequests,
)
from aerobee.broker.requests.administration.waiting_messages import WaitingRequests
from aerobee.broker.requests.clients.client_calls import ClientCalls
from aerobee.broker.requests.clients.heartbeats import ClientRequests
from aerobee.broker.requests.clients.offset_requests import OffsetRequests
from aerobee.broker.requests.clients.offset_resets import ResetRequests
from aerobee.broker.requests.clients.order_locks import LockRequests, OrderLocks
from aerobee.broker.requests.clients.replies import ReplyProcessor
from aerobee.broker.requests.clients.running_consumers import ConsumerRequests
from aerobee.broker.routing.accounts import build_access
from aerobee.broker.routing.patience import patience_s
from aerobee.broker.routing.role import Role, promised_slaves
from aerobee.broker.routing.router import Handler, Router, taken_elsewhere
from aerobee.broker.second_step.deleted_topics import DeletedTopics
from aerobee.broker.second_step.second_step import SecondStep
from aerobee.broker.second_step.waiting_sources import Forgetting, Waits
from aerobee.broker.staging.staging import Staging
from aerobee.broker.tables.clients import ClientTable
from aerobee.broker.tables.expressions import Expressions
from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.broker.tables.files.table_directory import TableDirectory
from aerobee.broker.tables.filters import FilterTable
from aerobee.broker.tables.groups import GroupTable
from aerobee.broker.tables.lag import ConsumerLag, needed_by_queue
from aerobee.broker.tables.light_queues import LightGroupTable, LightTopicTable, load_offsets
from aerobee.broker.tables.offsets import Admission
from aerobee.broker.tables.retries_waiting import RetriesWaiting
from aerobee.broker.tables.tables import Tables
from aerobee.broker.tables.topics import TopicTable
from aerobee.broker.transactions.transactions import Transactions
from aerobee.config.model import Settings
from aerobee.native.form import CompiledForm
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.headers.send import SendReply
from aerobee.protocol.names import is_light
from aerobee.remoting.turns import Spread, Steps, Turns
from aerobee.store.errors import StoreBroken
from aerobee.store.message_store import MessageStore
from aerobee.summed_log import SummedLog

if TYPE_CHECKING:
    import ssl

    from aerobee.access.audit.auditing import Auditing
    from aerobee.access.audit.recorder import Recorder
    from aerobee.broker.cluster.replication.master_link import Finder
    from aerobee.broker.cluster.replication.replication import Replication
    from aerobee.broker.cluster.role_change import RoleChange
    from aerobee.broker.cluster.table_copies.copied_table import CopiedTable
    from aerobee.broker.cluster.table_copies.master_calls import MasterCalls
    from aerobee.broker.requests.administration.group_lag import GroupLagRequests
    from aerobee.broker.requests.administration.message_state import MessageStates
    from aerobee.broker.tables.stuck_queues import StuckQueues
    from aerobee.protocol.frames.command import Command
    from aerobee.remoting.connections.connection import Connection
    from aerobee.remoting.turns import Steps

C = TypeVar("C")

#: How often a look for queues begins in which groups stand, and how long a queue stands before it
#: is said to be stuck.
STUCK_LOOK_S = 15.0
STUCK_S = 60.0

# The interval of looks at held pulls and waiting answers; a hold lasts at most this much too long.
_SWEEP_S = 0.2
_CLIENT_SWEEP_S = 10.0
# The time in which a store that is gone is noticed: messages acknowledged meanwhile are lost.
_PLACE_S = 0.25
# RocketMQ's interval.
_FILTERS_SAVED_S = 10.0
# Deletions are saved before they are answered; the forgetting of deletions can wait.
_DELETED_SAVED_S = 10.0
_FORGET_S = 30.0
# The first run of retention comes this many intervals after the start, when its rush is over.
_RETENTION_FIRST_AFTER = 6


def wall_clock_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class BrokerCore:
    """Everything between a decoded command and the store. Loop thread only."""

    def __init__(
        self,
        *,
        settings: Settings,
        store: MessageStore,
        events: StoreEvents,
        identity: Identity,
        stats: BrokerStats,
        loop: asyncio.AbstractEventLoop,
        live_settings: LiveSettings | None = None,
        turns: Turns | None = None,
        form: CompiledForm | None = None,
        further: Mapping[int, Handler] | None = None,
    ) -> None:
        """`events` is the listener with which `store` was opened. Without `live_settings` no
        request changes a setting. `turns` are the loop's. `form` serves plain requests from the
        reads of connections. `further` handlers serve what the daemon knows beside this."""
        self.settings = settings
        self._further = further or {}
        self.role = Role(settings)
        # The permission with which the topics are registered.
        self._permission = settings.broker_permission
        self._live_settings = live_settings
        self.store = store
        self.identity = identity
        self.stats = stats
        if self.role.is_slave:
            store.refuse_puts()
        self._loop = loop
        self.turns = turns or Turns()
        self._on_loop = LoopCalls(loop)
        self._bodies = BodyReader(loop)
        self._sums = SummedLog(loop.time, call_later=loop.call_later)
        self.access = build_access(settings, loop, store)
        self._build_tables()
        self._build_consumers()
        self._build_appending()
        self._build_delays()
        self._build_messages()
        self.compiled = None if form is None else self._compiled_requests(form)
        self.staging = self._make_staging()
        self._waits: tuple[Waits, ...] = (
            DelayedWaiting(self.delays, store),
            TimedWaiting(self.timer, store),
            self.transactions.waiting(),
            self.staging.waiting(),
        )
        self._forgetting = Forgetting(
            self.turns, self.deleted_topics, self._waits, store.marks, leads=not self.role.is_slave
        )
        led = self.staging, self.transactions, self._forgetting, self.delays, self.timer
        self._leading = Leading(self.role, led)
        self._build_routers()
        events.follow(self)

    @property
    def _control(self) -> AccessControl | None:
        return None if self.access is None else self.access.control

    def _build_tables(self) -> None:
        settings = self.settings
        #: The directory of the tables.
        self.directory = TableDirectory(self.table_directory, self.store.check_there)
        light = settings.lmq_enabled
        # These are not the loop's own workers: a save must not wait for work of administrators.
        # There is a thread for each table, which has one save at a time.
        self._state_pool = ThreadPoolExecutor(7, thread_name_prefix="aerobee-state")
        saving = wall_clock_ms, self._loop, self._state_pool
        self._topics_file = self._state_file("topics.json")
        self.topics = (LightTopicTable if light else TopicTable)(
            settings, self._topics_file, *saving, role=self.role
        )
        self.groups = (LightGroupTable if light else GroupTable)(
            settings, self._state_file("subscriptionGroup.json"), *saving, role=self.role
        )
        admission = Admission(
            self.topics,
            self.groups,
            offsets=settings.max_offsets,
            start_offsets=settings.max_start_offsets,
        )
        self.offsets = load_offsets(self._state_file, self.store.max_offset, admission, light=light)
        interval_s = settings.flush_consumer_offset_interval_ms / 1000
        self._offsets_saver = self._saver("consumer offsets", self.offsets, interval_s)

    def _build_consumers(self) -> None:
        """The clients, what they wait for and how far they are."""
        settings = self.settings
        self.clients = ClientTable(settings, self._loop.time, self.stats.group_warnings)
        self._build_second_step()
        self.lag = ConsumerLag(
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            clients=self.clients,
            stats=self.stats,
            store=self.store,
            retries=self.retries,
        )
        self._stuck_after_s = STUCK_S
        self._build_filters()
        self.tables = Tables(
            self.topics,
            self.groups,
            self.offsets,
            self.clients,
            self.lag,
            self.expressions,
            self.filters,
        )
        self.locks = OrderLocks(settings.lock_lease_ms / 1000, self._loop.time)
        self._failed_messages = FailedMessages(self.topics, self.stats, self._sums)

    def _build_second_step(self) -> None:
        """Build the second step of storing, and the deletions that are remembered for it."""
        file = self._state_file("deletedTopics.json")
        log_end = None if self.role.is_slave else self.store.written
        self.deleted_topics = DeletedTopics(file, log_end)
        self._deleted_saver = self._saver("deleted topics", self.deleted_topics, _DELETED_SAVED_S)
        self.second_step = SecondStep(self.topics.get, self.deleted_topics, self._sums)
        self.retries = RetriesWaiting(
            self.store.delays, self.store.reader.record_at, self.deleted_topics.offset_of
        )

    def _build_filters(self) -> None:
        settings = self.settings
        self.expressions = Expressions(self._loop, settings)
        self.filters = FilterTable(
            settings, self._state_file("consumerFilter.json"), wall_clock_ms, self.store
        )
        self._filters_saver = self._saver("filters", self.filters, _FILTERS_SAVED_S)

    def _saver(self, what: str, table: Savable[C], interval_s: float) -> Saver[C]:
        return Saver(self._loop, what, table, interval_s, self._state_pool)

    def _state_file(self, name: str) -> JsonStateFile:
        path = os.path.join(self.table_directory, name)
        return JsonStateFile(path, sets_aside=True, check=self.directory.check)

    def _build_appending(self) -> None:
        """Build the parts that follow an append."""
        settings, store, loop = self.settings, self.store, self._loop
        self.answers = Answers(settings, loop, self.turns, store, self.stats)
        self.held = HeldPulls(settings, loop.time, self.turns, store)
        self.replication = self._make_replication()
        self._reput = ReputService(
            loop,
            store,
            self.held,
            self.turns,
            flush_timed=settings.flush_timed,
            slaves=self.replication,
        )
        self._appending = Appending(
            settings, self.identity, store, self.stats, self._reput, wall_clock_ms, self.role
        )

    def _make_replication(self) -> Replication | None:
        """Build what slaves and masters need; None where the port for slaves stays closed."""
        if not self.settings.replicates:
            return None
        # The import brings modules that most brokers do not need.
        from aerobee.broker.cluster.replication.replication import Replication
        from aerobee.broker.cluster.replication.trust import slaves_trusted

        trust = slaves_trusted(self.settings, self._control)
        return Replication(
            self.settings, self._loop, self.store, self.answers, trust=trust, role=self.role
        )

    @cached_property
    def role_change(self) -> RoleChange:
        """Changes the role of a broker that replicates."""
        # The import brings a module that most brokers do not need.
        from aerobee.broker.cluster.role_change import RoleChange

        assert self.replication is not None
        return RoleChange(
            self.role,
            self._leading,
            loop=self._loop,
            store=self.store,
            dispatch=self._reput.run,
            replication=self.replication,
            noted=self._note_role,
        )

    def _serve_replication(self, handlers: dict[int, Handler]) -> dict[int, Handler]:
        """Handlers with those of the requests of slaves, that refuse what a slave does not serve.

        A broker whose port for slaves is closed answers slaves as RocketMQ does, with
        REQUEST_CODE_NOT_SUPPORTED, and is never a slave.
        """
        if self.replication is None:
            return handlers
        # The imports bring modules that most brokers do not need.
        from aerobee.broker.cluster.comparison.log_ranges import LogRangeRequests
        from aerobee.broker.requests.administration.replica_tables import ReplicaTableRequests
        from aerobee.broker.routing.slave_refusals import refused_on_slaves

        ranges = LogRangeRequests(self.settings, self.role, self.store, self._loop)
        copies = ReplicaTableRequests(self.tables, self.copied_tables(), self.store)
        return refused_on_slaves(self.role, {**handlers, **ranges.handlers(), **copies.handlers()})

    @cached_property
    def audit(self) -> Auditing | None:
        """The events of what administrators change; None where `audit.target` is off."""
        if self.settings.audit_target == "off":
            return None
        # The import brings modules that are needed once somebody changes something.
        from aerobee.broker.requests.administration.auditing.broker_audit import broker_audit

        return broker_audit(
            self.settings,
            self.tables,
            self.access,
            check_store=self.store.check_there,
            loop=self._loop,
            clock_ms=wall_clock_ms,
        )

    def recorder(self) -> Recorder | None:
        """The writer of audit events; None before the first."""
        audit = self.audit if "audit" in vars(self) else None
        return None if audit is None else audit.recorder

    def audit_problem(self) -> str | None:
        """Why audit events cannot be written; None while they can."""
        recorder = self.recorder()
        return None if recorder is None else recorder.problem

    def _audited(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Handlers of which those that change something are audited."""
        if self.settings.audit_target == "off":
            return dict(handlers)
        return {
            code: partial(self._serve_audited, handle) if code in AUDITED_OF_BROKERS else handle
            for code, handle in handlers.items()
        }

    def _serve_audited(self, handle: Handler, connection: Connection, command: Command) -> Steps:
        assert self.audit is not None
        return self.audit.serve(handle, connection, command)

    def _note_refused(self, connection: Connection, command: Command, error: Exception) -> None:
        if self.audit is not None:
            self.audit.refused(connection, command, error)

    def _change_ended(
        self, command: Command, code: int, remark: str | None
    ) -> asyncio.Future[None] | None:
        return None if self.audit is None else self.audit.ended(command, code, remark)

    def _note_role(self, before: str, after: str) -> None:
        # The role changes seldom.
        from aerobee.protocol.bodies.audit import ROLE_CHANGE

        if self.audit is not None:
            self.audit.note(ROLE_CHANGE, self.settings.broker_name, before, after)

    def _audit_events(self, _connection: Connection, command: Command) -> Steps:
        # Administrators ask for it seldom.
        from aerobee.access.audit.audit_requests import audit_events

        return audit_events(self.audit, command)

    def _ha_status(self, _connection: Connection, command: Command) -> bytes:
        # Administrators ask for it seldom, and any broker.
        from aerobee.broker.cluster.replication.ha_status import ha_status

        promised = promised_slaves(self.settings, self.role)
        return ha_status(self.store, self.replication, promised, command)

    def _message_state(self, _connection: Connection, command: Command) -> Steps:
        return self._message_states.state(command)

    @cached_property
    def _message_states(self) -> MessageStates:
        # Administrators ask for it seldom.
        from aerobee.broker.requests.administration.message_state import MessageStates

        return MessageStates(self.tables, self.store, self.delays)

    @cached_property
    def stuck(self) -> StuckQueues:
        """Watches for queues in which groups do not come on."""
        # The first look is long after the start, which does without this module.
        from aerobee.broker.tables.stuck_queues import StuckQueues

        return StuckQueues(self.lag, self.clients, self._loop.time, self._stuck_after_s)

    def _group_lag(self, connection: Connection, command: Command) -> Steps:
        return self._group_lags.group_lag(connection, command)

    @cached_property
    def _group_lags(self) -> GroupLagRequests:
        # The import brings modules that a broker whom nobody asks does without.
        from aerobee.broker.requests.administration.group_lag import GroupLagRequests

        return GroupLagRequests(
            self.settings,
            self.tables,
            store=self.store,
            stuck=self.stuck,
            held=self.held,
            locks=self.locks,
        )

    def follow(self, finder: Finder, tls: ssl.SSLContext | None, calls: MasterCalls) -> None:
        """Begin to follow the master that `finder` finds, and to copy its tables by `calls`."""
        # The import brings modules that no master needs.
        from aerobee.broker.cluster.table_copies.config_copies import ConfigCopies
        from aerobee.broker.cluster.table_copies.offset_copies import OffsetCopies
        from aerobee.broker.cluster.table_copies.table_sync import Copies, TableSync

        replication, settings = self.replication, self.settings
        assert replication is not None
        removal = self.topic_removal
        copies = Copies(
            ConfigCopies(
                settings,
                self.topics,
                self.groups,
                remove=removal.remove_copied,
                remove_older=removal.remove_older,
            ),
            OffsetCopies(self.offsets, settings.max_offsets + settings.max_start_offsets),
            self.copied_tables(),
        )
        sync = TableSync(self._loop, calls, copies, self.store, lambda: replication.is_taking)
        replication.follow(self._reput, finder, tls, sync)

    def copied_tables(self) -> tuple[CopiedTable, ...]:
        """The tables that slaves take whole from their masters."""
        # The imports bring modules that only brokers with slaves need.
        from aerobee.broker.cluster.table_copies.copied_table import CopiedTable, in_one_step
        from aerobee.protocol.headers.replica_tables import DELAYS, DELETIONS, STAGES, TIMER

        deleted, delays, timer, staging = self.deleted_topics, self.delays, self.timer, self.staging
        file = staging.file
        return (
            CopiedTable(
                DELETIONS, in_one_step(deleted.copy), deleted.read, deleted.replace, at_once=True
            ),
            CopiedTable(DELAYS, in_one_step(delays.copy), DelayProgress.read, delays.replace),
            CopiedTable(TIMER, in_one_step(timer.copy), TimerProgress.read, timer.replace),
            CopiedTable(STAGES, file.copying, file.read, staging.replace, lambda: file.version),
        )

    def _build_delays(self) -> None:
        """Build the parts that put messages when they have waited: levels, times, transactions."""
        store, loop = self.store, self._loop
        interval_s = self.settings.flush_delay_offset_interval_ms / 1000
        self._delay_progress = DelayProgress(
            self._state_file("delayOffset.json"), lambda: store.durable, store.sync_soon
        )
        self._progress_saver = self._saver("delay progress", self._delay_progress, interval_s)
        self.delays = ScheduleMessageService(
            self._appending,
            loop=loop,
            progress=self._delay_progress,
            second_step=self.second_step,
            retries=self.retries,
        )
        timer_progress = TimerProgress(
            self._state_file("timerProgress.json"), lambda: store.durable, store.sync_soon
        )
        self._timer_saver = self._saver("timer progress", timer_progress, interval_s)
        self.timer = TimerService(
            self._appending,
            loop=loop,
            progress=timer_progress,
            second_step=self.second_step,
            delays=self.delays,
        )
        self.transactions = Transactions(
            self._appending,
            self.tables,
            loop=loop,
            turns=self.turns,
            answers=self.answers.decisions,
            second_step=self.second_step,
            access=self._control,
        )

    def _make_staging(self) -> Staging:
        return Staging(
            self._appending,
            self.topics,
            self._state_file("stages.json"),
            loop=self._loop,
            turns=self.turns,
            bodies=self._bodies,
            sums=self._sums,
            intents=self.answers.intents,
            second_step=self.second_step,
            delays=self.delays,
            compiled=self.compiled,
            control=self._control,
            pool=self._state_pool,
        )

    def save_last(self) -> None:
        """Write down the progress of delays and timer: all that the store has is durable."""
        self.delays.save_last()
        self.timer.save_last()

    def _build_messages(self) -> None:
        self._send_answers = SendReply(self.settings.region_id, self.settings.trace_on)
        self._send = SendProcessor(
            self._appending,
            self.tables,
            delays=self.delays,
            transactions=self.transactions,
            timer=self.timer,
            answers=self.answers.sends,
            reply=self._send_answers,
            failed=self._failed_messages,
        )
        self._pull = PullProcessor(self._appending, self.tables, self.held, self.turns)

    def _compiled_requests(self, form: CompiledForm) -> CompiledRequests:
        return CompiledRequests(
            self._appending,
            self.tables,
            form=form,
            reply=self._send_answers,
            pull=self._pull,
            answers=self.answers.sends,
            access=self._control,
        )

    def marks_moved(self) -> None:
        """Send the answers that waited for a mark of the store; then answer the pulls that wait for
        newly visible messages, and the questions for the end of a staged batch."""
        if self.replication is not None:
            self.replication.marks_moved()
        self.answers.go_on()
        self._reput.run()
        self.staging.answers.send_ready()

    def store_broke(self, error: StoreBroken) -> None:
        """Answer the requests that wait for a sync that will not come."""
        self.answers.fail(error.remark)
        self.marks_moved()

    def _build_routers(self) -> None:
        settings, store = self.settings, self.store
        self._client_requests = ClientRequests(
            settings,
            self.tables,
            self.held,
            turns=self.turns,
            bodies=self._bodies,
            access=self._control,
        )
        query = QueryProcessor(
            store, settings.query_max_messages, settings.unique_query_max_messages
        )
        handlers: dict[int, Handler] = {
            **self._appending_handlers(),
            **self.staging.handlers(),
            **self.transactions.handlers(),
            **query.handlers(),
            **self._client_requests.handlers(),
            **OffsetRequests(self.offsets, self.lag, store).handlers(),
            **LockRequests(self.locks, self._bodies, self.topics, self.clients).handlers(),
            **self._asking_handlers(),
            **self._admin_handlers(),
            **WaitingRequests(self._waits, self.deleted_topics).handlers(),
            **self._further,
        }
        # A change that has waited for its event is still refused on a slave.
        handlers = self._audited(self._serve_replication(handlers))
        pulls: dict[int, Handler] = {
            RequestCode.PULL_MESSAGE: self._pull.handle,
            RequestCode.LITE_PULL_MESSAGE: self._pull.handle,
        }
        router = partial(
            Router,
            stats=self.stats,
            on_closed=self._client_requests.connection_closed,
            turns=self.turns,
            max_request_bytes=settings.max_request_bytes,
            patience_s=patience_s(settings),
            access=self._control,
            read_body=self._bodies.read,
            note_refused=self._note_refused,
        )
        self.admin_router = router({**handlers, **pulls})
        if settings.admin_port:
            handlers |= dict.fromkeys(handlers.keys() & OF_BROKERS, taken_elsewhere)
        self.main_router = router({**handlers, **pulls})
        # Pulls are not served on the VIP port (protocol/WIRE.md 1.9).
        self.vip_router = router(handlers)

    def _asking_handlers(self) -> dict[int, Handler]:
        """The handlers of requests that are answered when clients have answered."""
        settings, store = self.settings, self.store
        self.client_calls = ClientCalls(self.turns, self.stats, settings)
        consumers = ConsumerRequests(
            settings.broker_name,
            self.clients,
            store=store,
            calls=self.client_calls,
            bodies=self._bodies,
            most_answer_bytes=settings.max_request_bytes,
        )
        replies = ReplyProcessor(
            self._appending,
            clients=self.clients,
            calls=self.client_calls,
            send=self._send,
            reply=self._send_answers,
            sums=self._sums,
        )
        return {**consumers.handlers(), **replies.handlers()}

    def _appending_handlers(self) -> dict[int, Handler]:
        settings, store = self.settings, self.store
        retry = RetryProcessor(self._appending, self.tables, self.delays, self._failed_messages)
        recall = RecallProcessor(
            self._appending, self.topics, self.timer, self.answers.sends, self._send_answers
        )
        handlers: dict[int, Handler] = {
            RequestCode.SEND_MESSAGE: self._send.handle,
            RequestCode.SEND_MESSAGE_V2: self._send.handle,
            RequestCode.SEND_BATCH_MESSAGE: self._send.handle,
            **retry.handlers(),
            **recall.handlers(),
        }
        if not (settings.transient_pool_effective and settings.transient_pool_fail_fast):
            return handlers
        return {
            code: refused_without_buffer(handle, store, self.stats)
            for code, handle in handlers.items()
        }

    def _admin_handlers(self) -> dict[int, Handler]:
        """The handlers of administration. Codes that no module lists are answered with
        REQUEST_CODE_NOT_SUPPORTED."""
        settings, store, stats = self.settings, self.store, self.stats
        tables, name, endpoint = self.tables, settings.broker_name, self.identity.endpoint
        self.topic_removal = TopicRemoval(
            tables, stats=stats, store=store, on_loop=self._on_loop, retries=self.retries
        )
        self._traffic = TrafficHistory(stats, store.stats_service, settings.cluster_name)
        later = WorkerAnswers(self._loop, stats, self._change_ended)
        return {
            **TopicRequests(
                settings,
                tables,
                stats=stats,
                store=store,
                on_loop=self._on_loop,
                later=later,
                bodies=self._bodies,
                deleted=self.deleted_topics,
                removal=self.topic_removal,
            ).handlers(),
            **StatsRequests(name, endpoint, tables, stats, store).handlers(),
            **RuntimeRequests(settings, self.topics, store, stats, self.delays).handlers(),
            RequestCode.GET_BROKER_HA_STATUS: self._ha_status,
            RequestCode.MESSAGE_STATE: self._message_state,
            RequestCode.AUDIT_EVENTS: self._audit_events,
            RequestCode.GROUP_LAG: self._group_lag,
            **SettingsRequests(settings, self._live_settings).handlers(),
            **AccessRequests(settings, endpoint, self.access, wall_clock_ms).handlers(),
            **ResetRequests(name, tables, store, stats, self._bodies).handlers(),
            **ProgressRequests(name, tables, store).handlers(),
            **QueueRequests(self.clients, store).handlers(),
            **self.delays.handlers(),
            **TrafficRequests(self._traffic).handlers(),
        }

    def start_tasks(self, scheduler: Scheduler) -> None:
        """Start the repeated tasks, and on a master the parts that work there only."""
        settings, store, every = self.settings, self.store, scheduler.every
        self.staging.start_tasks(scheduler)
        self.transactions.start_tasks(scheduler)
        every(_SWEEP_S, "held pulls", self.held.sweep)
        every(_SWEEP_S, "waiting answers", self.answers.go_on)
        every(_CLIENT_SWEEP_S, "silent clients", self._client_requests.expire)
        every(_SWEEP_S, "changed groups", self._client_requests.look)
        every(_CLIENT_SWEEP_S, "dead filters", self.filters.forget_dead)
        every(1.0, "order locks", Spread(self.turns, self.locks.sweep_some).go_on)
        every(Saver.LOOK_S, "consumer offsets", self._offsets_saver.look)
        every(Saver.LOOK_S, "delay progress", self._progress_saver.look)
        every(Saver.LOOK_S, "timer progress", self._timer_saver.look)
        every(Saver.LOOK_S, "filters", self._filters_saver.look)
        every(Saver.LOOK_S, "deleted topics", self._deleted_saver.look)
        saved_s = settings.flush_delay_offset_interval_ms / 1000
        every(max(_FORGET_S, 2 * saved_s), "deletions", self._forgetting.look)
        counting = Spread(self.turns, self.retries.step)
        every(1.0, "retries that wait", counting.go_on, first_s=0.0)
        every(STUCK_LOOK_S, "stuck queues", Spread(self.turns, lambda: self.stuck.step()).go_on)
        every(1.0, "rates", store.stats_service.sample)
        every(SAMPLE_S, "traffic", Spread(self.turns, self._traffic.step).go_on)
        every(1.0, "mending queues", store.repair_queues)
        every(_PLACE_S, "the store's place", store.look_whether_there, blocking=True, first_s=0.0)
        every(1.0, "tables not saved", self._retry_tables)
        clean_s = settings.clean_interval_ms / 1000
        needed = partial(
            needed_by_queue, self._on_loop, self.lag, self.offsets, self._delay_progress
        )
        every(
            clean_s,
            "retention",
            partial(store.retention.run, self._on_loop, needed),
            blocking=True,
            first_s=_RETENTION_FIRST_AFTER * clean_s,
        )
        if self.access is not None:
            every(self.access.LOOK_S, "accounts", self.access.look)
        if (replication := self.replication) is not None:
            every(replication.LOOK_S, "slaves", replication.port.look)
        self._leading.follow_role()

    @property
    def table_directory(self) -> str:
        """Where the tables are kept."""
        return os.path.join(self.settings.store_path, "config")

    def table_failures(self) -> list[SaveFailure | None]:
        """The reasons why tables could not be saved the last time, None for each that could."""
        failures = [saver.failure for saver in self._savers()]
        return [*failures, self.topics.failure, self.groups.failure]

    def _savers(self) -> Sequence[Saver[Any]]:
        """The savers of tables that are saved some time after they have changed, in the order in
        which a stop closes them."""
        savers = self._progress_saver, self._timer_saver, self._filters_saver, self._deleted_saver
        return (*savers, self.staging.saver, self._offsets_saver)

    def _retry_tables(self) -> None:
        if self.directory.look():
            self._save_all_again()
        self.topics.retry()
        self.groups.retry()

    def _save_all_again(self) -> None:
        """Save all tables again: their files are gone."""
        for saver in self._savers():
            saver.save_again()
        self.topics.save_again()
        self.groups.save_again()

    def settings_changed(self) -> None:
        """Take over changed settings of which copies are kept."""
        self.store.settings_changed(self.settings)
        if self._permission != self.settings.broker_permission:
            self._permission = self.settings.broker_permission
            self.topics.registered_anew()

    def complete_tables(self) -> None:
        """Add entries that only the store knows to tables that were read from their backups. If the
        table of topics is whole, drop offsets of topics that neither it nor the store has."""
        queues = list(self.store.queues())
        self.topics.complete(queues)
        self.groups.complete(group for _, group in self.offsets.pairs())
        if self._topics_file.loaded_from == self._topics_file.path:
            topics, stored = self.topics, {topic for topic, _ in queues}
            self.offsets.remove_topics_gone(
                lambda name: (
                    name in topics or name in stored or topics.is_system(name) or is_light(name)
                )
            )

    async def save_tables(self) -> None:
        """Wait until the requested changes of topics and groups are on the disk."""
        await self.topics.flush()
        await self.groups.flush()

    async def close(self) -> None:
        """Answer the held pulls, and write the tables that are only in memory. The servers are
        closed already. Raises the first error (OSError if a file cannot be written) when all was
        tried."""
        if self.access is not None:
            await self.access.close()
        self.delays.close()
        self.timer.close()
        self.held.release_all()
        self.staging.close()
        self.transactions.close()
        self._reput.run()
        if (recorder := self.recorder()) is not None:
            await recorder.close()
        if self.directory.make_anew():
            self._save_all_again()
            # Places are saved only when the messages that they name are durable.
            await self._loop.run_in_executor(None, self.store.wait_all_durable)
        try:
            await save_all(
                (
                    self.save_tables,
                    self.transactions.save_progress,
                    # The store itself writes the places that become durable from now on, at its
                    # end.
                    *(saver.close for saver in self._savers()),
                )
            )
        finally:
            self._state_pool.shutdown()
            self._sums.close()
            self._bodies.close()
