"""Accounts of a running broker: files that change, requests for changes, signatures that lie."""

from __future__ import annotations

import asyncio
import json
import logging
import struct
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import aerobee.testing
from aerobee.access.account_service import AccessService
from aerobee.protocol.codes import RequestCode as Code
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.frames.command import Command, make_request
from aerobee.protocol.frames.signature import signed
from aerobee.protocol.headers.send import SendMessageHeader
from aerobee.testing import RunningBroker
from tests.contract.conftest import FORMS, Wire
from tests.ports import free_port

ADMIN, USER, NEWCOMER = "administrator", "ordinary-user", "newcomer-1"
SECRET, OTHER_SECRET = "first-secret-words", "other-secret-words"
ACCOUNTS = f"""\
accounts:
- accessKey: {ADMIN}
  secretKey: {SECRET}
  admin: true
- accessKey: {USER}
  secretKey: {SECRET}
  topicPerms:
  - orders=PUB|SUB
  groupPerms:
  - readers=SUB
"""
REFUSED = "org.apache.rocketmq.acl.common.AclException: "
ACL_CODES = (
    *((Code.UPDATE_AND_CREATE_ACL_CONFIG, ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED),),
    (Code.DELETE_ACL_CONFIG, ResponseCode.DELETE_ACL_CONFIG_FAILED),
    (Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED),
)


@dataclass(frozen=True, slots=True)
class Guarded:
    """A broker with accounts, and RocketMQ's home with their files."""

    running: RunningBroker
    home: Path

    @property
    def file(self) -> Path:
        return self.home / "conf" / "plain_acl.yml"

    def notes(self) -> tuple[int, str]:
        """Status of /ready and its text."""
        with urllib.request.urlopen(f"http://{self.running.http}/ready", timeout=10) as answer:
            return answer.status, answer.read().decode()


