"""Administration: topics, routes, progress of groups, and finding messages.

Every call looks up the brokers it concerns and asks their masters; what spans several brokers is
merged here. Changes go to the brokers first and to the name servers after, as RocketMQ's tools do.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from aerobee.client.connections.session import SUCCESS, Session
from aerobee.client.errors import (
    CallerError,
    MasterAway,
    NetworkError,
    NoMaster,
    NoRoute,
    RequestRefused,
    checking_arguments,
    reading,
)
from aerobee.client.message import Inflater, ReceivedMessage, received
from aerobee.client.message_ids import find_by_offset_id
from aerobee.client.options import Addresses, ClientOptions, checked_options, split_address
from aerobee.client.queue_offsets import OffsetsRole, commit_offset
from aerobee.protocol.bodies.common import (
    MessageQueue,
    parse_kv_table,
    parse_offset_table,
    parse_topic_list,
)
from aerobee.protocol.bodies.routes import (
    MASTER_ID,
    BrokerRoute,
    ClusterInfo,
    TopicRoute,
    check_queue_count,
    masters,
)
from aerobee.protocol.bodies.statistics import (
    ConnectionData,
    ConsumeStats,
    GroupProgress,
    GroupState,
    QueueOffsets,
    parse_connections,
    parse_group_list,
    parse_group_names,
    parse_topic_stats,
)
from aerobee.protocol.bodies.topics import TopicConfig, parse_topic_table
from aerobee.protocol.bodies.waiting import WaitingMessages
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.fastjson import dumps
from aerobee.protocol.headers.admin import (
    CloneOffsetHeader,
    ConsumeStatsHeader,
    CreateTopicHeader,
    DeleteTopicHeader,
    ResetOffsetHeader,
    TopicHeader,
)
from aerobee.protocol.headers.client import ConsumerListHeader, QueryMessageHeader
from aerobee.protocol.message.record import iterate_records
from aerobee.protocol.names import check_topic_name, retry_topic, why_no_group_topic

if TYPE_CHECKING:
    from aerobee.client.connections.asking_session import AskingSession
    from aerobee.protocol.bodies.ha_status import HaStatus

T = TypeVar("T")

FAR_FUTURE_MS: Final = 2**63 - 1
#: The time that means the ends of queues, in a reset.
END_OF_QUEUE: Final = -1
# A broker that does not know the request, or does not take it here, or not from this account.
_TOLD_OR_NOT: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    ResponseCode.NO_PERMISSION,
    ResponseCode.SYSTEM_ERROR,
)
_ONLINE_OR_NOT: Final = (ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE)
_MEMBERS: Final = RequestCode.GET_CONSUMER_CONNECTION_LIST
_CONSUME_STATS: Final = RequestCode.GET_CONSUME_STATS
_TOPIC_STATS: Final = RequestCode.GET_TOPIC_STATS_INFO
_GROUPS_OF_TOPIC: Final = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
_GROUP_NAMES: Final = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
_TEMPLATE_TOPIC: Final = "TBW102"


class BrokerHa(NamedTuple):
    """How far one broker's log is, and where it begins; `status` is None where it does not tell of
    replication, as RocketMQ 4.9 does not."""

    end: int
    status: HaStatus | None
    begins: int = 0


class Admin(OffsetsRole):
    """Administers brokers and looks into them. Belongs to the loop it was started on."""

    def __init__(
        self,
        name_servers: Addresses,
        options: ClientOptions | None = None,
        *,
        admin_address: str | Sequence[str] | None = None,
        reads_slaves: bool = False,
        leaves_out_silent: bool = False,
    ) -> None:
        """`admin_address`: where brokers take what administrators alone ask for, one or several,
        if they have ports of their own for that (`admin.port`). `reads_slaves`: where a broker has
        no master, its slave is asked for groups and how far they are. `leaves_out_silent`: brokers
        that do not answer a question about all are left out; `unanswered` has them, and whoever
        has not answered once is not asked again."""
        checked = checked_options(options, ClientOptions)
        self._asking: AskingSession | None = None
        if leaves_out_silent:
            # Most commands do without.
            from aerobee.client.connections.asking_session import AskingSession

            self._asking = AskingSession(name_servers, checked)
        super().__init__(self._asking or Session(name_servers, checked))
        given = () if admin_address is None else admin_address
        self._admin_addresses = (given,) if isinstance(given, str) else tuple(given)
        for address in self._admin_addresses:
            split_address(address)
        self._admin_ports: dict[str, str] | None = None
        self._reads_slaves = reads_slaves
        #: The brokers that had no master when they were asked, so that a slave has answered.
        self.slaves_read: set[str] = set()
        self._checked: set[str] = set()

    @property
    def name_servers(self) -> list[str]:
        """The addresses of the name servers."""
        return list(self._session.name_servers)

    async def unanswered(self) -> Mapping[str, NetworkError]:
        """The peers that did not answer, by address, with the reasons; a name server that may still
        answer is waited for. Empty without `leaves_out_silent`."""
        if self._asking is None:
            return {}
        await self._asking.settle()
        return self._asking.unanswered

    async def ask(
        self,
        address: str,
        code: RequestCode,
        ext: dict[str, str] | None = None,
        *,
        accept: Collection[int] = SUCCESS,
    ) -> Command:
        """The answer of one broker or name server, for requests that have no method here. Raises
        PeerError for a code that is not in `accept`."""
        self._session.check_running()
        return await self._session.call(address, code, ext, accept=accept)

    async def admin_ports(self) -> dict[str, str]:
        """The ports that brokers have for administrators alone, as far as they were given, by the
        brokers' names."""
        if self._admin_ports is None:
            self._admin_ports = {
                (await self._asked_settings(address)).get("brokerName", ""): address
                for address in self._admin_addresses
            }
        return self._admin_ports

    async def check_masters(self, brokers: Iterable[str]) -> None:
        """Check that each of these has a master, so that a change reaches all of them. Raises
        MasterAway."""
        _check_none_away(set(brokers) - masters((await self.cluster()).brokers.values()).keys())

    async def check_administered(self, brokers: Iterable[str]) -> None:
        """Check that the masters of these take administrators' requests where they would be sent,
        so that a request to several is not half done. Raises CallerError for a master that takes
        them at another port."""
        names = set(brokers)
        found = (await self.cluster()).brokers.items()
        await self._administered(masters(one for name, one in found if name in names))

    async def administered_masters(self, brokers: Iterable[str]) -> dict[str, str]:
        """The addresses where the masters of these are administered, by their names. Raises
        MasterAway for a broker without a master, and CallerError as `check_administered`."""
        names = set(brokers)
        found = masters((await self.cluster()).brokers.values())
        _check_none_away(names - found.keys())
        return await self._administered({name: found[name] for name in names})

    async def _administered(self, masters: dict[str, str]) -> dict[str, str]:
        """The addresses where these are administered, by the same names. Of several, each is asked
        first, as `check_administered` says."""
        ports = await self.admin_ports()
        if ports or len(masters) > 1:
            for name in sorted(masters.keys() - ports.keys() - self._checked):
                await self._check_takes(name, masters[name])
                self._checked.add(name)
        return {name: ports.get(name, address) for name, address in masters.items()}

    async def _check_takes(self, name: str, address: str) -> None:
        try:
            await self._asked_settings(address)
        except RequestRefused as error:
            # Any other refusal is the request's own to get.
            if error.code != ResponseCode.NO_PERMISSION:
                return
            raise CallerError(
                f"{name} takes what administrators ask for at a port of its own and not at "
                f"{address}: name that port as well (--admin HOST:PORT, once for each broker); "
                "nothing was changed"
            ) from error

    async def _asked_settings(self, address: str) -> dict[str, str]:
        answer = await self._session.call(address, RequestCode.GET_BROKER_CONFIG)
        lines = answer.body.decode("utf-8", "replace").splitlines()
        pairs = (line.partition("=") for line in lines)
        return {key: value for key, separator, value in pairs if separator}

    async def _ask_each(
        self,
        addresses: Mapping[str, str],
        code: RequestCode,
        parse: Callable[[bytes], T],
        ext: dict[str, str] | None = None,
        *,
        accept: tuple[ResponseCode, ...] = (ResponseCode.SUCCESS,),
    ) -> dict[str, T]:
        """The parsed answers of these brokers, by their names, without those of other codes in
        `accept` than success. All are asked at once. The error of one ends it; with
        `leaves_out_silent` those that do not answer are left out, unless none answers."""
        found: dict[str, T] = {}
        silent: list[NetworkError] = []
        answers = await asyncio.gather(
            *(self._session.call(one, code, ext, accept=accept) for one in addresses.values()),
            return_exceptions=True,
        )
        for (name, address), answer in zip(addresses.items(), answers, strict=True):
            if isinstance(answer, NetworkError) and self._asking is not None:
                silent.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
            elif answer.code == ResponseCode.SUCCESS:
                with reading(address):
                    found[name] = parse(answer.body)
        if silent and len(silent) == len(addresses):
            raise silent[0]
        return found

    async def _all_masters(self) -> dict[str, str]:
        return _masters(await self.cluster(), None, None)

    async def readable_brokers(self) -> dict[str, str]:
        """The addresses where brokers are asked for what they know, by their names: the masters,
        and with `reads_slaves` a slave of each broker without a master."""
        self._session.check_running()
        return await self._all_readable()

    async def _all_readable(self) -> dict[str, str]:
        """The masters, and with `reads_slaves` a slave of each broker without a master."""
        info = await self.cluster()
        slaves: dict[str, str] = {}
        if self._reads_slaves:
            slaves = {
                name: one.addresses[min(one.addresses)]
                for name, one in info.brokers.items()
                if one.addresses and MASTER_ID not in one.addresses
            }
            self.slaves_read |= slaves.keys()
        return {**masters(info.brokers.values()), **slaves} or _masters(info, None, None)

    async def administered_at(self, broker: str) -> str:
        """The address where the master of that broker is administered."""
        found = await self._administered(_masters(await self.cluster(), None, broker))
        return found[broker]

    # Clusters and topics

    async def cluster(self) -> ClusterInfo:
        """All brokers by name, and the clusters they form."""
        self._session.check_running()
        answer = await self._session.call_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        with reading("name server"):
            return ClusterInfo.parse(answer.body)

    async def topics(self) -> list[str]:
        """The names of all topics that a broker registered, sorted; system topics included."""
        self._session.check_running()
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        answer = await self._session.call_name_server(code)
        with reading("name server"):
            return sorted(parse_topic_list(answer.body))

    async def route(self, topic: str) -> TopicRoute:
        """The route of a topic, as the name server says now; raises NoRoute."""
        self._session.check_running()
        return await self._session.routes.route(topic, refresh=True)

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        perm: int = 6,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> None:
        """Create or change a topic on every master, or those of one cluster, or one broker's.

        Returns when the brokers have it; the name servers hear of it from them, a moment later.
        `perm` adds up 4 read, 2 write, 1 inherit.
        """
        with checking_arguments():
            check_topic_name(topic)
        settings = TopicConfig(topic, queues, queues, perm)
        found = _every_master(await self.cluster(), cluster, broker)
        for address in (await self._administered(found)).values():
            await self._put_topic(address, settings)

    async def put_topic(self, broker: str, settings: TopicConfig) -> None:
        """Create a topic on one broker's master, or replace all its settings there.

        With fewer queues than before, the messages of those that fall away cannot be read.
        """
        found = _masters(await self.cluster(), None, broker)
        for address in (await self._administered(found)).values():
            await self._put_topic(address, settings)

    async def clean(
        self,
        *,
        expired_log: bool = False,
        expired_queues: bool = False,
        unused_topics: bool = False,
        broker: str | None = None,
    ) -> list[str]:
        """Have masters delete things of no use any more; returns the names of the brokers that said
        yes.

        `expired_log` lets them delete expired segments now instead of at the hour; the other two
        remove queues without messages, and queues of topics that are not there any more.
        """
        chosen = (
            (expired_log, RequestCode.DELETE_EXPIRED_COMMITLOG),
            (expired_queues, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE),
            (unused_topics, RequestCode.CLEAN_UNUSED_TOPIC),
        )
        found = await self._administered(_every_master(await self.cluster(), None, broker))
        for address in found.values():
            for is_chosen, code in chosen:
                if is_chosen:
                    await self._session.call(address, code)
        return sorted(found)

    async def _put_topic(self, address: str, settings: TopicConfig) -> None:
        header = CreateTopicHeader(
            topic=settings.name,
            read_queue_nums=settings.read_queues,
            write_queue_nums=settings.write_queues,
            perm=settings.perm,
            default_topic=_TEMPLATE_TOPIC,
            topic_filter_type=settings.filter_type,
            topic_sys_flag=settings.sys_flag,
            order=settings.order,
        )
        await self._session.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())

    async def topic_settings(
        self, topic: str, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, TopicConfig | None]:
        """The settings of a topic on every master, by broker name; None where it does not exist.

        The brokers are asked themselves: name servers hear of a change a moment later. `cluster`
        and `broker` choose as in `create_topic`, and MasterAway is raised for a broker that would
        be left out. Brokers send their whole topic table for this.
        """
        self._session.check_running()

        def settings_of(body: bytes) -> TopicConfig | None:
            settings = parse_topic_table(body).topics.get(topic)
            if settings is not None:
                check_queue_count([max(settings.read_queues, settings.write_queues)])
            return settings

        chosen = _every_master(await self.cluster(), cluster, broker)
        return await self._ask_each(chosen, RequestCode.GET_ALL_TOPIC_CONFIG, settings_of)

    async def waiting_messages(
        self, topic: str, brokers: Iterable[str]
    ) -> dict[str, WaitingMessages | None]:
        """Messages that wait for a topic on these masters, by broker name: they were accepted and
        are not in its queues yet. None where the broker does not say: RocketMQ's brokers do not,
        and ours say it to administrators only."""
        self._session.check_running()
        wanted = frozenset(brokers)
        chosen = {name: one for name, one in (await self._all_masters()).items() if name in wanted}
        if self._admin_addresses:
            chosen = await self._administered(chosen)
        ext = TopicHeader(topic).to_ext()
        found = await self._ask_each(
            chosen, RequestCode.WAITING_MESSAGES, WaitingMessages.parse, ext, accept=_TOLD_OR_NOT
        )
        return {name: found.get(name) for name in chosen}

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic on every broker that has it, then at every name server. Raises MasterAway
        when one of these brokers has no master: the topic would come back with it."""
        route = await self.route(topic)
        found = masters(route.brokers)
        _check_none_away({one.broker_name for one in route.queues} - found.keys())
        ext = TopicHeader(topic).to_ext()
        for address in (await self._administered(found)).values():
            await self._session.call(address, RequestCode.DELETE_TOPIC_IN_BROKER, ext)
        ext = DeleteTopicHeader(topic).to_ext()
        for address in self._session.name_servers:
            try:
                await self._session.call(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, ext)
            except RequestRefused as error:
                done = f"{topic} is deleted at its brokers, and not at name server {address}"
                raise RequestRefused(
                    f"{done}: {error}",
                    address=address,
                    code=error.code or ResponseCode.SYSTEM_ERROR,
                    remark=error.remark,
                ) from error

    async def topic_stats(self, topic: str) -> dict[MessageQueue, QueueOffsets]:
        """The offsets at both ends of each queue, and the time of its last message."""
        return _merged(await self._of_topic(topic, _TOPIC_STATS, parse_topic_stats))

    async def _of_topic(
        self, topic: str, code: RequestCode, parse: Callable[[bytes], T]
    ) -> Iterable[T]:
        """The answers of a topic's masters to a question about it."""
        chosen = masters((await self.route(topic)).brokers)
        return (await self._ask_each(chosen, code, parse, TopicHeader(topic).to_ext())).values()

    # Groups

    async def consume_progress(
        self, group: str, topic: str | None = None
    ) -> dict[MessageQueue, GroupProgress]:
        """How far a group has consumed each queue, of one topic or of all that it has offsets in or
        subscribes to.

        The group is found by the route of its retry topic, which exists once it was online.
        """
        return (await self._stats_at(await self._masters_of_group(group), group, topic)).queues

    async def _stats_at(
        self, addresses: Mapping[str, str], group: str, topic: str | None
    ) -> ConsumeStats:
        ext = ConsumeStatsHeader(group, topic or "").to_ext()
        found = await self._ask_each(addresses, _CONSUME_STATS, ConsumeStats.parse, ext)
        return ConsumeStats(
            _merged(one.queues for one in found.values()),
            sum((one.tps for one in found.values()), 0.0),
            sum(one.waiting_retries for one in found.values()),
        )

    async def consumers(self, group: str) -> list[ConnectionData]:
        """The members of a consumer group that are online, sorted by client id."""
        found = await self._members_at(
            await self._masters_of_group(group), group, parse_connections
        )
        members = {member.client_id: member for part in found.values() for member in part}
        return [members[client_id] for client_id in sorted(members)]

    async def _members_at(
        self, addresses: Mapping[str, str], group: str, parse: Callable[[bytes], T]
    ) -> dict[str, T]:
        ext = ConsumerListHeader(group).to_ext()
        return await self._ask_each(addresses, _MEMBERS, parse, ext, accept=_ONLINE_OR_NOT)

    async def _masters_of_group(self, group: str) -> dict[str, str]:
        """The masters where the group was online; all masters if the group's name is too long to
        find them by its retry topic."""
        retry = retry_topic(group)
        if why_no_group_topic(retry):
            return await self._all_masters()
        return masters((await self.route(retry)).brokers)

    async def groups(self) -> dict[str, list[str]]:
        """The consumer groups that brokers know, and the names of the brokers that know them."""
        found: dict[str, list[str]] = {}
        chosen = await self._all_readable()
        by_broker = await self._ask_each(chosen, _GROUP_NAMES, parse_group_names)
        for name, groups in by_broker.items():
            for group in groups:
                found.setdefault(group, []).append(name)
        return dict(sorted(found.items()))

    async def groups_of_topic(self, topic: str) -> list[str]:
        """The groups that subscribe to a topic now, or have offsets in it."""
        found = await self._of_topic(topic, _GROUPS_OF_TOPIC, parse_group_list)
        return sorted({group for groups in found for group in groups})

    async def group_state(self, group: str) -> dict[str, GroupState]:
        """The members of a group that are online, by the names of the masters where somebody is."""
        return await self._members_at(await self._all_readable(), group, GroupState.parse)

    async def group_stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """How far a group is in its queues, as `group_progress`, and the number of failed messages
        that wait for their next try outside of its queues. RocketMQ's brokers do not give that
        number."""
        return await self._stats_at(await self._all_readable(), group, topic)

    async def group_progress(
        self, group: str, topic: str | None = None
    ) -> dict[MessageQueue, GroupProgress]:
        """How far a group has consumed each queue, also if it was never online: all masters are
        asked.

        For a queue without an offset of the group Aerobee gives the offset where it would start,
        which is never below the first message; RocketMQ gives 0. Empty for a group whose members
        keep their offsets themselves.
        """
        return (await self.group_stats(group, topic)).queues

    async def reset_group(
        self, broker: str, group: str, topic: str, timestamp_ms: int, *, force: bool = True
    ) -> dict[MessageQueue, int] | None:
        """Have a broker tell the members of a group to go on where its queues of the topic were at
        a time (`END_OF_QUEUE`: at their ends); without `force` never ahead of where they are.

        Returns the offsets that members were given, or None when no member is online there; then
        the offsets can be committed.
        """
        address = await self.administered_at(broker)
        answer = await self._session.call(
            address,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            ResetOffsetHeader(topic, group, timestamp_ms, force).to_ext(),
            accept=_ONLINE_OR_NOT,
        )
        if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return None
        with reading(address):
            return parse_offset_table(answer.body)

    async def reset_queue(self, group: str, queue: MessageQueue, offset: int) -> bool:
        """Have a broker tell the members of a group to go on at an offset of one queue; False when
        no member is online there, and the offset can be committed. Ours alone do so: RocketMQ's 4.9
        would reset all queues of the topic to their ends."""
        address = await self.administered_at(queue.broker_name)
        header = ResetOffsetHeader(
            queue.topic, group, END_OF_QUEUE, True, offset=offset, queue_id=queue.queue_id
        )
        answer = await self._session.call(
            address,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            header.to_ext(),
            accept=_ONLINE_OR_NOT,
        )
        return answer.code == ResponseCode.SUCCESS

    async def put_members_at(
        self, broker: str, group: str, topic: str, offsets: Mapping[MessageQueue, int]
    ) -> bool:
        """Have a broker of ours tell the members of a group to go on at these offsets of queues of
        a topic, and nowhere else in it; False when no member is online there. Never to be asked of
        RocketMQ's brokers, which know resets by a time alone."""
        body = dumps({"offsetTable": dict(offsets)})
        address = await self.administered_at(broker)
        answer = await self._session.call(
            address,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            ResetOffsetHeader(topic, group, END_OF_QUEUE, is_force=True).to_ext(),
            body,
            accept=_ONLINE_OR_NOT,
        )
        return answer.code == ResponseCode.SUCCESS

    async def clone_offsets(
        self, broker: str, source: str, group: str, topic: str | None = None
    ) -> str:
        """Give a group the offsets that another group has at a broker, in one topic or in all;
        returns the broker's remark about it, or ""."""
        address = await self.administered_at(broker)
        # Also topics that its members do not subscribe to any more, as its progress has it.
        ext = CloneOffsetHeader(source, group, topic or "", offline=True).to_ext()
        answer = await self._session.call(address, RequestCode.CLONE_GROUP_OFFSET, ext)
        return answer.remark or ""

    async def commit_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Set a group's next offset in a queue; members that are online commit over it."""
        self._session.check_running()
        await commit_offset(self._session, group, queue, offset)

    # Messages

    async def query_by_key(
        self,
        topic: str,
        key: str,
        *,
        max_messages: int = 64,
        begin_ms: int = 0,
        end_ms: int = FAR_FUTURE_MS,
    ) -> list[ReceivedMessage]:
        """Messages of a topic that carry a key and were stored within a time range, oldest first.

        Brokers look keys up by hash; what merely shares the hash is left out here.
        """
        header = QueryMessageHeader(topic, key, max_messages, begin_ms, end_ms)
        found = await self._query(header)
        return [message for message in found if key in message.keys][:max_messages]

    async def query_by_unique_key(self, topic: str, msg_id: str) -> list[ReceivedMessage]:
        """Messages sent under one unique id: one, or more when a producer had to retry."""
        header = QueryMessageHeader(topic, msg_id, 32, 0, FAR_FUTURE_MS, unique_key_query=True)
        return [message for message in await self._query(header) if message.msg_id == msg_id]

    async def _query(self, header: QueryMessageHeader) -> list[ReceivedMessage]:
        route = await self.route(header.topic)
        calls = [self._query_broker(broker, header) for broker in route.brokers]
        parts = await asyncio.gather(*calls)
        found = [message for part in parts for message in part if message.topic == header.topic]
        return sorted(found, key=lambda message: (message.store_timestamp_ms, message.log_offset))

    async def _query_broker(
        self, broker: BrokerRoute, header: QueryMessageHeader
    ) -> list[ReceivedMessage]:
        address = self._session.routes.readable_address(broker.name, MASTER_ID)
        if address is None:
            # This is not "nothing there": it was not looked for there.
            raise NoRoute(f"no route mentions an address of broker {broker.name!r}")
        answer = await self._session.call(
            address,
            RequestCode.QUERY_MESSAGE,
            header.to_ext(),
            accept=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        )
        if answer.code != ResponseCode.SUCCESS:
            return []
        with reading(address):
            inflater = Inflater()
            records = iterate_records(answer.body)
            return [received(stored, broker.name, inflater) for stored in records]

    async def view(self, offset_msg_id: str) -> ReceivedMessage:
        """The message that a broker's id names; the address in the id may be an earlier address of
        the broker.

        Raises CallerError for a text that is no such id, PeerFailed when no broker has it (any
        more), ConnectFailed when no broker could be asked: both say where it was looked for.
        """
        self._session.check_running()
        return await find_by_offset_id(self._session, (await self.cluster()).brokers, offset_msg_id)

    # Brokers

    async def broker_settings(self, broker: str | None = None) -> dict[str, dict[str, str]]:
        """The settings that masters run with, under RocketMQ's names, by the brokers' names.
        Brokers whose slaves alone are registered are left out; `settings_at` asks those."""
        found: dict[str, dict[str, str]] = {}
        masters = await self._administered(_masters(await self.cluster(), None, broker))
        for name, address in sorted(masters.items()):
            found[name] = await self._asked_settings(address)
        return found

    async def settings_at(self, address: str) -> dict[str, str]:
        """The settings that the broker at this address runs with, a slave too."""
        self._session.check_running()
        return await self._asked_settings(address)

    async def change_broker_settings(
        self, settings: Mapping[str, str], broker: str | None = None
    ) -> list[str]:
        """Change settings of running masters, by RocketMQ's names or a broker's own; their names.

        A broker does all of it or nothing, which raises `PeerError`. RocketMQ's takes any setting,
        Aerobee's what `admin.remote_config` lets it. The first that refuses ends it.
        """
        lines = [f"{_property(key)}={_property(value)}\n" for key, value in settings.items()]
        body = "".join(lines).encode()
        masters = await self._administered(_every_master(await self.cluster(), None, broker))
        for _name, address in sorted(masters.items()):
            await self._session.call(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)
        return sorted(masters)

    async def runtime_info(self, address: str) -> dict[str, str]:
        """A broker's own figures by name (protocol/WIRE.md 4.8)."""
        self._session.check_running()
        answer = await self._session.call(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        with reading(address):
            return parse_kv_table(answer.body)

    async def ha_state(self, address: str) -> BrokerHa:
        """The ends of a broker's log, and what it tells of its slaves or its master."""
        found = await self.runtime_info(address)
        with reading(address):
            end = int(found["commitLogMaxOffset"])
            begins = int(found.get("commitLogMinOffset", 0))
        answer = await self._session.call(
            address, RequestCode.GET_BROKER_HA_STATUS, accept=_TOLD_OR_NOT
        )
        if answer.code != ResponseCode.SUCCESS:
            return BrokerHa(end, None, begins)
        # One command reads it.
        from aerobee.protocol.bodies.ha_status import HaStatus

        with reading(address):
            return BrokerHa(end, HaStatus.parse(answer.body), begins)


def _property(text: str) -> str:
    """A key or value as a line of Java's properties has it, in ASCII."""
    units = text.encode("utf-16-be", "surrogatepass")
    parts = []
    for unit in struct.unpack(f">{len(units) // 2}H", units):
        character = chr(unit)
        if not " " <= character <= "~":
            parts.append(f"\\u{unit:04x}")
        else:
            parts.append(f"\\{character}" if character in "\\ =:#!" else character)
    return "".join(parts)


def _merged(parts: Iterable[Mapping[MessageQueue, T]]) -> dict[MessageQueue, T]:
    """All of them, in the order of the queues."""
    found: dict[MessageQueue, T] = {}
    for part in parts:
        found |= part
    return dict(sorted(found.items()))


def _masters(info: ClusterInfo, cluster: str | None, broker: str | None) -> dict[str, str]:
    """Addresses of the masters meant, by broker name; NoMaster when nobody is meant."""
    names = info.brokers if cluster is None else info.clusters.get(cluster, [])
    chosen = [info.brokers[name] for name in names if name in info.brokers]
    if broker is not None:
        chosen = [one for one in chosen if one.name == broker]
    addresses = masters(chosen)
    if not addresses:
        raise NoMaster(_nobody(info, cluster, broker))
    return addresses


def _every_master(info: ClusterInfo, cluster: str | None, broker: str | None) -> dict[str, str]:
    """The masters that a change goes to; MasterAway when a broker meant has slaves alone."""
    found = _masters(info, cluster, broker)
    names = info.brokers if cluster is None else info.clusters.get(cluster, [])
    if broker is None:
        _check_none_away({name for name in names if name in info.brokers} - found.keys())
    return found


def _check_none_away(away: Collection[str]) -> None:
    if away:
        raise MasterAway(
            f"no master of {', '.join(sorted(away))} is registered, so nothing was changed: start "
            "it, or make a slave of it the master"
        )


def _nobody(info: ClusterInfo, cluster: str | None, broker: str | None) -> str:
    """Says that the masters asked for are not known, and which masters are."""
    if broker is not None:
        what, known = f"broker {broker!r}", sorted(masters(info.brokers.values()))
    elif cluster is not None:
        what, known = f"cluster {cluster!r}", sorted(info.clusters)
    else:
        return "no name server knows a master of any broker"
    return f"no name server knows a master of {what}: there is {', '.join(known) or 'none'}"
