"""The real daemon under a wall clock that the test sets: libfaketime, which leaves the monotonic
clock, file times and everybody else's clock alone.

libfaketime reads the time from a file at every call. A `FakedClock` writes it: an offset from the
real time in seconds, or a time that stands still.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.crash.running.daemons import start_daemon
from tests.service.kit import Served
from tests.tools import faketime_library, need

#: Sets the clock of a FakedClock.
Setting = Callable[["FakedClock"], None]


class FakedClock:
    """The wall clock of the daemons that get `environ`."""

    def __init__(self, folder: Path) -> None:
        need("libfaketime")
        self._file = folder / "faketime"
        self._offset_s = 0.0
        self._stopped_s: float | None = None
        self.forward(0)

    @property
    def environ(self) -> Mapping[str, str]:
        return {
            "LD_PRELOAD": faketime_library() or "",
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_FMT": "%s",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    @property
    def now_s(self) -> float:
        """The time that the daemon reads."""
        return self._stopped_s if self._stopped_s is not None else time.time() + self._offset_s

    def forward(self, seconds: float) -> None:
        """Set it forward, or back."""
        self._offset_s = round(self.now_s + seconds - time.time())
        self._stopped_s = None
        self._write(f"{self._offset_s:+.0f}")

    def set_to(self, seconds: float) -> None:
        """Set it to a time since 1970; it goes on from there."""
        self.forward(seconds - self.now_s)

    def right(self) -> None:
        """Set it right."""
        self.set_to(time.time())

    def stop(self) -> None:
        """It stands still."""
        self._stopped_s = float(int(self.now_s))
        self._write(f"{self._stopped_s:.0f}")

    def _write(self, text: str) -> None:
        """At once: a reader between two writes would see the real time."""
        temporary = self._file.with_suffix(".new")
        temporary.write_text(text + "\n")
        temporary.replace(self._file)


def forget_clock_of(pid: int) -> None:
    """Remove the shared memory that libfaketime leaves when a process is killed."""
    for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
        (Path("/dev/shm") / name).unlink(missing_ok=True)


def start_faked(
    folder: Path, store: Path, flush: str, clock: FakedClock, control: str = ""
) -> Served:
    """A daemon with small files whose deletion runs ten times a second, at any hour."""
    more = {"retention.delete_hours": ";".join(map(str, range(24))), "retention.hours": 72}
    return start_daemon(folder, store, flush, control, more, environ=clock.environ)
