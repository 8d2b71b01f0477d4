"""A table of a stream: it is made or recognised once, and then takes batches.

    begin(schema, known)     makes the table, or checks that it is this stream's and fits
    write(batch, number)     writes all rows of a batch, or none if the table has that number
    compact()                makes fewer, larger files, if the format can do that under its readers

A table is marked with the stream that made it, or found it empty. A stream refuses a table of
another stream, a table with rows of somebody else, and a table that was made anew since, unless the
user says that rows are to be appended to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from aerobee.pipeline.jobs.common.job_result import USAGE, JobFailed
from aerobee.pipeline.jobs.stream.job_plan import TablePlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

#: The property that holds the id of the table's stream.
OWNER: Final = "aerobee.stream"


class Stream(NamedTuple):
    """The stream that writes: its id, its topics for people, its checkpoint."""

    id: str
    what: str
    checkpoint: str


class Found(NamedTuple):
    """A table as it is: its own identity, the id of the stream that it is marked with (None: not
    marked), its columns, those it is partitioned by, whether it has no row yet."""

    id: str
    stream: str | None
    schema: StructType
    partition_by: tuple[str, ...]
    is_empty: bool = False


class Table(ABC):
    """A table of one stream. Methods raise JobFailed with topic, table and remedy."""

    def __init__(self, spark: SparkSession, plan: TablePlan, stream: Stream) -> None:
        self._spark, self._plan, self._stream = spark, plan, stream
        self._id = ""

    @abstractmethod
    def write(self, batch: DataFrame, number: int) -> None:
        """The rows of a batch, all or none; nothing if this stream's batch `number` is there."""

    def compact(self) -> None:
        """Fewer, larger files; readers see the same rows at any moment."""
        raise AssertionError("planned for a format that cannot")

    @abstractmethod
    def _find(self) -> Found | None:
        """The table as it is now, whoever wrote to it last."""

    @abstractmethod
    def _create(self, schema: StructType) -> None:
        """Make it, without a row."""

    @abstractmethod
    def _mark(self) -> None:
        """Let it say that it is this stream's."""

    @abstractmethod
    def _add(self, fields: Sequence[StructField]) -> None:
        """Add columns to it."""

    def check(self, schema: StructType, known: str | None) -> Found | None:
        """The table, if it is there. Raises JobFailed if rows of this stream cannot go there;
        changes nothing. `known` is the table's id if this stream wrote to it before."""
        found = self._find()
        if found is None:
            if known is not None:
                raise JobFailed(
                    f"table {self._name} is gone, to which {self._stream.what} was written before; "
                    f"restore it, or remove checkpoint {self._stream.checkpoint} to fill a new one"
                )
            return None
        self._id = found.id if known is None else known
        self._check_same(found)
        if known is None and not self._is_free(found) and not self._plan.existing:
            raise JobFailed(self._foreign(found))
        self._check_partitions(found)
        self._new_columns(found, schema)
        return found

    def begin(self, schema: StructType, known: str | None) -> str:
        """Check the table, or make it, and mark it as this stream's; returns its id."""
        found = self.check(schema, known)
        if found is None:
            self._create(schema)
            found = self.check(schema, known)
            assert found is not None
        if known is None and found.stream is None and found.is_empty:
            self._mark()
        new = self._new_columns(found, schema)
        if new:
            self._add(new)
        return self._id

    def _is_free(self, found: Found) -> bool:
        """Whether it is this stream's already, or nobody's."""
        return found.stream == self._stream.id or (found.stream is None and found.is_empty)

    @property
    def _name(self) -> str:
        return self._plan.place

    def _foreign(self, found: Found) -> str:
        whose = "is another stream's" if found.stream else "has rows of somebody else"
        return (
            f"table {self._name} {whose}: name another {self._plan.option} for "
            f"{self._stream.what}, or say --existing to append to it"
        )

    def _check_same(self, found: Found) -> None:
        if found.id != self._id:
            raise JobFailed(
                f"table {self._name} was removed and made anew by somebody else since "
                f"{self._stream.what} was written to it; restore it, or begin anew with another "
                "--to and --checkpoint"
            )

    def _check_partitions(self, found: Found) -> None:
        wanted = self._plan.partition_by
        if wanted and wanted != found.partition_by:
            are = ", ".join(found.partition_by) or "nothing"
            raise JobFailed(
                f"table {self._name} is partitioned by {are}: leave --partition-by out for it",
                USAGE,
            )

    def _new_columns(self, found: Found, schema: StructType) -> list[StructField]:
        """The columns that the table lacks. Raises JobFailed if they are refused, or do not fit."""
        there = {field.name.lower(): field for field in found.schema.fields}
        new = [field for field in schema.fields if field.name.lower() not in there]
        for field in schema.fields:
            has = there.get(field.name.lower())
            if has is not None and not _is_same(has, field):
                raise JobFailed(
                    f"{self._stream.what} does not fit table {self._name}: its column {has.name} "
                    f"is {has.dataType.simpleString()}, not {field.dataType.simpleString()}; give "
                    "that field another name or type with --schema, or name another --to and "
                    "--checkpoint"
                )
        if new and not self._plan.add_columns:
            names = ", ".join(field.name for field in new)
            raise JobFailed(
                f"{self._stream.what} does not fit table {self._name}, which lacks {names}: say "
                "--schema-change add to add that, or name another --to and --checkpoint"
            )
        return new

    def _aligned(self, batch: DataFrame, found: Found) -> DataFrame:
        """The batch with the table's columns; those that somebody added are null."""
        from pyspark.sql import functions as f

        self._check_same(found)
        missing = self._new_columns(found, batch.schema)
        assert not missing or self._plan.add_columns
        if missing:
            self._add(missing)
        has = {name.lower(): name for name in batch.columns}
        columns = [
            f.col(f"`{has[field.name.lower()]}`").alias(field.name)
            if field.name.lower() in has
            else f.lit(None).cast(field.dataType).alias(field.name)
            for field in (*found.schema.fields, *missing)
        ]
        batch = batch.select(*columns)
        return batch if self._plan.files is None else batch.coalesce(self._plan.files)


