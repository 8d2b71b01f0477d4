"""Limits for hostile, greedy, slow and numerous peers (docs/reliability.md 8)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import resource
import socket
from unittest.mock import Mock

import pytest

from aerobee.protocol.frames.command import Command, encode_response, make_request
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.remoting.connection_limits import RemotingLimits
from aerobee.remoting.connection_stats import CloseReason, ServerStats
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.connections.inbound_budget import STALL_S, InboundBudget
from aerobee.remoting.errors import RemotingListenError
from aerobee.remoting.listening.server import RemotingServer
from aerobee.remoting.turns import SLICE_S, TURN_S, Turns
from tests.unit.remoting.conftest import StepClock

pytestmark = pytest.mark.both_loops

MIB = 1024 * 1024


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


async def ends(reader: asyncio.StreamReader) -> bytes:
    """The bytes that still come until the server ends the connection."""
    async with asyncio.timeout(5):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


async def test_random_bytes_end_their_connection_and_nothing_else(bench, seed):
    source = random.Random(seed)
    server = await bench.server(frame_grace_s=0.1)
    good_reader, good_writer = await bench.stream(server)
    for _ in range(20):
        reader, writer = await bench.stream(server)
        writer.write(source.randbytes(50_000))
        await ends(reader)
    assert server.stats.inbound_bytes == 0
    good_writer.write(make_request(10).encode())
    async with asyncio.timeout(5):
        assert FrameDecoder().feed(await good_reader.read(65536))


async def test_idle_connections_are_closed_and_busy_ones_are_not(bench, until):
    server = await bench.server(idle_s=0.3)
    idle_reader, _ = await bench.stream(server)
    _, busy_writer = await bench.stream(server)
    ended = asyncio.create_task(ends(idle_reader))
    while not ended.done():
        busy_writer.write(make_request(10).encode())
        await asyncio.sleep(0.02)
    assert bench.handler.reasons == ["idle"]
    assert server.stats.open == 1


async def test_a_frame_that_drips_is_closed_though_bytes_keep_coming(bench):
    server = await bench.server(frame_grace_s=0.1, frame_bytes_per_s=1000)
    reader, writer = await bench.stream(server)
    frame = make_request(10, body=bytes(500)).encode()
    ended = asyncio.create_task(ends(reader))
    sent = 0
    while not ended.done() and sent < len(frame) - 1:
        writer.write(frame[sent : sent + 1])
        sent += 1
        await asyncio.sleep(0.01)
    await ended
    assert bench.handler.reasons == ["frame too slow"]


async def test_a_large_frame_at_the_promised_rate_is_let_through(bench, until):
    server = await bench.server(frame_grace_s=0.1, frame_bytes_per_s=1000)
    _, writer = await bench.stream(server)
    frame = make_request(10, body=bytes(2000)).encode()
    for start in range(0, len(frame), 50):
        writer.write(frame[start : start + 50])
        await asyncio.sleep(0.01)
    await until(lambda: bool(bench.handler.commands))
    assert not bench.handler.closed


async def test_a_peer_that_does_not_read_is_not_read_and_gets_everything_later(bench, until):
    answer_bytes = 64 * 1024
    bench.handler.answer = lambda _c, command: encode_response(command, 0, body=bytes(answer_bytes))
    server = await bench.server(outbound_high_water_bytes=256 * 1024)
    client = socket.create_connection(("127.0.0.1", server.port))
    client.setblocking(False)
    requests = [make_request(10) for _ in range(2000)]
    loop = asyncio.get_running_loop()
    try:
        sending = asyncio.create_task(
            loop.sock_sendall(client, b"".join(request.encode() for request in requests))
        )
        await until(lambda: server.stats.paused > 0)
        connection = bench.handler.opened[0]
        served = len(bench.handler.commands)
        assert connection.full
        assert connection._transport.get_write_buffer_size() <= 512 * 1024 + answer_bytes + 200
        assert served < 500
        decoder, opaques = FrameDecoder(), []
        async with asyncio.timeout(20):
            while len(opaques) < len(requests):
                data = await loop.sock_recv(client, 1 << 20)
                opaques += [command.opaque for command in decoder.feed(data)]
        await sending
        assert opaques == [request.opaque for request in requests]
        assert not connection.full
        assert server.stats.inbound_bytes == 0
    finally:
        client.close()


async def test_many_small_requests_at_once_are_stopped_by_their_answers(bench, until):
    """A loop may read a full socket many times a turn, and answers leave at its end: they must not
    pile up."""
    bench.handler.answer = lambda _c, command: encode_response(command, 0, body=bytes(4000))
    server = await bench.server(outbound_high_water_bytes=256 * 1024)
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(0.5)  # it is stopped in the end
        data = make_request(10).encode() * 60_000
        # From a thread: the loop must find the socket full again and again.
        sending = asyncio.create_task(asyncio.to_thread(client.sendall, data))
        await until(lambda: server.stats.paused > 0 or bench.handler.closed)
        with pytest.raises(TimeoutError):
            await sending
        # The kernel takes some 4 MiB of a connection; without a stop these were 60 MiB and more.
        assert server.stats.bytes_out < 16 * MIB
        assert bench.handler.opened[0].unsent_bytes <= 512 * 1024 + 64 * 4200
        assert not bench.handler.closed


async def test_a_peer_with_many_requests_lets_others_have_their_turn(plain_bench, until):
    bench = plain_bench
    bench.handler.turns = Turns(StepClock())
    server = await bench.server()
    with (
        socket.create_connection(("127.0.0.1", server.port)) as busy,
        socket.create_connection(("127.0.0.1", server.port)) as other,
    ):
        await until(lambda: len(bench.handler.opened) == 2)
        codes: list[int] = []

        def answer(_connection: Connection, command: Command) -> None:
            if not codes:
                other.sendall(make_request(11).encode())
            codes.append(command.code)

        bench.handler.answer = answer
        busy.setblocking(False)
        data = make_request(10).encode() * 20_000
        sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(busy, data))
        await until(lambda: len(codes) == 20_001)
        await sending
        # Its request is read behind what one turn serves of the other, and served at once.
        assert codes.index(11) <= 2 * TURN_S / SLICE_S * 10


async def test_a_peer_that_never_reads_is_closed(bench, until):
    bench.handler.answer = lambda _c, command: encode_response(command, 0, body=bytes(MIB))
    server = await bench.server(idle_s=0.2, outbound_high_water_bytes=65536)
    client = socket.create_connection(("127.0.0.1", server.port))
    try:
        client.sendall(b"".join(make_request(10).encode() for _ in range(20)))
        await until(lambda: bool(bench.handler.closed))
        assert bench.handler.reasons == ["peer does not read"]
    finally:
        client.close()


async def test_output_pushed_to_a_full_connection_is_bounded(bench, until):
    server = await bench.server(outbound_high_water_bytes=65536, outbound_connection_bytes=8 * MIB)
    client = await bench.socket(server)
    try:
        connection = bench.handler.opened[0]
        for _ in range(100):
            connection.write(bytes(MIB))
            if connection.closed:
                break
        assert connection.closed
        assert server.stats.bytes_out < 40 * MIB
        await until(lambda: bench.handler.reasons == ["peer does not read"])
    finally:
        client.close()


async def test_an_answer_of_which_a_part_was_taken_is_counted_whole(bench, until):
    """Its memory is kept until the last byte has left."""
    bench.handler.answer = lambda _c, command: encode_response(command, 0, body=bytes(8 * MIB))
    server = await bench.server(outbound_total_bytes=24 * MIB, sweep_interval_s=60)
    clients = [socket.socket() for _ in range(4)]
    loop = asyncio.get_running_loop()
    try:
        for number, client in enumerate(clients):
            # The receiving end shall not keep the rest.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            client.connect(("127.0.0.1", server.port))
            client.setblocking(False)
            client.sendall(make_request(10).encode())
            await until(lambda number=number: len(bench.handler.commands) > number)
            taken = 0
            while taken < 4 * MIB:
                taken += len(await loop.sock_recv(client, 4 * MIB - taken))
        server.connections.recount()
        await until(lambda: "outbound memory" in bench.handler.reasons)
        server.connections.recount()
        held = [c for c in bench.handler.opened if not c.closed]
        assert 0 < len(held) <= 3
        assert server.stats.outbound_bytes == sum(c.unsent_bytes for c in held) > 8 * MIB
    finally:
        for client in clients:
            client.close()


async def test_who_takes_its_answers_is_served_while_others_fill_the_output(bench, until):
    server = await bench.server(outbound_total_bytes=16 * MIB, sweep_interval_s=60)
    readers = [await bench.stream(server) for _ in range(2)]
    await until(lambda: len(bench.handler.opened) == 2)
    full, other = bench.handler.opened
    full.write(bytes(15 * MIB))
    server.connections.recount()
    assert server.connections.overloaded
    assert full.overloaded
    assert not other.overloaded
    other.write(b"an answer")
    async with asyncio.timeout(5):
        assert await readers[1][0].readexactly(9) == b"an answer"
    assert not other.overloaded
    assert not full.closed


async def test_the_kernel_keeps_little_of_what_a_peer_does_not_take(bench, until):
    """The kernel's buffers are in no account of ours, and count into a control group's memory."""
    bench.handler.answer = lambda _c, command: encode_response(command, 0, body=bytes(8 * MIB))
    server = await bench.server()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(make_request(10).encode())
        await until(lambda: bool(bench.handler.opened) and bench.handler.opened[0].full)
        transport = bench.handler.opened[0]._transport
        assert transport.get_write_buffer_size() > 7 * MIB
        data = b""
        decoder = FrameDecoder()
        client.setblocking(False)
        while not (found := decoder.feed(data)):
            data = await asyncio.get_running_loop().sock_recv(client, 1 << 20)
        assert len(found[0].body) == 8 * MIB


async def test_unsent_output_of_all_is_bounded_by_closing_who_holds_most(bench, until):
    server = await bench.server(
        outbound_high_water_bytes=16 * MIB, outbound_total_bytes=32 * MIB, sweep_interval_s=60
    )
    clients = [await bench.socket(server) for _ in range(5)]
    try:
        small, *large = bench.handler.opened
        small.write(bytes(1000))
        # The kernel takes some 4 MiB of each connection.
        for _ in range(15):
            for connection in large:
                connection.write(bytes(MIB))
        await until(lambda: "outbound memory" in bench.handler.reasons)
        server.connections.recount()
        assert server.stats.outbound_bytes <= 32 * MIB
        assert not small.closed
    finally:
        for client in clients:
            client.close()


async def test_many_large_uploads_all_finish_within_the_inbound_limit(bench, until):
    server = await bench.server(
        frame_bytes=2 * MIB, inbound_total_bytes=2 * MIB, read_buffer_bytes=16384
    )
    largest = 0

    def watch(_connection, command):
        nonlocal largest
        largest = max(largest, server.stats.inbound_bytes)
        return encode_response(command, 0)

    bench.handler.answer = watch
    frame = make_request(10, body=bytes(MIB)).encode()

    async def upload() -> None:
        reader, writer = await bench.stream(server)
        writer.write(frame)
        decoder = FrameDecoder()
        while not decoder.feed(await reader.read(65536)):
            pass

    async with asyncio.timeout(20):
        await asyncio.gather(*(upload() for _ in range(20)))
    assert not bench.handler.closed
    # Each of the others stops within one read buffer after the limit.
    assert largest < 2 * MIB + MIB + 20 * 16384
    assert server.stats.inbound_bytes == 0


def test_a_stalled_frame_makes_room_as_long_as_somebody_waits_for_it():
    """Between the mark below which all are read again and the one above which some are not."""
    stats = ServerStats()
    budget = InboundBudget(40_000, 10_000, stats)
    first, stalled, waiting = (Mock(held_bytes=0, last_active=0.0) for _ in range(3))
    budget.changed(first, 12_000)
    budget.changed(stalled, 13_000)
    budget.changed(waiting, 8_000)
    waiting.hold_for_memory.assert_called_once_with()
    budget.changed(first, 0)
    assert stats.inbound_bytes == 21_000
    waiting.release_from_memory.assert_not_called()
    budget.close_stalled(STALL_S - 1)
    stalled.close.assert_not_called()
    budget.close_stalled(STALL_S + 1)
    stalled.close.assert_called_once_with(CloseReason.INBOUND_MEMORY, abort=True)
    budget.changed(stalled, 0)
    waiting.release_from_memory.assert_called_once_with()
    # Nobody waits: a slow peer has the time that a frame has.
    budget.close_stalled(STALL_S + 1)
    waiting.close.assert_not_called()


async def test_stalled_uploads_make_room_under_pressure(bench, until, monkeypatch):
    monkeypatch.setattr("aerobee.remoting.connections.inbound_budget.STALL_S", 0.1)
    server = await bench.server(
        frame_bytes=2 * MIB, inbound_total_bytes=2 * MIB, read_buffer_bytes=65536
    )
    frame = make_request(10, body=bytes(MIB)).encode()
    for _ in range(4):
        _, stalled = await bench.stream(server)
        stalled.write(frame[:-1])
    await until(lambda: server.stats.inbound_bytes > 2 * MIB * 3 // 4)
    reader, writer = await bench.stream(server)
    writer.write(frame)
    async with asyncio.timeout(10):
        assert FrameDecoder().feed(await reader.read(65536))
    assert set(bench.handler.reasons) == {"inbound memory"}


async def test_unfinished_frames_of_very_many_peers_keep_to_the_limit(bench, until):
    """Each may overshoot by what one read brings: together they would pass it many times over."""
    limit, peers = 2 * MIB, 80
    server = await bench.server(frame_bytes=MIB // 2, inbound_total_bytes=limit)
    for _ in range(peers):
        _, writer = await bench.stream(server)
        writer.write(make_request(10, body=bytes(60_000)).encode()[:-1])
    opened = bench.handler.opened
    await until(lambda: len(opened) == peers)
    await until(lambda: all(one.closed or one.held_bytes >= 4096 for one in opened))
    held = sum(one.held_bytes for one in opened if not one.closed)
    assert limit // 2 < held == server.stats.inbound_bytes <= limit
    await until(lambda: len(bench.handler.reasons) == sum(one.closed for one in opened))
    assert set(bench.handler.reasons) == {"inbound memory"}
    # It counts once, however often an end is told of.
    assert server.stats.inbound_bytes == held
    reader, writer = await bench.stream(server)
    writer.write(make_request(10).encode())
    async with asyncio.timeout(5):
        assert FrameDecoder().feed(await reader.read(65536))


async def test_small_frames_pass_while_large_ones_fill_the_limit(bench, until):
    server = await bench.server(frame_bytes=MIB, inbound_total_bytes=MIB, read_buffer_bytes=65536)
    for _ in range(3):
        _, stalled = await bench.stream(server)
        stalled.write(make_request(10, body=bytes(MIB - 4096)).encode()[:-1])
    await until(lambda: server.stats.inbound_bytes > MIB * 3 // 4)
    reader, writer = await bench.stream(server)
    for _ in range(5):
        frame = make_request(11, body=bytes(1000)).encode()
        writer.write(frame[:500])
        await writer.drain()
        await asyncio.sleep(0)
        writer.write(frame[500:])
        async with asyncio.timeout(5):
            assert FrameDecoder().feed(await reader.read(65536))


async def test_connections_above_the_limits_are_refused_until_one_goes(plain_bench, until):
    bench = plain_bench
    server = await bench.server(connections=3, connections_per_address=2)
    held = [await bench.stream(server) for _ in range(2)]
    await until(lambda: server.stats.open == 2)
    reader, _ = await bench.stream(server)
    assert await ends(reader) == b""
    assert server.stats.refused_address == 1
    other = await asyncio.open_connection("127.0.0.1", server.port, local_addr=("127.0.0.2", 0))
    bench.writers.append(other[1])
    await until(lambda: server.stats.open == 3)
    reader, _ = await bench.stream(server)
    assert await ends(reader) == b""
    assert server.stats.refused_total == 1
    held[0][1].close()
    await until(lambda: server.stats.open == 2)
    _, writer = await bench.stream(server)
    writer.write(make_request(10).encode())
    await until(lambda: len(bench.handler.commands) == 1)


async def test_without_descriptors_accepting_pauses_and_goes_on(plain_bench, until):
    bench = plain_bench
    server = await bench.server(accept_pause_s=0.02)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    client = socket.socket()
    client.setblocking(False)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    fillers = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
        with contextlib.suppress(OSError):
            while True:
                fillers.append(os.dup(0))
        client.connect_ex(("127.0.0.1", server.port))
        await until(lambda: server.stats.accept_errors >= 2)
        assert server.stats.accept_errors < 50
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)
    await until(lambda: len(bench.handler.opened) == 1)
    client.close()


async def test_idle_connections_are_cheap(plain_bench, until):
    bench = plain_bench
    server = await bench.server()
    count = 300
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    gc.collect()
    before = resident_bytes()
    clients = []
    try:
        for _ in range(count):
            clients.append(socket.create_connection(("127.0.0.1", server.port)))
            await asyncio.sleep(0)
        await until(lambda: server.stats.open == count)
        # Both ends are in this process; the goal of 60 MB for 1,000 allows ten times this.
        assert resident_bytes() - before < count * 20_000
    finally:
        for client in clients:
            client.close()
    await until(lambda: server.stats.open == 0)


async def test_a_taken_port_is_a_clear_error(bench):
    server = await bench.server()
    other = RemotingServer(bench.handler)
    with pytest.raises(RemotingListenError, match=f"port {server.port}.*another broker"):
        await other.start("127.0.0.1", server.port)
    with pytest.raises(RemotingListenError, match="no-such-host"):
        await other.start("no-such-host.invalid", 0)
    await other.close()


async def test_one_server_listens_on_several_ports(bench, until):
    server = await bench.server()
    second = await server.start("127.0.0.1", 0)
    assert second != server.port
    _, writer = await asyncio.open_connection("127.0.0.1", second, ssl=bench.client)
    bench.writers.append(writer)
    await until(lambda: bool(bench.handler.opened))
    assert bench.handler.opened[0].local_port == second


async def test_ipv4_peers_of_a_dual_stack_listener_are_ipv4(bench, until):
    if not socket.has_dualstack_ipv6():
        pytest.skip("no dual-stack sockets here")
    server = await bench.server("::")
    await bench.stream(server, "127.0.0.1")
    await bench.stream(server, "::1")
    await until(lambda: len(bench.handler.opened) == 2)
    first, second = bench.handler.opened
    assert first.peer[0] == "127.0.0.1"
    assert len(first.packed_peer) == 8
    assert second.peer[0] == "::1"
    assert len(second.packed_peer) == 20


async def test_closing_a_server_sends_what_was_answered_and_ends_everything(bench, until):
    server = await bench.server()
    reader, writer = await bench.stream(server)
    writer.write(make_request(10).encode())
    await until(lambda: bool(bench.handler.commands))
    client = await bench.socket(server)
    bench.handler.opened[1].write(bytes(32 * MIB))
    # The second half of it is for the end of who does not read: a busy machine needs some.
    await server.close(1.0)
    assert bench.handler.reasons == ["shutdown", "shutdown"]
    assert FrameDecoder().feed(await ends(reader))
    assert server.stats.open == 0
    client.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", server.port)


async def test_contradicting_limits_are_refused():
    with pytest.raises(ValueError, match="header_bytes must not be above frame_bytes"):
        RemotingLimits(frame_bytes=1000, header_bytes=2000)
    with pytest.raises(ValueError, match="idle_s must be above 0"):
        RemotingLimits(idle_s=0)
