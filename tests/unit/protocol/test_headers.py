"""Typed headers: a field that is missing or no number is named; clients' forms are understood."""

from __future__ import annotations

import inspect

import pytest

from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import make_request
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.protocol.headers import admin as admin_headers
from aerobee.protocol.headers import client as headers
from aerobee.protocol.headers.client import (
    PullMessageHeader,
    PullMessageResponse,
    QueryMessageHeader,
    QueueHeader,
    UnregisterClientHeader,
)
from aerobee.protocol.headers.fields import Header
from aerobee.protocol.headers.send import SendMessageHeader, SendMessageResponse, SendReply

SEND = SendMessageHeader(
    "PG", "T", "TBW102", 4, -1, 1, 1700000000000, -5, "TAGS\x01a", 3, True, 7, False
)


def refusal(ext: dict[str, str], header: type[Header] = QueueHeader) -> str:
    with pytest.raises(BadRequest) as caught:
        header.from_ext(ext)
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    return caught.value.remark


@pytest.mark.parametrize(
    ("ext", "remark"),
    [
        ({"topic": "t"}, "the field queueId is missing"),
        ({"topic": "t", "queueId": ""}, "the field queueId is missing"),
        ({"queueId": "1"}, "the field topic is missing"),
        ({"topic": "t", "queueId": "x"}, "the field queueId must be a number, got 'x'"),
        ({"topic": "t", "queueId": "2147483648"}, "the field queueId does not fit 32 bits"),
        ({"topic": "t", "queueId": "-2147483649"}, "the field queueId does not fit 32 bits"),
    ],
)
def test_the_wrong_field_is_named(ext: dict[str, str], remark: str) -> None:
    assert refusal(ext) == remark


@pytest.mark.parametrize("text", ["1_0", " 1", "1.0", "+-1", "0x1", "٣", "9" * 5000, "-", "nan"])
def test_only_decimal_integers_are_numbers(text: str) -> None:
    remark = refusal({"topic": "t", "queueId": text})
    assert "queueId" in remark
    assert len(remark) < 200


def test_unknown_fields_are_ignored() -> None:
    ext = {"topic": "t", "queueId": "+1", "bname": "b", "ns": "x", "lo": "false"}
    assert QueueHeader.from_ext(ext) == QueueHeader("t", 1)


def all_headers() -> list[type[Header]]:
    modules = (headers, admin_headers)
    return [
        kind
        for module in modules
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, Header) and kind is not Header
    ]


@pytest.mark.parametrize("kind", all_headers())
def test_every_header_survives_its_fields(kind: type[Header]) -> None:
    signature = inspect.signature(kind)
    values: dict[str, object] = {}
    for name, parameter in signature.parameters.items():
        text = str(parameter.annotation)
        if "bool" in text:
            values[name] = True
        elif "int" in text:
            values[name] = -(2**31)
        else:
            values[name] = f"text of {name}"
    made = kind(**values)
    ext = made.to_ext()
    assert len(ext) == len(values)
    assert all(type(value) is str for value in ext.values())
    assert kind.from_ext(ext) == made


def test_irregular_keys_are_upstreams() -> None:
    assert UnregisterClientHeader("c").to_ext() == {"clientID": "c"}
    header = QueryMessageHeader("t", "k", 1, 2, 3, True)
    assert header.to_ext()["_UNIQUE_KEY_QUERY"] == "true"
    registration = admin_headers.RegisterBrokerHeader("b", "a", "c", 0, body_crc32=5)
    assert registration.to_ext()["bodyCrc32"] == "5"


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("1", False), ("yes", False), ("", False)]
)
def test_only_the_word_true_is_true(text: str, value: bool) -> None:
    ext = {**SEND.to_ext(), "k": text}
    assert SendMessageHeader.from_command(make_request(310, ext)).unit_mode is value
    identity = {"groupName": "g", "removeOffset": text}
    assert admin_headers.DeleteGroupHeader.from_ext(identity).remove_offset is value


@pytest.mark.parametrize("code", [310, 320, 325])
def test_short_keys_belong_to_their_codes(code: int) -> None:
    assert SendMessageHeader.from_command(make_request(code, SEND.to_ext())) == SEND


