"""The traps of Spark's Python data sources, each with the test that would fall into it.

     1  filters are pushed down only when allowed  test_filters_are_pushed_down_when_asked
     2  latestOffset is told apart by parameters   test_limits_make_batches_of_that_size
     3  limits have other names than documented    test_limits_make_batches_of_that_size
     4  Arrow batches must equal the schema        test_each_column_is_what_was_sent
     5  no partitions become one without a value   test_an_empty_topic_and_no_matching_topic
     6  the initial offset is asked for again      test_a_driver_killed_inside_batch_0_skips
     7  older versions tell no start               test_limits_make_batches_of_that_size
     8  that a batch is done is told later         test_limits_make_batches_of_that_size
     9  abort comes after a commit that failed     test_a_failed_commit_whose_abort_is_given
    10  a batch that is run again has no new name  test_a_driver_killed_in_each_phase
    11  write is told neither query nor batch      test_a_stream_arrives_once_under
    12  a write without a mode is an error         test_what_cannot_be_written_is_told
    13  one format in a module                     test_each_version_finds_both_formats
    14  a module that fails hides all              test_looking_for_sources_imports_nothing
    15  finder-style installs are not seen         test_the_wheel_alone_is_found_beside
    16  workers may be another Python              test_workers_are_the_same_python
    17  a user's own modules come first            test_the_wheel_alone_is_found_beside
    18  rows one by one are slow                   test_readers_give_arrow_batches
    19  sessions are slow to start                 test_there_is_one_driver_of_a_version

Restarts: with a batch planned, test_a_driver_killed_inside_batch_0_skips (the first one) and
test_each_message_is_written_once_though (any); staged, decided and half published,
test_a_driver_killed_in_each_phase, and the broker then, test_a_broker_that_is_killed_again.
Retention: test_messages_that_retention_took_from_a_running.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interop.brokers import Broker
from tests.spark.kit import VERSIONS, Driver, SparkFailed, descendants, python_of
from tests.spark.messages import new_topic, send


def test_each_test_of_the_table_is_there() -> None:
    here = "".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))
    names = re.findall(r"\btest_\w+", __doc__ or "")
    assert len(names) >= 19 + 4
    page = (__doc__ or "").partition("Restarts:")[0]
    assert [int(number) for number in re.findall(r"^ +(\d+) ", page, re.M)] == list(range(1, 20))
    for name in names:
        assert name == "test_stream_errors" or f"\ndef {name}" in here, name


def test_workers_are_the_same_python(driver: Driver) -> None:
    def pythons(spark: Any) -> tuple[str, list[str]]:
        import sys

        workers = spark.sparkContext.parallelize(range(2), 2).map(lambda _: sys.executable)
        return sys.executable, workers.collect()

    own, workers = driver.run(pythons)
    assert own == str(python_of(driver.version))
    assert set(workers) == {own}


def test_readers_give_arrow_batches(newest: Driver, our_broker: Broker) -> None:
    def kinds(spark: Any, options: dict[str, str]) -> list[tuple[str, bool]]:
        from pyspark_aerobee import DefaultSource

        source = DefaultSource(options)
        from pyspark.sql.types import _parse_datatype_string

        reader = source.reader(_parse_datatype_string(source.schema()))
        (partition,) = reader.partitions()
        batches = list(reader.read(partition))
        return [(type(one).__name__, one.schema == batches[0].schema) for one in batches]

    topic = new_topic(our_broker, queues=1)
    send(our_broker, topic, [b"x" * 100] * 40_000, batch=4_000)
    options = {"nameServer": our_broker.name_server, "topic": topic}
    found = newest.run(kinds, options=options)
    assert set(found) == {("RecordBatch", True)}
    assert len(found) > 1


def test_there_is_one_driver_of_a_version(
    request: pytest.FixtureRequest, driver: Driver, driver_of: Callable[[str], Driver]
) -> None:
    assert driver_of(driver.version) is driver
    assert request.node.get_closest_marker("spark") is not None
    assert sys.executable != str(python_of(driver.version))


def test_a_driver_whose_jvm_died_fails_its_own_test_alone(
    driver_of: Callable[[str], Driver],
) -> None:
    def count(spark: Any) -> int:
        return spark.range(7).count()

    driver = driver_of(VERSIONS[0])
    (jvm,) = (
        pid
        for pid in descendants(driver.pid)
        if Path(f"/proc/{pid}/comm").read_text().strip() == "java"
    )
    os.kill(jvm, signal.SIGKILL)
    with pytest.raises(SparkFailed):
        driver.run(count)
    assert driver.child.running  # so the process alone says nothing
    assert driver_of(VERSIONS[0]).run(count) == 7
    assert not driver.child.running
