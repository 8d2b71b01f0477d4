"""Sends one partition's messages, many at a time: staged in chunks, or as batches to their queues.

Both senders gather rows, send a batch once it has `batch_bytes`, without waiting for the answer,
and keep at most `in_flight` requests open; `finish` sends the rest and waits for all answers. Rows
of one queue stay in their order inside a request and, where nothing is retried, between requests.

A request that fails for good raises SinkSendError, which names its rows and topics.

Threads: a sender belongs to Spark's task; the requests run on the client's loop thread.
"""

from __future__ import annotations

import abc
import asyncio
import logging
import sys
import uuid
from collections import Counter, deque
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

from aerobee.client.errors import ClientError
from aerobee.client.loop_thread import LoopThread
from aerobee.client.producing.sender import Outgoing, SendStatus
from aerobee.client.producing.staging import StageClient
from aerobee.pipeline.sink.rows import MOST_TOGETHER, PackedRun, Row, SinkRowError
from aerobee.pipeline.sink.sink_options import SinkOptions
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.headers.stages import (
    Run,
    StageCapability,
    StageChunkHeader,
    StagePart,
    chunk_crc,
    encode_chunk,
    stage_checksum,
)

K = TypeVar("K")

log = logging.getLogger("aerobee.pipeline")

# Gathered for all queues together, whatever `batch_bytes` is.
_GATHERED_BYTES: Final = 32 * 1024 * 1024
# A chunk needs room beside its rows for the head of a run, with the longest topic name.
_RUN_BYTES: Final = 160
# Spark waits with the news of a failed task.
_GIVE_UP_S: Final = 2.0


class SinkSendError(RuntimeError):
    """Rows that could not be stored; the text names them and their topic."""


def named(rows: Sequence[Row | PackedRun]) -> str:
    """Rows by number and topic, for errors."""
    topics = ", ".join(sorted({repr(row.queue.topic) for row in rows}))
    first, last = min(row.number for row in rows), max(row.last for row in rows)
    which = f"row {first}" if first == last else f"rows {first} to {last}"
    return f"{which} of the partition, topic {topics}"


def _batch_body(rows: Sequence[Row | PackedRun]) -> bytes:
    return b"".join([row.encoded for row in rows])


class _Gathered:
    """Rows of one request that is not sent yet, by queue; each queue takes `queue_bytes` more."""

    def __init__(self, queue_bytes: int) -> None:
        self.by_queue: dict[MessageQueue, list[Row | PackedRun]] = {}
        self.size = 0
        self.count = 0
        self._queue_bytes = queue_bytes

    def add(self, row: Row | PackedRun) -> None:
        rows = self.by_queue.get(row.queue)
        if rows is None:
            rows = self.by_queue[row.queue] = []
            self.size += self._queue_bytes
        rows.append(row)
        self.size += row.size
        self.count += row.rows

    def rows(self) -> list[Row | PackedRun]:
        return [row for rows in self.by_queue.values() for row in rows]


