"""Spark reads the files of a store: found by itself, all options, pruning by pushed filters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interop.brokers import Broker
from tests.interop.processes import wait_until
from tests.spark.kit import Driver, SparkFailed
from tests.spark.messages import new_topic, send
from tests.unit.pipeline.stores import GOLDEN, as_row, plain, read_one_by_one, rows, write_store
from tests.unit.store.support import SEGMENT


def read(
    spark: Any,
    path: str | list[str],
    options: dict[str, str] | None = None,
    where: str = "",
    conf: dict[str, str] | None = None,
) -> list[dict[str, Any]]:
    for name, value in (conf or {}).items():
        spark.conf.set(name, value)
    try:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        frame = spark.read.format("rocketmq-store").options(**(options or {})).load(path)
        if where:
            frame = frame.where(where)
        return [row.asDict() for row in frame.collect()]
    finally:
        for name in conf or {}:
            spark.conf.unset(name)


def shape(spark: Any, path: str, options: dict[str, str]) -> tuple[list[str], int, int]:
    frame = spark.read.format("rocketmq-store").options(**options).load(path)
    types = [f"{field.name} {field.dataType.simpleString()}" for field in frame.schema]
    return types, frame.rdd.getNumPartitions(), frame.count()


def write_somewhere(spark: Any, path: str) -> None:
    frame = spark.range(1)
    frame.write.format("rocketmq-store").mode("append").save(path)


def with_schema(spark: Any, path: str) -> int:
    return spark.read.format("rocketmq-store").schema("topic string").load(path).count()


@pytest.mark.parametrize("name", ["store", "store_lmq", "store_sealed"])
def test_every_column_is_what_the_record_says(driver: Driver, name: str) -> None:
    found = driver.run(read, path=str(GOLDEN / name), options={"decompress": "false"})
    for row in found:
        row["body"] = bytes(row["body"])
    found.sort(key=lambda row: row["commitLogOffset"])
    wanted = [as_row(record) for record in read_one_by_one(GOLDEN / name)]
    assert [plain(row) for row in found] == wanted


def test_partitions_columns_and_forms(driver: Driver, tmp_path: Path) -> None:
    write_store(tmp_path)
    types, partitions, count = driver.run(
        shape, path=str(tmp_path), options={"splitBytes": "1k", "columns": "body,properties",
                                            "propertiesFormat": "json"},
    )  # fmt: skip
    assert types == ["body binary", "properties string"]
    assert partitions > 5
    assert count == 60
    types, partitions, count = driver.run(
        shape, path=str(tmp_path), options={"startTimestamp": "2099-01-01"}
    )
    assert (len(types), partitions, count) == (20, 1, 0)


def test_filters_prune_when_they_are_pushed_and_give_the_same(
    driver: Driver, tmp_path: Path
) -> None:
    write_store(tmp_path, 200)
    where = "topic = 'Rare' AND storeTimestamp > timestamp'2023-11-14 22:15:00Z' AND queueId = 1"
    conf = {"spark.sql.python.filterPushdown.enabled": "true"}
    plain_rows = driver.run(read, path=str(tmp_path), where=where)
    pushed = driver.run(
        read, path=str(tmp_path), options={"pushdown": "true"}, where=where, conf=conf
    )
    key: Callable[[dict[str, Any]], int] = lambda row: row["commitLogOffset"]  # noqa: E731
    assert sorted(pushed, key=key) == sorted(plain_rows, key=key)
    assert 0 < len(pushed) < 10
    if driver.version != "4.0":
        # Damage in a segment that the filter rules out is not even looked at.
        damage(tmp_path, 0)
        options = {"pushdown": "true", "mode": "failfast"}
        assert len(driver.run(read, path=str(tmp_path), options=options, where=where,
                              conf=conf)) == len(pushed)  # fmt: skip
        with pytest.raises(SparkFailed, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
            driver.run(read, path=str(tmp_path), options={"pushdown": "true"}, where=where)


def damage(root: Path, segment: int) -> int:
    """Break the third record of a segment; where it is."""
    record = [one for one in read_one_by_one(root) if one.log_offset // SEGMENT == segment][2]
    path = root / "commitlog" / f"{segment * SEGMENT:020d}"
    data = bytearray(path.read_bytes())
    data[record.log_offset % SEGMENT + 4] ^= 0xFF
    path.write_bytes(data)
    return record.log_offset


def test_modes(driver: Driver, tmp_path: Path) -> None:
    write_store(tmp_path)
    place = damage(tmp_path, 1)
    found = driver.run(read, path=str(tmp_path))
    bad = [row for row in found if row["error"] is not None]
    assert len(found) == 60
    assert [row["commitLogOffset"] for row in bad] == [place]
    assert len(driver.run(read, path=str(tmp_path), options={"mode": "dropMalformed"})) == 59
    with pytest.raises(SparkFailed, match=f"what is at log offset {place} is no record"):
        driver.run(read, path=str(tmp_path), options={"mode": "failfast"})


def test_what_cannot_be_is_refused_by_name(driver: Driver, tmp_path: Path) -> None:
    write_store(tmp_path / "store", 5)
    path = str(tmp_path / "store")
    for options, text in (
        ({"topics": "A"}, "unknown option 'topics'; did you mean 'topic'"),
        ({"use": "consumequeue", "topic": "Rae"}, "'Rae' has no consume queue; known are A"),
    ):
        with pytest.raises(SparkFailed, match=text):
            driver.run(read, path=path, options=options)
    with pytest.raises(SparkFailed, match="does not exist"):
        driver.run(read, path=str(tmp_path / "nowhere"))
    with pytest.raises(SparkFailed, match="only reads"):
        driver.run(write_somewhere, path=path)
    with pytest.raises(SparkFailed, match="has its own schema"):
        driver.run(with_schema, path=path)


def test_the_store_of_a_running_broker_is_read(newest: Driver, our_broker: Broker) -> None:
    topic = new_topic(our_broker)
    send(our_broker, topic, [b"%d" % number for number in range(500)], batch=50)
    # Messages that consumers may see have units, and messages with units are read.
    path = our_broker.store
    wait_until(lambda: len(rows(path, topic=topic)) == 500, 30, "500 messages with units")
    found = newest.run(read, path=str(our_broker.store), options={"topic": topic})
    assert len(found) == 500
    assert {row["error"] for row in found} == {None}
