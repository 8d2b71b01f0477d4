"""Bit maps of SQL92 filters (store/FORMAT.md 5.6): a group that pulls by them gets what it would
get by the properties alone, whatever the broker knew when a message was stored."""

from __future__ import annotations

import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import aerobee.testing
from aerobee.protocol.codes import ResponseCode
from aerobee.testing import RunningBroker
from tests import campaign
from tests.contract.conftest import Wire
from tests.contract.pulls.test_sql_pulls import (
    bodies,
    group_pull,
    heartbeat,
    next_offset,
    send,
    send_numbers,
)
from tests.ports import free_port

TOPIC = "Mapped"
ON: dict[str, Any] = {"consume_queue_ext_enabled": True, "filter_bitmap": True}


@contextmanager
def opened(folder: Path, **settings: Any) -> Iterator[RunningBroker]:
    http = {"http_enabled": True, "http_port": free_port()}
    with aerobee.testing.broker(store_path=str(folder), **http, **settings) as running:
        yield running


def counted(running: RunningBroker) -> tuple[int, int, int]:
    """Maps made, maps left out, and messages passed over by their maps."""
    with urllib.request.urlopen(f"http://{running.http}/metrics") as page:
        lines = dict(line.rsplit(" ", 1) for line in page.read().decode().splitlines())
    names = ("bit_maps", "bit_maps_left_out", "bit_map_misses")
    made, left_out, misses = (int(float(lines[f"aerobee_filter_{name}_total"])) for name in names)
    return made, left_out, misses


async def beat(wire: Wire, group: str, wanted: str, version: int = 1) -> None:
    assert (await heartbeat(wire, group, {TOPIC: ("SQL92", wanted)}, version)).code == 0


async def pulled(wire: Wire, group: str, queue: int = 0) -> list[str]:
    """All that the group gets of a queue."""
    found: list[str] = []
    offset = 0
    while True:
        place = {"queueOffset": offset, "queueId": queue, "maxMsgNums": 9}
        answer = await group_pull(wire, group, TOPIC, **place)
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return found
        if answer.code == ResponseCode.SUCCESS:
            found += bodies(answer)
        offset = next_offset(answer)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_pulls_pass_over_what_did_not_meet_their_filter(tmp_path: Path, flush: str) -> None:
    with opened(tmp_path, flush_disk_type=flush, **ON) as running:
        wire = await Wire.to(running.broker)
        await send_numbers(wire, TOPIC, 3)
        await beat(wire, "high", "n >= 95")
        await beat(wire, "low", "n < 3")
        await send_numbers(wire, TOPIC, 100)
        await send_numbers(wire, "Other", 5)
        # Messages from before the filters were judged by their properties.
        assert await pulled(wire, "low") == ["0", "1", "2", "0", "1", "2"]
        assert await pulled(wire, "high") == ["95", "96", "97", "98", "99"]
        made, left_out, misses = counted(running)
        assert (made, left_out) == (100, 0)
        # A fifth of them may be looked at for nothing.
        assert 130 < misses <= 97 + 95
        wire.caller.close()


@pytest.mark.parametrize(
    "settings", [{"consume_queue_ext_enabled": True}, {"filter_bitmap": True}], ids=str
)
async def test_it_takes_both_settings(tmp_path: Path, settings: dict[str, Any]) -> None:
    with opened(tmp_path, **settings) as running:
        wire = await Wire.to(running.broker)
        await beat(wire, "G", "n > 7")
        await send_numbers(wire, TOPIC, 10)
        assert await pulled(wire, "G") == ["8", "9"]
        assert counted(running) == (0, 0, 0)
        wire.caller.close()


async def test_what_is_stored_before_a_group_is_back_is_not_hidden_from_it(tmp_path: Path) -> None:
    """After a start its filter is known and cannot be asked until a heartbeat names it."""
    with opened(tmp_path, **ON) as running:
        wire = await Wire.to(running.broker)
        await beat(wire, "G", "n > 7")
        await send_numbers(wire, TOPIC, 10)
        wire.caller.close()
    with opened(tmp_path, **ON) as running:
        wire = await Wire.to(running.broker)
        await send_numbers(wire, TOPIC, 10)
        await beat(wire, "G", "n > 7")
        await send_numbers(wire, TOPIC, 10)
        assert await pulled(wire, "G") == ["8", "9"] * 3
        assert counted(running)[0] == 20
        wire.caller.close()


