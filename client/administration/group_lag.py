"""Asks all brokers about groups: how far each is, and why it does not come on.

Aerobee's brokers answer GROUP_LAG. RocketMQ's do not know it (code 3), so they are asked for
progress and members, which tell less: `is_full` is false for such an answer. A broker that does not
answer is not asked again, so it costs one time-out; `unanswered` names it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, TypeVar

from aerobee.client.admin import Admin
from aerobee.client.errors import NetworkError, reading
from aerobee.protocol.bodies.clients import BROADCASTING
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.group_lag import GroupLag, QueueLagState, Statement, TopicState
from aerobee.protocol.bodies.group_lag import GroupState as GroupLagState
from aerobee.protocol.bodies.group_settings import GroupConfigBody, parse_group_table
from aerobee.protocol.bodies.statistics import ConsumeStats, GroupProgress, GroupState
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.headers.admin import ConsumeStatsHeader
from aerobee.protocol.headers.client import ConsumerListHeader

T = TypeVar("T")

_SUCCESS: Final = (ResponseCode.SUCCESS,)
_KNOWN_OR_NOT: Final = (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
_ONLINE_OR_NOT: Final = (ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE)


class BrokerView(NamedTuple):
    """A group, by the answer of one broker."""

    lag: GroupLag
    #: Whether it could tell all of it: RocketMQ's brokers cannot.
    is_full: bool


class GroupQuestions:
    """Asks the brokers of one cluster, of each its master, or a slave as `admin` may read those."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._addresses: dict[str, str] | None = None
        # The tables of groups by broker, and the brokers that do not know GROUP_LAG.
        self._tables: dict[str, dict[str, GroupConfigBody]] | None = None
        self._of_rocketmq: set[str] = set()
        #: The brokers that did not answer, with the error.
        self.unanswered: dict[str, NetworkError] = {}

    async def brokers(self) -> list[str]:
        """All brokers that are asked, and those that have not answered."""
        return sorted(await self._readable())

    async def tables(self) -> dict[str, dict[str, GroupConfigBody]]:
        """The groups that each broker knows, by name, with their settings."""
        if self._tables is None:
            self._tables = await self._each(self._table)
        return self._tables

    async def groups(self) -> dict[str, list[str]]:
        """The groups that brokers know, and the names of these brokers."""
        found: dict[str, list[str]] = {}
        for broker, groups in (await self.tables()).items():
            for group in groups:
                found.setdefault(group, []).append(broker)
        return dict(sorted(found.items()))

    async def of(self, group: str, topic: str | None = None) -> dict[str, BrokerView]:
        """The answers of all brokers about a group, in one topic or in all that it subscribes to or
        has offsets in, by the names of the brokers. A broker that does not know the group says
        so."""

        async def ask(broker: str, address: str) -> BrokerView:
            if broker not in self._of_rocketmq:
                ext = ConsumeStatsHeader(group, topic or "").to_ext()
                answer = await self._admin.session.call(
                    address, RequestCode.GROUP_LAG, ext, accept=_KNOWN_OR_NOT
                )
                if answer.code == ResponseCode.SUCCESS:
                    with reading(address):
                        return BrokerView(GroupLag.parse(answer.body), True)
                self._of_rocketmq.add(broker)
            return BrokerView(await self._by_progress(broker, address, group, topic), False)

        return await self._each(ask)

    async def members(self, group: str) -> dict[str, GroupState]:
        """The members of a group that are online, by the names of the brokers where somebody is."""

        async def ask(_broker: str, address: str) -> GroupState | None:
            return await self._members(address, group)

        found = await self._each(ask)
        return {name: one for name, one in found.items() if one is not None}

    # --- inside

    async def _readable(self) -> dict[str, str]:
        if self._addresses is None:
            self._addresses = await self._admin.readable_brokers()
        return self._addresses

    async def _each(self, ask: Callable[[str, str], Awaitable[T]]) -> dict[str, T]:
        """The results of `ask` by broker, without the brokers that do not answer. Raises the error
        of one of these if none answers."""
        brokers = await self._readable()
        asked = {name: brokers[name] for name in brokers if name not in self.unanswered}
        results = await asyncio.gather(
            *(ask(name, address) for name, address in asked.items()), return_exceptions=True
        )
        found: dict[str, T] = {}
        for name, result in zip(asked, results, strict=True):
            if isinstance(result, NetworkError):
                self.unanswered[name] = result
            elif isinstance(result, BaseException):
                raise result
            else:
                found[name] = result
        if not found and self.unanswered:
            raise next(iter(self.unanswered.values()))
        return found

    async def _table(self, _broker: str, address: str) -> dict[str, GroupConfigBody]:
        answer = await self._admin.session.call(
            address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        )
        with reading(address):
            return parse_group_table(answer.body)

    # --- brokers of RocketMQ

    async def _by_progress(
        self, broker: str, address: str, group: str, topic: str | None
    ) -> GroupLag:
        state = await self._members(address, group)
        stats = await self._progress(address, group, topic or "")
        queues = dict(stats.queues)
        subscriptions = {} if state is None else state.subscriptions
        own = state is not None and state.message_model == BROADCASTING
        if topic is None and not own:
            # It has to be asked by name for those that the group has not consumed anything of.
            known = {queue.topic for queue in queues}
            for name in sorted(subscriptions.keys() - known):
                queues |= (await self._progress(address, group, name)).queues
        settings = (await self.tables()).get(broker, {}).get(group)
        names = sorted({*subscriptions, *(queue.topic for queue in queues)})
        return GroupLag(
            GroupLagState(
                group=group,
                now_ms=time.time_ns() // 1_000_000,
                settings=None if settings is None else settings.in_short,
                consume_type=None if state is None else state.consume_type,
                message_model=None if state is None else state.message_model,
                members=0 if state is None else len({one.client_id for one in state.connections}),
                clients=[]
                if state is None
                else sorted({one.client_id for one in state.connections}),
                topics=[_topic_state(name, subscriptions) for name in names],
            ),
            [] if own else [_queue_state(queue, one) for queue, one in queues.items()],
        )

    async def _members(self, address: str, group: str) -> GroupState | None:
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        ext = ConsumerListHeader(group).to_ext()
        answer = await self._admin.session.call(address, code, ext, accept=_ONLINE_OR_NOT)
        if answer.code != ResponseCode.SUCCESS:
            return None
        with reading(address):
            return GroupState.parse(answer.body)

    async def _progress(self, address: str, group: str, topic: str) -> ConsumeStats:
        ext = ConsumeStatsHeader(group, topic).to_ext()
        answer = await self._admin.session.call(address, RequestCode.GET_CONSUME_STATS, ext)
        with reading(address):
            return ConsumeStats.parse(answer.body)


def _topic_state(topic: str, subscriptions: Mapping[str, str]) -> TopicState:
    text = subscriptions.get(topic)
    statements = [] if text is None else [Statement(type="", expression=text, members=0)]
    return TopicState(topic=topic, exists=True, perm=6, statements=statements)


def _queue_state(queue: MessageQueue, one: GroupProgress) -> QueueLagState:
    return QueueLagState(
        topic=queue.topic,
        queue_id=queue.queue_id,
        committed=one.consumer_offset,
        begin=one.consumer_offset,
        end=one.broker_offset,
        lag=one.lag,
        last_consumed_ms=one.last_consumed_ms or None,
    )
