"""Killed and cut-off processes leave things behind in derived files, and the next start copes. The
storage model (tests/sim) found each of these cases."""

from pathlib import Path

import pytest

from aerobee.store.index.layout import index_file_bytes
from aerobee.store.message_store import MessageStore
from tests.sim.disk.crash_choices import picks_of
from tests.sim.disk.crash_model import CrashModel
from tests.sim.disk.memory_files import MemoryFiles
from tests.sim.disk.recorded_files import DirectorySynced, RecordedFiles, Unlinked
from tests.sim.storage.stepped_store import SteppedStore
from tests.unit.store.support import (
    ManualClock,
    adopt,
    bodies,
    fill,
    kill_image,
    message,
    small_settings,
)

ROOT = Path("/store")
SETTINGS = small_settings(
    ROOT,
    commit_log_segment_bytes=1 << 16,
    flush_interval_ms=3_600_000,
    consume_queue_flush_interval_ms=3_600_000,
)
UNITS_PER_FILE = 10


class LateNames(RecordedFiles):
    """While `late`, syncs of directories are not reached: the process is killed just before."""

    late = False

    def sync_directory(self, path: str) -> None:
        if not self.late:
            super().sync_directory(path)


def started(files: MemoryFiles) -> SteppedStore:
    return SteppedStore.open(SETTINGS, files, ManualClock())


def killed(store: SteppedStore, files: MemoryFiles, boot: str = "boot 1") -> MemoryFiles:
    """The disk after the process was killed, or (another `boot`) after a power cut that took
    nothing."""
    store.abandon()
    return MemoryFiles(ROOT, files.image(), boot)


def cut(store: SteppedStore, files: RecordedFiles) -> MemoryFiles:
    """The disk after a power cut that took all that was not synced."""
    files.observe()
    store.abandon()
    model = CrashModel(files.start)
    for event in files.journal:
        model.apply(event)
    doubts = model.doubts()
    return MemoryFiles(ROOT, model.build(doubts, picks_of("none", doubts)), "boot 2")


def found(store: SteppedStore, number: int) -> int:
    """How many records the query for the unique key of message `number` gives."""
    return len(store.search.query("Orders", f"U{number}", 64, 1, 1 << 62).records)


def indexed(store: SteppedStore) -> int:
    """Keys in all index files."""
    index = store._parts.index
    assert index is not None
    return sum(file.count - 1 for file in index.files)


@pytest.mark.parametrize("boot", ["boot 1", "boot 2"])
def test_index_file_made_ahead_by_a_killed_process_hides_nothing(boot: str) -> None:
    files = MemoryFiles(ROOT)
    store = started(files)
    fill(store, 30)
    assert store.flush_queues(thorough=True)
    files = killed(store, files, boot)
    spare = files.open(str(ROOT / "index" / "99991231235959999"), create=True)
    files.set_size(spare, index_file_bytes(50, 40))
    files.close(spare)
    store = started(files)
    assert [found(store, number) for number in range(30)] == [1] * 30
    assert indexed(store) == 30
    assert store.close()


def test_recovery_keeps_no_index_file_made_ahead() -> None:
    files = MemoryFiles(ROOT)
    store = started(files)
    fill(store, 30)
    files = killed(store, files)
    # All 30 keys are read again, and room for them all is reserved, but they are there already.
    files.remove(str(ROOT / "offsets"))
    store = started(files)
    assert len(files.names(str(ROOT / "index"))) == 1
    store.abandon()


def test_index_file_whose_predecessor_lost_its_name_is_made_again() -> None:
    files = MemoryFiles(ROOT)
    store = started(files)
    fill(store, 60)
    files = killed(store, files, "boot 2")
    first, _ = files.names(str(ROOT / "index"))
    files.remove(str(ROOT / "index" / first))
    store = started(files)
    assert [found(store, number) for number in range(60)] == [1] * 60
    assert store.close()


