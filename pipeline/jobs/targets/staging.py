"""Parquet on its way into a directory: written aside, and given its place when it is whole.

Each try writes to a directory of its own, because the JVM of a run that was killed may still write
to another. A kill leaves rows aside, where no reader looks; the next run removes them. Their table
(`stream/tables/parquet.py`) or ledger (`ledger.py`) decides how rows get their place in one act.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from aerobee.pipeline.jobs.targets.hadoop import AnyTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Staging:
    """The staging directory `folder` of a target."""

    def __init__(self, target: AnyTarget, folder: str) -> None:
        self._target, self._folder = target, folder

    def new(self) -> str:
        """The name of a directory for one try alone."""
        return f"{self._folder}/{uuid.uuid4().hex}"

    def files(self, aside: str) -> dict[str, int]:
        """The Parquet files below `aside` with their lengths, without Spark's own files that a task
        left there."""
        return {
            path: size
            for path, size in self._target.sizes(aside).items()
            if path.endswith(".parquet") and not _is_hidden(path[len(aside) + 1 :])
        }

    def clear(self) -> None:
        """Remove what runs before have left."""
        self._target.remove_tree(self._folder)


def write_parquet(
    rows: DataFrame,
    target: AnyTarget,
    path: str,
    partition_by: Iterable[str],
    options: Mapping[str, str] | None = None,
) -> None:
    """Write the rows as Parquet below `path`, in place of earlier files."""
    writer = rows.write.mode("overwrite").partitionBy(*partition_by).options(**(options or {}))
    writer.parquet(target.uri(path))


def _is_hidden(path: str) -> bool:
    return any(name.startswith(("_", ".")) for name in path.split("/"))