def _is_same(one: StructField, other: StructField) -> bool:
    # Formats differ in what may be null inside, which a batch of ours always may.
    same: bool = one.dataType.simpleString() == other.dataType.simpleString()
    return same


class SqlTable(Table):
    """A table with a name in SQL and with properties; a property says whose table it is; others may
    write to it between two batches. Subclasses set `_sql_name`, and say what they are called.
    """

    called: ClassVar[str]
    _sql_name: str

    def _mark(self) -> None:
        self._spark.sql(
            f"ALTER TABLE {self._sql_name} SET TBLPROPERTIES "
            f"({text(OWNER)} = {text(self._stream.id)})"
        )

    def _add(self, fields: Sequence[StructField]) -> None:
        self._spark.sql(f"ALTER TABLE {self._sql_name} ADD COLUMNS ({columns_ddl(fields)})")

    def _still_there(self) -> Found:
        """The table before a batch is written. Raises JobFailed if it was removed."""
        found = self._find()
        if found is None:
            raise JobFailed(
                f"table {self._name} was removed while {self._stream.what} was written to it; "
                "restore it, or begin anew with another --to and --checkpoint"
            )
        return found

    def _check_empty(self, names: Iterable[str]) -> None:
        """Raises JobFailed if a directory without a table holds what readers would see."""
        others = sorted(name for name in names if not name.startswith(("_", ".")))
        if others:
            raise JobFailed(
                f"{self._name} is no {self.called} table, and not empty: it holds {others[0]}; "
                f"name another {self._plan.option} for {self._stream.what}"
            )


def quoted(name: str) -> str:
    """A part of a name for SQL."""
    return "`" + name.replace("`", "``") + "`"


def text(value: str) -> str:
    """A string for SQL."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def columns_ddl(fields: Sequence[StructField]) -> str:
    """Columns for CREATE and ALTER; all may be null."""
    return ", ".join(f"{quoted(one.name)} {one.dataType.simpleString()}" for one in fields)
