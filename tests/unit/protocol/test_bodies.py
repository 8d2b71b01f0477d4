"""Bodies: each client's form is understood, a wrong or too large body is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from aerobee.protocol.bodies import common as bodies
from aerobee.protocol.bodies import statistics as stats_bodies
from aerobee.protocol.bodies.clients import (
    LIMIT,
    CheckClientConfig,
    HeartbeatData,
    LockBatch,
    parse_subscription,
    subscription_members,
)
from aerobee.protocol.bodies.routes import TopicRoute
from aerobee.protocol.bodies.topics import DataVersion, TopicConfig, parse_topic_table
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.filters.subscription import Subscription, parse_tag_expression
from tests.inline_loop import drive


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(BadRequest) as caught:
        call()
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    return caught.value.remark


def heartbeat(**members: Any) -> HeartbeatData:
    return HeartbeatData.parse(json.dumps({"clientID": "c@1", **members}).encode())


def test_cpp_sends_ordinals_and_only_an_expression() -> None:
    data = heartbeat(
        consumerDataSet=[
            {
                "consumeType": 1,
                "messageModel": 1,
                "consumeFromWhere": 0,
                "groupName": "g",
                "subscriptionDataSet": [{"topic": "T", "subString": "A || B", "subVersion": 9}],
            }
        ]
    )
    [consumer] = data.consumers
    assert consumer.consume_type == "CONSUME_PASSIVELY"
    assert consumer.message_model == "CLUSTERING"
    assert consumer.consume_from_where == "CONSUME_FROM_LAST_OFFSET"
    [subscription] = consumer.subscriptions
    assert subscription.tags == {"A", "B"}
    assert subscription.codes == {65, 66}
    assert subscription.version == 9


def test_wrong_hashes_are_not_believed() -> None:
    subscription = parse_subscription(
        {"topic": "T", "subString": "A", "tagsSet": ["A"], "codeSet": [1059]}
    )
    assert subscription.codes == {65}


@pytest.mark.parametrize("tags", [[], ["a"]])
def test_an_expression_has_as_many_tags_as_the_list_may_have(tags: list[str]) -> None:
    named = [f"t{number}" for number in range(LIMIT + 1)]
    expression = "||".join(named[:LIMIT])
    value = {"topic": "T", "subString": expression, "tagsSet": tags}
    assert len(parse_subscription(value).tags) == (1 if tags else LIMIT)
    value["subString"] = "||".join(named)
    assert "names 1001 tags, limit 1000" in refusal(lambda: parse_subscription(value))


def test_sql_and_class_filters_carry_no_tags() -> None:
    sql = parse_subscription({"topic": "T", "subString": "a > 1", "expressionType": "SQL92"})
    assert (sql.type, sql.expression, len(sql.codes)) == ("SQL92", "a > 1", 0)
    filtered = parse_subscription({"topic": "T", "subString": "x", "classFilterMode": True})
    assert filtered.class_filter
    assert filtered.matches(5)


def test_unknown_enums_take_defaults_and_unknown_members_are_ignored() -> None:
    [consumer] = heartbeat(
        consumerDataSet=[{"groupName": "g", "messageModel": "LITE", "consumeType": 99, "x": {}}],
        heartbeatFingerprint=5,
        withoutSub=False,
    ).consumers
    assert (consumer.message_model, consumer.consume_type) == ("CLUSTERING", "CONSUME_PASSIVELY")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "no body"),
        (b"[]", "not an object"),
        (b"{", "cannot be read"),
        (b"{}", "clientID"),
        (b'{"clientID":5}', "clientID"),
        (b'{"clientID":""}', "clientID"),
        (b'{"clientID":"a\\u0001"}', "clientID"),
        (json.dumps({"clientID": "x" * 600}).encode(), "clientID"),
        (b'{"clientID":"c","producerDataSet":5}', "producerDataSet"),
        (b'{"clientID":"c","producerDataSet":[{}]}', "groupName"),
        (b'{"clientID":"c","producerDataSet":[7]}', "producer"),
        (
            b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{}]}]}',
            "topic",
        ),
        (json.dumps({"clientID": "c", "producerDataSet": [{}] * (LIMIT + 1)}).encode(), "limit"),
        (b'{"clientID":"c","x":' + b"[" * 10_000, "cannot be read"),
    ],
)
def test_broken_heartbeats_are_named(body: bytes, named: str) -> None:
    assert named in refusal(lambda: HeartbeatData.parse(body))


def test_subscriptions_survive_their_json() -> None:
    for subscription in (
        parse_tag_expression("T", "A||B", 7),
        parse_tag_expression("T", "*", 7),
        Subscription("T", "a = 1", "SQL92", 3),
    ):
        assert parse_subscription(subscription_members(subscription)) == subscription


def test_a_client_check_may_come_without_subscription() -> None:
    assert CheckClientConfig.parse(b'{"clientId":"c","group":"g"}').subscription is None
    check = CheckClientConfig.parse(b'{"subscriptionData":{"topic":"T","expressionType":"SQL92"}}')
    assert check.subscription is not None
    assert check.subscription.type == "SQL92"


def test_lock_requests_name_what_is_wrong() -> None:
    batch = {"clientId": "c", "consumerGroup": "g", "mqSet": [{"topic": "T", "queueId": "1"}]}
    assert LockBatch.parse(json.dumps(batch).encode()).queues[0].queue_id == 1
    batch["mqSet"] = [{"topic": "T"}]
    assert "queueId" in refusal(lambda: LockBatch.parse(json.dumps(batch).encode()))


def test_topic_tables_take_defaults_and_check_names() -> None:
    table = parse_topic_table(b'{"topicConfigTable":{"T":{"attributes":{}}}}')
    assert table.topics["T"] == TopicConfig("T", 16, 16, 6, "SINGLE_TAG", 0, False)
    assert "topic" in refusal(lambda: TopicConfig.from_json("a/b", {}))
    own = b'{"topicConfigTable":{"node1.example.org":{},"T":{}}}'
    assert [*parse_topic_table(own).topics] == ["T"]
    assert "queues" in refusal(
        lambda: parse_topic_table(b'{"topicConfigTable":{"T":{"readQueueNums":70000}}}')
    )


def test_five_x_data_versions_survive() -> None:
    version = DataVersion.from_json({"counter": 1, "timestamp": 2, "stateVersion": 3})
    assert version == (2, 1, 3)


def test_routes_name_what_is_missing() -> None:
    assert "perm" in refusal(
        lambda: TopicRoute.parse(
            b'{"queueDatas":[{"brokerName":"b","readQueueNums":1,"writeQueueNums":1}]}'
        )
    )
    assert "list" in refusal(lambda: TopicRoute.parse(b'{"queueDatas":{}}'))


def test_statistics_of_the_whole_broker_sum_the_lag() -> None:
    queue = bodies.MessageQueue("T", "b", 0)
    stats = stats_bodies.ConsumeStats({queue: stats_bodies.GroupProgress(10, 4, 0)})
    group = stats_bodies.encode_group_stats("g", [drive(stats.encode())] * 2)
    data = stats_bodies.encode_broker_consume_stats("1.1.1.1:1", [group], 2 * stats.lag)
    assert data.startswith(b'{"brokerAddr":"1.1.1.1:1","consumeStatsList":[{"g":[{"consumeTps"')
    assert data.endswith(b'"totalDiff":12}')


def test_what_waits_for_its_next_try_is_told_where_there_is_any() -> None:
    stats = stats_bodies.ConsumeStats({}, waiting_retries=3)
    body = drive(stats.encode())
    assert body == b'{"consumeTps":0.0,"offsetTable":{},"waitingRetries":3}'
    assert stats_bodies.ConsumeStats.parse(body) == stats
    assert stats.lag == 3
    # RocketMQ does not send the number; nonsense counts as absent.
    for members in (b"", b',"waitingRetries":-1'):
        body = b'{"consumeTps":0.0,"offsetTable":{}%b}' % members
        assert stats_bodies.ConsumeStats.parse(body).waiting_retries == 0


def test_connection_lists_survive() -> None:
    connection = stats_bodies.ConnectionData("c", "1.2.3.4:5", "JAVA", 409)
    subscriptions = [parse_tag_expression("T", "A")]
    data = drive(
        stats_bodies.encode_consumer_connections(
            [connection], "CONSUME_PASSIVELY", "CLUSTERING", "X", subscriptions
        )
    )
    assert stats_bodies.parse_connections(data) == [connection]
    assert json.loads(data)["subscriptionTable"]["T"]["codeSet"] == [65]
    data = drive(stats_bodies.encode_producer_connections([connection]))
    assert stats_bodies.parse_connections(data) == [connection]
    assert json.loads(drive(stats_bodies.encode_group_list(["a"]))) == {"groupList": ["a"]}


def test_numbers_may_come_as_text_and_are_bounded() -> None:
    members: dict[str, Any] = {"a": "5", "b": "", "c": None, "d": 2**31, "e": "x", "f": [1]}
    assert bodies.int_member(members, "a") == 5
    assert bodies.int_member(members, "b", 7) == 7
    assert bodies.int_member(members, "c", 7) == 7
    assert bodies.long_member(members, "d") == 2**31
    for name in "def":
        assert name in refusal(partial(bodies.int_member, members, name))
    for value, truth in ((True, True), ("true", True), ("no", False), (1, True), (None, False)):
        assert bodies.bool_member({"x": value}, "x", False) is truth


def test_a_large_request_that_is_not_standard_json_is_refused_before_it_is_read_whole() -> None:
    groups = [{"groupName": "P"}] * 900
    body = json.dumps({"clientID": "c", "producerDataSet": groups * 20})
    assert "limit 1000" in refusal(lambda: HeartbeatData.parse(body.encode()))
    # A byte is missing at the end, so that only the reader of all dialects could say where.
    assert "not standard JSON" in refusal(lambda: HeartbeatData.parse(body[:-1].encode()))
    few = json.dumps({"clientID": "c", "producerDataSet": groups})
    assert len(HeartbeatData.parse(few[:-1].encode() + b",}").producer_groups) == 900
