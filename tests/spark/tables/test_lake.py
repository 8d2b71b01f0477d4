"""`aerobee pipeline stream` in all formats: bodies, schemas, tables that are not as they were."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interop.brokers import Broker
from tests.spark.messages import new_topic, send
from tests.spark.tables.lakes import DEAR, Lake

JSON = ("--body", "json")
BAD = (
    b"no json",
    b"[1, 2]",
    b"12",
    b"null",
    b" ",
    b'{"cents": "many"}',
    b'{"cents": 1',
    b"\xff\xfe",
    b'{"shop": "\xff"}',
)


def orders(first: int, count: int, **more: Any) -> list[bytes]:
    """JSON bodies: shop, cents and what else."""
    numbers = range(first, first + count)
    return [json.dumps({"shop": "ns"[n % 2], "cents": n} | more).encode() for n in numbers]


def test_json_becomes_columns_and_bad_bodies_stay_as_they_are(
    lake: Lake, our_broker: Broker, tmp_path: Path
) -> None:
    topic, table = new_topic(our_broker, queues=2), tmp_path / "table"
    send(our_broker, topic, orders(0, 20), 0, batch=20)
    how = (*JSON, "--partition-by", "shop", "--files", "1")
    facts = lake.done(our_broker, topic, table, *how)
    assert (facts["messages"], facts["bad_bodies"]) == (20, 0)
    # The schema is kept: what comes later has no say in it.
    send(our_broker, topic, orders(20, 5, colour="red"), 0, batch=5)
    send(our_broker, topic, BAD, 1)
    facts = lake.done(our_broker, topic, table, *how)
    assert (facts["messages"], facts["bad_bodies"]) == (5 + len(BAD), len(BAD))
    assert lake.done(our_broker, topic, table, *how)["messages"] == 0
    rows = lake.rows(table, "topic; shop; cents; bad_body; queueId; queueOffset")
    good = [row for row in rows if row["queueId"] == 0]
    assert [(row["shop"], row["cents"], row["bad_body"]) for row in good] == [
        ("ns"[n % 2], n, None) for n in range(25)
    ]
    bad = [(row["shop"], row["cents"], row["bad_body"]) for row in rows if row["queueId"] == 1]
    assert bad == [(None, None, body) for body in BAD]


def test_bad_bodies_go_to_a_table_of_their_own_or_are_left_out_or_end_the_stream(
    lake_of: Callable[[str], Lake], our_broker: Broker, tmp_path: Path
) -> None:
    lake = lake_of("parquet")  # what becomes of them does not depend on the table
    topic = new_topic(our_broker, queues=1)
    send(our_broker, topic, [*orders(0, 3), *BAD, *orders(3, 2)])
    how = (*JSON, "--schema", "shop STRING, cents BIGINT")
    good, bad = tmp_path / "good", tmp_path / "bad"
    facts = lake.done(our_broker, topic, good, *how, "--bad-to", str(bad))
    assert (facts["messages"], facts["bad_bodies"]) == (5 + len(BAD), len(BAD))
    assert [row["cents"] for row in lake.rows(good)] == [0, 1, 2, 3, 4]
    assert "bad_body" not in lake.rows(good)[0]
    found = lake.rows(bad, "topic; queueOffset; body; reason")
    assert [(row["queueOffset"], row["body"]) for row in found] == [*enumerate(BAD, 3)]
    assert {(row["topic"], row["reason"]) for row in found} == {
        (topic, "no JSON object of the schema")
    }
    left = tmp_path / "left"
    facts = lake.done(our_broker, topic, left, *how, "--mode", "dropmalformed")
    assert (facts["messages"], facts["bad_bodies"]) == (5 + len(BAD), len(BAD))
    assert [row["cents"] for row in lake.rows(left)] == [0, 1, 2, 3, 4]
    failed = tmp_path / "failed"
    said = lake.refused(our_broker, topic, failed, *how, "--mode", "failfast", code=1)
    assert f"message 3 of queue 0 of broker interop of topic {topic}" in said, said
    assert f"nothing of its batch was written to {failed}" in said
    # It goes on from there, and loses nothing.
    assert lake.done(our_broker, topic, failed, *how)["messages"] == 5 + len(BAD)


def test_text_and_bytes(lake_of: Callable[[str], Lake], our_broker: Broker, tmp_path: Path) -> None:
    lake = lake_of("parquet")
    topic = new_topic(our_broker, queues=1)
    bodies = ["Grüße".encode(), b" ", b"\xff\xfe", b"{}"]
    send(our_broker, topic, bodies)
    lake.done(our_broker, topic, tmp_path / "bytes", "--partition-by", "date")
    rows = lake.rows(tmp_path / "bytes")
    assert [row["body"] for row in rows] == bodies
    assert all(row["date"] == row["storeTimestamp"].date() for row in rows)
    facts = lake.done(our_broker, topic, tmp_path / "text", "--body", "text", "--columns", "tags")
    assert facts["bad_bodies"] == 1


def test_a_batch_that_the_checkpoint_has_not_is_not_written_again(
    lake: Lake, our_broker: Broker, tmp_path: Path
) -> None:
    """A kill between the two leaves this: the table has the batch, and Spark does not know."""
    topic, table = new_topic(our_broker, queues=1), tmp_path / "table"
    bad = tmp_path / "bad"
    how = (*JSON, "--schema", "shop STRING, cents BIGINT", "--bad-to", str(bad))
    send(our_broker, topic, [*orders(0, 5), b"bad"])
    lake.done(our_broker, topic, table, *how)
    send(our_broker, topic, [*orders(5, 5), b"bad"])
    lake.done(our_broker, topic, table, *how)
    commits = table / "_aerobee" / "checkpoint" / "commits"
    last = max(commits.glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)
    send(our_broker, topic, orders(10, 5))
    lake.done(our_broker, topic, table, *how)
    # Before 4.2 a run ends with the batch that it repeats.
    lake.done(our_broker, topic, table, *how)
    assert [row["cents"] for row in lake.rows(table)] == [*range(15)]
    assert len(lake.rows(bad)) == 2


def test_a_schema_that_no_longer_fits_is_refused_and_a_new_column_is_added_when_asked(
    lake: Lake, our_broker: Broker, tmp_path: Path
) -> None:
    topic, table = new_topic(our_broker, queues=1), tmp_path / "table"
    send(our_broker, topic, orders(0, 2))
    old, new = "shop STRING, cents BIGINT", "shop STRING, cents BIGINT, colour STRING"
    lake.done(our_broker, topic, table, *JSON, "--schema", old)
    send(our_broker, topic, orders(2, 2, colour="red"))
    said = lake.refused(our_broker, topic, table, *JSON, "--schema", "shop STRING, cents DOUBLE")
    assert f"topic {topic} does not fit table {table}: its column cents is bigint, not double" in (
        said
    )
    said = lake.refused(our_broker, topic, table, *JSON, "--schema", new)
    assert "lacks colour: say --schema-change add" in said
    lake.done(our_broker, topic, table, *JSON, "--schema", new, "--schema-change", "add")
    # The stream's old columns still fit; a column that it has no more is null.
    send(our_broker, topic, orders(4, 2, colour="blue"))
    lake.done(our_broker, topic, table, *JSON, "--schema", "cents BIGINT, colour STRING")
    rows = [(row["shop"], row["cents"], row["colour"]) for row in lake.rows(table)]
    assert rows == [
        ("n", 0, None), ("s", 1, None), ("n", 2, "red"), ("s", 3, "red"), (None, 4, "blue"),
        (None, 5, "blue"),
    ]  # fmt: skip


def test_a_table_that_somebody_else_writes_is_refused(
    lake: Lake, our_broker: Broker, tmp_path: Path
) -> None:
    topic, table = new_topic(our_broker, queues=1), tmp_path / "table"
    send(our_broker, topic, [b"1", b"2"])
    lake.done(our_broker, topic, table)
    other = ("--checkpoint", str(tmp_path / "other"))
    said = lake.refused(our_broker, topic, table, *other)
    if lake.kind == "parquet":
        assert f"with checkpoint {table}/_aerobee/checkpoint: a Parquet directory has one" in said
    else:
        assert f"table {table} is another stream's: name another --to for topic {topic}" in said
        lake.done(our_broker, topic, table, *other, "--existing")
        lake.done(our_broker, topic, table, *other)
        assert lake.sums(table)["messages"] == 4
    # This is no table of a stream at all.
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "rows.csv").write_text("1")
    said = lake.refused(our_broker, topic, plain)
    assert "rows.csv" in said
    assert f"another --to for topic {topic}" in said
    # And this table is gone.
    shutil.move(table, tmp_path / "away")
    shutil.copytree(tmp_path / "away" / "_aerobee" / "checkpoint",
                    table / "_aerobee" / "checkpoint")  # fmt: skip
    said = lake.refused(our_broker, topic, table)
    assert f"table {table} is gone, to which topic {topic} was written before" in said


def test_a_delta_table_whose_making_was_broken_off_is_made(
    lake_of: Callable[[str], Lake], our_broker: Broker, tmp_path: Path
) -> None:
    """A kill between the table's first file and its log leaves this."""
    lake = lake_of("delta")
    topic, table = new_topic(our_broker, queues=1), tmp_path / "table"
    how = ("--checkpoint", str(tmp_path / "checkpoint"))
    send(our_broker, topic, [b"1", b"2"])
    lake.done(our_broker, topic, table, *how)
    shutil.rmtree(table / "_delta_log")
    assert [*table.glob("*.parquet")]
    memory = tmp_path / "checkpoint" / "aerobee"
    assert sorted(path.name for path in memory.glob("stream-*")) == [
        "stream-0.json", "stream-1.json",
    ]  # fmt: skip
    # Another stream's is refused, and stays so.
    said = lake.refused(our_broker, topic, table, "--checkpoint", str(tmp_path / "other"))
    assert f"{table} is no Delta table, and not empty: it holds part-" in said
    (memory / "stream-1.json").unlink()
    for name in ("offsets", "commits"):
        shutil.rmtree(tmp_path / "checkpoint" / name)
    lake.done(our_broker, topic, table, *how)
    assert [row["body"] for row in lake.rows(table)] == [b"1", b"2"]


