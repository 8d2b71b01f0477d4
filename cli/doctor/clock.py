"""Examines the clock: whether it is kept right, and whether it was set while messages were stored.

Times of messages come from the broker's clock: delayed messages, retention and every search by time
go wrong with it.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from aerobee.cli.doctor.findings import Machine, fault, ok, unknown, warning
from aerobee.cli.documents.doctor import Finding
from aerobee.config.model import Settings
from aerobee.store.disk.checkpoint import TIMES

_UNSYNCHRONISED: Final = 0x40  # STA_UNSYNC of adjtimex(2)
_KEEP: Final = "timedatectl set-ntp true, or install chrony"
# A store time may be ahead of the clock by that much: a busy broker gives each message its own.
_AHEAD_MS: Final = 2_000
_FAR_AHEAD_MS: Final = 60_000
# A broker may take that long from the start of its process to the start of its clock.
_START_MS: Final = 60_000


class KernelClock(NamedTuple):
    """The state of the clock, as the kernel says it."""

    is_synchronised: bool
    error_ms: float


class _Timex(ctypes.Structure):
    """The beginning of adjtimex's structure; the rest is only room."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("frequency", ctypes.c_long),
        ("most_error", ctypes.c_long),
        ("error", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    )


def kernel_clock() -> KernelClock | None:
    """Asks the kernel, and changes nothing; None where it does not say."""
    try:
        ask = ctypes.CDLL(None, use_errno=True).adjtimex
        found = _Timex()
        if ask(ctypes.byref(found)) < 0:
            return None
    except (OSError, AttributeError):
        return None
    return KernelClock(not found.status & _UNSYNCHRONISED, found.most_error / 1000)


def clock(
    settings: Settings,
    machine: Machine,
    *,
    boot_ms: int | None = None,
    kernel: Callable[[], KernelClock | None] = kernel_clock,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> Iterator[Finding]:
    """`boot_ms`: when the broker of this machine says that it was started, by its clock."""
    yield _kept(kernel())
    yield from _store_times(Path(settings.store_path), now_ms())
    if boot_ms is not None and (finding := _set_since(machine, boot_ms, now_ms())) is not None:
        yield finding


def _kept(found: KernelClock | None) -> Finding:
    if found is None:
        return unknown("clock", "synchronisation", "the kernel does not say", "timedatectl")
    if not found.is_synchronised:
        text = "nobody keeps the clock of this machine right (the kernel has it unsynchronised)"
        return warning("clock", "synchronisation", text, _KEEP)
    text = f"kept right, wrong by {found.error_ms:.0f} ms at most"
    return ok("clock", "synchronisation", text)


def _store_times(store: Path, now_ms: int) -> Iterator[Finding]:
    """Whether the newest message of the store is of a time that is still to come."""
    try:
        with (store / "checkpoint").open("rb") as file:
            data = file.read(TIMES.size)
    except OSError:
        return
    if len(data) < TIMES.size:
        return
    ahead_ms = max(TIMES.unpack(data)) - now_ms
    if ahead_ms > _AHEAD_MS:
        text = (
            f"its newest message is of {ahead_ms / 1000:.0f} s from now: the clock was ahead when "
            "it was stored, or is behind now"
        )
        make = fault if ahead_ms > _FAR_AHEAD_MS else warning
        yield make("clock", str(store), text, f"set the clock right before the start: {_KEEP}")
    else:
        yield ok("clock", str(store), "no message of it is of a time to come")


def _set_since(machine: Machine, boot_ms: int, now_ms: int) -> Finding | None:
    """Compares the start of the broker by its clock of then with the same moment by the clock of
    now: they differ by what the clock was set meanwhile."""
    started = _started_before_s(machine)
    if started is None:
        return None
    moved_ms = now_ms - int(started * 1000) - boot_ms
    subject = f"process {machine.pid}"
    if moved_ms > _AHEAD_MS:
        text = (
            f"the clock was set forward by about {moved_ms / 1000:.0f} s since the broker started"
        )
    elif moved_ms < -_START_MS:
        text = f"the clock was set back by about {-moved_ms / 1000:.0f} s since the broker started"
    else:
        return ok("clock", subject, "the clock was not set since the broker started")
    return warning("clock", subject, text, f"{_KEEP}: it moves a clock slowly, and not in jumps")


def _started_before_s(machine: Machine) -> float | None:
    """Seconds since the start of the broker's process, by a clock that nobody sets."""
    lines = machine.of_process("stat")
    uptime = machine.lines("proc/uptime")
    if not lines or not uptime:
        return None
    # The name in brackets may hold blanks; the start is the 22nd field, in ticks since the boot.
    ticks = int(lines[0].rpartition(")")[2].split()[19])
    return float(uptime[0].split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
