"""Streams by real Spark: what is new, limits, availableNow, new queues, kills of driver and broker.

Errors, and how a stream goes on after one, are in test_stream_errors.py.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee.pipeline.brokers.offsets import from_json
from tests import campaign
from tests.interop.brokers import BROKER_NAME, Broker
from tests.interop.processes import wait_until
from tests.interop.wire import SUCCESS
from tests.spark.conftest import Pair
from tests.spark.kit import VERSIONS, Driver, SparkFailed, each_version
from tests.spark.messages import new_topic, send
from tests.spark.reading.streams import bodies, drain, places, start, stop_all, written

WAIT_S = 150.0
QUERY_CONSUMER_OFFSET = 14


def test_available_now_reads_what_is_there_and_the_next_run_what_is_new(
    pair: Pair, tmp_path: Path
) -> None:
    driver, broker = pair.driver, pair.broker
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
    """Traps 2, 3, 7 and 8."""
    limits = driver.version != "4.0"
    topic = new_topic(our_broker)
    for queue in (0, 1):
        send(our_broker, topic, [b"x" * 500] * 50, queue, batch=50)
    everything = {
        "nameServer": our_broker.name_server, "topic": topic, "startingOffsets": "earliest",
        "columns": "body",
    }  # fmt: skip
    group = f"{topic}-{driver.version.replace('.', '-')}"
    commits = {"consumerGroup": group, "commitOffsetsToBroker": "true"}
    options = everything | {"maxOffsetsPerTrigger": "40"} | commits
    batches = driver.run(drain, options=options, **places(tmp_path / "rows"))
    assert [rows for rows in batches if rows] == ([40, 40, 20] if limits else [100])
    # Spark tells that a batch is done when it plans the next one: the last is never told.
    with our_broker.wire() as wire:
        told = [
            wire.call(QUERY_CONSUMER_OFFSET, {"consumerGroup": group, "topic": topic, "queueId": n})
            for n in (0, 1)
        ]
    shown = sum(int(one.ext["offset"]) for one in told if one.code == SUCCESS)
    assert shown == (80 if limits else 0)
    if limits:
        # A trigger of Spark's that means all there is counts more than the option.
        once = driver.run(drain, options=options, **places(tmp_path / "once"), trigger="once")
        assert once == [100]
    else:
        said = driver.child.log.read_text(errors="replace")
        assert "minOffsetsPerTrigger need PySpark 4.2" in said
    options = everything | {"maxBytesPerTrigger": "20000"}
    batches = driver.run(drain, options=options, **places(tmp_path / "bytes"))
    assert sum(batches) == 100
    if limits:
        assert max(batches) <= 40
        assert len([rows for rows in batches if rows]) >= 3


def test_a_running_stream_takes_new_messages_queues_and_topics(pair: Pair, tmp_path: Path) -> None:
    driver, broker = pair.driver, pair.broker
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


# --- restarts ----------------------------------------------------------------------------------


def stuck(
    spark: Any, options: dict[str, str], more: dict[str, dict[str, str]], folder: str
) -> None:
    """Starts queries whose first batch never ends, one for each further set of options."""
    import time
    from pathlib import Path

    def begin(name: str, given: dict[str, str]) -> None:
        marker = Path(folder, f"{name}.stuck")

        def hang(frame: Any, batch: int) -> None:
            frame.count()
            marker.touch()
            while True:
                time.sleep(1)

        frame = spark.readStream.format("rocketmq").options(**options, **given).load()
        writer = frame.writeStream.foreachBatch(hang)
        query = writer.option("checkpointLocation", f"{folder}/{name}.checkpoint").start()
        while not marker.exists():
            if query.exception() is not None:
                raise query.exception()
            time.sleep(0.01)

    for name, given in more.items():
        begin(name, given)


def finish(spark: Any, options: dict[str, str], folder: str, name: str) -> list[int]:
    """Lets such a query go on to the end; the numbers that it gave, sorted."""
    found: list[int] = []

    def keep(frame: Any, batch: int) -> None:
        found.extend(int(row.body) for row in frame.collect())

    frame = spark.readStream.format("rocketmq").options(**options).load()
    query = (
        frame.writeStream.foreachBatch(keep)
        .option("checkpointLocation", f"{folder}/{name}.checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sorted(found)


def test_a_driver_killed_inside_batch_0_skips_nothing(
    driver_of: Callable[[str], Driver], our_broker: Broker, tmp_path: Path
) -> None:
    """A start at latest, or at a time to come, is resolved once, though Spark asks again after the
    crash (trap 6). Where it is not kept, the crash is an error and not a skip."""

    def killed(version: str) -> None:
        (tmp_path / version).mkdir()
        _killed_inside_batch_0(driver_of, our_broker, tmp_path / version, version)

    each_version(killed)


def _killed_inside_batch_0(
    driver_of: Callable[[str], Driver], our_broker: Broker, folder: Path, version: str
) -> None:
    topic = new_topic(our_broker, queues=1)
    options = {"nameServer": our_broker.name_server, "topic": topic, "columns": "body"}
    in_an_hour = str(round((time.time() + 3600) * 1000))
    kept = {
        "group": {"consumerGroup": f"{topic}-group"},
        "file": {"startStateLocation": str(folder / "start")},
        "time": {"consumerGroup": f"{topic}-time", "startingTimestamp": in_an_hour},
    }
    if version != VERSIONS[0]:  # versions differ in what they ask, not in where it is kept
        kept = {"file": kept["file"]}
    more = kept | {"nowhere": {}}
    sent = 0

    def send_one() -> None:
        nonlocal sent
        send(our_broker, topic, [b"%d" % sent])
        sent += 1

    def all_stuck() -> bool:
        send_one()
        return (folder / "nowhere.stuck").exists()

    def planned(name: str) -> int:
        text = (folder / f"{name}.checkpoint" / "offsets" / "0").read_text()
        end: int = json.loads(text.splitlines()[-1])[topic][BROKER_NAME]["0"]
        return end

    for _ in range(3):
        send_one()
    driver = driver_of(version)
    with driver.running(stuck, options=options, more=more, folder=str(folder)) as outcome:
        wait_until(all_stuck, WAIT_S, "all queries stand in batch 0", every_s=0.1)
        outcome(WAIT_S)
    driver.kill()
    first_of_file = json.loads((folder / "start").read_text())[topic][BROKER_NAME]["0"]
    assert first_of_file >= 3
    for _ in range(5):
        send_one()
    driver = driver_of(version)
    for name, given in kept.items():
        again = {"options": options | given, "folder": str(folder), "name": name}
        found = driver.run(finish, **again)
        if version == "4.0":  # which ends after one batch here
            found = sorted(found + driver.run(finish, **again))
        # All from the first message that the stream met, up to the last one.
        assert found == list(range(found[0], sent)), name
        assert 3 <= found[0] <= planned(name), name
        assert name != "file" or found[0] == first_of_file
    assert planned("nowhere") < sent
    with pytest.raises(SparkFailed, match="start was resolved anew"):
        driver.run(finish, options=options, folder=str(folder), name="nowhere")


def test_a_batch_waits_for_enough_messages_or_long_enough(
    newest: Driver, our_broker: Broker, tmp_path: Path
) -> None:
    if newest.version == "4.0":
        pytest.skip("batches have no limits before PySpark 4.2")
    topic = new_topic(our_broker, queues=1)
    where = places(tmp_path)
    options = {
        "nameServer": our_broker.name_server, "topic": topic, "columns": "body",
        "startingOffsets": "earliest", "minOffsetsPerTrigger": "10", "maxTriggerDelay": "1h",
    }  # fmt: skip
    send(our_broker, topic, [b"a"] * 4)
    newest.run(start, options=options, **where)
    wait_until(lambda: newest.run(polled), WAIT_S, "Spark has asked for new data")
    assert newest.run(written, out=where["out"]) == 0
    send(our_broker, topic, [b"b"] * 6)
    wait_until(lambda: newest.run(written, out=where["out"]) == 10, WAIT_S, "ten messages")
    send(our_broker, topic, [b"c"] * 3)
    newest.run(stop_all)
    newest.run(start, options=options | {"maxTriggerDelay": "1ms"}, **where)
    wait_until(lambda: newest.run(written, out=where["out"]) == 13, WAIT_S, "the rest")
    newest.run(stop_all)
    # All that is there, of a query that ends with it.
    send(our_broker, topic, [b"d"] * 2)
    assert sum(newest.run(drain, options=options, **where)) == 2


def polled(spark: Any) -> bool:
    """Whether the query has looked for new data and found none to take."""
    return bool(spark.tests_query.status["message"] == "Waiting for data to arrive")


# The files that Spark leaves behind at each step of a batch, so that a kill meets all steps.
STEPS = {
    "planned": "checkpoint/offsets/[0-9]*",
    "written": "out/part-*.parquet",
    "committed": "checkpoint/commits/[0-9]*",
}


def test_each_message_is_written_once_though_driver_and_broker_are_killed(
    driver_of: Callable[[str], Driver], new_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    """kill -9 while messages keep coming; a query outlives its broker's kills by itself."""
    brokers = {version: new_broker(name=f"broker-{version}").start() for version in VERSIONS}

    def killed(version: str) -> None:
        (tmp_path / version).mkdir()
        _killed_again_and_again(driver_of, brokers[version], tmp_path / version, version)

    each_version(killed)


