"""Iceberg tables, through Iceberg's own package.

Iceberg keeps no transactions of applications, but each snapshot may say what it is: a batch is
appended in one snapshot that names stream and number, as Iceberg's own streaming sink does with
Spark's. Only the first batch of a run can have been written before, by the run that ended before
its checkpoint said so; for it the snapshots are looked through, from the current one back. Others
may append, delete and compact meanwhile; whoever expires snapshots keeps those of the last day.

A directory is a table of a catalog of files (`type=hadoop`): on a file system that renames.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from aerobee.pipeline.jobs.stream.job_plan import TablePlan
from aerobee.pipeline.jobs.stream.tables.table import (
    OWNER,
    Found,
    SqlTable,
    Stream,
    columns_ddl,
    quoted,
    text,
)
from aerobee.pipeline.jobs.targets.hadoop import open_target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_BATCH: Final = "aerobee.batch"
_CATALOG_CLASS: Final = "org.apache.iceberg.spark.SparkCatalog"


class IcebergTable(SqlTable):
    """See the module."""

    called = "Iceberg"

    def __init__(self, spark: SparkSession, plan: TablePlan, stream: Stream) -> None:
        super().__init__(spark, plan, stream)
        if plan.is_directory:
            self._catalog = f"aerobee_{abs(hash(plan.place)):x}"
            self._set_catalog(plan)
            parts = [self._catalog, plan.uri.rpartition("/")[2]]
        else:
            parts = plan.place.split(".")
            self._catalog = parts[0]
        self._sql_name = ".".join(quoted(part) for part in parts)
        self._begun = False

    def write(self, batch: DataFrame, number: int) -> None:
        rows = self._aligned(batch, self._still_there())
        if not self._begun and self._last_batch() >= number:
            return
        writer = rows.writeTo(self._sql_name)
        writer = writer.option(f"snapshot-property.{OWNER}", self._stream.id)
        writer.option(f"snapshot-property.{_BATCH}", str(number)).append()
        self._begun = True

    def compact(self) -> None:
        # Iceberg's own 5 would leave up to four small files of each partition for ever.
        options = "'min-input-files', '2'"
        if self._plan.compact_bytes:
            options += f", 'target-file-size-bytes', '{self._plan.compact_bytes}'"
        within = self._sql_name.partition(".")[2]
        self._spark.sql(
            f"CALL {quoted(self._catalog)}.system.rewrite_data_files("
            f"table => {text(within)}, options => map({options}))"
        ).collect()

    def _set_catalog(self, plan: TablePlan) -> None:
        name = f"spark.sql.catalog.{self._catalog}"
        self._spark.conf.set(name, _CATALOG_CLASS)
        self._spark.conf.set(f"{name}.type", "hadoop")
        self._spark.conf.set(f"{name}.warehouse", plan.uri.rpartition("/")[0])
        # Each batch looks at the table as it is, whoever changed it.
        self._spark.conf.set(f"{name}.cache-enabled", "false")

    def _find(self) -> Found | None:
        if not self._is_there():
            return None
        self._spark.catalog.refreshTable(self._sql_name)
        table = self._table()
        return Found(
            str(table.uuid()),
            table.properties().get(OWNER),
            self._spark.table(self._sql_name).schema,
            tuple(field.name() for field in table.spec().fields()),
            table.currentSnapshot() is None,
        )

    def _table(self) -> Any:
        jvm: Any = self._spark._jvm
        loader = jvm.org.apache.iceberg.spark.Spark3Util
        return loader.loadIcebergTable(self._spark._jsparkSession, self._sql_name)

    def _is_there(self) -> bool:
        if self._spark.catalog.tableExists(self._sql_name):
            return True
        if self._plan.is_directory:
            folder = open_target(self._spark, self._plan.place)
            names = folder.names("")
            # A kill while it was made leaves metadata without a version.
            if not any(name.endswith(".metadata.json") for name in folder.names("metadata")):
                names = [name for name in names if name != "metadata"]
            self._check_empty(names)
        return False

    def _last_batch(self) -> int:
        """The last batch of this stream in the table as it is; -1 without a batch."""
        for summary in self._summaries():
            if summary.get(OWNER) == self._stream.id:
                return int(summary.get(_BATCH))
        return -1

    def _summaries(self) -> Iterator[Any]:
        table = self._table()
        snapshot = table.currentSnapshot()
        while snapshot is not None:
            yield snapshot.summary()
            parent = snapshot.parentId()
            snapshot = None if parent is None else table.snapshot(parent)

    def _create(self, schema: StructType) -> None:
        partition = ", ".join(quoted(name) for name in self._plan.partition_by)
        self._spark.sql(
            f"CREATE TABLE {self._sql_name} ({columns_ddl(schema.fields)}) USING iceberg "
            + (f"PARTITIONED BY ({partition})" if partition else "")
        )