def test_slots_younger_than_the_header_break_no_chain() -> None:
    files = MemoryFiles(ROOT)
    store = started(files)
    fill(store, 10)
    for _ in range(2):  # not indexed, so the header's end stays below the mark of what is
        store.log.put(message(b"no key"))
    store.dispatch()
    assert store.flush_queues(thorough=True)
    old = files.image()
    for _ in range(12):
        store.log.put(message(b"younger", unique="U5"))
    store.dispatch()
    image = files.image()
    (path,) = [path for path in image if path.startswith(f"{ROOT}/index/")]
    # The page with slots and entries reached the disk, the header's sector did not.
    image[path] = old[path][:40] + image[path][40:]
    store.abandon()
    store = started(MemoryFiles(ROOT, image, "boot 2"))
    assert found(store, 5) == 13
    assert [found(store, number) for number in (0, 4, 6, 9)] == [1] * 4
    assert store.close()


@pytest.mark.parametrize("number", [5, 20, 29])
def test_seconds_of_a_key_that_a_power_cut_tore_off_are_put_right(number: int) -> None:
    """An entry over a sector's edge, of which the part before the edge reached the disk."""
    files, clock = RecordedFiles(ROOT), ManualClock()
    store = SteppedStore.open(SETTINGS, files, clock)
    fill(store, 3)
    assert store.sync_log()
    assert store.flush_queues(thorough=True)
    for late in range(3, 30):
        clock.time_ms += 1500
        store.log.put(message(b"late", unique=f"U{late}"))
    store.dispatch()
    assert store.sync_log()
    image = files.image()
    store.abandon()
    (path,) = [path for path in image if path.startswith(f"{ROOT}/index/")]
    whole = image[path]
    assert whole is not None
    seconds_at = 40 + 4 * 50 + 20 * (number + 1) + 12
    assert any(whole[seconds_at : seconds_at + 4])
    image[path] = whole[:seconds_at] + bytes(4) + whole[seconds_at + 4 :]
    files = RecordedFiles(ROOT, image, "boot 2")
    store = started(files)
    assert files.image()[path] == whole
    assert cut(store, files).image()[path] == whole


@pytest.mark.parametrize("damage", ["empty", "absent"])
def test_queue_file_before_the_last_that_a_power_cut_took_is_made_again(damage: str) -> None:
    files = MemoryFiles(ROOT)
    store = started(files)
    made = fill(store, 3 * UNITS_PER_FILE)
    files = killed(store, files, "boot 2")
    for start in (0, 200):
        path = str(ROOT / "consumequeue" / "Orders" / "0" / f"{start:020d}")
        if damage == "empty" or start == 0:
            fd = files.open(path)
            files.set_size(fd, 0)
            files.close(fd)
        else:
            files.remove(path)
    store = started(files)
    assert bodies(store) == made
    assert store.close()
    store = started(files)
    assert bodies(store) == made
    store.close()


def test_keys_indexed_by_a_killed_process_survive_the_power_cut_after_its_restart() -> None:
    files = RecordedFiles(ROOT)
    store = started(files)
    fill(store, 5)
    assert store.sync_log()
    assert store.flush_queues(thorough=True)
    for number in range(5, 10):
        store.log.put(message(b"late", unique=f"U{number}"))
    store.dispatch()
    store.abandon()
    store = started(files)
    again = started(cut(store, files))
    assert [found(again, number) for number in range(10)] == [1] * 10
    again.close()


def test_units_of_a_killed_process_survive_the_power_cut_after_its_restart() -> None:
    files = RecordedFiles(ROOT)
    store = started(files)
    made = fill(store, 1)
    assert store.sync_log()
    assert store.flush_queues(thorough=True)
    made += fill(store, 2 * UNITS_PER_FILE)
    store.abandon()
    store = started(files)
    again = started(cut(store, files))
    assert bodies(again) == made
    again.close()


@pytest.mark.parametrize("made", ["Orders", "Orders/0"])
def test_queue_directories_that_a_killed_process_had_just_made_are_not_lost_later(
    made: str,
) -> None:
    files = RecordedFiles(ROOT)
    started(files).abandon()
    files.make_directories(str(ROOT / "consumequeue" / made))
    store = started(files)
    kept = fill(store, 3)
    assert store.sync_log()
    assert store.flush_queues(thorough=True)
    again = started(cut(store, files))
    assert again.recovery.entries_written == 0
    assert bodies(again) == kept
    again.close()


