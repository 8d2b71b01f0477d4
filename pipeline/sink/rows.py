"""Rows of a DataFrame made into messages ready for a batch: checked, encoded, given their queue.

An error names the row, counted from 0 in its partition, and the topic. The row's number is also in
the property SPARK_ID, by which a consumer can drop repeats, as far as the plan is deterministic.

Queues: `queueId` as it is; a `shardingKey` by its Java hash over all queues of the topic, as Java's
producers choose; other rows go round, some side by side, so that batches are filled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aerobee.pipeline.sink.schema import SinkColumns
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.hashing import java_hash
from aerobee.protocol.message.batch import BatchItem, encode_batch
from aerobee.protocol.message.ids import UniqueIdMaker
from aerobee.protocol.message.properties import (
    MAX_PROPERTIES_BYTES,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_KEY,
)
from aerobee.protocol.names import RETRY_PREFIX, check_topic_name

if TYPE_CHECKING:
    import pyarrow as pa

    from aerobee.protocol.bodies.common import MessageQueue

PROPERTY_SPARK_ID: Final = "SPARK_ID"
MAX_DELAY_LEVEL: Final = 18
# A broker adds properties to a message, which need room too.
PROPERTIES_BYTES: Final = MAX_PROPERTIES_BYTES - 512
# Rows without a key that follow each other go to one queue: a batch has one queue.
SIDE_BY_SIDE: Final = 100
# So many messages our broker takes as one batch in its compiled form (native/sends.pxd).
MOST_TOGETHER: Final = 127
# Names that a row's map of properties cannot set: the sink's own, and orders to the broker that
# came with a message from a topic and were carried out there.
LEFT_OUT: Final = frozenset(
    {PROPERTY_SPARK_ID, PROPERTY_UNIQUE_KEY, PROPERTY_DELAY, PROPERTY_TRANSACTION_PREPARED}
)


class SinkRowError(ValueError):
    """A row that cannot become a message; the text names row and topic."""


class Row(NamedTuple):
    """A message on its way; `number` is its row's. `size` is what it adds to a batch's body."""

    number: int
    queue: MessageQueue
    flag: int
    body: bytes
    properties: bytes
    delay_level: int

    @property
    def size(self) -> int:
        return 22 + len(self.body) + len(self.properties)

    @property
    def last(self) -> int:
        """The number of its last row, as of a piece."""
        return self.number

    @property
    def rows(self) -> int:
        """How many rows it is."""
        return 1

    @property
    def encoded(self) -> bytes:
        """The bytes of the row in the body of a batch."""
        return encode_batch([BatchItem(self.flag, self.body, self.properties)])


class PackedRun(NamedTuple):
    """Rows of one queue as they stand in the body of a batch, from row `number` to row `last`."""

    queue: MessageQueue
    number: int
    last: int
    rows: int
    encoded: memoryview

    @property
    def size(self) -> int:
        return len(self.encoded)


@dataclass
class RowMaker:
    """Makes one partition's rows into messages. `queues_of` gives a topic's queues, sorted."""

    columns: SinkColumns
    topic: str | None
    task: str
    partition: int
    queues_of: Callable[[str], Sequence[MessageQueue]]
    ids: UniqueIdMaker
    _queues: dict[str, Sequence[MessageQueue]] = field(default_factory=dict, init=False)
    _plain: dict[str, int] = field(default_factory=dict, init=False)

    def rows(self, values: Iterable[Sequence[Any]], first: int = 0) -> Iterator[Row]:
        """Makes messages of rows, given as sequences of values; the first row has the number
        `first` in its partition. Raises SinkRowError."""
        for number, row in enumerate(values, first):
            yield self.row(number, row)

    def queues_of_topic(self, topic: str, number: int) -> Sequence[MessageQueue]:
        """The queues of a topic that row `number` is for. Raises SinkRowError."""
        if topic not in self._queues:
            self._look_up(number, topic)
        return self._queues[topic]

    def turn(self, topic: str, rows: int = 1) -> int:
        """The place of the next rows without a key or queue among all of that topic."""
        turn = self._plain[topic]
        self._plain[topic] = turn + rows
        return turn

    def row(self, number: int, row: Sequence[Any]) -> Row:
        """The message of one row. Raises SinkRowError."""
        columns = self.columns
        topic = self.topic
        if topic is None:
            assert columns.topic is not None
            topic = row[columns.topic]
        if topic not in self._queues:
            self._look_up(number, topic)
        assert topic is not None
        body = row[columns.body]
        if body is None:
            raise _wrong(number, topic, "body is null")
        data = body.encode() if isinstance(body, str) else bytes(body)
        if not data:
            raise _wrong(number, topic, "body is empty, which no broker takes")
        level = _value(row, columns.delay_level) or 0
        if not 0 <= level <= MAX_DELAY_LEVEL:
            raise _wrong(
                number, topic, f"delayTimeLevel must be 0 to {MAX_DELAY_LEVEL}, it is {level}"
            )
        flag = _value(row, columns.flag) or 0
        if not -(1 << 31) <= flag < 1 << 31:
            raise _wrong(number, topic, f"flag {flag} does not fit 32 bits")
        properties = self._properties(number, topic, row, level)
        return Row(number, self._choose(number, topic, row), flag, data, properties, level)

    def _look_up(self, number: int, topic: str | None) -> None:
        if topic is None:
            raise _wrong(number, None, "topic is null")
        try:
            check_topic_name(topic)
        except BadRequest as error:
            raise _wrong(number, topic, error.remark) from None
        if topic.startswith(RETRY_PREFIX):
            raise _wrong(number, topic, "rows cannot go to a retry topic")
        self._queues[topic] = self.queues_of(topic)
        # Tasks begin at different queues.
        self._plain[topic] = self.partition * SIDE_BY_SIDE

    def _properties(self, number: int, topic: str, row: Sequence[Any], level: int) -> bytes:
        columns = self.columns
        entries: list[tuple[str, str]] = []
        given = _value(row, columns.properties)
        if given:
            pairs = given.items() if isinstance(given, dict) else given
            entries = [(name, value) for name, value in pairs if name not in LEFT_OUT and value]
        if headers := _value(row, columns.headers):
            entries += _of_headers(number, topic, headers)
        keys = _value(row, columns.keys) or ""
        words = keys if isinstance(keys, str) else " ".join([key for key in keys if key])
        if words:
            entries.append((PROPERTY_KEYS, words))
        tags = _value(row, columns.tags)
        if tags:
            entries.append((PROPERTY_TAGS, tags))
        if level:
            entries.append((PROPERTY_DELAY, str(level)))
        entries.append((PROPERTY_SPARK_ID, f"{self.task}/{number}"))
        entries.append((PROPERTY_UNIQUE_KEY, self.ids.next_id()))
        text = "\x02".join([f"{name}\x01{value}" for name, value in entries])
        if text.count("\x01") != len(entries) or text.count("\x02") != len(entries) - 1:
            name = next(name for name, value in entries if _has_separator(name + value))
            raise _wrong(
                number, topic, f"property {name!r} holds U+0001 or U+0002, which separate them"
            )
        encoded = text.encode("utf-8", "replace")
        if len(encoded) > PROPERTIES_BYTES:
            raise _wrong(
                number,
                topic,
                f"the properties have {len(encoded)} bytes, {PROPERTIES_BYTES} are allowed",
            )
        return encoded

    def _choose(self, number: int, topic: str, row: Sequence[Any]) -> MessageQueue:
        columns, queues = self.columns, self._queues[topic]
        queue_id = _value(row, columns.queue_id)
        if queue_id is not None:
            of_that_id = [queue for queue in queues if queue.queue_id == queue_id]
            if not of_that_id:
                last = max(queue.queue_id for queue in queues)
                text = f"there is no queue {queue_id} to write to, there are 0 to {last}"
                raise _wrong(number, topic, text)
            return of_that_id[number % len(of_that_id)]
        key = _value(row, columns.sharding_key)
        if key is not None:
            return queues[abs(java_hash(key)) % len(queues)]
        return queues[self.turn(topic) // SIDE_BY_SIDE % len(queues)]


def _of_headers(number: int, topic: str, headers: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """The entries of Kafka's headers: their bytes are text, or the row cannot be a message."""
    for header in headers:
        name, value = header.values() if isinstance(header, dict) else header
        if name in LEFT_OUT or not value:
            continue
        try:
            yield name, bytes(value).decode()
        except UnicodeDecodeError:
            text = f"header {name!r} is no UTF-8, as the values of properties must be"
            raise _wrong(number, topic, text) from None


def values_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    """The rows of Arrow batches."""
    for batch in batches:
        yield from zip(*[column.to_pylist() for column in batch.columns], strict=True)


def _value(row: Sequence[Any], place: int | None) -> Any:
    return None if place is None else row[place]


def _has_separator(text: str) -> bool:
    return "\x01" in text or "\x02" in text


def _wrong(number: int, topic: str | None, reason: str) -> SinkRowError:
    where = "" if topic is None else f", topic {topic!r}"
    return SinkRowError(f"row {number} of its partition{where}: {reason}")