class TaskSender(abc.ABC, Generic[K]):
    """Sends the messages of a task. Rows that go into one request have one key."""

    _queue_bytes = 0
    _most_rows = sys.maxsize

    def __init__(self, client: StageClient, thread: LoopThread, options: SinkOptions) -> None:
        self._client = client
        self._thread = thread
        self._batch_bytes = options.batch_bytes
        self._most_in_flight = options.in_flight
        self._in_flight: deque[tuple[Future[Any], Sequence[Row | PackedRun]]] = deque()
        self._gathered: dict[K, _Gathered] = {}

    @abc.abstractmethod
    def add(self, row: Row) -> None:
        """Take a message; may send, and wait for room. Raises SinkSendError, SinkRowError."""

    @abc.abstractmethod
    def takes(self, largest_body: int, largest_row: int, brokers: Iterable[str]) -> bool:
        """Whether each row of pieces for these brokers can be stored, to judge by the largest."""

    @abc.abstractmethod
    def add_piece(self, piece: PackedRun) -> None:
        """Take rows that it `takes`; as `add`."""

    def finish(self) -> list[StagePart]:
        """Send the rest and wait for all answers; returns what was staged. Raises SinkSendError."""
        for key in list(self._gathered):
            self._flush(key)
        while self._in_flight:
            self._wait_first()
        return []

    @abc.abstractmethod
    def discard(self) -> None:
        """The task has failed: drop what was staged, as far as that is quickly done."""

    def _gather(self, key: K, row: Row | PackedRun, most: int) -> None:
        """Put rows beside the others of their key, unless they become too many, or more than `most`
        bytes."""
        gathered = self._gathered.get(key)
        if gathered is not None and (
            gathered.size + row.size > most or gathered.count + row.rows > self._most_rows
        ):
            self._flush(key)
            gathered = None
        if gathered is None:
            gathered = self._gathered[key] = _Gathered(self._queue_bytes)
        gathered.add(row)
        if gathered.size >= self._batch_bytes:
            self._flush(key)

    def _flush(self, key: K) -> None:
        gathered = self._gathered.pop(key)
        self._start(self._request(key, gathered), gathered.rows())

    def _start(self, work: Coroutine[Any, Any, None], rows: Sequence[Row | PackedRun]) -> None:
        """Start a request that stores `rows`, when there is room for it."""
        if len(self._in_flight) >= self._most_in_flight:
            try:
                self._wait_first()
            except BaseException:
                work.close()
                raise
        self._in_flight.append((self._thread.submit(work), rows))

    def _wait_first(self) -> None:
        future, rows = self._in_flight.popleft()
        try:
            future.result()
        except ClientError as error:
            raise SinkSendError(f"{named(rows)}: {error}") from error

    @abc.abstractmethod
    def _request(self, key: K, gathered: _Gathered) -> Coroutine[Any, Any, None]:
        """The request that stores these rows."""


class StagedSender(TaskSender[str]):
    """Stages rows, those of a broker together; nobody sees them before the batch is committed."""

    _queue_bytes = _RUN_BYTES

    def __init__(
        self,
        client: StageClient,
        thread: LoopThread,
        options: SinkOptions,
        *,
        key: tuple[str, int],
        partition: int,
        capabilities: Mapping[str, StageCapability],
    ) -> None:
        super().__init__(client, thread, options)
        self._key = key
        self._partition = partition
        self._capabilities = dict(capabilities)
        self._names: dict[str, str] = {}
        self._crcs: dict[str, list[int]] = {}
        self._rows: Counter[str] = Counter()

    def add(self, row: Row) -> None:
        broker = row.queue.broker_name
        capability = self._capabilities.get(broker) or self._ask_capability(broker)
        limit = min(
            capability.max_message_bytes,
            capability.max_chunk_bytes - row.size + len(row.body) - 256,
        )
        if len(row.body) > limit:
            raise SinkRowError(
                f"row {row.number} of its partition, topic {row.queue.topic!r}: its body has "
                f"{len(row.body)} bytes, at most {limit} fit into one message of broker {broker}"
            )
        if row.delay_level and not capability.delay:
            raise SinkRowError(
                f"row {row.number} of its partition, topic {row.queue.topic!r}: broker {broker} "
                "does not stage delayed messages; leave delayTimeLevel out, or use "
                "guarantee=at-least-once"
            )
        self._gather(broker, row, capability.max_chunk_bytes - _RUN_BYTES)

    def takes(self, largest_body: int, largest_row: int, brokers: Iterable[str]) -> bool:
        for broker in brokers:
            capability = self._capabilities.get(broker) or self._ask_capability(broker)
            if largest_body > capability.max_message_bytes:
                return False
            if largest_row > capability.max_chunk_bytes - _RUN_BYTES - 256:
                return False
        return True

    def add_piece(self, piece: PackedRun) -> None:
        broker = piece.queue.broker_name
        self._gather(broker, piece, self._capabilities[broker].max_chunk_bytes - _RUN_BYTES)

    def _ask_capability(self, broker: str) -> StageCapability:
        """The staging of a broker that the plan did not know."""
        found = self._thread.run(self._client.capability(broker))
        if found is None:
            raise SinkSendError(
                f"broker {broker}, which was not there when the write began, does not stage "
                "batches; start the write anew, or use guarantee=at-least-once"
            )
        self._capabilities[broker] = found
        return found

    def finish(self) -> list[StagePart]:
        super().finish()
        return [
            StagePart(
                broker,
                self._partition,
                name,
                len(self._crcs[broker]),
                self._rows[broker],
                stage_checksum(self._crcs[broker]),
            )
            for broker, name in self._names.items()
        ]

    def discard(self) -> None:
        async def drop() -> None:
            async with asyncio.timeout(_GIVE_UP_S):
                for broker, name in self._names.items():
                    await self._client.drop(broker, *self._key, [name])

        try:
            self._thread.run(drop())
        except (ClientError, TimeoutError) as error:
            log.info("stages of a failed task are left to expire error=%s", error)

    def _request(self, key: str, gathered: _Gathered) -> Coroutine[Any, Any, None]:
        runs = [
            Run(queue.topic, queue.queue_id, sum(row.rows for row in rows), _batch_body(rows))
            for queue, rows in gathered.by_queue.items()
        ]
        count = sum(run.rows for run in runs)
        body = encode_chunk(runs)
        # A name nobody had before: a batch run again has the same numbers as its first run.
        name = self._names.setdefault(key, uuid.uuid4().hex)
        crcs = self._crcs.setdefault(key, [])
        crc = chunk_crc(body)
        header = StageChunkHeader(*self._key, self._partition, name, len(crcs), count, crc)
        crcs.append(crc)
        self._rows[key] += count
        return self._client.send_chunk(key, header, body)


