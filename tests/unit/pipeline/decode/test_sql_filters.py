"""SQL92 filters in the reading path: the rows that match, with any columns and forms."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from aerobee.client.blocking_roles import Producer
from aerobee.client.message import Message
from aerobee.pipeline.brokers.offsets import Range
from aerobee.pipeline.decode.properties import Properties, property_matcher
from aerobee.pipeline.source.range_rows import read_range
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.testing import RunningBroker
from tests.unit.pipeline.support import BROKER, TOPIC, create, options, queue, running

COUNT = 300


def properties_of(number: int) -> dict[str, str]:
    """Each third message has no amount; the amount of each fifth is no number."""
    amount = {} if number % 3 == 0 else {"amount": "much" if number % 5 == 0 else str(number)}
    return {"region": "ns"[number % 2], **amount}


def wanted(number: int) -> bool:
    """The SQL expression, in Python."""
    amount = properties_of(number).get("amount", "")
    return amount.isdigit() and int(amount) > 100 and number % 2 == 0 and number % 7 < 2


SQL = "amount > 100 AND region = 'n' AND TAGS IN ('t0', 't1')"


@pytest.fixture(scope="module", params=[{}, {"transfer_bytes_bulk": 0}], ids=["ours", "java"])
def filled(request: pytest.FixtureRequest) -> Iterator[RunningBroker]:
    with running(**request.param) as broker:
        create(broker)
        with Producer(broker.name_server) as producer:
            for number in range(COUNT):
                message = Message(
                    TOPIC, b"%d" % number, tags=f"t{number % 7}", properties=properties_of(number)
                )
                producer.send(message, queue=MessageQueue(TOPIC, BROKER, 0))
        yield broker


@pytest.mark.parametrize("form", ["map", "json", "raw"])
@pytest.mark.parametrize(
    "columns", [None, "body", "properties,queueOffset,body", "tags,body,topic"]
)
def test_rows_that_match_come_with_any_columns(
    filled: RunningBroker, form: str, columns: str | None
) -> None:
    given = {"columns": columns} if columns else {}
    one = options(filled, expressionType="SQL92", subExpression=SQL, propertiesFormat=form, **given)
    batches = list(read_range(one, Range(queue(0), 0, COUNT)))
    expected = [number for number in range(COUNT) if wanted(number)]
    assert len(expected) > 10
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [int(row["body"]) for row in rows] == expected
    assert all(batch.schema.names == [column.name for column in one.columns] for batch in batches)
    for row in rows:
        number = int(row["body"])
        assert row.get("queueOffset", number) == number
        assert row.get("tags", f"t{number % 7}") == f"t{number % 7}"
        if "properties" in row:
            text = dict(row["properties"]) if form == "map" else row["properties"]
            assert str(number) in (text["amount"] if form == "map" else text)


@pytest.mark.parametrize(("start", "end"), [(0, COUNT), (100, 203), (298, 299)])
def test_a_part_of_a_range_gives_its_own_rows(filled: RunningBroker, start: int, end: int) -> None:
    one = options(filled, expressionType="SQL92", subExpression=SQL, columns="queueOffset")
    found = [
        offset
        for batch in read_range(one, Range(queue(0), start, end))
        for offset in batch.column("queueOffset").to_pylist()
    ]
    assert found == [number for number in range(start, end) if wanted(number)]


@pytest.mark.parametrize(("sql", "count"), [("TRUE", COUNT), ("FALSE", 0), ("nobody = '1'", 0)])
def test_all_and_none(filled: RunningBroker, sql: str, count: int) -> None:
    one = options(filled, expressionType="SQL92", subExpression=sql, columns="topic,queueId")
    assert sum(batch.num_rows for batch in read_range(one, Range(queue(0), 0, COUNT))) == count


def test_of_a_repeated_property_the_last_counts_and_empty_texts_have_none() -> None:
    texts = ["a\x011\x02a\x012\x02", "", "a\x01", "b\x012", "a\x012"]
    found = property_matcher(("SQL92", "a = 2"))(Properties(pa.array(texts, pa.string())))
    assert found.dtype == np.bool_
    assert found.tolist() == [True, False, False, False, True]
