"""Claims about reads in steps: they give the same as a read at once; nothing stays held."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.protocol.hashing import tag_code
from aerobee.protocol.message.record import decode_records
from aerobee.store.message_store import MessageStore
from aerobee.store.reading import queue_reader as reader
from aerobee.store.reading.queue_reader import ReadLimits
from aerobee.store.segments.results import GetResult, GetStatus
from tests.unit.store.support import fill, flip, log_segment, message, small_settings, whole

COUNT = 60
ENDLESS = 1 << 30
#: All of it is recent, and old: then the second pair of limits counts.
RECENT = ReadLimits(ENDLESS, ENDLESS, ENDLESS, ENDLESS, ENDLESS)
OLD = ReadLimits(0, ENDLESS, ENDLESS, 2_000, 7)
TAG_1 = frozenset({tag_code("T1")})


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the steps so small that a thousand messages are many."""
    monkeypatch.setattr(reader, "_STEP_ENTRIES", 7)
    monkeypatch.setattr(reader, "LEAST_ENTRIES", 1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    settings = small_settings(tmp_path, consume_queue_segment_bytes=COUNT * 20)
    opened = MessageStore.open(settings)
    fill(opened, COUNT)
    yield opened
    opened.close()


def facts(result: GetResult) -> tuple[object, ...]:
    """The facts that a caller sees, and the bodies; the result is released."""
    found = [one.body for view in result.views for one in decode_records(bytes(view))]
    assert (sum(map(len, result.views)), len(found)) == (result.size, result.count)
    with result:
        return (
            result.status,
            result.next_offset,
            result.min_offset,
            result.max_offset,
            result.suggest_slave,
            result.pending,
            found,
        )


@pytest.mark.parametrize("limits", [RECENT, OLD], ids=["recent", "old"])
@pytest.mark.parametrize("codes", [None, TAG_1, frozenset({7})], ids=["all", "tag", "none"])
@pytest.mark.parametrize("most_bytes", [None, 0, 150, 1_500])
def test_steps_give_what_one_read_gives(
    store: MessageStore, limits: ReadLimits, codes: frozenset[int] | None, most_bytes: int | None
) -> None:
    for offset in (-1, 0, 1, 33, COUNT - 1, COUNT, COUNT + 1):
        for most in (1, 6, 7, 8, 30, 1_000):
            asked = ("Orders", 0, offset, most, codes, most_bytes, limits)
            before = store.stats.get_found, store.stats.get_messages, store.stats.get_missed
            at_once = facts(store.reader.get(*asked))
            counted = store.stats.get_found, store.stats.get_messages, store.stats.get_missed
            assert facts(whole(store.reader.get_steps(*asked))) == at_once, (offset, most)
            twice = [2 * new - old for new, old in zip(counted, before, strict=True)]
            assert [
                store.stats.get_found,
                store.stats.get_messages,
                store.stats.get_missed,
            ] == twice


def test_a_step_looks_at_some_entries_only(store: MessageStore) -> None:
    steps = store.reader.get_steps("Orders", 0, 0, COUNT, None, None, RECENT)
    assert sum(1 for _ in steps) == -(-COUNT // 7)


def test_steps_go_on_in_the_next_file(tmp_path: Path) -> None:
    with_files = MessageStore.open(small_settings(tmp_path))
    made = fill(with_files, COUNT)
    assert with_files.reader.get("Orders", 0, 0, COUNT).count == 10
    result = whole(with_files.reader.get_steps("Orders", 0, 0, COUNT, None, None, RECENT))
    assert facts(result)[-1] == made
    with_files.close()


def test_a_message_that_is_no_more_is_passed_over(tmp_path: Path) -> None:
    settings = small_settings(
        tmp_path, consume_queue_segment_bytes=COUNT * 20, scrub_bytes_per_second=0
    )
    damaged = MessageStore.open(settings)
    made = fill(damaged, COUNT)
    damaged.close()
    flip(log_segment(tmp_path), 4, 0xFF)
    damaged = MessageStore.open(settings)
    asked = ("Orders", 0, 0, COUNT, None, None, RECENT)
    found: list[bytes] = []
    while len(found) < COUNT - 1:
        result = whole(damaged.reader.get_steps(*asked))
        following = result.next_offset
        found += facts(result)[-1]  # type: ignore[arg-type]
        assert following > asked[2] or result.pending
        asked = ("Orders", 0, following, COUNT, None, None, RECENT)
    assert found == made[1:]
    damaged.close()


def test_a_queue_deleted_between_two_steps_ends_them_with_what_was_found(
    store: MessageStore,
) -> None:
    steps = store.reader.get_steps("Orders", 0, 0, COUNT, None, None, RECENT)
    next(steps)
    store.delete_topic("Orders")
    result = whole(steps)
    assert (result.status, result.count, result.next_offset) == (GetStatus.FOUND, 7, 7)
    result.release()


def test_steps_that_are_given_up_hold_no_segment(store: MessageStore) -> None:
    steps = store.reader.get_steps("Orders", 0, 0, COUNT, None, None, RECENT)
    next(steps)
    first = store.log.segments.find(0)
    assert first is not None
    assert first.pins == 1
    steps.close()
    assert first.pins == 0


def test_what_arrives_between_two_steps_is_given_too(store: MessageStore) -> None:
    steps = store.reader.get_steps("Orders", 0, COUNT - 7, COUNT, None, None, RECENT)
    next(steps)
    store.log.put(message(b"late"))
    store.dispatch()
    result = whole(steps)
    assert result.count == 8
    result.release()
