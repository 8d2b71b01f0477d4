"""Claims about the recorder itself: it logs the writes that were done, in their order."""

from __future__ import annotations

import errno
import os
import random
import time
from pathlib import Path

import pytest

from tests.crash.disks.mounts import mounted_image
from tests.crash.power_cuts.block_log import BlockLog, CrashState, Entry, choose_states
from tests.crash.power_cuts.recorded_disk import DISK_BYTES, RecordedDisk, make_file_system
from tests.crash.power_cuts.recorder import BARRIER, MARK, WRITE

pytestmark = pytest.mark.usefixtures("recorded_disks")

RECORD = 700
RECORDS = 60


def append_records(disk: RecordedDisk, every: int = 1) -> None:
    """Append records to a file, sync after each `every`-th, mark each as if it were promised."""
    fd = os.open(disk.root / "file", os.O_CREAT | os.O_RDWR)
    os.posix_fallocate(fd, 0, RECORD * RECORDS)
    os.fsync(fd)
    disk.mark(0)
    for number in range(1, RECORDS + 1):
        os.pwrite(fd, record_of(number), (number - 1) * RECORD)
        if number % every == 0:
            os.fdatasync(fd)
        disk.mark(number)
    os.close(fd)


def record_of(number: int) -> bytes:
    return random.Random(number).randbytes(RECORD)


def states_with_loss(log: BlockLog, states: list[CrashState], folder: Path) -> int:
    """The number of states in which a promised record is missing, or the disk cannot even be
    mounted."""
    image, target = folder / "image", folder / "mounted"
    target.mkdir(exist_ok=True)
    count = 0
    for state, disk in log.images(states):
        disk.save(image)
        try:
            with mounted_image(image, target):
                data = (target / "file").read_bytes()
        except OSError:
            count += 1
            continue
        promised = [number for number in log.marks(state.cut) if number]
        count += any(
            data[(number - 1) * RECORD : number * RECORD] != record_of(number)
            for number in promised
        )
    return count


def is_faithful(log: BlockLog, left: bytes) -> bool:
    """Whether the log leads to what the disk held in the end."""
    ((_, disk),) = log.images([CrashState(len(log.entries), "all", 0)])
    replayed = bytearray(disk.size)
    for number, block in disk.blocks.items():
        replayed[number * 4096 : number * 4096 + 4096] = block
    return bytes(replayed) == left


def run(folder: Path, every: int = 1, program: str = "") -> tuple[BlockLog, bytes]:
    """Append records on a recorded ext4; the log, and what the recorder's disk held at its end."""
    image = make_file_system(folder / "base", "ext4")
    with RecordedDisk(folder, image, program=program) as disk:
        append_records(disk, every)
        disk.unmount()
        left = disk.content()
    return disk.block_log(), left


def test_synced_records_survive_every_cut(folder: Path, seed: int) -> None:
    log, left = run(folder)
    assert is_faithful(log, left)
    states = choose_states(log, random.Random(seed), 60, log.index_of_mark(0))
    assert states_with_loss(log, states, folder) == 0


def test_promise_without_its_sync_is_caught(folder: Path, seed: int) -> None:
    log, _ = run(folder, every=10)
    states = choose_states(log, random.Random(seed), 60, log.index_of_mark(0))
    lost = states_with_loss(log, states, folder)
    print(f"control: {lost} of 60 states lost a record that was not synced")
    assert lost > 20


def test_recorder_that_forgets_writes_is_caught(folder: Path, seed: int) -> None:
    log, left = run(folder, program="forgetful")
    assert not is_faithful(log, left)
    states = choose_states(log, random.Random(seed), 40, log.index_of_mark(0))
    assert states_with_loss(log, states, folder)


def test_recorder_that_misorders_is_caught(folder: Path, seed: int) -> None:
    log, _ = run(folder, program="misordering")
    states = choose_states(log, random.Random(seed), 40, log.index_of_mark(0))
    assert states_with_loss(log, states, folder)


# --- the file itself, without a file system on it -------------------------------------------------


def test_log_has_writes_barriers_and_marks_in_their_order(folder: Path) -> None:
    with bare(folder) as disk:
        fd = os.open(disk.file, os.O_RDWR)
        expected: list[tuple[int, int, bytes]] = []
        for number in range(1, 20):
            data = random.Random(number).randbytes(4096 * (1 + number % 3))
            os.pwrite(fd, data, number * 65_536)
            expected.append((WRITE, number * 65_536, data))
            if number % 4 == 0:
                os.fsync(fd)
                expected.append((BARRIER, 0, b""))
            disk.mark(number)
            expected.append((MARK, number, b""))
        os.close(fd)
    log = disk.block_log()
    assert [(one.kind, one.number, one.data) for one in joined(log)] == expected
    times = [entry.at for entry in log.entries]
    assert times == sorted(times)


def test_failing_range_fails_and_the_rest_does_not(folder: Path) -> None:
    with bare(folder) as disk:
        fd = os.open(disk.file, os.O_RDWR)
        disk.fail_writes(1 << 20, 2 << 20)
        os.pwrite(fd, b"a" * 4096, 4096)
        with pytest.raises(OSError, match="Input/output") as caught:
            os.pwrite(fd, b"b" * 4096, (1 << 20) + 4096)
        assert caught.value.errno == errno.EIO
        disk.fail_syncs()
        with pytest.raises(OSError, match="Input/output"):
            os.fsync(fd)
        disk.heal()
        os.pwrite(fd, b"c" * 4096, 1 << 20)
        os.fsync(fd)
        os.close(fd)
    written = [entry.data[:1] for entry in disk.block_log().entries if entry.kind == WRITE]
    assert written == [b"a", b"c"]


def test_slow_disk_takes_its_time_for_a_sync(folder: Path) -> None:
    with bare(folder, sync_delay_ms=200) as disk:
        fd = os.open(disk.file, os.O_RDWR)
        os.pwrite(fd, b"a" * 4096, 0)
        began = time.monotonic()
        os.fsync(fd)
        assert time.monotonic() - began >= 0.2
        os.close(fd)


def bare(folder: Path, sync_delay_ms: int = 0) -> RecordedDisk:
    """A recorded disk with nothing on it and nothing mounted from it."""
    image = folder / "empty"
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    return RecordedDisk(folder, image, sync_delay_ms, mounted=False)


def joined(log: BlockLog) -> list[Entry]:
    """Writes that follow each other without a break made one: the kernel splits long ones."""
    entries: list[Entry] = []
    for entry in log.entries:
        last = entries[-1] if entries else None
        if (
            last is not None
            and entry.kind == last.kind == WRITE
            and last.number + len(last.data) == entry.number
        ):
            entries[-1] = last._replace(data=last.data + entry.data)
        else:
            entries.append(entry)
    return entries
