"""Pulls that name more tags than one turn of the loop reads: served in steps, as any other."""

from __future__ import annotations

import asyncio

from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.message.record import decode_records
from tests.contract.conftest import Wire

BOTH_FORMS = True
TAGS = [f"Tag{number}" for number in range(20_000)]
EXPRESSION = "||".join(TAGS)


async def send(wire: Wire, topic: str, tag: str) -> None:
    answer = await wire.send(topic, tag.encode(), properties=f"TAGS\x01{tag}")
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def test_a_pull_of_many_tags_gets_the_messages_that_have_one(wire: Wire) -> None:
    for tag in ("Other", TAGS[0], TAGS[-1], "Tag20000"):
        await send(wire, "Many", tag)
    answer = await wire.pull("Many", subscription=EXPRESSION)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert [one.body.decode() for one in decode_records(answer.body)] == [TAGS[0], TAGS[-1]]
    assert int(answer.ext["nextBeginOffset"]) == 4


async def test_several_wait_for_their_message_and_the_next_request_for_none_of_them(
    wire: Wire,
) -> None:
    await send(wire, "Held", "Other")
    pulls = [
        asyncio.create_task(wire.await_message("Held", 1, subscription=EXPRESSION))
        for _ in range(5)
    ]
    # In order for its connection: it is stored behind their first look, and they wait.
    behind = asyncio.create_task(wire.send("Held", properties="TAGS\x01Other"))
    assert (await behind).code == ResponseCode.SUCCESS
    assert not any(pull.done() for pull in pulls)
    await send(wire, "Held", TAGS[7])
    for answer in await asyncio.gather(*pulls):
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert [one.body.decode() for one in decode_records(answer.body)] == [TAGS[7]]


async def test_many_separators_and_another_language_are_refused_as_by_a_short_pull(
    wire: Wire,
) -> None:
    await send(wire, "Refused", "A")
    for more in ({"subscription": "||"}, {"expressionType": "CEL", "subscription": "a"}):
        short = await wire.pull("Refused", **more)
        more["subscription"] *= 5_000
        long = await wire.pull("Refused", **more)
        assert long.code == short.code != ResponseCode.SUCCESS
    assert (await wire.send("Refused")).code == ResponseCode.SUCCESS
