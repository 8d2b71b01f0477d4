"""Metric sections about the store: its marks, times and disk, what was deleted and why, and how far
consumers are behind.

What lag is says `tables/lag.py`. It asks the store's queues, which only the loop may do. With many
groups and queues that adds up to more than the loop should be held for, so `lag` lets it turn every
millisecond; the answer is then a picture taken over a few turns, which lag is anyway.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from aerobee.broker.monitoring.broker_metrics import error_word, yes_no
from aerobee.broker.monitoring.metrics import Fill, LoopTurns, Page
from aerobee.broker.stats import Buckets
from aerobee.broker.tables.lag import ConsumerLag, QueueLag
from aerobee.protocol.names import is_retry_topic, is_system_group
from aerobee.store.disk.files import DiskSpace, Files
from aerobee.store.message_store import MessageStore
from aerobee.store.retention.retention import Retention
from aerobee.store.retention.rules import FORCED, MANUAL, SPACE, TIME
from aerobee.store.segments.transient_pool import NO_POOL
from aerobee.store.stats import BOUNDS_S, Histogram, StoreStats

# Reading a store time may touch a cold page of the log; past this many a scrape gives none.
_TIME_READS = 1000
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
        """As of the last count."""
        now = self._clock()
        if now - self._counted_at >= _SIZE_KEPT_S:
            self._bytes = _tree_bytes(self._path)
            self._counted_at = now
        return self._bytes


async def marks_and_times(store: MessageStore, usage: DiskUsage) -> Fill:
    """Marks, counters and times of the store, and the size of its files."""
    # The order matters: a mark read later may only be further on.
    dispatched, durable = store.dispatched, store.durable
    committed, written = store.committed, store.written
    free_buffers = store.free_buffers
    oldest, stats = store.min_log_offset, store.stats
    put_failures = dict(stats.put_failures)
    gaps = len(store.known_gaps)

    def fill(page: Page) -> None:
        marks = {
            "oldest": oldest,
            "dispatched": dispatched,
            "durable": durable,
            "committed": committed,
            "written": written,
        }
        page.tally(
            "aerobee_store_mark_bytes", "How far the log has come, by log offset", "mark", marks
        )
        if free_buffers != NO_POOL:
            page.family(
                "aerobee_store_transient_buffers_free", "Buffers of the transient pool not used"
            ).add(free_buffers)
        sizes = (
            ("flush_behind", "Bytes written and not yet synced", written - durable),
            ("dispatch_behind", "Bytes written and not yet given to queues", written - dispatched),
            ("size", "Disk space that all store files take", usage.bytes()),
        )
        page.numbers(
            ((f"rocketmq_storage_{name}_bytes", text, value) for name, text, value in sizes),
            storage_type="local",
            storage_medium="disk",
        )
        _fill_counters(page, stats, put_failures)
        page.tally(
            "aerobee_store_damage_found_total",
            "Damaged places found, each once",
            "kind",
            stats.damage_found,
        )
        page.family(
            "aerobee_store_known_gaps", "Places of the log known to hold no usable record"
        ).add(gaps)

    return fill


def _fill_counters(page: Page, stats: StoreStats, put_failures: Mapping[str, int]) -> None:
    counters = (
        ("appends", "Appends to the log, a batch is one", stats.appends),
        ("appended_messages", "Messages appended to the log", stats.appended_messages),
        ("appended_bytes", "Bytes appended to the log", stats.appended_bytes),
        ("dispatched_messages", "Messages put into queues", stats.dispatched_messages),
        ("queue_syncs", "Syncs of consume queue files", stats.queue_syncs),
        ("damaged_reads", "Reads that came to damage, which is passed over", stats.damaged_reads),
        ("segments_created", "Log segments created", stats.segments_created),
        ("index_files_created", "Index files created", stats.index_files_created),
    )
    page.numbers((f"aerobee_store_{name}_total", text, value) for name, text, value in counters)
    failures = page.family(
        "aerobee_store_put_failures_total", "Appends that failed or were refused", ["reason"]
    )
    for kind, count in put_failures.items():
        failures.add(count, error_word(kind))
    page.family("aerobee_store_put_max_seconds", "Longest put since the start").add(
        stats.put_times.max_s
    )
    for name, help_text, times in (
        ("append", "Time of one append under the put lock", stats.append_times),
        ("sync", "Time of one sync of the log", stats.commit_log_sync_times),
    ):
        page.histogram(f"aerobee_store_{name}_seconds", help_text).add_buckets(_buckets(times))


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


class _Behind(NamedTuple):
    topic: str
    group: str
    messages: int  # in its queues
    waiting: int  # for their next try, in no queue of its own
    inflight: int
    oldest_ms: int | None  # store time of the oldest unread message, None when not asked


async def lag(
    consumer_lag: ConsumerLag,
    store: MessageStore,
    is_shown: Callable[[str], bool],
    is_system_topic: Callable[[str], bool],
    wall_clock: Callable[[], float] = time.time,
) -> Fill:
    """How many messages, and how old, each group has before it in each topic that `is_shown`."""
    behind: list[_Behind] = []
    reads_left = _TIME_READS
    turns = LoopTurns()
    for pair in consumer_lag.pairs():
        await turns.pause()
        if pair is None:
            continue
        topic, group = pair
        if not is_shown(topic) or not consumer_lag.queue_count(group, topic):
            continue
        unread: list[QueueLag] = []
        for queue in consumer_lag.queues(group, topic):
            await turns.pause()
            if queue.messages:
                unread.append(queue)
        may_read = len(unread) <= reads_left
        reads_left -= len(unread) if may_read else 0
        oldest_ms = _oldest_ms(store, topic, unread) if may_read else None
        messages = sum(queue.messages for queue in unread)
        inflight = sum(queue.given_out - queue.begin for queue in unread)
        waiting = consumer_lag.waiting_retries(group, topic)
        behind.append(_Behind(topic, group, messages, waiting, inflight, oldest_ms))
    now_ms = int(wall_clock() * 1000)

    def fill(page: Page) -> None:
        labels = ["consumer_group", "topic", "is_retry", "is_system"]
        lag = page.family("rocketmq_consumer_lag_messages", "Messages not yet consumed", labels)
        inflight = page.family(
            "rocketmq_consumer_inflight_messages", "Messages given out, not yet consumed", labels
        )
        ready = page.family(
            "rocketmq_consumer_ready_messages", "Messages not yet given out", labels
        )
        age = page.family(
            "rocketmq_consumer_lag_latency_milliseconds",
            "Age of the oldest message not yet consumed, 0 when there is none",
            labels,
            max,
        )
        for topic, group, messages, waiting, given_out, oldest_ms in behind:
            system = is_system_topic(topic) or is_system_group(group)
            values = (group, topic, yes_no(is_retry_topic(topic)), yes_no(system))
            lag.add(messages + waiting, *values)
            inflight.add(given_out, *values)
            ready.add(messages - given_out, *values)
            if oldest_ms is not None:
                age.add(max(0, now_ms - oldest_ms) if messages else 0, *values)

    return fill


def _oldest_ms(store: MessageStore, topic: str, unread: list[QueueLag]) -> int | None:
    """Store time of the oldest unread message; 0 when all is read, None when it is unknown."""
    times = [store.store_time(topic, queue.queue_id, queue.begin) for queue in unread]
    known = [stored_ms for stored_ms in times if stored_ms >= 0]
    return min(known, default=None if unread else 0)


async def deletions(
    retention: Retention,
    directories: Sequence[str],
    refusal_ratio: float,
    disk_space: Callable[[str], DiskSpace] | None = None,
) -> Fill:
    """What was deleted and why, what hangs, and how full the disks of `directories` are."""
    counts, hanged = retention.counts, retention.hanged
    # In order of the reasons, and all of them from the start: a rate needs the zero before.
    segments = {reason: counts.segments.get(reason, 0) for reason in _REASONS}
    sizes = {reason: counts.segment_bytes.get(reason, 0) for reason in _REASONS}

    def fill(page: Page) -> None:
        name = "aerobee_store_deleted_segments_total"
        page.tally(name, "Log segments deleted", "reason", segments)
        name = "aerobee_store_deleted_bytes_total"
        page.tally(name, "Bytes of log segments deleted", "reason", sizes)
        counters = (
            ("deleted_queue_files", "Consume queue files deleted", counts.queue_files),
            ("deleted_index_files", "Index files deleted", counts.index_files),
            (
                "deleted_unconsumed_messages",
                "Messages deleted that a group had not consumed, for each group",
                counts.unconsumed,
            ),
            ("deletion_failures", "Removals that the system refused", counts.failures),
        )
        page.numbers((f"aerobee_store_{name}_total", text, value) for name, text, value in counters)
        page.family(
            "aerobee_store_hanged_segments",
            "Deleted segments that are still there, because they are read or the disk refuses",
        ).add(hanged)
        _fill_disks(page, directories, disk_space or Files().disk_space)
        page.family("aerobee_disk_refusal_ratio", "Used share above which sends are refused").add(
            refusal_ratio
        )

    return fill


def _fill_disks(
    page: Page, directories: Sequence[str], disk_space: Callable[[str], DiskSpace]
) -> None:
    used = page.family("aerobee_disk_used_ratio", "Used share of a file system", ["path"])
    free = page.family("aerobee_disk_free_bytes", "Bytes that can still be used", ["path"])
    for path in dict.fromkeys(directories):
        try:
            space = disk_space(path)
        except OSError:
            continue  # the disk check of /ready says so
        used.add(space.used_ratio, path)
        free.add(space.free_bytes, path)
