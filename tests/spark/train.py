"""Loads the classes that the tests' Spark needs, for Java to keep in an archive at its end.

    train.py ARCHIVE FOLDER

A driver that starts with the archive (`kit.quick_java`) is ready, and answers its first query, in
half the time. An archive that does not fit, of another Java for example, is left aside by Java.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)


class Numbers(DataSource):
    """Three rows, in batches and streams; takes any, and forgets them."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "number long, text string, body binary, marks map<string, string>, at timestamp"

    def reader(self, schema: object) -> DataSourceReader:
        return NumbersReader()

    def streamReader(self, schema: object) -> DataSourceStreamReader:
        return NumbersStream()

    def writer(self, schema: object, overwrite: bool) -> DataSourceWriter:
        return NumbersWriter()


class NumbersReader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[object]:
        import pyarrow as pa

        columns = {
            "number": pa.array([1, 2, 3], pa.int64()),
            "text": pa.array(["a", "b", None]),
            "body": pa.array([b"1", b"2", b"3"], pa.binary()),
            "marks": pa.array([[("a", "b")]] * 3, pa.map_(pa.string(), pa.string())),
            "at": pa.array([0, 1, 2], pa.timestamp("us", "UTC")),
        }
        yield pa.RecordBatch.from_pydict(columns)


class NumbersStream(DataSourceStreamReader):
    read = NumbersReader.read

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self) -> dict[str, int]:
        return {"at": 3}

    def partitions(self, start: object, end: object) -> list[InputPartition]:
        return [InputPartition(0)]


class NumbersWriter(DataSourceWriter):
    def write(self, iterator: Iterator[object]) -> WriterCommitMessage:
        list(iterator)
        return WriterCommitMessage()


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
    python_sources(spark, folder)
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()  # it writes the archive at its end


def python_sources(spark: SparkSession, folder: str) -> None:
    """Load the classes that reads and writes through Python need besides, and those of jobs with
    rows."""
    spark.dataSource.register(Numbers)
    rows = spark.read.format("numbers").load()
    assert rows.count() == 6
    assert len(rows.collect()) == 6
    rows.select("number", "text").write.format("numbers").mode("append").save()
    rows.createOrReplaceTempView("numbers")
    (
        spark.sql("SELECT number, count(*) AS n, max(text) AS text FROM numbers GROUP BY number")
        .join(rows.select("number", f.col("marks")["a"].alias("mark"), "at"), "number")
        .withColumn("place", f.expr("row_number() OVER (PARTITION BY number ORDER BY at)"))
        .filter("place = 1 AND text IS NOT NULL")
        .orderBy("number")
        .toPandas()
    )
    rows.select("number").mapInArrow(lambda batches: batches, "number long").collect()
    (
        rows.repartition(2, "number").sortWithinPartitions("at").withColumn("day", f.to_date("at"))
        .write.partitionBy("day").parquet(f"{folder}/days")
    )  # fmt: skip
    assert spark.read.parquet(f"{folder}/days").where("day = '1970-01-01'").count() == 6
    stream = spark.readStream.format("numbers").load()
    (
        stream.writeStream.foreachBatch(lambda batch, _number: batch.collect())
        .option("checkpointLocation", f"{folder}/numbers-checkpoint")
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
