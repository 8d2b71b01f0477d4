"""The metrics of streaming queries, scraped while they run, fail and end."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.interop.brokers import BROKER_NAME, Broker
from tests.interop.processes import wait_until
from tests.ports import free_port
from tests.spark.kit import Driver
from tests.spark.messages import new_topic, send
from tests.spark.reading.streams import places, stop_all

WAIT_S = 150.0
COUNT = 120


def listen(spark: Any, port: int) -> None:
    from aerobee.pipeline.listener import StreamMetrics

    spark.tests_listener = StreamMetrics.serve(port)
    spark.streams.addListener(spark.tests_listener)


def begin(spark: Any, options: dict[str, str], checkpoint: str, gate: str) -> None:
    """A query that reads forty messages, and more when the file `gate` is there."""
    import os

    def keep(frame: Any, batch: int) -> None:
        assert batch == 0 or os.path.exists(gate), "no second batch yet"
        frame.count()

    spark.tests_query = (
        spark.readStream.format("rocketmq")
        .options(**options)
        .load()
        .writeStream.queryName("orders to nowhere")
        .foreachBatch(keep)
        .option("checkpointLocation", checkpoint)
        .start()
    )


def end_listening(spark: Any) -> None:
    spark.streams.removeListener(spark.tests_listener)


def scraped(port: int) -> dict[tuple[str, str], float]:
    """Values of the query by metric and queue."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
        text = page.read().decode()
    return {
        (sample.name.removeprefix("aerobee_stream_"), sample.labels.get("queue", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("query") == "orders to nowhere"
    }


def test_rows_lag_and_failures_of_a_query_are_metrics(
    newest: Driver, our_broker: Broker, tmp_path: Path
) -> None:
    topic, port = new_topic(our_broker, queues=2), free_port()
    send(our_broker, topic, [b"x"] * COUNT)
    options = {
        "nameServer": our_broker.name_server, "topic": topic, "columns": "body",
        "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40",
    }  # fmt: skip
    where = {"checkpoint": places(tmp_path)["checkpoint"], "gate": str(tmp_path / "go")}
    newest.run(listen, port=port)
    newest.run(begin, options=options, **where)
    wait_until(lambda: scraped(port).get(("failures_total", "")) == 1, WAIT_S, "it has failed")
    failed = scraped(port)
    assert failed["rows_total", ""] == 40
    assert failed["running", ""] == 0
    # The figures of a query's queues go with it.
    assert ("lag_messages", "0") not in failed

    Path(where["gate"]).touch()
    newest.run(begin, options=options, **where)
    wait_until(lambda: scraped(port).get(("rows_total", "")) == COUNT, WAIT_S, "all is read")
    done = scraped(port)
    assert (done["running", ""], done["lag_messages", "0"], done["lag_seconds", "0"]) == (1, 0, 0)
    assert done["batches_total", ""] >= 3
    assert done["batch_seconds", ""] > 0
    newest.run(stop_all)
    newest.run(end_listening)


def test_a_query_that_lies_behind_says_by_how_much(driver: Driver) -> None:
    """The reports are as Spark makes them, of this source and of others."""

    def watch(spark: Any, broker: str) -> dict[str, float]:
        import json
        from types import SimpleNamespace

        from prometheus_client import CollectorRegistry

        from aerobee.pipeline.listener import StreamMetrics

        registry = CollectorRegistry()
        metrics = StreamMetrics(registry, lambda: 1_700_000_100.0)
        queues = {"t": {broker: {"0": 70, "1": 5, "2": 4}}}
        reached = {
            "/last": {"t": {broker: {"0": [4711, 1_700_000_000_000], "1": [1, 1]}}},
            "t": {broker: {"0": 50, "1": 5, "2": 0}},
        }
        ours = SimpleNamespace(latestOffset=json.dumps(queues), endOffset=json.dumps(reached))
        kafka = SimpleNamespace(latestOffset='{"t": {"0": 5}}', endOffset='{"t": {"0": 1}}')
        unknown = SimpleNamespace(latestOffset="null", endOffset=json.dumps(reached))
        progress = SimpleNamespace(
            name="q", id="i", numInputRows=9, batchDuration=1500, sources=[ours, kafka, unknown]
        )
        metrics.onQueryStarted(SimpleNamespace(runId="r", id="i", name="q"))
        metrics.onQueryProgress(SimpleNamespace(progress=progress))
        labels = {"query": "q", "topic": "t", "broker": broker}
        names = ("lag_messages", "lag_seconds")
        found = {
            f"{name} {queue}": registry.get_sample_value(
                f"aerobee_stream_{name}", labels | {"queue": queue}
            )
            for name in names
            for queue in ("0", "1", "2")
        }
        found["rows"] = registry.get_sample_value("aerobee_stream_rows_total", {"query": "q"})
        return found

    assert driver.run(watch, broker=BROKER_NAME) == {
        "lag_messages 0": 20, "lag_messages 1": 0, "lag_messages 2": 4,
        "lag_seconds 0": 100, "lag_seconds 1": 0, "lag_seconds 2": 0,
        "rows": 9,
    }  # fmt: skip
