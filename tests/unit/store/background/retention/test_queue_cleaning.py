"""Claims about queues that are removed: those of deleted topics, and those without a message
left."""

import errno
import threading
from pathlib import Path

import pytest

from aerobee.store.disk.owner import here
from aerobee.store.errors import StoreBroken, StoreClosed
from aerobee.store.message_store import MessageStore
from aerobee.store.segments.results import GetStatus
from tests.faulty_files import FaultyFiles
from tests.unit.store.background.retention.retention_support import (
    HOUR_MS,
    Hours,
    names,
    on_owner,
    open_store,
    run,
    settle,
    still,
)
from tests.unit.store.support import QUEUE_SEGMENT, bodies, fill, kill_image, message

ALL_HOURS = ";".join(map(str, range(24)))


def in_use(topic: str, _queue_id: int) -> bool:
    return topic != "Unused"


def with_expired(path: Path, files: FaultyFiles | None = None) -> MessageStore:
    """Orders 0 (24 messages), Unused 0 and 3, SCHEDULE_TOPIC_XXXX: all expired; Filler is not."""
    clock = Hours()
    store = open_store(path, clock, files, delete_hours=ALL_HOURS)
    fill(store, 24)
    for topic, queue_id in (("Unused", 0), ("Unused", 3), ("SCHEDULE_TOPIC_XXXX", 1)):
        store.log.put(message(b"x", topic, queue_id))
    while len(names(store)) < 4:
        store.log.put(message(b"x" * 300, "Filler"))
    settle(store)
    clock.time_ms += 96 * HOUR_MS
    run(store)
    return store


def queue_names(path: Path, topic: str) -> list[str]:
    directory = path / "consumequeue" / topic
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*"))


# --- expired queues -------------------------------------------------------------------------------


def test_queues_that_nobody_uses_leave_wholly_but_for_the_delay_queues(tmp_path: Path) -> None:
    store = with_expired(tmp_path)
    assert store.cleaning.clean_expired(here, in_use) == 3
    assert {t for t, _ in store.queues()} == {"Orders", "Filler", "SCHEDULE_TOPIC_XXXX"}
    assert not (tmp_path / "consumequeue" / "Unused").exists()
    assert queue_names(tmp_path, "SCHEDULE_TOPIC_XXXX") == ["1", f"1/{0:020d}"]
    assert store.close()


def test_queue_in_use_gives_up_its_files_and_keeps_its_numbering(tmp_path: Path) -> None:
    store = with_expired(tmp_path)
    assert (store.min_offset("Orders", 0), store.max_offset("Orders", 0)) == (24, 24)
    store.cleaning.clean_expired(here, in_use)
    assert queue_names(tmp_path, "Orders") == ["0", f"0/{3 * QUEUE_SEGMENT:020d}"]
    assert (store.min_offset("Orders", 0), store.max_offset("Orders", 0)) == (30, 30)
    # A group that had committed 24 is told to go on at 30, and gets what comes.
    result = store.reader.get("Orders", 0, 24, 1)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, 30)
    # Nothing to free a second time.
    assert store.cleaning.clean_expired(here, in_use) == 0
    assert store.close()
    store = open_store(tmp_path)
    assert store.log.put(message(b"next")).queue_offset == 30
    store.dispatch()
    assert bodies(store) == [b"next"]
    assert store.close()


def test_queue_that_gets_a_message_meanwhile_is_left_alone(tmp_path: Path) -> None:
    store = with_expired(tmp_path)
    hops: list[int] = []

    def late(call):  # type: ignore[no-untyped-def]
        hops.append(1)
        if len(hops) == 2:  # after the queues were found, before they leave
            store.log.put(message(b"late", "Unused", 0))
            store.log.put(message(b"late", "Orders", 0))
        return call()

    assert store.cleaning.clean_expired(late, in_use) == 1
    assert ("Unused", 3) not in set(store.queues())
    store.dispatch()
    assert bodies(store, "Unused") == bodies(store) == [b"late"]
    assert store.max_offset("Orders", 0) == 25
    assert store.close()


def test_numbering_survives_a_crash_at_any_place_of_the_cleaning(tmp_path: Path) -> None:
    class Snapshots(FaultyFiles):
        taken = 0
        armed = False

        def _check(self, operation: str, path: str) -> None:
            super()._check(operation, path)
            if self.armed and operation in ("remove", "sync_directory", "rename", "create", "sync"):
                self.armed = False
                kill_image(root, tmp_path / f"kill{self.taken}")
                self.power_cut(tmp_path / f"cut{self.taken}")
                self.taken += 1
                self.armed = True

    root = tmp_path / "store"
    root.mkdir()
    files = Snapshots(root)
    store = with_expired(root, files)
    still(store)
    files.armed = True
    store.cleaning.clean_expired(on_owner, in_use)
    files.armed = False
    store.close()
    assert files.taken > 8
    for n in range(files.taken):
        for kind in ("kill", "cut"):
            after = open_store(tmp_path / f"{kind}{n}")
            assert after.recovery.gaps == []
            assert after.log.put(message(b"next")).queue_offset in (24, 30)
            assert after.log.put(message(b"next", "SCHEDULE_TOPIC_XXXX", 1)).queue_offset == 1
            after.dispatch()
            assert bodies(after) == [b"next"]
            leftovers = list((tmp_path / f"{kind}{n}").rglob("*.removed"))
            assert leftovers == []
            assert after.close()


