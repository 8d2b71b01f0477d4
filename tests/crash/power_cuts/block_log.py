"""A recorded disk's content after a power cut: cuts of its log, and images made of them.

A disk keeps the writes that a completed barrier covers. It may have kept any of the writes behind
the last barrier before the cut, and any part of each: they are split into pieces of 4 KiB, or of
512 bytes, the smallest that a disk writes as a whole. (Any order comes to the same: a piece written
twice with the older one last is the younger one missing.)

    none, all    of the pieces
    but-one      all, one missing (chosen by the state's seed)
    random       each or not
    torn         like random, in pieces of 512 bytes

A state is three words, `CUT/SUBSET/SEED`, and gives the same image for the same log every time.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.crash.power_cuts.recorder import BARRIER, LOG_ENTRY, MARK, WRITE

BLOCK = 4096
SECTOR = 512
SUBSETS = ("none", "all", "but-one", "random", "torn")
_ZERO = bytes(BLOCK)


class Entry(NamedTuple):
    """`number` is a write's offset or a mark's number; `at` seconds of the monotonic clock."""

    kind: int
    number: int
    data: bytes
    at: float


@dataclass(frozen=True)
class CrashState:
    """Power went after `cut` entries of the log."""

    cut: int
    subset: str
    seed: int

    def __str__(self) -> str:
        return f"{self.cut}/{self.subset}/{self.seed}"

    @classmethod
    def parse(cls, text: str) -> CrashState:
        cut, subset, seed = text.split("/")
        assert subset in SUBSETS, f"{subset} is none of {SUBSETS}"
        return cls(int(cut), subset, int(seed))


class Disk:
    """Content of a disk, of which only what is not zero is kept."""

    def __init__(self, size: int, blocks: dict[int, bytes] | None = None) -> None:
        self.size = size
        self.blocks = blocks if blocks is not None else {}

    @classmethod
    def read(cls, image: Path) -> Disk:
        data = image.read_bytes()
        disk = cls(len(data))
        disk.write(0, data)
        return disk

    def copy(self) -> Disk:
        return Disk(self.size, self.blocks.copy())

    def write(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        for number in range(offset // BLOCK, -(-end // BLOCK)):
            start = number * BLOCK
            if offset <= start and start + BLOCK <= end:
                block = data[start - offset : start - offset + BLOCK]
            else:
                old = bytearray(self.blocks.get(number, _ZERO))
                low, high = max(offset, start), min(end, start + BLOCK)
                old[low - start : high - start] = data[low - offset : high - offset]
                block = bytes(old)
            if block == _ZERO:
                self.blocks.pop(number, None)
            else:
                self.blocks[number] = block

    def save(self, image: Path) -> None:
        """Make `image` this content; it is sparse, so that it costs what is not zero."""
        fd = os.open(image, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.ftruncate(fd, self.size)
            for start, run in _runs(self.blocks):
                os.pwrite(fd, run, start)
        finally:
            os.close(fd)


def _runs(blocks: dict[int, bytes]) -> Iterator[tuple[int, bytes]]:
    """Neighbouring blocks joined."""
    first = following = -1
    parts: list[bytes] = []
    for number in sorted(blocks):
        if number != following and parts:
            yield first * BLOCK, b"".join(parts)
            parts = []
        if not parts:
            first = number
        parts.append(blocks[number])
        following = number + 1
    if parts:
        yield first * BLOCK, b"".join(parts)


class BlockLog:
    """The log of one run on a disk that began as `base`."""

    def __init__(self, base: Disk, entries: Sequence[Entry]) -> None:
        self.base = base
        self.entries = entries

    @classmethod
    def read(cls, image: Path, log: Path) -> BlockLog:
        data = log.read_bytes()
        entries: list[Entry] = []
        position = 0
        while position < len(data):
            kind, size, number, at = LOG_ENTRY.unpack_from(data, position)
            position += LOG_ENTRY.size
            entries.append(Entry(kind, number, data[position : position + size], at))
            position += size
        return cls(Disk.read(image), entries)

    def marks(self, cut: int | None = None) -> dict[int, float]:
        """Numbers of the marks before the cut, with their times."""
        return {one.number: one.at for one in self.entries[:cut] if one.kind == MARK}

    def index_of_mark(self, number: int) -> int:
        """Where a mark stands in the log."""
        for index, entry in enumerate(self.entries):
            if entry.kind == MARK and entry.number == number:
                return index
        raise AssertionError(f"mark {number} is not in the log")

    def last_barrier(self, cut: int) -> int:
        """Index behind the last barrier before the cut; the writes below it are on the disk."""
        for index in range(cut - 1, -1, -1):
            if self.entries[index].kind == BARRIER:
                return index + 1
        return 0

    def images(self, states: Sequence[CrashState]) -> Iterator[tuple[CrashState, Disk]]:
        """The states in order of their cuts, each with what the disk holds in it."""
        durable = self.base.copy()
        done = 0
        for state in sorted(states, key=lambda one: one.cut):
            barrier = self.last_barrier(state.cut)
            for entry in self.entries[done:barrier]:
                if entry.kind == WRITE:
                    durable.write(entry.number, entry.data)
            done = barrier
            disk = durable.copy()
            for offset, data in self._kept(state, barrier):
                disk.write(offset, data)
            yield state, disk

    def _kept(self, state: CrashState, barrier: int) -> list[tuple[int, bytes]]:
        writes = [one for one in self.entries[barrier : state.cut] if one.kind == WRITE]
        size = SECTOR if state.subset == "torn" else BLOCK
        pieces = [
            # A torn superblock cannot be mounted, whoever is on it: ext4 overwrites it in place and
            # checks its sum before it looks at the journal.
            piece
            for one in writes
            for piece in _split(one.number, one.data, BLOCK if one.number < BLOCK else size)
        ]
        rng = random.Random(state.seed)
        if state.subset == "none":
            return []
        if state.subset == "but-one" and pieces:
            del pieces[rng.randrange(len(pieces))]
        if state.subset in ("random", "torn"):
            pieces = [piece for piece in pieces if rng.random() < 0.5]
        return pieces


def _split(offset: int, data: bytes, size: int) -> Iterator[tuple[int, bytes]]:
    """Pieces that end at multiples of `size` of the disk."""
    position = 0
    while position < len(data):
        length = size - (offset + position) % size
        yield offset + position, data[position : position + length]
        position += length


def choose_states(
    log: BlockLog, rng: random.Random, count: int, first: int = 0, in_flight: int = 0
) -> list[CrashState]:
    """`count` states behind entry `first`: right after marks, right before barriers, anywhere.

    Two of five after marks (a promise was made a moment ago), two before barriers (most writes are
    in flight), the rest anywhere; each kind spread evenly over the run. With `in_flight` only where
    that number of writes or more had no barrier behind them, and some of those are missing.
    """
    after, before, anywhere = _places(log, first, in_flight)
    subsets = SUBSETS[2:] if in_flight else SUBSETS
    chosen: list[CrashState] = []
    for number in range(count):
        places = (after, before, after, before, anywhere)[number % 5] or anywhere
        # One of the `count` equal stretches of the run, and anywhere within it.
        place = places[int((number + rng.random()) / count * len(places))]
        chosen.append(CrashState(place, rng.choice(subsets), rng.randrange(1 << 32)))
    return chosen


def _places(log: BlockLog, first: int, in_flight: int) -> tuple[list[int], list[int], list[int]]:
    """Cuts after marks, before barriers, and all, with this number of writes in flight."""
    after, before, anywhere = [], [], []
    flying = 0
    for index, entry in enumerate(log.entries):
        flying += entry.kind == WRITE
        if index >= first and flying >= in_flight:
            anywhere.append(index + 1)
            if entry.kind == MARK:
                after.append(index + 1)
            if entry.kind == BARRIER:
                before.append(index)
        if entry.kind == BARRIER:
            flying = 0
    assert anywhere, f"there were never {in_flight} writes in flight"
    return after, before, anywhere
