"""HEART_BEAT, UNREGISTER_CLIENT, CHECK_CLIENT_CONFIG and GET_CONSUMER_LIST_BY_GROUP
(protocol/WIRE.md 3.3), and the broker's NOTIFY_CONSUMER_IDS_CHANGED to consumers (3.8).

A heartbeat makes what a consumer group needs: its settings, when groups may be made by their first
consumer, and its retry topic. A group whose name is too long for a retry topic joins without one,
with a warning: it consumes, and what it gives back is refused (`messages/retry.py`). Names are
checked before anything is made of any of them. A heartbeat may name thousands of groups: it is
served in steps, what it makes is saved together, and it is answered when the retry topics are
there.

The pulls of a member that now wants something else of a topic are held no longer
(`appending/held_pulls.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from aerobee.access.control import AccessControl
from aerobee.broker.appending.held_pulls import HeldPulls
from aerobee.broker.background.loop_workers import BodyReader
from aerobee.broker.requests.clients.member_lists import MemberLists
from aerobee.broker.requests.clients.member_notifications import Notifications
from aerobee.broker.routing.router import Handler
from aerobee.broker.tables.clients import ConsumerGroup, Heartbeat
from aerobee.broker.tables.tables import Tables
from aerobee.config.model import Settings
from aerobee.protocol.bodies.clients import CheckClientConfig, ConsumerData, HeartbeatData
from aerobee.protocol.bodies.topics import UNIT_SUB
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.filters.property_filter import TAG_TYPE, PropertyFilter, TypedExpression
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.headers.client import ConsumerListHeader, UnregisterClientHeader
from aerobee.protocol.names import (
    check_group_name,
    check_subscribed_topic,
    is_light,
    retry_topic,
    why_no_group_topic,
)
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Spread, Steps, Turns

log = logging.getLogger("aerobee.broker.clients")

# The most groups that a step of a heartbeat makes or joins (30 us each, most of it for the log),
# and the most names that a step checks (1 us each).
_STEP = 8
_NAMES_STEP = 200


class ClientRequests:
    """Requests in which clients speak of themselves. Loop thread only."""

    def __init__(
        self,
        settings: Settings,
        tables: Tables,
        held: HeldPulls,
        *,
        turns: Turns,
        bodies: BodyReader,
        access: AccessControl | None = None,
    ) -> None:
        """`access` says whose heartbeats they are, where accounts are asked for."""
        self._settings = settings
        self._access = access
        self._clients = tables.clients
        self._topics = tables.topics
        self._groups = tables.groups
        self._bodies = bodies
        self._expressions = tables.expressions
        self._filters = tables.filters
        self._held = held
        self._notifications = Notifications(tables.clients, turns)
        # The look at all connections that is under way; None: the next look begins anew.
        self._expiring: Iterator[ConsumerGroup | None] | None = None
        self._expiry = Spread(turns, self._expire_one)
        # Groups that are being left by connections that have ended.
        self._leaving: deque[Iterator[ConsumerGroup | None]] = deque()
        self._departure = Spread(turns, self._leave_one)
        self._lists = MemberLists()

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_config,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
        }

    def heartbeat(self, connection: Connection, command: Command) -> Steps:
        """Record what the client does. Members of a changed group, the sender too, are notified
        before the answer."""
        account = "" if self._access is None else self._access.account_of(command)
        data = yield from self._bodies.read(HeartbeatData.parse, command.body)
        yield from _check_names(data)
        yield from self._prepare(data.consumers)
        compiled = yield from self._compile(data.consumers)
        for part in _parts(data):
            yield None
            if connection.closed:
                # The client has left its groups already, and would stay in these.
                return None
            heartbeat = Heartbeat(connection, command.language, command.version, part, account)
            heard = yield from self._clients.heartbeat(heartbeat)
            for group in heard.groups:
                self._notify(group, force=False)
            for consumer in part.consumers:
                yield from self._register_filters(consumer, compiled)
            # The filters come first: the pulls come again at once, and are judged by them.
            for name, topics in heard.restated.items():
                self._held.restated(connection, name, topics)
        return encode_success(command)

    def _register_filters(
        self, consumer: ConsumerData, compiled: dict[TypedExpression, PropertyFilter]
    ) -> Generator[None, None, None]:
        live = self._clients.consumer_group(consumer.group)
        if live is not None:
            stated, in_force = consumer.subscriptions, live.subscriptions
            yield from self._filters.register(consumer.group, stated, in_force, compiled)
        if self._clients.consumer_group(consumer.group) is None:
            # The last member left meanwhile.
            self._filters.group_left(consumer.group)

    def _compile(
        self, consumers: Sequence[ConsumerData]
    ) -> Generator[asyncio.Future[Any] | None, None, dict[TypedExpression, PropertyFilter]]:
        """The expressions of a heartbeat that can be read. A faulty expression does not keep
        a client from its other topics; pulls with it are answered with the fault."""
        compiled: dict[TypedExpression, PropertyFilter] = {}
        if not self._settings.property_filter:
            return compiled
        number = 0
        for consumer in consumers:
            for one in consumer.subscriptions:
                number += 1
                if number % _NAMES_STEP == 0:
                    yield None
                if one.type == TAG_TYPE or one.typed_expression in compiled:
                    continue
                try:
                    found = yield from self._expressions.compiled(one.typed_expression)
                except BadRequest as error:
                    log.warning(
                        "expression refused group=%s topic=%s why=%s",
                        consumer.group,
                        one.topic,
                        error.remark,
                    )
                else:
                    compiled[one.typed_expression] = found
        return compiled

    def _prepare(
        self, consumers: Sequence[ConsumerData]
    ) -> Generator[asyncio.Future[None] | None, None, None]:
        """Make the groups' settings and retry topics when they may and need to be made; returns
        when they are there. Raises as `TopicTable.update`."""
        made: dict[asyncio.Future[None], None] = {}
        with self._groups.together(), self._topics.together():
            for number, consumer in enumerate(consumers, 1):
                retry = self._prepare_one(consumer)
                if retry is not None:
                    made[retry] = None
                if number % _STEP == 0:
                    yield None
        for saved in made:
            yield saved
            saved.result()

    def _prepare_one(self, consumer: ConsumerData) -> asyncio.Future[None] | None:
        """Prepare a consumer's group; return the save to wait for, None without any."""
        name = consumer.group
        group = self._groups.get(name)
        if self._settings.lmq_enabled and is_light(name):
            # There may be thousands; a retry topic is made when the first message is sent back.
            return None
        if group is None or group.retry_queue_nums <= 0:
            return None
        retry = retry_topic(name)
        if (why := why_no_group_topic(retry)) is not None:
            self._clients.note_without_retries(consumer, why)
            return None
        sys_flag = UNIT_SUB if consumer.unit_mode else 0
        return self._topics.create_retry(retry, group.retry_queue_nums, sys_flag)

    def unregister(self, connection: Connection, command: Command) -> bytes:
        """The client leaves its groups; never an error once the header is read."""
        header = UnregisterClientHeader.from_ext(command.ext)
        left = self._clients.unregister(connection, header.producer_group, header.consumer_group)
        if left is not None:
            self._note_left(left)
            self._notify(left, force=False)
        return encode_success(command, ext={})

    def check_config(self, _connection: Connection, command: Command) -> Steps:
        """Whether this broker can filter as a consumer asks; consumers ask before they start."""
        if command.body:
            check = yield from self._bodies.read(CheckClientConfig.parse, command.body)
            subscription = check.subscription
            if subscription is not None and subscription.type != TAG_TYPE:
                kind = subscription.type
                if not self._settings.property_filter:
                    raise BadRequest.system_error(
                        f"The broker does not support consumer to filter message by {kind[:64]}; "
                        "enablePropertyFilter is off"
                    )
                yield from self._expressions.compiled(subscription.typed_expression)
        return encode_success(command)

    def consumer_list(self, _connection: Connection, command: Command) -> Steps:
        """The client ids of a group; none is code 1, not an empty list (protocol/WIRE.md 3.3)."""
        name = ConsumerListHeader.from_ext(command.ext).consumer_group
        group = self._clients.consumer_group(name)
        if group is None:
            raise BadRequest.system_error(f"no consumer for this group, {name}")
        body = yield from self._lists.of(group)
        return encode_success(command, body)

    def connection_closed(self, connection: Connection) -> None:
        """Take the client out of its groups; out of some in later turns, if it has thousands."""
        self._leaving.append(self._clients.connection_closed(connection))
        self._departure.go_on()

    def look(self) -> None:
        """Called by a timer, some times a second."""
        self._notifications.look()

    def expire(self) -> None:
        """Take out clients that were silent too long. Called by a timer; may go on in later
        turns."""
        self._expiry.go_on()

    def _expire_one(self) -> bool:
        """Look at one connection; False when all were looked at."""
        if self._expiring is None:
            self._expiring = self._clients.expire()
        for group in self._expiring:
            if group is None:
                return True
            self._note_left(group)
            self._notify(group, force=True)
        self._expiring = None
        return False

    def _leave_one(self) -> bool:
        """Leave one group; False when all were left."""
        while self._leaving:
            for group in self._leaving[0]:
                if group is not None:
                    self._note_left(group)
                    self._notify(group, force=True)
                return True
            self._leaving.popleft()
        return False

    def _note_left(self, group: ConsumerGroup) -> None:
        """A member has left its group."""
        if not group.members:
            self._filters.group_left(group.name)

    def _notify(self, group: ConsumerGroup, *, force: bool) -> None:
        """Tell all members that the group changed, unless it or the broker is set not to.

        `force` passes over the group's own switch, as it does when a connection closed.
        """
        if not self._settings.notify_consumer_ids_changed:
            return
        config = self._groups.find(group.name)
        if not force and config is not None and not config.notify_consumer_ids_changed_enable:
            return
        self._notifications.group_changed(group.name)


def _check_names(data: HeartbeatData) -> Generator[None, None, None]:
    checked = 0
    for group in data.producer_groups:
        check_group_name(group)
    for consumer in data.consumers:
        check_group_name(consumer.group)
        for subscription in consumer.subscriptions:
            check_subscribed_topic(subscription.topic)
            checked += 1
            if checked % _NAMES_STEP == 0:
                yield None


def _parts(data: HeartbeatData) -> list[HeartbeatData]:
    """A heartbeat as several that say together what it says."""
    producers, consumers = data.producer_groups, data.consumers
    return [
        HeartbeatData(
            data.client_id, producers[start : start + _STEP], consumers[start : start + _STEP]
        )
        for start in range(0, max(len(producers), len(consumers), 1), _STEP)
    ]