# --- topics ---------------------------------------------------------------------------------------


def test_topic_is_used_again_at_once_while_its_old_files_go(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 15)
    leave = store.cleaning._topics_leave
    made: list[bytes] = []

    def leave_and_return(*arguments):  # type: ignore[no-untyped-def]
        gone = leave(*arguments)
        made.extend(fill(store, 12))
        return gone

    store.cleaning._topics_leave = leave_and_return  # type: ignore[method-assign]
    assert store.delete_topic("Orders") == 1
    assert bodies(store) == made
    assert [m for m in queue_names(tmp_path, "Orders") if "removed" in m] == []
    assert store.close()
    store = open_store(tmp_path)
    assert bodies(store) == made
    assert store.close()


def test_only_confirmed_topics_leave(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for topic in ("A", "B"):
        store.log.put(message(b"x", topic))
    store.dispatch()
    assert store.cleaning.remove_topics(["A", "B", "C"], here, lambda topic: topic == "A") == 1
    assert set(store.queues()) == {("B", 0)}
    assert store.close()


def test_files_go_on_the_worker_and_queues_leave_on_the_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    fill(store, 15)
    still(store)
    seen: dict[str, int] = {}
    files = store._parts.files
    for name in ("remove_tree", "rename", "sync_directory"):
        real = getattr(files, name)

        def spy(*arguments, real=real, name=name):  # type: ignore[no-untyped-def]
            if "Orders" in arguments[0] and name not in seen:
                seen[name] = threading.get_ident()
            return real(*arguments)

        monkeypatch.setattr(files, name, spy)
    calls: list[object] = []
    result: list[int] = []
    asked, answered = threading.Semaphore(0), threading.Semaphore(0)

    def to_owner(call):  # type: ignore[no-untyped-def]
        calls.append(call)
        asked.release()
        assert answered.acquire(timeout=10)
        return calls.pop()

    worker = threading.Thread(
        target=lambda: result.append(store.cleaning.remove_topics(["Orders"], to_owner))
    )
    worker.start()
    while worker.is_alive():
        if asked.acquire(timeout=0.05):
            calls[-1] = calls[-1]()  # type: ignore[operator]
            answered.release()
    assert result == [1]
    assert seen["rename"] == threading.get_ident()
    assert seen["remove_tree"] == seen["sync_directory"] == worker.ident
    assert store.close()


def test_what_a_crash_left_of_a_removal_goes_at_the_next_start(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    made = fill(store, 15)
    assert store.close()
    directory = tmp_path / "consumequeue" / "Orders"
    (directory / "7.removed").mkdir()
    (directory / "7.removed" / "00000000000000000000").write_bytes(b"not a queue's")
    store = open_store(tmp_path)
    assert not (directory / "7.removed").exists()
    assert store.recovery.foreign_files == []
    assert bodies(store) == made
    assert store.close()


def test_queue_whose_directory_cannot_be_renamed_stays_whole(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    store = open_store(tmp_path, files=files)
    made = fill(store, 15)
    files.fail("rename", errno.EIO, "Orders", times=1)
    with pytest.raises(OSError, match="Input/output"):
        store.delete_topic("Orders")
    assert bodies(store) == made
    assert store._offsets.leaving == 0
    assert store.delete_topic("Orders") == 1
    assert store.close()


def test_cleaning_is_refused_by_a_closed_and_by_a_broken_store(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 3)
    store._health.poison("a sync", OSError("on purpose"))
    with pytest.raises(StoreBroken):
        store.delete_topic("Orders")
    store.close()
    store = open_store(tmp_path)
    assert store.close()
    with pytest.raises(StoreClosed):
        store.cleaning.clean_expired(here, in_use)


def test_extension_files_go_with_their_topic_and_what_a_crash_left_of_them(tmp_path: Path) -> None:
    settings = {"consume_queue_ext_enabled": True, "consume_queue_ext_segment_bytes": 4096}
    store = open_store(tmp_path, **settings)
    fill(store, 15)
    extensions = tmp_path / "consumequeue_ext"
    assert len(list((extensions / "Orders" / "0").iterdir())) == 1
    assert store.delete_topic("Orders") == 1
    assert list(extensions.iterdir()) == []
    made = fill(store, 3)
    assert bodies(store) == made
    assert store.close()
    (extensions / "Orders" / "7.removed").mkdir()
    store = open_store(tmp_path, **settings)
    assert [path.name for path in (extensions / "Orders").iterdir()] == ["0"]
    assert bodies(store) == made
    assert store.close()