def _kills(dice: random.Random, drivers: int) -> list[tuple[str, str]]:
    """Victims and the steps of a batch they are killed at; each step meets a broker's end."""
    count = campaign.size("spark kills")
    of_brokers = [*STEPS, *dice.choices(list(STEPS), k=count)][: count - drivers]
    of_drivers = dice.choices(list(STEPS), k=drivers)
    kills = [("broker", step) for step in of_brokers] + [("driver", step) for step in of_drivers]
    dice.shuffle(kills)
    return kills


def _killed_again_and_again(
    driver_of: Callable[[str], Driver], broker: Broker, folder: Path, version: str
) -> None:
    dice = campaign.rng("spark kills")
    kills = _kills(dice, 2 if campaign.is_full() and version == VERSIONS[0] else 1)
    topic = new_topic(broker, queues=2)
    where = places(folder)
    options = {
        "nameServer": broker.name_server, "topic": topic, "columns": "body",
        "startingOffsets": "earliest", "maxOffsetsPerTrigger": "150", "pullTimeoutMs": "20000",
    }  # fmt: skip
    sent = 0

    def send_some() -> None:
        nonlocal sent
        for queue in (0, 1):
            numbers = range(sent, sent + 150)
            send(broker, topic, [b"%06d" % number for number in numbers], queue, batch=50)
            sent += 150

    def wait_for(condition: Callable[[], bool], what: str) -> None:
        try:
            wait_until(condition, WAIT_S, what, every_s=0.002)
        except AssertionError:
            driver.run(written, out=where["out"])  # tells why the query ended, if it did
            raise

    driver = driver_of(version)
    driver.run(start, options=options, **where)
    for victim, step in kills:
        before = set(folder.glob(STEPS[step]))
        send_some()
        wait_for(lambda known=before, step=step: not known >= set(folder.glob(STEPS[step])), step)
        time.sleep(dice.random() * 0.2)
        if victim == "driver":
            driver.kill()
            driver = driver_of(version)
            driver.run(start, options=options, **where)
        else:
            broker.kill()
            broker.start()
    send_some()
    wait_for(lambda: _committed(folder / "checkpoint") == sent, "all is written")
    driver.run(stop_all)
    assert driver.run(bodies, out=where["out"]) == [b"%06d" % number for number in range(sent)]


def _committed(checkpoint: Path) -> int:
    """The messages that all finished batches go up to."""
    done = [path.name for path in checkpoint.glob("commits/[0-9]*")]
    if not done:
        return 0
    last = checkpoint / "offsets" / max(done, key=int)
    return sum(from_json(json.loads(last.read_text().splitlines()[-1])).values())
