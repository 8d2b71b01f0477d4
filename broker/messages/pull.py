"""PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361): protocol/WIRE.md 3.2, store/FORMAT.md 5.7.

Checks the group, the topic, the queue and the subscription; asks the store; answers with messages,
with "ask again from there", or not yet: an empty pull that asks to wait is handed to
`appending/held_pulls.py` and comes back to `_replay` when a message arrives or its time is over.
The replay neither waits again nor commits the offset again. What it raises has the same answer as
at the first try (`refusal` in `router.py`), so that the other pulls of a batch get theirs. A pull
whose member has said something else since it came gets no messages: it is sent to pull again
(`_is_restated`).

A slave serves pulls as a master does, but for three things (`_code_of`): it commits no offsets, it
corrects none unless `offsetCheckInSlave` says so, and a consumer that is further than the slave's
log, or behind its first message, is sent elsewhere and pulls again.

A consumer with a SQL92 expression is served by the messages' properties, in steps; the answers
to a wrong expression differ from the reference on purpose (protocol/WIRE.md 3.2).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Generator, Mapping
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

from aerobee.broker.appending.appending import Appending
from aerobee.broker.appending.held_pulls import HeldPull, HeldPulls
from aerobee.broker.routing.router import refusal
from aerobee.broker.tables.clients import ConsumerGroup
from aerobee.broker.tables.groups import GroupConfig
from aerobee.broker.tables.statements import text_of
from aerobee.broker.tables.tables import Tables
from aerobee.protocol.bodies.clients import BROADCASTING
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.routes import PERM_READ
from aerobee.protocol.bodies.topics import TopicConfig
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.filters.property_filter import TAG_TYPE, MessageFilter
from aerobee.protocol.filters.subscription import Subscription, tag_codes, tag_codes_in_steps
from aerobee.protocol.frames.command import Command, encode_response
from aerobee.protocol.frames.fastjson import dumps
from aerobee.protocol.hashing import tag_code
from aerobee.protocol.headers.client import (
    PULL_CLASS_FILTER,
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullMessageHeader,
    PullMessageResponse,
)
from aerobee.protocol.message.properties import (
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    encode_properties,
)
from aerobee.protocol.message.record import StoreMessage
from aerobee.protocol.names import OFFSET_MOVED_TOPIC, RETRY_PREFIX
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.connections.serving import Answer
from aerobee.remoting.turns import Gate, Steps, StepsJob, Turns
from aerobee.store.errors import StoreError
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.reading.queue_reader import ReadLimits
from aerobee.store.segments.results import GetResult, GetStatus

log = logging.getLogger("aerobee.broker")

#: The most for a held pull; other pulls get more, in steps, where they may ask for more at all.
MAX_MESSAGES = 1_024
# A subscription of more characters is read in steps.
_LONG_EXPRESSION = 4096
# The most pulls that judge messages by properties for longer than a step at a time, each with a
# slice of a turn. A group has one of these places, and shares it with few other groups.
_JUDGING = 16

# The answer to a pull whose member has said something else since it came. Java's clients take it as
# they take PULL_NOT_FOUND; others may wait a little after that.
_RESTATED = ResponseCode.PULL_RETRY_IMMEDIATELY

# The answer of a slave in the place of PULL_OFFSET_MOVED, with the broker to turn to.
_ELSEWHERE = ResponseCode.PULL_RETRY_IMMEDIATELY

_ANSWER_CODES: dict[GetStatus, int] = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
# On a slave that corrects no offsets they stay as they were asked for.
_CORRECTIONS = frozenset(
    {
        GetStatus.NO_MESSAGE_IN_QUEUE,
        GetStatus.OFFSET_FOUND_NULL,
        GetStatus.OFFSET_OVERFLOW_BADLY,
        GetStatus.OFFSET_TOO_SMALL,
    }
)
# A consumer whose place the slave does not have pulls again at once when it is told so. Where there
# is no master that it could turn to, it would do nothing else: it waits here for so long first.
_ELSEWHERE_S = 1.0
# For these messages were looked at, whether or not they were wanted.
_FINDS = (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE)


class PlainPull(NamedTuple):
    """A pull by tags: messages of a queue with tags of these codes (None: all).

    `live` and `subscription`: the group and its subscription to the topic, where that decides.
    `broker_id` is named by the answer, `slow_broker_id` to a consumer that is far behind.
    """

    queue: ConsumeQueue
    codes: frozenset[int] | None
    group: str
    live: ConsumerGroup | None
    subscription: Subscription | None
    broker_id: int
    slow_broker_id: int


class PullProcessor:
    """Serves consumers; `appended` is called after a put. Loop thread only."""

    def __init__(self, appending: Appending, tables: Tables, held: HeldPulls, turns: Turns) -> None:
        settings = appending.settings
        self._broker_name = settings.broker_name
        self._identity = appending.identity
        self._settings = settings
        # How long a pull is held whatever it asks for; None leaves it to the client.
        self._hold_s = None if settings.long_polling else settings.short_polling_ms / 1000
        self._slave_read = settings.slave_read
        self._role = appending.role
        self._corrects_on_slave = settings.offset_check_in_slave
        # For pulls with maxMsgBytes; None treats them as any other.
        self._bulk = ReadLimits.bulk(settings) if settings.transfer_bytes_bulk else None
        # How long the last read took; it is answered before there is another.
        self._spent_s = 0.0
        self._store = appending.store
        self._topics = tables.topics
        self._groups = tables.groups
        self._clients = tables.clients
        self._offsets = tables.offsets
        self._held = held
        self._stats = appending.stats
        self._reput = appending.reput
        self._long_expressions = Gate(1)
        self._turns = turns
        self._expressions = tables.expressions
        self._filters = tables.filters
        self._serves_expressions = settings.property_filter
        self._judges_retries = settings.filter_retry
        self._judging = [Gate(1) for _ in range(_JUDGING)]

    def handle(self, connection: Connection, command: Command) -> Answer:
        """Serve one pull; None when it is held, steps when it names many tags, asks for many
        messages or chooses them by an expression.

        Raises `BadRequest` for the checks of 3.2.
        """
        header = PullMessageHeader.from_ext(command.ext)
        if connection.overloaded:
            # Answers to pulls are what fills the output; clients try again by themselves.
            raise BadRequest(
                ResponseCode.SYSTEM_BUSY,
                "[OVERLOAD]system busy, unsent answers fill the broker's memory, try again later",
            )
        group = self._check(header)
        if header.sys_flag & PULL_SUBSCRIPTION:
            if header.expression_type and header.expression_type != TAG_TYPE:
                return self._with_expression(connection, command, header, header.expression_type)
            expression = header.subscription or ""
            if len(expression) > _LONG_EXPRESSION:
                return self._with_many_tags(connection, command, header, expression)
            codes = tag_codes(header.subscription)
        else:
            subscription = self._live_subscription(header, group, connection)
            if subscription.type != TAG_TYPE:
                return self._with_group_expression(connection, command, header, subscription)
            codes = _codes_of(header, subscription)
        return self._serve(connection, command, header, group, codes)

    # --- the short way (`compiled_requests.py`)

    def plain_pull(self, ext: Mapping[str, str]) -> PlainPull | None:
        """The route of pulls with these fields, as long as topics and groups stay as they are; None
        for a pull that is refused, or does not go by tags."""
        try:
            header = PullMessageHeader.from_ext(ext)
            group = self._check(header)
            queue = self._store.log.known_queue(header.topic, header.queue_id)
            if queue is None:
                return None
            broker_ids = (0, 0)
            if self._slave_read:
                broker_ids = (group.broker_id, group.which_broker_when_consume_slowly)
            if header.sys_flag & PULL_COMMIT_OFFSET and self._role.is_slave:
                # Clients ask no slave for that; it would be a rule of the compiled form's own.
                return None
            if header.sys_flag & PULL_SUBSCRIPTION:
                expression = header.subscription or ""
                by_tags = (header.expression_type or TAG_TYPE) == TAG_TYPE
                if not by_tags or len(expression) > _LONG_EXPRESSION:
                    return None
                codes = tag_codes(header.subscription)
                return PlainPull(queue, codes, header.consumer_group, None, None, *broker_ids)
            subscription = self._live_subscription(header, group)
        except BadRequest:
            return None
        live = self._clients.consumer_group(header.consumer_group)
        if subscription.type != TAG_TYPE or live is None:
            return None
        if live.statements.is_mixed(header.topic):
            # Each member has its own (`_live_subscription`).
            return None
        codes = _codes_of(header, subscription)
        return PlainPull(queue, codes, header.consumer_group, live, subscription, *broker_ids)

    def plain_served(
        self,
        group: str,
        topic: str,
        queue_id: int,
        next_offset: int,
        messages: int,
        stored_bytes: int,
        spent_s: float,
    ) -> None:
        """Count a pull that was given messages the short way; reading them took `spent_s`."""
        self._store.stats.get_found += 1
        self._store.stats.get_messages += messages
        counters = self._stats.consumer(group, topic)
        self._stats.delivered(counters, messages, stored_bytes, queue_id, spent_s)
        counters.pulled[queue_id] = next_offset
        if spent_s > self._stats.get_time_max_s:
            self._stats.get_time_max_s = spent_s

    def _with_many_tags(
        self, connection: Connection, command: Command, header: PullMessageHeader, expression: str
    ) -> Steps:
        """Serve one such pull at a time: while read, its tags take ten times their bytes."""
        yield from self._long_expressions.enter()
        try:
            codes = yield from tag_codes_in_steps(expression)
        finally:
            self._long_expressions.leave()
        # Meanwhile the topic or the group may have gone.
        answer = self._serve(connection, command, header, self._check(header), codes)
        return (yield from answer) if isinstance(answer, Generator) else answer

    def _serve(
        self,
        connection: Connection,
        command: Command,
        header: PullMessageHeader,
        group: GroupConfig,
        codes: frozenset[int] | None,
    ) -> Answer:
        if header.max_msg_nums > MAX_MESSAGES and self._bulk and header.max_msg_bytes is not None:
            return self._in_steps(connection, command, header, codes, self._bulk)
        result = self._get(header, codes)
        return self._answer_or_hold(connection, command, header, group, codes, None, result)

    def _in_steps(
        self,
        connection: Connection,
        command: Command,
        header: PullMessageHeader,
        codes: frozenset[int] | None,
        limits: ReadLimits,
    ) -> Steps:
        """Read many messages, each some hundred a step."""
        started = perf_counter()
        most = min(header.max_msg_nums, limits.transfer_count_memory)
        result = yield from self._store.reader.get_steps(
            header.topic,
            header.queue_id,
            header.queue_offset,
            most,
            codes,
            header.max_msg_bytes,
            limits,
        )
        self._note_time(started)
        with result:
            # Meanwhile the topic or the group may have gone.
            group = self._check(header)
            return self._answer_or_hold(connection, command, header, group, codes, None, result)

    def _answer_or_hold(
        self,
        connection: Connection,
        command: Command,
        header: PullMessageHeader,
        group: GroupConfig,
        codes: frozenset[int] | None,
        wanted: MessageFilter | None,
        result: GetResult,
    ) -> bytes | None:
        code = self._code_of(result, header)
        if header.sys_flag & PULL_COMMIT_OFFSET and not self._role.is_slave:
            self._offsets.try_commit(
                header.consumer_group, header.topic, header.queue_id, header.commit_offset
            )
        self._check_not_gone(result.status)
        may_wait = header.sys_flag & PULL_SUSPEND and not command.is_oneway
        is_elsewhere = self._is_elsewhere(result, code)
        if may_wait and (code == ResponseCode.PULL_NOT_FOUND or is_elsewhere):
            hold_s = self._hold_s
            if hold_s is None:
                hold_s = header.suspend_timeout_millis / 1000
            if is_elsewhere:
                hold_s = min(hold_s, _ELSEWHERE_S)
            replay = self._replay if wanted is None else self._replay_judged
            # A heartbeat after the pull waits until the pull is held, or answered: requests of a
            # connection are served in their order.
            stated = self._stated_now(connection, header)
            if self._held.hold(connection, command, header, codes, hold_s, replay, wanted, stated):
                return None
        return self._answer(command, header, group, result, code)

    # --- by an expression

    def _with_expression(
        self, connection: Connection, command: Command, header: PullMessageHeader, kind: str
    ) -> Steps:
        """A pull that brings its expression. A wrong one is refused: else the consumer would get
        what it does not want."""
        self._check_serves_expressions(kind)
        wanted: MessageFilter
        wanted = yield from self._expressions.compiled((kind, header.subscription or ""))
        # Meanwhile the topic or the group may have gone.
        self._check(header)
        wanted = self._retry_filter(header) or wanted
        return (yield from self._judged(connection, command, header, wanted))

    def _with_group_expression(
        self,
        connection: Connection,
        command: Command,
        header: PullMessageHeader,
        subscription: Subscription,
    ) -> Steps:
        wanted: MessageFilter
        wanted = yield from self._stated_filter(header, subscription)
        self._check_filter_latest(header, subscription)
        return (yield from self._judged(connection, command, header, wanted))

    def _stated_filter(
        self, header: PullMessageHeader, subscription: Subscription
    ) -> Generator[asyncio.Future[Any] | None, None, MessageFilter]:
        """The filter of a member for the topic, by its heartbeat. The table has one filter of the
        group, the last stated; the filter of a member which differs is found by its text."""
        found = self._filters.get(header.topic, header.consumer_group)
        if found is None or found.typed_expression == subscription.typed_expression:
            return self._group_filter(header, subscription)
        self._check_serves_expressions(subscription.type)
        own: MessageFilter
        own = yield from self._expressions.compiled(subscription.typed_expression)
        return self._retry_filter(header) or own

    def _group_filter(self, header: PullMessageHeader, subscription: Subscription) -> MessageFilter:
        """The filter of the group for the topic, by its members' heartbeats."""
        self._check_serves_expressions(subscription.type)
        group, topic = header.consumer_group, header.topic
        found = self._filters.get(topic, group)
        if found is None or found.compiled is None:
            why = self._expressions.why_refused(subscription.typed_expression)
            raise BadRequest(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                f"the consumer's filter data not exist: group {group}, topic {topic}; "
                + (why or "its expression is not known here, send a heartbeat"),
            )
        return self._retry_filter(header) or found.compiled

    def _check_filter_latest(self, header: PullMessageHeader, subscription: Subscription) -> None:
        """Refuse a pull with a higher version than was heard: it comes before its heartbeat."""
        group, topic = header.consumer_group, header.topic
        found = self._filters.get(topic, group)
        if found is None or found.typed_expression != subscription.typed_expression:
            return
        if found.client_version < header.sub_version:
            raise BadRequest(
                ResponseCode.FILTER_DATA_NOT_LATEST,
                f"the consumer's filter data not latest: group {group}, topic {topic}, version "
                f"{found.client_version} before {header.sub_version}; send a heartbeat",
            )

    def _retry_filter(self, header: PullMessageHeader) -> MessageFilter | None:
        if self._judges_retries and header.topic.startswith(RETRY_PREFIX):
            return self._filters.retry_filter(header.topic.removeprefix(RETRY_PREFIX))
        return None

    def _check_serves_expressions(self, kind: str) -> None:
        if not self._serves_expressions:
            raise BadRequest.system_error(
                f"The broker does not support consumer to filter message by {kind[:64]}; "
                "enablePropertyFilter is off"
            )

    def _judged(
        self,
        connection: Connection,
        command: Command,
        header: PullMessageHeader,
        wanted: MessageFilter,
    ) -> Steps:
        result = yield from self._get_judged(header, wanted)
        with result:
            # Meanwhile the topic or the group may have gone.
            group = self._check(header)
            return self._answer_or_hold(connection, command, header, group, None, wanted, result)

    def _get_judged(
        self, header: PullMessageHeader, wanted: MessageFilter
    ) -> Generator[asyncio.Future[Any] | None, None, GetResult]:
        started = perf_counter()
        reading = self._store.reader.get_judged(
            header.topic,
            header.queue_id,
            header.queue_offset,
            min(header.max_msg_nums, MAX_MESSAGES),
            wanted,
            header.max_msg_bytes,
            self._bulk if header.max_msg_bytes is not None else None,
        )
        try:
            next(reading)
        except StopIteration as end:
            result: GetResult = end.value
        else:
            gate = self._judging[hash(header.consumer_group) % _JUDGING]
            yield from gate.enter()
            try:
                result = yield from reading
            finally:
                gate.leave()
        self._note_time(started)
        return result

    # --- pulls whose member has said something else since they came

    def _stated_now(self, connection: Connection, header: PullMessageHeader) -> Subscription | None:
        """The statement of the member that pulls about the topic, if any. For a pull that brings
        its own expression this only tells that something has changed."""
        live = self._clients.consumer_group(header.consumer_group)
        if live is None:
            return None
        if header.sys_flag & PULL_SUBSCRIPTION:
            return live.stated_by(connection, header.topic)
        return live.wanted_by(connection, header.topic)

    def _is_restated(self, pull: HeldPull) -> bool:
        """Whether the member has another statement by now than it had before the pull.

        Messages that the pull has found since then must not be the answer: the client chooses by
        the expression that it pulled with, so it drops those that only the new expression wants,
        and goes on after them; and the old expression would have the broker pass over wanted ones.
        Versions do not matter, so that no pull of a client which has none, or always the same, is
        sent back twice.
        """
        if pull.stated is None:
            return False
        now = self._stated_now(pull.connection, pull.header)
        if now is None:
            live = self._clients.consumer_group(pull.header.consumer_group)
            return live is not None and id(pull.connection) in live.members
        return now is not pull.stated and text_of(now) != text_of(pull.stated)

    def _answer_restated(self, pull: HeldPull, group: GroupConfig) -> bytes:
        """Tell the client to pull from the same offset again: it does so at once, with what it
        wants now. After an error clients wait, Java's for 3 s."""
        header, store = pull.header, self._store
        topic, queue_id = header.topic, header.queue_id
        result = GetResult(
            GetStatus.NO_MATCHED_MESSAGE,
            header.queue_offset,
            store.min_offset(topic, queue_id),
            store.max_offset(topic, queue_id),
        )
        return self._answer(pull.request, header, group, result, _RESTATED)

    # --- pulls that were held

    def _replay(self, pull: HeldPull) -> None:
        """Answer a pull that was held, with whatever there is now. Does not raise."""
        header = pull.header
        try:
            group = self._check(header)
            if self._is_restated(pull):
                code = int(_RESTATED)
                answer = self._answer_restated(pull, group)
            else:
                result = self._get(header, self._codes_now(pull))
                self._check_not_gone(result.status)
                code = self._code_of(result, header)
                answer = self._answer(pull.request, header, group, result, code)
        except Exception as error:  # noqa: BLE001 - the top of a request; `refusal` logs bugs
            self._refuse_held(pull, error)
        else:
            self._answer_held(pull, code, answer)

    def _codes_now(self, pull: HeldPull) -> frozenset[int] | None:
        """The tags that a held pull wants. What its member says is still the same, but the hashes
        that came with it may not be."""
        subscription = self._judged_by(pull)
        return pull.codes if subscription is None else _codes_of(pull.header, subscription)

    def _filter_now(
        self, pull: HeldPull
    ) -> Generator[asyncio.Future[Any] | None, None, MessageFilter]:
        """Return the filter that holds now for a pull by an expression (see `_codes_now`)."""
        assert pull.wanted is not None
        subscription = self._judged_by(pull)
        if subscription is None:
            return pull.wanted
        return (yield from self._stated_filter(pull.header, subscription))

    def _judged_by(self, pull: HeldPull) -> Subscription | None:
        """The statement of a held pull's member; None without it, or if the pull has its own."""
        if pull.header.sys_flag & PULL_SUBSCRIPTION:
            return None
        return self._stated_now(pull.connection, pull.header)

    def _replay_judged(self, pull: HeldPull) -> None:
        """Replay a pull (see `_replay`) in steps, the first of them at once. Does not raise."""
        code, steps = pull.request.code, self._judged_again(pull)
        job = StepsJob(self._turns, steps, partial(self._judged_held, pull), code, pull.connection)
        if job():
            self._turns.add(job)

    def _judged_again(self, pull: HeldPull) -> Steps:
        header = pull.header
        group = self._check(header)
        if not self._is_restated(pull):
            wanted = yield from self._filter_now(pull)
            with (yield from self._get_judged(header, wanted)) as result:
                # Meanwhile the topic or the group may have gone, or the filter changed.
                group = self._check(header)
                if not self._is_restated(pull):
                    self._check_not_gone(result.status)
                    code = self._code_of(result, header)
                    answer = self._answer(pull.request, header, group, result, code)
                    self._answer_held(pull, code, answer)
                    return None
        self._answer_held(pull, _RESTATED, self._answer_restated(pull, group))
        return None

    def _judged_held(self, pull: HeldPull, _answer: bytes | None, error: Exception | None) -> None:
        if error is not None:
            self._refuse_held(pull, error)

    def _refuse_held(self, pull: HeldPull, error: Exception) -> None:
        code, remark = refusal(error, pull.connection, pull.request, self._stats)
        self._answer_held(pull, code, encode_response(pull.request, code, remark))

    def _answer_held(self, pull: HeldPull, code: int, answer: bytes) -> None:
        counters = self._stats.request(pull.request.code, code, long_polling=True)
        counters.add(self._held.held_s(pull))
        if not pull.connection.closed:
            pull.connection.write(answer)

    def _get(self, header: PullMessageHeader, codes: frozenset[int] | None) -> GetResult:
        started = perf_counter()
        result = self._store.reader.get(
            header.topic,
            header.queue_id,
            header.queue_offset,
            min(header.max_msg_nums, MAX_MESSAGES),
            codes,
            header.max_msg_bytes,
            self._bulk if header.max_msg_bytes is not None else None,
        )
        self._note_time(started)
        return result

    def _note_time(self, started: float) -> None:
        self._spent_s = spent_s = perf_counter() - started
        if spent_s > self._stats.get_time_max_s:
            self._stats.get_time_max_s = spent_s

    def _check_not_gone(self, status: GetStatus) -> None:
        """Refuse a pull that finds nothing, as sends are refused, where the store was taken away:
        to say that the queue is empty, or that an offset has moved, would lead the consumer past
        its messages. What is still found is served."""
        if status in _FINDS or (error := self._store.gone_error()) is None:
            return
        raise error

    def _check(self, header: PullMessageHeader) -> GroupConfig:
        if not self._settings.broker_permission & PERM_READ:
            raise BadRequest.no_permission(
                f"the broker[{self._identity.endpoint}] pulling message is forbidden"
            )
        group = self._groups.get(header.consumer_group)
        if group is None:
            reason = self._groups.limit_reached(header.consumer_group) or (
                "this broker is a slave, and its master makes new groups"
                if self._role.is_slave
                else "create it, or turn autoCreateSubscriptionGroup on"
            )
            raise BadRequest(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{header.consumer_group}] does not exist; {reason}",
            )
        if not group.consume_enable:
            raise BadRequest.no_permission(
                f"subscription group no permission, {header.consumer_group}"
            )
        self._check_queue(header, self._topics.get(header.topic))
        return group

    def _check_queue(self, header: PullMessageHeader, topic: TopicConfig | None) -> None:
        if topic is None:
            raise BadRequest(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{header.topic}] not exist, apply first please!",
            )
        if not topic.perm & PERM_READ:
            raise BadRequest.no_permission(f"the topic[{header.topic}] pulling is forbidden")
        if not 0 <= header.queue_id < topic.read_queues:
            raise BadRequest.system_error(
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] has "
                f"{topic.read_queues} read queues"
            )

    def _live_subscription(
        self, header: PullMessageHeader, group: GroupConfig, connection: Connection | None = None
    ) -> Subscription:
        """The subscription of the group to the topic; where its members differ, that of the member
        at this connection."""
        live = self._clients.consumer_group(header.consumer_group)
        if live is None:
            raise BadRequest(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist: {header.consumer_group} has no live "
                "consumer here; send a heartbeat first",
            )
        if not group.consume_broadcast_enable and live.message_model == BROADCASTING:
            raise BadRequest.no_permission(
                f"the consumer group[{header.consumer_group}] can not consume by broadcast way"
            )
        if connection is None:
            subscription = live.subscriptions.get(header.topic)
        else:
            subscription = live.wanted_by(connection, header.topic)
        if subscription is None:
            raise BadRequest(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: group {header.consumer_group}, "
                f"topic {header.topic}",
            )
        if subscription.version < header.sub_version:
            raise BadRequest(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        return subscription

    @property
    def _does_not_correct(self) -> bool:
        """Whether this broker leaves consumers at the offsets that they ask for."""
        return self._role.is_slave and not self._corrects_on_slave

    def _is_elsewhere(self, result: GetResult, code: int) -> bool:
        """Whether the answer sends the consumer to another broker, which has its place."""
        refers = result.status in _CORRECTIONS and code == _ELSEWHERE
        return refers and self._does_not_correct

    def _code_of(self, result: GetResult, header: PullMessageHeader) -> int:
        """The code of an answer; on a slave that corrects no offsets, the result names no other
        offset either."""
        code = _answer_code(result.status, header.queue_offset)
        if not self._does_not_correct:
            return code
        if result.status in _CORRECTIONS:
            result.next_offset = header.queue_offset
        return _ELSEWHERE if code == ResponseCode.PULL_OFFSET_MOVED else code

    def _answer(
        self,
        command: Command,
        header: PullMessageHeader,
        group: GroupConfig,
        result: GetResult,
        code: int,
    ) -> bytes:
        broker_id = 0
        if self._is_elsewhere(result, code):
            broker_id = group.broker_id
        elif self._slave_read:
            slow = result.suggest_slave
            broker_id = group.which_broker_when_consume_slowly if slow else group.broker_id
        fields = PullMessageResponse(
            broker_id, result.next_offset, result.min_offset, result.max_offset
        )
        stats = self._stats
        if code == ResponseCode.SUCCESS:
            counters = stats.consumer(header.consumer_group, header.topic)
            stats.delivered(counters, result.count, result.size, header.queue_id, self._spent_s)
            counters.pulled[header.queue_id] = result.next_offset
            # One copy of what is served: a pull is 256 KiB (30 us of memcpy), a bulk one 4 MiB, and
            # the segment's pins end here instead of living as long as a slow reader's socket.
            with result:
                body = b"".join(result.views)
        else:
            stats.get_missed += 1
            if code == ResponseCode.PULL_OFFSET_MOVED:
                self._store_offset_moved(header, result.next_offset)
            body = b""
        return encode_response(command, code, result.status.name, fields.to_ext(), body)

    def _store_offset_moved(self, header: PullMessageHeader, new_offset: int) -> None:
        """Store the event in OFFSET_MOVED_EVENT, where operators see it. A slave stores nothing."""
        if self._role.is_slave:
            return
        store_host = self._identity.store_host
        message = offset_moved_message(header, new_offset, self._broker_name, store_host)
        try:
            self._store.log.put(message)
        except StoreError as error:
            log.warning("offset moved event not stored why=%s", error)
            return
        self._reput.appended()


def offset_moved_message(
    header: PullMessageHeader, new_offset: int, broker_name: str, store_host: bytes
) -> StoreMessage:
    """The event of one moved offset (protocol/WIRE.md 4.12): which group was sent from where to
    where."""
    group = header.consumer_group
    queue = MessageQueue(header.topic, broker_name, header.queue_id)
    body = dumps(
        {
            "consumerGroup": group,
            "messageQueue": queue,
            "offsetNew": new_offset,
            "offsetRequest": header.queue_offset,
        }
    )
    properties = {PROPERTY_KEYS: group, PROPERTY_DELAY: "0", PROPERTY_TAGS: group}
    return StoreMessage(
        OFFSET_MOVED_TOPIC,
        0,
        0,
        0,
        time.time_ns() // 1_000_000,
        store_host,
        store_host,
        0,
        0,
        body,
        encode_properties(properties).encode(),
        tag_code(group),
        (group,),
    )


def _codes_of(header: PullMessageHeader, subscription: Subscription) -> frozenset[int] | None:
    """The hashes of the tags that a group wants; None: all messages."""
    all_wanted = subscription.class_filter or header.sys_flag & PULL_CLASS_FILTER
    return None if all_wanted else subscription.codes or None


def _answer_code(status: GetStatus, asked_offset: int) -> int:
    code = _ANSWER_CODES.get(status)
    if code is not None:
        return code
    # A queue never written: an offset other than 0 was meant for something else (3.2).
    return ResponseCode.PULL_OFFSET_MOVED if asked_offset else ResponseCode.PULL_NOT_FOUND
