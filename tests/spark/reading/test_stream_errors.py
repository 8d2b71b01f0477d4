"""Errors end a query, with a text that says why, and it goes on from its checkpoint then."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee import testing
from aerobee.client.blocking_roles import Admin, Producer
from aerobee.client.message import Message
from aerobee.pipeline.brokers.offsets import (
    Mark,
    Position,
    Queue,
    position_from_json,
    position_to_json,
)
from aerobee.pipeline.errors import sentence_in
from aerobee.protocol.frames.signature import signed
from tests.interop.brokers import BROKER_NAME, Broker
from tests.interop.processes import wait_until
from tests.interop.wire import Answer, Wire
from tests.spark.conftest import Pair
from tests.spark.kit import Driver, SparkFailed
from tests.spark.messages import new_topic, send
from tests.spark.reading.streams import bodies, drain, places, start, written

WAIT_S = 150.0
DELETE_EXPIRED_COMMITLOG = 329
COUNT = 1200


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
    with pytest.raises(SparkFailed, match=r"queue 0: the last message read, 8, .* it is not there"):
        driver.run(drain, options=options, **where)
    driver.run(drain, options=options | {"failOnDataLoss": "false"}, **where)
    send(our_broker, topic, [b"y"] * 5)
    driver.run(drain, options=options | {"failOnDataLoss": "false"}, **where)
    assert driver.run(bodies, out=where["out"]) == [b"x"] * 5 + [b"y"] * 5


def _pretend_more_was_read(checkpoint: Path, topic: str, offset: int) -> None:
    """Leave the state after a power cut that took checkpointed messages back."""
    last = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    *head, text = last.read_text().splitlines()
    (mark,) = position_from_json(json.loads(text)).marks.values()
    queue = Queue(topic, BROKER_NAME, 0)
    lost = Mark(mark.log_offset + 1000, mark.store_ms + 1)
    pretended = position_to_json(Position({queue: offset}, {queue: lost}))
    last.write_text("\n".join([*head, json.dumps(pretended)]))
    (checkpoint / "offsets" / f".{last.name}.crc").unlink(missing_ok=True)


def test_a_topic_that_was_made_again_is_an_error_or_read_from_its_first_message(
    pair: Pair, tmp_path: Path
) -> None:
    """Longer than the checkpoint, so that offsets alone show nothing; for either broker."""
    topic = new_topic(pair.broker, queues=1)
    where = places(tmp_path)
    options = {
        **pair.name_server, "topic": topic, "columns": "body", "startingOffsets": "earliest",
    }  # fmt: skip
    send(pair.broker, topic, [b"old"] * 20)
    pair.driver.run(drain, options=options, **where)
    with Admin(pair.broker.name_server) as admin:
        admin.delete_topic(topic)
        with pair.broker.wire() as wire:
            wait_until(lambda: wire.max_offset(topic, 0) == 0, WAIT_S, "its queue is gone")
        admin.create_topic(topic, queues=1)
    send(pair.broker, topic, [b"new"] * 30)
    with pytest.raises(SparkFailed, match=r"queue 0: the last message read, 19, .* made again"):
        pair.driver.run(drain, options=options, **where)
    tolerant = options | {"failOnDataLoss": "false"}
    pair.driver.run(drain, options=tolerant, **where)
    assert pair.driver.run(bodies, out=where["out"]) == [b"new"] * 30 + [b"old"] * 20
    pair.driver.run(drain, options=options, **where)
    assert len(pair.driver.run(bodies, out=where["out"])) == 50


def test_a_query_whose_broker_stays_away_ends_and_goes_on_later(
    newest: Driver, new_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    broker = new_broker().start()
    topic = new_topic(broker, queues=1)
    where = places(tmp_path)
    options = {
        "nameServer": broker.name_server, "topic": topic, "columns": "body",
        "startingOffsets": "earliest",
    }  # fmt: skip
    send(broker, topic, [b"a"] * 5)
    newest.run(start, options=options | {"pullTimeoutMs": "500"}, **where)
    wait_until(lambda: newest.run(written, out=where["out"]) == 5, WAIT_S, "the first messages")
    broker.kill()

    def failure() -> str:
        try:
            newest.run(written, out=where["out"])
        except SparkFailed as error:
            return str(error)
        return ""

    wait_until(lambda: bool(failure()), WAIT_S, "the query ends")
    assert f"gave up after 5 s: cannot connect to {broker.address}" in failure()
    with pytest.raises(SparkFailed, match=f"no name server answers .{broker.name_server}"):
        newest.run(drain, options=options, **where)
    broker.start()
    send(broker, topic, [b"b"] * 5)
    newest.run(drain, options=options, **where)
    assert newest.run(bodies, out=where["out"]) == [b"a"] * 5 + [b"b"] * 5


def test_messages_that_retention_took_from_a_running_query_are_an_error_or_passed_over(
    newest: Driver, tmp_path: Path
) -> None:
    if newest.version == "4.0":
        pytest.skip("batches have no limits before PySpark 4.2")

    def run(spark: Any, options: dict[str, str], checkpoint: str, folder: str) -> list[int]:
        """The numbers of all batches; the first batch ends when `folder`/go-on is there."""
        import time
        from pathlib import Path

        found: list[int] = []

        def keep(frame: Any, batch: int) -> None:
            found.extend(int(row.body[:4]) for row in frame.collect())
            Path(folder, "begun").touch()
            deadline = time.monotonic() + 150
            while not Path(folder, "go-on").exists() and time.monotonic() < deadline:
                time.sleep(0.01)

        query = (
            spark.readStream.format("rocketmq")
            .options(**options)
            .load()
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(found)

    settings = {
        "commit_log_segment_bytes": 1 << 20, "clean_interval_ms": 100, "delete_hours": "",
        "consume_queue_flush_thorough_interval_ms": 100,
        "disk_force_ratio": 0.0,  # what is asked to be deleted goes, expired or not
    }  # fmt: skip
    with testing.broker(**settings) as broker:
        with Admin(broker.name_server) as admin:
            admin.create_topic("old", queues=1)
        options = {
            "nameServer": broker.name_server, "topic": "old", "columns": "body",
            "startingOffsets": "earliest", "maxOffsetsPerTrigger": "50",
        }  # fmt: skip
        given = {"checkpoint": str(tmp_path / "checkpoint"), "folder": str(tmp_path)}
        with Producer(broker.name_server) as producer:
            for first in range(0, COUNT, 100):
                numbers = range(first, first + 100)
                producer.send_batch([Message("old", b"%04d" % n + b"." * 3000) for n in numbers])

        def first_left() -> int:
            with Wire(broker.broker) as wire:
                return wire.min_offset("old", 0)

        with newest.running(run, options=options, **given) as outcome:
            wait_until((tmp_path / "begun").exists, WAIT_S, "the first batch is read")
            with Wire(broker.broker) as wire:
                wire.done(DELETE_EXPIRED_COMMITLOG)
            wait_until(lambda: first_left() > 300, WAIT_S, "retention has run")
            (tmp_path / "go-on").touch()
            with pytest.raises(
                SparkFailed,
                match=r"topic old, broker test-broker, queue 0: offsets 50 to \d+ are wanted, the "
                rf"queue has {first_left()} to {COUNT - 1}; with failOnDataLoss=false",
            ):
                outcome(WAIT_S)
        found = newest.run(run, options=options | {"failOnDataLoss": "false"}, **given)
        assert found == list(range(first_left(), COUNT))


# --- a broker that asks who is there -----------------------------------------------------------

ACCOUNTS = """
globalWhiteRemoteAddresses: []
accounts:
- accessKey: owner-key
  secretKey: owners-secret
  admin: true
