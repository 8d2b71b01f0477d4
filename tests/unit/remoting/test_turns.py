"""One turn of the loop serves a budget; the rest goes on in later turns."""

from __future__ import annotations

import asyncio
import itertools
import struct

import pytest

from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_response, make_request
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import SLICE_S, TURN_S, Steps, Turns
from tests.unit.remoting.conftest import StepClock

MIB = 1 << 20

pytestmark = pytest.mark.both_loops


async def answers(reader: asyncio.StreamReader, count: int) -> list[Command]:
    decoder, found = FrameDecoder(), []
    async with asyncio.timeout(10):
        while len(found) < count:
            found += decoder.feed(await reader.read(65536))
    return found


async def test_jobs_have_a_slice_each_in_their_order(until):
    turns = Turns(StepClock())
    served: list[str] = []

    def job(name: str, slices: int):
        left = [slices]

        def run() -> bool:
            served.append(name)
            left[0] -= 1
            return left[0] > 0

        return run

    turns.add(job("a", 3))
    turns.add(job("b", 1))
    turns.add(job("c", 2))
    await until(lambda: len(served) == 6)
    assert served == ["a", "b", "c", "a", "c", "a"]
    assert turns.waiting == 0


async def test_a_turn_ends_when_its_time_is_over(until):
    clock = StepClock()
    turns = Turns(clock)
    looks: list[int] = []
    runs = 0

    def dear() -> bool:
        nonlocal runs
        runs += 1
        clock.now += TURN_S / 2
        return runs < 40

    def look() -> None:
        looks.append(runs)
        if runs < 40:
            asyncio.get_running_loop().call_soon(look)

    for _ in range(8):
        turns.add(dear)
    look()
    await until(lambda: runs >= 40)
    # Between two looks of the loop no more than what a turn has time for.
    assert max(later - before for before, later in itertools.pairwise(looks)) <= 3


async def test_a_job_that_fails_is_dropped_and_the_others_go_on(until, caplog):
    turns = Turns()
    runs: list[int] = []

    def fails() -> bool:
        raise ValueError("broken")

    turns.add(fails)
    turns.add(lambda: runs.append(1) or len(runs) < 3)
    await until(lambda: len(runs) == 3)
    assert "work in steps failed" in caplog.text


async def test_others_are_served_between_the_steps_of_one(bench, until):
    """A request of fifty thousand steps, and another client's requests meanwhile."""
    bench.handler.turns = Turns(StepClock())
    server = await bench.server()
    reader, writer = await bench.stream(server)
    other_reader, other_writer = await bench.stream(server)
    steps_done = 0

    def steps(command: Command) -> Steps:
        nonlocal steps_done
        for _ in range(50_000):
            steps_done += 1
            yield None
        return encode_response(command, 0)

    bench.handler.answer = lambda _connection, command: (
        steps(command) if command.code == 2 else encode_response(command, 0)
    )
    writer.write(make_request(2).encode())
    await until(lambda: steps_done > 0)
    seen = []
    while steps_done < 50_000:
        other_writer.write(make_request(9).encode())
        await answers(other_reader, 1)
        seen.append(steps_done)
    assert len(seen) >= 10
    (reply,) = await answers(reader, 1)
    assert reply.code == 0


async def test_what_steps_raise_is_answered_and_the_next_request_served(bench):
    server = await bench.server()
    reader, writer = await bench.stream(server)

    def steps() -> Steps:
        for _ in range(100):
            yield None
        raise BadRequest(7, "too much")

    bench.handler.turns = Turns(StepClock())
    bench.handler.answer = lambda _connection, command: (
        steps() if command.code == 2 else encode_response(command, 0)
    )
    writer.write(make_request(2).encode() + make_request(3).encode())
    refused, served = await answers(reader, 2)
    assert (refused.code, refused.remark, served.code) == (7, "too much", 0)


async def test_the_steps_of_a_oneway_request_are_done_and_not_answered(bench):
    server = await bench.server()
    reader, writer = await bench.stream(server)
    done = []

    def steps(command: Command) -> Steps:
        yield None
        done.append(command.code)
        return encode_response(command, 0)

    bench.handler.answer = lambda _connection, command: (
        steps(command) if command.code == 2 else encode_response(command, 0)
    )
    asked = make_request(3)
    writer.write(make_request(2, oneway=True).encode() + asked.encode())
    (reply,) = await answers(reader, 1)
    assert (done, reply.opaque) == ([2], asked.opaque)


async def test_large_answers_end_a_slice(bench, until):
    """Answers of one peer beyond the high-water mark wait until it has taken some."""
    bench.handler.answer = lambda _c, command: encode_response(command, 0, body=bytes(1 << 20))
    server = await bench.server()
    reader, writer = await bench.stream(server)
    writer.write(b"".join(make_request(10).encode() for _ in range(60)))
    await until(lambda: server.stats.paused > 0)
    connection: Connection = bench.handler.opened[0]
    assert connection.unsent_bytes + connection.unwritten < 4 << 20
    assert max(len(commands) for commands in bench.handler.lists) <= 2
    assert len(await answers(reader, 60)) == 60


