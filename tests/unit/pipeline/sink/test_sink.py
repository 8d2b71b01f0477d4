"""Options, columns and rows that a sink takes. Without Spark, without a broker."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from aerobee.client.producing.staging import StagingOptions
from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.sink.rows import Row, RowMaker, SinkRowError
from aerobee.pipeline.sink.schema import SinkColumns, SinkSchemaError, read_sink_schema
from aerobee.pipeline.sink.sink_options import read_sink_options
from aerobee.pipeline.sink.write_plan import SinkPlan
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.hashing import java_hash
from aerobee.protocol.message.ids import UniqueIdMaker
from aerobee.protocol.message.properties import decode_properties
from tests.tls.authority import Authority

FIRST_ID = "0000000000010000000247B760000000"
SERVER = {"nameServer": "127.0.0.1:9876"}


class Type:
    def __init__(self, text: str) -> None:
        self.text = text

    def simpleString(self) -> str:
        return self.text


class Field:
    def __init__(self, name: str, type_: str) -> None:
        self.name = name
        self.dataType = Type(type_)


def fields(**types: str) -> list[Field]:
    return [Field(name, type_) for name, type_ in types.items()]


@pytest.mark.parametrize(
    ("given", "streaming", "reason"),
    [
        ({}, True, "nameServer is required"),
        ({"topics": "T"}, True, "unknown option 'topics'; did you mean 'topic'"),
        ({"topic": "a.b"}, True, "option topic: .* characters other than"),
        ({"guarantee": "exactly-once"}, True, "not one of auto, effectively-once, at-least-once"),
        ({"guarantee": "effectively-once"}, False, "needs the option jobId"),
        ({"jobId": "x"}, True, "jobId is for batch writes"),
        ({"jobId": "x/y"}, False, "letters, digits"),
        ({"jobId": "x", "guarantee": "at-least-once"}, False, "contradict"),
        ({"acceptCodes": "10,13"}, True, "0, 10, 11 and 12"),
        ({"inFlight": "0"}, True, "less than 1"),
        ({"secretKey": "s3cr3t"}, True, "accessKey and secretKey belong together"),
        ({"trustStore": "/x.pem"}, True, "trustStore is for useTls=true"),
        ({"certificate": "/x.pem"}, True, "certificate is for useTls=true"),
        ({"certificateKey": "/x", "useTls": "true"}, True, "needs the option certificate"),
        ({"certificate": "/x.pem", "useTls": "true"}, True, "certificate.*cannot be read as PEM"),
        ({"nameServer": "localhost"}, True, "is not host:port"),
        ({"kafka.bootstrap.servers": "x"}, True, "kafka.bootstrap.servers .*: use nameServer"),
        ({"kafka.acks": "all"}, True, "option kafka.acks is one of Kafka's connector: use accept"),
        ({"includeheaders": "true"}, True, "option includeHeaders is .* a column headers is"),
        ({"produceGroup": "g"}, True, "rocketmq-flink: use producerGroup"),
    ],
)
def test_wrong_options_are_named(
    given: dict[str, str], streaming: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    base = {} if not given else SERVER
    with pytest.raises(OptionError, match=reason) as refused:
        read_sink_options({**base, **given}, streaming=streaming)
    assert "s3cr3t" not in str(refused.value)


def test_options_that_spark_hands_on_are_not_unknown() -> None:
    given = SERVER | {"checkpointlocation": "/c", "queryName": "q"}
    assert read_sink_options(given, streaming=True).name_servers == SERVER["nameServer"]
    with pytest.raises(OptionError, match="unknown option 'checkpointlocation'"):
        read_sink_options(given, streaming=False)


def test_a_certificate_travels_and_its_password_is_not_shown(tmp_path: Path) -> None:
    pair = Authority(tmp_path).pair("job", password="s3cr3t")
    given = {
        "useTls": "true",
        "certificate": str(pair.certificate),
        "certificateKey": str(pair.key),
        "certificatePassword": "s3cr3t",
    }
    options = read_sink_options(SERVER | given, streaming=True)
    again = pickle.loads(pickle.dumps(options)).of_clients()
    assert again["certificate"] == str(pair.certificate)
    assert again["certificate_password"] == "s3cr3t"
    for text in (repr(options), repr(StagingOptions(**options.of_clients()))):
        assert "s3cr3t" not in text


def test_secrets_travel_and_are_not_shown() -> None:
    given = {"accessKey": "who-it-is", "secretKey": "s3cr3t", "useTls": "true"}
    options = read_sink_options(SERVER | given, streaming=True)
    plan = SinkPlan(options, SinkColumns(0), ("b-a",), None, None)
    again = pickle.loads(pickle.dumps(plan)).options.of_clients()
    assert (again["access_key"], again["secret_key"]) == ("who-it-is", "s3cr3t")
    assert again["use_tls"]
    for text in (repr(plan), str(options), repr(StagingOptions(**options.of_clients()))):
        assert "s3cr3t" not in text
        assert "who-it-is" not in text


def test_options_are_typed() -> None:
    options = read_sink_options(
        {
            "rocketmq.namesrv.addr": "a:1,b:2",
            "TOPIC": "Orders",
            "acceptcodes": "10, 11",
            "batchBytes": "1m",
            "jobid": "nightly-7",
            "guarantee": "Effectively-Once",
        },
        streaming=False,
    )
    assert (options.name_servers, options.topic) == ("a:1;b:2", "Orders")
    assert options.accept_codes == {10, 11}
    assert options.batch_bytes == 1 << 20
    assert (options.job_id, options.guarantee) == ("nightly-7", "effectively-once")


@pytest.mark.parametrize(
    ("given", "topic", "reason"),
    [
        ({"value": "binary"}, "T", "column 'value' is Kafka's: call it body"),
        ({"key": "binary"}, "T", "column 'key' is Kafka's: call it keys .* or shardingKey"),
        ({"payload": "binary"}, "T", "unknown column 'payload'"),
        (
            {"body": "binary", "queueId": "int", "partition": "int"},
            "T",
            "queueId is there as queueId and as partition",
        ),
        ({"body": "binary", "headers": "map<string,string>"}, "T", "headers must be array<struct"),
        ({"body": "int"}, "T", "column body must be binary or string, it is int"),
        ({"tags": "string"}, "T", "column body is missing"),
        ({"body": "binary"}, None, "nothing says which topic"),
        ({"body": "binary", "BODY": "binary"}, "T", "there as body and as BODY"),
        ({"body": "binary", "properties": "map<string,int>"}, "T", "map<string,string>"),
        ({"body": "binary", "deliverTimeMs": "bigint"}, "T", "delay levels only"),
        ({"body": "binary", "queueOffset": "bigint"}, "T", "the broker gives it"),
    ],
)
def test_columns_that_cannot_be_written_are_named(
    given: dict[str, str], topic: str | None, reason: str
) -> None:
    with pytest.raises(SinkSchemaError, match=reason):
        read_sink_schema(fields(**given), topic)


def test_headers_and_partition_of_kafkas_sink_are_properties_and_queue() -> None:
    kinds = {
        "body": "string", "partition": "int",
        "headers": "array<struct<key:string,value:binary>>",
    }  # fmt: skip
    one, none = made(kinds, [("x", 2, [("trace", b"t1"), {"key": "n", "value": b"\xc3\xa4"}]),
                             ("y", 0, None)])  # fmt: skip
    found = decode_properties(one.properties.decode())
    assert (found["trace"], found["n"], one.queue.queue_id) == ("t1", "ä", 2)
    assert none.queue.queue_id == 0
    with pytest.raises(SinkRowError, match=r"row 0 .* header 'n' is no UTF-8"):
        made(kinds, [("x", 0, [("n", b"\xff")])])


def queues(topic: str) -> list[MessageQueue]:
    return [MessageQueue(topic, broker, n) for broker in ("b-a", "b-b") for n in range(3)]


def made(given: dict[str, str], values: Sequence[Sequence[Any]]) -> list[Row]:
    columns = read_sink_schema(fields(**given), "T")
    ids = UniqueIdMaker(bytes(4), 1, 2, lambda: 1_700_000_000_000)
    maker = RowMaker(columns, None if "topic" in given else "T", "q/1/0", 0, queues, ids)
    return list(maker.rows(values))


def test_a_row_becomes_a_message() -> None:
    given = {
        "topic": "string", "body": "string", "tags": "string", "keys": "array<string>",
        "properties": "map<string,string>", "delayTimeLevel": "int", "flag": "int",
    }  # fmt: skip
    (row,) = made(given, [("T2", "héllo", "t", ["k1", "k2"], [("a", "1"), ("b", "")], 3, -5)])
    assert (row.queue.topic, row.body, row.flag) == ("T2", "héllo".encode(), -5)
    assert decode_properties(row.properties) == {
        "a": "1", "KEYS": "k1 k2", "TAGS": "t", "DELAY": "3", "SPARK_ID": "q/1/0/0",
        "UNIQ_KEY": FIRST_ID,
    }  # fmt: skip


def test_orders_to_the_broker_are_not_taken_from_the_properties() -> None:
    given = {"body": "string", "properties": "map<string,string>"}
    pairs = {"DELAY": "3", "TRAN_MSG": "true", "SPARK_ID": "x", "UNIQ_KEY": "y", "a": "1"}
    (row,) = made(given, [("x", pairs)])
    assert decode_properties(row.properties) == {
        "a": "1", "SPARK_ID": "q/1/0/0", "UNIQ_KEY": FIRST_ID,
    }  # fmt: skip
    assert row.delay_level == 0


def test_a_key_chooses_its_queue_as_java_does() -> None:
    keys = [f"customer-{n}" for n in range(100)]
    rows = made({"body": "string", "shardingKey": "string"}, [("x", key) for key in keys])
    assert [row.queue for row in rows] == [queues("T")[abs(java_hash(key)) % 6] for key in keys]


def test_rows_without_a_key_go_round() -> None:
    rows = made({"body": "string"}, [("x",)] * 1200)
    assert {row.queue for row in rows} == set(queues("T"))
    assert len({row.queue for row in rows[:100]}) == 1


def test_a_queue_that_is_named_is_taken() -> None:
    rows = made({"body": "string", "queueId": "int"}, [("x", 2)] * 10)
    assert {(row.queue.broker_name, row.queue.queue_id) for row in rows} == {
        ("b-a", 2), ("b-b", 2),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "value", "reason"),
    [
        ({"body": "string"}, (None,), "row 1 .*topic 'T': body is null"),
        ({"body": "binary"}, (b"",), "body is empty"),
        ({"body": "string", "topic": "string"}, ("x", None), "row 1 of its partition: topic is"),
        ({"body": "string", "topic": "string"}, ("x", "a.b"), "topic 'a.b'.*characters"),
        ({"body": "string", "topic": "string"}, ("x", "%RETRY%g"), "retry topic"),
        ({"body": "string", "queueId": "int"}, ("x", 9), "no queue 9"),
        ({"body": "string", "delayTimeLevel": "int"}, ("x", 19), "0 to 18"),
        ({"body": "string", "flag": "bigint"}, ("x", 1 << 31), "32 bits"),
        ({"body": "string", "tags": "string"}, ("x", "a\x02b"), "'TAGS' holds U\\+0001"),
        (
            {"body": "string", "properties": "map<string,string>"},
            ("x", {"fine": "1", "colour": "re\x01d"}),
            "property 'colour' holds U\\+0001",
        ),
        ({"body": "string", "keys": "string"}, ("x", "k" * 33_000), "the properties have"),
    ],
)
def test_a_row_that_cannot_be_a_message_is_named(
    given: dict[str, str], value: tuple[Any, ...], reason: str
) -> None:
    values = {"topic": "T", "properties": {}, "queueId": 0, "delayTimeLevel": 0, "flag": 0}
    good = tuple(values.get(name, "x") for name in given)
    with pytest.raises(SinkRowError, match=reason):
        made(given, [good, value])
