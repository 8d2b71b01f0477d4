"""Examines what the machine allows: open files, memory, settings of the kernel."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from aerobee.cli.doctor.findings import Machine, fault, ok, unknown, warning
from aerobee.cli.documents.doctor import Finding
from aerobee.config.bounds.limits import connection_limit
from aerobee.config.bounds.memory import (
    available_memory,
    memory_of,
    memory_warning,
    size_text,
    worst_cases,
)
from aerobee.config.errors import ConfigError
from aerobee.config.model import Settings

# A broker takes that many connections that nobody has accepted yet (remoting/listening/server.py).
_BACKLOG: Final = 1024
# The kernel's default, and the least that a broker with a few hundred queues should have.
_MAPS_LEAST: Final = 65_530
# Above that share of a limit there is a warning.
_NEARLY: Final = 0.8
_SWAPPINESS_MOST: Final = 10


def machine_findings(settings: Settings, machine: Machine) -> Iterator[Finding]:
    """Those of this machine for a broker with these settings."""
    yield from open_files(settings, machine)
    yield from memory(settings, machine)
    yield from locked_memory(settings, machine)
    yield from kernel(settings, machine)


class _Limit(NamedTuple):
    """A limit of the broker's process, or of the processes that this shell starts."""

    hard: int
    whose: str


def _limit(machine: Machine, name: str, kind: int) -> _Limit:
    lines = machine.of_process("limits")
    for line in lines or ():
        if line.startswith(name):
            hard = line[len(name) :].split()[1]
            return _Limit(
                resource.RLIM_INFINITY if hard == "unlimited" else int(hard), "the broker's process"
            )
    return _Limit(resource.getrlimit(kind)[1], "processes of this shell (a service has its own)")


def open_files(settings: Settings, machine: Machine) -> Iterator[Finding]:
    """Whether the connections that are allowed fit the files that may be open."""
    hard, whose = _limit(machine, "Max open files", resource.RLIMIT_NOFILE)
    files = 1_000_000 if hard == resource.RLIM_INFINITY else hard
    needed = settings.connections + settings.reserved_files
    remedy = f"LimitNOFILE={needed} in the unit, or ulimit -Hn {needed} before the start"
    try:
        limited = connection_limit(settings, files)
    except ConfigError as error:
        yield fault("open files", whose, f"{error.key} {error.reason}", remedy)
        return
    if limited.warnings:
        text = (
            f"{files} may be open, and {needed} are needed (limits.connections and "
            f"limits.reserved_files): {limited.connections} connections are taken, and not "
            f"{settings.connections}"
        )
        lower = f"limits.connections={limited.connections}"
        yield warning("open files", whose, text, f"{remedy}, or {lower}")
    else:
        yield ok("open files", whose, f"{files} may be open, {needed} are needed at most")
    if machine.pid is not None:
        yield from _open_now(machine, files)


def _open_now(machine: Machine, files: int) -> Iterator[Finding]:
    try:
        count = len(os.listdir(machine.root / f"proc/{machine.pid}/fd"))
    except OSError:
        return
    subject = f"process {machine.pid}"
    if count > files * _NEARLY:
        text = f"{count} of {files} are open now"
        remedy = "a higher LimitNOFILE in the unit, and aerobee doctor after the restart"
        yield warning("open files", subject, text, remedy)
    else:
        yield ok("open files", subject, f"{count} of {files} are open now")


def memory(settings: Settings, machine: Machine) -> Iterator[Finding]:
    """Whether the limits together fit the memory, and whether the kernel has killed for memory."""
    available = available_memory(str(machine.root), machine.pid)
    share = memory_of(settings, available)
    total = size_text(sum(case.bytes for case in worst_cases(settings)))
    if share is None:
        yield unknown("memory", "limits", "the system does not say how much there is")
    elif text := memory_warning(settings, share):
        text, _, remedy = text.partition(": ")
        yield warning("memory", "limits", text, remedy)
    else:
        text = f"the limits allow {total} at worst, and {share.source} has {size_text(share.bytes)}"
        yield ok("memory", "limits", text)
    for group, kills in _kills(machine):
        yield warning(
            "memory", f"control group {group}", f"the kernel has killed {kills} processes in it "
            "for want of memory", "MemoryMax= of the unit above what aerobee doctor says of the "
            "limits, or lower limits (docs/limits.md)",
        )  # fmt: skip


