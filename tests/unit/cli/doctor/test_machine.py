"""Open files, memory, kernel and clock, read below a root of its own."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from aerobee.cli.doctor.clock import KernelClock, clock, kernel_clock
from aerobee.cli.doctor.findings import Machine
from aerobee.cli.doctor.machine import machine_findings
from aerobee.cli.documents.doctor import Finding
from aerobee.config.model import Settings

GIB = 1 << 30
FIT = {
    "proc/meminfo": "MemTotal: 33554432 kB\nSwapTotal: 0 kB\n",
    "proc/self/cgroup": "0::/shell\n",
    "proc/sys/vm/max_map_count": "262144\n",
    "proc/sys/net/core/somaxconn": "4096\n",
    "proc/sys/fs/file-max": "9223372036854775807\n",
    "proc/sys/vm/overcommit_memory": "0\n",
    "proc/sys/vm/swappiness": "60\n",
    "proc/7/limits": "Limit  Soft Hard\nMax open files            1024      1048576   files\n",
    "proc/7/cgroup": "0::/broker\n",
    "proc/7/maps": "a map\n" * 500,
    "proc/7/fd/0": "",
}


def machine(root: Path, pid: int | None = 7, **changed: str) -> Machine:
    """A machine with the files of `FIT`, of which some are others: proc__meminfo="..."."""
    named = {key.replace("__", "/"): text for key, text in changed.items()}
    for name, text in {**FIT, **named}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Machine(root, pid)


def by_subject(findings: Iterable[Finding]) -> dict[tuple[str, str], str]:
    found = list(findings)
    for one in found:
        assert (one.remedy is not None) or one.state in ("ok", "unknown"), one
    return {(one.check, one.subject): one.state for one in found}


def test_a_fit_machine_has_no_warning(tmp_path: Path) -> None:
    found = by_subject(machine_findings(Settings.for_tests(), machine(tmp_path)))
    assert set(found.values()) == {"ok"}
    assert {check for check, _ in found} == {"open files", "memory", "kernel"}


@pytest.mark.parametrize(
    ("changed", "subject"),
    [
        ({"proc__meminfo": "MemTotal: 262144 kB\nSwapTotal: 0 kB\n"}, ("memory", "limits")),
        ({"sys__fs__cgroup__broker__memory.max": "268435456\n"}, ("memory", "limits")),
        (
            {"sys__fs__cgroup__broker__memory.events": "low 0\noom_kill 3\n"},
            ("memory", "control group /broker"),
        ),
        ({"proc__sys__vm__max_map_count": "1000\n"}, ("kernel", "vm.max_map_count")),
        ({"proc__7__maps": "a map\n" * 200_000}, ("kernel", "vm.max_map_count")),
        ({"proc__sys__net__core__somaxconn": "128\n"}, ("kernel", "net.core.somaxconn")),
        ({"proc__sys__fs__file-max": "5000\n"}, ("kernel", "fs.file-max")),
        ({"proc__sys__vm__overcommit_memory": "2\n"}, ("kernel", "vm.overcommit_memory")),
        (
            {"proc__meminfo": "MemTotal: 33554432 kB\nSwapTotal: 1024 kB\n"},
            ("kernel", "vm.swappiness"),
        ),
        (
            {"proc__7__limits": "Max open files            1024      5000   files\n"},
            ("open files", "the broker's process"),
        ),
    ],
)  # fmt: skip
def test_each_shortage_is_one_warning(
    changed: dict[str, str], subject: tuple[str, str], tmp_path: Path
) -> None:
    found = by_subject(machine_findings(Settings.for_tests(), machine(tmp_path, **changed)))
    assert [key for key, state in found.items() if state != "ok"] == [subject]
    assert found[subject] == "warning"


def test_too_few_files_for_any_connection_are_a_fault(tmp_path: Path) -> None:
    limits = "Max open files            100      100   files\n"
    found = by_subject(
        machine_findings(Settings.for_tests(), machine(tmp_path, proc__7__limits=limits))
    )
    assert found["open files", "the broker's process"] == "fault"


def test_what_the_system_does_not_say_is_unknown(tmp_path: Path) -> None:
    found = by_subject(machine_findings(Settings.for_tests(), Machine(tmp_path, None)))
    assert found["memory", "limits"] == "unknown"
    assert found["kernel", "vm.max_map_count"] == "unknown"
    assert found["kernel", "net.core.somaxconn"] == "unknown"


def test_a_transient_pool_that_may_not_be_locked_is_a_warning(tmp_path: Path) -> None:
    settings = Settings.for_tests(
        transient_pool_enabled=True, transient_pool_buffers=5, commit_log_segment_bytes=GIB
    )
    limits = f"Max locked memory         65536      {GIB}   bytes\n" + FIT["proc/7/limits"]
    found = by_subject(machine_findings(settings, machine(tmp_path, proc__7__limits=limits)))
    assert found["locked memory", "the broker's process"] == "warning"
    limits = limits.replace(f"{GIB}  ", "unlimited")
    found = by_subject(machine_findings(settings, machine(tmp_path, proc__7__limits=limits)))
    assert found["locked memory", "the broker's process"] == "ok"


# --- the clock

NOW_MS = 1_700_000_000_000


def clock_states(
    root: Path,
    kernel: KernelClock | None = None,
    boot_ms: int | None = None,
    pid: int | None = None,
) -> dict[str, str]:
    found = clock(
        Settings.for_tests(store_path=str(root / "store")),
        Machine(root, pid),
        boot_ms=boot_ms,
        kernel=lambda: kernel,
        now_ms=lambda: NOW_MS,
    )
    return {one.subject.rpartition("/")[2]: one.state for one in found}


def test_a_clock_that_nobody_keeps_right_is_a_warning(tmp_path: Path) -> None:
    assert clock_states(tmp_path, KernelClock(False, 0.0)) == {"synchronisation": "warning"}
    assert clock_states(tmp_path, KernelClock(True, 3.0)) == {"synchronisation": "ok"}
    assert clock_states(tmp_path, None) == {"synchronisation": "unknown"}


def test_this_kernel_is_asked_and_its_clock_left_alone() -> None:
    before = time.clock_gettime(time.CLOCK_MONOTONIC) - time.time()
    found = kernel_clock()
    assert found is None or found.error_ms >= 0
    assert abs(time.clock_gettime(time.CLOCK_MONOTONIC) - time.time() - before) < 0.5


@pytest.mark.parametrize(("ahead_ms", "state"), [(0, "ok"), (5_000, "warning"), (90_000, "fault")])
def test_messages_of_a_time_to_come_are_found(ahead_ms: int, state: str, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    times = struct.pack(">qqq", NOW_MS - 9, NOW_MS + ahead_ms, 0)
    (tmp_path / "store/checkpoint").write_bytes(times + bytes(4072))
    assert clock_states(tmp_path)["store"] == state


@pytest.mark.parametrize(
    ("moved_s", "state"), [(0, "ok"), (-30, "ok"), (3600, "warning"), (-3600, "warning")]
)
def test_a_clock_that_was_set_since_the_start_is_found(
    moved_s: int, state: str, tmp_path: Path
) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/uptime").write_text("5000.00 900.00\n")
    fields = " ".join(["S", *"0" * 18, str(4000 * ticks), "0"])
    (tmp_path / "proc/7/stat").write_text(f"7 (a ) broker) {fields}\n")
    # It was started 1,000 s ago, when the clock was `moved_s` behind where it would be by now.
    boot_ms = NOW_MS - 1_000_000 - moved_s * 1000
    assert clock_states(tmp_path, boot_ms=boot_ms, pid=7)["process 7"] == state
