"""Loads the classes that the tests' Spark needs, for Java to keep in an archive at its end.

    train.py ARCHIVE FOLDER

A driver that starts with the archive (`kit.quick_java`) is ready, and answers its first query, in
half the time. An archive that does not fit, of another Java for example, is left aside by Java.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(archive: str, folder: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config(
            "spark.driver.extraJavaOptions",
            f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ArchiveClassesAtExit={archive} "
            "-Xlog:disable",
        )
        .getOrCreate()
    )
    rows = spark.range(1000).selectExpr("id", "cast(id AS string) AS text", "id % 3 AS kind")
    rows.groupBy("kind").count().write.mode("overwrite").parquet(f"{folder}/batch")
    assert spark.read.parquet(f"{folder}/batch").count() == 3
    rows.write.mode("overwrite").json(f"{folder}/in")
    stream = spark.readStream.schema(rows.schema).json(f"{folder}/in")
    (
        stream.writeStream.format("parquet")
        .option("path", f"{folder}/out")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    assert spark.read.parquet(f"{folder}/out").count() == 1000
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
