"""The calling end: connect, call, be asked, lose the connection."""

from __future__ import annotations

import asyncio
import socket

import pytest

from aerobee.protocol.frames.command import Command, encode_response, make_request
from aerobee.remoting.calling.caller import CALLER_LIMITS, Caller, caller_set
from aerobee.remoting.connection_limits import RemotingLimits
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.errors import (
    RemotingClosed,
    RemotingConnectError,
    RemotingTimeout,
    RemotingUntrusted,
)
from aerobee.remoting.tls.client_tls import client_context
from tests.tls import CERTIFICATE, STRANGER, tls_in_front_of

pytestmark = pytest.mark.both_loops


async def test_many_calls_at_once_get_their_own_answers(bench):
    bench.handler.answer = lambda _c, command: encode_response(command, command.code + 1)
    server = await bench.server()
    caller = await Caller.connect("localhost", server.port, 5)
    replies = await asyncio.gather(*(caller.call(make_request(n), 5) for n in range(200)))
    assert [reply.code for reply in replies] == list(range(1, 201))
    caller.close()
    assert caller.closed


@pytest.mark.parametrize("host", ["a" * 70 + ".x", "a..b", "a\0b", "\ud800"])
async def test_a_text_that_is_no_host_is_a_connect_error(host: str):
    """Hosts come from name servers, where any peer may have registered them."""
    with pytest.raises(RemotingConnectError, match=r"^cannot connect to .*:10911: "):
        await Caller.connect(host, 10911, 5)


async def test_nobody_listening_is_a_connect_error_with_the_address(free_port):
    with pytest.raises(RemotingConnectError, match=f"127.0.0.1:{free_port}.*refused"):
        await Caller.connect("127.0.0.1", free_port, 5)
    with pytest.raises(RemotingConnectError, match=r"\[::1\]"):
        await Caller.connect("::1", free_port, 5)


async def test_a_server_that_does_not_accept_is_a_connect_error():
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    port = listener.getsockname()[1]
    # Fill the queue of the listener; further handshakes get no answer.
    fillers = [socket.socket() for _ in range(3)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(("127.0.0.1", port))
    try:
        with pytest.raises(RemotingConnectError, match=r"no answer in 0\.1 s"):
            await Caller.connect("127.0.0.1", port, 0.1)
    finally:
        for filler in (*fillers, listener):
            filler.close()


async def test_the_server_can_ask_and_is_answered(bench, until):
    server = await bench.server()
    asked: list[Command] = []

    def on_request(caller: Caller, command: Command) -> None:
        asked.append(command)
        caller.reply(encode_response(command, 206))

    caller = await Caller.connect("127.0.0.1", server.port, 5, on_request, tls=bench.client)
    await until(lambda: bool(bench.handler.opened))
    connection = bench.handler.opened[0]
    assert (await connection.call(make_request(307), 5)).code == 206
    connection.push(make_request(40, oneway=True))
    await until(lambda: len(asked) == 2)
    caller.close()


async def test_closing_fails_waiting_calls_and_is_told_once(bench, until):
    bench.handler.answer = lambda _c, _command: None
    server = await bench.server()
    told: list[str] = []
    caller = await Caller.connect(
        "127.0.0.1", server.port, 5, on_close=lambda _caller, reason: told.append(reason)
    )
    waiting = asyncio.create_task(caller.call(make_request(10), 60))
    await until(lambda: bool(bench.handler.commands))
    bench.handler.opened[0].close(abort=True)
    with pytest.raises(RemotingClosed):
        await waiting
    assert caller.closed
    assert len(told) == 1
    with pytest.raises(RemotingClosed):
        await caller.call(make_request(10), 1)
    with pytest.raises(RemotingClosed):
        caller.push(make_request(10))


async def test_a_late_answer_is_dropped(bench):
    held: list[tuple[Connection, Command]] = []

    def answer(connection: Connection, command: Command) -> bytes | None:
        if command.code == 1:
            held.append((connection, command))
            return None
        return encode_response(command, 0)

    bench.handler.answer = answer
    server = await bench.server()
    caller = await Caller.connect("127.0.0.1", server.port, 5)
    with pytest.raises(RemotingTimeout):
        await caller.call(make_request(1), 0.02)
    connection, command = held[0]
    connection.write(encode_response(command, 0))
    assert (await caller.call(make_request(2), 5)).code == 0
    caller.close()


async def test_callers_share_a_set_and_idle_ones_close(bench, until):
    server = await bench.server()
    shared = caller_set(RemotingLimits(idle_s=0.05, sweep_interval_s=0.01))
    callers = [await Caller.connect("127.0.0.1", server.port, 5, shared=shared) for _ in range(3)]
    assert shared.stats.open == 3
    await until(lambda: all(caller.closed for caller in callers))
    await until(lambda: shared.stats.open == 0)
    assert shared.stats.closed == {"idle": 3}


async def test_a_caller_whose_output_is_full_still_reads_answers(bench, until):
    # Both ends full at once: the server stops reading, the client must not.
    bench.handler.answer = lambda _c, command: encode_response(command, 0, body=command.body)
    server = await bench.server(outbound_high_water_bytes=65536)
    shared = caller_set(RemotingLimits(outbound_high_water_bytes=65536, read_buffer_bytes=65536))
    caller = await Caller.connect("127.0.0.1", server.port, 5, shared=shared)
    body = bytes(300_000)
    async with asyncio.timeout(20):
        replies = await asyncio.gather(
            *(caller.call(make_request(10, body=body), 20) for _ in range(60))
        )
    assert all(reply.body == body for reply in replies)
    assert shared.stats.paused > 0
    caller.close()


def test_callers_read_in_smaller_turns_than_servers():
    assert CALLER_LIMITS.read_buffer_bytes < RemotingLimits().read_buffer_bytes


async def test_a_caller_may_use_tls(bench):
    server = await bench.server()
    bench.handler.answer = lambda _c, command: encode_response(command, 0, body=command.body * 2)
    large = b"x" * 3_000_000
    async with tls_in_front_of(server.port) as port:
        for trust_store in (None, str(CERTIFICATE)):
            caller = await Caller.connect("127.0.0.1", port, 5, tls=client_context(trust_store))
            answers = await asyncio.gather(
                *(caller.call(make_request(1, {}, body), 10) for body in (b"a", large, b""))
            )
            assert [len(answer.body) for answer in answers] == [2, 6_000_000, 0]
            caller.close()
        strict = client_context(str(STRANGER))
        with pytest.raises(RemotingUntrusted, match="not trusted: self-signed"):
            await Caller.connect("127.0.0.1", port, 5, tls=strict)


async def test_tls_towards_a_plain_server_is_a_connect_error(plain_bench):
    server = await plain_bench.server()
    with pytest.raises(RemotingConnectError, match=f"cannot connect to .*{server.port}") as error:
        await Caller.connect("127.0.0.1", server.port, 5, tls=client_context(None))
    assert str(error.value).endswith("in the TLS handshake, as one without TLS does")
