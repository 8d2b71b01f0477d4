"""When the requests of an open loop are due: by the clock, never by the answers.

All connections together send at one rate, evenly: connection `number` of `connections` has every
so many-th place. Each time is counted from the start, so that neither rounding nor a late request
moves those behind it: what is late is sent at once, and its latency counts from when it was due.
"""

from typing import Final

_NS: Final = 1_000_000_000


class Schedule:
    """The times of one connection; `rate` is requests a second of all connections."""

    __slots__ = ("_connections", "_index", "_interval_ns", "_number", "_start_ns", "due_ns")

    def __init__(self, rate: float, number: int, connections: int, start_ns: int) -> None:
        assert rate > 0
        assert 0 <= number < connections
        self._interval_ns = _NS / rate
        self._number = number
        self._connections = connections
        self._start_ns = start_ns
        self._index = 0
        #: When the next request should leave, on the monotonic clock.
        self.due_ns = self._due()

    def advance(self) -> None:
        """The request that was due has left."""
        self._index += 1
        self.due_ns = self._due()

    def _due(self) -> int:
        place = self._index * self._connections + self._number
        return self._start_ns + round(place * self._interval_ns)
