"""Claims about crash states: the writes that a cut keeps, those it may keep, and that it
repeats."""

from __future__ import annotations

import random
from pathlib import Path

from tests.crash.power_cuts.block_log import (
    BLOCK,
    SECTOR,
    SUBSETS,
    BlockLog,
    CrashState,
    Disk,
    Entry,
    choose_states,
)
from tests.crash.power_cuts.recorder import BARRIER, MARK, WRITE

SIZE = 1 << 20


def log_of(*entries: tuple[int, int, bytes]) -> BlockLog:
    made = [Entry(kind, number, data, float(at)) for at, (kind, number, data) in enumerate(entries)]
    return BlockLog(Disk(SIZE), made)


def image(log: BlockLog, cut: int, subset: str, seed: int = 0) -> bytes:
    ((_, disk),) = log.images([CrashState(cut, subset, seed)])
    return content(disk)


def content(disk: Disk) -> bytes:
    data = bytearray(disk.size)
    for number, block in disk.blocks.items():
        data[number * BLOCK : number * BLOCK + BLOCK] = block
    return bytes(data)


A, B, C = (letter * BLOCK for letter in (b"a", b"b", b"c"))
LOG = log_of(
    (WRITE, BLOCK, A),
    (BARRIER, 0, b""),
    (MARK, 1, b""),
    (WRITE, 2 * BLOCK, B + C),
    (MARK, 2, b""),
    (BARRIER, 0, b""),
    (WRITE, BLOCK, C),
)


def test_barrier_keeps_what_was_written_before_it() -> None:
    for subset in SUBSETS:
        assert image(LOG, 3, subset)[BLOCK : 2 * BLOCK] == A
        assert image(LOG, 6, subset)[BLOCK : 4 * BLOCK] == A + B + C


def test_what_no_barrier_covers_may_be_there_or_not() -> None:
    assert image(LOG, 5, "none")[2 * BLOCK : 4 * BLOCK] == bytes(2 * BLOCK)
    assert image(LOG, 5, "all")[2 * BLOCK : 4 * BLOCK] == B + C
    one_missing = {image(LOG, 5, "but-one", seed)[2 * BLOCK : 4 * BLOCK] for seed in range(20)}
    assert one_missing == {bytes(BLOCK) + C, B + bytes(BLOCK)}
    some = {image(LOG, 5, "random", seed)[2 * BLOCK : 4 * BLOCK] for seed in range(40)}
    assert len(some) == 4
    torn = image(LOG, 5, "torn", 1)[2 * BLOCK : 4 * BLOCK]
    sectors = {torn[start : start + SECTOR] for start in range(0, 2 * BLOCK, SECTOR)}
    assert sectors == {bytes(SECTOR), b"b" * SECTOR, b"c" * SECTOR}


def test_older_content_comes_back_when_the_newer_write_is_lost() -> None:
    assert image(LOG, 7, "none")[BLOCK : 2 * BLOCK] == A
    assert image(LOG, 7, "all")[BLOCK : 2 * BLOCK] == C


def test_marks_before_the_cut_were_made() -> None:
    assert set(LOG.marks(4)) == {1}
    assert set(LOG.marks(5)) == set(LOG.marks()) == {1, 2}
    assert LOG.index_of_mark(2) == 4


def test_state_says_itself_and_gives_the_same_image_again() -> None:
    for state in choose_states(LOG, random.Random(1), 20):
        assert CrashState.parse(str(state)) == state
        assert image(LOG, state.cut, state.subset, state.seed) == image(
            LOG, state.cut, state.subset, state.seed
        )


def test_states_are_after_marks_before_barriers_and_anywhere() -> None:
    states = choose_states(LOG, random.Random(2), 50)
    cuts = [state.cut for state in states]
    assert {*cuts[0::5], *cuts[2::5]} == {3, 5}
    assert {*cuts[1::5], *cuts[3::5]} == {1, 5}
    assert set(cuts[4::5]) == set(range(1, 8))
    assert {state.subset for state in states} == set(SUBSETS)
    in_flight = choose_states(LOG, random.Random(2), 10, in_flight=1)
    assert {state.cut for state in in_flight} <= {1, 2, 4, 5, 6, 7}


def test_images_of_many_states_are_those_of_each() -> None:
    states = choose_states(LOG, random.Random(3), 30)
    for state, disk in LOG.images(states):
        assert content(disk) == image(LOG, state.cut, state.subset, state.seed)


def test_saved_image_is_the_disk_and_sparse(tmp_path: Path) -> None:
    rng = random.Random(4)
    disk, expected = Disk(SIZE), bytearray(SIZE)
    for _ in range(40):
        data = rng.randbytes(rng.randrange(1, 3 * BLOCK))
        offset = rng.randrange(0, SIZE // 4)
        disk.write(offset, data)
        expected[offset : offset + len(data)] = data
    disk.save(tmp_path / "image")
    assert (tmp_path / "image").read_bytes() == expected
    assert (tmp_path / "image").stat().st_blocks * 512 < SIZE // 2
    assert content(Disk.read(tmp_path / "image")) == expected
    disk.write(0, bytes(SIZE))
    disk.save(tmp_path / "image")
    assert (tmp_path / "image").read_bytes() == bytes(SIZE)
    assert disk.blocks == {}
