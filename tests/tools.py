"""Tools that a test needs and the machine may lack: programs, devices, privileges.

A test without its tool skips with one line that names the tool and what brings it. A machine that
is known to have a tool says so in AEROBEE_REQUIRED_TOOLS (names as below, separated by blanks or
commas; `.ci/run` sets it), and the skip is a failure there: no check vanishes quietly.
"""

import glob
import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.crash.crowds import memory_group

VARIABLE = "AEROBEE_REQUIRED_TOOLS"

#: Options of Java for what is over before the optimizing compiler pays: two thirds of the CPU time.
SHORT_LIVED_JAVA = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def _program(name: str) -> Callable[[], bool]:
    return lambda: shutil.which(name) is not None


def faketime_library() -> str | None:
    """The library that sets a process's wall clock, where Debian puts it."""
    return next(iter(glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")), None)


def _device(path: str) -> Callable[[], bool]:
    return lambda: os.access(path, os.R_OK | os.W_OK)


_NET_ADMIN, _SYS_ADMIN = 12, 21


def _may(*capabilities: int) -> Callable[[], bool]:
    """A container's root often may not."""

    def may() -> bool:
        status = Path("/proc/self/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("CapEff:"))
        effective = int(line.split()[1], 16)
        return all(effective & 1 << number for number in capabilities)

    return may


#: Name: (how to tell, what brings it).
TOOLS: dict[str, tuple[Callable[[], bool], str]] = {
    "mount": (_may(_SYS_ADMIN), "the privilege to mount (CAP_SYS_ADMIN): run as root"),
    "fuse": (_device("/dev/fuse"), "the kernel's module fuse and a device 10:229 at /dev/fuse"),
    "loop": (_device("/dev/loop-control"), "the kernel's module loop and /dev/loop-control"),
    "mkfs.ext4": (_program("mkfs.ext4"), "Debian package e2fsprogs"),
    "debugfs": (_program("debugfs"), "Debian package e2fsprogs"),
    "openssl": (_program("openssl"), "Debian package openssl"),
    "cc": (_program("cc"), "Debian packages gcc, libc6-dev and zlib1g-dev"),
    "libfaketime": (lambda: faketime_library() is not None, "Debian package libfaketime"),
    "memory cgroup": (
        lambda: memory_group.parent() is not None,
        "a memory cgroup, v1 or v2, and the right to make one: run as root",
    ),
    "atheris": (
        lambda: find_spec("atheris") is not None,
        "the Python package of that name: pip install -c requirements/dev.txt atheris",
    ),
    "ip": (_program("ip"), "Debian package iproute2"),
    "nsenter": (_program("nsenter"), "Debian package util-linux"),
    "tc": (_program("tc"), "Debian package iproute2"),
    "netns": (
        _may(_SYS_ADMIN, _NET_ADMIN),
        "the privilege to make network namespaces (CAP_SYS_ADMIN, CAP_NET_ADMIN): run as root",
    ),
    "strace": (_program("strace"), "Debian package strace, and the right to trace"),
}


def required() -> set[str]:
    """Names of the tools that may not be missing here."""
    return set(os.environ.get(VARIABLE, "").replace(",", " ").split())


def has(name: str) -> bool:
    """Whether one of the tools is here."""
    is_here, _ = TOOLS[name]
    return is_here()


def need(*names: str) -> None:
    """Go on if all of these are here; skip, or fail where they are required."""
    for name in names:
        is_here, brings = TOOLS[name]
        if not is_here():
            refuse = pytest.fail if name in required() else pytest.skip
            refuse(f"{name} is missing: {brings}")


def tool(name: str) -> str:
    """Path of a program that `need` has asked for."""
    path = shutil.which(name)
    assert path is not None, f"{name} was not asked for with need()"
    return path
