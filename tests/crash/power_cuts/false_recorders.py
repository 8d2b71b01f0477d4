"""Recorders that lie, to see that they are found out: NAME, then arguments as recorder.py's."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.crash.power_cuts import recorder
from tests.crash.power_cuts.recorder import BARRIER, WRITE, Recorder


class Forgetful(Recorder):
    """Stores every write and leaves every seventh out of the log."""

    _writes = 0

    def _append(self, kind: int, number: int, data: bytes = b"") -> None:
        if kind == WRITE:
            self._writes += 1
            if self._writes % 7 == 0:
                return
        super()._append(kind, number, data)


class Misordering(Recorder):
    """Logs a write behind the barrier that was to cover it."""

    _held: tuple[int, bytes] | None = None

    def _append(self, kind: int, number: int, data: bytes = b"") -> None:
        if kind == WRITE and self._held is None:
            self._held = (number, data)
            return
        super()._append(kind, number, data)
        if kind == BARRIER and self._held is not None:
            super()._append(WRITE, *self._held)
            self._held = None


FALSE = {"forgetful": Forgetful, "misordering": Misordering}

if __name__ == "__main__":
    recorder.Recorder = FALSE[sys.argv[1]]  # type: ignore[misc]
    recorder.main(*sys.argv[2:])
