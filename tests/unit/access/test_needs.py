"""Rights that each request needs, row by row of the table, with fields present and missing."""

from __future__ import annotations

import pytest

from aerobee.access.accounts import GROUP, TOPIC, Need
from aerobee.access.needs import BROKER_NEEDS, NAME_SERVER_NEEDS, administrator, nothing, of_topic
from aerobee.access.rights import ANY, PUB, SUB
from aerobee.protocol.bodies.clients import (
    CheckClientConfig,
    ConsumerData,
    HeartbeatData,
    LockBatch,
)
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.codes import RequestCode as Code
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.filters.subscription import Subscription
from aerobee.protocol.frames.command import make_request
from aerobee.protocol.headers.stages import Run, encode_chunk
from aerobee.protocol.message.batch import BatchItem, encode_batch

PLACE = 4096  # of a message in the log, of the topic "found"
PUB_ORDERS, SUB_ORDERS = Need(TOPIC, "orders", PUB), Need(TOPIC, "orders", SUB)
READERS = Need(GROUP, "readers", SUB)
EXT = {"topic": "orders", "b": "orders", "consumerGroup": "readers", "group": "readers",
       "offset": str(PLACE), "commitLogOffset": str(PLACE)}  # fmt: skip
SUBSCRIPTION = Subscription("orders", version=1)
HEARTBEAT = HeartbeatData(
    "client", (), (ConsumerData("readers", subscriptions=(SUBSCRIPTION,)), ConsumerData("others"))
).encode()
CHECK = CheckClientConfig("client", "readers", SUBSCRIPTION).encode()
LOCK = LockBatch("client", "readers", (MessageQueue("orders", "broker", 0),)).encode()
CHUNK = encode_chunk(
    [Run("orders", 0, 1, b"x"), Run("orders", 1, 1, b"x"), Run("more", 0, 1, b"x")]
)

#: Body and needs of a request with all of EXT.
ROWS: dict[int, tuple[bytes, list[Need]]] = {
    Code.SEND_MESSAGE: (b"", [PUB_ORDERS]),
    Code.SEND_MESSAGE_V2: (b"", [PUB_ORDERS]),
    Code.SEND_BATCH_MESSAGE: (b"", [PUB_ORDERS]),
    Code.SEND_REPLY_MESSAGE: (b"", [PUB_ORDERS]),
    Code.SEND_REPLY_MESSAGE_V2: (b"", [PUB_ORDERS]),
    Code.RECALL_MESSAGE: (b"", [PUB_ORDERS]),
    Code.STAGE_CHUNK: (CHUNK, [PUB_ORDERS, Need(TOPIC, "more", PUB)]),
    Code.END_TRANSACTION: (b"", [Need(TOPIC, "found", PUB)]),
    Code.CONSUMER_SEND_MSG_BACK: (b"", [READERS, Need(TOPIC, "found", SUB)]),
    Code.PULL_MESSAGE: (b"", [SUB_ORDERS, READERS]),
    Code.LITE_PULL_MESSAGE: (b"", [SUB_ORDERS, READERS]),
    Code.QUERY_MESSAGE: (b"", [SUB_ORDERS]),
    Code.VIEW_MESSAGE_BY_ID: (b"", [Need(TOPIC, "found", SUB)]),
    Code.QUERY_CONSUME_QUEUE: (b"", [SUB_ORDERS]),
    Code.HEART_BEAT: (HEARTBEAT, [READERS, SUB_ORDERS, Need(GROUP, "others", SUB)]),
    Code.CHECK_CLIENT_CONFIG: (CHECK, [READERS, SUB_ORDERS]),
    Code.UNREGISTER_CLIENT: (b"", [READERS]),
    Code.GET_CONSUMER_LIST_BY_GROUP: (b"", [READERS]),
    Code.QUERY_CONSUMER_OFFSET: (b"", [READERS, SUB_ORDERS]),
    Code.UPDATE_CONSUMER_OFFSET: (b"", [SUB_ORDERS, READERS]),
    Code.LOCK_BATCH_MQ: (LOCK, [READERS]),
    Code.UNLOCK_BATCH_MQ: (LOCK, [READERS]),
    Code.GET_CONSUMER_CONNECTION_LIST: (b"", [READERS]),
    Code.GET_CONSUME_STATS: (b"", [READERS, SUB_ORDERS]),
    Code.GROUP_LAG: (b"", [READERS, SUB_ORDERS]),
    Code.GET_CONSUMER_RUNNING_INFO: (b"", [READERS]),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: (b"", [READERS]),
    Code.QUERY_CONSUME_TIME_SPAN: (b"", [SUB_ORDERS, READERS]),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: (b"", [SUB_ORDERS, READERS]),
    **dict.fromkeys(
        (
            Code.SEARCH_OFFSET_BY_TIMESTAMP,
            Code.GET_MAX_OFFSET,
            Code.GET_MIN_OFFSET,
            Code.GET_EARLIEST_MSG_STORETIME,
            Code.GET_TOPIC_STATS_INFO,
            Code.GET_TOPIC_CONFIG,
            Code.QUERY_TOPIC_CONSUME_BY_WHO,
        ),
        (b"", [Need(TOPIC, "orders", ANY)]),
    ),
}
OPEN = {code for code, needs in BROKER_NEEDS.items() if needs is nothing}
ADMINISTRATORS = {code for code, needs in BROKER_NEEDS.items() if needs is administrator}
# Without their fields these name nothing that a right could be for: their handlers answer them.
MAY_LACK = {Code.UNREGISTER_CLIENT, Code.VIEW_MESSAGE_BY_ID, Code.END_TRANSACTION}
#: Codes whose body says what they reach.
WITH_BODY = {code for code, (body, _) in ROWS.items() if body}


