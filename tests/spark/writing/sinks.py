"""Functions that the tests of the sink run in drivers, and those that read the result.

`write_streams` can make a query fail or stand still at a named place; a stand-still ends when the
test kills the driver. Such places touch files in a folder of marks, by which the test knows.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from aerobee.client.blocking_roles import PullConsumer
from aerobee.client.options import ClientOptions
from tests.interop.brokers import Broker

FILES, LINES = 2, 300


def write_batch(
    spark: Any, options: dict[str, str], count: int, columns: str, mode: str = "append",
    fail: bool = False,
) -> None:  # fmt: skip
    """`count` rows in four partitions; with `fail` the first try of each does."""
    from pyspark import TaskContext
    from pyspark.sql.functions import udf

    @udf("string")
    def sometimes(text: str) -> str:
        if fail and TaskContext.get().attemptNumber() == 0 and text.endswith("7"):
            raise RuntimeError("a task that fails")
        return text

    frame = spark.range(0, count, 1, 4).selectExpr("concat('row-', id) AS text", "id")
    if fail:
        frame = frame.withColumn("text", sometimes("text"))
    writer = frame.selectExpr(*columns.split("; ")).write.format("rocketmq").options(**options)
    (writer.mode(mode) if mode else writer).save()


def write_streams(
    spark: Any, folder: str, queries: dict[str, dict[str, Any]], marks: str = "",
    where: str = "true", body: str = "value", mode: str = "append",
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Queries over a folder of text files, one file a batch, side by side, each to its end.

    A query is `options`, `checkpoint` and perhaps `trouble`, all of batch 1 but for the first two:

    failing      each task's first try fails: half of them when all is staged, half in the middle
    slow         the first try of partition 0 stands still when all is staged
    planned      partition 0 stands still before it has read a row
    staged       commit stands still before it does anything
    decided      commit stands still when the intent is there
    half         commit waits until somebody makes the mark `go`
    published    commit stands still when it is done
    uncommitted  commit fails when it is done
    """
    import json
    import time
    import uuid
    from pathlib import Path

    from pyspark import TaskContext

    from aerobee.pipeline.sink import task as sink_task
    from aerobee.pipeline.sink.write_plan import staging_client
    from aerobee.pipeline.source.topic_source import TopicSource

    def stand_still(name: str) -> None:
        (Path(marks) / name).touch()
        time.sleep(600)

    def decide_only(plan, results) -> None:
        from aerobee.client.loop_thread import LoopThread

        async def decide() -> None:
            async with staging_client(plan.options) as client:
                staged = sink_task._staged(plan, results)
                await client.intent(plan.brokers[0], staged.query, staged.batch, staged.parts)

        thread = LoopThread.acquire()
        thread.run(decide())
        thread.release()

    def breaking(items):
        for item in items:
            yield item
            (Path(marks) / f"failed-{uuid.uuid4()}").touch()
            raise RuntimeError("a task that fails in the middle")

    def make_trouble(trouble: str) -> None:
        class Troubled(TopicSource):
            @classmethod
            def name(cls) -> str:
                return f"with-{trouble}"

            def streamWriter(self, schema, overwrite):
                writer = super().streamWriter(schema, overwrite)

                class Writer(type(writer)):
                    def write(self, iterator):
                        context = TaskContext.get()
                        batch = int(context.getLocalProperty("streaming.sql.batchId"))
                        first, partition = context.attemptNumber() == 0, context.partitionId()
                        if trouble == "planned" and batch == 1 and partition == 0:
                            stand_still(trouble)
                        if trouble == "failing" and first and partition % 2:
                            iterator = breaking(iterator)
                        commit = super().write(iterator)
                        if trouble == "failing" and first:
                            (Path(marks) / f"failed-{uuid.uuid4()}").touch()
                            raise RuntimeError("a task that fails at its end")
                        if trouble == "slow" and first and partition == 0:
                            stand_still(f"slow-{batch}")
                        stages = [part.stage for part in commit.result.parts]
                        note = [context.getLocalProperty("sql.streaming.queryId"), batch, partition,
                                context.attemptNumber(), stages]  # fmt: skip
                        (Path(marks) / f"{trouble}-task-{uuid.uuid4()}").write_text(
                            json.dumps(note)
                        )
                        return commit

                    def commit(self, messages, batchId):
                        results = [one.result for one in messages]
                        if batchId == 1 and trouble == "staged":
                            stand_still(trouble)
                        if batchId == 1 and trouble == "decided":
                            decide_only(self._plan, results)
                            stand_still(trouble)
                        if batchId == 1 and trouble == "half":
                            (Path(marks) / trouble).touch()
                            while not (Path(marks) / "go").exists():
                                time.sleep(0.02)
                        super().commit(messages, batchId)
                        if batchId == 1 and trouble == "published":
                            stand_still(trouble)
                        if batchId == 1 and trouble == "uncommitted":
                            raise RuntimeError("a commit that fails at its end")

                    def abort(self, messages, batchId):
                        whole = sum(message is not None for message in messages)
                        (Path(marks) / f"{trouble}-abort").write_text(f"{whole} of {len(messages)}")
                        super().abort(messages, batchId)

                return Writer(writer._plan)

        spark.dataSource.register(Troubled)

    running = {}
    for name, given in queries.items():
        source = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(folder)
        rows = source.where(where).repartition(3).selectExpr(f"{body} AS body")
        if mode == "complete":
            rows = rows.groupBy("body").count().select("body")
        trouble = given.get("trouble", "")
        if trouble:
            make_trouble(trouble)
        writer = rows.writeStream.format(f"with-{trouble}" if trouble else "rocketmq")
        writer = writer.options(**given["options"]).outputMode(mode)
        writer = writer.option("checkpointLocation", given["checkpoint"])
        running[name] = writer.trigger(availableNow=True).start()
    told = {}
    for name, query in running.items():
        query.awaitTermination()
        batches = [progress.batchId for progress in query.recentProgress]
        plan = query._jsq.explainInternal(True)
        told[name] = {"id": str(query.id), "batches": batches, "plan": plan}
    return told


