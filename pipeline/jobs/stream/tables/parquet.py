"""A directory of plain Parquet files, for any reader: a directory for each batch.

    <table>/batch=0000000012/[shop=north/]part-....parquet    the rows of batch 12
    <table>/batch=0000000012/_stream-<id>                     it is whole, and of this stream
    <table>/_aerobee/table-N.json                             whose it is, and its columns
    <table>/_aerobee/staging/...                              rows of a batch on its way

A batch is written aside, and its directory renamed: so it appears in one act, whole, and once, for
every program that can read a directory of Parquet. Spark's own sink for files was not taken: files
that a kill leaves lie among its good files, and only Spark, by the log beside them, can tell them
apart; DuckDB, pandas and Trino would count messages twice.

Object stores cannot rename a directory. There a batch is written in its place, over what a kill
left of it, and the file `_stream-<id>` comes last: for a moment a reader may see a part of the
newest batch.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from aerobee.pipeline.jobs.common.job_result import JobFailed
from aerobee.pipeline.jobs.stream.job_plan import OWN_FOLDER, TablePlan
from aerobee.pipeline.jobs.stream.stream_memory import Notes
from aerobee.pipeline.jobs.stream.tables.table import Found, Stream, Table
from aerobee.pipeline.jobs.targets.hadoop import open_target
from aerobee.pipeline.jobs.targets.staging import Staging, write_parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

_HIDDEN: Final = ("_", ".")
_BATCH: Final = "batch="


class ParquetTable(Table):
    """See the module."""

    def __init__(self, spark: SparkSession, plan: TablePlan, stream: Stream) -> None:
        super().__init__(spark, plan, stream)
        self._folder = open_target(spark, plan.place)
        self._staging = Staging(self._folder, f"{OWN_FOLDER}/staging")
        self._notes = Notes(self._folder, OWN_FOLDER, "table")
        self._found: Found | None = None

    def write(self, batch: DataFrame, number: int) -> None:
        assert self._found is not None
        place = f"{_BATCH}{number:010d}"
        mark = f"{place}/_stream-{self._stream.id}"
        if self._folder.exists(mark):
            return
        rows, partition_by = self._aligned(batch, self._found), self._found.partition_by
        if not self._folder.renames:
            write_parquet(rows, self._folder, place, partition_by)
            self._folder.write_new(mark, b"")
            return
        if self._folder.exists(place):
            raise JobFailed(
                f"table {self._name} has a directory {place} that is not of the stream from "
                f"{self._stream.what}: somebody else writes there; move it away, and start again"
            )
        own = self._staging.new()
        aside = f"{own}/{place}"
        write_parquet(rows, self._folder, aside, partition_by)
        self._folder.write_new(f"{aside}/_stream-{self._stream.id}", b"")
        self._folder.sync(self._folder.sizes(aside))
        self._folder.move(aside, place)
        self._folder.remove_tree(own)

    def begin(self, schema: StructType, known: str | None) -> str:
        found = super().begin(schema, known)
        self._found = self._find()
        self._staging.clear()
        return found

    def _find(self) -> Found | None:
        from pyspark.sql.types import StructType

        kept = self._notes.latest()
        self._check_names(begun=kept is not None)
        if kept is None:
            return None
        return Found(
            kept["id"],
            kept["stream"],
            StructType.fromJson(kept["schema"]),
            tuple(kept["partition_by"]),
        )

    def _check_names(self, *, begun: bool) -> None:
        """A reader takes all that lies there; whose a batch is, is asked when that is written."""
        for name in sorted(self._folder.names("")):
            if name.startswith(_HIDDEN) or (begun and name.startswith(_BATCH)):
                continue
            remedy = (
                "readers would count it; move it away"
                if begun
                else f"name another {self._plan.option} for {self._stream.what}"
            )
            raise JobFailed(
                f"table {self._name} holds what no stream wrote, such as {name}: {remedy}"
            )

    def _foreign(self, found: Found) -> str:
        kept = self._notes.latest() or {}
        if kept.get("checkpoint") == self._stream.checkpoint:
            return (
                f"table {self._name} has rows of a stream whose checkpoint, "
                f"{self._stream.checkpoint}, is gone: put it back, or name another "
                f"{self._plan.option} and have {self._stream.what} read from the beginning"
            )
        return (
            f"table {self._name} is written by the stream from {kept.get('what')} with checkpoint "
            f"{kept.get('checkpoint')}: a Parquet directory has one writer, so name another "
            f"{self._plan.option} for {self._stream.what}"
        )

    def _create(self, schema: StructType) -> None:
        self._keep(uuid.uuid4().hex, schema.jsonValue())

    def _mark(self) -> None:
        raise AssertionError("one without a mark is refused")

    def _add(self, fields: Sequence[StructField]) -> None:
        """Earlier files lack them; readers that merge schemas give null."""
        kept = self._notes.latest()
        assert kept is not None
        more = [{**field.jsonValue(), "nullable": True} for field in fields]
        self._keep(kept["id"], {**kept["schema"], "fields": [*kept["schema"]["fields"], *more]})

    def _keep(self, own: str, schema: Any) -> None:
        document = {
            "id": own, "stream": self._stream.id, "what": self._stream.what,
            "checkpoint": self._stream.checkpoint, "schema": json.loads(json.dumps(schema)),
            "partition_by": list(self._plan.partition_by),
        }  # fmt: skip
        if not self._notes.write(document):
            raise JobFailed(
                f"another stream began to write to {self._name} at the same time; name another "
                f"{self._plan.option} for {self._stream.what}"
            )
