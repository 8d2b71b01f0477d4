"""Metric section about deletion and the disks it is for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from aerobee.broker.monitoring.families import Fill, Page
from aerobee.store.disk.files import DiskSpace, Files
from aerobee.store.retention.disposal import DeletionCounts
from aerobee.store.retention.rules import FORCED, MANUAL, SPACE, TIME


class Deletion(Protocol):
    """The part of a store's retention that is shown."""

    @property
    def counts(self) -> DeletionCounts: ...
    @property
    def hanged(self) -> int: ...


class Deletions:
    """What was deleted and why, what hangs, and how full the disks of `directories` are."""

    def __init__(
        self,
        deletion: Deletion,
        directories: Sequence[str],
        refusal_ratio: float,
        disk_space: Callable[[str], DiskSpace] | None = None,
    ) -> None:
        self._deletion = deletion
        self._directories = tuple(dict.fromkeys(directories))
        self._refusal_ratio = refusal_ratio
        self._disk_space = disk_space or Files().disk_space

    async def take(self) -> Fill:
        counts, hanged = self._deletion.counts, self._deletion.hanged
        # In order of the reasons, and all of them from the start: a rate needs the zero before.
        segments = [(reason, counts.segments.get(reason, 0)) for reason in _REASONS]
        sizes = [(reason, counts.segment_bytes.get(reason, 0)) for reason in _REASONS]

        def fill(page: Page) -> None:
            for name, help_text, by_reason in (
                ("segments", "Log segments deleted", segments),
                ("bytes", "Bytes of log segments deleted", sizes),
            ):
                family = page.counter(f"aerobee_store_deleted_{name}_total", help_text, ["reason"])
                for reason, value in by_reason:
                    family.add(value, reason)
            _fill_counts(page, counts)
            page.gauge(
                "aerobee_store_hanged_segments",
                "Deleted segments that are still there, because they are read or the disk refuses",
            ).add(hanged)
            self._fill_disks(page)

        return fill

    def _fill_disks(self, page: Page) -> None:
        used = page.gauge("aerobee_disk_used_ratio", "Used share of a file system", ["path"])
        free = page.gauge("aerobee_disk_free_bytes", "Bytes that can still be used", ["path"])
        for path in self._directories:
            try:
                space = self._disk_space(path)
            except OSError:
                continue  # the disk check of /ready says so
            used.add(space.used_ratio, path)
            free.add(space.free_bytes, path)
        page.gauge("aerobee_disk_refusal_ratio", "Used share above which sends are refused").add(
            self._refusal_ratio
        )


_REASONS = (TIME, SPACE, MANUAL, FORCED)


def _fill_counts(page: Page, counts: DeletionCounts) -> None:
    for name, help_text, value in (
        ("deleted_queue_files", "Consume queue files deleted", counts.queue_files),
        ("deleted_index_files", "Index files deleted", counts.index_files),
        (
            "deleted_unconsumed_messages",
            "Messages deleted that a group had not consumed, for each group",
            counts.unconsumed,
        ),
        ("deletion_failures", "Removals that the system refused", counts.failures),
    ):
        page.counter(f"aerobee_store_{name}_total", help_text).add(value)
