"""Batch reads by real Spark: every column, both ends, partitions, bad input; ours and Java's.

Tests whose results may differ with the version of Spark or with the broker run on each `pair`, the
rest on the newest version and our broker.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from aerobee.client.message import Message
from tests import campaign
from tests.interop.brokers import BROKER_NAME, Broker
from tests.spark.conftest import Pair
from tests.spark.kit import Driver, SparkFailed
from tests.spark.messages import new_topic, send, send_messages, send_numbered


def rows(spark: Any, options: dict[str, str], columns: list[str] | None = None) -> list[Any]:
    frame = spark.read.format("rocketmq").options(**options).load()
    chosen = frame.select(*columns) if columns else frame
    return [row.asDict(recursive=True) for row in chosen.collect()]


def count(spark: Any, options: dict[str, str]) -> int:
    return spark.read.format("rocketmq").options(**options).load().count()


def partitions(spark: Any, options: dict[str, str]) -> int:
    return spark.read.format("rocketmq").options(**options).load().rdd.getNumPartitions()


def test_each_column_is_what_was_sent(pair: Pair) -> None:
    topic = new_topic(pair.broker)
    began = time.time()
    message = Message(
        topic, "body \u00fc".encode(), tags="t1", keys=["k1", "k2"], properties={"own": "1"}
    )
    send_messages(pair.broker, [message, Message(topic, b"2")], queue=1)
    first, second = sorted(
        pair.driver.run(rows, options=pair.name_server | {"topic": topic, "columns": "*"}),
        key=lambda row: row["queueOffset"],
    )
    assert bytes(first["body"]) == "body \u00fc".encode()
    assert first["properties"] == {"own": "1"}
    assert (first["topic"], first["brokerName"]) == (topic, BROKER_NAME)
    assert (first["queueId"], first["queueOffset"], second["queueOffset"]) == (1, 0, 1)
    assert (first["tags"], first["keys"], second["tags"]) == ("t1", "k1 k2", None)
    assert (first["flag"], first["reconsumeTimes"]) == (0, 0)
    assert abs(first["storeTimestamp"].timestamp() - began) < 60
    assert abs(first["bornTimestamp"].timestamp() - began) < 60
    assert first["bornHost"].startswith("127.0.0.1:")
    assert first["storeHost"] == pair.broker.address
    assert len(first["msgId"]) == 32
    assert len(first["offsetMsgId"]) == 32
    assert second["commitLogOffset"] > first["commitLogOffset"]
    assert [(one["key"], bytes(one["value"])) for one in first["headers"]] == [("own", b"1")]
    by_itself = pair.driver.run(columns_of, options=pair.name_server | {"topic": topic})
    columns = ["topic", "body", "brokerName", "queueId", "queueOffset", "storeTimestamp"]
    assert by_itself == columns


def columns_of(spark: Any, options: dict[str, str]) -> list[str]:
    names: list[str] = spark.read.format("rocketmq").options(**options).load().columns
    return names


def test_what_kafkas_and_our_own_sink_write_as_lists_comes_back_so(pair: Pair) -> None:
    """Headers and keys, through a topic and back."""

    def through(spark: Any, options: dict[str, str]) -> list[Any]:
        kinds = (
            "body string, keys array<string>, partition int, "
            "headers array<struct<key:string,value:binary>>"
        )
        row = ("b", ["k1", "k2"], 1, [("trace", b"t1"), ("n", "ä".encode())])
        frame = spark.createDataFrame([row], kinds)
        frame.write.format("rocketmq").options(**options).mode("append").save()
        more = {"keysFormat": "array", "includeHeaders": "true", "columns": "keys,queueId"}
        found = spark.read.format("rocketmq").options(**options, **more).load().collect()
        return [row.asDict(recursive=True) for row in found]

    topic = new_topic(pair.broker)
    (row,) = pair.driver.run(through, options=pair.name_server | {"topic": topic})
    assert (row["keys"], row["queueId"]) == (["k1", "k2"], 1)
    headers = {one["key"]: bytes(one["value"]) for one in row["headers"]}
    assert (headers["trace"], headers["n"]) == (b"t1", "ä".encode())


def test_columns_and_forms_are_as_asked(pair: Pair) -> None:
    topic = new_topic(pair.broker)
    send_messages(pair.broker, [Message(topic, b"b", tags="t", properties={"own": "1"})])
    options = pair.name_server | {"topic": topic, "columns": "QUEUEID, properties"}
    (row,) = pair.driver.run(rows, options=options | {"propertiesFormat": "json"})
    assert list(row) == ["queueId", "properties"]
    assert json.loads(row["properties"]) == {"own": "1"}
    (row,) = pair.driver.run(
        rows, options=options | {"propertiesFormat": "json", "includeSystemProperties": "true"}
    )
    assert {"own", "TAGS", "UNIQ_KEY"} <= set(json.loads(row["properties"]))
    (row,) = pair.driver.run(rows, options=options | {"propertiesFormat": "raw"})
    assert "own\x011" in row["properties"]


def test_many_messages_of_each_queue_come_once(pair: Pair) -> None:
    topic = new_topic(pair.broker, queues=3)
    for queue in range(3):
        bodies = [b"%d-%d" % (queue, number) for number in range(2_000)]
        send(pair.broker, topic, bodies, queue, batch=100)
    options = pair.name_server | {"topic": topic, "columns": "body"}
    found = pair.driver.run(rows, options=options | {"minPartitions": "7"})
    expected = sorted(b"%d-%d" % (queue, number) for queue in range(3) for number in range(2_000))
    assert sorted(bytes(row["body"]) for row in found) == expected
    assert pair.driver.run(partitions, options=options | {"minPartitions": "7"}) == 7
    assert pair.driver.run(partitions, options=options) == 3


def test_an_empty_topic_and_no_matching_topic_give_no_rows(pair: Pair) -> None:
    topic = new_topic(pair.broker)
    options = pair.name_server
    assert pair.driver.run(count, options=options | {"topic": topic}) == 0
    assert pair.driver.run(count, options=options | {"subscribePattern": "no-such-.*"}) == 0


def test_tags_are_chosen_by_the_broker_and_here(pair: Pair) -> None:
    topic = new_topic(pair.broker)
    # The first two have the same hash.
    tags = ["Aa", "BB", "c"] * 20
    send_messages(pair.broker, [Message(topic, tag.encode(), tags=tag) for tag in tags])
    options = pair.name_server | {"topic": topic, "columns": "body"}
    found = pair.driver.run(rows, options=options | {"subExpression": "Aa || c"})
    assert sorted(bytes(row["body"]) for row in found) == [b"Aa"] * 20 + [b"c"] * 20


def test_times_choose_the_ends(pair: Pair) -> None:
    topic = new_topic(pair.broker)
    send(pair.broker, topic, [b"%d" % number for number in range(100)])
    options = pair.name_server | {"topic": topic}
    times = {
        row["queueOffset"]: round(row["storeTimestamp"].timestamp() * 1000)
        for row in pair.driver.run(rows, options=options, columns=["queueOffset", "storeTimestamp"])
    }
    start, end = times[30], times[70] + 1
    found = pair.driver.run(
        rows,
        options=options | {"startingTimestamp": str(start), "endingTimestamp": str(end)},
        columns=["queueOffset"],
    )
    expected = [offset for offset, time_ms in times.items() if start <= time_ms < end]
    assert sorted(row["queueOffset"] for row in found) == sorted(expected)


def offsets(topic: str, **by_queue: int) -> str:
    return json.dumps({topic: {BROKER_NAME: {name[1:]: at for name, at in by_queue.items()}}})


def test_offsets_choose_the_ends_or_are_lost(pair: Pair) -> None:
    topic = new_topic(pair.broker)
    send(pair.broker, topic, [b"x"] * 10)
    options = pair.name_server | {"topic": topic}
    given = {"startingOffsets": offsets(topic, q0=3), "endingOffsets": offsets(topic, q0=8)}
    assert pair.driver.run(count, options=options | given) == 5
    beyond = {"startingOffsets": offsets(topic, q0=7), "endingOffsets": offsets(topic, q0=20)}
    with pytest.raises(
        SparkFailed, match=f"topic {topic}, broker {BROKER_NAME}, queue 0: offsets 7 to 19"
    ):
        pair.driver.run(count, options=options | beyond)
    assert pair.driver.run(count, options=options | beyond | {"failOnDataLoss": "false"}) == 3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"startingOfsets": "earliest"},
            "unknown option 'startingofsets'; did you mean 'startingOffsets'",
        ),
        ({"topic": "nothing-here"}, "no name server knows topic 'nothing-here'"),
        ({"nameServer": "127.0.0.1:1"}, "no name server answers"),
        ({"startingOffsets": "latest"}, "a batch cannot start at latest"),
        (
            {"expressionType": "SQL92", "subExpression": "a >"},
            "where a property or a value is wanted",
        ),
        ({"columns": "body,quueId"}, "unknown column 'quueId'; did you mean 'queueId'"),
    ],
)
def test_bad_input_is_said_at_planning(
    newest: Driver, our_broker: Broker, wrong: dict[str, str], said: str
) -> None:
    options = {"nameServer": our_broker.name_server, "topic": "any"} | wrong
    with pytest.raises(SparkFailed) as caught:
        newest.run(count, options=options)
    assert said.lower() in str(caught.value).lower()


def test_a_batch_of_ten_rows_waits_for_nothing(newest: Driver, our_broker: Broker) -> None:
    """It is as quick as a Python source that has its ten rows at hand."""

    def seconds(spark: Any, options: dict[str, str]) -> tuple[float, float]:
        import time

        from pyspark.sql.datasource import DataSource, DataSourceReader

        class AtHand(DataSource):
            @classmethod
            def name(cls) -> str:
                return "at-hand"

            def schema(self) -> str:
                return "body int"

            def reader(self, schema: Any) -> Any:
                class Reader(DataSourceReader):
                    def read(self, partition: Any) -> Any:
                        return iter([(number,) for number in range(10)])

                return Reader()

        spark.dataSource.register(AtHand)

        def of(form: str, given: dict[str, str]) -> float:
            began = time.perf_counter()
            frame = spark.read.format(form).options(**given).load()
            assert len(frame.select("body").collect()) == 10
            return time.perf_counter() - began

        # Imports in the planning process are all that is left. A machine with other things to do
        # gets more tries.
        mine, at_hand = [of("rocketmq", options)], [of("at-hand", {})]
        while min(mine) >= 2 * min(at_hand) + 0.5 and len(mine) < 20:
            mine.append(of("rocketmq", options))
            at_hand.append(of("at-hand", {}))
        return min(mine), min(at_hand)

    topic = new_topic(our_broker, queues=1)
    send(our_broker, topic, [b"x"] * 10)
    options = {"nameServer": our_broker.name_server, "topic": topic, "columns": "body"}
    mine, at_hand = newest.run(seconds, options=options)
    assert mine < 2 * at_hand + 0.5


def test_the_plan_is_frozen_when_the_frame_is_first_used(
    newest: Driver, our_broker: Broker
) -> None:
    def twice(spark: Any, options: dict[str, str], send_more: str) -> list[int]:
        import subprocess

        frame = spark.read.format("rocketmq").options(**options).load()
        counts = [frame.count()]
        subprocess.run(send_more, shell=True, check=True)
        counts.append(frame.count())
        counts.append(spark.read.format("rocketmq").options(**options).load().count())
        return counts

    topic = new_topic(our_broker)
    send(our_broker, topic, [b"x"] * 3)
    import sys

    program = (
        f'{sys.executable} -c "from tests.interop.wire import Wire; '
        f"Wire('{our_broker.address}').send('{topic}', 0, b'x')\""
    )
    found = newest.run(
        twice, options={"nameServer": our_broker.name_server, "topic": topic}, send_more=program
    )
    assert found == [3, 3, 4]


def test_filters_are_pushed_down_when_asked(newest: Driver, our_broker: Broker) -> None:
    if newest.version == "4.0":
        pytest.skip("filters are pushed down since PySpark 4.1")

    def filtered(spark: Any, options: dict[str, str]) -> tuple[list[Any], int]:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        try:
            frame = spark.read.format("rocketmq").options(**options).load()
            few = frame.where("queueId = 1 and queueOffset >= 3 and queueOffset < 6")
            return sorted(row.queueOffset for row in few.collect()), few.rdd.getNumPartitions()
        finally:
            spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")

    topic = new_topic(our_broker, queues=3)
    for queue in range(3):
        send(our_broker, topic, [b"x"] * 10, queue, batch=10)
    options = {"nameServer": our_broker.name_server, "topic": topic}
    assert newest.run(filtered, options=options) == ([3, 4, 5], 3)
    assert newest.run(filtered, options=options | {"pushdown": "true"}) == ([3, 4, 5], 1)
    with pytest.raises(SparkFailed, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
        newest.run(count, options=options | {"pushdown": "true"})


QUEUES = 8
PER_QUEUE = campaign.size("spark messages") // QUEUES


@pytest.fixture(scope="module")
def numbered() -> Callable[[Broker], str]:
    """The topic of a broker that holds the numbers from 0 on, in order over its queues."""
    made: dict[str, str] = {}

    def topic_of(broker: Broker) -> str:
        if broker.kind not in made:
            topic = made[broker.kind] = new_topic(broker, QUEUES, "numbered")
            for queue in range(QUEUES):
                numbers = range(queue * PER_QUEUE, (queue + 1) * PER_QUEUE)
                send_numbered(broker, topic, queue, numbers, batch=PER_QUEUE // 10)
        return made[broker.kind]

    return topic_of


def test_messages_of_large_queues_are_those_that_were_sent(
    pair: Pair, numbered: Callable[[Broker], str]
) -> None:
    """Each number once, with its own id, and at the place where it was sent to."""

    def summed(spark: Any, options: dict[str, str], per_queue: int) -> dict[str, int]:
        frame = spark.read.format("rocketmq").options(**options).load()
        found = frame.selectExpr(
            "cast(cast(body as string) as bigint) number", "msgId",
            f"queueId * {per_queue} + queueOffset place",
        )  # fmt: skip
        row = found.selectExpr(
            "count(*) AS messages",
            "count(distinct number) AS different",
            "min(number) AS least",
            "max(number) AS most",
            "count_if(number = place) AS in_place",
            "count_if(msgId = lpad(hex(number), 32, '0')) AS with_their_id",
        ).first()
        return row.asDict()

    columns = "body,msgId,queueId,queueOffset"
    options = pair.name_server | {"topic": numbered(pair.broker), "columns": columns}
    all_of_them = PER_QUEUE * QUEUES
    assert pair.driver.run(summed, options=options, per_queue=PER_QUEUE) == {
        "messages": all_of_them, "different": all_of_them, "least": 0, "most": all_of_them - 1,
        "in_place": all_of_them, "with_their_id": all_of_them,
    }  # fmt: skip
