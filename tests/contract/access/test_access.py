"""R14: every request code of broker and name server, asked by strangers, users and administrators.

The rights that each code asks for are written down here a second time, by hand, so that a row of
the table of rights that is too open is seen, and a code without one fails.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import aerobee.testing
from aerobee.access.needs import BROKER_NEEDS
from aerobee.protocol.bodies.clients import (
    CheckClientConfig,
    ConsumerData,
    HeartbeatData,
    LockBatch,
)
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.codes import RequestCode as Code
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.filters.subscription import Subscription
from aerobee.protocol.frames.command import Command, make_request, make_response
from aerobee.protocol.frames.signature import signed
from aerobee.protocol.headers.stages import Run, chunk_crc, encode_chunk
from aerobee.remoting.calling.caller import Caller
from aerobee.testing import RunningBroker
from tests.contract.conftest import FORMS, Wire

ADMIN, OWNER, STRANGER = "administrator", "orders-owner", "only-others"
SECRET = "twelve-letters"
ACCOUNTS = f"""\
accounts:
- accessKey: {ADMIN}
  secretKey: {SECRET}
  admin: true
- accessKey: {OWNER}
  secretKey: {SECRET}
  topicPerms:
  - orders=PUB|SUB
  groupPerms:
  - readers=SUB
- accessKey: {STRANGER}
  secretKey: {SECRET}
  topicPerms:
  - others=PUB|SUB
  groupPerms:
  - other-readers=SUB
