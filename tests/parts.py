"""The parts that set-up scripts bring for the tests, brought in the background and waited for.

    python -m tests.parts start     begins to bring all that is not here, and returns at once
    python -m tests.parts wait      waits for the end of it, and fails if a part failed

With `--draw=part --seed N` only what a run with these draws (tests/drawing.py). The scripts run
under `nice`, so that tests that need no part go first.

Downloads, the clients of other languages and PySpark take minutes, and most suites need none of it.
So `make test` starts the scripts first and goes on. A test that needs a part asks `lack`, which
waits while the part is being brought (`need` also skips or fails the test).

How long it waits does not count as the test's own time, after which a test that hangs would end its
run (`watch`).

The process that brings a part holds a lock on the part's file until the part is here, or has
failed; the kernel gives the lock back however that process ends. The log beside the lock has the
output of the script, and a failed part has a file with the script's exit code.
"""

from __future__ import annotations

import argparse
import faulthandler
import fcntl
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Container
from functools import cache
from pathlib import Path
from typing import IO

import pytest

from tests import campaign, drawing

TESTS = Path(__file__).parent
STATE = TESTS.parent / ".cache" / "parts"
#: Seconds that anybody waits for one part; a download that takes longer has gone wrong.
PATIENCE_S = 1800
_POLL_S = 0.1
#: A third of the weight of a test. With less, what waits for a part would be left for the end.
_NICE = 5
#: Pytest's watch over hanging tests: where it reports, after how many seconds, and if it ends them.
_watch: tuple[int, float, bool] | None = None


def spark_versions() -> tuple[str, ...]:
    """Versions of PySpark that the tests know, the newest first."""
    files = TESTS.parent.glob("requirements/spark-*.txt")
    names = [path.stem.removeprefix("spark-") for path in files]
    return tuple(sorted(names, key=lambda name: [int(n) for n in name.split(".")], reverse=True))


def _spark(version: str) -> str:
    return f"spark-{version}"


#: Parts and the command of each, in chains: the parts of one chain follow each other. Only a
#: campaign runs older versions of PySpark than the newest, 850 MB each.
CHAINS: tuple[dict[str, tuple[str, ...]], ...] = (
    {
        _spark(version): ("tests/spark/setup.sh", version)
        for version in spark_versions()[: None if campaign.is_full() else 1]
    },
    {f"lake-{name}": ("tests/spark/lake.sh", name) for name in ("delta", "iceberg")},
    {
        part: ("tests/interop/setup.sh", part)
        for part in ("java", "java5", "cpp", "node", "go", "rust")
    },
    {"monitors": ("tests/service/setup.sh",), "s3": ("tests/spark/s3/setup.sh",)},
)


def watch(config: pytest.Config) -> None:
    """Have waiting stop the clock of `faulthandler_timeout`; called while pytest is configured."""
    global _watch
    timeout_s = float(config.getini("faulthandler_timeout") or 0)
    if timeout_s and sys.__stderr__ is not None:
        ends = bool(config.getini("faulthandler_exit_on_timeout"))
        _watch = os.dup(sys.__stderr__.fileno()), timeout_s, ends


#: How tests' ids begin, and the parts that they wait for. All that fit count.
_NEEDS: tuple[tuple[str, str], ...] = (
    (r"tests/interop/(?!(\w+/)?test_hostile)", "java"),
    (r"tests/contract/programs/test_client.py::\w+\[java", "java"),
    *(
        (rf"tests/interop/.*\[(.*-)?{part}\]", part)
        for part in ("cpp", "node", "go", "rust", "java5")
    ),
    (r"tests/interop/(\w+/)?test_(store_crossing|failover.*consumers)", "go"),
    (r"tests/spark/", _spark(spark_versions()[0])),
    (r"tests/spark/(\w+/)?test_lake.*delta", "lake-delta"),
    (r"tests/spark/(\w+/)?test_lake.*iceberg", "lake-iceberg"),
    (r"tests/spark/(\w+/)?test_archive_s3", "s3"),
    (r"tests/service/test_(prometheus|systemd)", "monitors"),
)


@cache
def parts_of(test: str) -> frozenset[str]:
    """The parts that a test waits for, by its id."""
    return frozenset(part for begin, part in _NEEDS if re.match(begin, test))


def is_settled(part: str) -> bool:
    """Whether nobody is bringing the part: it is here, or has failed, or nobody has begun."""
    try:
        lock = _path(part, "lock").open("rb")
    except FileNotFoundError:
        return True
    with lock:
        return _try_lock(lock)


