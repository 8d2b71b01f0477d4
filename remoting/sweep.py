"""A look at all of a table, again and again, a slice of a turn at a time.

A timer begins it; however large the table is, others are served between its steps. Loop thread
only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aerobee.remoting.turns import Spread, Turns


class Sweep:
    """Runs steps to their end in slices, one run at a time."""

    __slots__ = ("_make", "_spread", "_steps")

    def __init__(self, turns: Turns, make: Callable[[], Iterator[None]]) -> None:
        """`make` begins a run: an iterator that does a little with each step."""
        self._make = make
        self._steps: Iterator[None] | None = None
        self._spread = Spread(turns, self._step)

    def begin(self) -> None:
        """Begin a run with a slice of it, or go on with the run that is under way."""
        if self._steps is None:
            self._steps = self._make()
        self._spread.go_on()

    def _step(self) -> bool:
        steps = self._steps
        if steps is None:
            return False
        try:
            next(steps)
        except StopIteration:
            self._steps = None
        except BaseException:
            # The next run begins anew.
            self._steps = None
            raise
        return True
