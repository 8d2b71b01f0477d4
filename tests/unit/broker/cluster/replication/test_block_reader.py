"""A stream of blocks arrives in pieces of any size, and the slave's log becomes its master's."""

from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from pathlib import Path

import pytest

from aerobee.broker.cluster.replication.block_reader import BlockReader
from aerobee.protocol.replication import encode_head
from aerobee.store.message_store import MessageStore
from tests.forms import compiled_form
from tests.unit.broker.cluster.replication.joined import log_of, until
from tests.unit.store.support import message, small_settings

SIZES = {"commit_log_segment_bytes": 1 << 18, "max_message_bytes": 100_000}


class Pipe(asyncio.Transport):
    """The bytes of a master, given to the protocol piece by piece as long as it reads."""

    def __init__(self, reader: BlockReader, data: bytes, chance: random.Random) -> None:
        super().__init__()
        self._reader, self._data, self._chance = reader, deque([data]), chance
        self._paused = False
        self.reports: list[int] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.reports.append(int.from_bytes(data, "big"))

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False

    def abort(self) -> None:
        self._data.clear()

    @property
    def is_empty(self) -> bool:
        return not self._data

    def go_on(self) -> None:
        """Give a piece, unless the protocol wants none."""
        if self._paused or not self._data:
            return
        data = self._data.popleft()
        room = self._reader.get_buffer(-1)
        size = min(len(room), len(data), self._chance.choice((1, 11, 300, 5_000, 70_000, 300_000)))
        room[:size] = data[:size]
        if size < len(data):
            self._data.append(data[size:])
        self._reader.buffer_updated(size)


def blocks_of(store: MessageStore, chance: random.Random) -> bytes:
    """The log of a store as blocks of any size, with signs of life between them."""
    feed = store.make_feed()
    follower = feed.admit()
    follower.report(1)
    data = b""
    while piece := follower.next_piece(chance.choice((40, 1_000, 40_000, 200_000))):
        data += encode_head(piece.log_offset, piece.size)
        data += os.pread(piece.fd, piece.size, piece.position)
        follower.took(piece.size)
        if chance.random() < 0.2:
            data += encode_head(follower.position, 0)
    follower.gone()
    return data


class Follows:
    """Dispatches nothing."""

    def appended(self) -> None:
        pass


@pytest.mark.parametrize("form", ["plain", "compiled"])
async def test_a_stream_may_be_cut_anywhere(tmp_path: Path, form: str, seed: int) -> None:
    chance = random.Random(f"{seed} {form}")
    compiled = compiled_form().store if form == "compiled" else None
    master = MessageStore.open(small_settings(tmp_path / "master", **SIZES))
    for number in range(60):
        size = chance.choice((5, 300, 4_000, 60_000))
        master.log.put(message(b"%d" % number + b"x" * size, queue_id=number % 2))
    slave_settings = small_settings(tmp_path / "slave", broker_role="SLAVE", broker_id=1, **SIZES)
    slave = MessageStore.open(slave_settings, compiled=compiled)
    reader = BlockReader(asyncio.get_running_loop(), slave.make_appender(), Follows())
    pipe = Pipe(reader, blocks_of(master, chance), chance)
    reader.connection_made(pipe)
    reader.ask(1)

    def whole() -> bool:
        for _ in range(50):
            pipe.go_on()
        return pipe.is_empty and slave.marks.written == master.marks.written

    await until(lambda: whole() or reader.closed.done())
    assert not reader.closed.done(), reader.closed.result()
    assert log_of(slave) == log_of(master)
    assert pipe.reports[-1] == slave.marks.written
    reader.close("the test is over")
    slave.close()
    master.close()
