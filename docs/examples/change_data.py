"""Change data of a database, merged into a table: Canal's and Debezium's JSON from a topic.

    aerobee pipeline submit -n 127.0.0.1:9876 docs/examples/change_data.py customer-changes \\
        /data/customers --schema "id bigint, name string, cents bigint" --key id

takes what is there and ends; with --continuous it goes on. `read_table` gives readers the rows.
It may be killed anywhere and started again, and may read the topic from its beginning again (with
another --checkpoint): a change counts only if it is later in its queue than the change that made
the row what it is. So each counts once, in the order of the queue. Send the changes of a key to one
queue (Canal: canal.mq.partitionHash; our sink: the column shardingKey): between queues there is no
order.

The table is a directory of Parquet files for each state, and a file CURRENT that names the newest
and is replaced in one act, for which it has to be a local disk or NFS. Each batch writes a state
whole, so this is for tables of some gigabytes. A deleted row stays as its key and position. What is
no change of a row (other messages, DDL, TRUNCATE, a key that is missing) is kept in `unapplied`.
"""

import argparse
import os
import shutil
import sys
import uuid
from collections.abc import Sequence

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

ROW = "map<string, string>"
DEBEZIUM = f"op string, before {ROW}, after {ROW}"
# Both at once; Debezium's may lie in a payload, beside its schema.
ENVELOPE = (
    f"type string, data array<{ROW}>, old array<{ROW}>, {DEBEZIUM}, payload struct<{DEBEZIUM}>"
)
# The place of the newest change in the topic, which readers do not see.
POSITION = ["queue", "queueOffset", "number"]
# Readers that opened an older one may go on for as long as it is there.
STATES_KEPT = 3


def changes(messages: DataFrame, schema: StructType, keys: Sequence[str]) -> DataFrame:
    """A row for each changed row: the table's columns, `deleted`, the position, storeTimestamp and
    body. A row whose key changed is two; a message that is no change is one without a key."""

    def value(row: str, name: str) -> str:
        return f"try_element_at({row}, '{name}')"

    # Canal's `old` has the columns that changed.
    old_keys = ", ".join(
        f"'{key}', coalesce({value('get(m.old, i)', key)}, {value('row', key)})" for key in keys
    )
    pairs = f"""CASE
        WHEN m.type IN ('INSERT', 'UPDATE', 'DELETE') THEN transform(m.data, (row, i) -> struct(
            CASE m.type WHEN 'UPDATE' THEN map({old_keys}) WHEN 'DELETE' THEN row END AS before,
            CASE WHEN m.type <> 'DELETE' THEN row END AS after))
        WHEN d.op IN ('c', 'r', 'u', 'd') THEN array(struct(d.before AS before, d.after AS after))
        END"""
    same = " AND ".join(f"{value('p.before', key)} <=> {value('p.after', key)}" for key in keys)
    single = f"""flatten(transform(pairs, p -> filter(array(
        struct(true AS deleted, if(p.after IS NULL OR NOT ({same}), p.before, NULL) AS row),
        struct(false AS deleted, p.after AS row)), one -> one.row IS NOT NULL)))"""
    types = {one.name: one.dataType.simpleString() for one in schema.fields}
    columns = [
        f"try_cast({value('change.row', name)} AS {type_}) AS `{name}`"
        for name, type_ in types.items()
    ]
    place = ["concat(brokerName, '/', queueId) AS queue", "queueOffset", "storeTimestamp", "body"]
    return (
        messages.withColumn("m", f.from_json(f.col("body").cast("string"), ENVELOPE))
        .withColumn("d", f.expr("coalesce(m.payload, struct(m.op, m.before, m.after))"))
        .withColumn("pairs", f.expr(pairs))
        .selectExpr(*place, f"posexplode_outer({single}) AS (number, change)")
        .selectExpr("*", "change.deleted", *columns)
        .drop("change")
    )


