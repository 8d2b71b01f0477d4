"""Bursts of smallest frames: when they are decoded, their counts, and peers that come in
between."""

from __future__ import annotations

import asyncio
import itertools
import socket

import pytest

from aerobee.protocol.frames.command import Command, encode_response, make_request
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import LEAST_SLICE_S, SLICE_S, TURN_S, Turns
from tests.unit.remoting.conftest import StepClock

pytestmark = pytest.mark.both_loops

TINY = b'\x00\x00\x00\x19\x00\x00\x00\x15{"code":9,"opaque":1}'
# One read brings this number.
BURST = 9_000
# Each look at the clock is a tenth of a slice.
A_SLICE = 10


async def test_no_more_is_decoded_than_a_slice_serves_and_the_rest_counts_by_its_bytes(
    bench, until
):
    bench.handler.turns = Turns(StepClock())
    ahead: list[int] = []
    held: list[int] = []

    def answer(connection: Connection, _command: Command) -> None:
        served = sum(map(len, bench.handler.lists))
        ahead.append(connection.commands_in - served)
        held.append(connection.held_bytes)

    bench.handler.answer = answer
    server = await bench.server()
    peer = await bench.socket(server)
    with peer:
        peer.sendall(TINY * BURST)
        await until(lambda: len(ahead) == BURST)
    assert max(ahead) == 0
    assert max(map(len, bench.handler.lists)) <= A_SLICE + 1
    # Undecoded data that waits is input in memory.
    assert max(held) > 16 * 1024
    await until(lambda: server.stats.inbound_bytes == 0)


async def test_a_newcomer_waits_for_a_short_slice_of_each_of_many_bursts(bench, until):
    clock = StepClock()
    bench.handler.turns = Turns(clock)
    codes: list[int] = []

    def answer(_connection: Connection, command: Command) -> bytes | None:
        codes.append(command.code)
        return encode_response(command, 0) if command.code == 11 else None

    bench.handler.answer = answer
    server = await bench.server()
    peers = [await bench.socket(server) for _ in range(40)]
    reader, writer = await bench.stream(server)
    try:
        for peer in peers:
            peer.setblocking(False)
            assert peer.send(TINY * 500) > 10_000
        await until(lambda: len(codes) > 40)
        before = len(codes)
        writer.write(make_request(11).encode())
        assert await reader.readexactly(8)
        # With whole slices each burst would have had ten times as many.
        assert codes.index(11) - before < 40 * A_SLICE
    finally:
        for peer in peers:
            peer.close()


def test_slices_share_a_turn_down_to_the_least():
    turns = Turns()
    shares = []
    for number in (0, 1, 4, 8, 1000):
        turns.share(number)
        shares.append(turns.slice_s)
    assert shares == [SLICE_S, SLICE_S, SLICE_S, TURN_S / 8, LEAST_SLICE_S]


async def test_frames_behind_a_burst_are_served_in_order_whatever_their_size(bench, until):
    bench.handler.turns = Turns(StepClock())
    opaques: list[int] = []
    bench.handler.answer = lambda _c, command: opaques.append(len(command.body))
    server = await bench.server()
    _, writer = await bench.stream(server)
    sizes = [0, 300_000, 1, 70_000, 0, 2_000_000, 5] * 3
    writer.write(b"".join(make_request(9, body=bytes(size)).encode() for size in sizes))
    await until(lambda: len(opaques) == len(sizes))
    assert opaques == sizes


async def test_rubbish_behind_a_burst_ends_the_connection_after_the_burst(bench, until):
    bench.handler.turns = Turns(StepClock())
    served: list[int] = []
    bench.handler.answer = lambda _c, command: served.append(command.code)
    server = await bench.server()
    peer: socket.socket = await bench.socket(server)
    with peer:
        peer.sendall(TINY * 300 + b"\xff" * 100)
        await until(lambda: bool(bench.handler.closed))
    assert len(served) == 300
    assert bench.handler.reasons == ["bad frame"]


async def test_answers_of_a_peer_between_requests_do_not_count_as_requests(bench, until):
    """A burst of answers that nobody waits for is passed over, and not at one stretch."""
    bench.handler.turns = Turns(StepClock())
    served: list[int] = []
    bench.handler.answer = lambda _c, command: served.append(command.opaque)
    server = await bench.server()
    peer = await bench.socket(server)
    [connection] = bench.handler.opened
    seen: list[int] = []

    def look() -> None:
        seen.append(connection.commands_in)
        if not served:
            asyncio.get_running_loop().call_soon(look)

    request = make_request(9)
    with peer:
        peer.sendall(encode_response(request, 0) * 1_000 + request.encode())
        look()
        await until(lambda: served == [request.opaque])
    seen.append(connection.commands_in)
    # A read and a job of one turn.
    assert max(later - before for before, later in itertools.pairwise(seen)) <= 2 * 128 + 1
