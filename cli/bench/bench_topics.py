"""Makes the topics of a measurement, fills them for pulls, and counts their messages at the end.

Only a topic that was made here under a name of its own is ever deleted. A topic that the user named
is used as it is, or made if it is not there (except for pulls, which need messages), and stays.
"""

import asyncio
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from aerobee.cli.bench.bench_plan import BenchPlan
from aerobee.cli.bench.generator.security import is_refusal
from aerobee.cli.bench.loads import Mode
from aerobee.cli.printing.output import CommandFailed, say
from aerobee.client.admin import Admin
from aerobee.client.connections.routes import read_queues, write_queues
from aerobee.client.errors import ClientError, NoRoute, PeerBusy, PeerError
from aerobee.client.message import Message
from aerobee.client.options import ProducerOptions
from aerobee.client.producing.producer import Producer
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.routes import ClusterInfo, TopicRoute, masters
from aerobee.protocol.bodies.statistics import QueueOffsets

PREFIX: Final = "aerobee-bench"
_ROUTE_POLL_S: Final = 0.1
_STORED_POLL_S: Final = 0.1
_BUSY_PAUSE_S: Final = 0.2
_AT_ONCE: Final = 16
_FILL_AT_ONCE: Final = 4
_FILL_BATCH: Final = 32
_FILL_BATCH_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class BenchTopic:
    """A topic as the connections need it: its queues, and the masters by the brokers' names."""

    topic: str
    write: list[MessageQueue]
    read: list[MessageQueue]
    addresses: dict[str, str]
    begun: dict[MessageQueue, QueueOffsets]  # before anything was sent


