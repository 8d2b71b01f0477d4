"""Functions of the tests of streams; each runs in a driver (see kit.Driver)."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def places(folder: Path) -> dict[str, str]:
    """Where a query writes and keeps its state."""
    return {"out": str(folder / "out"), "checkpoint": str(folder / "checkpoint")}


def drain(
    spark: Any, options: dict[str, str], out: str, checkpoint: str, trigger: str = "availableNow"
) -> list[int]:
    """Runs a query to the end of what is there; the rows of each batch."""
    frame = spark.readStream.format("rocketmq").options(**options).load()
    query = (
        frame.writeStream.format("parquet")
        .option("path", out)
        .option("checkpointLocation", checkpoint)
        .trigger(**{trigger: True})
        .start()
    )
    query.awaitTermination()
    return [one["numInputRows"] for one in query.recentProgress]


def start(spark: Any, options: dict[str, str], out: str, checkpoint: str) -> None:
    """Starts a query that runs on; `written` asks after it."""
    frame = spark.readStream.format("rocketmq").options(**options).load()
    spark.tests_query = (
        frame.writeStream.format("parquet")
        .option("path", out)
        .option("checkpointLocation", checkpoint)
        .start()
    )


def written(spark: Any, out: str) -> int:
    """Rows that are committed; that the query has failed is an error."""
    import os

    if spark.tests_query.exception() is not None:
        raise spark.tests_query.exception()
    if not os.path.isdir(out + "/_spark_metadata"):
        return 0
    return spark.read.schema("body binary").parquet(out).count()


def bodies(spark: Any, out: str) -> list[bytes]:
    """The written bodies, sorted."""
    rows = spark.read.schema("body binary").parquet(out).collect()
    return sorted(bytes(row.body) for row in rows)


def stop_all(spark: Any) -> None:
    for query in spark.streams.active:
        query.stop()
