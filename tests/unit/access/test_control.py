"""Access control admits requests: order of its checks, counters, log lines and the signature."""

from __future__ import annotations

import hmac
import logging
from typing import Any

import pytest
from msgspec.structs import replace

from aerobee.access.accounts import Rules
from aerobee.access.control import AccessControl
from aerobee.access.errors import (
    ADMIN,
    NO_KEY,
    REASONS,
    RIGHT,
    SIGNATURE,
    UNKNOWN_KEY,
    AccessDenied,
)
from aerobee.access.files.account_file import parse_account_file
from aerobee.access.needs import BROKER_NEEDS, NAME_SERVER_NEEDS
from aerobee.protocol.codes import RequestCode as Code
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames import signature
from aerobee.protocol.frames.command import Command, make_request
from aerobee.protocol.frames.signature import Signer, signed
from aerobee.protocol.headers.stages import Run, encode_chunk
from aerobee.protocol.message.batch import BatchItem, encode_batch

SECRET = "very-secret-words"
FILE = f"""\
globalWhiteRemoteAddresses:
- 10.1.1.1
accounts:
- accessKey: account-1
  secretKey: {SECRET}
  whiteRemoteAddress: 10.2.2.2
  topicPerms:
  - orders=PUB
- accessKey: operator
  secretKey: {SECRET}
  admin: true
- accessKey: judged-operator
  secretKey: {SECRET}
  admin: true
  topicPerms:
  - orders=PUB
"""
PEER = "10.3.3.3"
PREFIX = "org.apache.rocketmq.acl.common.AclException: "


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def rules(text: str = FILE) -> Rules:
    file = parse_account_file("f.yml", text.encode())
    return Rules(file.accounts, file.white)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def control(clock: Clock) -> AccessControl:
    return AccessControl(rules(), BROKER_NEEDS, lambda _place: None, clock)


def request(
    code: int = Code.SEND_MESSAGE_V2,
    ext: dict[str, str] | None = None,
    *,
    by: str | None = "account-1",
    secret: str = SECRET,
    **changes: Any,
) -> Command:
    fields = {"b": "orders"} if ext is None else ext
    if by is not None:
        fields = signed(fields, b"body", by, secret)
    return replace(make_request(code, fields, b"body"), **changes)


def refusal(control: AccessControl, command: Command, peer: str = PEER) -> tuple[str, str]:
    """The reason and the remark of a refusal, which is counted once and has no secret."""
    before = dict(control.refused)
    with pytest.raises(AccessDenied) as raised:
        control.check(command, peer)
    error = raised.value
    assert control.refused == {**before, error.reason: before[error.reason] + 1}
    assert error.code == ResponseCode.SYSTEM_ERROR
    assert error.remark.startswith(PREFIX)
    assert SECRET not in error.remark
    return error.reason, error.remark.removeprefix(PREFIX)


def test_who_has_signed_and_has_the_right_is_let_in(control: AccessControl) -> None:
    control.check(request(), PEER)
    assert set(control.refused.values()) == {0}


def test_a_global_white_address_is_asked_nothing(control: AccessControl) -> None:
    for by in (None, "nobody-here", "account-1"):
        command = request(Code.UPDATE_BROKER_CONFIG, {}, by=by, secret="a-wrong-one")
        control.check(command, "10.1.1.1")


def test_without_a_key_nothing_else_is_looked_at(control: AccessControl) -> None:
    for ext in ({}, {"AccessKey": ""}, {"Signature": "x"}):
        reason, remark = refusal(control, request(Code.UPDATE_BROKER_CONFIG, ext, by=None))
        assert reason == NO_KEY
        assert remark.startswith("No accessKey is configured")


def test_an_unknown_key_is_refused_before_its_signature(control: AccessControl) -> None:
    reason, remark = refusal(control, request(by="nobody" + "x" * 100))
    shown = "No acl config for nobody" + "x" * 58
    assert reason == UNKNOWN_KEY
    assert remark == f"{shown}: no file of accounts here has this access key"


