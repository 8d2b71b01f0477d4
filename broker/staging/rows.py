"""Staged rows: a chunk's bytes to messages as they are published, and the check before it is taken.

Once an intent names a chunk its rows have to be published, whatever they are. So everything a send
would be refused for is looked at when the chunk arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

from aerobee.broker.messages.stored_properties import stored_properties
from aerobee.broker.tables.topics import TopicTable
from aerobee.protocol.bodies.routes import PERM_WRITE
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.headers.stages import Run, chunk_runs, decode_chunk
from aerobee.protocol.message.batch import BatchItem, batch_items, decode_batch
from aerobee.protocol.message.demands import DEMANDS, RETRY, Carrier
from aerobee.protocol.message.properties import MAX_PROPERTIES_BYTES, PROPERTY_DELAY
from aerobee.protocol.message.record import Message, StoreMessage
from aerobee.protocol.message.record_layout import pack_host
from aerobee.protocol.message.record_seal import SEAL_BYTES
from aerobee.protocol.names import AUTO_CREATE_TOPIC

T = TypeVar("T")

# Runs, or rows, that are looked at in one step: 2 us each.
_STEP = 128
# Bytes that the broker adds to a message's properties: its cluster's name and perhaps a seal.
_ADDED_BYTES = 256 + SEAL_BYTES
_TEMPLATE_QUEUES = 4
#: How a message's properties say that it is to be held back.
DELAY_ENTRY = PROPERTY_DELAY.encode() + b"\x01"
# How properties begin that no row may have, whatever their values, and why.
_REFUSED_ENTRIES = [
    (name.encode() + b"\x01", demand.verdicts[Carrier.ROW].why)
    for demand in DEMANDS
    if demand.verdicts[Carrier.ROW].why
    for name in demand.names
]


class Row(NamedTuple):
    """One row of a chunk and where it goes."""

    topic: str
    queue_id: int
    item: BatchItem


class StagedRows(Protocol):
    """The compiled form's way with rows that ask for no more than to be stored; what it does not
    take goes the way that is written here and in publish.py, with the same bytes."""

    def plain_rows(self, body: bytes, most_body: int, most_properties: int) -> int:
        """How many messages a batch body holds; -1 if one is not plain, or larger than that."""

    def put_rows(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        skip: int,
        most: int,
        born_ms: int,
        born_host: bytes,
    ) -> int:
        """Store up to `most` messages of a batch body, behind the first `skip`; how many, 0 if
        nothing was done."""


def rows_of(body: bytes) -> list[Row]:
    """The rows of a chunk, in order. Raises BadRequest for other bytes."""
    return [
        Row(run.topic, run.queue_id, item)
        for run in decode_chunk(body)
        for item in decode_batch(run.body)
    ]


def publish_form(row: Row, chunk: Message, cluster: str, store_host: bytes) -> StoreMessage:
    """The message a row becomes; `chunk` is its chunk's record. The same each time."""
    properties = stored_properties(row.item.properties.decode(), cluster, Carrier.ROW)
    return StoreMessage(
        row.topic,
        row.queue_id,
        row.item.flag,
        0,
        chunk.born_timestamp_ms,
        pack_host(*chunk.born_host),
        store_host,
        0,
        0,
        row.item.body,
        properties.encoded,
        properties.tags_code,
        properties.keys,
    )


def _in_steps(parts: Iterator[T]) -> Generator[None, None, list[T]]:
    """All of them, in a list."""
    found: list[T] = []
    while some := list(islice(parts, _STEP)):
        found += some
        yield None
    return found


