"""What a batch read reads: resolved once, when Spark plans a DataFrame, and fixed from then on."""

from __future__ import annotations

import logging
import warnings

from aerobee.pipeline.brokers.offsets import Offsets, Queue, Range
from aerobee.pipeline.brokers.queue_offsets import offsets_at
from aerobee.pipeline.decode.selection import Selection
from aerobee.pipeline.source.options import SourceOptions
from aerobee.pipeline.source.positions import Cluster

log = logging.getLogger("aerobee.pipeline")


def batch_ranges(options: SourceOptions, pushed: Selection | None = None) -> list[Range]:
    """The ranges to read, sorted by queue; empty ones are left out. `pushed` narrows them.

    Raises DataLoss for offsets given that the queue does not have, unless failOnDataLoss=false.
    """
    cluster = Cluster(options)
    try:
        queues = cluster.queues()
        if not queues:
            _warn_of_nothing(options)
        if pushed is not None:
            queues = [queue for queue in queues if pushed.has_queue(*queue)]
        start = _resolved(cluster, queues, "start")
        end = _resolved(cluster, queues, "end")
        if pushed is not None:
            _narrow(cluster, pushed, start, end)
        elif options.start.offsets:
            _check_starts(cluster, start, end)
        ranges = [Range(queue, start[queue], end[queue]) for queue in queues]
        return cluster.check([one for one in ranges if one.size > 0])
    finally:
        cluster.close()


def _warn_of_nothing(options: SourceOptions) -> None:
    """No rows are an answer, but a misspelt pattern gives them too."""
    if options.pattern is not None:
        text = f"option subscribePattern: {options.pattern!r} matches no topic: there are no rows"
        log.warning(text)
        warnings.warn(text, stacklevel=2)


def _resolved(cluster: Cluster, queues: list[Queue], which: str) -> Offsets:
    place = cluster.options.start if which == "start" else cluster.options.end
    resolved = cluster.resolve(place, cluster.queues())
    return {queue: resolved[queue] for queue in queues}


def _check_starts(cluster: Cluster, start: Offsets, end: Offsets) -> None:
    for queue in sorted(start):
        if start[queue] > end[queue]:
            cluster.lose(f"{queue}: reading begins at {start[queue]}, but ends at {end[queue]}")


def _narrow(cluster: Cluster, pushed: Selection, start: Offsets, end: Offsets) -> None:
    queues, group = list(start), cluster.options.group
    for queue in queues:
        start[queue] = max(start[queue], pushed.start_offset or 0)
        if pushed.end_offset is not None:
            end[queue] = min(end[queue], pushed.end_offset)
    if pushed.start_ms is not None:
        first = offsets_at(cluster.brokers, group, queues, pushed.start_ms)
        start |= {queue: max(start[queue], first[queue]) for queue in queues}
    if pushed.end_ms is not None:
        last = offsets_at(cluster.brokers, group, queues, pushed.end_ms)
        end |= {queue: min(end[queue], last[queue]) for queue in queues}