def test_an_accounts_white_address_needs_its_key_and_no_signature(control: AccessControl) -> None:
    command = request(Code.UPDATE_BROKER_CONFIG, {"AccessKey": "account-1"}, by=None)
    control.check(command, "10.2.2.2")
    assert refusal(control, command)[0] == SIGNATURE
    other = request(Code.UPDATE_BROKER_CONFIG, {"AccessKey": "operator"}, by=None)
    assert refusal(control, other, "10.2.2.2")[0] == SIGNATURE


def test_a_wrong_signature_is_refused_before_rights_are_looked_at(control: AccessControl) -> None:
    for code in (Code.SEND_MESSAGE_V2, Code.UPDATE_BROKER_CONFIG, Code.GET_BROKER_RUNTIME_INFO):
        reason, remark = refusal(control, request(code, secret="a-wrong-one"))
        assert reason == SIGNATURE
        assert remark.startswith("Check signature failed for accessKey=account-1: ")


def test_an_administrators_code_is_refused_before_resources(control: AccessControl) -> None:
    reason, remark = refusal(control, request(Code.UPDATE_BROKER_CONFIG, {}))
    assert (reason, remark) == (
        ADMIN,
        "Need admin permission for request code=25 (update_broker_config), but accessKey=account-1 "
        "is not",
    )  # fmt: skip
    for by in ("operator", "judged-operator"):
        control.check(request(Code.UPDATE_BROKER_CONFIG, {}, by=by), PEER)


def test_a_right_that_lacks_is_named(control: AccessControl) -> None:
    reason, remark = refusal(control, request(ext={"b": "others"}))
    assert (reason, remark) == (
        RIGHT, "No default permission for topic:others: accessKey=account-1 needs PUB on it",
    )  # fmt: skip
    refused = refusal(control, request(Code.GET_CONSUME_STATS, {"consumerGroup": "readers"}))
    assert refused[1].startswith("No default permission for group:readers: ")


def test_an_administrator_with_lists_is_judged_by_them(control: AccessControl) -> None:
    control.check(request(by="judged-operator"), PEER)
    assert refusal(control, request(ext={"b": "others"}, by="judged-operator"))[0] == RIGHT
    control.check(request(ext={"b": "others"}, by="operator"), PEER)


def test_everybody_with_an_account_may_send_traces(control: AccessControl) -> None:
    control.check(request(ext={"b": "RMQ_SYS_TRACE_TOPIC"}), PEER)
    read = {"topic": "RMQ_SYS_TRACE_TOPIC", "consumerGroup": "readers"}
    assert refusal(control, request(Code.PULL_MESSAGE, read))[0] == RIGHT


def test_a_code_without_a_row_is_refused_to_everybody(control: AccessControl) -> None:
    for by in ("account-1", "operator"):
        reason, remark = refusal(control, request(9999, {}, by=by))
        assert reason == RIGHT
        assert remark.startswith("request code 9999 is open to nobody")


def test_on_a_name_server_codes_without_a_row_are_open_to_all(clock: Clock) -> None:
    control = AccessControl(
        rules(), NAME_SERVER_NEEDS, lambda _place: None, clock, others_open=True
    )
    control.check(request(Code.GET_ROUTEINFO_BY_TOPIC, {}, by=None), PEER)
    assert refusal(control, request(Code.REGISTER_BROKER, {}, by=None))[0] == NO_KEY


def test_a_body_that_cannot_be_read_is_no_refusal_of_rights(control: AccessControl) -> None:
    with pytest.raises(BadRequest) as raised:
        control.check(request(Code.HEART_BEAT, {}), PEER)
    assert not isinstance(raised.value, AccessDenied)
    assert set(control.refused.values()) == {0}


def test_other_rules_count_from_the_next_request(control: AccessControl) -> None:
    control.check(request(), PEER)
    assert control.changes == 0
    control.use(rules(FILE.replace("orders=PUB", "orders=SUB")))
    assert control.changes == 1
    assert refusal(control, request())[0] == RIGHT