def merged(old: DataFrame | None, found: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The next state: the last change of each key, where it is later than what the row has."""
    columns = [name for name in found.columns if name not in ("storeTimestamp", "body")]
    change = f.struct("storeTimestamp", *columns)
    latest = (
        found.groupBy(*keys, "queue")
        .agg(f.max_by(change, f.struct("queueOffset", "number")).alias("new"))
        .groupBy(*keys)
        .agg(f.max_by("new", "new.storeTimestamp").alias("new"))
        .select(*keys, f.struct(*(f"new.{name}" for name in columns)).alias("new"))
    )
    if old is None:
        return latest.select("new.*")
    rows = old.select(*keys, f.struct(*columns).alias("old")).join(latest, [*keys], "full_outer")
    later = """old IS NULL OR new.queue <> old.queue
        OR struct(new.queueOffset, new.number) > struct(old.queueOffset, old.number)"""
    return rows.selectExpr(f"if(new IS NOT NULL AND ({later}), new, old) AS row").select("row.*")


def states(folder: str) -> list[str]:
    """Names of the states that count, the newest first."""
    try:
        with open(f"{folder}/CURRENT", encoding="utf-8") as file:
            return file.read().split()
    except FileNotFoundError:
        return []


def switch(folder: str, name: str) -> None:
    """Have `name` be the newest state; those that nobody is to read any more are deleted."""
    kept = [name, *states(folder)][:STATES_KEPT]
    with open(f"{folder}/CURRENT.new", "w", encoding="utf-8") as file:
        file.write("\n".join(kept) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{folder}/CURRENT.new", f"{folder}/CURRENT")
    for other in os.listdir(f"{folder}/states"):
        if other not in kept:
            shutil.rmtree(f"{folder}/states/{other}")


def read_state(spark: SparkSession, folder: str) -> DataFrame | None:
    """The newest state with positions and deleted rows; None before the first one."""
    names = states(folder)
    return spark.read.parquet(f"{folder}/states/{names[0]}") if names else None


def read_table(spark: SparkSession, folder: str) -> DataFrame:
    """The rows of the table, as they are now."""
    state = read_state(spark, folder)
    if state is None:
        raise FileNotFoundError(f"{folder}: there is no table yet")
    return state.where("NOT deleted").drop("deleted", *POSITION)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("topic")
    parser.add_argument("folder", help="of the table; made if it is not there")
    parser.add_argument("--schema", required=True, help='columns: "id bigint, name string"')
    parser.add_argument("--key", required=True, action="append", help="a column of the key")
    parser.add_argument("--checkpoint", default="checkpoint", help="its name, in the folder")
    parser.add_argument("--option", action="append", default=[], help="of the source: NAME=VALUE")
    parser.add_argument("--continuous", action="store_true", help="go on with what arrives")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    folder = os.path.abspath(given.folder)
    spark = SparkSession.builder.appName(f"changes of {given.topic}").getOrCreate()
    try:
        schema = StructType.fromDDL(given.schema)
    except PySparkException as error:
        sys.exit(f"--schema {given.schema!r} is no DDL: {str(error).splitlines()[0]}")
    if unknown := [key for key in given.key if key not in schema.names]:
        sys.exit(f"--key {unknown[0]} is no column of --schema: {', '.join(schema.names)}")
    no_key = " OR ".join(f"`{key}` IS NULL" for key in given.key)

    def merge(batch: DataFrame, number: int) -> None:
        found = changes(batch, schema, given.key).persist()
        unapplied = f"{folder}/unapplied/{given.checkpoint}/batch={number}"
        found.where(no_key).select("queue", "queueOffset", "storeTimestamp", "body").write.mode(
            "overwrite"
        ).parquet(unapplied)
        name = f"{number}-{uuid.uuid4().hex}"
        state = merged(read_state(spark, folder), found.where(f"NOT ({no_key})"), given.key)
        state.write.parquet(f"{folder}/states/{name}")
        switch(folder, name)
        no_keys = f.count_if(f.expr(no_key))
        [(bad, count)] = found.agg(no_keys, f.count("*")).collect()
        print(
            f"batch {number}: {count - bad} changes merged, {bad} rows unapplied", file=sys.stderr
        )
        found.unpersist()

    source = spark.readStream.format("rocketmq").option("topic", given.topic)
    source = source.option("startingOffsets", "earliest")
    source = source.options(**dict(one.split("=", 1) for one in given.option))
    query = source.load().writeStream.foreachBatch(merge)
    query = query.option("checkpointLocation", f"{folder}/{given.checkpoint}")
    query.trigger(**({} if given.continuous else {"availableNow": True})).start().awaitTermination()


if __name__ == "__main__":
    main()
