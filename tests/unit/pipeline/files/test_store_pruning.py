"""Rows that are not asked for are neither given nor read; rows asked for are, in every form."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from aerobee.pipeline.decode.selection import Selection, selection_of
from aerobee.pipeline.files.part_reader import read_part
from aerobee.pipeline.files.store_options import StoreOptions
from aerobee.pipeline.files.store_plan import EntriesPart, LogPart, plan
from tests.unit.pipeline.stores import (
    Row,
    counted_reads,
    log_bytes,
    offsets,
    parts,
    read_one_by_one,
    rows,
    write_store,
)
from tests.unit.store.support import FIRST_MS, SEGMENT


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 messages of topic A and 20 of Rare, in 20 segments, one message a second."""
    root = tmp_path_factory.mktemp("pruned")
    write_store(root, 400)
    return root


def numbers(found: list[Row]) -> list[int]:
    assert all(row["error"] is None for row in found)
    return [int(row["body"][:5]) for row in found]  # type: ignore[index]


@pytest.mark.parametrize("use", ["auto", "commitlog", "consumequeue"])
@pytest.mark.parametrize("split", ["1k", "1g"])
def test_each_filter_gives_exactly_what_it_says(store: Path, use: str, split: str) -> None:
    def read(**options: str) -> list[int]:
        return numbers(rows(store, use=use, splitBytes=split, **options))

    all_of_them = list(range(400))
    rare = [number for number in all_of_them if number % 20 == 7]
    assert read() == all_of_them
    assert read(topic="Rare") == rare
    assert read(topic="A, Rare") == all_of_them
    assert read(queueId="1") == [number for number in all_of_them if number % 2]
    assert read(topic="Rare", queueId="0") == []
    # The clock stood a second later at each message; the end is excluded, the start is not.
    start, end = str(FIRST_MS + 101_000), str(FIRST_MS + 111_000)
    assert read(startTimestamp=start, endTimestamp=end) == list(range(100, 110))
    assert read(startTimestamp=str(FIRST_MS + 10_000_000)) == []
    places = [record.log_offset for record in read_one_by_one(store)]
    assert read(startOffset=str(places[123])) == all_of_them[123:]
    assert (
        read(startOffset=str(places[123] + 1), endOffset=str(places[200])) == (all_of_them[124:200])
    )
    assert read(endOffset=str(places[7] + 1), topic="Rare") == [7]
    assert read(startOffset="5", endOffset="5") == []


def test_a_range_of_time_reads_only_its_segments(store: Path) -> None:
    with counted_reads() as reads:
        found = rows(store, startTimestamp=str(FIRST_MS + 101_000),
                     endTimestamp=str(FIRST_MS + 111_000))  # fmt: skip
    assert len(found) == 10
    whole = sum(file.stat().st_size for file in (store / "commitlog").iterdir())
    heads = [count for _, _, count in reads if count == 112]
    assert log_bytes(reads) - sum(heads) <= 2 * SEGMENT < whole / 5


def test_a_range_of_the_log_reads_only_that(store: Path) -> None:
    places = [record.log_offset for record in read_one_by_one(store)]
    with counted_reads() as reads:
        found = rows(store, startOffset=str(places[123]), endOffset=str(places[130]))
    assert offsets(found) == places[123:130]
    assert log_bytes(reads) < places[130] - places[123] + 1000


def test_a_rare_topic_is_read_by_its_units_and_nothing_else(store: Path) -> None:
    planned = parts(store, topic="Rare")
    assert isinstance(planned[0], EntriesPart)
    with counted_reads() as reads:
        found = rows(store, topic="Rare")
    size = max(record.size for record in read_one_by_one(store))
    assert len(found) == 20
    # Records 20 messages apart are read together with what is between them, where that is little;
    # here it always is. A thousand times rarer they are read alone: see the next test.
    assert log_bytes(reads) < 20 * 20 * size