@dataclass(slots=True)
class Topics:
    """The topics of one measurement."""

    admin: Admin
    name_servers: str
    plan: BenchPlan
    places: list[BenchTopic] = field(default_factory=list)
    _made: list[str] = field(default_factory=list)  # under names of our own

    async def prepare(self) -> None:
        """Find or make all topics; `places` has them then. Raises CommandFailed and ClientError."""
        plan = self.plan
        cluster = await self.admin.cluster()
        names = await self._names(cluster)
        turns = asyncio.Semaphore(_AT_ONCE)

        async def place(name: str) -> BenchTopic:
            async with turns:
                return await self._place(name)

        self.places = list(await asyncio.gather(*(place(name) for name in names)))
        if plan.mode is Mode.PULL and self._made:
            await self._fill(self.places[0])
            self.places = [await self._place(self.places[0].topic)]

    async def clean_up(self) -> None:
        """Delete topics that were made under names of our own, unless they are to be kept."""
        if not self._made:
            return
        what = self._made[0] if len(self._made) == 1 else f"{self._made[0]} and others like it"
        if self.plan.keep:
            say(f"topic {what} is kept: aerobee topic delete removes it")
            return
        deleted = failed = 0
        for name in self._made:
            try:
                await self.admin.delete_topic(name)
                deleted += 1
            except NoRoute:
                continue  # it was not made after all
            except ClientError as error:
                failed += 1
                say(f"topic {name} was not deleted: {error}")
        if deleted and not failed:
            say(f"topic {what} is deleted; the log keeps its messages until they expire")

    async def stored(self, at_least: int) -> int:
        """Returns how many messages the topics got since the beginning. Dispatch follows the log,
        so this waits until there are `at_least`, for the plan's time-out at most."""
        until_s = time.monotonic() + self.plan.timeout_s
        while True:
            count = await self._grown()
            if count >= at_least or time.monotonic() > until_s:
                return count
            await asyncio.sleep(_STORED_POLL_S)

    async def _grown(self) -> int:
        turns = asyncio.Semaphore(_AT_ONCE)

        async def grown(place: BenchTopic) -> int:
            async with turns:
                now = await self.admin.topic_stats(place.topic)
            before = place.begun
            return sum(
                offsets.max_offset - (before[queue].max_offset if queue in before else 0)
                for queue, offsets in now.items()
            )

        return sum(await asyncio.gather(*(grown(place) for place in self.places)))

    # Making topics

    async def _names(self, cluster: ClusterInfo) -> list[str]:
        """Returns the names of all topics, after it has found or made each of them."""
        plan = self.plan
        if plan.topic is not None:
            await self._find_or_make(plan.topic, cluster)
            return [plan.topic]
        stem = f"{PREFIX}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        names = [stem] if plan.topics == 1 else [f"{stem}-{n}" for n in range(plan.topics)]
        queues = self._queues_each(cluster)
        for name in names:
            self._made.append(name)
            await self._create(name, queues)
        many = f"{names[0]} to {names[-1]}" if len(names) > 1 else names[0]
        end = "is kept" if plan.keep else "is deleted at the end"
        say(f"topic {many} with {queues} queues on each broker: made, {end}")
        return names

    async def _find_or_make(self, name: str, cluster: ClusterInfo) -> None:
        if await self._is_there(name):
            return
        if self.plan.mode is Mode.PULL:
            raise CommandFailed(
                f"topic {name} is not there, and a pull needs messages: leave --topic out, and one "
                "is made and filled"
            )
        if name.startswith("%"):
            raise CommandFailed(
                f"topic {name} is not there, and names that begin with % are those of groups: give "
                "another --topic"
            )
        queues = self._queues_each(cluster)
        await self._create(name, queues)
        say(f"topic {name} was not there: made with {queues} queues on each broker, and it stays")

    async def _is_there(self, name: str) -> bool:
        """Whether a broker has the topic, or the name servers know it. The name servers are asked
        because brokers with accounts show their topics to administrators only, and a measurement
        may run with the rights of an ordinary account."""
        try:
            return any((await self.admin.topic_settings(name, broker=self.plan.broker)).values())
        except PeerError as error:
            if not is_refusal(error):
                raise
        try:
            await self.admin.route(name)
        except NoRoute:
            return False
        return True

    async def _create(self, name: str, queues: int) -> None:
        try:
            await self.admin.create_topic(name, queues=queues, broker=self.plan.broker)
        except PeerError as error:
            if not is_refusal(error):
                raise
            hint = "administrators make topics: --topic names one that is there"
            raise CommandFailed(f"{error} ({hint})") from error

    def _queues_each(self, cluster: ClusterInfo) -> int:
        brokers = 1 if self.plan.broker else max(1, len(masters(cluster.brokers.values())))
        return max(1, self.plan.queues // brokers) if self.plan.queues_shared else self.plan.queues

    async def _place(self, name: str) -> BenchTopic:
        """Returns the topic once the name servers know it: they do a moment after the brokers."""
        until_s = time.monotonic() + self.plan.timeout_s
        while True:
            try:
                route = await self.admin.route(name)
            except NoRoute:
                if time.monotonic() > until_s:
                    raise
            else:
                if write_queues(name, route) or time.monotonic() > until_s:
                    break
            await asyncio.sleep(_ROUTE_POLL_S)
        return self._checked(name, route, await self.admin.topic_stats(name))

    def _checked(
        self, name: str, route: TopicRoute, begun: dict[MessageQueue, QueueOffsets]
    ) -> BenchTopic:
        addresses = masters(route.brokers)
        wanted = self.plan.broker
        if wanted is not None:
            addresses = {broker: one for broker, one in addresses.items() if broker == wanted}
        place = BenchTopic(
            name,
            _on(addresses, write_queues(name, route)),
            _on(addresses, read_queues(name, route)),
            addresses,
            begun,
        )
        if self.plan.producers and not place.write:
            raise CommandFailed(f"topic {name} has no queue to write to: aerobee topic describe")
        if (self.plan.readers or self.plan.consumes) and not place.read:
            raise CommandFailed(f"topic {name} has no queue to read from: aerobee topic describe")
        return place

    # Filling a topic for pulls

    async def _fill(self, place: BenchTopic) -> None:
        """Store as many messages as the plan wants, evenly over the queues."""
        plan = self.plan
        size = plan.payload.size
        bodies = plan.payload.bodies(plan.seed)
        each = max(1, min(_FILL_BATCH, _FILL_BATCH_BYTES // size))
        say(f"{plan.stored} messages of {size} bytes are stored for it to pull")
        left = iter(_portions(plan.stored, each, place.write))
        options = plan.security.options(ProducerOptions)
        async with Producer(self.name_servers, options=options) as producer:

            async def send_some() -> None:
                for count, queue in left:
                    batch = [Message(place.topic, bodies[n % len(bodies)]) for n in range(count)]
                    await _store(producer, batch, queue, plan.timeout_s)

            await asyncio.gather(*(send_some() for _ in range(_FILL_AT_ONCE)))
        await self.stored(plan.stored)


async def _store(
    producer: Producer, batch: Sequence[Message], queue: MessageQueue, within_s: float
) -> None:
    """Send a batch, and send it again while the broker says that it is busy: nothing is measured
    yet."""
    until_s = time.monotonic() + within_s
    while True:
        try:
            await producer.send_batch(batch, queue=queue)
            return
        except PeerBusy:
            if time.monotonic() > until_s:
                raise
        await asyncio.sleep(_BUSY_PAUSE_S)


def _on(brokers: Iterable[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    names = frozenset(brokers)
    return [queue for queue in queues if queue.broker_name in names]


def _portions(
    total: int, each: int, queues: Sequence[MessageQueue]
) -> Iterable[tuple[int, MessageQueue]]:
    turn = 0
    while total > 0:
        yield min(each, total), queues[turn % len(queues)]
        total -= each
        turn += 1
