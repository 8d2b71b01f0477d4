"""A whole broker with a transient pool: when messages are seen, and when sends are refused."""

from __future__ import annotations

import asyncio
from typing import Any

import aerobee.testing
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.message.record import decode_records
from tests.contract.conftest import Wire

NEVER_MS = 3_600_000


def pool(**changes: Any) -> dict[str, Any]:
    return {
        "transient_pool_enabled": True,
        "transient_pool_buffers": 3,
        "commit_log_segment_bytes": 65_536,
        "max_message_bytes": 30_000,
        **changes,
    }


async def test_commit_wakes_a_held_pull() -> None:
    # Nothing but a commit can bring the message, and nothing but the send can bring the commit.
    settings = pool(
        flush_interval_ms=NEVER_MS, commit_interval_ms=NEVER_MS, commit_thorough_interval_ms=1
    )
    with aerobee.testing.broker(**settings) as running:
        wire = await Wire.to(running.broker)
        puller = await Wire.to(running.broker)
        await wire.send("T", b"first", queue_id=1)
        held = asyncio.create_task(
            puller.pull("T", 0, sysFlag=6, suspendTimeoutMillis=NEVER_MS // 60)
        )
        await asyncio.sleep(0)
        for _ in range(3):
            await wire.send("T", b"second")
        pulled = await asyncio.wait_for(held, 10)
        assert pulled.code == ResponseCode.SUCCESS
        assert decode_records(pulled.body)[0].body == b"second"
        wire.caller.close()
        puller.caller.close()


async def test_send_is_answered_before_it_is_committed_and_seen_afterwards() -> None:
    settings = pool(
        commit_interval_ms=NEVER_MS,
        commit_thorough_interval_ms=NEVER_MS,
        commit_least_pages=1000,
        flush_interval_ms=10,
    )
    with aerobee.testing.broker(**settings) as running:
        wire = await Wire.to(running.broker)
        assert (await wire.send("T")).code == ResponseCode.SUCCESS
        assert (await wire.pull("T")).code == ResponseCode.PULL_NOT_FOUND
        table = await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)
        assert b'"remainHowManyDataToCommit":"0 B"' not in table.body
        async with asyncio.timeout(10):
            # A thread makes the next segment, which takes the second buffer.
            while b'"remainTransientStoreBufferNumbs":"1"' not in table.body:
                table = await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)
        wire.caller.close()


async def test_sends_are_answered_busy_while_no_buffer_is_free() -> None:
    settings = pool(
        transient_pool_fail_fast=True,
        commit_interval_ms=NEVER_MS,
        commit_thorough_interval_ms=NEVER_MS,
        commit_least_pages=1000,
    )
    with aerobee.testing.broker(**settings) as running:
        wire = await Wire.to(running.broker)
        # Three fit a segment, and there are three buffers; a thread makes the third ready.
        answers = [await wire.send("T", b"x" * 20_000) for _ in range(10)]
        while answers[-1].code == ResponseCode.SUCCESS and len(answers) < 20:
            answers.append(await wire.send("T", b"x" * 20_000))
        codes = [answer.code for answer in answers]
        taken = codes.count(ResponseCode.SUCCESS)
        assert 3 <= taken <= 9
        assert codes[:taken] == [ResponseCode.SUCCESS] * taken
        assert codes[taken:] == [ResponseCode.SYSTEM_BUSY] * (len(codes) - taken)
        answer = answers[-1]
        assert answer.remark.startswith(
            "[REJECTREQUEST]system busy, start flow control for a while"
        )
        back = {"group": "G", "offset": 0, "delayLevel": 0}
        refused = await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert refused.code == ResponseCode.SYSTEM_BUSY
        # Reading goes on.
        assert (await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)).code == ResponseCode.SUCCESS
        wire.caller.close()


async def test_without_fail_fast_sends_go_on_without_a_buffer() -> None:
    settings = pool(
        commit_interval_ms=NEVER_MS, commit_thorough_interval_ms=NEVER_MS, commit_least_pages=1000
    )
    with aerobee.testing.broker(**settings) as running:
        wire = await Wire.to(running.broker)
        for _ in range(20):
            assert (await wire.send("T", b"x" * 20_000)).code == ResponseCode.SUCCESS
        wire.caller.close()