- accessKey: reader-key
  secretKey: readers-secret
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - allowed=SUB
"""


class SignedWire(Wire):
    """A wire with the owner's signature."""

    def call(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> Answer:
        fields = {name: str(value) for name, value in (ext or {}).items()}
        return super().call(code, signed(fields, body, "owner-key", "owners-secret"), body)


def test_credentials_are_checked_by_the_broker_and_told_to_nobody(
    newest: Driver, new_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    """The real Java broker with its access control."""
    broker = new_broker("java")
    broker.shape.extra["aclEnable"] = "true"
    conf = broker.root / "home" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(ACCOUNTS)
    broker.start()
    with SignedWire(broker.address) as wire:
        for topic in ("allowed", "denied"):
            wire.create_topic(topic, 1)
            assert wire.send(topic, 0, b"a").code == 0
        where = places(tmp_path)
        options = {
            "nameServer": broker.name_server, "topic": "allowed", "columns": "body",
            "startingOffsets": "earliest", "accessKey": "reader-key",
        }  # fmt: skip
        right, wrong = {"secretKey": "readers-secret"}, {"secretKey": "another-secret"}
        wait_until(lambda: _has_routes(broker), 60, "the routes")
        newest.run(drain, options=options | right, **where)
        assert wire.send("allowed", 0, b"b").code == 0
    for given, said in (
        (wrong, "Check signature failed for accessKey=reader-key"),
        (right | {"accessKey": "nobodys-key"}, "No acl config for nobodys-key"),
        (right | {"topic": "denied"}, "No default permission for topic:denied"),
    ):
        with pytest.raises(SparkFailed) as caught:
            newest.run(_count, options=options | given)
        assert said in str(caught.value)
        assert f"{broker.address} answered" in str(caught.value)
        assert "-secret" not in str(caught.value)
    with pytest.raises(SparkFailed, match="Check signature failed"):
        newest.run(drain, options=options | wrong, **where)
    newest.run(drain, options=options | right, **where)
    assert newest.run(bodies, out=where["out"]) == [b"a", b"b"]


def _has_routes(broker: Broker) -> bool:
    with Wire(broker.name_server) as name_server:
        routes = [name_server.call(105, {"topic": topic}).code for topic in ("allowed", "denied")]
    return routes == [0, 0]


def _count(spark: Any, options: dict[str, str]) -> int:
    return spark.read.format("rocketmq").options(**options).load().count()


def texts_of_errors(spark: Any, name_server: str, topic: str, broker: str) -> dict[str, str]:
    """The text that a user sees of errors of each place: options, planning, a stream's planning, a
    task."""
    import json
    import tempfile

    def read(**more: str) -> Any:
        return spark.read.format("rocketmq").options(**options | more).load()

    def write(**columns: str) -> None:
        chosen = [f"{value} AS {name}" for name, value in columns.items()]
        rows = spark.range(1).selectExpr(*chosen)
        rows.write.format("rocketmq").options(**reached).mode("append").save()

    def stream(**more: str) -> None:
        loaded = spark.readStream.format("rocketmq").options(**options | more).load()
        with tempfile.TemporaryDirectory() as folder:
            written = loaded.writeStream.format("noop").option("checkpointLocation", folder)
            written.start().awaitTermination()

    reached = {"nameServer": name_server, "topic": topic}
    options = reached | {"pullTimeoutMs": "500"}
    beyond = {"startingOffsets": json.dumps({topic: {broker: {"0": 8}}})}
    beyond["endingOffsets"] = json.dumps({topic: {broker: {"0": 12}}})
    nobody = {"nameServer": "127.0.0.1:1"}
    errors = {
        "unknown option": lambda: read(topik="x"),
        "reader": lambda: read(startingOffsets="latest").count(),
        "no topic": lambda: read(topic="no-such-topic").count(),
        "nobody there": lambda: read(**nobody).count(),
        "loss": lambda: read(**beyond).count(),
        "column": lambda: write(body="'x'", boddy="'y'"),
        "row": lambda: write(body="string(null)"),
        "stream, options": lambda: stream(endingOffsets="latest"),
        "stream, no topic": lambda: stream(topic="no-such-topic"),
        "stream, nobody there": lambda: stream(**nobody),
    }
    found = {}
    for name, fails in errors.items():
        try:
            fails()
        except Exception as error:  # noqa: BLE001 - told to the test
            found[name] = str(error)
    return found


def test_errors_of_ours_reach_the_user_without_frames(driver: Driver, our_broker: Broker) -> None:
    topic = new_topic(our_broker, queues=1)
    send(our_broker, topic, [b"x"] * 3)
    given = {"name_server": our_broker.name_server, "topic": topic, "broker": BROKER_NAME}
    found = driver.run(texts_of_errors, **given)
    said = {name: sentence_in(text) or text for name, text in found.items()}
    wanted = {
        "unknown option": "unknown option 'topik'",
        "reader": "a batch cannot start at latest",
        "no topic": "no name server knows topic 'no-such-topic'",
        "nobody there": "no name server answers (127.0.0.1:1)",
        "loss": f"topic {topic}, broker {BROKER_NAME}, queue 0: offsets 8 to 11 are wanted",
        "column": "unknown column 'boddy'",
        "row": "body is null",
        "stream, options": "a stream has no end",
        "stream, no topic": "no name server knows topic 'no-such-topic'",
        "stream, nobody there": "no name server answers (127.0.0.1:1)",
    }
    assert {name: text in said[name] for name, text in wanted.items()} == dict.fromkeys(
        wanted, True
    )
    assert [name for name, text in found.items() if "Traceback" in text or 'File "' in text] == []


def test_errors_of_others_keep_their_frames(newest: Driver, our_broker: Broker) -> None:
    def of_a_users_function(spark: Any, options: dict[str, str]) -> str:
        from pyspark.sql.functions import udf

        rows = spark.read.format("rocketmq").options(**options).load()
        try:
            rows.select(udf(lambda text: 1 // 0)("topic")).collect()
        except Exception as error:  # noqa: BLE001 - told to the test
            return str(error)
        return ""

    topic = new_topic(our_broker, queues=1)
    send(our_broker, topic, [b"x"])
    options = {"nameServer": our_broker.name_server, "topic": topic}
    text = newest.run(of_a_users_function, options=options)
    assert "Traceback" in text
    assert "ZeroDivisionError" in text
