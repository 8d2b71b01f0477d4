"""Metric sections about the store: its marks, times and disk, and what was deleted and why."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter

from aerobee.broker.broker_stats import Buckets
from aerobee.broker.monitoring.broker_metrics import error_word
from aerobee.broker.monitoring.metrics import Row, under
from aerobee.config.model import Settings
from aerobee.store.background.retention.triggers import FORCED, MANUAL, SPACE, TIME
from aerobee.store.disk.files import DiskSpace, Files
from aerobee.store.message_store import MessageStore
from aerobee.store.recovery.recovery_report import RecoveryReport
from aerobee.store.segments.transient_pool import NO_POOL
from aerobee.store.store_stats import BOUNDS_S, Histogram

_SIZE_KEPT_S = 60.0
_BLOCK_BYTES = 512  # the unit of st_blocks on every file system
_REASONS = (TIME, SPACE, MANUAL, FORCED)


class DiskUsage:
    """The disk space of all files below `path`; counted at most once a minute."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._bytes = 0
        self._counted_at = -_SIZE_KEPT_S

    def bytes(self) -> int:
        """The result of the last count."""
        now = self._clock()
        if now - self._counted_at >= _SIZE_KEPT_S:
            self._bytes = _tree_bytes(self._path)
            self._counted_at = now
        return self._bytes


def marks_and_times(store: MessageStore, usage: DiskUsage) -> Iterator[Row]:
    """Marks, counters and times of the store, and the size of its files."""
    # The order matters: a mark read later may only be further on.
    marks = {
        "oldest": store.min_log_offset,
        "replicated": store.marks.replicated,
        "dispatched": store.dispatched,
        "durable": store.durable,
        "committed": store.committed,
        "written": store.written,
    }
    yield Row("aerobee_store_mark_bytes", marks, "How far the log has come, by log offset", "mark")
    if (free := store.free_buffers) != NO_POOL:
        name = "aerobee_store_transient_buffers_free"
        yield Row(name, free, "Buffers of the transient pool not used")
    written = marks["written"]
    sizes = (
        Row("rocketmq_storage_flush_behind_bytes", written - marks["durable"],
            "Bytes written and not yet synced"),
        Row("rocketmq_storage_dispatch_behind_bytes", written - marks["dispatched"],
            "Bytes written and not yet given to queues"),
        Row("rocketmq_storage_size_bytes", usage.bytes, "Disk space that all store files take"),
    )  # fmt: skip
    yield from under(sizes, storage_type="local", storage_medium="disk")
    stats = store.stats
    failures = {error_word(kind): count for kind, count in stats.put_failures.items()}
    yield from (
        Row("aerobee_store_appends_total", stats.appends, "Appends to the log, a batch is one"),
        Row("aerobee_store_appended_messages_total", stats.appended_messages,
            "Messages appended to the log"),
        Row("aerobee_store_appended_bytes_total", stats.appended_bytes,
            "Bytes appended to the log"),
        Row("aerobee_store_dispatched_messages_total", stats.dispatched_messages,
            "Messages put into queues"),
        Row("aerobee_store_queue_syncs_total", stats.queue_syncs, "Syncs of consume queue files"),
        Row("aerobee_store_damaged_reads_total", stats.damaged_reads,
            "Reads that came to damage, which is passed over"),
        Row("aerobee_store_segments_created_total", stats.segments_created,
            "Log segments created"),
        Row("aerobee_store_index_files_created_total", stats.index_files_created,
            "Index files created"),
        Row("aerobee_store_put_failures_total", failures,
            "Appends that failed or were refused", "reason"),
        Row("aerobee_store_put_max_seconds", stats.put_times.max_s,
            "Longest put since the start"),
        Row("aerobee_store_append_seconds", _buckets(stats.append_times),
            "Time of one append under the put lock"),
        Row("aerobee_store_sync_seconds", _buckets(stats.commit_log_sync_times),
            "Time of one sync of the log"),
        Row("aerobee_store_damage_found_total", dict(stats.damage_found),
            "Damaged places found, each once", "kind"),
        Row("aerobee_store_known_gaps", len(store.known_gaps),
            "Places of the log known to hold no usable record"),
    )  # fmt: skip


