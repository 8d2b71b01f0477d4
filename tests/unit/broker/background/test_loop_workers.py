"""Work that the loop hands to its workers."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from aerobee.broker.background.loop_workers import BodyReader
from aerobee.protocol.errors import BadRequest


@pytest.fixture
async def bodies() -> AsyncIterator[BodyReader]:
    reader = BodyReader(asyncio.get_running_loop())
    yield reader
    reader.close()


async def read(bodies: BodyReader, body: bytes) -> int:
    """The thread that read it."""

    def parse(data: bytes) -> int:
        if data.startswith(b"?"):
            raise BadRequest.system_error("what is this?")
        return threading.get_ident()

    steps = bodies.read(parse, body)
    try:
        while True:
            waited = next(steps)
            await asyncio.wait([waited])
    except StopIteration as ended:
        return int(ended.value)


async def test_small_bodies_are_read_at_once_and_large_ones_by_one_thread(
    bodies: BodyReader,
) -> None:
    here = threading.get_ident()
    assert await read(bodies, b"x" * 2048) == here
    threads = {await read(bodies, b"x" * size) for size in (2049, 1 << 20)}
    assert len(threads) == 1
    assert here not in threads


@pytest.mark.parametrize("size", [1, 1 << 20])
async def test_a_refusal_comes_out_of_either(bodies: BodyReader, size: int) -> None:
    with pytest.raises(BadRequest, match="what is this"):
        await read(bodies, b"?" * size)
