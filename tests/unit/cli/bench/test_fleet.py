"""Processes of the generator: what happens when they cannot do their work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aerobee.cli.bench.fleet import Fleet
from aerobee.cli.bench.load import LoadSettings, SenderSpec
from aerobee.cli.bench.payload import Payload
from aerobee.cli.bench.stats import Stats
from aerobee.cli.bench.worker import WorkerSpec
from aerobee.cli.output import CANNOT_CONNECT, CommandFailed
from tests.ports import free_port


def spec(address: str, **payload: Any) -> WorkerSpec:
    settings = LoadSettings(in_flight=1, timeout_s=30.0)
    sender = SenderSpec(address, "Orders", [0], 0, 1)
    return WorkerSpec(settings, Payload(10, **payload), [sender], [])


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()  # from Python 3.13 on, a connection that nobody holds is closed
    writer.close()


@pytest.mark.parametrize("open_loop", [False, True])
async def test_a_process_reports_what_it_did(open_loop: bool) -> None:
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with Fleet(open_loop=open_loop) as fleet:
        await fleet.launch([spec(address), spec(address)])
        await fleet.tell("start", at_ns=0)
        reports = await fleet.tell("report")
        assert [Stats.from_wire(report["stats"]).sent for report in reports] == [1, 1]
        assert [report["unanswered"] for report in reports] == [1, 1]
        assert all(report["elapsed_s"] > 0 for report in reports)
        # What was reported does not come again.
        reports = await fleet.tell("report")
        assert [Stats.from_wire(report["stats"]).sent for report in reports] == [0, 0]
    server.close()


async def test_a_broker_that_is_not_there_ends_it() -> None:
    address = f"127.0.0.1:{free_port()}"
    async with Fleet(open_loop=False) as fleet:
        with pytest.raises(CommandFailed) as error:
            await fleet.launch([spec(address)])
    assert error.value.code == CANNOT_CONNECT
    assert str(error.value) == f"cannot connect to {address}: Connection refused"


async def test_a_payload_file_that_has_gone_is_said() -> None:
    async with Fleet(open_loop=False) as fleet:
        with pytest.raises(CommandFailed, match="nowhere cannot be read: No such file"):
            await fleet.launch([spec("127.0.0.1:1", file="nowhere")])


def by_itself(fleet: Fleet) -> None:
    fleet._processes[0].kill()


def by_its_input(fleet: Fleet) -> None:
    stdin = fleet._processes[0].stdin
    assert stdin is not None
    stdin.close()


@pytest.mark.parametrize("end", [by_itself, by_its_input])
async def test_a_process_that_has_ended_ends_it(end: Callable[[Fleet], None]) -> None:
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with Fleet(open_loop=False) as fleet:
        await fleet.launch([spec(address)])
        end(fleet)
        await fleet._processes[0].wait()
        with pytest.raises(CommandFailed, match="a process of the generator ended by itself"):
            await fleet.tell("report")
    server.close()
