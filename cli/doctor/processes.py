"""Finds which process has something: a port, or the lock of a store. /proc alone is read.

The lock file itself is never opened: a process that closes any descriptor of it would give away its
own lock (`store/disk/lock.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aerobee.cli.doctor.findings import Machine

_LISTENS: Final = "0A"


def lock_holder(machine: Machine, store: Path) -> int | None:
    """The process that has a store open; None if no process has, or it cannot be told."""
    try:
        found = (store / "lock").stat()
    except OSError:
        return None
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    for line in machine.lines("proc/locks") or ():
        # 1: POSIX  ADVISORY  WRITE 3711 fe:00:1835 0 0
        parts = line.split()
        if len(parts) < 6 or parts[3] != "WRITE" or not parts[4].isdecimal() or parts[4] == "0":
            continue
        locked, _, inode = parts[5].rpartition(":")
        pid = int(parts[4])
        # Some file systems (btrfs, overlay) have one device for stat and another for locks.
        if inode == str(found.st_ino) and (locked == device or _opened(machine, pid, store)):
            return pid
    return None


def _opened(machine: Machine, pid: int, store: Path) -> bool:
    return _has(machine, pid, {os.path.realpath(store / "lock")})


def port_holder(machine: Machine, port: int) -> int | None:
    """The process that listens on a port of TCP; None if it cannot be told, as of a process of
    another user."""
    inodes = set(_listening_inodes(machine, port))
    if not inodes:
        return None
    sockets = {f"socket:[{inode}]" for inode in inodes}
    # The broker's own is most likely.
    first = [] if machine.pid is None else [machine.pid]
    return next((pid for pid in (*first, *_pids(machine)) if _has(machine, pid, sockets)), None)


def _listening_inodes(machine: Machine, port: int) -> Iterator[str]:
    for table in ("proc/net/tcp", "proc/net/tcp6"):
        for line in (machine.lines(table) or ())[1:]:
            # sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
            parts = line.split()
            if len(parts) > 9 and parts[3] == _LISTENS:
                _, _, local_port = parts[1].rpartition(":")
                if int(local_port, 16) == port:
                    yield parts[9]


def _pids(machine: Machine) -> list[int]:
    try:
        names = os.listdir(machine.root / "proc")
    except OSError:
        return []
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal())


def _has(machine: Machine, pid: int, targets: set[str]) -> bool:
    folder = machine.root / f"proc/{pid}/fd"
    try:
        for name in os.listdir(folder):
            if os.readlink(folder / name) in targets:
                return True
    except OSError:
        pass  # another user's, or it has ended
    return False


def name_of(machine: Machine, pid: int) -> str:
    """A process for people: its number, and the beginning of its command line."""
    lines = machine.lines(f"proc/{pid}/cmdline")
    words = lines[0].split("\0") if lines else []
    program = " ".join(words[:3]).strip()[:80]
    return f"process {pid} ({program})" if program else f"process {pid}"
