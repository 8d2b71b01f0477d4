"""Spark Connect: a client without a JVM of its own reads a topic into Parquet and writes to a
topic."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.interop.brokers import Broker
from tests.spark.conftest import require_connect
from tests.spark.kit import VERSIONS, python_of, quick
from tests.spark.messages import new_topic, send
from tests.spark.writing.sinks import found

#: `remote("local[...]")` starts the server that it speaks with.
PROGRAM = """\
import json
import sys
from pyspark.sql import SparkSession

name_server, source, target, table = sys.argv[1:]
builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
assert "connect" in type(spark).__module__
topic = {"nameServer": name_server, "topic": source}
for _ in range(2):
    rows = spark.readStream.format("rocketmq").options(**topic)
    rows = rows.option("startingOffsets", "earliest").load()
    writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{table}/_check")
    query = writer.trigger(availableNow=True).start(table)
    assert query.awaitTermination(200)
stored = spark.read.parquet(table).selectExpr("string(body) AS body")
stored.write.format("rocketmq").mode("append").options(
    nameServer=name_server, topic=target, jobId=target
).save()
print(json.dumps(sorted(row.body for row in stored.collect())))
try:
    spark.read.format("rocketmq").options(**topic).option("topik", "x").load().count()
except Exception as error:
    print(json.dumps(str(error).split("\\n")[0]))
spark.stop()
"""


def test_a_topic_goes_to_parquet_and_back_through_connect(
    our_broker: Broker, tmp_path: Path
) -> None:
    require_connect(VERSIONS[0])
    source, target = new_topic(our_broker), new_topic(our_broker)
    bodies = [b"%03d" % number for number in range(100)]
    send(our_broker, source, bodies, batch=50)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    python = str(python_of(VERSIONS[0]))
    table = tmp_path / "table"
    done = subprocess.run(
        [python, str(program), our_broker.name_server, source, target, str(table)],
        env=os.environ | quick(VERSIONS[0]) | {"PYSPARK_PYTHON": python}, cwd=tmp_path,
        capture_output=True, text=True, timeout=290, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    texts = [body.decode() for body in bodies]
    rows, said = map(json.loads, done.stdout.splitlines()[-2:])
    assert rows == texts
    assert found(our_broker, target) == dict.fromkeys(texts, 1)
    assert "unknown option 'topik'; did you mean 'topic'?" in said
