"""What one turn of the loop serves, and what goes on in later ones."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_response, make_request
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.remoting.connection import Connection
from aerobee.remoting.turns import SLICE_S, TURN_S, Steps, Turns
from tests.unit.remoting.conftest import StepClock

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