def test_a_directory_of_a_batch_that_is_not_ours_is_left_alone(
    lake_of: Callable[[str], Lake], our_broker: Broker, tmp_path: Path
) -> None:
    lake = lake_of("parquet")
    topic, table = new_topic(our_broker, queues=1), tmp_path / "table"
    send(our_broker, topic, [b"1"])
    lake.done(our_broker, topic, table)
    foreign = table / "batch=0000000001"
    foreign.mkdir()
    send(our_broker, topic, [b"2"])
    said = lake.refused(our_broker, topic, table)
    assert f"{table} has a directory batch=0000000001 that is not of the stream" in said
    foreign.rmdir()
    lake.done(our_broker, topic, table)
    assert lake.sums(table)["different"] == 2
    # A file beside the batches is a part of the table for whoever reads it.
    added = table / "added.parquet"
    shutil.copy(next(table.glob("batch=*/*.parquet")), added)
    said = lake.refused(our_broker, topic, table)
    assert f"{table} holds what no stream wrote, such as added.parquet: readers would" in said
    added.unlink()
    lake.done(our_broker, topic, table)


def test_a_start_that_is_refused_leaves_no_table(
    lake_of: Callable[[str], Lake], our_broker: Broker, tmp_path: Path
) -> None:
    lake = lake_of("parquet")
    topic, table, bad = new_topic(our_broker, queues=1), tmp_path / "table", tmp_path / "bad"
    send(our_broker, topic, [b"1"])
    lake.done(our_broker, topic, bad)
    text = ("--body", "text")
    said = lake.refused(our_broker, topic, table, *text, "--bad-to", str(bad))
    assert f"table {bad} is written by the stream" in said
    assert "name another --bad-to" in said
    lake.done(our_broker, topic, table, *text)
    assert lake.sums(table)["different"] == 1
    # Without its checkpoint nobody knows how far it is.
    (table / "_aerobee" / "checkpoint").rename(tmp_path / "elsewhere")
    said = lake.refused(our_broker, topic, table, *text)
    assert f"checkpoint, {table}/_aerobee/checkpoint, is gone: put it back" in said


