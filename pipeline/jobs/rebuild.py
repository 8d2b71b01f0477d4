"""The job `rebuild`: consume queues and index files, made again from the log.

Into an empty directory, to be compared or put in place by hand while the broker is stopped. The
parts that a broker is made of write the files, so they come out as a broker's: the queues in
parallel, each by one task, the index, which depends on the order of the whole log, by one task from
keys that many have derived. An index file has the time of its first message as its name.

If a queue's numbering began anew (its topic was deleted), earlier records have no slot any more; a
number for which the log before it has no room is damage and set aside.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from aerobee.pipeline.files.entries import ENTRY, ENTRY_BYTES
from aerobee.pipeline.jobs.checks import check_empty
from aerobee.pipeline.jobs.common.inputs import StoreInput
from aerobee.pipeline.jobs.common.job_result import JobResult
from aerobee.pipeline.jobs.common.spark_session import step
from aerobee.pipeline.jobs.derived.entries import (
    DELAY_LEVELS,
    ENTRIES,
    batch_of,
    count_rows,
    derived_frame,
)
from aerobee.protocol.message.record_layout import MIN_RECORD_BYTES
from aerobee.store.disk.checkpoint import Checkpoint
from aerobee.store.disk.files import Clock, Files
from aerobee.store.errors import MessageIllegal
from aerobee.store.index.index_service import IndexService
from aerobee.store.index.layout import index_file_bytes
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.delay_levels import DelayLevels
from aerobee.store.queues.queue_table import ConsumeQueueTable
from aerobee.store.store_stats import StoreStats

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The columns that an index is made of.
KEYS: Final = ("topic", "logOffset", "storeMs", "keys")
_WRITTEN_DDL = "path string, rows bigint, bytes bigint"

# How many entries were written, by queue and number of the file.
_Records = Counter[tuple[ConsumeQueue, int]]
_Batches = Iterator[pa.RecordBatch]
_Work = Callable[[_Batches], _Batches]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the files to be made, with RocketMQ's defaults (mappedFileSizeConsumeQueue, rounded
    up to whole entries, maxHashSlotNum, maxIndexNum)."""

    queue_file_bytes: int = 6_000_000
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000


def rebuild(
    spark: SparkSession,
    store: StoreInput,
    output: str,
    *,
    queues: bool = True,
    index: bool = True,
    sizes: Sizes = Sizes(),
    delay_levels: str = DELAY_LEVELS,
) -> JobResult:
    """Make queues and index below `output`, a directory that all executors see.

    Frames: `queue_files`, `index_files` (path, rows, bytes). Raises JobFailed when `output` is not
    empty.
    """
    output = os.path.abspath(output)
    os.makedirs(output, exist_ok=True)
    check_empty(output)
    derived = derived_frame(spark, store, DelayLevels(delay_levels))
    result = JobResult("rebuild")
    try:
        step(spark, "reading the log")
        _count(derived, result)
        if queues:
            step(spark, "writing consume queues")
            entries = derived.where("queueId >= 0").select(*ENTRIES.names)
            _write_queues(spark, entries, queue_writer(output, sizes), result)
        if index:
            step(spark, "writing index files")
            keys = derived.where("size(keys) > 0").select(*KEYS)
            _write_index(spark, keys, index_writer(output, sizes), result)
    finally:
        derived.unpersist()
    result.lines += [
        "",
        f"compare {output} with the store, or put it in place while no broker runs",
    ]
    return result


def _count(derived: DataFrame, result: JobResult) -> None:
    found = count_rows(derived)
    result.facts |= {
        "records": found.records,
        "bad_records": found.bad,
        "log_start": found.log_start,
        "log_end": found.log_end,
    }
    result.say("read", f"{found.records:,} records, log offsets {found.first} to {found.last}")
    result.say("bad", f"{found.bad:,} damaged places; their slots become pre-blank entries")


def _write_queues(spark: SparkSession, entries: DataFrame, write: _Work, result: JobResult) -> None:
    from pyspark.sql import functions as f

    whole = f.col("slot") <= f.expr(f"logOffset div {MIN_RECORD_BYTES}")
    strays = entries.where(~whole).count()
    own = _since_anew(entries.where(whole))
    own = own.repartition("topic", "queueId")
    own = own.sortWithinPartitions("topic", "queueId", "logOffset")
    written = sorted(tuple(row) for row in own.mapInArrow(write, _WRITTEN_DDL).collect())
    result.frames["queue_files"] = spark.createDataFrame(written, _WRITTEN_DDL)
    queues, total = (
        len({os.path.dirname(row[0]) for row in written}),
        sum(row[1] for row in written),
    )
    result.facts |= {"queues": queues, "units": total, "strays": strays}
    result.say("queues", f"{queues:,} with {total:,} entries in {len(written):,} files")
    if strays:
        result.say("aside", f"{strays:,} records claim numbers that cannot be")


def _since_anew(entries: DataFrame) -> DataFrame:
    """The entries without those of numberings that ended when a topic was deleted."""
    from pyspark.sql import functions as f

    begun = f.max(f.when(f.col("slot") == 0, f.col("logOffset"))).alias("begun")
    begins = entries.groupBy("topic", "queueId").agg(begun).where("begun is not null")
    joined = entries.join(f.broadcast(begins), ["topic", "queueId"], "left")
    return joined.where("begun is null or logOffset >= begun").drop("begun")


