"""Claims about disks that are full, and about segments made ahead of need."""

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from aerobee.store.disk.files import Clock, Files
from aerobee.store.disk.segment_names import segment_name
from aerobee.store.disk.store_health import Health
from aerobee.store.errors import SegmentCreateFailed, StoreBroken, StoreNotWritable
from aerobee.store.message_store import MessageStore
from aerobee.store.segments.allocate import AllocateMappedFileService
from aerobee.store.segments.mapped_file import MappedFile
from tests.faulty_files import FaultyFiles
from tests.unit.store.support import (
    SEGMENT,
    adopt,
    bodies,
    fill,
    kill_image,
    log_segment,
    message,
    put_until_refused,
    small_settings,
    tree,
)


class Stopwatch(Clock):
    """Intervals that a test moves."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


def wait_until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(10_000):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError("did not happen in time")


def service(
    tmp_path: Path, files: Files, clock: Clock | None = None, health: Health | None = None
) -> AllocateMappedFileService:
    # The start makes the directories: the service itself makes none.
    for changed in files.make_directories(str(tmp_path / "log")):
        files.sync_directory(changed)
    return AllocateMappedFileService(
        files=files,
        clock=clock or Clock(),
        segment_bytes=SEGMENT,
        path_for=lambda start: str(tmp_path / "log" / segment_name(start)),
        make=lambda path, start: MappedFile(files, path, start, SEGMENT).make(),
        health=health or Health(),
    )


def names(tmp_path: Path, folder: str = "log") -> list[int]:
    return sorted(int(name) for name in os.listdir(tmp_path / folder))


# --- making segments ahead ------------------------------------------------------------------------


def test_taking_one_has_the_next_one_made(tmp_path: Path) -> None:
    allocator = service(tmp_path, Files())
    first = allocator.take(0)
    assert (first.start, first.end, first.wrote) == (0, SEGMENT, 0)
    assert os.stat(first.path).st_blocks * 512 >= SEGMENT
    wait_until(lambda: names(tmp_path) == [0, SEGMENT])
    second = allocator.take(SEGMENT)
    wait_until(lambda: names(tmp_path) == [0, SEGMENT, 2 * SEGMENT])
    allocator.close()
    assert names(tmp_path) == [0, SEGMENT]
    first.close()
    second.close()


def test_roll_after_a_restart_finds_its_segment_made(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    store = MessageStore.open(settings)
    store.log.put(message())
    assert store.close()
    assert names(tmp_path, "commitlog") == [0]
    store = MessageStore.open(settings)
    assert names(tmp_path, "commitlog") == [0]
    store.log.put(message())
    wait_until(lambda: names(tmp_path, "commitlog") == [0, SEGMENT])
    assert store.close()
    assert names(tmp_path, "commitlog") == [0]


def test_segment_is_made_ahead_of_the_first_put_when_asked_for(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    files = FaultyFiles(tmp_path)
    store = MessageStore.open(settings, files=files)
    store.log.make_ahead()
    wait_until(lambda: files.count("sync_directory", "commitlog") == 1)
    assert names(tmp_path, "commitlog") == [0]
    store.log.put(message())
    wait_until(lambda: names(tmp_path, "commitlog") == [0, SEGMENT])
    assert store.close()
    store = MessageStore.open(settings, files=files)
    store.log.make_ahead()
    wait_until(lambda: names(tmp_path, "commitlog") == [0, SEGMENT])
    assert store.close()
    assert names(tmp_path, "commitlog") == [0]


def test_segment_is_on_the_disk_before_it_is_handed_over(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    allocator = service(tmp_path, files)
    allocator.take(0).close()
    files.power_cut(tmp_path / "image")
    assert (tmp_path / "image" / "log" / segment_name(0)).read_bytes() == bytes(SEGMENT)
    allocator.close()


def test_who_waits_for_a_segment_whose_name_cannot_be_synced_learns_that_the_store_is_broken(
    tmp_path: Path,
) -> None:
    files = FaultyFiles(tmp_path)
    allocator = service(tmp_path, files)
    files.fail("sync_directory", errno.EIO)
    with pytest.raises(StoreBroken, match="the sync of"):
        allocator.take(0)
    assert names(tmp_path) == []
    allocator.close()


def test_a_new_segment_that_cannot_be_synced_breaks_the_store(tmp_path: Path) -> None:
    """On a file system without a journal the sync of a new file syncs its directory too, and so
    takes along the error that the directory's own sync would have met."""
    files = FaultyFiles(tmp_path)
    allocator = service(tmp_path, files)
    files.fail("sync", errno.EIO, segment_name(0), times=1)
    with pytest.raises(StoreBroken, match="the sync of"):
        allocator.take(0)
    assert names(tmp_path) == []
    allocator.close()


