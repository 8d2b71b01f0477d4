"""Damage, an audit that names it, a repair, an audit that finds nothing, a broker that serves all
that is left: a round trip for every kind of damage there is."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.tables.files.state_file import JsonStateFile, pretty
from aerobee.store.at_rest.audit.verify import verify
from aerobee.store.at_rest.repair.at_rest import StoreAtRest
from aerobee.store.at_rest.repair.repair import plan_repair, repair
from aerobee.store.at_rest.repair.repair_plan import RepairPlan
from aerobee.store.at_rest.repair.truncate import plan_cut, truncate
from aerobee.store.disk.files import Files
from aerobee.store.errors import StoreSizeMismatch
from aerobee.store.inspect.finding_kinds import KINDS, Level
from aerobee.store.message_store import MessageStore
from tests.unit.store.at_rest import audit_support as at
from tests.unit.store.at_rest.audit import test_audit_findings as findings
from tests.unit.store.disk.crashing_files import Crashed, CrashingFiles
from tests.unit.store.support import (
    QUEUE_SEGMENT,
    SEGMENT,
    adopt,
    bodies,
    fill,
    flip,
    log_segment,
    message,
    queue_file,
    small_settings,
    tree,
)

# Damage that no repair undoes, and why.
HOPELESS = {"log-missing": "the whole commit log is missing", "start-refused": "a start is refused"}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return at.make(tmp_path_factory.mktemp("repair") / "template")


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    return at.copy(template, tmp_path / "store")


def save(path: str, content: Mapping[str, Any]) -> None:
    JsonStateFile(path).save(pretty(content))


def plan(root: Path, **changes: Any) -> RepairPlan:
    with StoreAtRest(small_settings(root, **changes), reading=True) as rest:
        return plan_repair(rest)


def mend(root: Path, *, files: Files | None = None, **changes: Any) -> RepairPlan:
    with StoreAtRest(small_settings(root, **changes), files=files) as rest:
        made = plan_repair(rest)
        repair(rest, made, save)
        return made


def contents(root: Path, **changes: Any) -> dict[int, list[bytes]]:
    """All that is served, by queue of Orders."""
    store = MessageStore.open(small_settings(root, **changes))
    found = {queue_id: bodies(store, "Orders", queue_id) for queue_id in range(3)}
    assert store.close()
    return found


def lost_of(root: Path) -> list[Path]:
    return sorted(
        path
        for aside in root.glob("lost+found-*")
        for path in aside.rglob("*")
        if path.is_file() and "commitlog" in path.parts
    )


@pytest.mark.parametrize(
    "kind", [kind for kind in findings.SCENARIOS if KINDS[kind].level is Level.DAMAGE]
)
def test_damage_is_repaired_and_what_is_left_is_served(
    kind: str, template: Path, tmp_path: Path
) -> None:
    damage, _, made_with, checked_with = findings.SCENARIOS[kind]
    if made_with:
        template = at.make(tmp_path / "template", **made_with)
    root = at.copy(template, tmp_path / "store")
    damage(root)
    changes = checked_with(root)
    before = at.check(root, **changes)
    assert not before.sound
    made = mend(root, **changes)
    if kind in HOPELESS:
        assert HOPELESS[kind] in made.impossible[0]
        return
    assert made.impossible == []
    after = at.check(root, **changes)
    assert after.sound, list(after.findings)
    assert plan(root, **changes).steps == []
    store = MessageStore.open(small_settings(root, **changes))
    for queue_id in range(3):
        end = store.max_offset("Orders", queue_id)
        if kind != "numbering-restarted":
            assert end >= at.PER_QUEUE
        assert store.log.put(message(queue_id=queue_id)).queue_offset == end
    assert store.close()


def test_a_sound_store_is_left_alone(root: Path) -> None:
    before = tree(root, ".")
    made = mend(root)
    assert (made.steps, made.queues, made.index) == ([], False, False)
    assert tree(root, ".") == before


def test_a_plan_changes_nothing(root: Path) -> None:
    log_segment(root, SEGMENT).unlink()
    at.flip_log(root, at.of_queue(root, 0)[1].log_offset)
    before = tree(root, ".")
    assert len(plan(root).steps) == 2
    assert tree(root, ".") == before


# --- what is kept and lost ---------------------------------------------------------------------


def test_k_damaged_records_cost_k_messages_and_their_bytes_are_kept(root: Path) -> None:
    everything = at.records(root)
    whole = contents(root)
    lost = [at.of_queue(root, 1)[number] for number in (3, 4, 20, 33)]
    for one in lost:
        at.flip_log(root, one.log_offset + 95)
    mend(root)
    assert contents(root) == {**whole, 1: [body for body in whole[1] if body not in {
        one.body for one in lost
    }]}  # fmt: skip
    kept = lost_of(root)
    # Records 3 and 4 are not neighbours in the log, so each has a file of its own.
    assert [path.stat().st_size for path in kept] == [one.size for one in lost]
    assert len(at.records(root)) == len(everything)


def test_a_missing_segment_leaves_the_others_and_the_numbers(root: Path) -> None:
    whole = contents(root)
    gone = {one.body for one in at.records(root) if SEGMENT <= one.log_offset < 2 * SEGMENT}
    log_segment(root, SEGMENT).unlink()
    (step,) = plan(root).steps
    assert step.what.endswith(f"{SEGMENT:020d}, empty")
    assert step.loses == (
        "4096 bytes, log offsets 4096 to 8192: messages Orders/0 8 to 15, Orders/1 7 to 14, "
        "Orders/2 7 to 14"
    )
    mend(root)
    assert contents(root) == {
        queue_id: [body for body in found if body not in gone] for queue_id, found in whole.items()
    }
    assert at.check(root).counts.lost_bytes == 0


def test_a_segment_that_was_taken_out_by_mistake_is_put_back(root: Path) -> None:
    whole = contents(root)
    aside = root / "lost+found-20250101-000000" / "commitlog"
    aside.mkdir(parents=True)
    shutil.move(log_segment(root, SEGMENT), aside)
    (step,) = plan(root).steps
    assert step.loses == "nothing"
    mend(root)
    assert contents(root) == whole


def test_a_shrunk_segment_keeps_what_is_left_of_it(root: Path) -> None:
    whole = contents(root)
    everything = at.records(root)
    os.truncate(log_segment(root, SEGMENT), 1000)
    gone = {
        one.body
        for one in everything
        if one.log_offset + one.size > SEGMENT + 1000 and one.log_offset < 2 * SEGMENT
    }
    mend(root)
    assert contents(root) == {
        queue_id: [body for body in found if body not in gone] for queue_id, found in whole.items()
    }
    (kept,) = lost_of(root)
    assert kept.stat().st_size < 200  # the half of a record in front of the cut


@pytest.mark.parametrize("where", ["last", "all"])
def test_a_shrunk_last_segment_keeps_the_numbers(root: Path, where: str) -> None:
    last = max((root / "commitlog").iterdir())
    os.truncate(last, 0 if where == "all" else 700)
    mend(root)
    assert at.check(root).sound
    store = MessageStore.open(small_settings(root))
    assert [store.max_offset("Orders", queue_id) for queue_id in range(3)] == [34] * 3
    assert store.log.put(message()).queue_offset == 34
    assert store.close()


def test_segments_after_the_last_that_were_known_are_made_empty(root: Path) -> None:
    last = max((root / "commitlog").iterdir())
    last.unlink()
    assert "segment" in str(plan(root).steps[0])
    mend(root)
    store = MessageStore.open(small_settings(root))
    assert store.written >= int(last.name) + SEGMENT
    assert [store.max_offset("Orders", queue_id) for queue_id in range(3)] == [34] * 3
    assert store.close()
    assert at.check(root).sound


def test_swapped_segments_are_swapped_back(root: Path) -> None:
    before = tree(root, "commitlog")
    first, second = log_segment(root, SEGMENT), log_segment(root, 2 * SEGMENT)
    first.rename(root / "x")
    second.rename(first)
    (root / "x").rename(second)
    made = mend(root)
    assert [step.loses for step in made.steps] == ["nothing"]
    assert tree(root, "commitlog") == before
    assert at.kinds(at.check(root)) == set()


def test_a_copy_over_another_segment_costs_that_one_only(root: Path) -> None:
    whole = contents(root)
    gone = {one.body for one in at.records(root) if SEGMENT <= one.log_offset < 2 * SEGMENT}
    shutil.copy(log_segment(root, 2 * SEGMENT), log_segment(root, SEGMENT))
    mend(root)
    assert contents(root) == {
        queue_id: [body for body in found if body not in gone] for queue_id, found in whole.items()
    }


def test_a_longer_segment_loses_nothing_and_the_rest_is_kept(root: Path) -> None:
    whole = contents(root)
    with log_segment(root, SEGMENT).open("ab") as file:
        file.write(b"and more")
    mend(root)
    assert contents(root) == whole
    (kept,) = lost_of(root)
    assert kept.read_bytes() == b"and more"


def test_damaged_segment_end_becomes_a_blank(root: Path) -> None:
    last = [one for one in at.records(root) if one.log_offset < SEGMENT][-1]
    at.overwrite_log(root, last.log_offset, b"\xff" * (SEGMENT - last.log_offset))
    mend(root)
    data = log_segment(root).read_bytes()
    assert data[last.log_offset : last.log_offset + 8] == (
        (SEGMENT - last.log_offset).to_bytes(4, "big") + b"\xcb\xd4\x31\x94"
    )
    assert data[last.log_offset + 8 :].count(0) == SEGMENT - last.log_offset - 8


def test_a_file_far_away_is_not_taken_for_the_end_of_a_hole(root: Path) -> None:
    log_segment(root, 1 << 40).write_bytes(b"\1" * SEGMENT)
    assert "segments are missing" in plan(root).impossible[0]
    log_segment(root, 1 << 40).write_bytes(bytes(SEGMENT))
    (step,) = plan(root).steps
    assert "holds nothing" in step.what
    mend(root)
    assert at.check(root).sound


def test_a_table_comes_from_its_backup_and_the_damaged_one_is_kept(root: Path) -> None:
    topics = root / "config" / "topics.json"
    topics.write_text("{")
    mend(root)
    assert topics.read_text() == at.TOPICS
    (aside,) = root.glob("lost+found-*")
    assert (aside / "config" / "topics.json").read_text() == "{"


def test_foreign_files_leave_and_the_log_stays_as_it_is(root: Path) -> None:
    (root / "commitlog" / "lost+found").mkdir()
    (root / "consumequeue" / "Orders" / "0" / "backup").write_text("mine")
    before = tree(root, "commitlog")
    mend(root)
    assert at.kinds(at.check(root)) == set()
    (aside,) = root.glob("lost+found-*")
    assert (aside / "consumequeue" / "Orders" / "0" / "backup").read_text() == "mine"
    assert tree(root, "commitlog") == before


def test_two_files_of_a_name_the_one_that_holds_more_stays(root: Path) -> None:
    elsewhere = root / "elsewhere"
    elsewhere.mkdir()
    changes = {"read_only_commit_log_paths": str(elsewhere)}
    whole = log_segment(root, SEGMENT).read_bytes()
    (elsewhere / log_segment(root, SEGMENT).name).write_bytes(whole)
    log_segment(root, SEGMENT).write_bytes(whole[:2000] + bytes(2096))
    mend(root, **changes)
    assert at.check(root, **changes).sound
    assert len(contents(root, **changes)[0]) == 34


def test_a_known_gap_that_was_filled_is_no_gap_any_more(root: Path) -> None:
    at.flip_log(root, at.of_queue(root, 1)[10].log_offset + 95)
    (root / "abort").touch()
    adopt(root, flushed=0)
    shutil.rmtree(root / "index")
    MessageStore.open(small_settings(root)).close()  # the recovery meets and remembers it
    assert at.check(root).findings.of("record-damaged")[0].what.endswith("known to the broker")
    mend(root)
    store = MessageStore.open(small_settings(root))
    assert store.recovery.known_gaps == ()
    assert store.close()


def test_what_was_cut_on_purpose_does_not_come_back(root: Path) -> None:
    with StoreAtRest(small_settings(root)) as rest:
        truncate(rest, plan_cut(rest, at=at.records(root)[30].log_offset), save)
    store = MessageStore.open(small_settings(root))
    new = fill(store, 60)
    assert store.close()
    log_segment(root, 2 * SEGMENT).unlink()
    (step,) = plan(root).steps
    assert "empty" in step.what
    mend(root)
    kept = contents(root)[0]
    assert kept[-1] == new[-1]


def test_many_kinds_of_damage_at_once(root: Path) -> None:
    log_segment(root, SEGMENT).unlink()
    at.flip_log(root, at.of_queue(root, 0)[1].log_offset)
    os.truncate(log_segment(root, 2 * SEGMENT), 3000)
    flip(queue_file(root, queue_id=2, start=QUEUE_SEGMENT), 33)
    at.index_files(root)[2].write_bytes(b"x")
    (root / "commitlog" / "notes").touch()
    (root / "config" / "topics.json").write_text("?")
    mend(root)
    after = at.check(root)
    assert after.sound, list(after.findings)
    assert contents(root)[0]


def test_a_crash_anywhere_is_repaired_by_another_repair(tmp_path: Path) -> None:
    template = tmp_path / "template"
    store = MessageStore.open(small_settings(template))
    made = fill(store, 50)
    assert store.close()
    first, second = log_segment(template, SEGMENT), log_segment(template, 0)
    kept, other = first.read_bytes(), second.read_bytes()
    lost = at.of_queue(template)[48]
    at.flip_log(template, lost.log_offset + 95)
    first.write_bytes(other)
    second.write_bytes(kept)
    wanted = [body for body in made if body != lost.body]
    nth = 0
    ended = False
    while not ended:
        nth += 1 if nth < 25 else 4  # the first ones move and fill, the others rebuild
        root = at.copy(template, tmp_path / "crash")
        files = CrashingFiles(nth)
        try:
            mend(root, files=files)
            ended = True
        except Crashed:
            files.give_back(root)
        mend(root)
        assert at.check(root).sound, nth
        store = MessageStore.open(small_settings(root))
        assert bodies(store) == wanted, nth
        assert store.max_offset("Orders", 0) == 50
        assert store.close()
        shutil.rmtree(root)
    assert nth > 30


# --- what only looks like it -------------------------------------------------------------------


@pytest.mark.parametrize("bit", range(13, 17))
def test_damaged_log_offset_of_a_first_record_costs_no_segment(root: Path, bit: int) -> None:
    whole = contents(root)
    lost = next(one for one in at.records(root) if one.log_offset == SEGMENT)
    at.flip_log(root, SEGMENT + 35 - bit // 8, 1 << bit % 8)
    made = mend(root)
    assert made.impossible == []
    assert at.check(root).sound
    whole[lost.queue_id].remove(lost.body)
    assert contents(root) == whole


def test_what_is_in_the_way_of_a_start_is_taken_out(root: Path) -> None:
    whole = contents(root)
    for name in ("checkpoint", "offsets", "offsets.tmp"):
        (root / name).unlink(missing_ok=True)
        (root / name).mkdir()
    assert at.kinds(at.check(root)) == {"not-a-file"}
    mend(root)
    assert at.check(root).sound
    assert contents(root) == whole


def test_only_segment_gone_cannot_be_repaired_and_what_blocks_a_start_is_named(
    tmp_path: Path,
) -> None:
    root = tmp_path / "store"
    store = MessageStore.open(small_settings(root))
    fill(store, 3)
    assert store.close()
    log_segment(root).unlink()
    assert "consumequeue, index and offsets" in plan(root).impossible[0]
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    assert "consumequeue, index and offsets" in plan(root).impossible[0]
    (root / "offsets").unlink()
    assert plan(root).impossible == []
    assert MessageStore.open(small_settings(root)).close()


# --- a log that has lost its end ----------------------------------------------------------------


def cut_copy(template: Path, root: Path, how: str) -> Path:
    """A copy, whose offsets file says nothing, of a store that was stopped in order."""
    shutil.copytree(template, root)
    last = max(start for start in (int(path.name) for path in (root / "commitlog").iterdir()
               if path.stat().st_size and path.read_bytes().strip(b"\0")))  # fmt: skip
    path = log_segment(root, last)
    if how == "removed":
        path.unlink()
    else:
        os.truncate(path, 200)
    return root


@pytest.mark.parametrize("how", ["removed", "cut"])
def test_lost_end_of_the_log_is_named_and_no_number_is_given_twice(
    template: Path, tmp_path: Path, how: str
) -> None:
    whole = {queue_id: at.of_queue(template, queue_id) for queue_id in range(3)}
    root = cut_copy(template, tmp_path / "store", how)
    last = max(int(path.name) for path in (root / "commitlog").iterdir())
    end = last + os.path.getsize(log_segment(root, last))
    kept = {one.log_offset for one in at.records(template) if one.log_offset + one.size <= end}
    lost = [one for queue in whole.values() for one in queue if one.log_offset not in kept]
    made = mend(root)
    assert made.impossible == []
    said = " ".join(step.loses for step in made.steps)
    for queue_id in range(3):
        numbers = [one.queue_offset for one in lost if one.queue_id == queue_id]
        if numbers:
            assert f"Orders/{queue_id} {numbers[0]}" in said
    assert made.lost == len(lost)
    assert at.check(root).sound
    served = contents(root)
    store = MessageStore.open(small_settings(root))
    for queue_id, everything in whole.items():
        assert served[queue_id] == [one.body for one in everything if one.log_offset in kept]
        assert store.log.put(message(queue_id=queue_id)).queue_offset == at.PER_QUEUE
    assert store.close()


def test_repair_of_a_lost_end_that_is_broken_off_loses_no_number(
    template: Path, tmp_path: Path
) -> None:
    original = cut_copy(template, tmp_path / "original", "cut")
    for call in range(1, 400, 7):
        root = tmp_path / f"store{call}"
        shutil.copytree(original, root)
        files = CrashingFiles(call)
        try:
            mend(root, files=files)
        except Crashed:
            files.give_back(root)
            made = mend(root)
            assert made.impossible == []
        else:
            break
        assert at.check(root).sound, call
        store = MessageStore.open(small_settings(root))
        for queue_id in range(3):
            assert store.max_offset("Orders", queue_id) == at.PER_QUEUE, call
        assert store.close()
        shutil.rmtree(root)
    else:
        raise AssertionError("it never ended")


# --- one segment whose length somebody has changed -----------------------------------------------


def one_segment(root: Path) -> Path:
    store = MessageStore.open(small_settings(root))
    fill(store, 20)
    assert store.close()
    return root


def repair_by(root: Path, *given: str, **changes: Any) -> RepairPlan:
    """Repair with the settings that `given` names; all others are found."""
    changes = {"commit_log_segment_bytes": 1 << 30, **changes}
    with StoreAtRest(small_settings(root, **changes), given) as rest:
        made = plan_repair(rest)
        if not made.impossible:
            repair(rest, made, save)
        return made


def start(root: Path) -> list[bytes]:
    """Start as the broker does, by its settings."""
    store = MessageStore.open(small_settings(root))
    found = bodies(store)
    assert store.max_offset("Orders", 0) == 20
    assert store.close()
    return found


@pytest.mark.parametrize("given", [(), ("commit_log_segment_bytes",)])
@pytest.mark.parametrize("size", [1000, 6000])
def test_changed_length_of_the_only_segment_is_undone(
    tmp_path: Path, size: int, given: tuple[str, ...]
) -> None:
    root = one_segment(tmp_path / "store")
    whole = at.records(root)
    os.truncate(log_segment(root), size)
    changes = {"commit_log_segment_bytes": SEGMENT} if given else {}
    with pytest.raises(StoreSizeMismatch):
        MessageStore.open(small_settings(root))
    assert not verify(small_settings(root, **changes), given).sound
    made = repair_by(root, *given, **changes)
    assert made.impossible == []
    assert verify(small_settings(root, **changes), given).sound
    assert start(root) == [one.body for one in whole if one.log_offset + one.size <= size]


def test_unknown_size_of_a_cut_segment_is_asked_for(tmp_path: Path) -> None:
    original = one_segment(tmp_path / "original")
    adopt(original, segment_bytes=0)
    root = tmp_path / "store"
    shutil.copytree(original, root)  # a copy: the offsets file is not believed
    os.truncate(log_segment(root), 1000)
    assert "mappedFileSizeCommitLog" in repair_by(root).impossible[0]
    made = repair_by(root, "commit_log_segment_bytes", commit_log_segment_bytes=SEGMENT)
    assert made.lost > 0
    start(root)


def test_size_that_would_cut_records_off_is_refused(tmp_path: Path) -> None:
    root = one_segment(tmp_path / "store")
    before = tree(root, "commitlog")
    made = repair_by(root, "commit_log_segment_bytes", commit_log_segment_bytes=1024)
    assert "segments are longer" in made.impossible[0]
    assert tree(root, "commitlog") == before


def test_copy_of_a_segment_far_behind_the_log_costs_nothing(tmp_path: Path) -> None:
    root = one_segment(tmp_path / "store")
    shutil.copy(log_segment(root), log_segment(root, 3 * SEGMENT))
    assert at.kinds(at.check(at.keep_topics(root))) == {"segment-misplaced"}
    made = mend(root)
    assert [step.loses.split(",")[0] for step in made.steps] == ["nothing"]
    assert made.lost == 0
    assert at.check(root).sound
    assert len(start(root)) == 20