def topic_at(place: int) -> str | None:
    return "found" if place == PLACE else None


def asked(code: int, ext: dict[str, str] | None = None, body: bytes | None = None) -> list[Need]:
    command = make_request(
        code, EXT if ext is None else ext, ROWS[code][0] if body is None else body
    )
    return [need for need in BROKER_NEEDS[code](command, topic_at) if need is not None]


def test_every_row_is_looked_at_here() -> None:
    assert {*ROWS, *OPEN, *ADMINISTRATORS} == set(BROKER_NEEDS)
    # Every account may make these requests, by name: no other row may become open unseen.
    assert {
        *(Code.STAGE_INTENT, Code.STAGE_STATUS, Code.STAGE_ABORT, Code.STAGE_CAPABILITY),
        *(Code.GET_BROKER_RUNTIME_INFO, Code.VIEW_BROKER_STATS_DATA, Code.GET_BROKER_HA_STATUS),
        Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    } == OPEN
    assert set(NAME_SERVER_NEEDS.values()) == {administrator}


@pytest.mark.parametrize("code", ROWS, ids=lambda code: Code(code).name.lower())
def test_a_row_asks_for_what_the_request_reaches(code: int) -> None:
    assert asked(code) == ROWS[code][1]


@pytest.mark.parametrize("code", sorted(set(ROWS) - WITH_BODY), ids=lambda code: Code(code).name)
def test_a_request_without_its_fields_is_not_let_in_for_that(code: int) -> None:
    needs = asked(code, {})
    if code in MAY_LACK:
        assert needs == []
    else:
        assert needs
        assert {need.name for need in needs} == {""}


@pytest.mark.parametrize("code", sorted(WITH_BODY), ids=lambda code: Code(code).name)
@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[1]", b"null", b"\0" * 64])
def test_a_body_that_cannot_be_read_is_refused(code: int, body: bytes) -> None:
    with pytest.raises(BadRequest):
        asked(code, body=body)


@pytest.mark.parametrize("code", sorted(set(ROWS) - WITH_BODY), ids=lambda code: Code(code).name)
@pytest.mark.parametrize("field", ["topic", "b"])
def test_a_retry_topic_is_its_groups(code: int, field: str) -> None:
    """PUB or SUB on %RETRY%readers is SUB on the group, and no right on topics gives it."""
    before = asked(code)
    after = asked(code, {**EXT, field: "%RETRY%readers"})
    for was, now in zip(before, after, strict=True):
        assert now == was or (was.kind == TOPIC and now == READERS)


def test_of_a_topic() -> None:
    assert of_topic("orders", PUB) == PUB_ORDERS
    assert of_topic("%RETRY%readers", PUB) == of_topic("%RETRY%readers", ANY) == READERS
    # A dead letter's topic is an ordinary one: its rights are lines of their own.
    assert of_topic("%DLQ%readers", SUB) == Need(TOPIC, "%DLQ%readers", SUB)


