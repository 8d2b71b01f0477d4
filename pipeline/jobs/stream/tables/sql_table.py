"""What Delta and Iceberg tables have in common: both have a name in SQL, and properties, one of
which says whose table it is; others may write to them between two batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from aerobee.pipeline.jobs.result import JobFailed
from aerobee.pipeline.jobs.stream.tables.table import Found, Table

if TYPE_CHECKING:
    from pyspark.sql.types import StructField

#: The property that holds the id of the table's stream.
OWNER: Final = "aerobee.stream"


class SqlTable(Table):
    """A table that SQL changes. Subclasses set `_sql_name`, and say what they are called."""

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
