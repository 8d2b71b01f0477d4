"""Claims about the systemd unit: it is correct, as tight as it was, and the daemon bears it."""

from __future__ import annotations

import configparser
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.service.kit import Served, Wire, aerobee, tool

UNIT = Path(__file__).parents[2] / "deploy" / "aerobee.service"
# `systemd-analyze security` in tenths (1.4 of 10). Lower it when the unit gets tighter; it may not
# rise.
EXPOSURE_MAX = 14


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [tool("systemd-analyze", "systemd"), "--no-pager", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def copy_of_unit(folder: Path, change: Callable[[str], str] = lambda text: text) -> str:
    """A unit whose ExecStart names a program that exists on this machine."""
    copy = folder / "aerobee.service"
    text = UNIT.read_text().replace("/usr/bin/aerobee", aerobee()[0])
    copy.write_text(change(text))
    return str(copy)


def test_unit_is_verified_without_a_word(tmp_path: Path) -> None:
    result = analyze("verify", "--man=no", copy_of_unit(tmp_path))
    assert (result.returncode, result.stderr) == (0, "")


def test_a_mistyped_unit_would_not_pass(tmp_path: Path) -> None:
    mistyped = copy_of_unit(tmp_path, lambda text: text.replace("Type=notify", "Type=notfy"))
    assert "notfy" in analyze("verify", "--man=no", mistyped).stderr


def test_exposure_does_not_rise(tmp_path: Path) -> None:
    unit = copy_of_unit(tmp_path)
    result = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", unit)
    assert result.returncode == 0, result.stdout


def test_exposure_test_notices_a_looser_unit(tmp_path: Path) -> None:
    unit = copy_of_unit(tmp_path, lambda text: text.replace("PrivateTmp=yes", "PrivateTmp=no"))
    result = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", unit)
    assert result.returncode != 0


def test_unit_says_what_the_daemon_does() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text())
    service = unit["Service"]
    assert service["Type"] == "notify"
    assert service["RestartPreventExitStatus"] == "78"
    assert service["StateDirectory"] == "aerobee"
    assert service["ExecStart"] == "/usr/bin/aerobee serve -c /etc/aerobee/aerobee.toml"


def test_sample_configuration_is_accepted() -> None:
    sample = UNIT.with_name("aerobee.toml")
    command = [*aerobee(), "config", "check", str(sample)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


# PR_SET_MDWE (65) with PR_MDWE_REFUSE_EXEC_GAIN is what MemoryDenyWriteExecute= asks of newer
# kernels; it is inherited by what is executed next.
DENY_WRITE_EXECUTE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(65, 1, 0, 0, 0):
    sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_daemon_bears_memory_deny_write_execute(serve: Callable[..., Served]) -> None:
    prefix = (sys.executable, "-c", DENY_WRITE_EXECUTE)
    supported = subprocess.run([*prefix, "/bin/true"], capture_output=True, check=False)
    if supported.returncode:
        pytest.skip(f"kernel without PR_SET_MDWE (6.3): {supported.stderr.decode().strip()}")
    daemon = serve(prefix=prefix).ready()
    # Everything compiled is loaded: the loop, the decoders, and with a scrape prometheus-client.
    assert daemon.get("/metrics")[0] == 200
    daemon.terminate()
    assert daemon.wait() == 0


def system_calls(name: str) -> set[str]:
    """The calls of a systemd set such as @system-service, sets in it followed."""
    calls: set[str] = set()
    for line in analyze("syscall-filter", name).stdout.splitlines()[1:]:
        word = line.strip()
        if word.startswith("@"):
            calls |= system_calls(word)
        elif word and not word.startswith("#"):
            calls.add(word)
    return calls


def allowed_system_calls() -> set[str]:
    """The system calls that the unit's SystemCallFilter= lines leave over."""
    allowed: set[str] = set()
    for line in UNIT.read_text().splitlines():
        if line.startswith("SystemCallFilter="):
            value = line.removeprefix("SystemCallFilter=")
            named = set().union(*map(system_calls, value.removeprefix("~").split()))
            allowed = allowed - named if value.startswith("~") else allowed | named
    return allowed


def test_daemon_makes_no_system_call_the_unit_forbids(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    summary = tmp_path / "calls"
    prefix = (tool("strace", "strace"), "-f", "-c", "-U", "name", "-o", str(summary))
    tried = subprocess.run([*prefix, "/bin/true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"this machine does not let strace trace: {tried.stderr.decode().strip()}")
    daemon = serve("--set", "store.flush_disk_type=SYNC_FLUSH", prefix=prefix).ready()
    with Wire(daemon.port) as wire:
        assert wire.send_message("T", b"body").code == 0
    assert daemon.get("/metrics")[0] == 200
    tracer = daemon.process.pid
    child = Path(f"/proc/{tracer}/task/{tracer}/children").read_text().split()[0]
    os.kill(int(child), signal.SIGTERM)
    assert daemon.wait() == 0, daemon.log
    made = set(re.findall(r"^ *([a-z][a-z0-9_]*)$", summary.read_text(), re.MULTILINE))
    made -= {"syscall", "name", "total"}
    assert {"execve", "fdatasync", "fallocate", "accept4", "mmap"} <= made
    assert made - allowed_system_calls() == set()
