"""Stand-ins for what the client and admin requests of the broker are given."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from aerobee.broker.appending.held_pulls import HeldPulls
from aerobee.broker.background.loop_workers import BodyReader
from aerobee.broker.broker_stats import BrokerStats, Tally
from aerobee.broker.tables.clients import ClientTable
from aerobee.broker.tables.expressions import Expressions
from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.broker.tables.filters import FilterTable
from aerobee.broker.tables.groups import GroupTable
from aerobee.broker.tables.lag import ConsumerLag
from aerobee.broker.tables.offsets import ConsumerOffsets
from aerobee.broker.tables.topics import TopicTable
from aerobee.config.model import Settings
from aerobee.protocol.frames.command import Command, make_request
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.connections.serving import Answer
from aerobee.remoting.turns import Turns
from aerobee.store.disk.owner import OnOwner
from aerobee.store.message_store import MessageStore
from tests.inline_loop import INLINE, drive
from tests.unit.broker.second_step.second_step_support import no_retries

NOW_MS = 1_700_000_000_000
BODIES = BodyReader(INLINE)
SQL_LIMITS = Settings.for_tests(
    max_sql_chars=8192, max_sql_depth=64, max_sql_nodes=512, sql_filter_bytes=1 << 20
)


class Peer:
    """A connection that remembers what was written to it."""

    def __init__(self, port: int, ip: str = "192.0.2.1") -> None:
        self.peer = (ip, port)
        self.closed = False
        self.close_reason = ""
        self._decoder = FrameDecoder()
        self.received: list[Command] = []

    def write(self, data: bytes) -> None:
        self.received += self._decoder.feed(data)

    def close(self, reason: str) -> None:
        self.closed, self.close_reason = True, reason

    @property
    def connection(self) -> Connection:
        return cast("Connection", self)

    def notified(self) -> list[str]:
        """Groups of the notifications received since the last call."""
        groups = [command.ext["consumerGroup"] for command in self.received]
        assert all(command.code == 40 and command.is_oneway for command in self.received)
        self.received = []
        return groups


class Producer(Peer):
    """A connection that has room, unless a test says not."""

    full = False

    def push(self, command: Command) -> None:
        self.write(command.encode())

    def asked(self) -> list[Command]:
        """The checks since the last call."""
        received, self.received = self.received, []
        return received


class Clock:
    """Monotonic seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Queues:
    """A store's queues: (min offset, store time of each message by offset)."""

    def __init__(self) -> None:
        self.table: dict[tuple[str, int], tuple[int, list[int]]] = {}
        self.on_disk: set[tuple[str, int]] = set()
        self.deleted: list[str] = []
        self.kept: list[tuple[str, int]] = []
        self.reader = self.search = self

    def put(self, topic: str, queue_id: int, times: Iterable[int], min_offset: int = 0) -> None:
        self.table[topic, queue_id] = (min_offset, list(times))

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self.table.get((topic, queue_id), (0, []))[0]

    def max_offset(self, topic: str, queue_id: int) -> int:
        low, times = self.table.get((topic, queue_id), (0, []))
        return low + len(times)

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        low, times = self.table.get((topic, queue_id), (0, []))
        return times[queue_offset - low] if low <= queue_offset < low + len(times) else -1

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int) -> int:
        low, times = self.table.get((topic, queue_id), (0, []))
        return low + sum(time < time_ms for time in times)

    def is_in_memory(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        known = self.store_time(topic, queue_id, queue_offset) >= 0
        return known and (topic, queue_id) not in self.on_disk

    def queues(self) -> Iterator[tuple[str, int]]:
        return iter(list(self.table))

    def remove_topics(
        self, topics: Iterable[str], on_owner: OnOwner, confirm: Callable[[str], bool]
    ) -> int:
        gone = on_owner(lambda: [topic for topic in topics if confirm(topic)])
        self.deleted += gone
        return len(gone)

    def clean_expired(self, on_owner: OnOwner, in_use: Callable[[str, int], bool]) -> int:
        keys = list(self.table)
        self.kept = on_owner(lambda: [key for key in keys if in_use(*key)])
        return len(keys)


class Endless(Turns):
    """A turn that is never over, without a loop."""

    def slice_until(self, now: float) -> float:
        return now + 3600


class Tables:
    """The broker's tables on files below a folder; saved at once, unless there is a loop."""

    def __init__(
        self, folder: Path, *, auto_create: bool = True, loop: asyncio.AbstractEventLoop = INLINE
    ) -> None:
        self.clock = Clock()
        self.queues = Queues()
        self.warnings = Tally()
        self.topics = TopicTable(
            Settings.for_tests(
                broker_name="b-a",
                cluster_name="C1",
                auto_create_topic=auto_create,
                max_topics=1000,
                auto_create_per_minute=1000,
            ),
            JsonStateFile(folder / "topics.json"),
            lambda: NOW_MS,
            loop,
        )
        self.groups = GroupTable(
            Settings.for_tests(auto_create_group=auto_create, max_groups=100),
            JsonStateFile(folder / "subscriptionGroup.json"),
            lambda: NOW_MS,
            loop,
        )
        self.offsets = ConsumerOffsets(
            JsonStateFile(folder / "consumerOffset.json"), self.queues.max_offset
        )
        self.clients = ClientTable(Settings(), self.clock, self.warnings)
        self.stats = BrokerStats()
        self.retries = no_retries()
        self.lag = ConsumerLag(
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            clients=self.clients,
            stats=self.stats,
            store=cast("MessageStore", self.queues),
            retries=self.retries,
        )
        self.expressions = Expressions(loop, SQL_LIMITS)
        self.filters = FilterTable(
            SQL_LIMITS, JsonStateFile(folder / "consumerFilter.json"), lambda: NOW_MS
        )


def no_pulls_held() -> HeldPulls:
    """A table of held pulls that stays empty."""
    return HeldPulls(Settings.for_tests(), lambda: 0.0, Endless(), cast("MessageStore", None))


def heartbeat_body(
    client_id: str,
    groups: dict[str, dict[str, str]],
    producers: Iterable[str] = (),
    version: int = 1,
) -> bytes:
    """A heartbeat of consumer groups: topic -> expression for each."""
    return json.dumps(
        {
            "clientID": client_id,
            "producerDataSet": [{"groupName": name} for name in producers],
            "consumerDataSet": [
                {
                    "groupName": name,
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                    "subscriptionDataSet": [
                        {"topic": topic, "subString": expression, "subVersion": version}
                        for topic, expression in topics.items()
                    ],
                }
                for name, topics in groups.items()
            ],
        }
    ).encode()


def request(code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> Command:
    """A request with all values of `ext` as text."""
    return make_request(code, {key: str(value) for key, value in (ext or {}).items()}, body)


def answer(served: Answer) -> Command:
    """The one command in the answer of a handler."""
    data = drive(served)
    assert data is not None
    [command] = FrameDecoder().feed(data)
    assert command.is_response
    return command
