"""A memory cgroup, of either version: its processes get a number of bytes and no more.

Made below the group that the tests run in, and taken down by `close`, whatever has happened. Memory
that the kernel keeps for files counts as well; it goes before anything is killed.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from types import TracebackType

_V1 = Path("/sys/fs/cgroup/memory")
_V2 = Path("/sys/fs/cgroup")
_NUMBERS = itertools.count()
_END_S = 10.0


def parent() -> Path | None:
    """Where a group with a limit can be made; None where it cannot."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = {line.split(":", 2)[1]: line.split(":", 2)[2] for line in lines}
    candidates = [_V1 / own["memory"].lstrip("/"), _V1] if "memory" in own else []
    if "" in own:
        candidates += [_V2 / own[""].lstrip("/"), _V2]
    return next(filter(_can_limit, candidates), None)


def _can_limit(folder: Path) -> bool:
    probe = folder / f"aerobee-probe-{os.getpid()}"
    try:
        probe.mkdir()
    except OSError:
        return False
    try:
        return any((probe / name).exists() for name in ("memory.limit_in_bytes", "memory.max"))
    finally:
        probe.rmdir()


class MemoryGroup:
    """A context manager. `prefix` before a command has it run in the group."""

    def __init__(self, limit_bytes: int) -> None:
        above = parent()
        assert above is not None, "ask for the tool first"
        self._folder = above / f"aerobee-{os.getpid()}-{next(_NUMBERS)}"
        self._folder.mkdir()
        self._is_v1 = (self._folder / "memory.limit_in_bytes").exists()
        self._write("memory.limit_in_bytes" if self._is_v1 else "memory.max", limit_bytes)
        swap = "memory.memsw.limit_in_bytes" if self._is_v1 else "memory.swap.max"
        if (self._folder / swap).exists():
            self._write(swap, limit_bytes if self._is_v1 else 0)

    def __enter__(self) -> MemoryGroup:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def prefix(self) -> tuple[str, ...]:
        """Words before a command, so that its process enters the group before it begins."""
        enter = 'echo $$ > "$0" && exec "$@"'
        return ("sh", "-c", enter, str(self._folder / "cgroup.procs"))

    def kills(self) -> int:
        """How many processes the limit has killed."""
        name = "memory.oom_control" if self._is_v1 else "memory.events"
        for line in (self._folder / name).read_text().splitlines():
            word, _, count = line.partition(" ")
            if word == "oom_kill":
                return int(count)
        return 0

    def peak_bytes(self) -> int:
        """The most it has held, files' pages included; 0 where the kernel does not say."""
        name = "memory.max_usage_in_bytes" if self._is_v1 else "memory.peak"
        path = self._folder / name
        return int(path.read_text()) if path.exists() else 0

    def close(self) -> None:
        """Take it down. Its processes have to be gone or going."""
        deadline = time.monotonic() + _END_S
        while True:
            try:
                self._folder.rmdir()
                return
            except OSError:
                assert time.monotonic() < deadline, f"{self._folder} is still in use"
                time.sleep(0.02)

    def _write(self, name: str, value: int) -> None:
        (self._folder / name).write_text(str(value))
