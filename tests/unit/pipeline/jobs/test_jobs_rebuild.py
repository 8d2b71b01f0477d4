"""Units, queue files and index files of the job are, byte for byte, what a broker writes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from aerobee.pipeline.files.directory import find_stores
from aerobee.pipeline.jobs.derived.entries import (
    DELAY_LEVELS,
    ENTRIES,
    ENTRIES_DDL,
    batch_of,
    derived_rows,
)
from aerobee.pipeline.jobs.derived.queue_files import queue_files, read_entries
from aerobee.pipeline.jobs.rebuild import KEYS, Sizes, index_writer, queue_writer
from aerobee.store.index.layout import HEADER
from aerobee.store.message_store import MessageStore
from aerobee.store.queues.delay_levels import DelayLevels
from tests.unit.pipeline.job_stores import log_rows
from tests.unit.store.at_rest import audit_support as at
from tests.unit.store.support import ManualClock, message, small_settings, tree

LEVELS = DelayLevels(DELAY_LEVELS)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return at.make(tmp_path_factory.mktemp("rebuild") / "store")


def units(root: Path) -> pa.Table:
    """The entries that have a place in a queue, by queue as the job orders them."""
    made = pa.Table.from_batches([derived_rows(batch, LEVELS) for batch in log_rows(root)])
    placed = made.filter(pc.field("queueId") >= 0).select(ENTRIES.names)
    return placed.sort_by([(name, "ascending") for name in ("topic", "queueId", "logOffset")])


def test_units_of_records_are_those_in_the_queues(root: Path) -> None:
    made = units(root).to_pylist()
    files = queue_files(find_stores([str(root)])[0])
    there = [row for file in files for batch in read_entries(file) for row in batch.to_pylist()]

    def by_place(row: dict[str, object]) -> tuple[object, ...]:
        return row["topic"], row["queueId"], row["slot"]

    assert sorted(made, key=by_place) == sorted(there, key=by_place)
    assert len(made) == 103


def write_queues(output: Path, entries: pa.Table, most: int = 1 << 15) -> list[dict[str, Any]]:
    """The results of the task that writes these entries, handed `most` rows at a time."""
    sizes = Sizes(queue_file_bytes=199)  # rounded up to ten entries
    written = queue_writer(str(output), sizes)(iter(entries.to_batches(most)))
    return [row for batch in written for row in batch.to_pylist()]


@pytest.mark.parametrize("most", [7, 1000])
def test_queue_files_made_of_units_are_byte_equal(root: Path, tmp_path: Path, most: int) -> None:
    rows = write_queues(tmp_path, units(root).combine_chunks(), most)
    assert tree(tmp_path, "consumequeue") == tree(root, "consumequeue")
    assert [path.name for path in tmp_path.iterdir()] == ["consumequeue"]
    assert sum(row["rows"] for row in rows) == 103
    assert all(Path(row["path"]).stat().st_size == row["bytes"] for row in rows)


def entries_of(rows: list[tuple[object, ...]]) -> pa.Table:
    return pa.Table.from_batches([batch_of(rows, ENTRIES_DDL)])


def test_slots_without_a_message_are_pre_blank_and_the_later_claim_counts(tmp_path: Path) -> None:
    rows = [("t", 0, 3, 100, 91, 7), ("t", 0, 5, 200, 91, 8), ("t", 0, 5, 300, 91, 9)]
    # A file without a message is a file all the same.
    rows.append(("t", 0, 22, 400, 91, 9))
    written = write_queues(tmp_path, entries_of(rows))
    assert [row["rows"] for row in written] == [3, 0, 1]
    data = (tmp_path / "consumequeue" / "t" / "0" / f"{0:020d}").read_bytes()
    found = [at.UNIT.unpack_from(data, 20 * place) for place in range(2, 6)]
    blank = (0, 0x7FFFFFFF, 0)
    assert found == [blank, (100, 91, 7), blank, (300, 91, 9)]


def test_names_that_are_no_directories_get_no_queue(tmp_path: Path) -> None:
    rows = [("..", 0, 0, 0, 91, 0), ("a/b", 0, 0, 91, 91, 0), ("t", 0, 0, 182, 91, 0)]
    assert len(write_queues(tmp_path / "out", entries_of(rows))) == 1
    assert [path.name for path in (tmp_path / "out" / "consumequeue").iterdir()] == ["t"]


def test_a_second_try_of_a_task_changes_nothing(root: Path, tmp_path: Path) -> None:
    first = write_queues(tmp_path, units(root))
    before = tree(tmp_path, "consumequeue")
    assert write_queues(tmp_path, units(root)) == first
    assert tree(tmp_path, "consumequeue") == before


def test_what_a_failed_task_has_made_is_not_there(root: Path, tmp_path: Path) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield from units(root).to_batches()
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(queue_writer(str(tmp_path), Sizes())(rows()))
    assert list(tmp_path.iterdir()) == []


def test_records_dispatched_to_several_queues_have_a_unit_in_each(tmp_path: Path) -> None:
    changes = {"multi_dispatch": True, "lmq_enabled": True}
    store = MessageStore.open(small_settings(tmp_path / "s", **changes), clock=ManualClock())
    for number in range(5):
        more = {"INNER_MULTI_DISPATCH": "%LMQ%a,Copy,Orders"} if number % 2 else {}
        store.log.put(message(b"x", queue_id=1, tags="T", more=more))
    store.dispatch()
    assert store.close()
    test_units = sorted(tuple(row.values()) for row in units(tmp_path / "s").to_pylist())
    there = sorted(
        tuple(row.values())
        for file in queue_files(find_stores([str(tmp_path / "s")])[0])
        for batch in read_entries(file)
        for row in batch.to_pylist()
    )
    assert test_units == there
    assert {row[0] for row in there} == {"%LMQ%a", "Copy", "Orders"}


def test_index_files_are_byte_equal_and_named_by_their_first_messages(
    root: Path, tmp_path: Path
) -> None:
    derived = [derived_rows(batch, LEVELS) for batch in log_rows(root)]
    keys = [batch.filter(pc.is_valid(batch.column("keys"))).select(KEYS) for batch in derived]
    sizes = Sizes(index_slots=50, index_entries=40)
    (written,) = index_writer(str(tmp_path), sizes)(iter(keys))
    made = tree(tmp_path, "index")
    wanted = at.index_files(root)
    assert len(wanted) > 2
    assert list(made.values()) == [path.read_bytes() for path in wanted]
    assert written.column("rows").to_pylist()[:2] == [39, 39]
    times = [HEADER.unpack_from(data)[0] for data in made.values()]
    for path, time_ms in zip(written.column("path").to_pylist(), times, strict=True):
        assert abs(int(time_of(Path(path).name) - time_ms)) < len(times)


def time_of(name: str) -> int:
    return int(time.mktime(time.strptime(name[:14], "%Y%m%d%H%M%S"))) * 1000 + int(name[14:])


def test_a_log_without_keys_gets_no_index(tmp_path: Path) -> None:
    (written,) = index_writer(str(tmp_path), Sizes())(iter([]))
    assert written.num_rows == 0
    assert list(tmp_path.iterdir()) == []
