"""Processes of the generator that cannot do their work."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee.cli.bench.counts import sum_of
from aerobee.cli.bench.fleet import Fleet
from aerobee.cli.bench.generator.load import LoadSettings, SenderSpec
from aerobee.cli.bench.generator.request_frames import Payload
from aerobee.cli.bench.generator.security import PLAIN, Security
from aerobee.cli.bench.generator.worker import WorkerSpec
from aerobee.cli.printing.output import CANNOT_CONNECT, CommandFailed
from tests.ports import free_port
from tests.tls import CERTIFICATE, STRANGER, tls_in_front_of

SECRET = "never-to-be-shown"


def spec(address: str, security: Security = PLAIN, **payload: Any) -> WorkerSpec:
    settings = LoadSettings(in_flight=1, timeout_s=30.0)
    sender = SenderSpec(address, "Orders", [0], 0, 1)
    return WorkerSpec(settings, Payload(10, **payload), [sender], [], security)


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
        assert [sum_of([report]).sent for report in reports] == [1, 1]
        assert [report["unanswered"] for report in reports] == [1, 1]
        assert all(report["elapsed_s"] > 0 for report in reports)
        # Reported numbers do not come again.
        reports = await fleet.tell("report")
        assert [sum_of([report]).sent for report in reports] == [0, 0]
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


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
async def test_neither_arguments_nor_environment_of_a_process_hold_the_key(
    capfd: pytest.CaptureFixture[str],
) -> None:
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with Fleet(open_loop=False) as fleet:
        await fleet.launch([spec(address, Security(access_key="user", secret_key=SECRET))])
        of_process = Path("/proc") / str(fleet._processes[0].pid)
        for name in ("cmdline", "environ"):
            found = (of_process / name).read_bytes()
            assert found
            assert SECRET.encode() not in found
        await fleet.tell("start", at_ns=0)
        [report] = await fleet.tell("report")
        assert sum_of([report]).sent == 1
        assert SECRET not in str(report)
    server.close()
    assert SECRET not in "".join(capfd.readouterr())


@pytest.mark.parametrize("open_loop", [False, True])
async def test_a_process_speaks_tls(open_loop: bool) -> None:
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    security = Security(use_tls=True, trust_store=str(CERTIFICATE))
    async with (
        tls_in_front_of(server.sockets[0].getsockname()[1]) as port,
        Fleet(open_loop=open_loop) as fleet,
    ):
        await fleet.launch([spec(f"127.0.0.1:{port}", security)])
        await fleet.tell("start", at_ns=0)
        [report] = await fleet.tell("report")
        assert (sum_of([report]).sent, report["unanswered"]) == (1, 1)
    server.close()


async def test_a_certificate_that_is_not_trusted_ends_it() -> None:
    security = Security(use_tls=True, trust_store=str(STRANGER))
    async with tls_in_front_of(free_port()) as port, Fleet(open_loop=False) as fleet:
        with pytest.raises(CommandFailed) as error:
            await fleet.launch([spec(f"127.0.0.1:{port}", security)])
    assert error.value.code == CANNOT_CONNECT
    said = str(error.value)
    assert said.startswith(
        f"cannot connect to 127.0.0.1:{port}: its certificate is not trusted: self"
    )


async def test_files_of_certificates_that_have_gone_are_said(tmp_path: Path) -> None:
    security = Security(
        access_key="user", secret_key=SECRET, use_tls=True, trust_store=str(tmp_path / "gone.pem")
    )
    async with Fleet(open_loop=False) as fleet:
        with pytest.raises(CommandFailed, match=r"gone\.pem' cannot be read") as error:
            await fleet.launch([spec("127.0.0.1:1", security)])
    assert SECRET not in str(error.value)


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