def test_long_keys_belong_to_code_10() -> None:
    assert SendMessageHeader.from_command(make_request(10, SEND.to_ext_long())) == SEND
    with pytest.raises(BadRequest, match="producerGroup"):
        SendMessageHeader.from_command(make_request(10, SEND.to_ext()))


def test_node_sends_only_a_to_k() -> None:
    ext = {key: value for key, value in SEND.to_ext().items() if key not in "lm"}
    header = SendMessageHeader.from_command(make_request(310, ext))
    assert (header.batch, header.max_reconsume_times) == (False, None)


@pytest.mark.parametrize(
    ("mark", "batch"), [("1", True), ("true", True), ("0", False), ("false", False), ("2", False)]
)
def test_a_batch_is_marked_true_or_as_cpp_marks_it(mark: str, batch: bool) -> None:
    ext = {**SEND.to_ext_long(), "batch": mark}
    assert SendMessageHeader.from_command(make_request(10, ext)).batch is batch
    ext = {**SEND.to_ext(), "m": mark}
    assert SendMessageHeader.from_command(make_request(320, ext)).batch is batch


@pytest.mark.parametrize("key", list("abcdefgh"))
def test_a_missing_field_of_a_send_is_named(key: str) -> None:
    ext = SEND.to_ext()
    del ext[key]
    with pytest.raises(BadRequest, match=f"the field {key} is missing"):
        SendMessageHeader.from_command(make_request(310, ext))


@pytest.mark.parametrize("key", list("defghjl"))
def test_a_number_of_a_send_that_is_none_is_named(key: str) -> None:
    for text in ("x", "9" * 30):
        with pytest.raises(BadRequest, match=f"the field {key} "):
            SendMessageHeader.from_command(make_request(310, {**SEND.to_ext(), key: text}))


def test_empty_optional_numbers_are_absent() -> None:
    ext = {**SEND.to_ext(), "j": "", "l": ""}
    header = SendMessageHeader.from_command(make_request(310, ext))
    assert (header.reconsume_times, header.max_reconsume_times) == (0, None)


PULL = PullMessageHeader("g", "t", 1, 2**40, 32, 6, 0, 15000, 9, "a||b", "TAG")


def test_a_pull_survives_and_names_what_is_wrong() -> None:
    assert PullMessageHeader.from_ext(PULL.to_ext()) == PULL
    assert PullMessageHeader.from_ext({**PULL.to_ext(), "bname": "b"}) == PULL
    for key in ("queueId", "queueOffset", "subVersion", "consumerGroup"):
        ext = PULL.to_ext()
        del ext[key]
        assert key in refusal(ext, PullMessageHeader)
    too_much = {**PULL.to_ext(), "queueOffset": str(2**63)}
    assert "64 bits" in refusal(too_much, PullMessageHeader)


def test_a_pull_answer_has_four_fields() -> None:
    answer = PullMessageResponse(0, 5, 1, 9)
    assert answer.to_ext() == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "5",
        "minOffset": "1",
        "maxOffset": "9",
    }
    assert PullMessageResponse.from_ext(answer.to_ext()) == answer


@pytest.mark.parametrize("serialization", [0, 1, 2])
@pytest.mark.parametrize("code", [0, 10])
def test_a_send_reply_is_the_plain_answer(serialization: int, code: int) -> None:
    request = make_request(RequestCode.SEND_MESSAGE_V2, serialization=serialization)
    reply = SendReply('Re"gi%on', False)
    [answer] = FrameDecoder().feed(reply.encode(request, code, "AB,CD", 2, 2**40))
    assert (answer.code, answer.opaque, answer.remark) == (code, request.opaque, None)
    assert (answer.flag, answer.version, answer.serialization) == (1, 409, serialization)
    assert answer.ext == {
        "MSG_REGION": 'Re"gi%on',
        "TRACE_ON": "false",
        "msgId": "AB,CD",
        "queueId": "2",
        "queueOffset": str(2**40),
    }
    assert SendMessageResponse.from_ext(answer.ext) == SendMessageResponse("AB,CD", 2, 2**40)