def recovery(report: RecoveryReport) -> tuple[Row, ...]:
    """The work of the last start."""
    return (
        Row("aerobee_recovery_seconds", report.seconds, "Time the last start took to recover"),
        Row("aerobee_recovery_read_records", report.records_read,
            "Records read by the last recovery"),
        Row("aerobee_recovery_torn_bytes", report.torn_bytes,
            "Bytes cut off the end of the log by the last recovery"),
        Row("aerobee_recovery_gaps", len(report.gaps),
            "Damaged places in the log that the last recovery went around"),
    )  # fmt: skip


def scrub(store: MessageStore) -> tuple[Row, ...]:
    """The scrub, repairs, and the bit maps of filters."""
    stats = store.stats
    return (
        Row("aerobee_scrub_read_bytes_total", stats.scrub_bytes,
            "Bytes of the log that the scrub has read"),
        Row("aerobee_scrub_passes_total", stats.scrub_passes,
            "Times the scrub has come to the end of the log"),
        Row("aerobee_scrub_left_bytes", stats.scrub_left_bytes,
            "Bytes that the scrub's pass under way has still to read"),
        Row("aerobee_scrub_unchecked_bytes", store.unchecked_bytes,
            "Bytes of the log not checked since the start, or in a damaged segment"),
        Row("aerobee_scrub_longest_step_seconds", stats.scrub_steps.max_s,
            "Processor time of the scrub's longest piece of work without a wait"),
        Row("aerobee_store_mended_units_total", stats.repaired_entries,
            "Wrong consume queue entries that were made right from the log"),
        Row("aerobee_store_lookup_bytes_total", stats.lookup_bytes,
            "Bytes of the log that reads looked through for messages of wrong queue entries"),
        Row("aerobee_filter_bit_maps_total", stats.bit_maps_made,
            "Messages that were dispatched with a bit map of filters"),
        Row("aerobee_filter_bit_maps_left_out_total", stats.bit_maps_left_out,
            "Messages without a bit map, because it would have taken too long"),
        Row("aerobee_filter_bit_map_misses_total", stats.bit_map_misses,
            "Messages that pulls passed over because of their bit map"),
    )  # fmt: skip


def _buckets(histogram: Histogram) -> Buckets:
    buckets = Buckets(BOUNDS_S)
    buckets.counts = list(histogram.counts)
    buckets.total = histogram.sum_s
    return buckets


def _tree_bytes(path: str) -> int:
    """Bytes of allocated blocks: index files are sparse, their length says nothing."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_blocks * _BLOCK_BYTES
            except FileNotFoundError:
                continue  # expired between the listing and now
    return total


def deletions(
    store: MessageStore, settings: Settings, files: Files | None = None
) -> tuple[Row, ...]:
    """Deletions by reason, segments that hang, and how full the store's disks are."""
    counts = store.retention.counts
    # In order of the reasons, and all of them from the start: a rate needs the zero before.
    segments = {reason: counts.segments.get(reason, 0) for reason in _REASONS}
    sizes = {reason: counts.segment_bytes.get(reason, 0) for reason in _REASONS}
    disks = partial(_of_disks, files or Files(), (*store.log_directories, store.queue_directory))
    return (
        Row("aerobee_store_deleted_segments_total", segments, "Log segments deleted", "reason"),
        Row("aerobee_store_deleted_bytes_total", sizes,
            "Bytes of log segments deleted", "reason"),
        Row("aerobee_store_deleted_queue_files_total", counts.queue_files,
            "Consume queue files deleted"),
        Row("aerobee_store_deleted_index_files_total", counts.index_files, "Index files deleted"),
        Row("aerobee_store_deleted_unconsumed_messages_total", counts.unconsumed,
            "Messages deleted that a group had not consumed, for each group"),
        Row("aerobee_store_deletion_failures_total", counts.failures,
            "Removals that the system refused"),
        Row("aerobee_store_hanged_segments", store.retention.hanged,
            "Deleted segments that are still there, because they are read or the disk refuses"),
        Row("aerobee_disk_used_ratio", partial(disks, attrgetter("used_ratio")),
            "Used share of a file system", "path"),
        Row("aerobee_disk_free_bytes", partial(disks, attrgetter("free_bytes")),
            "Bytes that can still be used", "path"),
        Row("aerobee_disk_refusal_ratio", settings.disk_warning_ratio,
            "Used share above which sends are refused"),
    )  # fmt: skip


def _of_disks(
    files: Files, directories: Sequence[str], figure: Callable[[DiskSpace], float]
) -> dict[str, float]:
    found: dict[str, float] = {}
    for path in directories:
        # The disk check of /ready says so.
        with contextlib.suppress(OSError):
            found[path] = figure(files.disk_space(path))
    return found
