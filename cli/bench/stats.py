"""What was counted since the last report: by one process, or by all of them together."""

from collections.abc import Mapping
from typing import Any, Final

from aerobee.cli.bench.histogram import Histogram

#: The names of the counters. Bytes are those of bodies when sent, of stored records when received.
_COUNTERS: Final = (
    *("sent", "acked", "acked_bytes", "failed"),
    *("received", "received_bytes", "pulls"),
)
#: The names of the histograms. `publish` counts from when a send was due, and `delay` is how late
#: it left; `pull` is a pull that the broker does not hold.
_HISTOGRAMS: Final = ("publish", "delay", "end_to_end", "pull")
_LONGEST_REMARK: Final = 200


class Stats:
    """Counters of messages, latencies, and failures by name with the first remark of each."""

    __slots__ = (*_COUNTERS, *_HISTOGRAMS, "failures")

    sent: int
    acked: int
    acked_bytes: int
    failed: int
    received: int
    received_bytes: int
    pulls: int
    publish: Histogram
    delay: Histogram
    end_to_end: Histogram
    pull: Histogram
    failures: dict[str, tuple[int, str]]

    def __init__(self) -> None:
        for name in _COUNTERS:
            setattr(self, name, 0)
        for name in _HISTOGRAMS:
            setattr(self, name, Histogram())
        self.failures = {}

    def fail(self, name: str, remark: str, times: int = 1) -> None:
        """Count a failure: so many requests ended like that."""
        count, first = self.failures.get(name, (0, remark[:_LONGEST_REMARK]))
        self.failures[name] = (count + times, first)

    def add(self, other: "Stats") -> None:
        """Count everything that another one has counted."""
        for name in _COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _HISTOGRAMS:
            getattr(self, name).add(getattr(other, name))
        for name, (count, remark) in other.failures.items():
            self.fail(name, remark, count)

    def to_wire(self) -> dict[str, Any]:
        """What `from_wire` of another process takes."""
        data: dict[str, Any] = {name: getattr(self, name) for name in _COUNTERS}
        data |= {name: getattr(self, name).to_wire() for name in _HISTOGRAMS}
        return {**data, "failures": self.failures}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> "Stats":
        """The figures that `to_wire` was asked for."""
        made = cls()
        for name in _COUNTERS:
            setattr(made, name, data[name])
        for name in _HISTOGRAMS:
            setattr(made, name, Histogram.from_wire(data[name]))
        made.failures = {name: (count, text) for name, (count, text) in data["failures"].items()}
        return made
