"""SQL92 expressions of the topic source, in real Spark: batch and stream, from both brokers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aerobee.client.message import Message
from tests.interop.brokers import Broker
from tests.spark.kit import Driver, SparkFailed
from tests.spark.messages import new_topic, send_messages

SQL = {
    "expressionType": "SQL92",
    "subExpression": "amount BETWEEN 10 AND 19 AND (TAGS = 'b' OR region IS NULL)",
}


def numbers(spark: Any, options: dict[str, str], checkpoint: str = "") -> list[int]:
    """The bodies, of a batch or of all that a stream has now."""
    if not checkpoint:
        frame = spark.read.format("rocketmq").options(**options).load()
        return sorted(int(bytes(row.body)) for row in frame.select("body").collect())
    frame = spark.readStream.format("rocketmq").options(**options).load().select("body")
    view = f"sql_{abs(hash(checkpoint))}"
    query = (
        frame.writeStream.format("memory").queryName(view).trigger(availableNow=True)
        .option("checkpointLocation", checkpoint).start()
    )  # fmt: skip
    assert query.awaitTermination(120)
    return sorted(int(bytes(row.body)) for row in spark.table(view).collect())


def filled(broker: Broker) -> str:
    topic = new_topic(broker)
    send_messages(
        broker,
        [
            Message(
                topic,
                b"%d" % number,
                tags="ab"[number % 2],
                properties={"amount": str(number), **({} if number % 5 else {"region": "n"})},
            )
            for number in range(30)
        ],
    )
    return topic


EXPECTED = [number for number in range(10, 20) if number % 2 or number % 5]


@pytest.mark.parametrize("kind", ["our", "java"])
def test_a_batch_and_a_stream_have_the_rows_that_match(
    newest: Driver, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    broker = request.getfixturevalue(f"{kind}_broker")
    options = {"nameServer": broker.name_server, "topic": filled(broker), "columns": "body"} | SQL
    assert newest.run(numbers, options=options) == EXPECTED
    stream = options | {"startingOffsets": "earliest", "propertiesFormat": "json"}
    assert newest.run(numbers, options=stream, checkpoint=str(tmp_path / "check")) == EXPECTED


def test_a_wrong_expression_is_refused_at_planning(newest: Driver, our_broker: Broker) -> None:
    options = {"nameServer": our_broker.name_server, "topic": "any", "expressionType": "SQL92"}
    with pytest.raises(
        SparkFailed, match="option subExpression: SQL92 expression, at character 9 "
    ):
        newest.run(numbers, options=options | {"subExpression": "amount == 5"})
