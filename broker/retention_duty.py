"""The duty of deleting old messages: the store's retention, run on a worker thread.

Planning, removing files and pausing happen on the worker; what belongs to the loop (taking segments
out of the log, letting queues begin later) is handed to it in short calls. The committed offsets
are asked for only when something is about to go, to say which groups still need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from aerobee.store.disk.owner import OnOwner
from aerobee.store.retention.plan import OffsetsByQueue
from aerobee.store.retention.retention import Retention

#: The first run comes this many intervals after the start, when the rush of its clients is over.
FIRST_AFTER = 6


class OffsetTable(Protocol):
    """What is asked of the consumer offsets."""

    def tables(self) -> list[tuple[tuple[str, str], Mapping[int, int]]]:
        """((topic, group), offsets by queue id) of all."""
        ...


class RetentionDuty:
    """Runs `retention` once a call; `offsets` are of all who may still need what goes."""

    def __init__(self, retention: Retention, on_loop: OnOwner, *offsets: OffsetTable) -> None:
        self._retention = retention
        self._on_loop = on_loop
        self._offsets = offsets

    def run(self) -> None:
        """One run. Worker thread; raises OSError when the log cannot be looked at."""
        self._retention.run(self._on_loop, self.committed)

    def committed(self) -> OffsetsByQueue:
        """Committed offsets by queue. Worker thread."""
        by_queue: dict[tuple[str, int], dict[str, int]] = {}
        for (topic, group), offsets in self._on_loop(self._tables):
            # Copied at once: the loop may be changing it.
            for queue_id, offset in dict(offsets).items():
                by_queue.setdefault((topic, queue_id), {})[group] = offset
        return by_queue

    def _tables(self) -> list[tuple[tuple[str, str], Mapping[int, int]]]:
        return [entry for table in self._offsets for entry in table.tables()]