class ChunkCheck:
    """Judges chunks as sends are judged. Loop thread only."""

    def __init__(
        self,
        topics: TopicTable,
        max_message_bytes: int,
        broker_writable: Callable[[], bool],
        *,
        delays: bool,
    ) -> None:
        self._topics = topics
        self._max_message_bytes = max_message_bytes
        self._broker_writable = broker_writable
        self._delays = delays
        self.staged_rows: StagedRows | None = None

    def check(
        self, body: bytes, rows: int, topics: set[str]
    ) -> Generator[None, None, list[asyncio.Future[None]]]:
        """In steps; `topics` gets those of the rows. Raises BadRequest for a chunk that could not
        be published as it is.

        Begins to make topics that do not exist yet, where a send would; returns what to wait for.
        """
        count = 0
        creations: dict[asyncio.Future[None], None] = {}
        # No topic is made for a chunk that is broken.
        for run in (yield from _in_steps(chunk_runs(body))):
            self._check_queue(run, creations)
            topics.add(run.topic)
            if self._is_plain(run):
                count += run.rows
                yield None
                continue
            items = yield from _in_steps(batch_items(run.body))
            if not items:
                raise BadRequest.illegal_message("the batch holds no message")
            if len(items) != run.rows:
                raise BadRequest.illegal_message(
                    f"topic {run.topic}: {len(items)} rows where {run.rows} are announced"
                )
            for number, item in enumerate(items, count):
                self._check_row(number, run.topic, item)
                if number % _STEP == 0:
                    yield None
            count += len(items)
        if count != rows:
            raise BadRequest.illegal_message(f"{count} rows where {rows} are announced")
        return list(creations)

    def _is_plain(self, run: Run) -> bool:
        """Whether all its rows are as announced, and there is nothing to say against one."""
        rows = self.staged_rows
        most = self._max_message_bytes, MAX_PROPERTIES_BYTES - _ADDED_BYTES
        return rows is not None and rows.plain_rows(run.body, *most) == run.rows

    def _check_queue(self, run: Run, creations: dict[asyncio.Future[None], None]) -> None:
        name = run.topic
        if self._topics.is_system(name) or name.startswith(RETRY.prefix):
            raise BadRequest.no_permission(RETRY.verdicts[Carrier.ROW].why.format(name))
        topic = self._topics.get(name)
        if topic is None:
            creations[self._create(name)] = None
            topic = self._topics.expected_config(name)
            assert topic is not None, name
        if not topic.perm & PERM_WRITE or not self._broker_writable():
            raise BadRequest.no_permission(f"the topic[{name}] sending message is forbidden")
        if not 0 <= run.queue_id < max(topic.write_queues, topic.read_queues):
            raise BadRequest.system_error(
                f"request queueId[{run.queue_id}] is illegal, topic[{name}] has "
                f"{topic.write_queues} write queues"
            )

    def _create(self, name: str) -> asyncio.Future[None]:
        creation = self._topics.create_on_send(name, AUTO_CREATE_TOPIC, _TEMPLATE_QUEUES, 0)
        if creation is None:
            reason = self._topics.limit_reached(AUTO_CREATE_TOPIC) or "automatic creation is off"
            raise BadRequest(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{name}] not exist, apply first please! ({reason})",
            )
        return creation

    def _check_row(self, number: int, topic: str, item: BatchItem) -> None:
        if len(item.body) > self._max_message_bytes:
            raise self._illegal(
                number,
                topic,
                f"the body has {len(item.body)} bytes, {self._max_message_bytes} (maxMessageSize) "
                "are allowed",
            )
        if len(item.properties) > MAX_PROPERTIES_BYTES - _ADDED_BYTES:
            raise self._illegal(
                number,
                topic,
                f"the properties have {len(item.properties)} bytes, "
                f"{MAX_PROPERTIES_BYTES - _ADDED_BYTES} are allowed in a stage",
            )
        for entry, why in _REFUSED_ENTRIES:
            if has_entry(item.properties, entry):
                raise self._illegal(number, topic, why)
        if not self._delays and has_entry(item.properties, DELAY_ENTRY):
            raise self._illegal(number, topic, "delayed delivery is not served by this version")

    def _illegal(self, number: int, topic: str, reason: str) -> BadRequest:
        return BadRequest.illegal_message(f"row {number} of the chunk, topic {topic}: {reason}")


def has_entry(properties: bytes, entry: bytes) -> bool:
    """Whether stored properties have an entry that begins so (name and U+0001)."""
    return properties.startswith(entry) or b"\x02" + entry in properties
