"""The job `archive`: a store's messages as Parquet by topic and date, each exactly once.

A run appends what is new since the last one, a range of the log at a time; ledger.py keeps it
exactly once whatever is killed when. Run it more often than retention deletes: what was deleted
before it was archived is said, and fails the job in mode failfast.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from aerobee.pipeline.decode.columns import STORE_COLUMNS, ddl
from aerobee.pipeline.decode.decode import inflate
from aerobee.pipeline.files.options import FAIL_FAST
from aerobee.pipeline.jobs.inputs import StoreInput, each_batch
from aerobee.pipeline.jobs.ledger import Ledger, LedgerEntry, LedgerError, StagedRows, plan
from aerobee.pipeline.jobs.result import DAMAGED, JobFailed, JobResult, size_text
from aerobee.pipeline.jobs.session import step
from aerobee.pipeline.jobs.target import Target
from aerobee.protocol.message.record_layout import (
    SYS_COMPRESSED,
    SYS_COMPRESSION_MASK,
    SYS_COMPRESSION_ZLIB,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Of the log archived at a time; what a killed run loses of its work at most.
RANGE_BYTES: Final = 8 << 30
#: Of the log that goes into one file of a topic and date at most.
FILE_BYTES: Final = 1 << 30
#: What a row of an archive has; `topic` and `date` are the folders.
_ROW: Final = tuple(one for one in STORE_COLUMNS if one.standard and one.name != "error")
COLUMNS: Final = tuple(column.name for column in _ROW)
_TIME: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"
_KEYS: Final = ("msgId", "keys")
#: In the reader's errors about bodies of another compression than zlib.
UNKNOWN_COMPRESSION: Final = "compressed with"


def archive(
    spark: SparkSession,
    store: StoreInput,
    target: str,
    *,
    range_bytes: int = RANGE_BYTES,
    file_bytes: int = FILE_BYTES,
) -> JobResult:
    """Archive what is new into `target` (a directory or URI). Frame: `entries`, one a range.

    Raises JobFailed when the ledger does not fit, or in mode failfast when messages were missed.
    """
    result = JobResult("archive")
    place = Target(target)
    ledger = Ledger(place)
    made: list[LedgerEntry] = []
    try:
        finished = ledger.recover()
        if finished:
            result.say("recovered", f"{finished} ranges that a killed run had decided")
        known = ledger.entries()
        segments = [(file.start, file.end) for file in store.store().segments]
        work = plan(known[-1].end if known else None, segments, range_bytes)
        if work.missed is not None and store.mode == FAIL_FAST:
            first, end = work.missed
            raise JobFailed(
                f"log offsets {first} to {end} were deleted before they were archived; without "
                "mode failfast the archive goes on behind them",
                DAMAGED,
            )
        writer = _Writer(spark, store, place, file_bytes, segments[-1][1] if segments else 0)
        for _, end in work.ranges:
            # A range begins where the last record before it ends.
            begin, missed = (made[-1].end, None) if made else (work.ranges[0][0], work.missed)
            entry = ledger.archive(begin, end, writer.write, missed)
            if entry is not None:
                made.append(entry)
    except LedgerError as error:
        raise JobFailed(f"archive {target}: {error}", DAMAGED) from error
    _report(spark, result, target, known, made, work.missed)
    return result


def check(target: str) -> JobResult:
    """Compare an archive with its ledger; exit code 1 when a file is gone or of another length."""
    result = JobResult("archive")
    ledger = Ledger(Target(target))
    try:
        entries, wrong = ledger.entries(), ledger.check()
    except LedgerError as error:
        raise JobFailed(f"archive {target}: {error}", DAMAGED) from error
    rows = sum(entry.rows for entry in entries)
    result.facts = {"ranges": len(entries), "total_rows": rows, "wrong": wrong}
    result.say("archive", f"{rows:,} messages in {len(entries)} ranges")
    result.lines += wrong
    result.say("verdict", f"{len(wrong)} files are not as the ledger says" if wrong else "SOUND")
    result.code = DAMAGED if wrong else 0
    return result


def read_archive(spark: SparkSession, target: str) -> DataFrame:
    """The rows of an archive, with `topic` as text, and their `date`."""
    schema = f"{ddl(_ROW)}, date date"
    place = Target(target)
    return spark.read.schema(schema).parquet(place.uri("").rstrip("/"))


def plain_bodies(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with zlib bodies inflated; one that is damaged gets an `error`.

    The reader of log files calls a record bad whose body it cannot inflate, which is right for who
    wants to read bodies. An archive must not lose a message for it: LZ4 and ZSTD bodies stay as
    they are, and bits 8 to 10 of their `sysFlag` say what they are.
    """
    flags = batch.column("sysFlag").fill_null(0).to_numpy()
    kinds = flags & SYS_COMPRESSION_MASK
    is_zlib = (kinds == 0) | (kinds == SYS_COMPRESSION_ZLIB)
    packed = np.flatnonzero((flags & SYS_COMPRESSED != 0) & is_zlib)
    if not len(packed):
        return batch
    bodies, errors = batch.column("body").to_pylist(), batch.column("error").to_pylist()
    for row in packed.tolist():
        try:
            bodies[row] = inflate(bodies[row], int(flags[row]))
        except ValueError as error:
            bodies[row], errors[row] = None, str(error)
    columns = {"body": pa.array(bodies, pa.binary()), "error": pa.array(errors, pa.string())}
    arrays = [columns.get(name, batch.column(name)) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes ranges of a store's log below directories of the target. `log_end` ends the last."""

    spark: SparkSession
    store: StoreInput
    target: Target
    file_bytes: int
    log_end: int

    def write(self, start: int, end: int, aside: str) -> StagedRows | None:
        """As Ledger.archive wants it."""
        # The last segment is longer than what is written of it.
        until = "the end of the log" if end == self.log_end else end
        step(self.spark, f"archiving log offsets {start} to {until}")
        place = {
            "use": "commitlog",
            "checkCrc": "true",
            "startOffset": str(start),
            "endOffset": str(end),
        }
        columns = [*COLUMNS, "error"]
        rows = self.store.rows(self.spark, columns, **place)
        staged, unknown = self._stage(rows, f"{aside}/plain")
        if not unknown:
            return staged
        # Bodies that the reader cannot inflate are to be kept as they are; another pass for them.
        self.target.remove_tree(f"{aside}/plain")
        rows = self.store.rows(self.spark, columns, decompress="false", **place)
        rows = rows.mapInArrow(each_batch(plain_bodies), rows.schema)
        return self._stage(rows, f"{aside}/kept")[0]

    def _stage(self, rows: DataFrame, aside: str) -> tuple[StagedRows | None, int]:
        """Write the rows aside; what was written, and how many bodies are of no known compression.

        What the files say of themselves counts, not what tasks that were repeated saw.
        """
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        seen = Observation()
        good = f.col("error").isNull()
        rows = rows.observe(
            seen,
            f.count(f.when(~good, 1)).alias("bad"),
            f.count(f.when(f.col("error").contains(UNKNOWN_COMPRESSION), 1)).alias("unknown"),
        )
        dated = rows.where(good).drop("error").withColumn("date", f.to_date("storeTimestamp"))
        piece = f.expr(f"commitLogOffset div {self.file_bytes}")
        ordered = dated.repartition("topic", "date", piece).sortWithinPartitions(
            "topic", "date", "commitLogOffset"
        )
        writer = ordered.write.partitionBy("topic", "date").mode("append")
        # A filter is as large as its file needs, not a megabyte each.
        writer = writer.option("parquet.bloom.filter.adaptive.enabled", "true")
        for name in _KEYS:
            writer = writer.option(f"parquet.bloom.filter.enabled#{name}", "true")
        uri = self.target.uri(aside)
        writer.parquet(uri)
        if not any(path.endswith(".parquet") for path in self.target.sizes(aside)):
            # Spark leaves out a plan without rows, and what was to be observed with it.
            return None, rows.where(f.col("error").contains(UNKNOWN_COMPRESSION)).limit(1).count()
        stored = f.col("storeTimestamp")
        ends = f.max(f.col("commitLogOffset") + f.col("recordSize"))
        times = (f.date_format(side(stored), _TIME) for side in (f.min, f.max))
        count, last, first_stored, last_stored = (
            self.spark.read.parquet(uri).agg(f.count("*"), ends, *times).collect()[0]
        )
        facts = {
            "first_stored": first_stored,
            "last_stored": last_stored,
            "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        found = seen.get
        return StagedRows(last, count, found["bad"], facts), found["unknown"]


def _report(
    spark: SparkSession,
    result: JobResult,
    target: str,
    known: list[LedgerEntry],
    made: list[LedgerEntry],
    missed: tuple[int, int] | None,
) -> None:
    entries = [*known, *made]
    rows = sum(entry.rows for entry in made)
    bad = sum(entry.bad for entry in made)
    size = sum(entry.bytes for entry in made)
    result.facts = {
        "ranges": len(made),
        "rows": rows,
        "bad_records": bad,
        "bytes": size,
        "log_start": made[0].start if made else None,
        "archived_to": entries[-1].end if entries else None,
        "total_rows": sum(entry.rows for entry in entries),
        "missed": missed,
    }
    if made:
        result.say("range", f"log offsets {made[0].start} to {made[-1].end}")
        result.say(
            "wrote", f"{rows:,} messages in {len(made)} ranges, {size_text(size)} of Parquet"
        )
        result.say("bad", f"{bad:,} damaged places, left out")
    else:
        result.say("range", "nothing new")
    if missed is not None:
        result.say("MISSED", f"log offsets {missed[0]} to {missed[1]}: deleted before this run")
    if entries:
        end = entries[-1].end
        result.say("archive", f"{result.facts['total_rows']:,} messages in {target}, up to {end}")
        result.say("retention", f"segments that end at or below {end} may be deleted")
    result.frames["entries"] = spark.createDataFrame(
        [(one.start, one.end, one.rows, one.bad, len(one.files), one.bytes) for one in entries],
        "start bigint, end bigint, rows bigint, bad bigint, files bigint, bytes bigint",
    )