# --- the signature


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, "the request has no signature; "),
        ("", "the request has no signature; "),
        ("7", "its field Signature is none: "),  # a number comes as its text, so does a list
        ("[]", "its field Signature is none: "),
        ("\u00e4\ud800", "its field Signature is none: "),
        ("x" * 28, "the client's secret key is another one than the broker's, or the request "),
    ],
)
def test_what_is_wrong_with_a_signature_is_said(
    control: AccessControl, given: str | None, why: str
) -> None:
    ext = {"AccessKey": "account-1", "b": "orders"} | (
        {} if given is None else {"Signature": given}
    )
    reason, remark = refusal(control, request(ext=ext, by=None))
    assert reason == SIGNATURE
    assert remark.startswith(f"Check signature failed for accessKey=account-1: {why}")


def test_every_field_and_the_body_are_signed(control: AccessControl) -> None:
    good = request(ext={"b": "orders", "e": "0", "i": "k\x01v"})
    control.check(good, PEER)
    bent = [{**good.ext, name: good.ext[name] + "0"} for name in ("e", "i", "Signature")]
    bent += [{**good.ext, "more": "1"}, {k: v for k, v in good.ext.items() if k != "e"}]
    bent += [{k: v for k, v in good.ext.items() if k != "Signature"}]
    bent += [{**good.ext, "Signature": good.ext["Signature"][:-1]}, {**good.ext, "Signature": ""}]
    bent += [{**good.ext, "Signature": "ä\ud800"}]
    for ext in bent:
        assert refusal(control, replace(good, ext=ext))[0] == SIGNATURE
    assert refusal(control, replace(good, body=b"bodY"))[0] == SIGNATURE


@pytest.mark.parametrize(
    ("version", "is_signed"), [(0, False), (399, False), (400, True), (420, True)]
)
def test_the_mark_of_unique_keys_is_signed_by_versions_since_4_9_4(
    control: AccessControl, version: int, is_signed: bool
) -> None:
    control.use(rules(FILE.replace("orders=PUB", "orders=SUB")))
    mark = {"_UNIQUE_KEY_QUERY": "true"}
    ext = {"topic": "orders", "key": "k"}
    ours = signed({**ext, **(mark if is_signed else {})}, b"body", "account-1", SECRET)
    theirs = signed({**ext, **({} if is_signed else mark)}, b"body", "account-1", SECRET)
    code = Code.QUERY_MESSAGE
    control.check(request(code, {**ours, **mark}, by=None, version=version), PEER)
    wrong = request(code, {**theirs, **mark}, by=None, version=version)
    assert refusal(control, wrong)[0] == SIGNATURE


