"""Order, answers, closing: a connection's promises to its owner."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import socket
import struct

import pytest

from aerobee.config.logs import JsonFormatter
from aerobee.protocol.frames.command import Command, encode_response, make_request
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.errors import RemotingBusy, RemotingClosed, RemotingTimeout
from aerobee.remoting.turns import Steps, Turns
from tests.unit.remoting.conftest import StepClock

pytestmark = pytest.mark.both_loops


async def answers(reader: asyncio.StreamReader, count: int) -> list[Command]:
    decoder, found = FrameDecoder(), []
    async with asyncio.timeout(5):
        while len(found) < count:
            data = await reader.read(65536)
            assert data, f"closed after {len(found)} of {count} answers"
            found += decoder.feed(data)
    assert not decoder.buffered
    return found


async def test_frames_of_one_read_reach_the_handler_as_one_list(bench, until):
    bench.handler.turns.clock = lambda: 0.0  # no slice ends before its time
    server = await bench.server()
    reader, writer = await bench.stream(server)
    requests = [make_request(code) for code in (10, 11, 12)]
    writer.write(b"".join(request.encode() for request in requests))
    replies = await answers(reader, 3)
    assert [c.code for c in bench.handler.commands] == [10, 11, 12]
    assert len(bench.handler.lists) == 1
    assert [r.opaque for r in replies] == [r.opaque for r in requests]
    assert server.stats.commands_in == 3
    assert server.stats.bytes_in > 0


async def test_a_frame_cut_anywhere_is_put_together(bench):
    server = await bench.server()
    reader, writer = await bench.stream(server)
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    frame = make_request(10, {"a": "b"}, b"body").encode()
    for position in range(1, len(frame), 7):
        writer.write(frame[:position])
        await writer.drain()
        await asyncio.sleep(0)
        writer.write(frame[position:])
        (reply,) = await answers(reader, 1)
        assert reply.code == 0
    assert all(c.body == b"body" and c.ext == {"a": "b"} for c in bench.handler.commands)
    assert server.stats.inbound_bytes == 0


async def test_a_frame_larger_than_the_read_buffer_arrives_whole(bench):
    server = await bench.server(read_buffer_bytes=16384)
    reader, writer = await bench.stream(server)
    body = bytes(range(256)) * 4000
    writer.write(make_request(10, body=body).encode() + make_request(11).encode())
    await answers(reader, 2)
    assert bench.handler.commands[0].body == body


async def test_long_lists_are_delivered_in_slices_in_order(bench):
    bench.handler.turns = Turns(StepClock())
    server = await bench.server()
    reader, writer = await bench.stream(server)
    requests = [make_request(10) for _ in range(95)]
    writer.write(b"".join(request.encode() for request in requests))
    replies = await answers(reader, 95)
    assert [r.opaque for r in replies] == [r.opaque for r in requests]
    # A slice is ten looks at the clock, and ends behind the request that went beyond.
    assert max(len(commands) for commands in bench.handler.lists) <= 11


async def test_a_call_to_the_peer_gets_the_answer_with_its_opaque(bench, until):
    server = await bench.server()
    reader, writer = await bench.stream(server)
    await until(lambda: bool(bench.handler.opened))
    connection = bench.handler.opened[0]
    first = connection.call(make_request(40), 5)
    second = connection.call(make_request(39), 5)
    asked = await answers(reader, 2)
    # Answered the other way round, among requests and an answer nobody waits for.
    stray = make_request(99)
    writer.write(
        encode_response(asked[1], 2)
        + make_request(10).encode()
        + encode_response(stray, 0)
        + encode_response(asked[0], 1)
    )
    assert (await first).code == 1
    assert (await second).code == 2
    assert [c.code for c in bench.handler.commands] == [10]


async def test_calls_fail_on_time_out_and_on_close(bench, until):
    server = await bench.server(pending_calls=2)
    _, writer = await bench.stream(server)
    await until(lambda: bool(bench.handler.opened))
    connection = bench.handler.opened[0]
    late = connection.call(make_request(40), 0.02)
    waiting = connection.call(make_request(40), 60)
    with pytest.raises(RemotingBusy):
        connection.call(make_request(40), 60)
    with pytest.raises(RemotingTimeout, match="request 40"):
        await late
    writer.close()
    with pytest.raises(RemotingClosed, match="closed by peer"):
        await waiting
    with pytest.raises(RemotingClosed):
        connection.call(make_request(40), 60)


async def test_good_frames_before_a_bad_one_are_answered(bench):
    server = await bench.server()
    reader, writer = await bench.stream(server)
    writer.write(make_request(10).encode() + b"\x7f\xff\xff\xff" + b"x" * 100)
    await answers(reader, 1)
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    assert bench.handler.reasons == ["bad frame"]


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "looks like HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), "looks like TLS"),
        (struct.pack(">iI", 0x7FFFFFFF, 100), "bad frame"),
        (struct.pack(">iI", -5, 100), "bad frame"),
        (struct.pack(">iI", 16_777_213, 100), "bad frame"),
        (struct.pack(">iI", 50, 60), "bad frame"),
        (struct.pack(">iI", 30, 3 << 24 | 10) + bytes(26), "bad frame"),
        (struct.pack(">iI", 8, 4) + b"null", "bad frame"),
    ],
)
async def test_what_is_no_frame_closes_at_once_and_is_counted(bench, caplog, sent, reason):
    caplog.set_level(logging.INFO, "aerobee.remoting")
    server = await bench.server()
    reader, writer = await bench.stream(server)
    writer.write(sent)
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    assert bench.handler.reasons == [reason]
    assert server.stats.closed == {reason: 1}
    assert server.stats.bad_frames == 1
    (record,) = [one for one in caplog.records if reason in one.getMessage()]
    fields = json.loads(JsonFormatter().format(record))
    assert (fields["event"], fields["reason"]) == ("connection closed", reason)
    assert (fields["connection"], fields["peer"][:10]) == (1, "127.0.0.1:")


async def test_a_failing_handler_ends_its_own_connection_only(bench, caplog):
    def answer(connection: Connection, command: Command) -> bytes:
        if command.code == 666:
            raise RuntimeError("a bug")
        return encode_response(command, 0)

    bench.handler.answer = answer
    server = await bench.server()
    good_reader, good_writer = await bench.stream(server)
    reader, writer = await bench.stream(server)
    writer.write(make_request(666).encode())
    with pytest.raises((ConnectionResetError, AssertionError)):
        await answers(reader, 1)
    assert bench.handler.reasons == ["handler failed"]
    assert "a bug" in caplog.text
    good_writer.write(make_request(10).encode())
    await answers(good_reader, 1)


async def test_writes_after_closing_are_dropped_and_what_was_written_leaves(bench):
    def answer(connection: Connection, command: Command) -> None:
        connection.write(encode_response(command, 7))
        connection.close("client expired")
        connection.write(encode_response(command, 8))

    bench.handler.answer = answer
    server = await bench.server()
    reader, writer = await bench.stream(server)
    writer.write(make_request(10).encode())
    (reply,) = await answers(reader, 1)
    assert reply.code == 7
    assert await reader.read() == b""
    assert bench.handler.reasons == ["client expired"]
    assert bench.handler.opened[0].closed


async def test_a_request_that_waits_keeps_the_later_ones_of_its_connection_waiting(bench, until):
    server = await bench.server(idle_s=0.5)
    reader, writer = await bench.stream(server)
    await until(lambda: bool(bench.handler.opened))
    connection = bench.handler.opened[0]
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def steps(command: Command) -> Steps:
        yield done
        return encode_response(command, 0)

    bench.handler.answer = lambda _connection, command: (
        steps(command) if command.code == 2 else encode_response(command, 0)
    )
    writer.write(b"".join(make_request(code).encode() for code in range(1, 6)))
    (first,) = await answers(reader, 1)
    started = asyncio.get_running_loop().time()
    # Longer than the idle limit, which does not run while the request waits.
    await until(lambda: asyncio.get_running_loop().time() > started + 1.2)
    assert [c.code for c in bench.handler.commands] == [1, 2]
    assert not connection.closed
    done.set_result(None)
    replies = [first, *await answers(reader, 4)]
    assert [c.code for c in bench.handler.commands] == [1, 2, 3, 4, 5]
    served = [c.opaque for c in bench.handler.commands]
    assert [reply.opaque for reply in replies] == served


async def test_connections_know_their_ends(bench, until):
    server = await bench.server()
    _, writer = await bench.stream(server)
    await until(lambda: bool(bench.handler.opened))
    connection = bench.handler.opened[0]
    ip, port = writer.get_extra_info("sockname")
    assert connection.peer == (ip, port)
    assert connection.packed_peer == socket.inet_aton(ip) + struct.pack(">i", port)
    assert connection.local_port == server.port
    assert {connection: 1}[connection] == 1


async def test_a_crowd_of_newcomers_is_accepted_some_a_turn(plain_bench, until):
    """Served peers are looked at in between."""
    bench = plain_bench
    server = await bench.server()
    seen: list[int] = []

    def look() -> None:
        seen.append(server.stats.accepted)
        if server.stats.accepted < 200:
            asyncio.get_running_loop().call_soon(look)

    # The backlog fills while the loop does nothing else.
    crowd = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
    try:
        look()
        await until(lambda: server.stats.accepted == 200)
    finally:
        for one in crowd:
            one.close()
    seen.append(server.stats.accepted)
    assert max(later - before for before, later in itertools.pairwise(seen)) <= 32