def test_a_slice_is_a_part_of_a_turn():
    assert 0 < SLICE_S <= TURN_S / 2


async def test_what_held_the_loop_up_is_remembered_for_the_log(bench):
    clock = StepClock()
    bench.handler.turns = Turns(clock)

    def dear(_connection: Connection, command: Command) -> bytes:
        clock.now += 0.3 if command.code == 7 else 0.03
        return encode_response(command, 0)

    bench.handler.answer = dear
    server = await bench.server()
    reader, writer = await bench.stream(server)
    writer.write(b"".join(make_request(code).encode() for code in (6, 7, 8)))
    await answers(reader, 3)
    host, port = writer.get_extra_info("sockname")
    assert bench.handler.turns.last_long() == f"code=7 peer={host}:{port} ms=300"
    assert bench.handler.turns.last_long() is None


async def test_input_put_aside_behind_a_full_output_is_served_once_the_peer_reads(bench, until):
    # Each look at the clock ends a turn: input is put aside, more of it than a connection may have
    # there, while its answers fill the output.
    ticks = itertools.count(1)
    bench.handler.turns = Turns(lambda: float(next(ticks)))
    bench.handler.answer = lambda _c, command: encode_response(command, 0, body=command.body)
    server = await bench.server(outbound_high_water_bytes=65536, read_buffer_bytes=MIB)
    reader, writer = await bench.stream(server)
    bodies = [bytes(300_000)] * 60
    writer.write(b"".join(make_request(10, body=body).encode() for body in bodies))
    await until(lambda: server.stats.paused > 0)
    assert [reply.body for reply in await answers(reader, len(bodies))] == bodies


class ShortWay:
    """Serves one frame of what was put aside, and its answer fills the output."""

    def __init__(self, connection: Connection, frame: int) -> None:
        self._connection = connection
        self._frame = frame

    def serve_kept(self, _chunk: bytes, _position: int) -> int:
        self._connection.hold_reading()
        return self._frame


async def test_nothing_is_served_behind_a_short_way_that_has_filled_the_output(bench, until):
    served: list[int] = []
    connections: list[Connection] = []

    def answer(connection: Connection, command: Command) -> None:
        served.append(command.code)
        connections.append(connection)

    bench.handler.answer = answer
    server = await bench.server()
    _, writer = await bench.stream(server)
    writer.write(make_request(9).encode())
    await until(lambda: served == [9])
    (connection,) = connections
    first, second = (make_request(code).encode() for code in (10, 11))
    connection._short_way = ShortWay(connection, len(first))
    connection.decoder.add(first + second)
    connection._put_aside()
    await until(lambda: connection.holds)
    for _ in range(5):
        await asyncio.sleep(0)
    assert served == [9]
    connection._short_way = None
    connection.release_reading()
    await until(lambda: served == [9, 11])


async def test_a_request_in_work_that_was_held_for_memory_is_read_again(bench, until):
    # Two requests in steps fill the budget; the request that is held for it shrinks when it has
    # ended.
    doors = {code: asyncio.get_running_loop().create_future() for code in (11, 12)}

    def steps(command: Command) -> Steps:
        yield doors[command.code]
        return encode_response(command, 0)

    bench.handler.answer = lambda _c, command: (
        steps(command) if command.code in doors else encode_response(command, 0)
    )
    server = await bench.server(frame_bytes=MIB, inbound_total_bytes=MIB, read_buffer_bytes=MIB)
    (first, first_in), (second, second_in) = [await bench.stream(server) for _ in range(2)]
    first_in.write(make_request(11, body=bytes(MIB - 4096)).encode())
    await until(lambda: server.stats.inbound_bytes >= MIB - 4096)
    second_in.write(make_request(12, body=bytes(8192)).encode())
    await until(lambda: server.stats.inbound_bytes > MIB)
    doors[12].set_result(None)
    assert [reply.code for reply in await answers(second, 1)] == [0]
    doors[11].set_result(None)
    assert [reply.code for reply in await answers(first, 1)] == [0]
    second_in.write(make_request(10).encode())
    assert [reply.code for reply in await answers(second, 1)] == [0]


async def test_answers_kept_for_the_end_of_a_turn_leave_before_the_connection_ends(bench):
    """Somebody was answered in this turn, so the next answers wait; then comes a bad frame."""
    turns = bench.handler.turns

    def answer(connection: Connection, command: Command) -> bytes:
        turns.write(connection, make_request(77).encode())
        return encode_response(command, 0)

    bench.handler.answer = answer
    server = await bench.server()
    reader, writer = await bench.stream(server)
    asked = make_request(2)
    writer.write(asked.encode() + struct.pack(">iI", -5, 100))
    first, reply = await answers(reader, 2)
    assert (first.code, reply.opaque) == (77, asked.opaque)
    async with asyncio.timeout(10):
        assert await reader.read() == b""
    assert bench.handler.reasons == ["bad frame"]