def files_of(folder: Path, files: int = FILES, lines: int = LINES) -> Counter[str]:
    """A folder of text files, read one a batch; their lines."""
    folder.mkdir()
    all_lines: Counter[str] = Counter()
    for number in range(files):
        of_file = [f"file-{number}-{line}" for line in range(lines)]
        all_lines.update(of_file)
        (folder / f"{number}.txt").write_text("\n".join(of_file) + "\n")
        time.sleep(0.01)  # the source reads them in the order of their times
    return all_lines


def tasks(marks: Path, name: str, batch: int) -> list[list[Any]]:
    """The notes of the tasks of a troubled query: query, batch, partition, attempt, stages."""
    notes = [json.loads(note.read_text()) for note in marks.glob(f"{name}-task-*")]
    return sorted(note for note in notes if note[1] == batch)


def found(broker: Broker, topic: str) -> Counter[str]:
    """The bodies in a topic, by how often they are there."""
    return Counter(message.body.decode() for message in messages(broker, topic))


def messages(broker: Broker, topic: str, options: ClientOptions | None = None) -> list[Any]:
    """All there is in a topic."""
    read = []
    with PullConsumer(broker.name_server, "reader", options) as consumer:
        for queue in consumer.queues(topic):
            offset = 0
            while (result := consumer.pull(queue, offset)).messages:
                read += result.messages
                offset = result.next_offset
    return read


def sink(broker: Broker, topic: str, **options: str) -> dict[str, str]:
    """Options of a write that needs several requests for a few hundred rows."""
    return {"nameServer": broker.name_server, "topic": topic, "batchBytes": "4096"} | options