def test_records_far_from_each_other_are_read_alone(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerobee.pipeline.files.part_reader._GAP_BYTES", 100)
    with counted_reads() as reads:
        found = rows(store, topic="Rare")
    size = max(record.size for record in read_one_by_one(store))
    assert len(found) == 20
    assert log_bytes(reads) <= 20 * size + 112


def test_a_common_topic_is_walked_without_pieces_that_have_none_of_it(tmp_path: Path) -> None:
    from aerobee.store.message_store import MessageStore
    from tests.unit.store.support import message, small_settings

    store = MessageStore.open(small_settings(tmp_path))
    for number in range(120):
        store.log.put(message(b"%05d" % number, "Early" if number < 60 else "Late"))
    store.dispatch()
    store.close()
    planned = parts(tmp_path, topic="Late", splitBytes="1k")
    assert all(isinstance(part, LogPart) for part in planned)
    with counted_reads() as reads:
        found = rows(tmp_path, topic="Late", splitBytes="1k")
    assert numbers(found) == list(range(60, 120))
    records = read_one_by_one(tmp_path)
    late = sum(record.size for record in records[60:])
    assert log_bytes(reads) < late + 3 * SEGMENT
    # With use=commitlog everything is walked: there may be records that have no unit.
    with counted_reads() as walked:
        assert numbers(rows(tmp_path, topic="Late", use="commitlog")) == list(range(60, 120))
    assert log_bytes(walked) >= sum(record.size for record in records)


def test_the_topic_of_a_deleted_queue_is_still_found_in_the_log(tmp_path: Path) -> None:
    import shutil

    write_store(tmp_path, 60)
    shutil.rmtree(tmp_path / "consumequeue" / "Rare")
    assert numbers(rows(tmp_path, topic="Rare")) == [7, 27, 47]


def test_a_queue_whose_first_files_are_gone_is_followed(tmp_path: Path) -> None:
    write_store(tmp_path, 200)
    for topic in ("A", "Rare"):
        for queue in (tmp_path / "consumequeue" / topic).iterdir():
            files = sorted(queue.iterdir())
            for file in files[: len(files) // 2]:
                file.unlink()
    found = numbers(rows(tmp_path, use="consumequeue"))
    assert found == sorted(set(found))
    assert set(range(120, 200)) <= set(found)
    first_kept = sorted((tmp_path / "commitlog").iterdir())[4]
    for file in sorted((tmp_path / "commitlog").iterdir())[:4]:
        file.unlink()
    # Units of segments that retention removed are no damage.
    found_later = rows(tmp_path, use="consumequeue")
    assert all(offset >= int(first_kept.name) for offset in offsets(found_later))
    assert offsets(rows(tmp_path))[0] == int(first_kept.name)


# --- filters of Spark: classes told by their names, as PySpark 4.1 and later have them -----------


class _Filter:
    def __init__(self, column: str, value: object) -> None:
        self.attribute = (column,)
        self.value = value


KINDS = {name: type(name, (_Filter,), {}) for name in (
    "EqualTo", "EqualNullSafe", "In", "GreaterThan", "GreaterThanOrEqual", "LessThan",
    "LessThanOrEqual", "StringStartsWith",
)}  # fmt: skip


def test_filters_of_spark_narrow_what_is_selected() -> None:
    moment = datetime(2023, 11, 14, 22, 13, 20, 123_456, tzinfo=UTC)
    ms = 1_700_000_000_123

    def selected(*filters: tuple[str, str, object]) -> Selection:
        made = [KINDS[kind](column, value) for kind, column, value in filters]
        return selection_of(made, "commitLogOffset")

    assert selected(("EqualTo", "TOPIC", "a")) == Selection(frozenset({"a"}))
    assert selected(("In", "topic", ("a", "b")), ("EqualTo", "topic", "b")) == Selection(
        frozenset({"b"})
    )
    assert selected(("EqualTo", "topic", "a"), ("EqualTo", "topic", "b")).is_empty
    assert selected(("EqualNullSafe", "queueId", 3)) == Selection(queue_ids=frozenset({3}))
    assert selected(("GreaterThan", "storeTimestamp", moment)) == Selection(start_ms=ms)
    assert selected(("LessThanOrEqual", "storeTimestamp", moment)) == Selection(end_ms=ms + 1)
    assert selected(("EqualTo", "commitLogOffset", 7)) == Selection(start_offset=7, end_offset=8)
    # A filter that is not understood narrows nothing.
    assert selected(("EqualTo", "storeTimestamp", datetime(2023, 1, 1))) == Selection()
    assert selected(("StringStartsWith", "topic", "a"), ("In", "topic", ("a", None))) == Selection()
    assert selected(("EqualTo", "body", b"x")) == Selection()
    assert selection_of([object()], "commitLogOffset") == Selection()


def test_pushed_filters_prune_as_options_do(store: Path) -> None:
    options = StoreOptions.parse({"path": str(store), "pushdown": "true"})
    pushed = selection_of([KINDS["EqualTo"]("topic", "Rare")], "commitLogOffset")
    selection = options.selection.intersect(pushed)
    planned = plan(options, selection)
    assert isinstance(planned[0], EntriesPart)
    found = sum(batch.num_rows for part in planned for batch in read_part(part, options, selection))
    assert found == 20
