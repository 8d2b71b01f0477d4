"""Units, queue files and index files made in bulk are, byte for byte, what a broker writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee.pipeline.files.directory import find_stores
from aerobee.pipeline.files.entries import ENTRY_BYTES
from aerobee.pipeline.jobs.derived.entries import (
    DELAY_LEVELS,
    ENTRIES,
    derived_entries,
    derived_keys,
    distinct_hashes,
    java_hashes,
    slot_hashes,
)
from aerobee.pipeline.jobs.derived.index_build import build_index, index_names
from aerobee.pipeline.jobs.derived.queue_files import (
    file_bytes,
    queue_files,
    read_entries,
    write_sparse,
)
from aerobee.protocol.hashing import java_hash
from aerobee.store.disk.files import Files
from aerobee.store.index.file import IndexFile, slot_hash
from aerobee.store.message_store import MessageStore
from aerobee.store.queues.delay_levels import DelayLevels
from tests.unit.pipeline.job_stores import log_rows
from tests.unit.store import audit_support as at
from tests.unit.store.support import ManualClock, message, small_settings

LEVELS = DelayLevels(DELAY_LEVELS)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return at.make(tmp_path_factory.mktemp("rebuild") / "store")


def units(root: Path) -> pa.Table:
    return pa.Table.from_batches(
        [derived_entries(batch, LEVELS) for batch in log_rows(root)], ENTRIES
    )


def test_units_of_records_are_those_in_the_queues(root: Path) -> None:
    made = units(root).to_pylist()
    files = queue_files(find_stores([str(root)])[0])
    there = [row for file in files for batch in read_entries(file) for row in batch.to_pylist()]

    def by_place(row: dict[str, object]) -> tuple[object, ...]:
        return row["topic"], row["queueId"], row["slot"]

    assert sorted(made, key=by_place) == sorted(there, key=by_place)
    assert len(made) == 103


def test_queue_files_made_of_units_are_byte_equal(root: Path, tmp_path: Path) -> None:
    made = units(root)
    for file in queue_files(find_stores([str(root)])[0]):
        rows = [
            row
            for row in made.to_pylist()
            if (row["topic"], row["queueId"]) == (file.topic, file.queue_id)
            and file.start <= row["slot"] * ENTRY_BYTES < file.start + file.size
        ]
        own = pa.Table.from_pylist(rows, ENTRIES)
        slots = own.column("slot").to_numpy()
        data = file_bytes(file.first_slot, int(slots.max()) + 1, slots, own)
        path = tmp_path / "made"
        write_sparse(str(path), [(0, data)], file.size)
        assert path.read_bytes() == Path(file.path).read_bytes(), file.path


def test_slots_without_a_message_are_pre_blank_and_the_later_claim_counts() -> None:
    rows = [("t", 0, 3, 100, 91, 7), ("t", 0, 5, 200, 91, 8), ("t", 0, 5, 300, 91, 9)]
    own = pa.Table.from_pylist(
        [dict(zip(ENTRIES.names, row, strict=True)) for row in rows], ENTRIES
    )
    data = file_bytes(2, 6, own.column("slot").to_numpy(), own)
    found = [at.UNIT.unpack_from(data, 20 * place) for place in range(4)]
    blank = (0, 0x7FFFFFFF, 0)
    assert found == [blank, (100, 91, 7), blank, (300, 91, 9)]


def test_records_dispatched_to_several_queues_have_a_unit_in_each(tmp_path: Path) -> None:
    changes = {"multi_dispatch": True, "lmq_enabled": True}
    store = MessageStore.open(small_settings(tmp_path / "s", **changes), clock=ManualClock())
    for number in range(5):
        more = {"INNER_MULTI_DISPATCH": "%LMQ%a,Copy,Orders"} if number % 2 else {}
        store.put(message(b"x", queue_id=1, tags="T", more=more))
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


def test_index_files_made_at_once_are_byte_equal(root: Path, tmp_path: Path) -> None:
    keys = pa.Table.from_batches([derived_keys(batch) for batch in log_rows(root)])
    hashes, places, times = (keys.column(name).to_numpy() for name in keys.schema.names)
    wanted = at.index_files(root)
    slots, entries = 50, 40
    assert len(wanted) == -(-len(hashes) // (entries - 1)) > 2
    before_ms = 0
    for number, path in enumerate(wanted):
        part = slice(number * (entries - 1), (number + 1) * (entries - 1))
        built = build_index(hashes[part], places[part], times[part], slots, entries, before_ms)
        before_ms = int(times[part][-1])
        write_sparse(str(tmp_path / "made"), built.parts, built.size)
        assert (tmp_path / "made").read_bytes() == path.read_bytes(), path.name


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(0, 5000)),
        min_size=1,
        max_size=39,
    ),
    st.sampled_from([0, 1_700_000_000_000]),
)
def test_any_keys_make_the_file_that_putting_them_makes(
    tmp_path_factory: pytest.TempPathFactory, puts: list[tuple[int, int]], before_ms: int
) -> None:
    directory = tmp_path_factory.mktemp("index")
    file = IndexFile.create(Files(), str(directory / "put"), 7, 40)
    file.begin_ms = file.end_ms = before_ms
    file.reserve(len(puts))
    times = np.cumsum([step for _, step in puts]) + 1_700_000_000_500
    for number, (java, _) in enumerate(puts):
        file.put(slot_hash(java), 100 * number, int(times[number]))
    file.write_header()
    file.close()
    hashes = slot_hashes(np.array([java for java, _ in puts], np.int32))
    built = build_index(hashes, 100 * np.arange(len(puts)), times, 7, 40, before_ms)
    write_sparse(str(directory / "built"), built.parts, built.size)
    assert (directory / "built").read_bytes() == (directory / "put").read_bytes()


def test_index_files_are_named_by_time_and_never_twice() -> None:
    begun = 1_700_000_000_000
    names = index_names([begun, begun, begun + 5000, begun - 100])
    assert len(set(names)) == 4
    assert names == sorted(names)
    assert all(len(name) == 17 for name in names)


@settings(max_examples=200)
@given(st.lists(st.one_of(st.none(), st.text(max_size=40), st.text("abc#01", max_size=600))))
def test_hashes_are_javas(texts: list[str | None]) -> None:
    wanted = [java_hash(text or "") for text in texts]
    assert java_hashes(pa.array(texts, pa.string())).tolist() == wanted
    assert distinct_hashes(pa.array(texts, pa.string())).tolist() == wanted
    part = pa.array([*texts, "x"], pa.string()).slice(1)
    assert java_hashes(part).tolist() == [*wanted[1:], 120][: len(part)]


def test_stored_hashes_are_not_negative() -> None:
    hashes = np.array([0, 5, -5, -(1 << 31), (1 << 31) - 1], np.int32)
    assert slot_hashes(hashes).tolist() == [slot_hash(one) for one in hashes.tolist()]


def test_a_file_appears_under_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_sparse(str(tmp_path / "a" / "f"), [(0, b"good"), (8, None)], 20)  # type: ignore[list-item]
    assert list((tmp_path / "a").iterdir()) == []
