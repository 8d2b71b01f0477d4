"""The scan in numpy reads of a damaged log what the store's scanner reads, record by record."""

from __future__ import annotations

import random
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from aerobee.protocol.message.record import Message
from aerobee.protocol.message.record_check import CHECK_NOTHING
from aerobee.store.disk.files import Files
from aerobee.store.inspect.store_files import StoreFiles
from aerobee.store.log.scan.boundaries import last_boundary
from tests.unit.pipeline.stores import errors, offsets, read_one_by_one, rows, write_store
from tests.unit.store.support import SEGMENT, small_settings

#: Where in a record, and what stands there then.
DAMAGE = (
    (0, b"\0\0\0\x7f"), (0, b"\x7f\xff\xff\xff"), (0, b"\xff\xff\xff\xff"), (4, b"\0\0\0\0"),
    (28, b"\0\0\0\0\0\0\0\1"), (84, b"\0\0\7\7"), (0, bytes(90)), (0, bytes(700)),
)  # fmt: skip


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rule") / "store"
    write_store(root, 90)
    return root


def damage(root: Path, records: list[Message], chance: random.Random) -> None:
    for _ in range(chance.randint(1, 8)):
        at, value = chance.choice(DAMAGE)
        place = chance.choice(records).log_offset + at
        with (root / "commitlog" / f"{place // SEGMENT * SEGMENT:020d}").open("r+b") as file:
            file.seek(place % SEGMENT)
            file.write(value[: SEGMENT - place % SEGMENT])


def read_by_the_store(root: Path) -> tuple[list[int], list[tuple[int, int]]]:
    """Log offsets of sound records, and the ranges that hold none; the last one has no end."""
    settings = small_settings(root)
    with closing(StoreFiles(Files(), settings)) as store:
        named_end, _ = last_boundary(store.queues.values(), store.log.names_back, 0)
        scanner, _ = store.log.scanner(store.boundaries, named_end, CHECK_NOTHING, torn_above=False)
        found = [record[0] for record in scanner.records(0)]
    return found, [*((gap.start, gap.end) for gap in scanner.gaps), (scanner.end, 1 << 63)]


@pytest.mark.parametrize("split", ["300", "1g"])
@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_log_gives_the_records_that_the_store_finds(
    template: Path, tmp_path: Path, seed: int, split: str
) -> None:
    root = tmp_path / "store"
    shutil.copytree(template, root)
    damage(root, read_one_by_one(template), random.Random(seed))
    found = rows(root, splitBytes=split)
    sound, gaps = read_by_the_store(root)
    assert offsets(found) == sound
    assert errors(found)
    for row in found:
        if row["error"] is not None:
            assert any(start <= row["commitLogOffset"] < end for start, end in gaps)  # type: ignore[operator]
