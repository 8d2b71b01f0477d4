"""Remembers when the log ended where, so that a slave's lag can be told in seconds.

`note` is told the end of the log once a look, with the time. A slave that has reported `reported`
lacks the byte there; that byte was in the log by the first look whose end was above it. So an age
is too small by less than one look.

The looks of a year of two a second would be many. When there are more than `_MOST`, those go whose
neighbours are no further apart than a thirty-second part of their age, so that ages are too small
by that part at most. What is older than the first look of all is as old as that look.

Threads: the store's caller only.
"""

from bisect import bisect_right

# Some 200 KB. A year of two looks a second leaves less than half of it behind.
_MOST = 2048
_PART = 32


class EndTimes:
    """The ends of one log over time."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._times: list[float] = []

    def note(self, end: int, now: float) -> None:
        """The log ends at `end`, a log offset that is never below the one before."""
        if self._ends and end <= self._ends[-1]:
            return
        self._ends.append(end)
        self._times.append(now)
        if len(self._ends) > _MOST:
            self._thin(now)

    def _thin(self, now: float) -> None:
        times = self._times
        kept = [0]
        for at in range(1, len(times) - 1):
            if times[at + 1] - times[kept[-1]] > (now - times[at + 1]) / _PART:
                kept.append(at)
        kept.append(len(times) - 1)
        # A clock that leaps could leave too many: then the oldest go.
        kept = kept[-(_MOST // 2) :]
        self._ends = [self._ends[at] for at in kept]
        self._times = [times[at] for at in kept]

    def age(self, reported: int, now: float) -> float:
        """For how long the log has had the byte at `reported`, in seconds; 0 if it has not got it,
        or only since the last look."""
        at = bisect_right(self._ends, reported)
        return max(0.0, now - self._times[at]) if at < len(self._ends) else 0.0
