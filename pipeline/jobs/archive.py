"""The job `archive`: a store's messages as Parquet by topic and date, each exactly once.

A run appends what is new since the last one, a range of the log at a time; ledger.py keeps it
exactly once whenever a run is killed. Run it more often than retention deletes: the job reports log
offsets that were deleted before they were archived, and fails for them in mode failfast.

Records that are no messages are left out and counted (left_out.py). The end of a range is fixed
before its rows are read, so that records which a broker writes meanwhile go into the next range: a
segment is full, and ends a range, when segments with records follow it; in the last segment the
range ends with the last record.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from aerobee.pipeline.decode.columns import STORE_COLUMNS, ddl
from aerobee.pipeline.files.directory import Store
from aerobee.pipeline.files.log_outline import LogOutline
from aerobee.pipeline.files.store_options import FAIL_FAST, ZLIB
from aerobee.pipeline.jobs.common.inputs import StoreInput
from aerobee.pipeline.jobs.common.job_result import DAMAGED, JobFailed, JobResult, size_text
from aerobee.pipeline.jobs.common.left_out import NOT_ARCHIVED, not_archived
from aerobee.pipeline.jobs.common.spark_session import step
from aerobee.pipeline.jobs.targets.ledger import (
    ArchiveSelection,
    Ledger,
    LedgerEntry,
    LedgerError,
    StagedRows,
    plan_ranges,
)
from aerobee.pipeline.jobs.targets.staging import write_parquet
from aerobee.pipeline.jobs.targets.target import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Bytes of the log in one range; a killed run loses at most the work of one range.
RANGE_BYTES: Final = 8 << 30
#: The most bytes of the log that go into one file of a topic and date.
FILE_BYTES: Final = 1 << 30
#: The columns of an archive; `topic` and `date` are the folders.
_ROW: Final = tuple(one for one in STORE_COLUMNS if one.standard and one.name != "error")
COLUMNS: Final = tuple(column.name for column in _ROW)
_TIME: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"
# A filter is as large as its file needs, not a megabyte each.
_FILTERS: Final = {"parquet.bloom.filter.adaptive.enabled": "true"} | {
    f"parquet.bloom.filter.enabled#{name}": "true" for name in ("msgId", "keys")
}
_WHY: Final = "whyLeftOut"


def archive(
    spark: SparkSession,
    store: StoreInput,
    target: str,
    *,
    range_bytes: int = RANGE_BYTES,
    file_bytes: int = FILE_BYTES,
) -> JobResult:
    """Archive the new part of the log into `target` (a directory or URI). Frame: `entries`, one a
    range.

    Topics and times of `store` are what the archive is for, with this run and all later ones.
    Raises JobFailed when the ledger does not fit or is for another selection, or in mode failfast
    when messages were missed.
    """
    result = JobResult("archive")
    place = Target(target)
    selection = ArchiveSelection.of(store.topics, store.begin_ms, store.end_ms)
    ledger = Ledger(place, selection)
    made: list[LedgerEntry] = []
    try:
        ledger.check_selection(place.name)
        finished = ledger.recover()
        if finished:
            result.say("recovered", f"{finished} ranges that a killed run had decided")
        known = ledger.entries()
        found = store.store()
        segments = [(file.start, file.end) for file in found.segments]
        work = plan_ranges(known[-1].end if known else None, segments, range_bytes)
        if work.missed is not None and store.mode == FAIL_FAST:
            first, end = work.missed
            raise JobFailed(
                f"log offsets {first} to {end} were deleted before they were archived; without "
                "mode failfast the archive goes on behind them",
                DAMAGED,
            )
        writer = _Writer(spark, store, place, file_bytes, _full_to(found))
        for _, end in work.ranges:
            # A range begins where the last record before it ends.
            begin, missed = (made[-1].end, None) if made else (work.ranges[0][0], work.missed)
            entry = ledger.archive(begin, end, writer.write, missed)
            if entry is not None:
                made.append(entry)
    except LedgerError as error:
        raise JobFailed(f"archive {place.name}: {error}", DAMAGED) from error
    if not selection.is_everything:
        result.facts["selection"] = selection._asdict()
        result.say("selection", f"{selection}")
    _report(spark, result, place.name, known, made, work.missed)
    if known or made:
        _say_retention(result, selection)
    return result


def _say_retention(result: JobResult, selection: ArchiveSelection) -> None:
    """A segment has messages of all topics: only an archive of everything can spare it."""
    end = result.facts["archived_to"]
    said = f"segments that end at or below {end} may be deleted"
    if not selection.is_everything:
        said = f"for {selection} the log is done up to {end}; what else it holds is not here"
    result.say("retention", said)


def check(target: str) -> JobResult:
    """Compare an archive with its ledger; exit code 1 when a file is gone or of another length."""
    result = JobResult("archive")
    place = Target(target)
    ledger = Ledger(place)
    try:
        entries, wrong = ledger.entries(), ledger.check()
    except LedgerError as error:
        raise JobFailed(f"archive {place.name}: {error}", DAMAGED) from error
    rows = sum(entry.rows for entry in entries)
    result.facts = {"ranges": len(entries), "total_rows": rows, "wrong": wrong}
    result.say("archive", f"{rows:,} messages in {len(entries)} ranges")
    result.lines += wrong
    result.say("verdict", f"{len(wrong)} files are not as the ledger says" if wrong else "SOUND")
    result.code = DAMAGED if wrong else 0
    return result


def archived_files(target: str) -> list[str]:
    """The Parquet files of an archive, as paths or URIs: those its ledger names and no others, so
    that a range is there whole or not at all. Raises JobFailed when a file is gone."""
    place = Target(target)
    return [place.uri(path) if "://" in target else place.path(path) for path in _files(place)]


def read_archive(spark: SparkSession, target: str) -> DataFrame:
    """The rows of an archive, with `topic` as text, and their `date`: those of the files that its
    ledger names. Raises JobFailed when a file is gone."""
    place = Target(target)
    by_base: dict[str, list[str]] = {}
    for path in _files(place):
        # A file that is not in its place yet has the same folders where it was staged.
        folders = takewhile(lambda folder: "=" not in folder, path.split("/"))
        by_base.setdefault("/".join(folders), []).append(place.uri(path))
    schema = f"{ddl(_ROW)}, date date"
    frames = [
        spark.read.schema(schema).option("basePath", place.uri(base)).parquet(*paths)
        for base, paths in by_base.items()
    ]
    if not frames:
        return spark.createDataFrame([], schema)
    return reduce(lambda one, other: one.unionByName(other), frames)


def _files(place: Target) -> list[str]:
    try:
        return Ledger(place).files()
    except LedgerError as error:
        raise JobFailed(f"archive {place.name}: {error}", DAMAGED) from error


def _full_to(store: Store) -> int:
    """Up to where segments are full: others with records in them follow. Those that a broker made
    ahead of need are empty."""
    segments = list(store.segments)
    log = LogOutline(store)
    while len(segments) > 1 and log.heads(segments[-1:])[0].is_empty:
        segments.pop()
    return segments[-1].start if segments else 0


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes ranges of a store's log below directories of the target. Segments are full up to
    `full_to`."""

    spark: SparkSession
    store: StoreInput
    target: Target
    file_bytes: int
    full_to: int

    def write(self, start: int, end: int, aside: str) -> StagedRows | None:
        """Write the rows of a range below `aside`, for `Ledger.archive`."""
        if end > self.full_to:
            step(self.spark, f"looking for the end of the log behind {start}")
            last = self._last_end(max(start, self.full_to), end)
            end = self.full_to if last is None else last
            if end <= start:
                return None
        step(self.spark, f"archiving log offsets {start} to {end}")
        # The files must not depend on the packages that were installed when they were written, so
        # LZ4 and ZSTD bodies stay as they are; bits 8 to 10 of their `sysFlag` say what they are.
        rows = self.store.rows(
            self.spark, [*COLUMNS, "error"], use="commitlog", checkCrc="true", decompress=ZLIB,
            startOffset=str(start), endOffset=str(end),
        )  # fmt: skip
        return self._stage(rows, end, aside)

    def _last_end(self, start: int, end: int) -> int | None:
        """Where the last record in [start, end) ends now; None without a record."""
        from pyspark.sql import functions as f

        everything = replace(self.store, topics=(), begin_ms=None, end_ms=None)
        rows = everything.rows(
            self.spark, ("commitLogOffset", "recordSize"), use="commitlog",
            startOffset=str(start), endOffset=str(end),
        )  # fmt: skip
        ends = f.max(f.col("commitLogOffset") + f.col("recordSize"))
        last: int | None = rows.agg(ends).collect()[0][0]
        return last

    def _stage(self, rows: DataFrame, end: int, aside: str) -> StagedRows:
        """Write the rows aside, and count them in the files written: tasks that were repeated may
        have counted twice."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        rows = rows.withColumn(_WHY, not_archived(self.store.topics))
        good = f.col("error").isNull()
        seen = {
            "bad": f.count(f.when(~good, 1)),
            **{why: f.count(f.when(good & (f.col(_WHY) == why), 1)) for why in NOT_ARCHIVED},
        }
        sums = [column.alias(name) for name, column in seen.items()]
        observed = Observation()
        kept = rows.observe(observed, *sums).where(good & f.col(_WHY).isNull()).drop("error", _WHY)
        dated = kept.withColumn("date", f.to_date("storeTimestamp"))
        piece = f.expr(f"commitLogOffset div {self.file_bytes}")
        ordered = dated.repartition("topic", "date", piece).sortWithinPartitions(
            "topic", "date", "commitLogOffset"
        )
        write_parquet(ordered, self.target, aside, ("topic", "date"), _FILTERS)
        facts: dict[str, Any] = {"made_at": datetime.now(UTC).isoformat(timespec="seconds")}
        if any(path.endswith(".parquet") for path in self.target.sizes(aside)):
            found = observed.get
            stored = f.col("storeTimestamp")
            times = (f.date_format(side(stored), _TIME) for side in (f.min, f.max))
            count, facts["first_stored"], facts["last_stored"] = (
                self.spark.read.parquet(self.target.uri(aside))
                .agg(f.count("*"), *times)
                .collect()[0]
            )
        else:
            # Spark leaves out a plan without rows, and its observations with it.
            found, count = rows.agg(*sums).collect()[0].asDict(), 0
        facts["left_out"] = {why: found[why] for why in NOT_ARCHIVED if found[why]}
        return StagedRows(end, count, found["bad"], facts)


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
    left_out = Counter[str]()
    for entry in made:
        left_out.update(entry.facts["left_out"])
    result.facts |= {
        "ranges": len(made),
        "rows": rows,
        "bad_records": bad,
        "left_out": dict(left_out),
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
        for why, count in sorted(left_out.items()):
            result.say("left out", f"{count:,} records: {why}")
    else:
        result.say("range", "nothing new")
    if missed is not None:
        result.say("MISSED", f"log offsets {missed[0]} to {missed[1]}: deleted before this run")
    if entries:
        end = entries[-1].end
        result.say("archive", f"{result.facts['total_rows']:,} messages in {target}, up to {end}")
    result.frames["entries"] = spark.createDataFrame(
        [(one.start, one.end, one.rows, one.bad, len(one.files), one.bytes) for one in entries],
        "start bigint, end bigint, rows bigint, bad bigint, files bigint, bytes bigint",
    )