"""
TOPIC, GROUP, CLIENT = "orders", "readers", "client-1"
STAGE = "0123456789abcdef" * 2

#: Anybody with an account.
ANYBODY = {
    *(Code.GET_BROKER_RUNTIME_INFO, Code.VIEW_BROKER_STATS_DATA, Code.GET_BROKER_HA_STATUS),
    *(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, Code.STAGE_CAPABILITY, Code.STAGE_INTENT),
    *(Code.STAGE_STATUS, Code.STAGE_ABORT),
}
ADMINISTRATORS = {
    *(Code.UPDATE_AND_CREATE_TOPIC, Code.DELETE_TOPIC_IN_BROKER, Code.UPDATE_BROKER_CONFIG),
    *(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Code.DELETE_SUBSCRIPTIONGROUP),
    *(Code.GET_BROKER_CONFIG, Code.UPDATE_AND_CREATE_ACL_CONFIG, Code.DELETE_ACL_CONFIG),
    *(Code.GET_BROKER_CLUSTER_ACL_INFO, Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG),
    *(Code.GET_ALL_TOPIC_CONFIG, Code.GET_ALL_CONSUMER_OFFSET, Code.GET_ALL_DELAY_OFFSET),
    *(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Code.INVOKE_BROKER_TO_RESET_OFFSET),
    *(Code.QUERY_CORRECTION_OFFSET, Code.CLONE_GROUP_OFFSET, Code.CLEAN_EXPIRED_CONSUMEQUEUE),
    *(Code.CLEAN_UNUSED_TOPIC, Code.DELETE_EXPIRED_COMMITLOG, Code.RESUME_CHECK_HALF_MESSAGE),
    *(Code.CONSUME_MESSAGE_DIRECTLY, Code.GET_PRODUCER_CONNECTION_LIST),
    *(Code.GET_ALL_PRODUCER_INFO, Code.GET_BROKER_CONSUME_STATS, Code.WAITING_MESSAGES),
    Code.LOG_RANGES,
    Code.REPLICA_TABLES,
    Code.DRAIN,
    Code.DRAIN_STATUS,
    Code.MESSAGE_STATE,
    Code.AUDIT_EVENTS,
    *(Code.BROKER_STATUS, Code.CLIENTS),
}
_LONG = {
    "producerGroup": "PG", "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
    "queueId": 0, "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "properties": "", "batch": "false",
}  # fmt: skip
_SHORT = {
    "a": "PG", "b": TOPIC, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": "",
    "m": "false",
}  # fmt: skip
_QUEUE = {"topic": TOPIC, "queueId": 0}
_SUBSCRIPTION = Subscription(TOPIC, version=1)
_CHUNK = encode_chunk([Run(TOPIC, 0, 1, b"no row")])


def asked(code: int, place: int) -> tuple[dict[str, Any], bytes]:
    """Fields and body of a request about `orders` and `readers`; `place` has a message in the log.

    Whether it would be carried out is another matter: it only has to get as far as the door.
    """
    group = {"consumerGroup": GROUP, "clientId": CLIENT}
    found: dict[int, tuple[dict[str, Any], bytes]] = {
        Code.SEND_MESSAGE: (_LONG, b"1"),
        Code.SEND_MESSAGE_V2: (_SHORT, b"1"),
        Code.SEND_BATCH_MESSAGE: (_SHORT, b"1"),
        Code.SEND_REPLY_MESSAGE: (_LONG, b"1"),
        Code.SEND_REPLY_MESSAGE_V2: (_SHORT, b"1"),
        Code.RECALL_MESSAGE: ({"topic": TOPIC, "recallHandle": "none"}, b""),
        Code.END_TRANSACTION: (
            {
                "producerGroup": "PG", "tranStateTableOffset": 0, "commitLogOffset": place,
                "commitOrRollback": 8,
            },
            b"",
        ),
        Code.CONSUMER_SEND_MSG_BACK: ({"offset": place, "group": GROUP, "delayLevel": 1}, b""),
        Code.PULL_MESSAGE: (_pull(), b""),
        Code.LITE_PULL_MESSAGE: (_pull(), b""),
        Code.QUERY_MESSAGE: (
            {"topic": TOPIC, "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1},
            b"",
        ),
        Code.VIEW_MESSAGE_BY_ID: ({"offset": place}, b""),
        Code.HEART_BEAT: ({}, _heartbeat()),
        Code.CHECK_CLIENT_CONFIG: ({}, CheckClientConfig(CLIENT, GROUP, _SUBSCRIPTION).encode()),
        Code.UNREGISTER_CLIENT: ({"clientID": CLIENT, **group}, b""),
        Code.LOCK_BATCH_MQ: ({}, _lock()),
        Code.UNLOCK_BATCH_MQ: ({}, _lock()),
        Code.UPDATE_CONSUMER_OFFSET: ({**group, **_QUEUE, "commitOffset": 0}, b""),
        Code.QUERY_CONSUMER_OFFSET: ({**group, **_QUEUE}, b""),
        Code.STAGE_CHUNK: (
            {
                "query": "q", "batch": 0, "partition": 0, "stage": STAGE, "chunk": 0, "rows": 1,
                "crc": chunk_crc(_CHUNK),
            },
            _CHUNK,
        ),
    }  # fmt: skip
    everything = {"topic": TOPIC, "group": GROUP, "queueId": 0, "timestamp": 0, **group}
    return found.get(code, (everything, b""))


def _pull() -> dict[str, Any]:
    return {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "queueOffset": 0, "maxMsgNums": 1,
        "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*",
        "subVersion": 0,
    }  # fmt: skip


def _heartbeat() -> bytes:
    consumer = ConsumerData(GROUP, subscriptions=(_SUBSCRIPTION,))
    return HeartbeatData(CLIENT, (), (consumer,)).encode()


def _lock() -> bytes:
    return LockBatch(CLIENT, GROUP, (MessageQueue(TOPIC, "test-broker", 0),)).encode()


@dataclass(frozen=True, slots=True)
class Guarded:
    """A broker with accounts, and their file."""

    running: RunningBroker
    file: Path


@pytest.fixture(scope="module", params=FORMS)
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    file = tmp_path_factory.mktemp("accounts") / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "off":
            patch.setenv("AEROBEE_NATIVE", "off")
        with aerobee.testing.broker(
            acl_enabled=True, acl_file=str(file), ha_enabled=True
        ) as running:
            yield Guarded(running, file)


@pytest.fixture
async def door(guarded: Guarded) -> AsyncIterator[Door]:
    wire = await Wire.to(guarded.running.broker)
    door = Door(wire)
    sent = await door.ask(Code.SEND_MESSAGE_V2, *asked(Code.SEND_MESSAGE_V2, 0), by=OWNER)
    assert sent.code == ResponseCode.SUCCESS, sent.remark
    # The last 16 digits of an offset id are the place in the log (protocol/WIRE.md 6.3).
    door.place = int(sent.ext["msgId"][-16:], 16)
    yield door
    wire.caller.close()


class Door:
    """Asks with and without accounts."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.place = 0

    async def ask(
        self, code: int, ext: dict[str, Any], body: bytes, *, by: str | None, secret: str = SECRET
    ) -> Command:
        texts = {name: str(value) for name, value in ext.items()}
        if by is not None:
            texts = signed(texts, body, by, secret)
        return await self.wire.call(code, texts, body)

    async def is_refused(self, code: int, by: str | None, secret: str = SECRET) -> str | None:
        """The text of the refusal, None when the request was let in."""
        answer = await self.ask(code, *asked(code, self.place), by=by, secret=secret)
        prefix = "org.apache.rocketmq.acl.common.AclException: "
        remark = answer.remark or ""
        if not remark.startswith(prefix):
            return None
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert SECRET not in remark
        return remark.removeprefix(prefix)


