"""The supervisor's pages while a shard is on its way out, or stands still."""

import asyncio
import json
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aerobee.broker.monitoring.http import Request
from aerobee.shards.child import State
from aerobee.shards.pages import Pages, ShardPlace

REQUEST = cast("Request", None)


def pages(port: int) -> Pages:
    """Pages of one shard that is taken for ready, with its HTTP port there."""
    shard = SimpleNamespace(name="shard-0", state=State.READY, status="", pid=7, failures=0)
    supervisor: Any = SimpleNamespace(shards=[shard], name_server=None)
    return Pages(supervisor, [ShardPlace("b", "127.0.0.1:1", "127.0.0.1", port)], answer_s=0.2)


async def test_one_that_has_just_ended_is_not_stuck() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        made = pages(closed.getsockname()[1])
        assert (await made.live(REQUEST)).status == 200
        ready = await made.ready(REQUEST)
    assert ready.status == 503
    assert "has just ended" in json.loads(ready.body)["shards"][0]["reason"]


async def test_one_that_takes_connections_and_says_nothing_is_stuck() -> None:
    server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    async with server:
        made = pages(server.sockets[0].getsockname()[1])
        assert (await made.live(REQUEST)).status == 503
        assert (await made.ready(REQUEST)).status == 503
        (about,) = json.loads((await made.shards(REQUEST)).body)["shards"]
        assert (about["state"], about["status"]) == ("stuck", "no answer in 0.2 s")


async def test_one_that_has_just_begun_says_so() -> None:
    made = pages(1)
    made._supervisor.shards[0].state = State.STARTING
    (about,) = json.loads((await made.ready(REQUEST)).body)["shards"]
    assert about["reason"] == "it is starting"


@pytest.mark.parametrize("body", [b"no JSON", b"[]", b'{"checks": [1]}', b"{}"])
async def test_a_page_of_another_kind_has_no_notes(body: bytes) -> None:
    assert "notes" not in await ready_shard(body)


async def test_what_a_ready_shard_says_besides_is_shown() -> None:
    accounts = {"check": "accounts", "ok": False, "note": True, "reason": "damaged"}
    fine = {"check": "closed to strangers", "ok": True, "note": True}
    body = json.dumps({"ready": True, "checks": [fine, accounts, {"check": "disk", "ok": True}]})
    assert (await ready_shard(body.encode()))["notes"] == [accounts]


async def ready_shard(body: bytes) -> dict[str, Any]:
    """The supervisor's report of a shard with this page."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n" % len(body))
        writer.write(b"Connection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        made = pages(server.sockets[0].getsockname()[1])
        found = await made.ready(REQUEST)
    assert found.status == 200
    about: dict[str, Any] = json.loads(found.body)["shards"][0]
    return about