async def test_a_filter_that_changes_is_not_judged_by_the_maps_of_the_old_one(
    tmp_path: Path,
) -> None:
    with opened(tmp_path, **ON) as running:
        wire = await Wire.to(running.broker)
        await beat(wire, "G", "n > 7")
        await send_numbers(wire, TOPIC, 10)
        await beat(wire, "G", "n < 2", version=2)
        await send_numbers(wire, TOPIC, 10)
        assert await pulled(wire, "G") == ["0", "1"] * 2
        wire.caller.close()


async def test_a_filter_that_a_crash_took_back_is_not_judged_by_the_maps_of_the_lost_one(
    tmp_path: Path,
) -> None:
    """The file has the filter before; messages have the bits of the lost filter."""
    store, copy = tmp_path / "store", tmp_path / "copy"
    with opened(store, **ON) as running:
        wire = await Wire.to(running.broker)
        await beat(wire, "G", "n > 7")
        wire.caller.close()
    file = Path("config") / "consumerFilter.json"
    before = (store / file).read_bytes()
    with opened(store, **ON) as running:
        wire = await Wire.to(running.broker)
        await beat(wire, "G", "n < 2", version=2)
        await send_numbers(wire, TOPIC, 10)
        assert await pulled(wire, "G") == ["0", "1"]
        # A file that is being written has another name until it is whole.
        shutil.copytree(store, copy, ignore=shutil.ignore_patterns("*.tmp"))
        wire.caller.close()
    (copy / file).write_bytes(before)
    with opened(copy, **ON) as running:
        wire = await Wire.to(running.broker)
        await beat(wire, "G", "n > 7")
        assert await pulled(wire, "G") == ["8", "9"]
        wire.caller.close()


async def test_dear_filters_keep_nobody_waiting_for_dispatch(tmp_path: Path) -> None:
    """Thirty groups with long expressions: messages go without a map rather than late."""
    text = " OR ".join(f"n = {number}" for number in range(100, 180))
    with opened(tmp_path, **ON) as running:
        wire = await Wire.to(running.broker)
        for number in range(30):
            await beat(wire, f"G{number}", f"n = {number} OR {text}")
        await send_numbers(wire, TOPIC, 5)
        assert await pulled(wire, "G3") == ["3"]
        assert counted(running) == (0, 5, 0)
        wire.caller.close()


@pytest.mark.parametrize("turn", range(campaign.size("bit maps")))
async def test_whatever_happens_pulls_give_what_the_expression_means(
    tmp_path: Path, turn: int
) -> None:
    """Heartbeats, changes, departures, sends, restarts with and without maps: after each, what a
    group gets is what its expression means for all messages."""
    chance = campaign.rng(f"bit maps {turn}")
    stored: list[int] = []
    versions = 0
    for _life in range(4):
        settings = ON if chance.random() < 0.8 else {"consume_queue_ext_enabled": True}
        if chance.random() < 0.3:
            settings = {**settings, "filter_error_percent": chance.choice((18, 20, 50))}
        known: dict[str, int] = {}
        with opened(tmp_path, **settings) as running:
            members: dict[str, Wire] = {}
            wire = await Wire.to(running.broker)
            await send(wire, TOPIC, "5", {"n": "5"})
            stored.append(5)
            for _step in range(25):
                group = chance.choice("ABC")
                action = chance.random()
                if action < 0.35:
                    for _ in range(chance.randint(1, 12)):
                        number = chance.randrange(10)
                        await send(wire, TOPIC, str(number), {"n": str(number)})
                        stored.append(number)
                elif action < 0.6:
                    if group not in members:
                        members[group] = await Wire.to(running.broker)
                    versions += 1
                    known[group] = least = chance.randrange(10)
                    await beat(members[group], group, f"n >= {least}", versions)
                elif action < 0.7 and group in members:
                    members.pop(group).caller.close()
                    known.pop(group)
                elif group in known:
                    right = [str(number) for number in stored if number >= known[group]]
                    assert await pulled(members[group], group) == right
            for one in (*members.values(), wire):
                one.caller.close()
    campaign.note("bit maps", 1, wrong=0, messages=len(stored))