def test_a_new_name_is_synced_by_a_later_try_if_the_first_could_not(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    clock = Stopwatch()
    allocator = service(tmp_path, files, clock)
    files.fail("sync_directory", errno.EMFILE, times=1)
    with pytest.raises(SegmentCreateFailed):
        allocator.take(0)
    clock.seconds += 1.1
    allocator.take(0).close()
    files.power_cut(tmp_path / "image")
    assert (tmp_path / "image" / "log" / segment_name(0)).is_file()
    allocator.close()


def test_a_full_disk_of_a_slave_is_said_once_and_not_as_a_refused_send(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles(tmp_path)
    clock = Stopwatch()
    health = Health()
    health.take_puts(taken=False)
    allocator = service(tmp_path, files, clock, health)
    files.fail("reserve", errno.ENOSPC)
    for _ in range(5):
        with pytest.raises(StoreNotWritable, match="This slave follows its master again"):
            allocator.take(0)
        clock.seconds += 1.1
    said = [one for one in caplog.records if "segment not made" in one.getMessage()]
    assert len(said) == 1
    clock.seconds += 60
    with pytest.raises(StoreNotWritable):
        allocator.take(0)
    assert caplog.records[-1].getMessage().endswith("unlogged=4")
    allocator.close()


def test_full_disk_is_an_error_at_preparation_and_leaves_nothing(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    clock = Stopwatch()
    allocator = service(tmp_path, files, clock)
    for operation in ("create", "reserve"):
        files.fail(operation, errno.ENOSPC)
        with pytest.raises(StoreNotWritable, match="disk is full"):
            allocator.take(0)
        assert names(tmp_path) == []
        tries = files.count("create")
        with pytest.raises(StoreNotWritable):
            allocator.take(0)
        assert files.count("create") == tries  # not more often than once a second
        clock.seconds += 1.1
        files.heal()
    allocator.take(0).close()
    allocator.close()


def test_other_failures_are_named_and_tried_again(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    clock = Stopwatch()
    allocator = service(tmp_path, files, clock)
    for operation in ("create", "set_size", "reserve", "map"):
        files.fail(operation, errno.EIO, times=1)
        with pytest.raises(SegmentCreateFailed, match="Input/output error"):
            allocator.take(0)
        files.heal()
        assert names(tmp_path) == []
        clock.seconds += 1.1
    allocator.take(0).close()
    allocator.close()


def test_segment_that_does_not_come_is_waited_for_so_long_only(tmp_path: Path) -> None:
    class StuckFiles(Files):
        go_on = threading.Event()

        def reserve(self, fd: int, position: int, length: int) -> None:
            assert self.go_on.wait(20)
            super().reserve(fd, position, length)

    files = StuckFiles()
    allocator = service(tmp_path, files)
    with pytest.raises(SegmentCreateFailed, match="within"):
        allocator.take(0, timeout_s=0.01)
    files.go_on.set()
    allocator.take(0).close()
    allocator.close()


# --- the store on a full disk ---------------------------------------------------------------------


def test_no_next_segment_refuses_and_resumes(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    clock = Stopwatch()
    store = MessageStore.open(small_settings(tmp_path), files=files, clock=clock)
    files.fail("reserve", errno.ENOSPC, segment_name(SEGMENT))
    made: list[bytes] = []
    while store.written < SEGMENT - 800:
        made.append(b"%d" % len(made) + b"." * 500)
        store.log.put(message(made[-1]))
    with pytest.raises(StoreNotWritable, match="disk is full"):
        store.log.put(message(b"." * 800))
    before = store.written
    assert before < SEGMENT
    reason = store.not_writable_reason()
    assert reason is not None
    assert "disk is full" in reason
    store.dispatch()
    assert bodies(store) == made
    small = store.log.put(message(b"fits still"))
    assert small.log_offset == before
    files.heal()
    clock.seconds += 2
    assert store.log.put(message(b"." * 1000)).log_offset == SEGMENT
    assert store.not_writable_reason() is None
    assert store.close()
    store = MessageStore.open(small_settings(tmp_path))
    assert len(bodies(store)) == len(made) + 2
    store.close()


@pytest.mark.parametrize(
    ("operation", "part"),
    [
        ("write", "consumequeue"),
        ("create", "consumequeue"),
        ("make_directories", "consumequeue"),
        ("reserve", "index"),
        ("create", "index"),
    ],
)
@pytest.mark.parametrize("nth", [1, 2])
def test_full_disk_at_dispatch_loses_and_doubles_nothing(
    tmp_path: Path, operation: str, part: str, nth: int
) -> None:
    reference = MessageStore.open(small_settings(tmp_path / "reference", index_entries=10))
    files = FaultyFiles(tmp_path)
    clock = Stopwatch()
    settings = small_settings(tmp_path / "store", index_entries=10)
    store = MessageStore.open(settings, files=files, clock=clock)
    messages = [message(b"%d" % n, queue_id=n % 3, unique=f"U{n}", keys="k1 k2") for n in range(30)]
    files.fail(operation, errno.ENOSPC, part, nth=nth)
    arrived: list[int] = []
    taken = 0
    for one in messages:
        try:
            store.log.put(one)
        except StoreNotWritable:
            break
        taken += 1
        arrived += [arrival.queue_offset for arrival in store.dispatch()]
    else:
        store.dispatch()
    assert taken < 30
    reason = str(store.not_writable_reason())
    assert "disk is full" in reason
    assert str(tmp_path) in reason
    assert store.dispatched < store.written
    with pytest.raises(StoreNotWritable):
        store.log.put(messages[taken])
    files.heal()
    clock.seconds += 2
    for one in messages[taken:]:
        store.log.put(one)
        arrived += [arrival.queue_offset for arrival in store.dispatch()]
    assert store.not_writable_reason() is None
    for one in messages:
        reference.log.put(one)
    reference.dispatch()
    assert len(arrived) == 30
    assert store.close()
    assert reference.close()
    for folder in ("consumequeue", "index"):
        ours = list(tree(tmp_path / "store", folder).values())
        theirs = list(tree(tmp_path / "reference", folder).values())
        # Store times differ in the index, places and hashes do not.
        if folder == "index":
            ours, theirs = (
                [data[16:32] + data[36:240] for data in files] for files in (ours, theirs)
            )
        assert ours == theirs


def test_nearly_full_disk_refuses_and_resumes_by_itself(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    clock = Stopwatch()
    settings = small_settings(tmp_path, disk_warning_ratio=0.9)
    files.full_ratio = 0.95
    store = MessageStore.open(settings, files=files, clock=clock)
    with pytest.raises(StoreNotWritable, match=r"95\.0% full.*above 90%"):
        store.log.put(message())
    files.full_ratio = 0.89
    clock.seconds += 2
    store.log.put(message())
    assert store.not_writable_reason() is None
    assert store.close()


# --- a directory taken over -----------------------------------------------------------------------


def test_sparse_segment_of_another_broker_is_reserved_before_use(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path, commit_log_segment_bytes=1 << 20))
    made = fill(store, 5)
    written = store.written
    assert store.close()
    path = log_segment(tmp_path)
    data = path.read_bytes()[:written]
    path.unlink()
    with path.open("wb") as file:
        file.truncate(1 << 20)
        file.write(data)
    assert path.stat().st_blocks * 512 < 1 << 19
    settings = small_settings(tmp_path, commit_log_segment_bytes=1 << 20)
    store = MessageStore.open(settings)
    assert path.stat().st_blocks * 512 >= 1 << 20
    store.log.put(message(b"next"))
    store.dispatch()
    assert bodies(store) == [*made, b"next"]
    store.close()


def test_sparse_segment_on_a_full_disk_is_read_but_not_written(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    made = fill(store, 5)
    assert store.close()
    files = FaultyFiles(tmp_path)
    files.fail("reserve", errno.ENOSPC, "commitlog")
    store = MessageStore.open(small_settings(tmp_path), files=files)
    assert "disk is full" in str(store.not_writable_reason())
    with pytest.raises(StoreNotWritable, match="disk is full"):
        store.log.put(message())
    assert bodies(store) == made
    files.heal()
    assert store.log.put(message()).queue_offset == 5
    assert store.not_writable_reason() is None
    assert store.close()


def test_real_full_file_system_refuses_and_drains(tmp_path: Path) -> None:
    """A real ENOSPC without a mount: reserving more than there is fails, and takes nothing."""
    if shutil.disk_usage("/dev/shm").free < 1 << 20:
        pytest.skip("no /dev/shm")
    path = Path("/dev/shm") / f"aerobee-{os.getpid()}"
    try:
        settings = small_settings(path, commit_log_segment_bytes=1 << 46)
        store = MessageStore.open(settings)
        with pytest.raises((StoreNotWritable, SegmentCreateFailed)):
            store.log.put(message())
        assert names(path, "commitlog") == []
        assert store.close()
    finally:
        shutil.rmtree(path, ignore_errors=True)


# --- falling behind -------------------------------------------------------------------------------


def test_dispatch_that_fell_behind_reads_the_log_and_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = MessageStore.open(small_settings(tmp_path / "fed"))
    fill(fed, 70, queues=3)
    image = kill_image(tmp_path / "fed", tmp_path / "image")
    fed.close()
    monkeypatch.setattr("aerobee.store.log.commit_log.PENDING_MOST", 10)
    monkeypatch.setattr("aerobee.protocol.message.record_check.MOST_RECORDS", 7)
    behind = MessageStore.open(small_settings(tmp_path / "behind"))
    made = []
    for n in range(70):
        body = b"%06d" % n + b"." * 50
        behind.log.put(message(body, queue_id=n % 3, unique=f"U{n}", tags=f"T{n % 3}"))
        made.append(body)
    feeding = [behind.log.feeding]
    assert len(behind.dispatch()) == 70
    assert [*feeding, behind.log.feeding] == [False, True]
    assert behind.dispatched == behind.written
    assert bodies(behind, queue_id=1) == made[1::3]
    image_behind = kill_image(tmp_path / "behind", tmp_path / "image behind")
    behind.close()
    assert tree(image_behind, "consumequeue") == tree(image, "consumequeue")


def test_start_after_a_kill_needs_no_room_for_its_own_marks(tmp_path: Path) -> None:
    """Messages already in queues and index are served although not one block is left."""
    store = MessageStore.open(small_settings(tmp_path / "store"))
    made = fill(store, 40)
    store._offsets.save()
    root = adopt(kill_image(tmp_path / "store", tmp_path / "killed"))
    store.close()
    before = (root / "offsets").read_bytes()
    files = FaultyFiles(root)
    files.fail("write", errno.ENOSPC, "offsets.tmp")
    files.fail("create", errno.ENOSPC)
    store = MessageStore.open(small_settings(root), files)
    assert bodies(store) == made
    assert (root / "offsets").read_bytes() == before
    files.heal()
    store.log.put(message(b"room again"))
    store.dispatch()
    assert store.close()
    store = MessageStore.open(small_settings(root))
    assert bodies(store) == [*made, b"room again"]
    store.close()


@pytest.mark.parametrize(
    ("operation", "part"), [("reserve", "commitlog"), ("write", "consumequeue")]
)
def test_quota_that_is_used_up_is_a_full_disk(tmp_path: Path, operation: str, part: str) -> None:
    files = FaultyFiles(tmp_path)
    store = MessageStore.open(small_settings(tmp_path), files)
    made = fill(store, 5)
    files.fail(operation, errno.EDQUOT, part)
    taken, refusal = put_until_refused(store)
    assert "disk is full" in str(refusal)
    assert "quota" in str(refusal)
    assert bodies(store)[:5] == made
    files.heal()
    wait_until(lambda: put_succeeds(store))
    store.dispatch()
    assert bodies(store) == [*made, *taken, b"room again"]
    assert store.close()


def put_succeeds(store: MessageStore) -> bool:
    try:
        store.log.put(message(b"room again"))
    except StoreNotWritable:
        return False
    return True
