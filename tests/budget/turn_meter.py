"""Counts the work of each turn of the loop: lines of Python, bytes of memory, saves of tables.

Time is not measured: a line that is run counts `LINE_S`, so the figures are the same on each
machine and at any load. Loops written in C are one line, whatever they do; the objects they make
are seen in the memory. `Meter.clock` takes the place of the clock of the turns, which therefore end
when the counted time is over, as they do by the real one.
"""

from __future__ import annotations

import asyncio
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple, TypeAlias

from aerobee.remoting.turns import Turns

#: A line of Python takes 50 to 100 ns on the machines this is for.
LINE_S = 100e-9

_Tracer: TypeAlias = Any
# The loop itself and the tests are not what is measured.
_NOT_COUNTED = (str(Path(asyncio.__file__).parent), str(Path(__file__).parents[1]))


class Counted(NamedTuple):
    """The counts from the beginning to the end of a measurement."""

    # The longest piece of work between two looks at the clock, and the work of the longest turn.
    step_s: float
    turn_s: float
    # The most bytes held above those at the beginning.
    held: int
    # The functions in which most of the longest step was.
    most: str


class Meter:
    """`with meter:` counts what the thread of the running loop does; `result` says what it was."""

    def __init__(self, *turns: Turns) -> None:
        """`turns` go by the counted time from now on."""
        self._lines = 0
        # Lines by function: since the last look, and of the longest step so far.
        self._by: Counter[str] = Counter()
        self._of_longest: dict[str, int] = {}
        self._looked = self._turn_began = 0
        self._step = self._turn = 0
        self._counting = False
        self._counted: dict[CodeType, bool] = {}
        self._watched: Any = None
        self.result = Counted(0, 0, 0, "")
        for one in turns:
            one.clock = self.clock

    def clock(self) -> float:
        """Seconds, as counted; the work since the last look is a step."""
        if self._lines - self._looked > self._step:
            self._step = self._lines - self._looked
            self._of_longest = dict(self._by)
        self._by.clear()
        self._looked = self._lines
        return self._lines * LINE_S

    def __enter__(self) -> Meter:
        self._looked = self._turn_began = self._lines
        self._step = self._turn = 0
        self._of_longest = {}
        self._counting = True
        self._watch(asyncio.get_running_loop())
        tracemalloc.start()
        sys.settrace(self._enter_frame)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        sys.settrace(None)
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        self._counting = False
        self._end_turn()
        dearest = sorted(self._of_longest, key=self._of_longest.__getitem__)[:-4:-1]
        self.result = Counted(self._step * LINE_S, self._turn * LINE_S, held, ", ".join(dearest))

    def _watch(self, loop: Any) -> None:
        """Learn when the loop looks at its sockets: a turn is what runs between two looks."""
        if self._watched is not loop:
            self._watched, run_once = loop, loop._run_once

            def run_a_turn() -> None:
                if self._counting:
                    self._end_turn()
                run_once()

            loop._run_once = run_a_turn

    def _end_turn(self) -> None:
        self.clock()
        self._turn = max(self._turn, self._lines - self._turn_began)
        self._turn_began = self._lines

    def _enter_frame(self, frame: FrameType, _event: str, _arg: object) -> _Tracer:
        code = frame.f_code
        counted = self._counted.get(code)
        if counted is None:
            counted = not code.co_filename.startswith(_NOT_COUNTED)
            self._counted[code] = counted
        if not counted:
            return None
        self._lines += 1
        return self._line

    def _line(self, frame: FrameType, event: str, _arg: object) -> _Tracer:
        if event == "line":
            self._by[frame.f_code.co_qualname] += 1
            self._lines += 1
        return self._line