@pytest.mark.parametrize(
    ("code", "field"),
    [
        (Code.VIEW_MESSAGE_BY_ID, "offset"),
        (Code.CONSUMER_SEND_MSG_BACK, "offset"),
        (Code.END_TRANSACTION, "commitLogOffset"),
    ],
)
@pytest.mark.parametrize("text", ["x", "1.5", str(1 << 70)])
def test_a_place_that_is_no_number_is_refused(code: int, field: str, text: str) -> None:
    with pytest.raises(BadRequest):
        asked(code, {**EXT, field: text})


def test_where_no_message_is_nothing_of_it_is_asked() -> None:
    assert asked(Code.VIEW_MESSAGE_BY_ID, {"offset": "5"}) == []
    assert asked(Code.CONSUMER_SEND_MSG_BACK, {**EXT, "offset": "5"}) == [READERS]


def test_a_message_found_on_a_retry_topic_is_its_groups() -> None:
    command = make_request(Code.VIEW_MESSAGE_BY_ID, EXT)
    needs = BROKER_NEEDS[Code.VIEW_MESSAGE_BY_ID](command, lambda _place: "%RETRY%readers")
    assert list(needs) == [READERS]


def test_administrators_have_no_needs_of_their_own() -> None:
    with pytest.raises(AssertionError):
        administrator(make_request(Code.GET_BROKER_CONFIG), topic_at)


LISTING = "TAGS\x01a\x02INNER_MULTI_DISPATCH\x01%LMQ%one,two\x02"
LISTED = [Need(TOPIC, "%LMQ%one", PUB), Need(TOPIC, "two", PUB)]


@pytest.mark.parametrize(
    ("code", "field"),
    [
        (Code.SEND_MESSAGE, "properties"),
        (Code.SEND_MESSAGE_V2, "i"),
        (Code.SEND_REPLY_MESSAGE, "properties"),
        (Code.SEND_REPLY_MESSAGE_V2, "i"),
    ],
)
def test_a_message_needs_rights_on_the_queues_that_it_lists(code: int, field: str) -> None:
    needs = BROKER_NEEDS[code](make_request(code, {**EXT, field: LISTING}), lambda _place: None)
    assert list(needs) == [PUB_ORDERS, *LISTED]


def test_those_of_a_batch_and_of_staged_rows_too() -> None:
    batch = encode_batch([BatchItem(0, b"plain", b""), BatchItem(0, b"lists", LISTING.encode())])
    chunk = encode_chunk([Run("orders", 0, 2, batch)])
    for code, body in ((Code.SEND_BATCH_MESSAGE, batch), (Code.STAGE_CHUNK, chunk)):
        needs = BROKER_NEEDS[code](make_request(code, EXT, body), lambda _place: None)
        assert list(needs) == [PUB_ORDERS, *LISTED]


@pytest.mark.parametrize(
    ("code", "mark"), [(Code.SEND_MESSAGE, "batch"), (Code.SEND_MESSAGE_V2, "m")]
)
@pytest.mark.parametrize("text", ["true", "1"])
def test_a_batch_is_one_by_its_mark_whatever_its_code_is(code: int, mark: str, text: str) -> None:
    batch = encode_batch([BatchItem(0, b"plain", b""), BatchItem(0, b"lists", LISTING.encode())])
    assert asked(code, {**EXT, mark: text}, batch) == [PUB_ORDERS, *LISTED]
    assert asked(code, {**EXT, mark: "false"}, batch) == [PUB_ORDERS]


def test_what_names_very_many_is_looked_at_in_steps() -> None:
    row = encode_batch([BatchItem(0, b"", b"")])
    chunk = encode_chunk([Run("orders", 0, 1, row)] * 6_400)
    listed = encode_batch([BatchItem(0, b"", b"")] * 6_400 + [BatchItem(0, b"", LISTING.encode())])
    groups = HeartbeatData("c", (), tuple(ConsumerData(f"G{n}") for n in range(100))).encode()
    for code, body in (
        (Code.STAGE_CHUNK, chunk),
        (Code.SEND_BATCH_MESSAGE, listed),
        (Code.HEART_BEAT, groups),
    ):
        needs = list(BROKER_NEEDS[code](make_request(code, EXT, body), topic_at))
        assert needs.count(None) >= 100