def _try_lock(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lack(part: str) -> str | None:
    """The reason why the part could not be brought, in one line; None if nothing went wrong.

    Waits while it is being brought. A part that nobody has begun to bring lacks nothing here:
    whether it is there is for its suite to see.
    """
    try:
        lock = _path(part, "lock").open("rb")
    except FileNotFoundError:
        return None
    with lock:
        if not _free(lock):
            log = _path(part, "log")
            return f"{part}: not brought in {PATIENCE_S} s (what it does is in {log})"
        failed, log = _path(part, "failed"), _path(part, "log")
        if not failed.exists():
            return None
        last = log.read_text(errors="replace").strip().rpartition("\n")[2]
        return f"{part}: its set-up ended with {failed.read_text()}: {last} (all of it is in {log})"


def _free(lock: IO[bytes]) -> bool:
    """Whether the process that brings the part has finished with it; waits for that."""
    until = time.monotonic() + PATIENCE_S
    waited = False
    while time.monotonic() < until:
        if not _try_lock(lock):
            if not waited and _watch is not None:
                faulthandler.cancel_dump_traceback_later()
            waited = True
            time.sleep(_POLL_S)
            continue
        if waited:
            begin_watch_anew()
        return True
    return False


def begin_watch_anew() -> None:
    """Start the clock of `faulthandler_timeout` again: something that was waited for has happened.

    For a test that looks at hundreds of cases, on a machine that has much else to do."""
    if _watch is not None:
        file, timeout_s, ends = _watch
        faulthandler.dump_traceback_later(timeout_s, file=file, exit=ends)


def need(part: str, missing: Callable[[], str | None]) -> None:
    """Go on if the part is here, once it is if it is being brought.

    A part that could not be brought fails the test. `missing` says what else the part lacks, in one
    line: that skips the test, and fails it in CI, where everything is brought.
    """
    failed = lack(part)
    if failed is not None:
        pytest.fail(failed)
    said = missing()
    if said is not None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(said)


def start(left_out: Container[str] = ()) -> list[str]:
    """Begin to bring all other parts, but those that another process is at; which."""
    STATE.mkdir(parents=True, exist_ok=True)
    wanted = [[part for part in chain if part not in left_out] for chain in CHAINS]
    chains = [{part: lock for part in chain if (lock := _take(part))} for chain in wanted]
    begun = [part for chain in chains for part in chain]
    sys.stdout.flush()
    if begun and os.fork() == 0:
        code = 1
        try:
            _bring_all(chains)
            code = 0
        finally:
            os._exit(code)
    return begun


def wait(left_out: Container[str] = ()) -> list[str]:
    """Wait for all other parts; what went wrong, by part."""
    wanted = [part for chain in CHAINS for part in chain if part not in left_out]
    return [said for part in wanted if (said := lack(part)) is not None]


def _bring_all(chains: list[dict[str, IO[bytes]]]) -> None:
    """In the process that is left behind: it has nothing to say to the terminal."""
    os.nice(_NICE)
    with open(os.devnull, "r+b") as nothing:
        for stream in range(3):
            os.dup2(nothing.fileno(), stream)
    threads = [threading.Thread(target=_bring, args=(chain,)) for chain in chains]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _bring(chain: dict[str, IO[bytes]]) -> None:
    commands = {part: command for one in CHAINS for part, command in one.items()}
    for part, lock in chain.items():
        with _path(part, "log").open("wb") as log, lock:
            begun = time.monotonic()
            code = 1
            try:
                code = subprocess.call(
                    commands[part], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    cwd=TESTS.parent,
                )  # fmt: skip
            finally:
                if code:
                    _path(part, "failed").write_text(str(code))
            if not code:
                log.write(b"%.0f s\n" % (time.monotonic() - begun))


def _take(part: str) -> IO[bytes] | None:
    """The locked file of a part; None while another process has it."""
    lock = _path(part, "lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    _path(part, "failed").unlink(missing_ok=True)
    return lock


def _path(part: str, kind: str) -> Path:
    return STATE / f"{part}.{kind}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.parts", description=__doc__)
    parser.add_argument("command", choices=["start", "wait"])
    parser.add_argument("--draw", default=drawing.ALL, choices=[drawing.ALL, drawing.PART])
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    left_out = drawing.Drawn(asked.draw, asked.seed).parts_left_out()
    if asked.command == "start":
        begun = start(left_out)
        print(f"peers: bringing {', '.join(begun)} in the background; logs are in {STATE}")
        return 0
    failures = wait(left_out)
    for said in failures:
        print(f"peers: {said}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
