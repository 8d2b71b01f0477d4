"""Delta tables, through Delta Lake's own package.

A batch is appended under (stream, number) as the transaction of an application (`txnAppId`,
`txnVersion`), which Delta keeps in the table's log beside the files: an append that is repeated is
passed over, in the same act in which it would have been decided. Others may append, update, delete
and compact meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aerobee.pipeline.jobs.common.job_result import JobFailed
from aerobee.pipeline.jobs.stream.job_plan import OWN_FOLDER, TablePlan
from aerobee.pipeline.jobs.stream.tables.table import OWNER, Found, SqlTable, Stream, quoted
from aerobee.pipeline.jobs.targets.hadoop import open_target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_FILE_BYTES: Final = "spark.databricks.delta.optimize.maxFileSize"


class DeltaTable(SqlTable):
    """See the module."""

    called = "Delta"

    def __init__(self, spark: SparkSession, plan: TablePlan, stream: Stream) -> None:
        super().__init__(spark, plan, stream)
        if plan.is_directory:
            self._sql_name = f"delta.{quoted(plan.uri)}"
        else:
            self._sql_name = ".".join(quoted(part) for part in plan.place.split("."))

    def write(self, batch: DataFrame, number: int) -> None:
        writer = self._aligned(batch, self._still_there()).write.format("delta").mode("append")
        writer = writer.option("txnAppId", self._stream.id).option("txnVersion", number)
        if self._plan.is_directory:
            writer.save(self._plan.uri)
        else:
            writer.saveAsTable(self._sql_name)

    def compact(self) -> None:
        if self._plan.compact_bytes:
            self._spark.conf.set(_FILE_BYTES, str(self._plan.compact_bytes))
        self._spark.sql(f"OPTIMIZE {self._sql_name}").collect()

    def _find(self) -> Found | None:
        if not self._is_there():
            return None
        detail: Any = self._spark.sql(f"DESCRIBE DETAIL {self._sql_name}").collect()[0]
        if detail.format != "delta":
            raise JobFailed(f"table {self._name} is {detail.format}, not delta; see --format")
        return Found(
            detail.id,
            detail.properties.get(OWNER),
            self._spark.table(self._sql_name).schema,
            tuple(detail.partitionColumns),
            detail.numFiles == 0,
        )

    def _is_there(self) -> bool:
        if not self._plan.is_directory:
            return bool(self._spark.catalog.tableExists(self._sql_name))
        folder = open_target(self._spark, self._plan.place)
        names = folder.names("")
        # A kill while it was made leaves a log without a version.
        log = folder.names("_delta_log") if "_delta_log" in names else []
        if any(name.endswith((".json", ".parquet")) and name[0].isdigit() for name in log):
            return True
        # And before the log a file of no row, which Delta passes over once there is a table.
        if not folder.exists(self._being_made):
            self._check_empty(names)
        return False

    @property
    def _being_made(self) -> str:
        """There from before this stream makes the directory's table."""
        return f"{OWN_FOLDER}/making-{self._stream.id}"

    def _create(self, schema: StructType) -> None:
        # SQL makes none in a directory that holds something, such as a checkpoint.
        rows = self._spark.createDataFrame([], schema)
        writer = rows.write.format("delta").mode("error").partitionBy(*self._plan.partition_by)
        if self._plan.is_directory:
            open_target(self._spark, self._plan.place).write_new(self._being_made, b"")
            writer.save(self._plan.uri)
        else:
            writer.saveAsTable(self._sql_name)
