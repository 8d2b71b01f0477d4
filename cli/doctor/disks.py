"""Examines the disks of a store: type, mount options, space, inodes, and when they are full."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from aerobee.cli.doctor.findings import Machine, fault, ok, unknown, warning
from aerobee.cli.documents.doctor import Finding
from aerobee.config.bounds.memory import size_text
from aerobee.config.model import Settings
from aerobee.store.background.retention.segment_times import SegmentPlace, begun_ms
from aerobee.store.disk.files import DiskSpace, Files
from aerobee.store.disk.segment_names import is_segment_name

_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs"}
)
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
# A sync of a file on one of these does not reach the disk, or costs all that was written since.
_NO_SYNC: Final = frozenset({"nobarrier", "barrier=0", "barrier=none"})
# The kernel writes blanks, tabs, line ends and backslashes of a path like that.
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_INODES_LEAST: Final = 0.05
_HOUR_MS: Final = 3_600_000
_SOON_MS: Final = 72 * _HOUR_MS


class Mount(NamedTuple):
    """A mounted file system; `device` is major:minor."""

    point: str
    kind: str
    source: str
    options: frozenset[str]
    device: str


def disks(
    settings: Settings,
    machine: Machine,
    *,
    files: Files | None = None,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> Iterator[Finding]:
    """Those of each directory of the store that is on a disk of its own."""
    files = files or Files()
    logs = [*settings.commit_log_directories]
    for path in _on_distinct_disks([settings.store_path, *logs]):
        standing = existing(path)
        if standing != path:
            yield _absent(path, standing)
        yield from _kind(path, machine)
        yield _space(path, settings, files)
        yield _inodes(path, os.statvfs(standing))
    yield _full_when(settings, files, now_ms())


def _absent(path: str, standing: str) -> Finding:
    try:
        os.stat(path)
    except FileNotFoundError:
        return ok("disk", path, f"does not exist yet: a start makes it in {standing}")
    except OSError as error:
        text = f"it cannot be looked at ({error.strerror}): the disk of {standing} is examined"
        return unknown("disk", path, text, "examine it as root, or as the broker's user")
    return ok("disk", path, "was made this moment")


def existing(path: str) -> str:
    """`path`, or the nearest directory above it that is there and would hold it."""
    while not os.path.exists(path):
        path = os.path.dirname(path) or "/"
    return path


def _on_distinct_disks(paths: list[str]) -> list[str]:
    found: dict[int, str] = {}
    for path in paths:
        found.setdefault(os.stat(existing(path)).st_dev, path)
    return list(found.values())


# --- the file system


def mount_of(path: str, machine: Machine) -> Mount | None:
    """The mount that a path lies on; None if the system does not say."""
    whole = os.path.realpath(existing(path))
    best: Mount | None = None
    for line in machine.lines("proc/self/mountinfo") or ():
        # 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
        head, _, tail = line.partition(" - ")
        fields, kind = head.split(), tail.split()
        if len(fields) < 6 or len(kind) < 3:
            continue
        point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[4])
        is_above = whole == point or whole.startswith(point.rstrip("/") + "/")
        # The later of two mounts on one point counts.
        if is_above and (best is None or len(point) >= len(best.point)):
            options = frozenset(fields[5].split(",")) | frozenset(kind[2].split(","))
            best = Mount(point, kind[0], kind[1], options, fields[2])
    return best


def _kind(path: str, machine: Machine) -> Iterator[Finding]:
    mount = mount_of(path, machine)
    if mount is None:
        yield unknown("disk type", path, "the system does not say on which disk it is")
        return
    what = f"{mount.kind} on {mount.source}, mounted at {mount.point}{_medium(mount, machine)}"
    if "ro" in mount.options:
        remedy = f"mount -o remount,rw {mount.point} once you know why (dmesg)"
        yield fault("disk type", path, f"{what}: it is read-only", remedy)
    elif mount.kind in _IN_MEMORY:
        text = f"{what}: it is memory, and all messages are gone when the machine goes down"
        yield warning("disk type", path, text, "store.path on a disk (storePathRootDir)")
    elif mount.kind in _NETWORK or mount.kind.startswith("fuse"):
        text = f"{what}: a sync, and a lock against a second broker, are worth what the server does"
        yield warning("disk type", path, text, "store.path on a disk of this machine")
    elif mount.kind == "overlay":
        text = f"{what}: it is a container's own layer, and goes with the container"
        yield warning("disk type", path, text, "mount a volume at store.path")
    elif bad := sorted(_NO_SYNC & mount.options):
        text = f"{what}: {bad[0]} keeps syncs from the disk, so a power cut may take what was said"
        yield fault("disk type", path, text, f"take {bad[0]} out of /etc/fstab, and mount it anew")
    elif "sync" in mount.options:
        text = f"{what}: the option sync makes every write wait for the disk"
        yield warning("disk type", path, text, "take sync out of /etc/fstab, and mount it anew")
    else:
        yield ok("disk type", path, what)


def _medium(mount: Mount, machine: Machine) -> str:
    # A partition has no queue of its own, the disk above it has.
    for folder in (mount.device, f"{mount.device}/.."):
        turns = machine.number(f"sys/dev/block/{folder}/queue/rotational")
        if turns is not None:
            return ", a turning disk" if turns else ", no turning disk"
    return ""


# --- its space


def _space(path: str, settings: Settings, files: Files) -> Finding:
    space = files.disk_space(existing(path))
    most = settings.disk_max_used_percent / 100
    text = f"{space.used_ratio:.1%} used, {size_text(space.free_bytes)} free"
    if space.used_ratio > settings.disk_warning_ratio:
        text += f": sends are refused above {settings.disk_warning_ratio:.0%}"
        return fault("disk space", path, text, _room(settings))
    if space.used_ratio > most:
        text += f": above {most:.0%} the oldest segments go before their time"
        return warning("disk space", path, text, _room(settings))
    return ok("disk space", path, text)


def _room(settings: Settings) -> str:
    hours = settings.retention_hours
    return (
        f"a larger disk, or retention.hours (fileReservedTime) below {hours}; aerobee store "
        "retention shows what would go"
    )


def _inodes(path: str, found: os.statvfs_result) -> Finding:
    if not found.f_files:
        return ok("inodes", path, "the file system makes them as it needs them")
    text = f"{found.f_favail} of {found.f_files} free; each queue has a file and a folder at least"
    if found.f_favail < found.f_files * _INODES_LEAST:
        return warning("inodes", path, text, "fewer topics and queues, or mkfs with more inodes")
    return ok("inodes", path, text)


# --- when it is full


class Growth(NamedTuple):
    """How the log has grown: bytes a millisecond, and the bytes that it has."""

    rate: float
    held_bytes: int


def growth_of(settings: Settings, files: Files) -> Growth | None:
    """The growth between the first messages of the oldest and of the newest segment; None if that
    is not known yet."""
    begun: list[tuple[int, int]] = []
    starts = sorted(_segments(settings.commit_log_directories))
    for ordered in (starts, starts[::-1]):
        for start, path in ordered:
            place = SegmentPlace(str(path), start, start + settings.commit_log_segment_bytes)
            # Segments that were made ahead have not begun.
            if (time_ms := begun_ms(files, place)) is not None:
                begun.append((start, time_ms))
                break
    if len(begun) < 2 or begun[1][1] <= begun[0][1]:
        return None
    held = begun[1][0] - begun[0][0]
    return Growth(held / (begun[1][1] - begun[0][1]), held)


def _segments(directories: tuple[str, ...]) -> Iterator[tuple[int, Path]]:
    for directory in directories:
        try:
            names = os.listdir(directory)
        except OSError:
            continue
        for name in names:
            if is_segment_name(name):
                yield int(name), Path(directory) / name


def _full_when(settings: Settings, files: Files, now_ms: int) -> Finding:
    subject = settings.commit_log_directories[0]
    try:
        growth = growth_of(settings, files)
    except OSError as error:
        return unknown("disk full", subject, f"the log cannot be read: {error.strerror}")
    if growth is None:
        text = "how quickly the log grows is not known before it has two segments with messages"
        return unknown("disk full", subject, text)
    spaces = [files.disk_space(existing(path)) for path in settings.commit_log_directories]
    room = sum(max(0, _room_bytes(one, settings.disk_warning_ratio)) for one in spaces)
    kept = growth.rate * settings.retention_hours * _HOUR_MS
    speed = f"the log grows by {size_text(growth.rate * _HOUR_MS)} an hour"
    if kept <= growth.held_bytes + room:
        text = (
            f"{speed}, and {settings.retention_hours} hours of it fit: it is never full like that"
        )
        return ok("disk full", subject, text)
    left_ms = room / growth.rate
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime((now_ms + left_ms) / 1000))
    text = f"{speed}: sends are refused from about {when} on, in {left_ms / _HOUR_MS:.0f} hours"
    if left_ms < _SOON_MS:
        return warning("disk full", subject, text, _room(settings))
    return ok("disk full", subject, text)


def _room_bytes(space: DiskSpace, ratio: float) -> int:
    return int(ratio * (space.used_bytes + space.free_bytes)) - space.used_bytes
