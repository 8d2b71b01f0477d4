"""Claims about transactions, on real sockets: what producers send and are asked, and what consumers
see, over restarts too. Kills are in tests/crash/daemon_kills/test_kill_transactions.py."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.request
from pathlib import Path
from typing import Any

import aerobee.testing
from aerobee.broker.tables.offsets import parse_table
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command, make_request
from aerobee.protocol.frames.fastjson import loads
from aerobee.protocol.message.ids import parse_offset_msg_id
from aerobee.protocol.message.record import Message, decode_records
from aerobee.protocol.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from aerobee.remoting.calling.caller import Caller
from aerobee.testing import RunningBroker
from tests.contract.conftest import TIMEOUT_S, Wire
from tests.ports import free_port

GROUP = "PG"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
HALF = f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02WAIT\x01true\x02UNIQ_KEY\x01"
QUICK = {"transaction_timeout_ms": 1, "transaction_check_interval_ms": 100}


class Producer(Wire):
    """A connection of the group that collects the checks it gets."""

    checks: asyncio.Queue[Command]

    @classmethod
    async def join(cls, address: str, client_id: str = "c1") -> Producer:
        host, _, port = address.rpartition(":")
        checks: asyncio.Queue[Command] = asyncio.Queue()
        caller = await Caller.connect(
            host, int(port), TIMEOUT_S, lambda _, asked: checks.put_nowait(asked)
        )
        producer = cls(caller)
        producer.checks = checks
        body = {"clientID": client_id, "producerDataSet": [{"groupName": GROUP}]}
        answer = await producer.call(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())
        assert answer.code == ResponseCode.SUCCESS
        return producer

    async def check(self) -> Command:
        return await asyncio.wait_for(self.checks.get(), TIMEOUT_S)


async def prepare(wire: Wire, topic: str, body: bytes = b"m", unique: str = "U") -> dict[str, Any]:
    """Send a half message; the fields of an END_TRANSACTION for it."""
    sent = await wire.send(topic, body, properties=HALF + unique, sys_flag=4)
    assert (sent.code, sent.ext["queueId"]) == (ResponseCode.SUCCESS, "0")
    return {
        "producerGroup": GROUP,
        "tranStateTableOffset": sent.ext["queueOffset"],
        "commitLogOffset": parse_offset_msg_id(sent.ext["msgId"])[2],
        "msgId": unique,
    }


def of_check(check: Command) -> dict[str, Any]:
    names = ("tranStateTableOffset", "commitLogOffset", "msgId")
    place = {name: check.ext[name] for name in names}
    return {"producerGroup": GROUP, "fromTransactionCheck": "true", **place}


async def end(wire: Wire, place: dict[str, Any], decision: int) -> Command:
    return await wire.call(RequestCode.END_TRANSACTION, {**place, "commitOrRollback": decision})


async def messages(wire: Wire, topic: str) -> list[Message]:
    """All of queue 0 that can be seen now."""
    found: list[Message] = []
    while (pulled := await wire.pull(topic, len(found))).code == ResponseCode.SUCCESS:
        found += decode_records(pulled.body)
    return found


async def bodies(wire: Wire, topic: str) -> list[bytes]:
    return [one.body for one in await messages(wire, topic)]


async def test_a_consumer_sees_a_message_when_it_is_committed_and_not_before(wire: Wire) -> None:
    await wire.send("Paid", b"plain")
    committed = await prepare(wire, "Paid", b"committed", "U1")
    rolled_back = await prepare(wire, "Paid", b"rolled back", "U2")
    assert await bodies(wire, "Paid") == [b"plain"]
    assert (await end(wire, rolled_back, ROLLBACK)).code == ResponseCode.SUCCESS
    held = asyncio.create_task(wire.await_message("Paid", 1))
    assert (await end(wire, committed, COMMIT)).code == ResponseCode.SUCCESS
    [message] = decode_records((await held).body)
    assert (message.body, message.queue_offset) == (b"committed", 1)
    assert message.properties["TRAN_MSG"] == "true"
    assert message.prepared_transaction_offset == committed["commitLogOffset"]
    assert await bodies(wire, "Paid") == [b"plain", b"committed"]


async def test_a_repeated_decision_is_answered_0_and_delivers_nothing(wire: Wire) -> None:
    place = await prepare(wire, "Repeated")
    for _ in range(3):
        assert (await end(wire, place, COMMIT)).code == ResponseCode.SUCCESS
    changed = await end(wire, place, ROLLBACK)
    assert changed.code == ResponseCode.SYSTEM_ERROR
    assert changed.remark is not None
    assert "committed already" in changed.remark
    assert await bodies(wire, "Repeated") == [b"m"]


async def test_who_does_not_know_yet_gets_no_answer_and_the_connection_goes_on(wire: Wire) -> None:
    place = await prepare(wire, "Unknown")
    ext = {**place, "commitOrRollback": UNKNOWN}
    texts = {name: str(value) for name, value in ext.items()}
    asked = asyncio.create_task(
        wire.caller.call(make_request(RequestCode.END_TRANSACTION, texts), TIMEOUT_S)
    )
    # Answers keep the order of requests: this one's would have come before.
    assert (await end(wire, place, COMMIT)).code == ResponseCode.SUCCESS
    assert not asked.done()
    asked.cancel()
    assert await bodies(wire, "Unknown") == [b"m"]


async def test_decisions_that_name_no_message_of_theirs_change_nothing(wire: Wire) -> None:
    place = await prepare(wire, "Named")
    at = int(place["commitLogOffset"])
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"producerGroup": "Other"}, "The producer group wrong"),
        ({"tranStateTableOffset": 99}, "The transaction state table offset wrong"),
        ({"commitLogOffset": at + 1}, "Find prepared transaction message failed"),
        ({"commitLogOffset": 2**62}, "Find prepared transaction message failed"),
        ({"commitLogOffset": -1}, "Find prepared transaction message failed"),
        ({"commitLogOffset": "here"}, "commitLogOffset must be a number"),
    ]
    for fields, words in wrong:
        answer = await end(wire, {**place, **fields}, COMMIT)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert words in (answer.remark or ""), answer.remark
    answer = await wire.call(RequestCode.END_TRANSACTION, {**place, "commitOrRollback": 5})
    assert (answer.code, "must be 8" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    assert await bodies(wire, "Named") == []
    assert (await end(wire, place, COMMIT)).code == ResponseCode.SUCCESS


async def test_transactions_can_be_switched_off() -> None:
    with aerobee.testing.broker(reject_transactions=True) as running:
        wire = await Wire.to(running.broker)
        refused = await wire.send("Off", properties=HALF + "U")
        assert refused.code == ResponseCode.NO_PERMISSION
        assert "sending transaction message is forbidden" in (refused.remark or "")
        wire.caller.close()


async def test_a_producer_of_the_group_is_asked_until_it_decides() -> None:
    with aerobee.testing.broker(**QUICK) as running:
        sender = await Wire.to(running.broker)
        await prepare(sender, "Asked", b"m")
        sender.caller.close()
        producer = await Producer.join(running.broker, "another of the group")
        first = await producer.check()
        [shown] = decode_records(first.body)
        assert (first.code, shown.topic, shown.body) == (39, "Asked", b"m")
        second = await producer.check()
        assert int(second.ext["tranStateTableOffset"]) > int(first.ext["tranStateTableOffset"])
        # Late: the copy that the first check was about has been replaced.
        assert (await end(producer, of_check(first), COMMIT)).code == ResponseCode.SUCCESS
        assert (await end(producer, of_check(second), COMMIT)).code == ResponseCode.SUCCESS
        assert await bodies(producer, "Asked") == [b"m"]
        producer.caller.close()


async def test_one_that_nobody_decides_is_put_aside_and_can_be_resumed() -> None:
    with aerobee.testing.broker(**QUICK, transaction_check_max=2) as running:
        wire = await Wire.to(running.broker)
        await prepare(wire, "Aside", b"m")
        pulled = await wire.await_message(CHECK_MAX_TIME_TOPIC)
        while pulled.code == ResponseCode.TOPIC_NOT_EXIST:  # until it is made
            pulled = await wire.await_message(CHECK_MAX_TIME_TOPIC)
        [aside] = decode_records(pulled.body)
        assert aside.properties["TRANSACTION_CHECK_TIMES"] == "2"
        producer = await Producer.join(running.broker)
        code = RequestCode.RESUME_CHECK_HALF_MESSAGE
        assert (await wire.call(code, {"msgId": aside.msg_id})).code == ResponseCode.SUCCESS
        check = await producer.check()
        assert (await end(producer, of_check(check), COMMIT)).code == ResponseCode.SUCCESS
        assert await bodies(wire, "Aside") == [b"m"]
        assert (await wire.call(code, {"msgId": aside.msg_id})).code == ResponseCode.SYSTEM_ERROR
        producer.caller.close()
        wire.caller.close()


async def test_ten_thousand_pending_checks_leave_room_for_others(tmp_path: Path) -> None:
    count = 10_000
    with aerobee.testing.broker(store_path=str(tmp_path), transaction_timeout_ms=1) as running:
        wire = await Wire.to(running.broker)
        for start in range(0, count, 500):
            await asyncio.gather(
                *[prepare(wire, "Many", b"%d" % n, f"U{n}") for n in range(start, start + 500)]
            )
        wire.caller.close()
    with aerobee.testing.broker(store_path=str(tmp_path), **QUICK) as running:
        producer = await Producer.join(running.broker)
        other = await Wire.to(running.broker)
        asked: set[str] = set()
        longest = 0.0
        while len(asked) < count:
            began = time.monotonic()
            assert (await other.send("Other")).code == ResponseCode.SUCCESS
            longest = max(longest, time.monotonic() - began)
            while not producer.checks.empty():
                check = producer.checks.get_nowait()
                asked.add(check.ext["msgId"])
                ext = {**of_check(check), "commitOrRollback": str(ROLLBACK)}
                producer.caller.push(make_request(RequestCode.END_TRANSACTION, ext, oneway=True))
        print(f"the slowest send took {longest * 1000:.0f} ms")
        assert await bodies(other, "Many") == []
        producer.caller.close()
        other.caller.close()


async def test_what_is_undecided_over_a_restart_is_asked_about_and_decided_once(
    tmp_path: Path,
) -> None:
    with aerobee.testing.broker(store_path=str(tmp_path)) as running:
        wire = await Wire.to(running.broker)
        places = [await prepare(wire, "Kept", b"%d" % n, f"U{n}") for n in range(4)]
        await end(wire, places[0], COMMIT)
        await end(wire, places[1], ROLLBACK)
        wire.caller.close()
    with aerobee.testing.broker(store_path=str(tmp_path), **QUICK) as running:
        producer = await Producer.join(running.broker)
        # The transactions of the life before are known, decided or not.
        assert (await end(producer, places[0], COMMIT)).code == ResponseCode.SUCCESS
        assert (await end(producer, places[1], COMMIT)).code == ResponseCode.SYSTEM_ERROR
        assert (await end(producer, places[2], COMMIT)).code == ResponseCode.SUCCESS
        check = await producer.check()
        while check.ext["msgId"] != "U3":
            check = await producer.check()
        assert (await end(producer, of_check(check), COMMIT)).code == ResponseCode.SUCCESS
        assert sorted(await bodies(producer, "Kept")) == [b"0", b"2", b"3"]
        producer.caller.close()
    table = parse_table(loads((tmp_path / "config" / "consumerOffset.json").read_bytes()))
    progress = [table[topic, "CID_RMQ_SYS_TRANS"][0] for topic in (HALF_TOPIC, OP_HALF_TOPIC)]
    assert progress[0] >= 4
    assert progress[1] >= 3


async def test_metrics_show_pending_transactions_and_what_became_of_them() -> None:
    with aerobee.testing.broker(http_enabled=True, http_port=free_port()) as running:
        wire = await Wire.to(running.broker)
        first, _, third = [await prepare(wire, "Shown", unique=f"U{n}") for n in range(3)]
        assert sample(running, "aerobee_transactions_pending") == 3
        await end(wire, first, COMMIT)
        await end(wire, first, COMMIT)
        await end(wire, third, ROLLBACK)
        await end(wire, {**third, "producerGroup": "Other"}, ROLLBACK)
        assert sample(running, "aerobee_transactions_pending") == 1
        name = "aerobee_transaction_decisions_total"
        for outcome in ("committed", "repeated", "rolled_back", "refused"):
            assert sample(running, name, f'outcome="{outcome}"') == 1
        kind = ('topic="Shown"', 'message_type="transaction"')
        assert sample(running, "rocketmq_messages_in_total", *kind) == 1
        wire.caller.close()


def sample(running: RunningBroker, name: str, *labels: str) -> float:
    with urllib.request.urlopen(f"http://{running.http}/metrics", timeout=TIMEOUT_S) as page:
        text = page.read().decode()
    for line in re.findall(rf"^{name}(?:{{.*}})? .*$", text, re.MULTILINE):
        if all(label in line for label in labels):
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"no {name} with {labels}")
