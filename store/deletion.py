"""Builds what deletes from an open store: `Retention` by time and space, `QueueCleaner` on request.

They share one lock (files are removed by one at a time), one way of removing files, and one
trimmer.
"""

from collections.abc import Callable

from aerobee.config.model import Settings
from aerobee.store.disk.steady_time import SteadyTime
from aerobee.store.dispatch.reput import Reput
from aerobee.store.flush.offsets_keeper import OffsetsKeeper
from aerobee.store.log.commit_log import CommitLog
from aerobee.store.opening import StoreParts
from aerobee.store.retention.queue_cleaning import CleanedStore, QueueCleaner
from aerobee.store.retention.retention import Retention, StoreSide
from aerobee.store.retention.rules import RetentionRules


def steady_time(settings: Settings, parts: StoreParts) -> SteadyTime:
    """The time that deletion goes by, of a store that was just recovered."""
    assert parts.offsets is not None
    retention_ms = RetentionRules.of(settings).retention_ms
    return SteadyTime(parts.clock, retention_ms, parts.offsets.clock, parts.last_store_ms)


def make_deletion(
    settings: Settings,
    parts: StoreParts,
    time: SteadyTime,
    log: CommitLog,
    reput: Reput,
    offsets: OffsetsKeeper,
    durable: Callable[[], int],
    freed: Callable[[], None],
    dispatch: Callable[[], None],
) -> tuple[Retention, QueueCleaner]:
    """The two of one store; see `StoreSide` and `CleanedStore` for the calls they make back."""

    def safe_end() -> int:
        return min(durable(), reput.dispatched, offsets.synced_to)

    def save_offsets() -> None:
        try:
            offsets.begin_later()
        except OSError as error:
            parts.health.poison("writing the offsets file", error)

    retention = Retention(
        settings,
        StoreSide(
            parts.files,
            parts.clock,
            time,
            parts.health,
            parts.segments,
            parts.queues,
            parts.index,
            parts.log_directories,
            parts.queue_directory,
            safe_end,
            save_offsets,
            freed,
        ),
    )
    cleaner = QueueCleaner(
        CleanedStore(
            parts.files,
            parts.health,
            parts.queues,
            log,
            offsets,
            save_offsets,
            retention.trimmer,
            retention.removal,
            retention.busy,
            dispatch,
            reput.count_again,
        )
    )
    return retention, cleaner