@pytest.fixture(scope="module", params=FORMS)
def guarded_module(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    home = tmp_path_factory.mktemp("home")
    (home / "conf").mkdir()
    (home / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "off":
            patch.setenv("AEROBEE_NATIVE", "off")
        patch.setattr(AccessService, "LOOK_S", 0.02)
        with aerobee.testing.broker(
            acl_enabled=True, rocketmq_home=str(home), http_enabled=True, http_port=free_port()
        ) as running:
            yield Guarded(running, home)


@pytest.fixture
async def wire(guarded_module: Guarded) -> AsyncIterator[Wire]:
    wire = await Wire.to(guarded_module.running.broker)
    yield wire
    wire.caller.close()


@pytest.fixture
async def guarded(guarded_module: Guarded, wire: Wire) -> Guarded:
    """The broker with the accounts of above, whatever the test before has left."""
    folder = guarded_module.home / "conf" / "acl"
    for path in folder.glob("*") if folder.exists() else ():
        path.unlink()
    guarded_module.file.write_text(ACCOUNTS)

    async def is_as_it_was() -> bool:
        return (
            await ask(wire, Code.GET_BROKER_CONFIG, {}, by=ADMIN) is None
            and await ask(wire, Code.GET_BROKER_CONFIG, {}, by=None) is not None
            and await may_send(wire, USER)
            and await ask(wire, Code.GET_BROKER_RUNTIME_INFO, {}, by=NEWCOMER) is not None
            and await ask(wire, Code.GET_CONSUME_STATS, {"consumerGroup": "x"}, by=USER) is not None
        )

    await until(is_as_it_was)
    return guarded_module


async def until(condition: Callable[[], Any]) -> None:
    """Waits until a condition, which may ask the broker, holds."""
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110  the broker tells nobody
            await asyncio.sleep(0)


async def call(
    wire: Wire,
    code: int,
    ext: dict[str, Any],
    body: bytes = b"",
    *,
    by: str | None = ADMIN,
    secret: str = SECRET,
) -> Command:
    texts = {name: str(value) for name, value in ext.items()}
    answer = await wire.call(code, texts if by is None else signed(texts, body, by, secret), body)
    said = f"{answer.remark} {answer.ext} {answer.body!r}"
    assert SECRET not in said
    assert OTHER_SECRET not in said
    return answer


async def ask(wire: Wire, code: int, ext: dict[str, Any], **who: Any) -> str | None:
    """Why access is refused; None when it is not."""
    answer = await call(wire, code, ext, **who)
    remark = answer.remark or ""
    return remark.removeprefix(REFUSED) if remark.startswith(REFUSED) else None


def send_fields(topic: str) -> dict[str, str]:
    header = SendMessageHeader(
        producer_group="PG", topic=topic, default_topic="TBW102", default_topic_queue_nums=4,
        queue_id=0, sys_flag=0, born_timestamp=1, flag=0, properties="",
    )  # fmt: skip
    return header.to_ext()


def pull_fields(topic: str, group: str) -> dict[str, Any]:
    return {
        "consumerGroup": group, "topic": topic, "queueId": 0, "queueOffset": 0, "maxMsgNums": 1,
        "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*",
        "subVersion": 0,
    }  # fmt: skip


async def may_send(wire: Wire, by: str | None, topic: str = "orders", secret: str = SECRET) -> bool:
    answer = await call(wire, Code.SEND_MESSAGE_V2, send_fields(topic), b"1", by=by, secret=secret)
    return answer.code == ResponseCode.SUCCESS


# --- what a refusal says


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("", "the request has no signature; "),
        (',"Signature":null', "the request has no signature; "),
        (',"Signature":""', "the request has no signature; "),
        (',"Signature":7', "its field Signature is none: "),
        (',"Signature":["x"]', "its field Signature is none: "),
        (
            f',"Signature":"{27 * "x"}="',
            "the client's secret key is another one than the broker's, ",
        ),
    ],
)
async def test_what_is_wrong_with_a_signature_is_said(
    guarded: Guarded, given: str, why: str
) -> None:
    fields = json.dumps({**send_fields("orders"), "AccessKey": USER})[:-1] + given
    header = f'{{"code":{Code.SEND_MESSAGE_V2},"opaque":7,"extFields":{fields}}}}}'.encode()
    host, _, port = guarded.running.broker.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(struct.pack(">ii", 4 + len(header), len(header)) + header)
    size, header_size = struct.unpack(">ii", await reader.readexactly(8))
    answer = json.loads((await reader.readexactly(size - 4))[:header_size])
    writer.close()
    assert answer["remark"].startswith(
        f"{REFUSED}Check signature failed for accessKey={USER}: {why}"
    )


# --- files that change on the disk


async def test_a_file_that_changes_comes_into_force(guarded: Guarded, wire: Wire) -> None:
    assert not await may_send(wire, USER, "returns")
    guarded.file.write_text(ACCOUNTS.replace("- orders=PUB|SUB", "- returns=PUB"))
    await until(lambda: may_send(wire, USER, "returns"))
    assert not await may_send(wire, USER, "orders")