def test_signatures_are_compared_in_constant_time(
    control: AccessControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []

    def compare_digest(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return left == right

    monkeypatch.setattr(signature.hmac, "compare_digest", compare_digest)
    control.check(request(), PEER)
    assert refusal(control, request(secret="a-wrong-one"))[0] == SIGNATURE
    assert refusal(control, request(ext={"AccessKey": "account-1"}, by=None))[0] == SIGNATURE
    assert len(compared) == 3


@pytest.mark.parametrize("secret", ["k" * 7, "k" * 64, "k" * 65, "ü" * 40])
def test_the_signature_is_hmac_sha1_as_the_standard_has_it(secret: str) -> None:
    ext = {"b": "2", "a": "1", "Z": "0", "_x": "ü", "Signature": "left out"}
    expected = hmac.new(secret.encode(), "0ü12".encode() + b"body", "sha1").digest()
    assert Signer(secret).signature(ext, b"body") == signature.base64.b64encode(expected).decode()


# --- what the compiled form asks


def test_a_signer_is_told_only_of_accounts_that_have_to_sign(control: AccessControl) -> None:
    assert control.signer("operator") is not None
    assert control.signer("account-1") is None  # its white address may let it in unsigned
    assert control.signer("nobody-here") is None


def test_may_is_the_judgement_without_the_signature(control: AccessControl) -> None:
    unsigned = request(by=None)
    assert control.may("account-1", unsigned)
    assert not control.may("account-1", request(ext={"b": "others"}, by=None))
    assert not control.may("account-1", request(Code.UPDATE_BROKER_CONFIG, by=None))
    assert not control.may("nobody-here", unsigned)
    assert not control.may("operator", request(9999, by=None))
    assert not control.may("account-1", request(Code.HEART_BEAT, by=None))
    assert set(control.refused.values()) == {0}


# --- what is logged


def test_refusals_are_logged_once_a_minute_by_reason_with_the_peer(
    control: AccessControl, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "aerobee.access")
    for _ in range(5):
        refusal(control, request(by=None))
        refusal(control, request(secret="a-wrong-one"))
    first = [record.getMessage() for record in caplog.records]
    assert len(first) == 2
    assert "peer=10.3.3.3" in first[0]
    assert f'reason="{NO_KEY}"' in first[0]
    assert "request=send_message_v2" in first[0]
    assert f'reason="{SIGNATURE}"' in first[1]
    clock.now += 59
    refusal(control, request(by=None))
    control.report_unlogged()
    assert len(caplog.records) == 2
    # The minute's count comes though nobody asks any more, and none when there was nobody.
    clock.now += 1
    control.report_unlogged()
    said = [record.getMessage() for record in caplog.records[2:]]
    assert [text.rpartition(" ")[2] for text in said] == ["unlogged=5", "unlogged=4"]
    assert f'request refused peer=10.3.3.3 request=send_message_v2 reason="{NO_KEY}" ' in said[0]
    clock.now += 60
    control.report_unlogged()
    assert len(caplog.records) == 4
    refusal(control, request(by=None))
    assert "unlogged" not in caplog.records[4].getMessage()
    assert SECRET not in caplog.text
    assert request().ext["Signature"] not in caplog.text


def test_what_a_peer_calls_itself_makes_no_lines_in_the_log(
    control: AccessControl, caplog: pytest.LogCaptureFixture
) -> None:
    refusal(control, request(ext={"AccessKey": "a\nERROR forged \x1b[2J"}, by=None))
    refusal(control, request(ext={"b": "a\nERROR forged"}))
    for record in caplog.records:
        assert "\n" not in record.getMessage()
        assert "\x1b" not in record.getMessage()


def test_every_reason_is_counted_from_the_start(control: AccessControl) -> None:
    assert control.refused == dict.fromkeys(REASONS, 0)


def test_a_refused_account_has_a_line_of_its_own(
    control: AccessControl, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """While another one is refused all the time; names that are no accounts share one."""
    caplog.set_level(logging.DEBUG, "aerobee.access")
    for by in ("nobody-1", "nobody-2", "account-1", "nobody-3", "account-1", "operator"):
        refusal(control, request(by=by, secret="a-wrong-one"))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3
    for name, line in zip(("nobody-1", "account-1", "operator"), said, strict=True):
        assert name in line


def test_a_body_that_names_very_many_is_judged_in_steps_with_the_same_end(
    control: AccessControl,
) -> None:
    row = encode_batch([BatchItem(0, b"", b"")])
    for topic, refused in (("orders", False), ("others", True)):
        runs = [Run("orders", 0, 1, row)] * 1_000 + [Run(topic, 0, 1, row)]
        body = encode_chunk(runs)
        command = make_request(Code.STAGE_CHUNK, signed({}, body, "account-1", SECRET), body)
        steps, ended = 0, None
        try:
            for _ in control.check_in_steps(command, PEER):
                steps += 1
        except AccessDenied as error:
            ended = error.reason
        assert steps >= 15
        assert ended == (RIGHT if refused else None)
    assert control.refused[RIGHT] == 1
