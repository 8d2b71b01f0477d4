"""Writes by real Spark into the real daemon: each row once, whatever fails in between."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee.client.blocking import PullConsumer
from tests.interop.brokers import Broker
from tests.interop.processes import wait_until

from .kit import Driver, SparkFailed, python_of
from .messages import new_topic

FILES, LINES = 3, 300


def write_batch(
    spark: Any, options: dict[str, str], count: int, columns: str, mode: str = "append",
    fail: bool = False,
) -> None:  # fmt: skip
    from pyspark import TaskContext
    from pyspark.sql.functions import udf

    @udf("string")
    def sometimes(text: str) -> str:
        context = TaskContext.get()
        if fail and context.attemptNumber() < 2 and text.endswith("7"):
            raise RuntimeError("a task that fails")
        return text

    frame = spark.range(0, count, 1, 4).selectExpr("concat('row-', id) AS text", "id")
    frame = frame.withColumn("text", sometimes("text")).selectExpr(*columns.split("; "))
    frame.write.format("rocketmq").options(**options).mode(mode).save()


def write_stream(
    spark: Any, folder: str, checkpoint: str, options: dict[str, str], stop: str = "",
    marker: str = "", fail: bool = False, slow: bool = False,
) -> list[int]:  # fmt: skip
    """A query over a folder of text files, one a batch, to its end; the numbers of its batches.

    `stop`: where a commit touches `marker` and stands still until somebody kills it all: "staged",
    "decided" or "published".
    """
    import time
    from pathlib import Path

    from pyspark import TaskContext
    from pyspark.sql.functions import udf

    from aerobee.pipeline import sink_task
    from aerobee.pipeline.sink_plan import staging_client
    from aerobee.pipeline.topic_source import TopicSource

    def stand_still() -> None:
        Path(marker).touch()
        time.sleep(600)

    def decide_only(plan, results) -> None:
        from aerobee.client.loop_thread import LoopThread

        async def decide() -> None:
            async with staging_client(plan.options) as client:
                parts = sink_task._parts_of(results)
                await client.intent(plan.brokers[0], *sink_task._batch_of(results), parts)

        thread = LoopThread.acquire()
        thread.run(decide())
        thread.release()

    class Stopping(TopicSource):
        @classmethod
        def name(cls) -> str:
            return "stopping"

        def streamWriter(self, schema, overwrite):
            writer = super().streamWriter(schema, overwrite)

            class Writer(type(writer)):
                def commit(self, messages, batchId):
                    if stop and batchId == 1:
                        results = [one.result for one in messages]
                        if stop == "decided":
                            decide_only(self._plan, results)
                        elif stop == "published":
                            super().commit(messages, batchId)
                        stand_still()
                    super().commit(messages, batchId)

            return Writer(writer._plan)

    @udf("string")
    def sometimes(text: str) -> str:
        context = TaskContext.get()
        number = int(text.rsplit("-", 1)[1])
        if fail and context.attemptNumber() < 2 and number % 100 == 77:
            raise RuntimeError("a task that fails")
        if slow and context.attemptNumber() == 0 and number == 77:
            time.sleep(60)
        return text

    spark.dataSource.register(Stopping)
    source = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(folder)
    rows = source.repartition(3).select(sometimes("value").alias("body"))
    query = (
        rows.writeStream.format("stopping" if stop else "rocketmq")
        .options(**options)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [progress.batchId for progress in query.recentProgress]


def files_of(folder: Path, files: int = FILES) -> Counter[str]:
    """A folder of text files, read one a batch; their lines."""
    folder.mkdir()
    lines: Counter[str] = Counter()
    for number in range(files):
        of_file = [f"file-{number}-{line}" for line in range(LINES)]
        lines.update(of_file)
        (folder / f"{number}.txt").write_text("\n".join(of_file) + "\n")
        time.sleep(0.01)  # the source reads them in the order of their times
    return lines


def found(broker: Broker, topic: str) -> Counter[str]:
    """The bodies in a topic, by how often they are there."""
    return Counter(message.body.decode() for message in messages(broker, topic))


def messages(broker: Broker, topic: str) -> list[Any]:
    read = []
    with PullConsumer(broker.name_server, "reader") as consumer:
        for queue in consumer.queues(topic):
            offset = 0
            while (result := consumer.pull(queue, offset)).messages:
                read += result.messages
                offset = result.next_offset
    return read


def sink(broker: Broker, topic: str, **options: str) -> dict[str, str]:
    return {"nameServer": broker.name_server, "topic": topic, "batchBytes": "4096"} | options


ROWS = Counter(f"row-{n}" for n in range(2000))


def test_a_batch_write_arrives(driver: Driver, our_broker: Broker) -> None:
    topic = new_topic(our_broker, 4)
    columns = (
        "text AS body; 'tag' AS tags; array('k', text) AS keys; map('a', text) AS properties; "
        "cast(id AS string) AS shardingKey"
    )
    driver.run(write_batch, options=sink(our_broker, topic), count=2000, columns=columns)
    read = messages(our_broker, topic)
    assert Counter(message.body.decode() for message in read) == ROWS
    assert {message.tags for message in read} == {"tag"}
    assert all(message.keys == ("k", message.body.decode()) for message in read)
    assert all(message.properties["a"] == message.body.decode() for message in read)
    assert len({message.properties["SPARK_ID"] for message in read}) == 2000
    assert len({message.queue for message in read}) == 4


def test_a_batch_write_to_rocketmq_arrives(newest: Driver, java_broker: Broker) -> None:
    topic = new_topic(java_broker, 4)
    newest.run(write_batch, options=sink(java_broker, topic), count=2000, columns="text AS body")
    assert found(java_broker, topic) == ROWS
    options = sink(java_broker, topic, jobId="j", guarantee="effectively-once")
    with pytest.raises(SparkFailed, match="does not stage"):
        newest.run(write_batch, options=options, count=1, columns="text AS body")


def test_a_job_that_is_run_again_writes_once(newest: Driver, our_broker: Broker) -> None:
    topic = new_topic(our_broker, 4)
    options = sink(our_broker, topic, jobId=f"job-{topic}")
    for _ in range(2):
        newest.run(write_batch, options=options, count=2000, columns="text AS body")
    assert found(our_broker, topic) == ROWS


@pytest.mark.parametrize(
    ("more", "columns", "mode", "reason"),
    [
        ({}, "text AS body", "overwrite", 'use .mode."append".'),
        ({"topik": "x"}, "text AS body", "append", "unknown option 'topik'; did you mean 'topic'"),
        ({}, "text AS value", "append", "unknown column 'value'"),
        ({}, "id AS body", "append", "column body must be binary or string, it is bigint"),
        ({"nameServer": "127.0.0.1:1"}, "text AS body", "append", "127.0.0.1:1"),
        ({}, "CASE WHEN id = 3 THEN repeat('x', 5000000) ELSE text END AS body", "append",
         "row 3 of its partition, topic"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_told(
    newest: Driver,
    our_broker: Broker,
    more: dict[str, str],
    columns: str,
    mode: str,
    reason: str,
) -> None:
    topic = new_topic(our_broker)
    options = sink(our_broker, topic, jobId=f"job-{topic}") | more
    with pytest.raises(SparkFailed, match=reason):
        newest.run(write_batch, options=options, count=20, columns=columns, mode=mode)
    assert found(our_broker, topic) == Counter()


def test_a_stream_arrives_once(driver: Driver, our_broker: Broker, tmp_path: Path) -> None:
    topic = new_topic(our_broker, 4)
    lines = files_of(tmp_path / "in")
    given = {"folder": str(tmp_path / "in"), "checkpoint": str(tmp_path / "check")}
    batches = driver.run(write_stream, **given, options=sink(our_broker, topic))
    assert found(our_broker, topic) == lines
    assert len(batches) >= FILES
    driver.run(write_stream, **given, options=sink(our_broker, topic))
    assert found(our_broker, topic) == lines


def test_failed_tasks_leave_nothing(
    new_driver: Callable[..., Driver], our_broker: Broker, tmp_path: Path
) -> None:
    lines = files_of(tmp_path / "in")
    driver = new_driver(master="local[2,4]")
    topic = new_topic(our_broker, 4)
    given = {"folder": str(tmp_path / "in"), "checkpoint": str(tmp_path / "check")}
    driver.run(write_stream, **given, options=sink(our_broker, topic), fail=True)
    assert found(our_broker, topic) == lines
    topic = new_topic(our_broker, 4)
    options = sink(our_broker, topic, jobId=f"job-{topic}")
    driver.run(write_batch, options=options, count=2000, columns="text AS body", fail=True)
    assert found(our_broker, topic) == ROWS


def test_speculative_tasks_leave_nothing(
    new_driver: Callable[..., Driver], our_broker: Broker, tmp_path: Path
) -> None:
    lines = files_of(tmp_path / "in", 2)
    driver = new_driver(
        master="local-cluster[2,2,512]",
        conf={
            "spark.speculation": "true",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.interval": "50ms",
            "spark.speculation.minTaskRuntime": "50ms",
            "spark.executor.memory": "512m",
        },
    )
    topic = new_topic(our_broker, 4)
    given = {"folder": str(tmp_path / "in"), "checkpoint": str(tmp_path / "check")}
    work = python_of(driver.version).parent.parent / "lib"
    before = set(work.glob("python*/site-packages/pyspark/work/app-*"))
    try:
        driver.run(write_stream, **given, options=sink(our_broker, topic), slow=True, timeout_s=300)
        assert found(our_broker, topic) == lines
    finally:  # a cluster of this kind keeps its files beside Spark's own
        driver.kill()
        for left in set(work.glob("python*/site-packages/pyspark/work/app-*")) - before:
            shutil.rmtree(left)


def test_a_query_killed_in_each_phase_of_a_commit_writes_once(
    new_driver: Callable[..., Driver], our_broker: Broker, tmp_path: Path
) -> None:
    lines = files_of(tmp_path / "in")
    topics = {}
    driver = new_driver()
    for stop in ("staged", "decided", "published"):
        topics[stop] = new_topic(our_broker, 4)
        marker = tmp_path / f"{stop}-marker"
        given = {
            "folder": str(tmp_path / "in"), "checkpoint": str(tmp_path / f"check-{stop}"),
            "options": sink(our_broker, topics[stop]),
        }  # fmt: skip
        running = threading.Thread(
            target=_run_until_killed, args=(driver, given | {"stop": stop, "marker": str(marker)})
        )
        running.start()
        wait_until(marker.exists, 120, f"the commit of batch 1 is {stop}")
        driver.kill()
        running.join()
        driver = new_driver()
        driver.run(write_stream, **given)
        assert found(our_broker, topics[stop]) == lines, stop


def _run_until_killed(driver: Driver, given: dict[str, Any]) -> None:
    try:
        driver.run(write_stream, **given)
    except BaseException:  # noqa: BLE001 - it is killed
        return


def test_a_broker_that_is_killed_again_and_again_gets_each_row_once(
    newest: Driver, new_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    broker = new_broker().start()
    lines = files_of(tmp_path / "in")
    topic = new_topic(broker, 4)
    over = threading.Event()
    kills = 0

    def kill_now_and_then() -> None:
        nonlocal kills
        while not over.wait(1.5):
            broker.kill()
            broker.start()
            kills += 1

    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    try:
        newest.run(
            write_stream,
            folder=str(tmp_path / "in"),
            checkpoint=str(tmp_path / "check"),
            options=sink(broker, topic, retryTimeoutMs="120000"),
            timeout_s=300,
        )
    finally:
        over.set()
        killer.join()
    assert found(broker, topic) == lines
    assert kills >= 2
