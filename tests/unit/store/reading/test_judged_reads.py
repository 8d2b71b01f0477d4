"""Claims about reads by a filter over properties: what they give, examine, and hold."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.protocol.filters.property_filter import PropertyFilter
from aerobee.protocol.filters.sql_filter import compile_sql
from aerobee.protocol.message.record import decode_records
from aerobee.store.message_store import MessageStore
from aerobee.store.reading import queue_reader as reader
from aerobee.store.reading.queue_reader import ReadLimits
from aerobee.store.segments.results import GetResult, GetStatus
from tests.unit.store.support import (
    fill,
    flip,
    log_segment,
    message,
    queue_file,
    small_settings,
    whole,
)

COUNT = 60
ENDLESS = 1 << 30
RECENT = ReadLimits(ENDLESS, ENDLESS, ENDLESS, ENDLESS, ENDLESS)
OLD = ReadLimits(0, ENDLESS, ENDLESS, 2_000, 7)
ALL = "TAGS IN ('T0', 'T1', 'T2')"


def wanted(expression: str) -> PropertyFilter:
    return PropertyFilter(compile_sql(expression))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    opened = MessageStore.open(small_settings(tmp_path, consume_queue_segment_bytes=COUNT * 20))
    fill(opened, COUNT)
    yield opened
    opened.close()


def taken(result: GetResult) -> list[bytes]:
    with result:
        found = [one.body for view in result.views for one in decode_records(bytes(view))]
    assert len(found) == result.count
    return found


def pulled(store: MessageStore, expression: str, most: int = 1_000) -> list[bytes]:
    """All that match, as a consumer gets them, who begins at the first."""
    found: list[bytes] = []
    offset = looks = 0
    while offset < store.max_offset("Orders", 0):
        result = whole(
            store.reader.get_judged("Orders", 0, offset, most, wanted(expression), None, RECENT)
        )
        assert result.next_offset > offset or result.pending
        offset = result.next_offset
        found += taken(result)
        looks += 1
        assert looks < 1_000
    return found


@pytest.mark.parametrize("cost", [1, 400, 5_000])
@pytest.mark.parametrize("most", [1, 7, 1_000])
def test_all_that_match_are_given_however_little_is_judged_at_a_time(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch, cost: int, most: int
) -> None:
    monkeypatch.setattr(reader, "_JUDGED_STEP", cost)
    monkeypatch.setattr(reader, "_JUDGED_COST", 7 * cost)
    monkeypatch.setattr(reader, "_JUDGED_ENTRIES", 13)
    made = [b"%06d" % number + b"." * 50 for number in range(COUNT)]
    assert pulled(store, ALL, most) == made
    assert pulled(store, "TAGS = 'T1'", most) == made[1::3]
    assert pulled(store, "UNIQ_KEY IN ('U0', 'U59') OR TAGS = 'T1'", most) == [
        made[0],
        *made[1::3],
        made[59],
    ]
    assert pulled(store, "TAGS = 'T4'", most) == []


@pytest.mark.parametrize("limits", [RECENT, OLD], ids=["recent", "old"])
@pytest.mark.parametrize("most_bytes", [None, 0, 150, 1_500])
def test_an_answer_is_as_large_as_one_by_tag(
    store: MessageStore, limits: ReadLimits, most_bytes: int | None
) -> None:
    for offset in (-1, 0, 1, 33, COUNT - 1, COUNT, COUNT + 1):
        for most in (1, 6, 7, 8, 30, 1_000):
            plain = store.reader.get("Orders", 0, offset, most, None, most_bytes, limits)
            facts = plain.status, plain.next_offset, plain.suggest_slave, taken(plain)
            judged = whole(
                store.reader.get_judged("Orders", 0, offset, most, wanted(ALL), most_bytes, limits)
            )
            assert (judged.status, judged.next_offset, judged.suggest_slave, taken(judged)) == facts


def test_a_dear_filter_ends_the_answer_early(store: MessageStore) -> None:
    cheap, dear = wanted("TAGS = 'T4'"), wanted("TAGS = 'T4'")
    dear.cost = 10_000
    ends = [
        whole(store.reader.get_judged("Orders", 0, 0, 32, one, None, RECENT)).next_offset
        for one in (cheap, dear)
    ]
    assert ends[0] == COUNT
    assert 0 < ends[1] < 15


def test_a_step_judges_some_messages_only(store: MessageStore) -> None:
    dear = wanted("TAGS = 'T4'")
    dear.cost = 2_400
    steps = store.reader.get_judged("Orders", 0, 0, 32, dear, None, RECENT)
    assert sum(1 for _ in steps) >= COUNT // 6 // 3


def test_an_entry_that_names_another_message_is_repaired_before_it_is_judged(
    tmp_path: Path,
) -> None:
    settings = small_settings(tmp_path, consume_queue_segment_bytes=COUNT * 20)
    damaged = MessageStore.open(settings)
    made = fill(damaged, COUNT)
    damaged.close()
    path = queue_file(tmp_path)
    data = bytearray(path.read_bytes())
    # Slots 3 and 30 say what 4 and 31 do; those do not match, the lost ones would.
    for slot in (3, 30):
        data[slot * 20 : slot * 20 + 20] = data[slot * 20 + 20 : slot * 20 + 40]
    path.write_bytes(data)
    damaged = MessageStore.open(settings)
    assert pulled(damaged, "TAGS = 'T0'") == made[0::3]
    damaged.close()


def test_a_damaged_message_is_passed_over_as_by_tag(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, consume_queue_segment_bytes=COUNT * 20)
    damaged = MessageStore.open(settings)
    made = fill(damaged, COUNT)
    damaged.close()
    flip(log_segment(tmp_path), 4, 0xFF)
    damaged = MessageStore.open(settings)
    assert pulled(damaged, ALL) == made[1:]
    damaged.close()


def test_steps_that_are_given_up_hold_no_segment(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_JUDGED_STEP", 1)
    steps = store.reader.get_judged("Orders", 0, 0, COUNT, wanted(ALL), None, RECENT)
    next(steps)
    first = store.log.segments.find(0)
    assert first is not None
    assert first.pins == 1
    steps.close()
    assert first.pins == 0


def test_a_queue_deleted_between_two_steps_ends_them_with_what_was_found(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_JUDGED_STEP", 1)
    steps = store.reader.get_judged("Orders", 0, 0, COUNT, wanted(ALL), None, RECENT)
    next(steps)
    store.delete_topic("Orders")
    result = whole(steps)
    assert (result.status, result.next_offset) == (GetStatus.FOUND, 1)
    result.release()


def test_the_properties_of_a_message_are_found_by_its_place(store: MessageStore) -> None:
    assert store.reader.properties_at("Orders", 0, 5) == message(tags="T2", unique="U5").properties
    assert store.reader.properties_at("Orders", 0, COUNT) is None
    assert store.reader.properties_at("Orders", 9, 0) is None
