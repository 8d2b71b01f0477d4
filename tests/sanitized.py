"""Runs the tests that feed the compiled form with what strangers send, in a build with
AddressSanitizer and UndefinedBehaviorSanitizer; what they find ends the run.

    python -m tests.sanitized [OPTIONS OF PYTEST]

Before that, the control: a build that believes a frame's length is given a cut one, and has to be
stopped. With `--control` a process is that control's.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from aerobee.native.form import VARIABLE, chosen
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.headers.send import SendMessageHeader
from aerobee.remoting.connection_limits import RemotingLimits
from tests import campaign, native_builds
from tests.native.drawn import TOPICS, traffic
from tests.native.replayed import Read, replayed

_SUITES = (
    "tests/native",
    "tests/unit/remoting/test_tls_records.py",
    "tests/unit/remoting/tls/test_tls_transport.py",
    "tests/fuzz/test_requests.py",
    "tests/fuzz/test_accounts.py::test_nobody_gets_past_the_table_of_rights[asked for]",
)


def main() -> int:
    if sys.argv[1:2] == ["--control"]:
        native_builds.use(Path(os.environ[native_builds.VARIABLE]))
        _feed_cut_frame()
        return 0
    control = [sys.executable, "-m", "tests.sanitized", "--control"]
    ran = subprocess.run(control, env=_environment("overrun"), stderr=subprocess.PIPE, text=True)
    if "AddressSanitizer" not in ran.stderr:
        print(f"sanitize: nobody has seen the overrun of the control:\n{ran.stderr[-2_000:]}")
        return 1
    print("sanitize: the overrun of the control is seen", flush=True)
    environment = _environment("sanitized")
    environment.setdefault(campaign.VARIABLE, "full")
    # Coverage-led inputs bring a runtime of their own.
    options = ("-k", "not led_by_coverage", "-o", "faulthandler_timeout=3600")
    command = [sys.executable, "-m", "pytest", *_SUITES, *options, *sys.argv[1:]]
    return subprocess.run(command, env=environment).returncode


def _environment(build: str) -> dict[str, str]:
    """The environment of a process that runs a sanitized build: the sanitizers are loaded first."""
    return os.environ | {
        "LD_PRELOAD": " ".join(_library(name) for name in ("libasan.so", "libubsan.so")),
        # Objects of Python are the allocator's, so that what lies beside them is nobody's.
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        VARIABLE: "required",
        native_builds.VARIABLE: str(native_builds.folder_of(build)),
    }


def _library(name: str) -> str:
    ran = subprocess.run(["cc", f"-print-file-name={name}"], stdout=subprocess.PIPE, check=True)
    return ran.stdout.decode().strip()


def _feed_cut_frame() -> None:
    """A read that fills the buffer; its last frame goes on behind it."""
    header = SendMessageHeader(
        "senders", TOPICS[0], "TBW102", 4, 0, 0, 1_700_000_000_000, 0, "UNIQ_KEY\x01u\x02", 0,
        False, 0, False,
    )  # fmt: skip
    frame = Command(
        code=RequestCode.SEND_MESSAGE_V2, ext=header.to_ext(), body=bytes(1_000), opaque=7
    ).encode()
    size = RemotingLimits().read_buffer_bytes
    assert size % len(frame)
    whole = frame * (size // len(frame) + 1)
    reads = [*traffic(random.Random(1), 0), Read(0, frame, awaited=True), Read(0, whole[:size])]
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(replayed(Path(folder), reads, chosen(), commit_log_segment_bytes=4 * size))


if __name__ == "__main__":
    sys.exit(main())
