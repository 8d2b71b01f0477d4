"""The job `rebuild`: consume queues and index files, made again from the log, in parallel.

Into an empty directory, to be compared or put in place by hand while the broker is stopped.
Consume queues come out byte-equal to a broker's, one task for each file. Index files depend on the
order of the whole log; so keys are counted where they are read, numbered through, and each file is
built from its own keys at once. Their names are the times of their first messages.

Where a queue's numbering began anew (its topic was deleted), records from before have no slot any
more; a number that the log before it cannot have room for is damage and set aside.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from aerobee.pipeline.files.entries import ENTRY_BYTES
from aerobee.pipeline.jobs.checks import check_empty
from aerobee.pipeline.jobs.derived.entries import (
    DELAY_LEVELS,
    ENTRIES_DDL,
    RECORD_COLUMNS,
    batch_of,
    derived_entries,
    derived_keys,
)
from aerobee.pipeline.jobs.derived.index_build import (
    INDEX_ENTRIES,
    INDEX_SLOTS,
    build_index,
    index_names,
)
from aerobee.pipeline.jobs.derived.queue_files import (
    QUEUE_FILE_BYTES,
    file_bytes,
    queue_file_path,
    write_sparse,
)
from aerobee.pipeline.jobs.inputs import StoreInput, each_batch
from aerobee.pipeline.jobs.result import JobResult
from aerobee.pipeline.jobs.session import step
from aerobee.protocol.message.record_layout import MIN_RECORD_BYTES
from aerobee.store.queues.delay_levels import DelayLevels

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILES_DDL = "topic string, queueId int, file bigint, firstSlot bigint, endSlot bigint"
_WRITTEN_DDL = "path string, rows bigint, bytes bigint"
_COUNTS_DDL = "part int, firstOffset bigint, keys bigint"
_KEYS_DDL = "file bigint, number bigint, hash int, logOffset bigint, storeMs bigint"
# A key that is only there to tell a file the end of the one before.
_BEFORE = -1


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the files to be made; as the broker's own settings."""

    queue_file_bytes: int = QUEUE_FILE_BYTES
    index_slots: int = INDEX_SLOTS
    index_entries: int = INDEX_ENTRIES

    @property
    def entries(self) -> int:
        """Entries in a queue file; its size is rounded up to whole ones (store/FORMAT.md 1.2)."""
        return -(-self.queue_file_bytes // ENTRY_BYTES)


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
    rows = store.records(spark, RECORD_COLUMNS)
    result = JobResult("rebuild")
    try:
        step(spark, "reading the log")
        _count(rows, result)
        if queues:
            step(spark, "writing consume queues")
            levels = DelayLevels(delay_levels)
            entries = rows.mapInArrow(each_batch(derived_entries, levels), ENTRIES_DDL)
            _write_queues(spark, entries, output, sizes, result)
        if index:
            step(spark, "writing index files")
            _write_index(spark, rows, output, sizes, result)
    finally:
        rows.unpersist()
    result.lines += [
        "",
        f"compare {output} with the store, or put it in place while no broker runs",
    ]
    return result


def _count(rows: DataFrame, result: JobResult) -> None:
    from pyspark.sql import functions as f

    bad = f.count(f.when(f.col("error").isNotNull(), 1))
    place = f.col("commitLogOffset")
    found = rows.agg(f.count("*"), bad, f.min(place), f.max(place)).collect()[0]
    records = found[0] - found[1]
    result.facts |= {
        "records": records,
        "bad_records": found[1],
        "log_start": found[2] or 0,
        "log_end": (found[3] if found[3] is not None else -1) + 1,
    }
    result.say("read", f"{records:,} records, log offsets {found[2]} to {found[3]}")
    result.say("bad", f"{found[1]:,} damaged places; their slots become pre-blank entries")


def _write_queues(
    spark: SparkSession, entries: DataFrame, output: str, sizes: Sizes, result: JobResult
) -> None:
    """All queue files."""
    from pyspark.sql import functions as f

    whole = f.col("slot") <= f.expr(f"logOffset div {MIN_RECORD_BYTES}")
    strays = entries.where(~whole).count()
    entries = _since_anew(entries.where(whole))
    ends = entries.groupBy("topic", "queueId").agg(f.min("slot"), f.max("slot")).collect()
    per_file = sizes.entries
    files = [file for row in ends for file in _files(per_file, *row)]
    written = []
    if files:
        keyed = entries.withColumn("file", f.expr(f"slot div {per_file}"))
        keys = ("topic", "queueId", "file")
        plan = spark.createDataFrame(files, _FILES_DDL)
        pairs = plan.groupBy(*keys).cogroup(keyed.groupBy(*keys))
        made = pairs.applyInArrow(_queue_writer(output, per_file), _WRITTEN_DDL)
        written = [tuple(row) for row in made.collect()]
    result.frames["queue_files"] = spark.createDataFrame(written, _WRITTEN_DDL)
    total = sum(row[1] for row in written)
    result.facts |= {"queues": len(ends), "units": total, "strays": strays}
    result.say("queues", f"{len(ends):,} with {total:,} entries in {len(written):,} files")
    if strays:
        result.say("aside", f"{strays:,} records claim numbers that cannot be")


def _since_anew(entries: DataFrame) -> DataFrame:
    """Without the entries of numberings that ended when a topic was deleted."""
    from pyspark.sql import functions as f

    begun = f.max(f.when(f.col("slot") == 0, f.col("logOffset"))).alias("begun")
    begins = entries.groupBy("topic", "queueId").agg(begun).where("begun is not null")
    joined = entries.join(f.broadcast(begins), ["topic", "queueId"], "left")
    return joined.where("begun is null or logOffset >= begun").drop("begun")


def _files(
    per_file: int, topic: str, queue_id: int, first: int, last: int
) -> Iterator[tuple[str, int, int, int, int]]:
    for number in range(first // per_file, last // per_file + 1):
        end = min((number + 1) * per_file, last + 1)
        yield topic, queue_id, number, number * per_file, end


def _write_index(
    spark: SparkSession, rows: DataFrame, output: str, sizes: Sizes, result: JobResult
) -> None:
    """All index files."""
    from pyspark import StorageLevel

    counts = [tuple(row) for row in rows.mapInArrow(_count_keys, _COUNTS_DDL).collect()]
    bases: dict[int, int] = {}
    total = 0
    for part, _, count in sorted(counts, key=lambda row: row[1]):
        bases[part] = total
        total += count
    room = sizes.index_entries - 1
    keys = rows.mapInArrow(_number_keys(bases, room, total), _KEYS_DDL)
    keys = keys.persist(StorageLevel.DISK_ONLY)
    firsts = keys.where(f"number % {room} = 0 and number >= 0").select("file", "storeMs")
    begun = dict(sorted((row[0], row[1]) for row in firsts.collect()))
    names = dict(zip(begun, index_names(list(begun.values())), strict=True))
    made = keys.groupBy("file").applyInArrow(_index_writer(output, names, sizes), _WRITTEN_DDL)
    written = sorted(tuple(row) for row in made.collect())
    keys.unpersist()
    result.frames["index_files"] = spark.createDataFrame(written, _WRITTEN_DDL)
    result.facts |= {"index_files": len(written), "keys": total}
    result.say("index", f"{len(written):,} files with {total:,} keys")


# What runs on the executors


_Batches = Iterator[pa.RecordBatch]


def _queue_writer(output: str, per_file: int) -> Callable[[pa.Table, pa.Table], pa.Table]:
    def write(plan: pa.Table, entries: pa.Table) -> pa.Table:
        topic, queue_id, _, first, end = (column[0].as_py() for column in plan.columns)
        entries = entries.sort_by("logOffset")
        data = file_bytes(first, end, entries.column("slot").to_numpy(), entries)
        path = queue_file_path(output, topic, queue_id, first * ENTRY_BYTES)
        write_sparse(path, [(0, data)], per_file * ENTRY_BYTES)
        return _written(path, entries.num_rows, per_file * ENTRY_BYTES)

    return write


def _count_keys(batches: _Batches) -> _Batches:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    first, count = 1 << 62, 0
    for batch in batches:
        keys = derived_keys(batch)
        if keys.num_rows:
            first = min(first, keys.column("logOffset")[0].as_py())
            count += keys.num_rows
    if count:
        yield batch_of([(context.partitionId(), first, count)], _COUNTS_DDL)


def _number_keys(bases: dict[int, int], room: int, total: int) -> Callable[[_Batches], _Batches]:
    def number(batches: _Batches) -> _Batches:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        next_number = bases.get(context.partitionId(), 0)
        for batch in batches:
            keys = derived_keys(batch)
            numbers = np.arange(next_number, next_number + keys.num_rows)
            next_number += keys.num_rows
            yield _numbered(keys, numbers // room, numbers)
            # The last key of a file also goes to the next one.
            last = np.flatnonzero((numbers % room == room - 1) & (numbers < total - 1))
            if len(last):
                files = numbers[last] // room + 1
                yield _numbered(keys.take(pa.array(last)), files, np.full(len(last), _BEFORE))

    return number


def _numbered(keys: pa.RecordBatch, files: np.ndarray, numbers: np.ndarray) -> pa.RecordBatch:
    arrays = [pa.array(files), pa.array(numbers), *keys.columns]
    return pa.RecordBatch.from_arrays(arrays, ["file", "number", *keys.schema.names])


def _index_writer(
    output: str, names: dict[int, str], sizes: Sizes
) -> Callable[[pa.Table], pa.Table]:
    def write(keys: pa.Table) -> pa.Table:
        file = keys.column("file")[0].as_py()
        numbers = keys.column("number").to_numpy()
        order = np.argsort(numbers, kind="stable")
        before_ms = 0
        if numbers[order[0]] == _BEFORE:
            before_ms = int(keys.column("storeMs")[order[0]].as_py())
            order = order[1:]
        hashes, places, times = (
            keys.column(name).to_numpy()[order] for name in ("hash", "logOffset", "storeMs")
        )
        built = build_index(
            hashes, places, times, sizes.index_slots, sizes.index_entries, before_ms
        )
        path = os.path.join(output, "index", names[file])
        write_sparse(path, built.parts, built.size)
        return _written(path, len(order), built.size)

    return write


def _written(path: str, rows: int, size: int) -> pa.Table:
    columns: dict[str, Any] = {"path": [path], "rows": [rows], "bytes": [size]}
    return pa.table(columns)
