"""Options of the topic source: typed, refused by name, checked against each other."""

import pickle
import re
from pathlib import Path

import pytest

from aerobee.pipeline.brokers.offsets import EARLIEST, LATEST, Queue
from aerobee.pipeline.decode.columns import HEADERS_TYPE, KEYS_TYPE, MAP_TYPE, TOPIC_COLUMNS
from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.source.source_options import (
    BatchLimits,
    OffsetSpec,
    SourceOptions,
    read_source_options,
)
from tests.tls import CERTIFICATE

LEAST = {"nameServer": "ns:9876", "topic": "t"}


def read(streaming: bool | None = False, **given: str) -> SourceOptions:
    return read_source_options({**LEAST, **given}, streaming=streaming)


def refused(streaming: bool | None = False, /, **given: str) -> str:
    with pytest.raises(OptionError) as caught:
        read(streaming, **given)
    return str(caught.value)


def test_names_count_without_case_and_with_the_prefix_of_rocketmq() -> None:
    options = read_source_options(
        {
            "rocketmq.NAMESRV.addr": "a:1; b:2,c:3",
            "SubScribe": "t, u",
            "rocketmq.minpartitions": "4",
        },
        streaming=False,
    )
    assert options.access.name_servers == ("a:1", "b:2", "c:3")
    assert options.topics == ("t", "u")
    assert options.min_partitions == 4


def test_an_unknown_option_is_refused_with_the_nearest_known() -> None:
    text = refused(startingOfsets="earliest")
    assert "startingOfsets" in text
    assert "'startingOffsets'" in text
    assert "one of tables of files: use topic" in refused(path="/x")


def test_exactly_one_way_to_say_what_is_read() -> None:
    assert "found topic and subscribe" in refused(subscribe="t")
    with pytest.raises(OptionError, match="found none"):
        read_source_options({"nameServer": "ns:1"})


@pytest.mark.parametrize("address", ["", " ; ", "host", "host:", "host:0", "host:99999", ":1"])
def test_a_name_server_is_host_and_port(address: str) -> None:
    assert "nameServer" in refused(nameServer=address)


def test_defaults_differ_between_batch_and_stream() -> None:
    assert read(False).start == OffsetSpec(EARLIEST)
    assert read(False).end == OffsetSpec(LATEST)
    assert read(True).start == OffsetSpec(LATEST)
    assert read(True).start.moves
    assert not read(False).start.moves


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingOffsets", "latest"),
        ("startingOffsets", '{"t": {"b": {"0": -1}}}'),
        ("endingOffsets", "earliest"),
        ("endingOffsets", '{"t": {"b": {"0": -2}}}'),
    ],
)
def test_a_batch_neither_starts_at_latest_nor_ends_at_earliest(name: str, value: str) -> None:
    text = refused(**{name: value})
    assert name in text
    if value.startswith("{"):
        assert "topic t, broker b, queue 0" in text


def test_a_batch_whose_end_is_given_before_its_start_is_a_wrong_option() -> None:
    text = refused(startingTimestamp="6", endingTimestamp="5")
    assert text == "option endingTimestamp: '5' is before startingTimestamp"
    assert read(startingTimestamp="5", endingTimestamp="5").end.timestamp_ms == 5
    seven, four = '{"t": {"b": {"2": 7}}}', '{"t": {"b": {"2": 4}}}'
    text = refused(startingOffsets=seven, endingOffsets=four)
    assert "startingOffsets and endingOffsets: topic t, broker b, queue 2" in text
    assert "begin at 7 and end before it, at 4" in text
    for end in (seven, '{"t": {"b": {"2": -1}}}', '{"t": {"b": {"1": 4}}}'):
        read(startingOffsets=seven, endingOffsets=end)


def test_a_stream_has_no_end() -> None:
    assert "endingOffsets" in refused(True, endingOffsets="latest")
    assert "endingTimestamp" in refused(True, endingTimestamp="5")
    assert "startStateLocation" in refused(False, startStateLocation="/x")


def test_offsets_and_time_of_one_end_exclude_each_other() -> None:
    assert "exclude" in refused(startingOffsets="earliest", startingTimestamp="5")


def test_a_queue_that_the_offsets_do_not_name_is_read_whole() -> None:
    place = read(True, startingOffsets='{"t": {"b": {"3": 7}}}').start
    assert place == OffsetSpec(EARLIEST, None, ((Queue("t", "b", 3), 7),))
    assert not place.moves
    assert read(True, startingOffsets='{"t": {"b": {"3": -1}}}').start.moves
    assert read(True, startingTimestamp="7").start.moves


def test_tags_are_read_and_wrong_ones_refused() -> None:
    assert read(subExpression="a || b").tags == {"a", "b"}
    assert (read().tags, read().condition) == (frozenset(), None)
    assert "names no tag" in refused(subExpression="||")


