"""Queues and index made again from the log are what a broker would have written."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee.protocol.message.properties import PROPERTY_MULTI_DISPATCH
from aerobee.store.at_rest.repair.at_rest import StoreAtRest
from aerobee.store.at_rest.repair.rebuild import RebuildReport, rebuild
from aerobee.store.disk.files import Files
from aerobee.store.errors import NotAStore, StoreInUse, StoreLayoutError, StoreSizeMismatch
from aerobee.store.message_store import MessageStore
from tests.faulty_files import FaultyFiles
from tests.unit.store.at_rest import audit_support as at
from tests.unit.store.disk.crashing_files import Crashed, CrashingFiles
from tests.unit.store.support import (
    SEGMENT,
    ManualClock,
    adopt,
    bodies,
    fill,
    flip,
    kill_image,
    log_segment,
    message,
    queue_file,
    small_settings,
    tree,
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return at.make(tmp_path_factory.mktemp("rebuild") / "template")


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    return at.copy(template, tmp_path / "store")


def run(
    root: Path,
    *given: str,
    queues: bool = True,
    index: bool = True,
    files: Files | None = None,
    **changes: Any,
) -> RebuildReport:
    with StoreAtRest(small_settings(root, **changes), given, files) as rest:
        return rebuild(rest, queues=queues, index=index)


def derived(root: Path) -> list[bytes]:
    """Queue files by name, index files in order."""
    queues = tree(root, "consumequeue")
    return [*(data for _, data in sorted(queues.items())), *tree(root, "index").values()]


def names(root: Path) -> list[str]:
    return sorted(tree(root, "consumequeue"))


def test_rebuilt_files_are_the_ones_that_were_there(root: Path) -> None:
    before, files = derived(root), names(root)
    report = run(root)
    assert (derived(root), names(root)) == (before, files)
    assert (report.records, report.queues, report.units) == (106, 4, 103)
    assert (report.index_files, report.keys) == (6, 206)
    assert (report.blanked, report.deleted, report.gaps) == (0, 0, [])
    assert at.kinds(at.check(root)) == set()
    assert not (root / "abort").exists()
    assert not (root / "rebuild").exists()


def test_what_was_there_is_kept_aside(root: Path) -> None:
    before = tree(root, "consumequeue") | tree(root, "index")
    report = run(root)
    assert report.aside is not None
    aside = Path(report.aside)
    assert aside.parent == root
    assert aside.name.startswith("lost+found-")
    assert tree(aside, "consumequeue") | tree(aside, "index") == before


@pytest.mark.parametrize("which", ["queues", "index"])
def test_one_of_both_is_rebuilt_and_the_other_left_alone(root: Path, which: str) -> None:
    before = derived(root)
    kept = "index" if which == "queues" else "consumequeue"
    untouched = {path: path.stat().st_ino for path in (root / kept).rglob("*")}
    run(root, queues=which == "queues", index=which == "index")
    assert {path: path.stat().st_ino for path in (root / kept).rglob("*")} == untouched
    assert derived(root) == before
    assert at.kinds(at.check(root)) == set()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "unit": lambda root: flip(queue_file(root), 25),
    "units zeroed": lambda root: at.overwrite(queue_file(root), 0, bytes(200)),
    "file missing": lambda root: queue_file(root, start=200).unlink(),
    "last file missing": lambda root: queue_file(root, start=600).unlink(),
    "queue missing": lambda root: shutil.rmtree(root / "consumequeue" / "Orders" / "1"),
    "all queues missing": lambda root: shutil.rmtree(root / "consumequeue"),
    "file cut": lambda root: queue_file(root).write_bytes(queue_file(root).read_bytes()[:77]),
    "files swapped": lambda root: queue_file(root).write_bytes(
        queue_file(root, start=200).read_bytes()
    ),
    "index header": lambda root: flip(at.index_files(root)[2], 36),
    "index entry": lambda root: flip(at.index_files(root)[2], at.INDEX_ENTRIES_AT + 50),
    "index cut": lambda root: at.index_files(root)[2].write_bytes(b"short"),
    "index missing": lambda root: shutil.rmtree(root / "index"),
    "index file missing": lambda root: at.index_files(root)[0].unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_become_what_they_were(root: Path, damage: str) -> None:
    before, files = derived(root), names(root)
    DAMAGE[damage](root)
    run(root)
    assert (derived(root), names(root)) == (before, files)
    assert at.kinds(at.check(root)) == set()


def test_slots_of_lost_messages_stay_and_numbering_goes_on(root: Path) -> None:
    lost = [at.of_queue(root, 1)[number] for number in (5, 32, 33)]
    for one in lost:
        at.flip_log(root, one.log_offset + 95)
    report = run(root)
    assert [(gap.start, gap.end) for gap in report.gaps] == [
        (one.log_offset, one.log_offset + one.size) for one in lost
    ]
    store = MessageStore.open(small_settings(root))
    assert len(bodies(store, queue_id=1)) == 31
    assert store.max_offset("Orders", 1) == 34
    assert store.log.put(message(queue_id=1)).queue_offset == 34
    store.close()


def test_a_log_whose_beginning_was_deleted_gives_the_same_offsets(root: Path) -> None:
    log_segment(root).unlink()
    log_segment(root, SEGMENT).unlink()
    store = MessageStore.open(small_settings(root))
    ends = {key: (store.min_offset(*key), store.max_offset(*key)) for key in store.queues()}
    kept = {key: bodies(store, *key) for key in store.queues()}
    assert store.close()
    run(root)
    store = MessageStore.open(small_settings(root))
    assert {key: (store.min_offset(*key), store.max_offset(*key)) for key in store.queues()} == ends
    assert {key: bodies(store, *key) for key in store.queues()} == kept
    store.close()
    assert at.check(root).sound


def test_a_queue_whose_messages_are_all_deleted_keeps_its_number(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = MessageStore.open(small_settings(root))
    for _ in range(3):
        store.log.put(message(topic="Old"))
    fill(store, 60)
    assert store.close()
    log_segment(root).unlink()
    run(root)
    store = MessageStore.open(small_settings(root))
    assert store.log.put(message(topic="Old")).queue_offset == 3
    store.close()


def test_deleted_topics_stay_deleted(root: Path) -> None:
    store = MessageStore.open(small_settings(root))
    store.log.put(message(topic="Gone"))
    store.dispatch()
    store.delete_topic("Gone")
    assert store.close()
    report = run(root)
    assert report.deleted == 1
    assert not (root / "consumequeue" / "Gone").exists()
    assert at.kinds(at.check(root)) == {"topic-deleted"}


def test_numbering_that_began_anew_is_rebuilt(root: Path) -> None:
    store = MessageStore.open(small_settings(root))
    store.delete_topic("Orders")
    for number in range(4):
        store.log.put(message(b"%d" % number))
    store.dispatch()
    assert store.close()
    run(root)
    store = MessageStore.open(small_settings(root))
    assert bodies(store) == [b"0", b"1", b"2", b"3"]
    store.close()


def test_a_killed_store_is_brought_in_order_on_the_way(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path / "running"))
    made = fill(store, 50)
    store.log.put(message(b"last", unique="L"))
    image = adopt(kill_image(tmp_path / "running", tmp_path / "image"))
    store.close()
    run(image)
    assert derived(image) == derived(tmp_path / "running")
    store = MessageStore.open(small_settings(image))
    assert store.recovery.clean_stop
    assert bodies(store) == [*made, b"last"]
    store.close()


def test_a_store_of_others_gets_marks_of_its_own(root: Path) -> None:
    before = derived(root)
    (root / "offsets").unlink()
    run(root)
    assert derived(root) == before
    assert (root / "offsets").exists()
    assert at.kinds(at.check(root)) == set()


# --- settings the store was written with -------------------------------------------------------


def test_queues_of_multi_dispatch_are_not_lost_for_want_of_a_setting(tmp_path: Path) -> None:
    root = tmp_path / "store"
    changes = {"multi_dispatch": True, "lmq_enabled": True}
    store = MessageStore.open(small_settings(root, **changes))
    for number in range(5):
        more = {PROPERTY_MULTI_DISPATCH: "%LMQ%device1,Other"}
        store.log.put(message(b"%d" % number, unique=f"U{number}", more=more))
    store.dispatch()
    assert store.close()
    before = derived(root)
    with pytest.raises(StoreLayoutError, match=r"would be gone.*enableMultiDispatch"):
        run(root)
    assert derived(root) == before
    assert at.kinds(at.check(at.keep_topics(root), **changes)) == set()
    run(root, **changes)
    assert derived(root) == before


def test_delay_levels_that_are_not_known_are_asked_for(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = MessageStore.open(
        small_settings(root, message_delay_levels="7s 8s"), clock=ManualClock()
    )
    store.log.put(message(topic="SCHEDULE_TOPIC_XXXX", queue_id=1, more={"DELAY": "2"}))
    store.dispatch()
    assert store.close()
    before = derived(root)
    with pytest.raises(StoreLayoutError, match=r"is due at 1700000008000.*--config"):
        run(root)
    assert derived(root) == before
    run(root, "message_delay_levels", message_delay_levels="7s 8s")
    assert derived(root) == before


# --- refused and broken off --------------------------------------------------------------------


def whole(root: Path) -> dict[str, bytes]:
    return tree(root, ".")


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda root: log_segment(root, SEGMENT).unlink(), StoreLayoutError),
        (lambda root: log_segment(root, SEGMENT).write_bytes(b"x"), StoreSizeMismatch),
        (lambda root: shutil.rmtree(root / "commitlog"), StoreLayoutError),
        (lambda root: max((root / "commitlog").iterdir()).unlink(), StoreLayoutError),
    ],
    ids=["segment missing", "segment cut", "no log", "last segment missing"],
)
def test_a_log_that_is_not_whole_is_refused_untouched(
    root: Path, damage: Callable[[Path], None], error: type[Exception]
) -> None:
    damage(root)
    before = whole(root)
    with pytest.raises(error):
        run(root)
    assert whole(root) == before


def test_an_open_store_is_refused(root: Path) -> None:
    store = MessageStore.open(small_settings(root))
    with pytest.raises(StoreInUse):
        run(root)
    assert store.close()


def test_no_store_is_refused_and_none_is_made(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        run(tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("operation", ["create", "write", "reserve"])
def test_a_full_disk_leaves_the_store_as_it_was(root: Path, operation: str) -> None:
    before = whole(root)
    files = FaultyFiles(root)
    files.fail(operation, errno.ENOSPC, part="rebuild", nth=3)
    with pytest.raises(OSError, match="No space"):
        run(root, files=files)
    assert whole(root) == before


def test_a_crash_anywhere_costs_nothing(tmp_path: Path) -> None:
    """At each change of a file or name; then the broker starts, or the command is run again."""
    template = tmp_path / "template"
    store = MessageStore.open(small_settings(template))
    contents = {0: fill(store, 15)}
    assert store.close()
    wanted = derived(template)
    nth = 0
    ended = False
    while not ended:
        nth += 3 if nth < 30 else 1  # building aside, then putting in place
        root = at.copy(template, tmp_path / "crash")
        files = CrashingFiles(nth)
        try:
            run(root, files=files)
            ended = True
        except Crashed:
            files.give_back(root)
        again = shutil.copytree(root, tmp_path / "again")
        adopt(again)
        store = MessageStore.open(small_settings(root))
        assert {queue_id: bodies(store, "Orders", queue_id) for queue_id in contents} == contents
        assert store.close()
        run(again)
        assert derived(again) == wanted, nth
        assert at.check(again).sound
        shutil.rmtree(root)
        shutil.rmtree(again)
    assert nth > 40