@pytest.mark.parametrize("lake", DEAR, indirect=True)
def test_others_may_change_a_table_between_batches_and_not_replace_it(
    lake: Lake, our_broker: Broker, tmp_path: Path
) -> None:
    topic, table = new_topic(our_broker, queues=1), tmp_path / "table"
    schema = "shop STRING, cents BIGINT"
    checkpoint = ("--checkpoint", str(tmp_path / "checkpoint"))
    how = (*JSON, "--schema", schema, *checkpoint, "--columns", "queueId,queueOffset,topic")
    name = lake.name(table)
    # Made by hand, with a partition: a stream takes it while it has no row.
    own = f"queueId INT, queueOffset BIGINT, topic STRING, {schema}, bad_body BINARY, note STRING"
    lake.sql(f"CREATE TABLE {name} ({own}) USING {lake.kind} PARTITIONED BY (shop)")
    send(our_broker, topic, orders(0, 4))
    lake.done(our_broker, topic, table, *how)
    lake.sql(f"DELETE FROM {name} WHERE cents = 1")
    lake.sql(f"ALTER TABLE {name} ADD COLUMNS (later STRING)")
    send(our_broker, topic, orders(4, 2))
    said = lake.refused(our_broker, topic, table, *how, "--partition-by", "cents", code=2)
    assert "is partitioned by shop" in said
    lake.done(our_broker, topic, table, *how)
    rows = lake.rows(table)
    assert [(row["cents"], row["note"], row["later"]) for row in rows] == [
        (cents, None, None) for cents in (0, 2, 3, 4, 5)
    ]
    lake.sql(f"DROP TABLE {name}")
    shutil.rmtree(table, ignore_errors=True)
    lake.sql(f"CREATE TABLE {name} ({own}) USING {lake.kind}")
    said = lake.refused(our_broker, topic, table, *how)
    assert f"table {table} was removed and made anew by somebody else since topic {topic}" in said


