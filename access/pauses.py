"""Work on a thread beside the loop, cut so that the loop gets the interpreter when it wants it.

A thread that computes gives the interpreter up every five milliseconds, and only when it is asked
to: each turn of the loop would wait that long, for as long as the thread works. So what takes
seconds sleeps for a moment after each millisecond. `yield`s of the operating system do not do: the
thread that gives up has it back before the other one is awake.
"""

from __future__ import annotations

import time
from typing import Final

_WORK_S: Final = 0.001
_PAUSE_S: Final = 0.0002


class Pauses:
    """The pauses of one thread's work, which calls `take` every some tens of microseconds."""

    def __init__(self) -> None:
        self._since = time.perf_counter()
        #: How often there was one.
        self.count = 0

    def take(self) -> None:
        """Pause, if it is time."""
        if time.perf_counter() - self._since >= _WORK_S:
            time.sleep(_PAUSE_S)
            self.count += 1
            self._since = time.perf_counter()


class NoPauses(Pauses):
    """Where nobody waits: at a start, in a command."""

    def take(self) -> None:
        """Nothing."""


NO_PAUSES: Final = NoPauses()
