"""Deleting a gigabyte must not hold up the thread that serves clients, nor their syncs for long.

A ticker runs every millisecond on an event loop, another thread syncs a file of its own all the
time, and a worker deletes a commit log segment as the running store does. It prints the worst gap
of the ticker and the worst sync, before and meanwhile (nan where none ended); how long they may be
is no matter for a shared machine to decide, so it is only asserted that all of the work was done
off the loop. Its files are on a disk, where other tests may have theirs in memory.

`DELETION_FILL=1` writes the whole segment first instead of a page in each megabyte.
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from aerobee.store.background.retention.disposal import (
    DeletionCounts,
    Detached,
    Removal,
    SegmentDisposal,
)
from aerobee.store.disk.files import Clock, Files
from aerobee.store.disk.segment_names import segment_name
from aerobee.store.disk.store_health import Health
from aerobee.store.segments.mapped_file import MappedFile

SEGMENT = 1 << 30
_MIB = 1 << 20
_WARM_S = 0.5


class Took(NamedTuple):
    """Something that took `seconds`, from `began` (perf_counter) on."""

    began: float
    seconds: float


class Watched(Files):
    """Remembers which threads removed, cut off, unmapped."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.calls: list[str] = []

    def _note(self, call: str) -> None:
        self.threads.add(threading.get_ident())
        self.calls.append(call)

    def remove(self, path: str) -> None:
        self._note("remove")
        super().remove(path)

    def set_size(self, fd: int, size: int) -> None:
        self._note("set_size")
        super().set_size(fd, size)

    def sync_directory(self, path: str) -> None:
        self._note("sync_directory")
        super().sync_directory(path)


def make_segment(files: Files, folder: Path) -> MappedFile:
    """A sealed segment whose blocks are all there, its pages in memory as far as written."""
    segment = MappedFile(files, str(folder / segment_name(0)), 0, SEGMENT).make()
    data = os.urandom(_MIB if os.environ.get("DELETION_FILL") else 4096)
    assert segment._memory is not None
    for position in range(0, SEGMENT, _MIB):
        segment._memory[position : position + len(data)] = data
    segment.wrote = SEGMENT
    segment.sync()
    segment.seal()
    return segment


async def tick(took: list[Took], stop: asyncio.Event) -> None:
    last = time.perf_counter()
    while not stop.is_set():
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        took.append(Took(last, now - last - 0.001))
        last = now


def keep_syncing(path: Path, took: list[Took], stop: threading.Event) -> None:
    """Write as the flush thread of a busy broker does: a page, a sync, at once again."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(fd, 0, 64 * _MIB)
    position = 0
    while not stop.is_set():
        os.pwrite(fd, bytes(4096), position)
        position = (position + 4096) % (64 * _MIB)
        began = time.perf_counter()
        os.fdatasync(fd)
        took.append(Took(began, time.perf_counter() - began))
    os.close(fd)


def worst_ms(took: list[Took], begin: float, end: float) -> float:
    within = (t.seconds for t in took if begin <= t.began + t.seconds and t.began <= end)
    return max(within, default=math.nan) * 1e3


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="aerobee-") as made:
        if shutil.disk_usage(made).free < 3 * SEGMENT:
            pytest.skip("needs 3 GiB of disk")
        yield Path(made)


async def test_deleting_a_gigabyte_happens_off_the_loop(folder: Path) -> None:
    loop = asyncio.get_running_loop()
    files = Watched()
    segment = await loop.run_in_executor(None, make_segment, files, folder)
    files.threads.clear()
    files.calls.clear()
    removal = Removal(files, Health())
    disposal = SegmentDisposal(
        clock=Clock(),
        removal=removal,
        counts=DeletionCounts(),
        pause_s=0.1,
        destroy_after_s=120.0,
        redelete_s=120.0,
    )
    gaps: list[Took] = []
    syncs: list[Took] = []
    stop_ticks, stop_syncs = asyncio.Event(), threading.Event()
    ticking = loop.create_task(tick(gaps, stop_ticks))
    syncing = threading.Thread(
        target=keep_syncing, args=(folder / "other", syncs, stop_syncs), daemon=True
    )
    syncing.start()
    await asyncio.sleep(_WARM_S)
    begin = time.perf_counter()
    detached = [Detached(segment, "time", time.monotonic())]
    assert await loop.run_in_executor(None, disposal.run, detached) == 1
    end = time.perf_counter()
    stop_ticks.set()
    await ticking
    stop_syncs.set()
    await loop.run_in_executor(None, syncing.join)
    before = begin - _WARM_S
    print(f"deleted 1 GiB in {(end - begin) * 1e3:.0f} ms, worst meanwhile (and before):")
    for what, took in (("gap of a 1 ms ticker", gaps), ("fdatasync of another file", syncs)):
        print(f"  {what} {worst_ms(took, begin, end):.1f} ms ({worst_ms(took, before, begin):.1f})")
    assert not (folder / segment_name(0)).exists()
    assert files.calls.count("remove") == 1
    assert files.calls.count("set_size") == SEGMENT // (32 * _MIB) - 1
    assert threading.get_ident() not in files.threads
    assert len(gaps) > 10
