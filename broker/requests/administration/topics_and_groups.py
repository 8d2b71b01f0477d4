"""Administration of topics, groups and their queues (protocol/WIRE.md 3.5).

System topics can be looked at but not changed. Names, queue numbers and rights are checked against
the same limits as everywhere; upstream checks no group name and no number. A deleted topic loses
its consume queues and its groups' offsets in them. Upstream keeps those, and a topic made anew
under its name, with queues that begin at 0, is not consumed until it has come so far.

A change of a table is answered when it is on the disk; requests about the same topic wait for each
other. Removing files takes longer than the loop can wait, so requests that do it are answered when
a worker has done it. What decides (is the topic still unknown? is the queue in use?) is asked on
the loop, in the same step in which the queues leave the store: a topic made anew in between keeps
its queues. A deleted topic's offsets may be many and go behind its queues, in steps; until they
have gone nobody makes a topic of its name. DELETE_EXPIRED_COMMITLOG lets the next runs of retention
delete what has expired at any hour (FORMAT.md 10.1).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from functools import partial
from typing import Any

from msgspec.structs import replace

from aerobee.broker.background.loop_workers import AnswerLater, BodyReader
from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.requests.administration.topic_removal import TopicRemoval
from aerobee.broker.routing.router import Handler
from aerobee.broker.second_step.deleted_topics import DeletedTopics
from aerobee.broker.second_step.second_step import readable_queues
from aerobee.broker.tables.groups import GroupConfig
from aerobee.broker.tables.tables import Tables
from aerobee.broker.tables.topics import queues_of
from aerobee.config.model import Settings
from aerobee.protocol.bodies.common import encode_topic_list, parse_body
from aerobee.protocol.bodies.topics import MULTI_TAG, SINGLE_TAG, TopicConfig
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.frames.fastjson import dumps
from aerobee.protocol.headers.admin import (
    CreateTopicHeader,
    DeleteGroupHeader,
    GroupHeader,
    TopicHeader,
)
from aerobee.protocol.names import (
    AUTO_CREATE_TOPIC,
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    TRACE_TOPIC,
    check_group_name,
    check_group_topic,
    is_light,
    retry_topic,
)
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Steps
from aerobee.store.disk.owner import OnOwner
from aerobee.store.message_store import MessageStore

log = logging.getLogger("aerobee.broker.admin")

_MAX_PERM = 0xF
# Named as system topics whether they exist here or not (protocol/WIRE.md 3.5).
_ALWAYS_SYSTEM = (HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC, TRACE_TOPIC, AUTO_CREATE_TOPIC)


class TopicRequests:
    """Serves administrators. Loop thread only."""

    def __init__(
        self,
        limits: Settings,
        tables: Tables,
        *,
        stats: BrokerStats,
        store: MessageStore,
        on_loop: OnOwner,
        later: AnswerLater,
        bodies: BodyReader,
        deleted: DeletedTopics,
        removal: TopicRemoval,
    ) -> None:
        self._limits = limits
        self._topics = tables.topics
        self._groups = tables.groups
        self._offsets = tables.offsets
        self._stats = stats
        self._store = store
        self._on_loop = on_loop
        self._later = later
        self._bodies = bodies
        self._deleted = deleted
        self._removal = removal

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.create_topic,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_topics,
            RequestCode.GET_TOPIC_CONFIG: self.topic_config,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update_group,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.group_config,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete_group,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_expired,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_unused,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_expired,
        }

    def create_topic(self, _connection: Connection, command: Command) -> Steps:
        """Create or change a topic; `order` is ignored, only name servers know it (5.4)."""
        header = CreateTopicHeader.from_ext(command.ext)
        name = self._changeable(header.topic)
        yield from self._settled(name)
        known = self._topics.get(name)
        topic = TopicConfig(
            name,
            header.read_queue_nums,
            header.write_queue_nums,
            header.perm,
            header.topic_filter_type,
            header.topic_sys_flag,
            known.order if known is not None else False,
        )
        self._check_topic(topic, known)
        saved = self._topics.update(topic)
        yield saved
        saved.result()
        log.info(
            "topic configured name=%s read_queues=%d write_queues=%d perm=%d",
            name,
            topic.read_queues,
            topic.write_queues,
            topic.perm,
        )
        return encode_success(command)

    def _changeable(self, topic: str) -> str:
        name = check_group_topic(topic)
        if self._topics.is_system(name):
            raise BadRequest.system_error(f"The topic[{name}] is conflict with system topic.")
        return name

    def _settled(self, name: str) -> Generator[asyncio.Future[Any], None, None]:
        """Wait for what is under way for a topic, its deletion among others."""
        while (change := self._topics.under_way(name)) is not None:
            yield change

    def _check_topic(self, topic: TopicConfig, known: TopicConfig | None) -> None:
        most = self._limits.max_queues_per_topic
        if topic.filter_type not in (SINGLE_TAG, MULTI_TAG):
            raise BadRequest.system_error(
                f"topicFilterType must be {SINGLE_TAG} or {MULTI_TAG}, "
                f"got {topic.filter_type[:64]!r}"
            )
        for what, queues in (("read", topic.read_queues), ("write", topic.write_queues)):
            if not 1 <= queues <= most:
                raise BadRequest.system_error(f"{what} queues must be 1 to {most}, got {queues}")
        if not 0 <= topic.perm <= _MAX_PERM:
            raise BadRequest.system_error(f"perm must be 0 to {_MAX_PERM}, got {topic.perm}")
        if known is None and self._topics.expected >= self._limits.max_topics:
            raise BadRequest.system_error(f"there are {self._topics.expected} topics, the limit")
        before = queues_of(known) if known is not None else 0
        queues = self._topics.expected_weight - before + queues_of(topic)
        if queues > self._limits.max_queues:
            raise BadRequest.system_error(
                f"{queues} queues in all topics would pass the limit of {self._limits.max_queues}"
            )

    def delete_topic(self, connection: Connection, command: Command) -> Steps:
        """Delete a topic; an unknown topic is no error. Its files go on a worker thread."""
        name = self._changeable(TopicHeader.from_ext(command.ext).topic)
        yield from self._settled(name)
        self._deleted.check_room(name)
        if name in self._topics:
            yield from self._withdrawn(name)
        else:
            self._topics.reserve(name)
        return self._later(connection, command, partial(self._remove_topic, name))

    def _remove_topic(self, name: str) -> None:
        """The topic's queues go, and then its offsets. Worker."""
        self._removal.remove(name, partial(self._topic_leaves, name), self._remember)

    def _remember(self) -> None:
        """The deletion is on the disk before it is answered, and before anybody makes a topic anew
        under the name. Worker; raises OSError."""
        self._on_loop(self._deleted.take_changes)
        try:
            self._deleted.save()
        except OSError:
            self._on_loop(self._deleted.mark_unsaved)
            raise

    def _withdrawn(self, name: str) -> Generator[asyncio.Future[Any], None, None]:
        """Take the topic out of the file. Raises what was in the way."""
        withdrawn = self._topics.withdraw(name)
        try:
            yield withdrawn
        except GeneratorExit:
            # Nobody goes on to its queues; they are those of an unknown topic then.
            withdrawn.add_done_callback(lambda _: self._topics.forget(name))
            raise
        withdrawn.result()

    def _topic_leaves(self, name: str) -> bool:
        """The topic leaves memory in the step in which its queues leave the store. One that is made
        anew waits until its offsets have gone, too."""
        if self._removal.forget(name):
            log.info("topic deleted name=%s", name)
        # Messages accepted until now belong to this topic; from now on they belong to another.
        self._deleted.add(name, self._store.written)
        return True

    def all_topics(self, _connection: Connection, command: Command) -> Steps:
        """The whole topic table."""
        body = yield from self._topics.listing()
        return encode_success(command, body)

    def topic_config(self, _connection: Connection, command: Command) -> bytes:
        """One topic, as the tools and proxies of RocketMQ 5 ask for it. It has none of the
        attributes that there are in 5, which means a topic for messages of any plain kind."""
        name = TopicHeader.from_ext(command.ext).topic
        topic = self._topics.get(name)
        if topic is None:
            text = f"No topic in this broker. topic: {name}"
            raise BadRequest(ResponseCode.TOPIC_NOT_EXIST, text)
        return encode_success(command, dumps({**topic.to_json(), "attributes": {}}))

    def system_topics(self, _connection: Connection, command: Command) -> bytes:
        """The names of system topics, also of those that do not exist here."""
        names = self._topics.system_names().union(_ALWAYS_SYSTEM)
        body = encode_topic_list(sorted(names))
        return encode_success(command, body)

    def update_group(self, _connection: Connection, command: Command) -> Steps:
        """Create or change a group."""
        try:
            group = yield from self._bodies.read(_read_group, command.body)
        except (ValueError, TypeError) as error:
            raise BadRequest.system_error(f"the group configuration is wrong: {error}") from error
        self._check_group(group)
        yield from self._more_retry_queues(group)
        saved = self._groups.update(group)
        yield saved
        saved.result()
        log.info("group configured name=%s enabled=%s", group.name, group.consume_enable)
        return encode_success(command)

    def _more_retry_queues(self, group: GroupConfig) -> Generator[asyncio.Future[Any], None, None]:
        """A group whose number of retry queues is raised gets them: retries go to the queues that
        its retry topic has, whatever the group says. Raises BadRequest where they are too many."""
        known = self._groups.find(group.name)
        if known is not None and group.retry_queue_nums <= known.retry_queue_nums:
            return
        name = retry_topic(group.name)
        yield from self._settled(name)
        topic = self._topics.get(name)
        if topic is None or readable_queues(topic) >= group.retry_queue_nums:
            return
        more = replace(
            topic,
            read_queues=max(topic.read_queues, group.retry_queue_nums),
            write_queues=max(topic.write_queues, group.retry_queue_nums),
        )
        self._check_topic(more, topic)
        saved = self._topics.update(more)
        yield saved
        saved.result()
        log.info("retry topic has more queues name=%s queues=%d", name, group.retry_queue_nums)

    def _check_group(self, group: GroupConfig) -> None:
        most = self._limits.max_queues_per_topic
        if not 0 <= group.retry_queue_nums <= most:
            raise BadRequest.system_error(
                f"retryQueueNums must be 0 to {most}, got {group.retry_queue_nums}"
            )
        numbers = (group.retry_max_times, group.broker_id, group.which_broker_when_consume_slowly)
        if not all(-(2**31) <= number < 2**31 for number in numbers):
            raise BadRequest.system_error("a number of the group configuration is out of range")
        known = self._groups.find(group.name)
        if known is None and self._groups.expected >= self._limits.max_groups:
            raise BadRequest.system_error(f"there are {self._groups.expected} groups, the limit")

    def all_groups(self, _connection: Connection, command: Command) -> Steps:
        """The whole group table."""
        body = yield from self._groups.listing()
        return encode_success(command, body)

    def group_config(self, _connection: Connection, command: Command) -> bytes:
        """One group, as proxies of RocketMQ 5 ask for it; made like at its first pull, where that
        may be. Its retries wait by the levels of delay, and it consumes in no order."""
        name = GroupHeader.from_ext(command.ext).group
        group = self._groups.get(name)
        if group is None:
            raise self._groups.missing(name)
        of_5 = {"attributes": {}, "consumeMessageOrderly": False}
        return encode_success(command, dumps({**group.to_json(), **of_5}))

    def delete_group(self, _connection: Connection, command: Command) -> Steps:
        """Delete a group, with its offsets if asked; an unknown group is no error."""
        header = DeleteGroupHeader.from_ext(command.ext)
        name = check_group_name(header.group_name)
        if name in self._groups or self._groups.under_way(name) is not None:
            saved = self._groups.delete(name)
            yield saved
            saved.result()
            log.info("group deleted name=%s", name)
        if header.remove_offset:
            yield from self._offsets.remove_group(name)
        self._stats.forget_group(name)
        return encode_success(command)

    def all_offsets(self, _connection: Connection, command: Command) -> Steps:
        """The offsets of all groups, as slaves fetch them."""
        body = yield from self._offsets.listing()
        return encode_success(command, body)

    # --- deletion of what has expired or is in no table ---------------------------------------

    def delete_expired(self, _connection: Connection, command: Command) -> bytes:
        """Have expired segments deleted from the next run on, whatever the hour."""
        self._store.retention.arm()
        return encode_success(command)

    def clean_expired(self, connection: Connection, command: Command) -> bytes | None:
        """Free the files of queues all of whose messages are gone."""

        def work() -> None:
            count = self._store.cleaning.clean_expired(self._on_loop, self._in_use)
            log.info("expired queues cleaned count=%d", count)

        return self._later(connection, command, work)

    def clean_unused(self, connection: Connection, command: Command) -> bytes | None:
        """Remove the queues of topics that do not exist any more."""
        unused = sorted({topic for topic, _ in self._store.queues() if self._is_unused(topic)})

        def work() -> None:
            count = self._store.cleaning.remove_topics(unused, self._on_loop, self._is_unused)
            log.info("queues of unknown topics removed topics=%d queues=%d", len(unused), count)

        return self._later(connection, command, work)

    def _is_unused(self, topic: str) -> bool:
        """Not in the topic table, and not one of those that need not be: system topics, among them
        the delay queues and those of transactions, and light queues, which have no topic."""
        known = self._topics.get(topic) is not None
        return not known and not self._topics.is_system(topic) and not is_light(topic)

    def _in_use(self, topic: str, queue_id: int) -> bool:
        config = self._topics.get(topic)
        if config is None:
            return not self._is_unused(topic)
        return queue_id < max(config.read_queues, config.write_queues)


def _read_group(body: bytes) -> GroupConfig:
    return GroupConfig.from_json(parse_body(body, "group configuration"))