#: STAGE_INTENT and STAGE_STATUS of a batch that nobody has staged are answered at once.
SERVED = sorted(BROKER_NEEDS)


async def test_every_code_that_is_served_has_a_row(door: Door) -> None:
    """Without a key each code that is served is refused, the others are not known."""
    served = set()
    for code in Code:
        answer = await door.ask(code, *asked(code, door.place), by=None)
        if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            served.add(code)
    assert served == set(BROKER_NEEDS)
    assert served >= ANYBODY | ADMINISTRATORS


# Deleting and cleaning is not asked for here by the administrator, who may.
_DESTROY = {
    *(Code.DELETE_TOPIC_IN_BROKER, Code.DELETE_SUBSCRIPTIONGROUP, Code.CLEAN_UNUSED_TOPIC),
    *(Code.DELETE_EXPIRED_COMMITLOG, Code.CLEAN_EXPIRED_CONSUMEQUEUE),
}


@pytest.mark.parametrize("code", SERVED, ids=lambda code: Code(code).name.lower())
async def test_nobody_gets_through_who_may_not(door: Door, code: int) -> None:
    assert (await door.is_refused(code, None) or "").startswith("No accessKey is configured")
    assert (await door.is_refused(code, "nobody-here") or "").startswith("No acl config for nobody")
    for account in (ADMIN, OWNER, STRANGER):
        why = await door.is_refused(code, account, "another-secret")
        assert (why or "").startswith(f"Check signature failed for accessKey={account}")
    if code in ADMINISTRATORS:
        for account in (OWNER, STRANGER):
            why = await door.is_refused(code, account)
            assert (why or "").startswith(f"Need admin permission for request code={code}")
    elif code in ANYBODY:
        assert await door.is_refused(code, STRANGER) is None
        assert await door.is_refused(code, OWNER) is None
    else:
        why = await door.is_refused(code, STRANGER) or ""
        assert why.startswith(("No default permission for topic:", "No default permission for gr"))
        assert await door.is_refused(code, OWNER) is None
    if code not in _DESTROY:
        assert await door.is_refused(code, ADMIN) is None


class Producer:
    """A connection whose heartbeats say that it is a producer; it answers what it is pushed."""

    def __init__(self) -> None:
        self.caller: Caller
        self.pushed: list[Command] = []

    @classmethod
    async def join(cls, broker: str, account: str, client_id: str) -> Producer:
        producer = cls()
        host, _, port = broker.rpartition(":")
        producer.caller = await Caller.connect(host, int(port), 60.0, producer._on_request)
        body = HeartbeatData(client_id, ("askers",), ()).encode()
        beat = make_request(Code.HEART_BEAT, signed({}, body, account, SECRET), body)
        answer = await producer.caller.call(beat, 60.0)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return producer

    def _on_request(self, caller: Caller, request: Command) -> None:
        self.pushed.append(request)
        caller.reply(make_response(request, ResponseCode.SUCCESS, None).encode())


async def test_a_reply_is_not_for_a_stranger_who_takes_the_askers_name(
    door: Door, guarded: Guarded
) -> None:
    asker, stranger = [
        await Producer.join(guarded.running.broker, account, "asker")
        for account in (OWNER, STRANGER)
    ]
    ext = {**_LONG, "properties": "REPLY_TO_CLIENT\x01asker\x02"}
    answer = await door.ask(Code.SEND_REPLY_MESSAGE, ext, b"for the asker", by=OWNER)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert [one.body for one in asker.pushed] == [b"for the asker"]
    assert stranger.pushed == []
    for producer in (asker, stranger):
        producer.caller.close()