def test_sql_is_checked_when_it_is_given_and_not_sent_to_the_broker() -> None:
    options = read(expressionType="sql92", subExpression="a > 1 and TAGS = 'x'")
    assert options.condition == ("SQL92", "a > 1 and TAGS = 'x'")
    assert (options.expression, options.tags) == ("*", frozenset())
    assert pickle.loads(pickle.dumps(options)) == options
    text = refused(expressionType="SQL92", subExpression="a > 1 and")
    assert "option subExpression: SQL92 expression, at the end" in text
    assert "at character 3" in refused(expressionType="SQL92", subExpression="a || b")
    assert "needs a subExpression" in refused(expressionType="SQL92")
    assert "expressionType" in refused(expressionType="JAVA", subExpression="a")


def test_a_pattern_must_be_one_and_fit_the_whole_name() -> None:
    assert "subscribePattern" in str(_raises({"nameServer": "n:1", "subscribePattern": "("}))
    options = read_source_options({"nameServer": "n:1", "subscribePattern": "ord.*"})
    assert options.wants_topic("orders")
    assert not options.wants_topic("reorders")


def _raises(given: dict[str, str]) -> OptionError:
    with pytest.raises(OptionError) as caught:
        read_source_options(given)
    return caught.value


def test_assigned_queues_are_the_ones_read() -> None:
    options = read_source_options({"nameServer": "n:1", "assign": '{"t": {"b": [0, 2]}}'})
    assert options.topics == ("t",)
    assert options.wants(Queue("t", "b", 2))
    assert not options.wants(Queue("t", "b", 1))


@pytest.mark.parametrize(
    "name", ["maxOffsetsPerTrigger", "maxBytesPerTrigger", "minPartitions", "pullBatchSize"]
)
def test_limits_begin_at_one(name: str) -> None:
    assert name in refused(**{name: "0"})
    assert name in refused(**{name: "many"})
    assert name in refused(**{name: "1.5"})


def test_bytes_of_a_trigger_may_have_a_unit() -> None:
    assert read(True, maxBytesPerTrigger="5k").limits.most_bytes == 5 << 10
    assert read(True).limits == BatchLimits()


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        (
            "kafka.bootstrap.servers",
            "kafka.bootstrap.servers is one of Kafka's connector: use name",
        ),
        ("kafka.group.id", "use consumerGroup"),
        ("kafkaconsumer.polltimeoutms", "option kafkaConsumer.pollTimeoutMs is .* pullTimeoutMs"),
        ("kafka.fetch.min.bytes", "is a setting of Kafka's client, which is not used here"),
        ("topicspattern", "option topicsPattern is one of Pulsar's connector: use subscribeP"),
        ("group", "rocketmq-spark: use consumerGroup"),
        ("rocketmq.source.filter.tag", "is one of rocketmq-flink: use subExpression"),
    ],
)
def test_words_of_other_connectors_are_answered_with_ours(word: str, answer: str) -> None:
    """Spark hands names over in small letters; the answer has them as their manuals do."""
    assert re.search(answer, refused(**{word: "x"}))


def test_a_batch_may_wait_for_messages() -> None:
    limits = read(True, minOffsetsPerTrigger="500", maxTriggerDelay="90s").limits
    assert (limits.least_rows, limits.delay_s) == (500, 90.0)
    assert read(True, minOffsetsPerTrigger="1").limits.delay_s == 900.0
    assert read(True, minOffsetsPerTrigger="1", maxTriggerDelay="250").limits.delay_s == 0.25
    assert "maxTriggerDelay: 'soon' is no time" in refused(
        True, minOffsetsPerTrigger="1", maxTriggerDelay="soon"
    )
    assert "minOffsetsPerTrigger, which is not given" in refused(True, maxTriggerDelay="1m")
    assert "is less than minOffsetsPerTrigger" in refused(
        True, minOffsetsPerTrigger="5", maxOffsetsPerTrigger="4"
    )
    # Code that streams and batches share may give them to both, as Kafka's source allows.
    assert read(minOffsetsPerTrigger="5", maxTriggerDelay="1m").limits.least_rows == 5