def test_a_checkpoint_of_another_topic_or_table_or_program_is_refused(
    lake_of: Callable[[str], Lake], our_broker: Broker, tmp_path: Path
) -> None:
    lake = lake_of("parquet")
    topic, other = new_topic(our_broker, queues=1), new_topic(our_broker, queues=1)
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    where = ("--checkpoint", str(checkpoint))
    for one in (topic, other):
        send(our_broker, one, [b"1"])
    lake.done(our_broker, topic, table, *where)
    said = lake.refused(our_broker, other, table, *where)
    assert f"checkpoint {checkpoint} is of a stream from {topic}, not from topic {other}" in said
    assert str(table) in said
    said = lake.refused(our_broker, topic, tmp_path / "elsewhere", *where)
    assert f"from topic {topic} to {table}, not to {tmp_path / 'elsewhere'}" in said
    # One more topic is no other stream.
    assert lake.done(our_broker, f"{topic},{other}", table, *where)["messages"] == 1
    foreign = tmp_path / "foreign"
    (foreign / "offsets").mkdir(parents=True)
    (foreign / "offsets" / "0").write_text("v1\n{}\n{}")
    said = lake.refused(our_broker, topic, tmp_path / "third", "--checkpoint", str(foreign))
    assert f"checkpoint {foreign} is of another program" in said


@pytest.mark.parametrize("lake", DEAR, indirect=True)
def test_small_files_are_compacted_every_so_many_batches(
    lake: Lake, our_broker: Broker, tmp_path: Path
) -> None:
    topic, table = new_topic(our_broker, queues=1), tmp_path / "table"
    for number in range(3):
        send(our_broker, topic, [b"%d" % number])
        how = ("--compact-every", "3", "--compact-bytes", "64M")
        lake.done(our_broker, topic, table, *how)
    if lake.kind == "delta":
        files = lake.sql(f"DESCRIBE DETAIL {lake.name(table)}")[0]["numFiles"]
    else:
        files = len(lake.sql(f"SELECT file_path FROM {lake.name(table)}.files"))
    assert files == 1
    assert lake.sums(table)["different"] == 3


def test_avro_becomes_columns(
    lake_of: Callable[[str], Lake], our_broker: Broker, tmp_path: Path
) -> None:
    lake = lake_of("delta")
    topic, schema = new_topic(our_broker, queues=1), tmp_path / "order.avsc"
    types = {"shop": ["null", "string"], "cents": ["null", "long"]}
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    schema.write_text(json.dumps({"type": "record", "name": "Order", "fields": fields}))
    # Each value has its place in the union before it, a string its length; numbers are in zigzag.
    bodies = [b"\x02\x0anorth\x02\x54", b"\x02\x02", b"\x00\x00"]
    send(our_broker, topic, bodies)
    how = ("--body", "avro", "--schema", str(schema), "--keep-body")
    facts = lake.done(our_broker, topic, tmp_path / "table", *how)
    assert (facts["messages"], facts["bad_bodies"]) == (3, 1)
    rows = [
        (row["shop"], row["cents"], row["bad_body"], row["body"])
        for row in lake.rows(tmp_path / "table")
    ]
    assert rows == [
        ("north", 42, None, bodies[0]), (None, None, bodies[1], bodies[1]),
        (None, None, None, bodies[2]),
    ]  # fmt: skip


def test_what_a_stream_needs_and_has_not_is_said_with_the_words_that_bring_it(
    lake_of: Callable[[str], Lake], our_broker: Broker, tmp_path: Path
) -> None:
    lake = lake_of("parquet")
    topic = new_topic(our_broker, queues=1)
    version = lake.driver.run(spark_version)
    schema = tmp_path / "descriptors"
    schema.write_bytes(b"")
    how = ("--body", "protobuf", "--message", "Order", "--schema", str(schema))
    said = lake.refused(our_broker, topic, tmp_path / "table", *how)
    assert f"--packages org.apache.spark:spark-protobuf_2.13:{version}" in said
    said = lake.refused(our_broker, topic, tmp_path / "table", *JSON)
    assert f"topic {topic}: none of the first 0 messages is a JSON object" in said
    send(our_broker, topic, orders(0, 1, topic="x"))
    said = lake.refused(our_broker, topic, tmp_path / "table", *JSON, code=2)
    assert "a field 'topic', which is a column of the message as well" in said
    nested = (*JSON, "--nested")
    assert lake.done(our_broker, topic, tmp_path / "table", *nested)["messages"] == 1
    assert lake.rows(tmp_path / "table", "value")[0]["value"]["topic"] == "x"
    said = lake.refused(our_broker, f"{topic}-gone", tmp_path / "new")
    assert f"no name server knows topic '{topic}-gone'" in said
    # Nothing was read: the directory is not that topic's.
    assert lake.done(our_broker, topic, tmp_path / "new")["messages"] == 1


def spark_version(spark: Any) -> str:
    return spark.version
