"""Probes of the files of the broker's tables (`config/*.json`): can they be saved?

The last save of a table says that it cannot be saved, and the next save, a second later, says when
that is over. A disk without room is seen before a save has met it: commits of offsets are
acknowledged as they come, and saved some seconds later. A file that a start could not read is named
as long as it lies beside the tables.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from aerobee.broker.background.scheduler import SaveFailure, sentence_of
from aerobee.broker.monitoring.health_checks import Probe, Problem
from aerobee.broker.tables.files.table_directory import TableDirectory
from aerobee.file_replacement import set_aside_in

# A small table's text with what a file system adds to it.
_LEAST_BYTES = 16 << 10
_SPARE = ".spare"
_PUT_BACK = (
    "move it back as it was, or stop the broker in order, which writes all tables again; killed, "
    "it forgets what was in there and what has changed since. Topics and groups that cannot be "
    "kept are refused meanwhile"
)


def saving_probe(
    tables: TableDirectory,
    failures: Callable[[], Iterable[SaveFailure | None]],
    statvfs: Callable[[str], os.statvfs_result] = os.statvfs,
) -> Probe:
    """Checks that each table of the directory can be saved; `failures` are those of the last
    saves."""
    directory = tables.path

    def probe() -> str | Problem | None:
        if tables.problem is not None:
            return Problem(f"no table can be saved: {tables.problem}", _PUT_BACK)
        failed = [failure for failure in failures() if failure is not None]
        if failed:
            return sentence_of(failed)
        try:
            disk = statvfs(directory)
            needed = _needed_bytes(directory)
        except FileNotFoundError:
            return None  # the first save makes it
        except OSError as error:
            return f"the file system of {directory} cannot be asked: {error}"
        room = disk.f_bavail * disk.f_frsize
        if room < needed or (disk.f_files and not disk.f_favail):
            what = f"{room} bytes are free, {needed} are needed" if room < needed else "no inode"
            return f"the tables in {directory} cannot be saved: its disk is full ({what})"
        return None

    return probe


def aside_probe(directories: Iterable[str]) -> Probe:
    """Checks that no damaged table lies beside those that are served."""
    aside = [path for directory in directories for path in set_aside_in(Path(directory))]

    def probe() -> str | None:
        left = [str(path) for path in aside if os.path.lexists(path)]
        return f"damaged tables were kept aside: {', '.join(left)}" if left else None

    return probe


def _needed_bytes(directory: str) -> int:
    """Room for the next save of the largest table, besides the old file that it may reuse."""
    sizes: dict[str, int] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith((".json", _SPARE)):
                sizes[entry.name] = entry.stat().st_size
    tables = [name for name in sizes if not name.endswith(_SPARE)]
    needed = [sizes[name] - sizes.get(name + _SPARE, 0) for name in tables]
    return _LEAST_BYTES + max(needed, default=0)