def test_times_may_be_given_by_queue() -> None:
    times = '{"t": {"b": {"0": 1700000000000}}}'
    found = read(startingOffsetsByTimestamp=times, endingOffsetsByTimestamp=times)
    by_queue = ((Queue("t", "b", 0), 1_700_000_000_000),)
    assert found.start == OffsetSpec(EARLIEST, times=by_queue)
    assert found.end == OffsetSpec(LATEST, times=by_queue)
    assert read(True, startingOffsetsByTimestamp=times).start.moves
    iso = '{"t": {"b": {"0": "2023-11-14T22:13:20Z"}}}'
    assert read(startingOffsetsByTimestamp=iso).start == found.start
    wrong = refused(startingOffsetsByTimestamp='{"t": {"b": {"0": "soon"}}}')
    assert "queue 0: 'soon' is no time" in wrong
    strict = {"startingOffsetsByTimestampStrategy": "ERROR"}
    assert read(startingTimestamp="5", **strict).start.must_be_one
    assert "neither is given" in refused(**strict)
    assert "exclude each other" in refused(startingOffsetsByTimestamp=times, startingTimestamp="5")
    text = refused(startingOffsetsByTimestamp='{"t": {"0": 5}}')
    assert '{"topic": {"broker": {"0": time}}}: broker' in text
    assert "startingOffsetsByTimestamp" in refused(
        startingOffsetsByTimestamp='{"t": {"b": {"0": -2}}}'
    )


def test_headers_come_by_name_or_by_kafkas_word() -> None:
    kinds = {one.name: one.type for one in read(includeHeaders="true").columns}
    assert kinds["headers"] == HEADERS_TYPE
    assert [one.name for one in read(columns="headers", includeHeaders="true").columns] == [
        "headers"
    ]
    assert "headers" not in {one.name for one in read().columns}


def test_keys_may_come_as_the_words_they_are() -> None:
    kinds = {one.name: one.type for one in read(keysFormat="array").columns}
    assert kinds["keys"] == KEYS_TYPE
    assert "keysFormat: 'list' is not one of text, array" in refused(keysFormat="list")


BY_THEMSELVES = ["topic", "body", "brokerName", "queueId", "queueOffset", "storeTimestamp"]


def test_columns_are_what_names_a_message_and_what_it_says_or_those_asked_for() -> None:
    assert [one.name for one in read().columns] == BY_THEMSELVES
    assert len(read(columns="*").columns) == len(TOPIC_COLUMNS)


def test_who_says_how_properties_or_keys_look_gets_them() -> None:
    assert [one.name for one in read(keysFormat="text").columns] == [*BY_THEMSELVES, "keys"]
    for more in ({"propertiesFormat": "raw"}, {"includeSystemProperties": "true"}):
        assert [one.name for one in read(**more).columns] == [*BY_THEMSELVES, "properties"]
        assert [one.name for one in read(columns="body", **more).columns] == ["body"]


def test_text_forms_of_properties_are_strings() -> None:
    kinds = {
        form: {one.name: one.type for one in read(propertiesFormat=form).columns}["properties"]
        for form in ("map", "json", "raw")
    }
    assert kinds == {"map": MAP_TYPE, "json": "string", "raw": "string"}


def test_committing_needs_a_group_of_the_users_own() -> None:
    assert "consumerGroup" in refused(True, commitOffsetsToBroker="true")
    options = read(True, commitOffsetsToBroker="true", consumerGroup="g")
    assert (options.group, options.has_group) == ("g", True)
    assert (read().group, read().has_group) == ("spark-rocketmq", False)
    assert "consumerGroup" in refused(consumerGroup="no spaces")


def test_secrets_are_in_no_text_and_travel_to_the_executors() -> None:
    options = read(accessKey="the-access-key", secretKey="the-secret-key")
    assert "the-" not in repr(options)
    arrived = pickle.loads(pickle.dumps(options))
    assert arrived.access.manner.secret_key == "the-secret-key"
    text = refused(accessKey="the-access-key")
    assert "belong together" in text
    assert "the-access" not in text


def test_a_trust_store_is_for_tls() -> None:
    assert "trustStore" in refused(trustStore="/x.pem")
    assert read(trustStore=str(CERTIFICATE), useTls="true").access.manner.use_tls


def test_a_trust_store_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    text = refused(trustStore="/no/such.pem", useTls="true")
    assert "option trustStore: '/no/such.pem' cannot be read" in text
    assert "No such file" in text
    (tmp_path / "empty.pem").write_text("no certificate")
    text = refused(trustStore=str(tmp_path / "empty.pem"), useTls="true")
    assert "option trustStore" in text


def test_a_time_behind_all_calendars_is_refused() -> None:
    assert read(startingTimestamp="253402300799999").start.timestamp_ms == 253_402_300_799_999
    text = refused(startingTimestamp="1700000000000000")  # microseconds
    assert "'1700000000000000' is after the year 9999: it counts milliseconds" in text
    assert "after the year" in refused(
        startingOffsetsByTimestamp='{"t": {"b": {"0": 1700000000000000}}}'
    )


@pytest.mark.parametrize(
    ("expression", "is_said"),
    [("a > 5", True), ("color='red'", True), ("a IS NULL", True), ("A || B", False), ("*", False)],
)
def test_a_condition_without_its_type_is_warned_of(
    expression: str, is_said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    read(subExpression=expression)
    assert ("expressionType=SQL92 makes it one" in caplog.text) == is_said