class PlainSender(TaskSender[MessageQueue]):
    """Sends rows straight to their queues: at least once."""

    # A larger batch is taken in steps by Aerobee's broker, which costs it three times more.
    _most_rows = MOST_TOGETHER

    def __init__(self, client: StageClient, thread: LoopThread, options: SinkOptions) -> None:
        super().__init__(client, thread, options)
        self._sender = client.sender(options.producer_group)
        self._timeout_s = options.send_timeout_ms / 1000
        self._accepted = options.accept_codes
        self._size = 0
        self.unsure: Counter[str] = Counter()

    def add(self, row: Row) -> None:
        if row.delay_level:
            # A batch cannot hold it.
            self._start(self._send([row]), [row])
            return
        self._add(row)

    def takes(self, largest_body: int, largest_row: int, brokers: Iterable[str]) -> bool:
        # A row that fills a batch goes alone, as a message; the broker says what is wrong with it.
        return largest_row <= self._batch_bytes

    def add_piece(self, piece: PackedRun) -> None:
        self._add(piece)

    def _add(self, row: Row | PackedRun) -> None:
        self._size += row.size
        self._gather(row.queue, row, self._batch_bytes)
        if self._size > _GATHERED_BYTES:
            self._flush(max(self._gathered, key=lambda one: self._gathered[one].size))

    def finish(self) -> list[StagePart]:
        super().finish()
        for code, count in self.unsure.items():
            log.warning("messages stored, but not known to be safe code=%s count=%d", code, count)
        return []

    def discard(self) -> None:
        """Nothing is taken back: messages that were sent are sent."""

    def _request(self, key: MessageQueue, gathered: _Gathered) -> Coroutine[Any, Any, None]:
        self._size -= gathered.size
        return self._send(gathered.rows())

    async def _send(self, rows: Sequence[Row | PackedRun]) -> None:
        first = rows[0]
        if len(rows) == 1 and isinstance(first, Row):
            body, properties = first.body, first.properties.decode()
            outgoing = Outgoing(first.queue.topic, body, properties, "", flag=first.flag)
        else:
            outgoing = Outgoing(first.queue.topic, _batch_body(rows), "", "", batch=True)
        result = await self._client.with_backoff(
            lambda: self._sender.attempt(outgoing, first.queue, self._timeout_s)
        )
        status = result.status
        if status is SendStatus.OK:
            return
        if status.value not in self._accepted:
            raise ClientError(
                f"the broker answered {status.value} {status.name}: stored, but not known to be "
                "safe; the task is repeated, which stores it twice (option acceptCodes)"
            )
        self.unsure[f"{status.value} {status.name}"] += sum(row.rows for row in rows)
