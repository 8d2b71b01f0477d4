"""Changing requests are audit events, refused ones too, over real sockets.

Every audited code is sent as it is in the seeds of the fuzzer, so that a code without an event
fails here.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aerobee.access.administration import AUDITED_OF_BROKERS, AUDITED_OF_NAME_SERVERS
from aerobee.access.audit import audit_file
from aerobee.broker.lifecycle.daemon import Daemon
from aerobee.config.model import Settings
from aerobee.protocol.bodies.audit import AUDIT_WORDS, AuditEvent, parse_event
from aerobee.protocol.codes import RequestCode as Code
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.signature import signed
from aerobee.testing import SMALL
from tests.contract.administration.test_remote_config import configured
from tests.contract.conftest import Wire
from tests.fuzz.seeds import BROKER_SEEDS

ADMIN, USER, SECRET = "administrator", "ordinary-user", "a-secret-of-theirs"
ACCOUNTS = f"""\
accounts:
- accessKey: {ADMIN}
  secretKey: {SECRET}
  admin: true
- accessKey: {USER}
  secretKey: {SECRET}
  topicPerms:
  - orders=PUB|SUB
"""
TOPIC = {"topic": "T", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6, "defaultTopic": "TBW102"}
#: Fields and body by request code. Codes about accounts have no seed there.
SEEDS: dict[int, tuple[dict[str, str], bytes]] = {
    Code.UPDATE_AND_CREATE_ACL_CONFIG: ({"accessKey": "newcomer-1"}, b""),
    Code.DELETE_ACL_CONFIG: ({"accessKey": "newcomer-1"}, b""),
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: ({"globalWhiteAddrs": ""}, b""),
    **{
        seed.code: (seed.ext, seed.body) for seed in BROKER_SEEDS if seed.code in AUDITED_OF_BROKERS
    },
}


@asynccontextmanager
async def serving(path: Path, **settings: Any) -> AsyncIterator[tuple[Daemon, Wire]]:
    """A broker over a directory, on this loop, and a connection to it."""
    daemon = Daemon(Settings.for_tests(**{**SMALL, "store_path": str(path), **settings}))
    await daemon.start()
    try:
        wire = await Wire.to(daemon.addresses.broker)
        yield daemon, wire
        wire.caller.close()
    finally:
        await daemon.stop()


async def call(
    wire: Wire, code: int, ext: Mapping[str, Any], body: bytes = b"", by: str | None = None
) -> Command:
    texts = {name: str(value) for name, value in ext.items()}
    if by is not None:
        texts = signed(texts, body, by, SECRET)
    return await wire.call(code, texts, body)


async def events(wire: Wire, by: str | None = None) -> list[AuditEvent]:
    answer = await call(wire, Code.AUDIT_EVENTS, {"sinceTimestamp": 1}, by=by)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert answer.ext["more"] == "false"
    found = [parse_event(line) for line in answer.body.splitlines()]
    assert None not in found
    return [one for one in found if one is not None]


async def test_a_change_leaves_what_was_before_and_after(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, wire):
        group = b'{"groupName":"G","retryMaxTimes":3}'
        more = {**TOPIC, "writeQueueNums": 4}
        clone = {"srcGroup": "G", "destGroup": "H", "topic": "T"}
        offset = {"consumerGroup": "G", "topic": "T", "queueId": 1, "commitOffset": 0}
        for code, ext, body in (
            (Code.UPDATE_AND_CREATE_TOPIC, TOPIC, b""),
            (Code.UPDATE_AND_CREATE_TOPIC, more, b""),
            (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group),
            (Code.UPDATE_CONSUMER_OFFSET, offset, b""),
            (Code.CLONE_GROUP_OFFSET, clone, b""),
            (Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G"}, b""),
            (Code.CLEAN_UNUSED_TOPIC, {}, b""),
            (Code.CLEAN_EXPIRED_CONSUMEQUEUE, {}, b""),
            (Code.DELETE_EXPIRED_COMMITLOG, {}, b""),
            (Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, b""),
        ):
            answer = await call(wire, code, ext, body)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        found = await events(wire)
    small, large = "read=2 write=2 perm=6", "read=2 write=4 perm=6"
    kept = "consume=yes retries=3 retry_queues=1 broadcast=yes"
    assert [(one.request, one.object, one.before, one.after) for one in found] == [
        ("topic_update", "T", "absent", small),
        ("topic_update", "T", small, large),
        ("group_update", "G", "absent", kept),
        ("offset_clone", "H from G in T", "absent", "1:0"),
        ("group_delete", "G", kept, "absent"),
        ("clean_topics", "queues of unknown topics", "", ""),
        ("clean_queues", "queues without messages", "", ""),
        ("clean_log", "expired segments", "", ""),
        ("topic_delete", "T", large, "absent"),
    ]
    assert {one.outcome for one in found} == {"done"}
    assert {(one.address, one.client) for one in found} == {("127.0.0.1", "PYTHON V4_9_8")}


async def test_every_audited_request_leaves_an_event(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, wire):
        assert SEEDS.keys() == AUDITED_OF_BROKERS
        for code in sorted(SEEDS):
            await call(wire, code, *SEEDS[code])
        words = [one.request for one in await events(wire)]
        assert sorted(words) == sorted(AUDIT_WORDS[code] for code in AUDITED_OF_BROKERS)


async def test_every_refusal_for_want_of_a_right_leaves_an_event(tmp_path: Path) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    settings = {"acl_enabled": True, "acl_file": str(accounts)}
    async with serving(tmp_path / "store", **settings) as (daemon, wire):
        for code in sorted(SEEDS):
            for _ in range(3):
                answer = await call(wire, code, *SEEDS[code], USER)
                assert answer.code == ResponseCode.SYSTEM_ERROR
        answer = await call(wire, Code.AUDIT_EVENTS, {}, by=USER)
        assert "Need admin permission" in (answer.remark or "")
        found = await events(wire, ADMIN)
        assert {one.request for one in found} == {AUDIT_WORDS[code] for code in SEEDS}
        # One event a minute for each; the number of the others follows.
        assert len(found) == len(SEEDS)
        assert {(one.account, one.outcome) for one in found} == {(USER, "refused")}
        assert all("Need admin permission" in one.why for one in found)
        made = {"accessKey": "newcomer-1", "secretKey": "newcomer-secret", "admin": "false"}
        answer = await call(wire, Code.UPDATE_AND_CREATE_ACL_CONFIG, made, by=ADMIN)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        (event,) = (one for one in await events(wire, ADMIN) if one.outcome == "done")
        assert (event.object, event.account, event.before) == ("newcomer-1", ADMIN, "absent")
        assert event.after == "user topics=DENY groups=DENY lines=0 address=-"
        recorder = daemon.core.recorder()
        assert recorder is not None
        assert recorder.counts["refused"] == len(SEEDS)
    written = b"".join(path.read_bytes() for path in (tmp_path / "store" / "audit").iterdir())
    assert SECRET.encode() not in written
    assert b"newcomer-secret" not in written
    assert written.count(b'"times":2') == len(SEEDS)


async def test_wrong_arguments_and_slaves_are_refused_with_an_event(tmp_path: Path) -> None:
    async with serving(tmp_path, ha_enabled=True) as (daemon, wire):
        await call(wire, Code.UPDATE_AND_CREATE_TOPIC, {**TOPIC, "perm": 99})
        await call(wire, Code.DELETE_TOPIC_IN_BROKER, {})
        daemon.core.role_change.become_slave()
        answer = await call(wire, Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G"})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        found = {one.request: one for one in await events(wire)}
        assert found["role_change"].before == "master"
        assert found["role_change"].after == "slave"
        assert found["topic_update"].why == "perm must be 0 to 15, got 99"
        assert found["topic_delete"].why == "the field topic is missing"
        assert "slave" in found["group_delete"].why
        assert [one.outcome for one in found.values()].count("refused") == 3


async def test_without_room_for_the_event_nothing_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: Any, position: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with serving(tmp_path) as (daemon, wire):
        assert daemon.core.audit_problem() is None
        with monkeypatch.context() as patch:
            patch.setattr(audit_file.os, "pwrite", full)
            for code, ext in (
                (Code.UPDATE_AND_CREATE_TOPIC, TOPIC),
                (Code.UPDATE_AND_CREATE_TOPIC, TOPIC),
            ):
                answer = await call(wire, code, ext)
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
                assert "nothing was changed: changes are audited" in (answer.remark or "")
            problem = daemon.core.audit_problem()
            assert problem is not None
            assert "No space left" in problem
            # Messages flow on, and the events that there are can be read.
            assert (await wire.send("Other")).code == ResponseCode.SUCCESS
            assert await events(wire) == []
        assert daemon.core.topics.get("T") is None
        answer = await call(wire, Code.UPDATE_AND_CREATE_TOPIC, TOPIC)
        assert answer.code == ResponseCode.SUCCESS
        assert daemon.core.audit_problem() is None
        outcomes = [(one.outcome, one.times) for one in await events(wire)]
        assert outcomes == [("refused", 1), ("done", 1)]


async def test_settings_that_change_are_events(tmp_path: Path) -> None:
    async with configured(tmp_path) as broker:
        assert (await broker.update("fileReservedTime=48\n")).code == ResponseCode.SUCCESS
        broker.remote_file.unlink()
        await broker.daemon.read_settings_again()
        first, second = await events(broker.wire)
    assert (first.request, first.object) == ("settings_update", "retention.hours")
    assert (first.before, first.after) == ("retention.hours=24", "retention.hours=48")
    assert (second.request, second.address) == ("settings_reload", "this machine")
    assert second.after == "retention.hours=24 (was 48)"


async def test_a_journal_that_is_not_there_refuses_changes_and_off_audits_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerobee.access.audit.journal._SOCKET", str(tmp_path / "none"))
    async with serving(tmp_path / "a", audit_target="journal") as (_, wire):
        answer = await call(wire, Code.UPDATE_AND_CREATE_TOPIC, TOPIC)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        answer = await call(wire, Code.AUDIT_EVENTS, {})
        assert "journalctl -t aerobee-audit" in (answer.remark or "")
    async with serving(tmp_path / "b", audit_target="off") as (daemon, wire):
        answer = await call(wire, Code.UPDATE_AND_CREATE_TOPIC, TOPIC)
        assert answer.code == ResponseCode.SUCCESS
        answer = await call(wire, Code.AUDIT_EVENTS, {})
        assert answer.remark == "changes are not audited here: audit.target is off"
        assert daemon.core.audit is None
    assert not (tmp_path / "b" / "audit").exists()


async def test_a_name_server_has_events_of_its_own(tmp_path: Path) -> None:
    kv = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}
    async with serving(tmp_path, nameserver_enabled=True) as (daemon, _):
        wire = await Wire.to(daemon.addresses.name_server)
        try:
            await asyncio.gather(
                *(call(wire, Code.PUT_KV_CONFIG, {**kv, "value": f"b:{n}"}) for n in range(20))
            )
            await call(wire, Code.DELETE_KV_CONFIG, kv)
            for code in sorted(AUDITED_OF_NAME_SERVERS):
                ext = {"namespace": "N", "key": "k", "value": "v", "brokerName": "b", "topic": "T"}
                await call(wire, code, ext)
            found = await events(wire)
        finally:
            wire.caller.close()
    first = found[:21]
    assert [one.after for one in first] == [*(f"b:{n}" for n in range(20)), "absent"]
    assert [one.before for one in first] == ["absent", *(f"b:{n}" for n in range(20))]
    assert {one.object for one in first} == {"ORDER_TOPIC_CONFIG/T"}
    words = {AUDIT_WORDS[code] for code in AUDITED_OF_NAME_SERVERS}
    assert {one.request for one in found[21:]} == words
    refused = {one.request for one in found if one.outcome == "refused"}
    assert refused == {"name_server_topic_register", "name_server_settings_update"}