def _kills(machine: Machine) -> Iterator[tuple[str, int]]:
    whose = "self" if machine.pid is None else str(machine.pid)
    for line in machine.lines(f"proc/{whose}/cgroup") or ():
        _, controllers, path = line.split(":", 2)
        if controllers:
            continue
        events = Path("sys/fs/cgroup") / path.lstrip("/") / "memory.events"
        for event in machine.lines(str(events)) or ():
            name, _, count = event.partition(" ")
            if name == "oom_kill" and count.isdecimal() and int(count):
                yield path, int(count)


def locked_memory(settings: Settings, machine: Machine) -> Iterator[Finding]:
    """Whether the transient pool's buffers may be locked in memory."""
    if not settings.transient_pool_effective:
        return
    hard, whose = _limit(machine, "Max locked memory", resource.RLIMIT_MEMLOCK)
    needed = settings.transient_pool_buffers * settings.commit_log_segment_bytes
    if hard != resource.RLIM_INFINITY and hard < needed:
        text = f"{size_text(hard)} may be locked, and the transient pool has {size_text(needed)}"
        yield warning("locked memory", whose, text, "LimitMEMLOCK=infinity in the unit")
    else:
        yield ok("locked memory", whose, f"the transient pool's {size_text(needed)} may be locked")


def kernel(settings: Settings, machine: Machine) -> Iterator[Finding]:
    """Settings of the kernel, each with the command that sets it."""
    yield _maps(settings, machine)
    yield _at_least(machine, "net.core.somaxconn", _BACKLOG, "connections that wait to be accepted")
    needed = settings.connections + settings.reserved_files
    yield _at_least(machine, "fs.file-max", needed, "files open on the whole machine")
    overcommit = machine.number("proc/sys/vm/overcommit_memory")
    if overcommit == 2:
        yield warning(
            "kernel", "vm.overcommit_memory", "2: mappings of files that are only read count as "
            "memory, so the broker may be refused one while there is memory",
            "sysctl -w vm.overcommit_memory=1",
        )  # fmt: skip
    elif overcommit is not None:
        yield ok("kernel", "vm.overcommit_memory", f"{overcommit}: not strict")
    yield from _swap(machine)


def _at_least(machine: Machine, name: str, wanted: int, holds: str) -> Finding:
    value = machine.number("proc/sys/" + name.replace(".", "/"))
    if value is None:
        return unknown("kernel", name, "the system does not say")
    if value < wanted:
        text = f"{value}: {holds}; a broker with these settings wants {wanted}"
        return warning("kernel", name, text, f"sysctl -w {name}={wanted}")
    return ok("kernel", name, f"{value}, {wanted} are wanted")


def _maps(settings: Settings, machine: Machine) -> Finding:
    """Each segment of the log, each file of a queue and of the index is a mapping at worst."""
    name = "vm.max_map_count"
    allowed = machine.number(f"proc/sys/{name.replace('.', '/')}")
    if allowed is None:
        return unknown("kernel", name, "the system does not say")
    lines = machine.of_process("maps")
    used = None if lines is None else len(lines)
    wanted = max(_MAPS_LEAST, 2 * (used or 0))
    now = "" if used is None else f", the broker has {used} now"
    if allowed < wanted:
        return warning(
            "kernel", name, f"{allowed} mappings are allowed to a process{now}",
            f"sysctl -w {name}={max(wanted, 262_144)}",
        )  # fmt: skip
    return ok("kernel", name, f"{allowed} mappings are allowed to a process{now}")


def _swap(machine: Machine) -> Iterator[Finding]:
    swap = 0
    for line in machine.lines("proc/meminfo") or ():
        if line.startswith("SwapTotal:"):
            swap = int(line.split()[1]) * 1024
    swappiness = machine.number("proc/sys/vm/swappiness")
    if swappiness is None:
        return
    if swap and swappiness > _SWAPPINESS_MOST:
        text = f"{swappiness}, with {size_text(swap)} of swap: the broker's own memory may be "
        yield warning(
            "kernel", "vm.swappiness", f"{text}swapped out for pages of files",
            f"sysctl -w vm.swappiness={_SWAPPINESS_MOST}",
        )  # fmt: skip
    else:
        swap_text = f"with {size_text(swap)} of swap" if swap else "without swap"
        yield ok("kernel", "vm.swappiness", f"{swappiness}, {swap_text}")