def test_units_that_go_with_a_topic_do_not_stand_for_missing_ones() -> None:
    files = RecordedFiles(ROOT)
    store = started(files)
    made = fill(store, 3)
    assert store.sync_log()
    assert store.flush_queues(thorough=True)
    for _ in range(5):
        store.log.put(message(b"younger", "Gone"))
    store.dispatch()
    store.delete_topic("Gone")
    disk = cut(store, files)
    for name in disk.names(str(ROOT / "consumequeue" / "Orders" / "0")):
        disk.remove(str(ROOT / "consumequeue" / "Orders" / "0" / name))
    again = started(disk)
    assert bodies(again) == made
    again.close()


def test_new_numbering_is_believed_over_the_old_one_that_a_broken_off_recovery_made() -> None:
    files = MemoryFiles(ROOT)
    store = started(files)
    store.log.put(message(b"old"))
    store.dispatch()
    (queue,) = [path for path in files.image() if path.endswith(f"/Orders/0/{0:020d}")]
    old_unit = files.image()[queue]
    assert store.delete_topic("Orders") == 1
    new = store.log.put(message(b"new"))
    assert new.queue_offset == 0
    store.dispatch()
    store.sync_log()
    store.abandon()
    # A recovery made the queue again from the log's beginning, and was killed before the new one.
    image = files.image() | {queue: old_unit}
    del image[str(ROOT / "offsets")]
    store = started(MemoryFiles(ROOT, image, "boot 2"))
    assert store.recovery.gaps == []
    assert bodies(store) == [b"new"]
    assert store.close()


def test_segment_that_a_killed_process_had_just_made_is_not_lost_later() -> None:
    files = LateNames(ROOT)
    store = started(files)
    files.late = True
    store.log.put(message(b"before the kill"))
    files.late = False
    store.abandon()
    store = started(files)
    store.log.put(message(b"after the kill"))
    assert store.sync_log()
    again = started(cut(store, files))
    assert bodies(again) == [b"before the kill", b"after the kill"]
    assert again.close()


def test_segments_are_removed_one_by_one() -> None:
    """With two removals on their way to the disk, a power cut may take that of the earlier file,
    and the log would have a hole."""
    files = RecordedFiles(ROOT)
    store = started(files)
    store.log.put(message(b"kept"))
    assert store.sync_log()
    for number in (1, 2, 3):
        fd = files.open(str(ROOT / "commitlog" / f"{number << 16:020d}"), create=True)
        files.set_size(fd, 1 << 16)
        files.close(fd)
    store.abandon()
    before = len(files.journal)
    store = started(files)
    names = [
        event
        for event in files.journal[before:]
        if isinstance(event, Unlinked)
        or (isinstance(event, DirectorySynced) and event.directory == directory_of(files))
    ]
    store.abandon()
    removals = [at for at, event in enumerate(names) if isinstance(event, Unlinked)]
    assert len(removals) == 3
    assert all(isinstance(names[at + 1], DirectorySynced) for at in removals)


def directory_of(files: RecordedFiles) -> int:
    return files._directory(str(ROOT / "commitlog")).number


class TornMemory:
    """The writer's view of a segment, in which a kill tears one store: its first bytes are not
    there yet, as the C library copies the beginning of a longer piece last."""

    def __init__(self, memory: memoryview, left: list[int]) -> None:
        self._memory = memory
        self._left = left

    def __setitem__(self, place: slice, data: bytes) -> None:
        self._left[0] -= 1
        if self._left[0] >= 0:
            self._memory[place] = data
        else:
            self._memory[place.start + 32 : place.stop] = data[32:]
            raise Killed


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("whole", range(4))
def test_batch_that_a_kill_tore_is_a_beginning_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    settings = small_settings(tmp_path / "live")
    store = MessageStore.open(settings)
    fill(store, 3)
    left = [whole]
    segment = store.log.segments.last
    assert segment is not None
    assert segment._memory is not None
    with monkeypatch.context() as patch:
        patch.setattr(segment, "_memory", TornMemory(segment._memory, left))
        with pytest.raises(Killed):
            store.log.put_batch([message(b"b%d" % number) for number in range(4)])
    left_behind = adopt(kill_image(tmp_path / "live", tmp_path / "copy"))
    again = MessageStore.open(small_settings(left_behind))
    try:
        assert bodies(again)[3:] == [b"b%d" % number for number in range(whole)]
        assert again.known_gaps == ()
    finally:
        again.close()
        store.close()
