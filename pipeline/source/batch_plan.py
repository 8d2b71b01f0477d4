"""What a batch read reads: resolved once, when Spark plans a DataFrame, and fixed from then on."""

from __future__ import annotations

import logging
import warnings

from aerobee.pipeline.brokers.offsets import Offsets, Queue, Range
from aerobee.pipeline.brokers.queue_offsets import offsets_at
from aerobee.pipeline.source.options import SourceOptions
from aerobee.pipeline.source.positions import Cluster
from aerobee.pipeline.source.pushdown import Pruning

log = logging.getLogger("aerobee.pipeline")


def batch_ranges(options: SourceOptions, pruning: Pruning | None = None) -> list[Range]:
    """The ranges to read, sorted by queue; empty ones are left out.

    Raises DataLoss for offsets given that the queue does not have, unless failOnDataLoss=false.
    """
    cluster = Cluster(options)
    try:
        queues = cluster.queues()
        if not queues:
            _warn_of_nothing(options)
        if pruning is not None:
            queues = [queue for queue in queues if pruning.wants(queue)]
        start = _resolved(cluster, queues, "start")
        end = _resolved(cluster, queues, "end")
        if pruning is not None:
            _narrow(cluster, pruning, start, end)
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


def _narrow(cluster: Cluster, pruning: Pruning, start: Offsets, end: Offsets) -> None:
    queues, group = list(start), cluster.options.group
    for queue in queues:
        start[queue] = max(start[queue], pruning.lowest)
        end[queue] = min(end[queue], pruning.highest + 1)
    if pruning.from_ms is not None:
        first = offsets_at(cluster.brokers, group, queues, pruning.from_ms)
        start |= {queue: max(start[queue], first[queue]) for queue in queues}
    if pruning.to_ms is not None:
        last = offsets_at(cluster.brokers, group, queues, pruning.to_ms + 1)
        end |= {queue: min(end[queue], last[queue]) for queue in queues}