async def test_a_new_file_and_one_that_goes_come_into_force(guarded: Guarded, wire: Wire) -> None:
    folder = guarded.home / "conf" / "acl"
    folder.mkdir(exist_ok=True)
    path = folder / "team.yml"
    path.write_text(f"accounts:\n- accessKey: {NEWCOMER}\n  secretKey: {SECRET}\n  admin: true\n")
    await until(lambda: may_send(wire, NEWCOMER))
    path.unlink()

    async def is_gone() -> bool:
        return not await may_send(wire, NEWCOMER)

    await until(is_gone)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "accounts:\n",
        ACCOUNTS[: ACCOUNTS.index("secretKey") + 4],
        ACCOUNTS + "accounts: 5\n",
        ACCOUNTS.replace(f"secretKey: {SECRET}", f"secretKey: *{OTHER_SECRET}"),
        "\0\0\0",
        f"accounts:\n- accessKey: {USER}\n  secretKey: {SECRET}\n  topicPerms: [orders=WRITE]\n",
    ],
    ids=["empty", "nobody", "half written", "damaged", "a secret as an alias", "binary", "a word"],
)
async def test_what_cannot_be_taken_leaves_the_rules_and_is_a_note(
    guarded: Guarded, wire: Wire, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    caplog.set_level(logging.DEBUG)

    async def is_noted() -> bool:
        status, said = await asyncio.to_thread(guarded.notes)
        assert status == 200
        assert SECRET not in said
        assert OTHER_SECRET not in said
        return "accounts" in said and "plain_acl.yml" in said

    async def is_clear() -> bool:
        return "plain_acl.yml" not in (await asyncio.to_thread(guarded.notes))[1]

    await until(is_clear)
    guarded.file.write_text(text)
    await until(is_noted)
    assert await may_send(wire, USER)
    assert not await may_send(wire, USER, "returns")
    # Nothing is changed by requests while it is so.
    given = {"accessKey": NEWCOMER, "secretKey": OTHER_SECRET}
    answer = await call(wire, Code.UPDATE_AND_CREATE_ACL_CONFIG, given)
    assert answer.code == ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
    assert str(guarded.home) not in (answer.remark or "")
    assert guarded.file.read_text() == text
    guarded.file.write_text(ACCOUNTS.replace("- orders=PUB|SUB", "- returns=PUB"))
    await until(lambda: may_send(wire, USER, "returns"))
    await until(is_clear)
    assert "accounts are taken again" in caplog.text
    assert SECRET not in caplog.text
    assert OTHER_SECRET not in caplog.text


# --- requests that change them


async def test_an_account_is_made_changed_and_taken_away(
    guarded: Guarded, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    put = Code.UPDATE_AND_CREATE_ACL_CONFIG
    made = {
        "accessKey": NEWCOMER,
        "secretKey": OTHER_SECRET,
        "topicPerms": "orders=PUB,returns=SUB",
    }
    assert (await call(wire, put, made)).code == ResponseCode.SUCCESS
    # The change is in force when it is answered, and written.
    assert await may_send(wire, NEWCOMER, secret=OTHER_SECRET)
    assert f"accessKey: {NEWCOMER}" in guarded.file.read_text()
    changed = {"accessKey": NEWCOMER, "topicPerms": "returns=PUB", "defaultTopicPerm": ""}
    assert (await call(wire, put, changed)).code == ResponseCode.SUCCESS
    assert await may_send(wire, NEWCOMER, "returns", secret=OTHER_SECRET)
    assert not await may_send(wire, NEWCOMER, secret=OTHER_SECRET)
    assert "defaultTopicPerm" not in guarded.file.read_text()
    deleted = await call(wire, Code.DELETE_ACL_CONFIG, {"accessKey": NEWCOMER})
    assert deleted.code == ResponseCode.SUCCESS
    assert not await may_send(wire, NEWCOMER, "returns", secret=OTHER_SECRET)
    assert NEWCOMER not in guarded.file.read_text()
    told = [one.getMessage() for one in caplog.records if "by a request" in one.getMessage()]
    names = ["update_and_create_acl_config"] * 2 + ["delete_acl_config"]
    assert [
        f"request={name} account='{ADMIN}' peer=127.0.0.1:" in text
        for name, text in zip(names, told, strict=True)
    ] == [True] * 3
    assert SECRET not in caplog.text
    assert OTHER_SECRET not in caplog.text


async def test_an_account_is_changed_in_the_file_that_has_it(guarded: Guarded, wire: Wire) -> None:
    folder = guarded.home / "conf" / "acl"
    folder.mkdir(exist_ok=True)
    path = folder / "team.yml"
    path.write_text(f"accounts:\n- accessKey: {NEWCOMER}\n  secretKey: {SECRET}\n  admin: true\n")
    await until(lambda: may_send(wire, NEWCOMER))
    given = {"accessKey": NEWCOMER, "topicPerms": "returns=PUB"}
    assert (await call(wire, Code.UPDATE_AND_CREATE_ACL_CONFIG, given)).code == 0
    assert "returns=PUB" in path.read_text()
    assert guarded.file.read_text() == ACCOUNTS
    versions = await call(wire, Code.GET_BROKER_CLUSTER_ACL_INFO, {})
    assert set(json.loads(versions.ext["allAclFileVersion"])) == {
        *("conf/acl/team.yml", "conf/plain_acl.yml")
    }
    white = {"globalWhiteAddrs": "10.7.7.7", "aclFileFullPath": "conf/acl/team.yml"}
    assert (await call(wire, Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, white)).code == 0
    assert "10.7.7.7" in path.read_text()


async def test_versions_of_files_are_told(guarded: Guarded, wire: Wire) -> None:
    for count in (1, 2):
        white = {"globalWhiteAddrs": f"10.7.7.{count}", "aclFileFullPath": ""}
        assert (await call(wire, Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, white)).code == 0
        answer = await call(wire, Code.GET_BROKER_CLUSTER_ACL_INFO, {})
        version = json.loads(answer.ext["version"])
        assert version["counter"] == count
        assert version["timestamp"] > 0
        assert json.loads(answer.ext["allAclFileVersion"]) == {"conf/plain_acl.yml": version}
        assert answer.ext["brokerName"] == "test-broker"
        assert answer.body == b""


async def test_white_addresses_are_set_and_taken_away(guarded: Guarded, wire: Wire) -> None:
    code = Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
    white = {"globalWhiteAddrs": "127.0.0.*,10.7.7.7", "aclFileFullPath": ""}
    assert (await call(wire, code, white)).code == ResponseCode.SUCCESS
    assert await may_send(wire, None)
    assert await ask(wire, Code.GET_BROKER_CONFIG, {}, by=None) is None
    assert (await call(wire, code, {**white, "globalWhiteAddrs": ""})).code == ResponseCode.SUCCESS
    assert not await may_send(wire, None)


async def test_a_white_address_of_an_account_needs_no_signature(
    guarded: Guarded, wire: Wire
) -> None:
    given = {"accessKey": USER, "whiteRemoteAddress": "127.0.0.1"}
    assert (await call(wire, Code.UPDATE_AND_CREATE_ACL_CONFIG, given)).code == 0
    unsigned = {**send_fields("returns"), "AccessKey": USER}
    answer = await call(wire, Code.SEND_MESSAGE_V2, unsigned, b"1", by=None)
    assert answer.code == ResponseCode.SUCCESS
    other = {**unsigned, "AccessKey": ADMIN}
    assert "Check signature failed" in (await ask(wire, Code.SEND_MESSAGE_V2, other, by=None) or "")


PUT, DELETE, WHITE = (code for code, _ in ACL_CODES)
WRONG: list[tuple[int, dict[str, str], str]] = [
    (PUT, {"accessKey": NEWCOMER}, "is new, so it needs a secretKey"),
    (PUT, {"accessKey": "short", "secretKey": OTHER_SECRET}, "accessKey must have more than 6"),
    (PUT, {"accessKey": NEWCOMER, "secretKey": "short"}, "secretKey must have more than 6"),
    (PUT, {"accessKey": USER, "topicPerms": "orders=ALL"}, "'orders=ALL' is not of the form"),
    (PUT, {"accessKey": USER, "groupPerms": "readers"}, "'readers' is not of the form"),
    (PUT, {"accessKey": USER, "whiteRemoteAddress": "10.1"}, "'10.1' is no IP address"),
    (PUT, {"accessKey": ADMIN, "admin": "false"}, "is the last administrator"),
    (PUT, {"accessKey": ADMIN}, "is the last administrator"),
    (DELETE, {"accessKey": ADMIN}, "is the last administrator"),
    (DELETE, {"accessKey": "nobody-here"}, "there is no account nobody-here"),
    (WHITE, {"globalWhiteAddrs": "10.1.2.300", "aclFileFullPath": ""}, "is no IP address"),
    *[
        (WHITE, {"globalWhiteAddrs": "*", "aclFileFullPath": path}, "none of this broker's files")
        for path in ("/etc/passwd", "../conf/plain_acl.yml", "conf/tools.yml", "conf/acl/new.yml")
    ],
]  # fmt: skip


@pytest.mark.parametrize(("code", "ext", "why"), WRONG)
async def test_a_wrong_change_is_refused_with_its_code_and_changes_nothing(
    guarded: Guarded, wire: Wire, code: int, ext: dict[str, str], why: str
) -> None:
    answer = await call(wire, code, ext)
    assert answer.code == dict(ACL_CODES)[code]
    assert why in (answer.remark or "")
    assert str(guarded.home) not in (answer.remark or "")
    assert guarded.file.read_text() == ACCOUNTS
    assert await may_send(wire, USER)


async def test_without_administrators_the_last_white_addresses_stay(
    guarded: Guarded, wire: Wire
) -> None:
    white = {"globalWhiteAddrs": "127.0.0.1", "aclFileFullPath": ""}
    assert (await call(wire, WHITE, white)).code == ResponseCode.SUCCESS
    # Whether there is somebody who could make another one nobody knows.
    answer = await call(wire, DELETE, {"accessKey": ADMIN})
    assert answer.code == ResponseCode.DELETE_ACL_CONFIG_FAILED
    # Somebody has written a file without any.
    guarded.file.write_text(guarded.file.read_text().replace("admin: true", "admin: false"))

    async def is_gone() -> bool:
        return (await call(wire, DELETE, {"accessKey": ADMIN}, by=None)).code == 0

    await until(is_gone)
    answer = await call(wire, WHITE, {**white, "globalWhiteAddrs": ","}, by=None)
    assert answer.code == ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
    assert "nobody could make any" in (answer.remark or "")


async def test_no_text_that_cannot_be_written_is_taken(guarded: Guarded, wire: Wire) -> None:
    answer = await wire.call(
        PUT, signed({"accessKey": USER, "topicPerms": "a\x07\u2028=PUB"}, b"", ADMIN, SECRET)
    )
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED)
    assert await may_send(wire, ADMIN)


async def test_without_accounts_each_is_refused() -> None:
    with aerobee.testing.broker() as running:
        wire = await Wire.to(running.broker)
        for code, failed in ACL_CODES:
            answer = await wire.call(code, {"accessKey": USER, "globalWhiteAddrs": "*"})
            assert answer.code == failed
            assert "aclEnable is false" in (answer.remark or "")
        wire.caller.close()


# --- signatures


def without(ext: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in ext.items() if key != name}


@pytest.mark.parametrize("code", [Code.SEND_MESSAGE_V2, Code.PULL_MESSAGE])
async def test_a_signature_that_does_not_fit_is_refused(
    guarded: Guarded, wire: Wire, code: int
) -> None:
    """The compiled form refuses it as well: it serves both of these when they are right."""
    if code == Code.PULL_MESSAGE:
        plain = {name: str(value) for name, value in pull_fields("orders", "readers").items()}
        body = b""
    else:
        plain, body = send_fields("orders"), b"a body"
    good = signed(plain, body, USER, SECRET)
    assert (await wire.call(code, good, body)).code in (0, ResponseCode.PULL_NOT_FOUND)
    given = good["Signature"]
    wrong = [
        ({**good, "Signature": given[:-2] + "x="}, body),
        ({**good, "Signature": given[:-1]}, body),
        ({**good, "Signature": given + "="}, body),
        ({**good, "Signature": given.swapcase()}, body),
        ({**good, "Signature": ""}, body),
        (without(good, "Signature"), body),
        (signed(plain, body, USER, OTHER_SECRET), body),
        ({**good, "AccessKey": ADMIN}, body),
        ({**good, "more": "1"}, body),
        (without(good, "h" if code == Code.SEND_MESSAGE_V2 else "subVersion"), body),
        (good, body + b"."),
        (good, body[:-1] + b"?"),
    ]
    for ext, sent in wrong:
        answer = await wire.call(code, ext, sent)
        assert answer.code == ResponseCode.SYSTEM_ERROR, ext
        assert (answer.remark or "").startswith(REFUSED + "Check signature failed for accessKey=")
    for ext in (without(good, "AccessKey"), {**good, "AccessKey": ""}):
        answer = await wire.call(code, ext, body)
        assert (answer.remark or "").startswith(REFUSED + "No accessKey is configured")


async def test_fields_that_are_there_twice_count_once_for_both(
    guarded: Guarded, wire: Wire
) -> None:
    """The signed field is the served field: the last of two, for the signature and for the
    topic."""
    good = signed(send_fields("orders"), b"1", USER, SECRET)
    for name, first in (("b", "returns"), ("Signature", "forged"), ("AccessKey", ADMIN)):
        for last in (False, True):
            pairs = [(key, value) for key, value in good.items() if key != name]
            both = [(name, first), (name, good[name])]
            answer = await raw(wire, Code.SEND_MESSAGE_V2, pairs + (both[::-1] if last else both))
            if last:
                assert (answer.remark or "").startswith(REFUSED), name
            else:
                assert answer.code == ResponseCode.SUCCESS, (name, answer.remark)


async def raw(wire: Wire, code: int, pairs: list[tuple[str, str]]) -> Command:
    """Sends a request with fields that no map could hold."""
    template = make_request(code, {"": ""}, b"1")
    fields = ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in pairs)
    header = json.dumps(
        {"code": code, "flag": 0, "language": "JAVA", "version": 409, "opaque": template.opaque,
         "extFields": "HERE"}
    ).replace('"HERE"', "{" + fields + "}").encode()  # fmt: skip
    size = 4 + len(header) + 1
    frame = size.to_bytes(4) + len(header).to_bytes(4) + header + b"1"
    reader, writer = await asyncio.open_connection(*address_of(wire))
    writer.write(frame)
    total = int.from_bytes(await reader.readexactly(4))
    answer = await reader.readexactly(total)
    writer.close()
    length = int.from_bytes(answer[1:4])
    found = json.loads(answer[4 : 4 + length])
    return Command(
        code=found["code"],
        opaque=template.opaque,
        remark=found.get("remark"),
        ext=found.get("extFields") or {},
    )


def address_of(wire: Wire) -> tuple[str, int]:
    host, port = wire.caller.peer[:2]
    return host, port


async def test_dead_letters_are_read_by_their_group_alone(guarded: Guarded, wire: Wire) -> None:
    for group, is_allowed in (("readers", True), ("others", False)):
        topic = f"%DLQ%{group}"
        pulled = await ask(wire, Code.PULL_MESSAGE, pull_fields(topic, "readers"), by=USER)
        if is_allowed:
            assert pulled is None
        else:
            assert (pulled or "").startswith(f"No default permission for topic:{topic}: ")


async def test_a_retry_topic_is_read_and_sent_to_by_its_group_alone(
    guarded: Guarded, wire: Wire
) -> None:
    for group, is_allowed in (("readers", True), ("others", False)):
        topic = f"%RETRY%{group}"
        sent = await ask(wire, Code.SEND_MESSAGE_V2, send_fields(topic), body=b"1", by=USER)
        pulled = await ask(wire, Code.PULL_MESSAGE, pull_fields(topic, "readers"), by=USER)
        for why in (sent, pulled):
            if is_allowed:
                assert why is None
            else:
                assert (why or "").startswith("No default permission for group:others: ")