def _write_index(spark: SparkSession, keys: DataFrame, write: _Work, result: JobResult) -> None:
    ordered = keys.repartition(1).sortWithinPartitions("logOffset")
    written = sorted(tuple(row) for row in ordered.mapInArrow(write, _WRITTEN_DDL).collect())
    result.frames["index_files"] = spark.createDataFrame(written, _WRITTEN_DDL)
    total = sum(row[1] for row in written)
    result.facts |= {"index_files": len(written), "keys": total}
    result.say("index", f"{len(written):,} files with {total:,} keys")


# On the executors


@contextmanager
def _aside(output: str, name: str) -> Iterator[str]:
    """A directory `name` for one try of a task; files left there at the end are removed.

    Tries that make the same directory do no harm to each other: each moves its own into place, and
    the first is kept.
    """
    own = os.path.join(output, f"{uuid.uuid4().hex}.tmp")
    directory = os.path.join(own, name)
    os.makedirs(directory)
    try:
        yield directory
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _move(directory: str, place: str) -> None:
    """Put a directory that was made aside into its place."""
    os.makedirs(os.path.dirname(place), exist_ok=True)
    try:
        os.rename(directory, place)
    except OSError:
        if not os.path.isdir(place):
            raise


def queue_writer(output: str, sizes: Sizes) -> _Work:
    """For `mapInArrow`: writes whole queues from entries (schema ENTRIES), which are ordered by
    queue and log offset; gives the files (_WRITTEN_DDL)."""
    file_bytes = -(-sizes.queue_file_bytes // ENTRY_BYTES) * ENTRY_BYTES

    def write(batches: _Batches) -> _Batches:
        with _aside(output, "consumequeue") as directory:
            table = ConsumeQueueTable(Files(), directory, file_bytes)
            records: _Records = Counter()
            try:
                for batch in batches:
                    _write_entries(table, batch, file_bytes, records)
                table.flush(0)
            finally:
                table.close()
            written = []
            for queue in table:
                place = os.path.join(output, "consumequeue", queue.topic, str(queue.queue_id))
                _move(queue.directory, place)
                for file in queue.segments:
                    path = os.path.join(place, os.path.basename(file.path))
                    rows = records[queue, file.start // file_bytes]
                    written.append((path, rows, file_bytes))
            yield batch_of(written, _WRITTEN_DDL)

    return write


def _write_entries(
    table: ConsumeQueueTable, batch: pa.RecordBatch, file_bytes: int, records: _Records
) -> None:
    """Write entries, runs of slots at once, and count them by file."""
    entries = np.zeros(batch.num_rows, ENTRY)
    for name in ENTRY.names or ():
        entries[name] = batch.column(name).to_numpy()
    columns = [batch.column(name).to_pylist() for name in ("topic", "queueId", "slot")]
    claims = list(zip(*columns, strict=True))
    start = 0
    for at, (topic, queue_id, slot) in enumerate(claims, 1):
        try:
            queue = table.obtain(topic, queue_id)
        except MessageIllegal:  # no broker makes a directory of that name
            start = at
            continue
        records[queue, slot * ENTRY_BYTES // file_bytes] += 1
        if at == len(claims) or claims[at] != (topic, queue_id, slot + 1):
            queue.write_entries(claims[start][2], entries[start:at].tobytes())
            start = at


class _RecordClock(Clock):
    """Stands at the store time of the record that is being indexed."""

    ms = 0

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self.ms


def index_writer(output: str, sizes: Sizes) -> _Work:
    """For `mapInArrow`: writes the index from all keys (columns KEYS) in the log's order; gives the
    files (_WRITTEN_DDL)."""
    size = index_file_bytes(sizes.index_slots, sizes.index_entries)

    def write(batches: _Batches) -> _Batches:
        with _aside(output, "index") as directory:
            files, clock = Files(), _RecordClock()
            checkpoint = Checkpoint(files, f"{directory}.checkpoint")
            index = IndexService(
                files=files,
                clock=clock,
                stats=StoreStats(),
                checkpoint=checkpoint,
                directory=directory,
                slots=sizes.index_slots,
                entries=sizes.index_entries,
            )
            try:
                for batch in batches:
                    _put_keys(index, clock, batch)
                index.finish()
                index.seal()
            finally:
                index.close()
            place = os.path.join(output, "index")
            if index.files:
                _move(directory, place)
            written = [
                (os.path.join(place, name), file.count - 1, size)
                for name, file in zip(index.file_names(), index.files, strict=True)
            ]
            yield batch_of(written, _WRITTEN_DDL)

    return write


def _put_keys(index: IndexService, clock: _RecordClock, batch: pa.RecordBatch) -> None:
    for topic, log_offset, store_ms, keys in zip(
        *(column.to_pylist() for column in batch.columns), strict=True
    ):
        clock.ms = store_ms
        index.reserve(len(keys))
        index.put_keys(topic, keys, log_offset, store_ms)
