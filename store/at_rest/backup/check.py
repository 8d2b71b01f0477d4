"""Checks a backup: reads every file that its manifest names, and compares length and CRC-32C."""

import os
from dataclasses import dataclass, field

from aerobee.protocol.checksum import crc32c
from aerobee.store.at_rest.backup import manifest as layout
from aerobee.store.at_rest.backup.copying import Pace, pieces
from aerobee.store.at_rest.backup.manifest import Manifest
from aerobee.store.disk.files import Clock, Files
from aerobee.store.recovery.recovery_report import Progress


@dataclass
class BackupCheck:
    """The result; log offsets in bytes. `mark` is None if no backup has come to its end yet."""

    target: str
    mark: int | None
    log_begins: int
    files: int = 0
    checked_bytes: int = 0
    #: (path below the backup, what is wrong with it).
    damaged: list[tuple[str, str]] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether all of it is as it was written, and a store can be made of it."""
        return self.mark is not None and not self.damaged


def check_backup(
    target: str, files: Files | None = None, *, progress: Progress | None = None
) -> BackupCheck:
    """Read a backup as a whole; changes nothing. Raises BackupRefused without a
    backup, BackupDamaged if its manifest is damaged, OSError."""
    files, target = files or Files(), os.path.abspath(target)
    manifest = layout.load(files, target)
    run, snapshot = manifest.restorable(), manifest.snapshot
    begins = run[0].start if run else snapshot.mark if snapshot else 0
    check = BackupCheck(target, snapshot.mark if snapshot else None, begins)
    if snapshot is not None and (run[-1].end if run else snapshot.mark) < snapshot.mark:
        check.damaged.append((layout.NAME, f"names no segment that reaches {snapshot.mark}"))
    named = _named(manifest)
    pace = Pace(Clock(), progress=progress, what="reading the backup")
    pace.total = sum(count for _, count, _ in named)
    for name, count, checksum in named:
        problem = _problem(files, os.path.join(target, name), count, checksum, pace)
        if problem is not None:
            check.damaged.append((name, problem))
    check.files, check.checked_bytes = len(named), pace.done
    return check


def _named(manifest: Manifest) -> list[tuple[str, int, int]]:
    """(path below the backup, bytes, CRC-32C) of all that the manifest names."""
    named = []
    if (snapshot := manifest.snapshot) is not None:
        named = [
            (os.path.join(snapshot.directory, one.name), one.bytes, one.crc32c)
            for one in snapshot.files
        ]
    return named + [(one.name, one.bytes, one.crc32c) for one in manifest.segments]


def _problem(files: Files, path: str, count: int, checksum: int, pace: Pace) -> str | None:
    """The fault of a file; None if its first `count` bytes are those of the manifest."""
    found, read = 0, 0
    try:
        for _, data in pieces(files, path, 0, count):
            found, read = crc32c(data, found), read + len(data)
            pace.passed(len(data))
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    if read < count:
        return f"has {read} bytes instead of {count}"
    return None if found == checksum else "its CRC-32C is not the manifest's"
