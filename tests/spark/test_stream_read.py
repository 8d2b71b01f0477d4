"""Streams by real Spark: what is new, limits, availableNow, new queues, lost data, restarts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interop.brokers import BROKER_NAME, Broker
from tests.interop.processes import wait_until

from .kit import Driver, SparkFailed
from .messages import new_topic, send

WAIT_S = 120.0


def drain(spark: Any, options: dict[str, str], out: str, checkpoint: str) -> list[int]:
    """Runs a query with availableNow to its end; the rows of each batch."""
    frame = spark.readStream.format("rocketmq").options(**options).load()
    query = (
        frame.writeStream.format("parquet")
        .option("path", out)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [one["numInputRows"] for one in query.recentProgress]


def bodies(spark: Any, out: str) -> list[bytes]:
    return sorted(
        bytes(row.body) for row in spark.read.schema("body binary").parquet(out).collect()
    )


def start(spark: Any, options: dict[str, str], out: str, checkpoint: str) -> str:
    """Starts a query that runs on; its id."""
    frame = spark.readStream.format("rocketmq").options(**options).load()
    query = (
        frame.writeStream.format("parquet")
        .option("path", out)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    return query.id


def written(spark: Any, out: str) -> int:
    """Rows that are committed; a query that failed is an error."""
    import os

    for query in spark.streams.active:
        if query.exception() is not None:
            raise query.exception()
    if not os.path.isdir(out + "/_spark_metadata"):
        return 0
    return spark.read.schema("body binary").parquet(out).count()


def stop_all(spark: Any) -> None:
    for query in spark.streams.active:
        query.stop()


@pytest.fixture(params=["our", "java"])
def broker(request: pytest.FixtureRequest) -> Broker:
    return request.getfixturevalue(f"{request.param}_broker")


def places(tmp_path: Path) -> dict[str, str]:
    return {"out": str(tmp_path / "out"), "checkpoint": str(tmp_path / "checkpoint")}


def test_available_now_reads_what_is_there_and_the_next_run_what_is_new(
    driver: Driver, broker: Broker, tmp_path: Path
) -> None:
    topic = new_topic(broker)
    options = {
        "nameServer": broker.name_server, "topic": topic, "startingOffsets": "earliest",
        "columns": "body",
    }  # fmt: skip
    where = places(tmp_path)
    send(broker, topic, [b"a%d" % number for number in range(50)], 0, batch=50)
    driver.run(drain, options=options, **where)
    send(broker, topic, [b"b%d" % number for number in range(30)], 1, batch=30)
    driver.run(drain, options=options, **where)
    driver.run(drain, options=options, **where)
    expected = [b"a%d" % number for number in range(50)] + [b"b%d" % number for number in range(30)]
    assert driver.run(bodies, out=where["out"]) == sorted(expected)


def test_limits_make_batches_of_that_size_where_spark_tells_the_start(
    driver: Driver, our_broker: Broker, tmp_path: Path
) -> None:
    topic = new_topic(our_broker)
    for queue in (0, 1):
        send(our_broker, topic, [b"x" * 500] * 50, queue, batch=50)
    options = {
        "nameServer": our_broker.name_server, "topic": topic, "startingOffsets": "earliest",
        "columns": "body", "maxOffsetsPerTrigger": "40",
    }  # fmt: skip
    batches = driver.run(drain, options=options, **places(tmp_path / "rows"))
    expected = [40, 40, 20] if driver.version != "4.0" else [100]
    assert [rows for rows in batches if rows] == expected
    del options["maxOffsetsPerTrigger"]
    options["maxBytesPerTrigger"] = "20000"
    batches = driver.run(drain, options=options, **places(tmp_path / "bytes"))
    assert sum(batches) == 100
    if driver.version != "4.0":
        assert max(batches) <= 40
        assert len([rows for rows in batches if rows]) >= 3


def test_a_running_stream_takes_new_messages_queues_and_topics(
    driver: Driver, broker: Broker, tmp_path: Path
) -> None:
    first = new_topic(broker, queues=1, prefix="growing")
    options = {
        "nameServer": broker.name_server, "subscribePattern": f"{first}.*",
        "consumerGroup": f"growing-{driver.version.replace('.', '-')}", "columns": "body",
    }  # fmt: skip
    where = places(tmp_path)
    send(broker, first, [b"before"])
    driver.run(start, options=options, **where)
    try:
        wait_until(lambda: _first_batch_planned(where["checkpoint"]), WAIT_S, "batch 0 is planned")
        send(broker, first, [b"one"])
        wait_until(lambda: driver.run(written, out=where["out"]) == 1, WAIT_S, "the first message")
        broker.create_topic(f"{first}-new", 1)
        send(broker, f"{first}-new", [b"two"])
        broker.create_topic(first, 3)
        with broker.wire() as wire:
            wait_until(lambda: wire.send(first, 2, b"three").code == 0, 30, "the new queue")
        wait_until(lambda: driver.run(written, out=where["out"]) >= 3, WAIT_S, "the new queues")
        assert driver.run(bodies, out=where["out"]) == [b"one", b"three", b"two"]
    finally:
        driver.run(stop_all)


def _first_batch_planned(checkpoint: str) -> bool:
    """Spark plans batch 0 at once, empty as it may be: from then on the start is fixed."""
    return (Path(checkpoint) / "offsets" / "0").exists()


def test_data_that_is_gone_is_an_error_or_passed_over(
    driver: Driver, our_broker: Broker, tmp_path: Path
) -> None:
    topic = new_topic(our_broker, queues=1)
    where = places(tmp_path)
    options = {
        "nameServer": our_broker.name_server, "topic": topic, "columns": "body",
        "startingOffsets": json.dumps({topic: {BROKER_NAME: {"0": 0}}}),
    }  # fmt: skip
    send(our_broker, topic, [b"x"] * 5)
    driver.run(drain, options=options, **where)
    _pretend_more_was_read(Path(where["checkpoint"]), topic, 9)
    with pytest.raises(SparkFailed, match=r"was read up to offset 9, but ends at 5|begins at 9"):
        driver.run(drain, options=options, **where)
    driver.run(drain, options=options | {"failOnDataLoss": "false"}, **where)
    send(our_broker, topic, [b"y"] * 5)
    driver.run(drain, options=options | {"failOnDataLoss": "false"}, **where)
    assert driver.run(bodies, out=where["out"]) == [b"x"] * 5 + [b"y"] * 5


def _pretend_more_was_read(checkpoint: Path, topic: str, offset: int) -> None:
    """What is left after a power cut took messages back that were checkpointed."""
    last = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    *head, _ = last.read_text().splitlines()
    last.write_text("\n".join([*head, json.dumps({topic: {BROKER_NAME: {"0": offset}}})]))
    (checkpoint / "offsets" / f".{last.name}.crc").unlink(missing_ok=True)


# --- restarts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("pinned", ["group", "file", "nowhere"])
def test_a_driver_killed_inside_batch_0_skips_nothing(
    new_driver: Callable[..., Driver],
    our_broker: Broker,
    tmp_path: Path,
    pinned: str,
) -> None:
    """A start at latest is resolved once, though Spark asks again after the crash (trap 6)."""
    topic = new_topic(our_broker, queues=1)
    where = places(tmp_path)
    options = {"nameServer": our_broker.name_server, "topic": topic, "columns": "body"}
    if pinned == "group":
        options["consumerGroup"] = f"{topic}-group"
    elif pinned == "file":
        options["startStateLocation"] = str(tmp_path / "start")

    def stuck(spark: Any, options: dict[str, str], out: str, checkpoint: str) -> None:
        """Starts a query whose first batch never ends."""

        def hang(frame: Any, batch: int) -> None:
            import pathlib
            import time

            frame.count()
            pathlib.Path(out + ".stuck").touch()
            while True:
                time.sleep(1)

        frame = spark.readStream.format("rocketmq").options(**options).load()
        frame.writeStream.foreachBatch(hang).option("checkpointLocation", checkpoint).start()

    def finish(spark: Any, options: dict[str, str], out: str, checkpoint: str) -> None:
        def save(frame: Any, batch: int) -> None:
            frame.write.mode("overwrite").parquet(f"{out}/batch={batch}")

        frame = spark.readStream.format("rocketmq").options(**options).load()
        query = (
            frame.writeStream.foreachBatch(save)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    send(our_broker, topic, [b"before"] * 3)
    first = new_driver()
    first.run(stuck, options=options, **where)
    deadline = time.monotonic() + WAIT_S
    sent = 0
    while not Path(where["out"] + ".stuck").exists():
        assert time.monotonic() < deadline
        send(our_broker, topic, [b"%d" % sent])
        sent += 1
        time.sleep(0.2)
    first.kill()
    send(our_broker, topic, [b"%d" % number for number in range(sent, sent + 5)])
    again = new_driver()
    if pinned == "nowhere":
        with pytest.raises(SparkFailed, match="start was resolved anew"):
            again.run(finish, options=options, **where)
        return
    again.run(finish, options=options, **where)
    found = again.run(bodies, out=where["out"])
    assert b"before" not in found
    # All from the first message that the stream met, up to the last one.
    numbers = sorted(int(body) for body in found)
    assert numbers == list(range(numbers[0], sent + 5))
    planned = json.loads((Path(where["checkpoint"]) / "offsets" / "0").read_text().splitlines()[-1])
    assert numbers[0] + 3 <= planned[topic][BROKER_NAME]["0"]


def test_each_message_is_written_once_though_driver_and_broker_are_killed(
    new_driver: Callable[..., Driver], new_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    """Ten kill -9, of the driver and of the broker in turn, while messages keep coming."""
    broker = new_broker().start()
    topic = new_topic(broker, queues=2)
    where = places(tmp_path)
    options = {
        "nameServer": broker.name_server, "topic": topic, "columns": "body",
        "startingOffsets": "earliest", "maxOffsetsPerTrigger": "300",
    }  # fmt: skip
    sent = 0
    driver = new_driver()
    driver.run(start, options=options, **where)

    def send_some() -> None:
        nonlocal sent
        for queue in (0, 1):
            send(
                broker, topic, [b"%06d" % number for number in range(sent, sent + 500)], queue, 100
            )
            sent += 500

    for kill in range(10):
        batches = _batches(where["checkpoint"])
        send_some()
        wait_until(
            lambda known=batches: _batches(where["checkpoint"]) > known,
            WAIT_S,
            "a batch is planned",
        )
        if kill % 2:
            driver.kill()
            driver = new_driver()
        else:
            broker.kill()
            broker.start()
        # A driver that met the broker's absence may have given up: a start goes on either way.
        driver.run(stop_all)
        driver.run(start, options=options, **where)
    send_some()
    wait_until(lambda: driver.run(written, out=where["out"]) >= sent, WAIT_S, "all is written")
    driver.run(stop_all)
    assert driver.run(bodies, out=where["out"]) == [b"%06d" % number for number in range(sent)]


def _batches(checkpoint: str) -> int:
    return len(list((Path(checkpoint) / "offsets").glob("[0-9]*")))
