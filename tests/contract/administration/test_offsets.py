"""Committed offsets are kept of what there is, within limits: nobody fills the table with names."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import aerobee.testing
from aerobee.protocol.codes import RequestCode, ResponseCode
from tests.contract.conftest import Wire

BOTH_FORMS = True


@pytest.fixture
async def few() -> AsyncIterator[Wire]:
    """A broker with room for 16 offsets and 16 groups (some 10 are built in)."""
    limits = {"max_offsets": 16, "max_start_offsets": 16, "max_groups": 16}
    with aerobee.testing.broker(**limits) as running:
        wire = await Wire.to(running.broker)
        yield wire
        wire.caller.close()


async def commit(
    wire: Wire, group: str, topic: str, queue_id: int = 0, offset: int = 0
) -> tuple[int, str]:
    ext = {
        "consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset,
    }  # fmt: skip
    answer = await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
    return answer.code, answer.remark or ""


async def offsets(wire: Wire) -> dict[str, Any]:
    body = (await wire.call(RequestCode.GET_ALL_CONSUMER_OFFSET)).body
    table = json.loads(body)["offsetTable"]
    assert isinstance(table, dict)
    return table


async def groups(wire: Wire) -> set[str]:
    body = (await wire.call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body
    return set(json.loads(body)["subscriptionGroupTable"])


async def test_offsets_of_topics_and_queues_that_are_not_there_are_refused(few: Wire) -> None:
    """Found: 400,000 of them were kept and written, sends came 8.6 s late."""
    await few.send("Orders")
    for number in range(50):
        assert await commit(few, "G", f"Nowhere{number}") == (
            ResponseCode.SYSTEM_ERROR,
            f"offset 0 refused: there is no topic Nowhere{number}",
        )
    assert await commit(few, "G", "Orders", 4) == (
        ResponseCode.SYSTEM_ERROR,
        "offset 0 refused: the topic Orders has queues 0 to 3, not 4",
    )
    assert (await commit(few, "%LMQ%g", "%LMQ%t"))[0] == ResponseCode.SYSTEM_ERROR
    assert await offsets(few) == {}
    assert "G" not in await groups(few)


async def test_a_commit_makes_its_group_within_the_limit(few: Wire) -> None:
    await few.send("Orders")
    made = await groups(few)
    room = 16 - len(made)
    for number in range(room):
        assert await commit(few, f"G{number}", "Orders", 0, 1) == (0, "")
    assert await groups(few) == made | {f"G{number}" for number in range(room)}
    code, why = await commit(few, "G16", "Orders", 0, 1)
    assert (code, why) == (
        ResponseCode.SYSTEM_ERROR,
        "offset 1 refused: there is no consumer group G16, and it may not be made",
    )
    assert await commit(few, "G0", "Orders", 1) == (0, "")


async def test_without_automatic_groups_a_commit_makes_none() -> None:
    with aerobee.testing.broker(auto_create_group=False) as running:
        wire = await Wire.to(running.broker)
        await wire.send("Orders")
        code, why = await commit(wire, "G", "Orders")
        assert code == ResponseCode.SYSTEM_ERROR
        assert "there is no consumer group G" in why
        assert await commit(wire, "G-start", "Orders") == (0, "")
        assert await commit(wire, "TOOLS_CONSUMER", "Orders") == (0, "")
        wire.caller.close()


async def test_the_number_of_offsets_is_bounded(few: Wire) -> None:
    for topic in ("A", "B"):
        await few.send(topic)
    for queue_id in range(16):
        place = ("G", "AB"[queue_id % 2], queue_id // 2 % 4)
        group = f"G{queue_id // 8}"
        assert await commit(few, group, place[1], place[2]) == (0, "")
    code, why = await commit(few, "G2", "A")
    assert code == ResponseCode.SYSTEM_ERROR
    assert why == (
        "offset 0 refused: there are 16 consumer offsets, the limit; delete groups not in use"
    )
    # Known ones move, and a deleted group makes room.
    assert await commit(few, "G0", "A", 0, 1) == (0, "")
    ext = {"groupName": "G0", "removeOffset": "true"}
    assert (await few.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext)).code == 0
    assert await commit(few, "G2", "A") == (0, "")


async def test_starts_of_streams_are_no_groups_and_have_a_limit_of_their_own(few: Wire) -> None:
    await few.send("Orders")
    before = await groups(few)
    for number in range(16):
        assert await commit(few, f"S{number}-start", "Orders", 0, 2) == (0, "")
    assert await groups(few) == before
    code, why = await commit(few, "S16-start", "Orders", 0, 1)
    assert code == ResponseCode.SYSTEM_ERROR
    assert "there are 16 starts of streams, the limit" in why
    assert await commit(few, "G", "Orders", 0, 1) == (0, "")
    # A stream forgets its start by a 0.
    assert await commit(few, "S3-start", "Orders", 0, 0) == (0, "")
    assert "Orders@S3-start" not in await offsets(few)
    assert await commit(few, "S16-start", "Orders", 0, 1) == (0, "")


async def test_a_deleted_topic_takes_its_groups_offsets_along(few: Wire) -> None:
    """Otherwise the topic made anew, whose queues begin at 0, is not consumed up to the old
    offset."""
    for _ in range(3):
        await few.send("Orders")
    await few.send("Other")
    assert await commit(few, "G", "Orders", 0, 3) == (0, "")
    assert await commit(few, "G", "Other", 0, 1) == (0, "")
    answer = await few.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Orders"})
    assert answer.code == 0
    assert await offsets(few) == {"Other@G": {"0": 1}}
    await few.send("Orders")
    where = {"consumerGroup": "G", "topic": "Orders", "queueId": 0}
    assert (await few.call(RequestCode.QUERY_CONSUMER_OFFSET, where)).ext["offset"] == "0"


@pytest.mark.parametrize("whole", [True, False])
async def test_offsets_of_topics_that_are_gone_go_at_a_start(whole: bool, tmp_path: Path) -> None:
    """RocketMQ keeps them, and our releases before kept whatever was committed. Without the table
    of topics nobody knows which are gone."""
    with aerobee.testing.broker(store_path=str(tmp_path)) as running:
        wire = await Wire.to(running.broker)
        await wire.send("Orders")
        assert await commit(wire, "G", "Orders", 0, 1) == (0, "")
        assert await commit(wire, "G", "TBW102") == (0, "")
        wire.caller.close()
    file = tmp_path / "config" / "consumerOffset.json"
    there = {"Orders@G": {"0": 1}, "TBW102@G": {"0": 0}}
    added = {"Gone@G": {"0": 5}, "SCHEDULE_TOPIC_XXXX@G": {"0": 5}, "%LMQ%a@G": {"0": 5}}
    file.write_text(json.dumps({"offsetTable": {**there, **added}}))
    if not whole:
        for name in ("topics.json", "topics.json.bak"):
            (tmp_path / "config" / name).unlink()
    with aerobee.testing.broker(store_path=str(tmp_path)) as running:
        wire = await Wire.to(running.broker)
        kept = await offsets(wire)
        assert ("Gone@G" in kept) is not whole
        assert {**kept, "Gone@G": {"0": 5}} == {**there, **added}
        wire.caller.close()


async def test_light_queues_need_no_topic_and_count(tmp_path: Path) -> None:
    options = {"multi_dispatch": True, "lmq_enabled": True, "max_offsets": 16}
    with aerobee.testing.broker(**options, store_path=str(tmp_path)) as running:
        wire = await Wire.to(running.broker)
        for number in range(16):
            assert await commit(wire, "%LMQ%g", f"%LMQ%t{number}") == (0, "")
        for group in ("%LMQ%g", "G"):
            code, why = await commit(wire, group, "%LMQ%t16")
            assert code == ResponseCode.SYSTEM_ERROR
            assert "there are 16 consumer offsets" in why
        wire.caller.close()


async def test_minus_one_is_refused_without_a_warning(
    few: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    """ali-ons and Go commit it before they have consumed anything."""
    await few.send("Orders")
    code, why = await commit(few, "G", "Orders", 0, -1)
    assert code == ResponseCode.SYSTEM_ERROR
    assert why == "offset -1 refused: it is negative or beyond the end of queue 0 of Orders"
    assert "offset refused" not in caplog.text
    await commit(few, "G", "Orders", 0, -2)
    assert "offset refused group=G" in caplog.text
