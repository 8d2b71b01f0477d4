"""How quickly the log and the ports' traffic grow, and when the disk will be full at that rate.

A sample is taken every ten seconds and kept for ten minutes. A rate that nobody can tell yet,
because the broker has just started, is None. Loop thread only.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from aerobee.store.disk.files import DiskSpace, Files

# How often the daemon takes a sample.
_SAMPLE_S: Final = 10.0
_KEPT_S: Final = 600.0
_SAMPLES: Final = 1 + int(_KEPT_S / _SAMPLE_S)
#: The span of the rates of traffic; those of the log's growth are over all that is kept.
MINUTE_S: Final = 60.0
# A shorter span tells nothing.
_LEAST_S: Final = 5.0


class Sample(NamedTuple):
    """Counts that only grow: the end of the log, and the bytes of the ports."""

    at: float
    written: int
    received: int
    sent: int


class GrowthRates(NamedTuple):
    """Bytes a second: those put into the log, and those that the ports received and sent."""

    written: float
    received: float
    sent: float


class RecentGrowth:
    """The last ten minutes. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: deque[Sample] = deque(maxlen=_SAMPLES)

    def sample(self, written: int, received: int, sent: int) -> None:
        """Remember the counts of this moment."""
        self._samples.append(Sample(self._clock(), written, received, sent))

    def rates(
        self, written: int, received: int, sent: int, span_s: float = _KEPT_S
    ) -> GrowthRates | None:
        """The rates up to now, over `span_s` or as much of it as is known; None before that is a
        few seconds."""
        now = self._clock()
        for then in self._samples:
            if then.at >= now - span_s - _SAMPLE_S / 2:
                break
        else:
            return None
        if (passed := now - then.at) < _LEAST_S:
            return None
        counts = written - then.written, received - then.received, sent - then.sent
        return GrowthRates(*(max(0, count) / passed for count in counts))


class DiskRoom(NamedTuple):
    """The disks of the log: their used share (of several the emptiest counts), and the bytes that
    they take before sends are refused."""

    used_ratio: float
    room_bytes: int


def disk_room(
    directories: Sequence[str],
    full_ratio: float,
    disk_space: Callable[[str], DiskSpace] | None = None,
) -> DiskRoom | None:
    """The room for the log; None where no disk can be asked. Directories on one disk count once."""
    ask = disk_space or Files().disk_space
    disks: dict[int, DiskSpace] = {}
    for path in directories:
        try:
            disks[os.stat(path).st_dev] = ask(path)
        except OSError:
            continue
    if not disks:
        return None
    rooms = [
        int(full_ratio * (disk.used_bytes + disk.free_bytes)) - disk.used_bytes
        for disk in disks.values()
    ]
    ratio = min(disk.used_ratio for disk in disks.values())
    return DiskRoom(ratio, sum(max(0, room) for room in rooms))


def full_in_s(room: DiskRoom | None, bytes_a_second: float | None) -> int | None:
    """Seconds until sends are refused, if the log grows on so and nothing is deleted; None where it
    does not grow or nobody knows."""
    if room is None or not bytes_a_second or bytes_a_second < 1:
        return None
    return int(room.room_bytes / bytes_a_second)
