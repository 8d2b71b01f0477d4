"""`spark.read.format("rocketmq-store")`: the files of a RocketMQ store as a DataFrame.

    spark.read.format("rocketmq-store").option("topic", "Orders").load("/data/store")

A thin layer over `store_options.py` (the options), `store_plan.py` (partitions, on the driver) and
`part_reader.py` (rows, on the executors), for PySpark 4.0 to 4.3. Its imports are light, because
Spark imports it to find the source; numpy and pyarrow come when a read is planned.

Spark refuses a reader that takes filters unless `spark.sql.python.filterPushdown.enabled` is set,
so only the option `pushdown` makes such a reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from aerobee.pipeline.decode.columns import ddl
from aerobee.pipeline.decode.selection import selection_of
from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.files.store_options import StoreOptions
from aerobee.pipeline.workers import plain_errors, prepare_worker

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@plain_errors
class RocketMQStoreSource(DataSource):
    """The data source `rocketmq-store`. An unknown option is refused by name."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "rocketmq-store"

    def schema(self) -> str:
        """The columns asked for, as DDL. Raises OptionError for a wrong option."""
        prepare_worker()
        return ddl(StoreOptions.parse(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Raises OptionError, also for a schema that is not the source's own."""
        options = StoreOptions.parse(self.options)
        names = [column.name for column in options.columns]
        if schema.fieldNames() != names:
            raise OptionError(
                "this source has its own schema; choose columns with the option columns, not with "
                f"schema(...): it has {', '.join(names)}"
            )
        kind = FilteringStoreReader if options.pushdown else StoreReader
        return kind(options)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Raises OptionError: store files are only read."""
        raise OptionError("format rocketmq-store only reads; write with format rocketmq")


@plain_errors
class StoreReader(DataSourceReader):
    """Plans on the driver and reads on executors, where it arrives pickled."""

    def __init__(self, options: StoreOptions) -> None:
        self.options = options
        self.selection = options.selection

    def partitions(self) -> list[InputPartition]:
        """Raises StoreReadError: no such path, no store, a DLedger log, no such topic."""
        from aerobee.pipeline.files.store_plan import plan

        prepare_worker()
        return [InputPartition(part) for part in plan(self.options, self.selection)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Batches of the schema. Spark makes a partition None of an empty plan."""
        from aerobee.pipeline.files.part_reader import read_part

        prepare_worker()
        if partition is not None and partition.value is not None:
            yield from read_part(partition.value, self.options, self.selection)


@plain_errors
class FilteringStoreReader(StoreReader):
    """The reader for `pushdown=true`: filters narrow the read, and Spark evaluates them again."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Take the filters; all are given back, for Spark to evaluate on the rows."""
        self.selection = self.selection.intersect(selection_of(filters, "commitLogOffset"))
        return filters
