"""HEART_BEAT, UNREGISTER_CLIENT, CHECK_CLIENT_CONFIG and GET_CONSUMER_LIST_BY_GROUP
(protocol/WIRE.md 3.3), and the broker's NOTIFY_CONSUMER_IDS_CHANGED to consumers (3.8).

A heartbeat makes what a consumer group needs: its settings, when groups may be made by their first
consumer, and its retry topic. Names are checked before anything is made of any of them.
"""

from __future__ import annotations

import logging

from aerobee.broker.requests.notifications import Notifications
from aerobee.broker.router import Handler
from aerobee.broker.tables.clients import ClientTable, ConsumerGroup, Heartbeat
from aerobee.broker.tables.groups import GroupTable
from aerobee.broker.tables.topics import TopicTable
from aerobee.config.model import Settings
from aerobee.protocol.bodies.clients import CheckClientConfig, HeartbeatData, encode_consumer_list
from aerobee.protocol.bodies.routes import PERM_READ_WRITE
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.filters.subscription import TAG_TYPE
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.headers.client import ConsumerListHeader, UnregisterClientHeader
from aerobee.protocol.names import check_group_name, check_topic_name, is_light, retry_topic
from aerobee.remoting.connection import Connection
from aerobee.remoting.turns import Turns

log = logging.getLogger("aerobee.broker.clients")


class ClientRequests:
    """What clients say of themselves. Loop thread only."""

    def __init__(
        self,
        settings: Settings,
        clients: ClientTable,
        topics: TopicTable,
        groups: GroupTable,
        turns: Turns,
    ) -> None:
        self._settings = settings
        self._clients = clients
        self._topics = topics
        self._groups = groups
        self._notifications = Notifications(clients, turns)

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_config,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
        }

    def heartbeat(self, connection: Connection, command: Command) -> bytes:
        """Record what the client does. Members of a changed group, the sender too, are notified
        before the answer."""
        data = HeartbeatData.parse(command.body)
        _check_names(data)
        for consumer in data.consumers:
            self._prepare(consumer.group)
        heartbeat = Heartbeat(connection, command.language, command.version, data)
        for group in self._clients.heartbeat(heartbeat):
            self._notify(group, force=False)
        return encode_success(command)

    def _prepare(self, name: str) -> None:
        """Make the group's settings and retry topic when they may and need to be made."""
        group = self._groups.get(name)
        if self._settings.lmq_enabled and is_light(name):
            # There may be thousands; theirs is made when the first message is sent back.
            return
        if group is not None and group.retry_queue_nums > 0:
            self._topics.create_retry(retry_topic(name), group.retry_queue_nums, PERM_READ_WRITE)

    def unregister(self, connection: Connection, command: Command) -> bytes:
        """The client leaves its groups; never an error once the header is read."""
        header = UnregisterClientHeader.from_ext(command.ext)
        left = self._clients.unregister(connection, header.producer_group, header.consumer_group)
        if left is not None:
            self._notify(left, force=False)
        return encode_success(command, ext={})

    def check_config(self, _connection: Connection, command: Command) -> bytes:
        """Whether this broker can filter as a consumer asks; consumers ask before they start."""
        if command.body:
            subscription = CheckClientConfig.parse(command.body).subscription
            if subscription is not None and subscription.type != TAG_TYPE:
                raise BadRequest.system_error(
                    "The broker does not support consumer to filter message by "
                    + subscription.type[:64]
                )
        return encode_success(command)

    def consumer_list(self, _connection: Connection, command: Command) -> bytes:
        """The client ids of a group; none is code 1, not an empty list (protocol/WIRE.md 3.3)."""
        group = ConsumerListHeader.from_ext(command.ext).consumer_group
        client_ids = self._clients.consumer_ids(group)
        if not client_ids:
            raise BadRequest.system_error(f"no consumer for this group, {group}")
        body = encode_consumer_list(client_ids)
        return encode_success(command, body)

    def connection_closed(self, connection: Connection) -> None:
        """The client has left all its groups."""
        for group in self._clients.connection_closed(connection):
            self._notify(group, force=True)

    def expire(self) -> None:
        """Clients that were silent too long have left. Called by a timer."""
        for group in self._clients.expire():
            self._notify(group, force=True)

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


def _check_names(data: HeartbeatData) -> None:
    for group in data.producer_groups:
        check_group_name(group)
    for consumer in data.consumers:
        check_group_name(consumer.group)
        for subscription in consumer.subscriptions:
            check_topic_name(subscription.topic)
