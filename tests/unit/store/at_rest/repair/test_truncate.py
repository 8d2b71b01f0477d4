"""A store cut at a record is the store as it was before that record."""

import errno
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.tables.files.state_file import JsonStateFile, pretty
from aerobee.store.at_rest.repair.at_rest import StoreAtRest
from aerobee.store.at_rest.repair.truncate import Cut, plan_cut, truncate
from aerobee.store.disk.files import Files
from aerobee.store.errors import NoSuchPlace, StoreLayoutError, StoreSizeMismatch
from aerobee.store.message_store import MessageStore
from tests.unit.store.at_rest import audit_support as at
from tests.unit.store.disk.crashing_files import Crashed, CrashingFiles
from tests.unit.store.support import (
    FIRST_MS,
    QUEUE_SEGMENT,
    SEGMENT,
    adopt,
    bodies,
    fill,
    log_segment,
    message,
    queue_file,
    small_settings,
    tree,
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return at.make(tmp_path_factory.mktemp("truncate") / "template")


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    return at.copy(template, tmp_path / "store")


def save(path: str, content: Mapping[str, Any]) -> None:
    JsonStateFile(path).save(pretty(content))


def plan(root: Path, *, log_offset: int | None = None, after_ms: int | None = None) -> Cut:
    with StoreAtRest(small_settings(root), reading=True) as rest:
        return plan_cut(rest, at=log_offset, after_ms=after_ms)


def cut_at(
    root: Path, log_offset: int, *, discard: bool = False, files: Files | None = None
) -> Cut:
    with StoreAtRest(small_settings(root), files=files) as rest:
        cut = plan_cut(rest, at=log_offset)
        truncate(rest, cut, save, discard=discard)
        return cut


def contents(store: MessageStore) -> dict[tuple[str, int], list[bytes]]:
    return {key: bodies(store, *key) for key in store.queues()}


@pytest.mark.parametrize("number", [1, 23, 24, 50, 90, 105])
def test_what_is_left_is_what_was_before_the_record(root: Path, number: int) -> None:
    everything = at.records(root)
    place = everything[number].log_offset
    cut = cut_at(root, place)
    assert at.records(root) == everything[:number]
    assert (cut.records, cut.log_end) == (len(everything) - number, at.log_end(root) + cut.bytes)
    report = at.check(root)
    assert at.kinds(report) <= {"topic-deleted"}, list(report.findings)
    store = MessageStore.open(small_settings(root))
    assert store.recovery.clean_stop
    assert store.written == place
    for queue_id in range(3):
        wanted = [
            one.body
            for one in everything[:number]
            if (one.topic, one.queue_id) == ("Orders", queue_id) and one.body != b"back"
        ]
        assert bodies(store, "Orders", queue_id) == wanted
        assert store.log.put(message(queue_id=queue_id)).queue_offset == len(wanted)
    assert store.close()


def test_a_cut_store_is_the_one_that_never_had_more(tmp_path: Path) -> None:
    short, long = tmp_path / "short", tmp_path / "long"
    at.make(short)
    shutil.copytree(short, long)
    adopt(long)
    store = MessageStore.open(small_settings(long))
    place = store.written
    fill(store, 60, queues=3)
    assert store.close()
    cut_at(long, place)
    for below in ("commitlog", "consumequeue"):
        assert tree(long, below) == tree(short, below)
    assert [*tree(long, "index").values()] == [*tree(short, "index").values()]


def test_the_plan_counts_and_changes_nothing(root: Path) -> None:
    before = tree(root, ".")
    everything = at.records(root)
    cut = plan(root, log_offset=everything[96].log_offset)
    assert (cut.records, dict(cut.topics)) == (10, {"Orders": 10})
    assert cut.queue_ends == {("Orders", 0): 31, ("Orders", 1): 31, ("Orders", 2): 30}
    assert cut.last_kept_ms == FIRST_MS + 92 * 1500
    assert (cut.first_ms, cut.last_ms) == (FIRST_MS + 93 * 1500, FIRST_MS + 102 * 1500)
    assert cut.segments == [str(log_segment(root, 4 * SEGMENT))]
    assert plan(root, log_offset=SEGMENT).segments == [
        str(log_segment(root, start * SEGMENT)) for start in range(1, 5)
    ]
    assert tree(root, ".") == before


def test_groups_do_not_stand_behind_the_end(root: Path) -> None:
    place = at.of_queue(root, 1)[20].log_offset
    cut = cut_at(root, place)
    assert cut.offsets == 2
    table = json.loads(
        (root / "config" / "consumerOffset.json").read_text().replace("{0", '{"0"')
        .replace(",1:", ',"1":').replace(",2:", ',"2":')
    )  # fmt: skip
    assert table["offsetTable"] == {"Orders@g1": {"0": 5, "1": 20, "2": 20}, "Gone@g1": {"0": 500}}
    assert (root / "config" / "consumerOffset.json.bak").read_text() == at.OFFSETS


def test_what_is_cut_is_kept_unless_discarded(root: Path, tmp_path: Path) -> None:
    other = at.copy(root, tmp_path / "other")
    everything = at.records(root)
    place = everything[30].log_offset
    log = b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))
    cut_at(root, place)
    (aside,) = [path for path in root.iterdir() if path.name.startswith("lost+found-")]
    kept = sorted((aside / "commitlog").iterdir())
    start = place // SEGMENT * SEGMENT
    assert kept[0].name.startswith(f"{start:020d}.{place - start}-")
    assert kept[0].read_bytes() == log[place : start + SEGMENT].rstrip(b"\0")
    assert [path.read_bytes() for path in kept[1:]] == [
        log[n * SEGMENT : (n + 1) * SEGMENT] for n in range(start // SEGMENT + 1, 5)
    ]
    cut_at(other, place, discard=True)
    assert not [path for path in other.iterdir() if path.name.startswith("lost+found-")]
    assert at.records(other) == at.records(root)


def test_time_cuts_behind_the_last_message_stored_until_then(root: Path) -> None:
    everything = at.records(root)
    time_ms = FIRST_MS + 93 * 1500
    assert plan(root, after_ms=time_ms).log_offset == everything[97].log_offset
    assert plan(root, after_ms=time_ms - 1).log_offset == everything[96].log_offset
    assert plan(root, after_ms=0).log_offset == 0
    assert plan(root, after_ms=FIRST_MS * 2).bytes == 0


def test_all_can_be_cut(root: Path) -> None:
    cut_at(root, 0)
    assert at.records(root) == []
    assert [path.name for path in (root / "commitlog").iterdir()] == [f"{0:020d}"]
    store = MessageStore.open(small_settings(root))
    assert store.log.put(message()).log_offset == 0
    assert store.close()


def test_a_place_that_is_none_is_refused_with_its_neighbours(root: Path) -> None:
    everything = at.records(root)
    before = tree(root, ".")
    one, following = everything[50], everything[51]
    for place in (one.log_offset + 1, following.log_offset - 1):
        with pytest.raises(
            NoSuchPlace, match=f"nearest places are {one.log_offset} and {following.log_offset}"
        ):
            plan(root, log_offset=place)
    with pytest.raises(NoSuchPlace, match=f"the log ends at {at.log_end(root)}"):
        plan(root, log_offset=at.log_end(root) + 1)
    assert plan(root, log_offset=at.log_end(root)).bytes == 0
    assert tree(root, ".") == before
    log_segment(root).unlink()
    MessageStore.open(small_settings(root)).close()
    with pytest.raises(NoSuchPlace, match="the log begins at 4096"):
        plan(root, log_offset=5)


def test_the_end_of_a_segments_records_and_its_beginning_are_places(root: Path) -> None:
    last = [one for one in at.records(root) if one.log_offset < SEGMENT][-1]
    for place in (last.log_offset + last.size, SEGMENT):
        other = at.copy(root, root.with_name(f"cut{place}"))
        cut_at(other, place)
        assert at.records(other)[-1] == last
        assert at.check(other).sound


def test_a_cut_in_front_of_damage_takes_it_away(root: Path) -> None:
    everything = at.records(root)
    at.flip_log(root, everything[60].log_offset)
    assert not at.check(root).sound
    cut_at(root, everything[60].log_offset)
    assert at.check(root).sound
    assert at.records(root) == everything[:60]


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_store_that_is_not_whole_is_refused(root: Path, damage: str) -> None:
    if damage == "missing":
        log_segment(root, SEGMENT).unlink()
    else:
        log_segment(root, SEGMENT).write_bytes(b"x")
    before = tree(root, ".")
    with pytest.raises((StoreLayoutError, StoreSizeMismatch)):
        plan(root, log_offset=0)
    assert tree(root, ".") == before


@pytest.mark.parametrize("missing", [0, 1, 2])
@pytest.mark.parametrize("number", [5, 9, 15, 25, 34])
def test_a_queue_file_that_is_missing_is_made_again(
    root: Path, tmp_path: Path, missing: int, number: int
) -> None:
    """It works as a start does: consume queues follow from the log. No group is set back
    further."""
    everything = at.of_queue(root, 1)
    place = everything[number].log_offset if number < len(everything) else at.log_end(root)
    whole = at.copy(root, tmp_path / "whole")
    queue_file(root, queue_id=1, start=missing * QUEUE_SEGMENT).unlink()
    cut, wanted = cut_at(root, place), cut_at(whole, place)
    assert cut.queue_ends == wanted.queue_ends
    for below in ("commitlog", "consumequeue", "config"):
        assert tree(root, below) == tree(whole, below)
    assert at.check(root).sound


def test_what_a_killed_broker_had_not_dispatched_comes_into_its_queue(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = MessageStore.open(small_settings(root))
    made = fill(store, 10)
    for number in range(10, 20):
        store.log.put(message(b"%06d" % number))
    killed = adopt(shutil.copytree(root, tmp_path / "killed"))
    assert store.close()
    assert len(at.of_queue(killed)) == 20
    cut_at(killed, at.of_queue(killed)[15].log_offset)
    assert at.check(killed).sound
    store = MessageStore.open(small_settings(killed))
    assert bodies(store)[:10] == made
    assert bodies(store)[10:] == [b"%06d" % number for number in range(10, 15)]
    assert store.close()


def test_a_crash_anywhere_leaves_a_store_that_starts(tmp_path: Path) -> None:
    """Each start finds the whole log or the cut one; run again, the command cuts."""
    template = tmp_path / "template"
    store = MessageStore.open(small_settings(template))
    made = fill(store, 60)
    assert store.close()
    place = at.of_queue(template)[15].log_offset
    nth = 0
    ended = False
    while not ended:
        nth += 1 if nth < 20 else 3
        root = at.copy(template, tmp_path / "crash")
        files = CrashingFiles(nth)
        try:
            cut_at(root, place, files=files)
            ended = True
        except Crashed:
            files.give_back(root)
        again = shutil.copytree(root, tmp_path / "again")
        adopt(again)
        store = MessageStore.open(small_settings(root))
        found = bodies(store)
        assert found == made[: len(found)]
        assert len(found) >= 15
        assert store.max_offset("Orders", 0) == len(found)
        assert store.close()
        if place < at.log_end(again):
            cut_at(again, place)
        store = MessageStore.open(small_settings(again))
        assert bodies(store) == made[:15], nth
        assert store.close()
        assert at.check(again).sound
        shutil.rmtree(root)
        shutil.rmtree(again)
    assert nth > 15


@pytest.mark.parametrize("spare", [False, True])
@pytest.mark.parametrize("behind", [1, SEGMENT, 3 * SEGMENT, 100 * SEGMENT])
def test_a_place_far_behind_the_end_is_told_where_the_end_is(
    root: Path, behind: int, spare: bool
) -> None:
    end = at.log_end(root)
    if spare:
        log_segment(root, (end // SEGMENT + 1) * SEGMENT).write_bytes(bytes(SEGMENT))
    with pytest.raises(NoSuchPlace, match=f"the log ends at {end};"):
        plan(root, log_offset=end + behind)


def test_a_plan_opens_nothing_for_writing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a read-only mount it would be refused; root is refused by nothing else."""

    def read_only(path: str, flags: int, *more: int, **named: int) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EROFS, "read-only", path)
        return opened(path, flags, *more, **named)

    opened = os.open
    monkeypatch.setattr(os, "open", read_only)
    with StoreAtRest(small_settings(root), reading=True) as rest:
        assert plan_cut(rest, at=at.records(root)[50].log_offset).records
    assert at.check(root).sound
