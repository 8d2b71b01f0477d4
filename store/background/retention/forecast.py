"""Forecasts deletion in a store directory: the dry run of `aerobee store retention`.

Reads only, and only the first message of each segment; the directory may be at rest or in use. It
goes by the same rules as the running store (`background/retention/triggers.py`,
`background/retention/deletion_plan.py`), run after run until none would delete anything more. All
written records are taken to be durable and dispatched: a start sees to that before anything is
deleted.

In a store that is in use files come and go: if a file goes while it is looked at, the whole
forecast is made again, a few times at most.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

from aerobee.config.model import Settings
from aerobee.store.background.retention.deletion_plan import RetentionPlan, choose, unconsumed
from aerobee.store.background.retention.segment_times import LastStored, SegmentPlace, last_stored
from aerobee.store.background.retention.triggers import (
    MANUAL,
    SPACE,
    TIME,
    Disks,
    RetentionRules,
    Verdict,
    judge,
)
from aerobee.store.disk.descriptors import DescriptorCache
from aerobee.store.disk.files import Clock, DiskSpace, Files
from aerobee.store.disk.offsets_file import OffsetsFile
from aerobee.store.disk.steady_time import SteadyTime
from aerobee.store.errors import StoreLayoutError, StoreSizeMismatch
from aerobee.store.inspect.audit_report import Findings
from aerobee.store.inspect.store_files import StoreFiles
from aerobee.store.inspect.store_layout import FoundQueue
from aerobee.store.queues.consume_queue import ConsumeQueue

_TRIES = 5
_QUARTER_MS = 900_000
_HOUR_MS = 3_600_000
_DAY_QUARTERS = 96
_EVERYTHING = 1 << 62


class DiskForecast(NamedTuple):
    """A disk under the store. `is_log`: of the commit log, else of the consume queues."""

    path: str
    is_log: bool
    space: DiskSpace

    def room_to(self, ratio: float) -> int:
        """Bytes that can be written until the ratio is passed; negative by the bytes above it."""
        return int(ratio * (self.space.used_bytes + self.space.free_bytes) - self.space.used_bytes)


class SegmentForecast(NamedTuple):
    """A segment that has messages. The last one is written, and has no times."""

    place: SegmentPlace
    last: LastStored | None
    expires_ms: int | None


class GroupForecast(NamedTuple):
    """A group that has not consumed all of a queue."""

    group: str
    topic: str
    queue: int
    committed: int
    #: Messages from there, or from the queue's first one, to the queue's end.
    behind: int
    #: The number of them that go now, and the number that go now or at the next hour of deletion.
    loses_now: int
    loses_by_next_hour: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """The whole forecast. Times are in milliseconds since the epoch."""

    now_ms: int
    rules: RetentionRules
    segment_bytes: int
    disks: tuple[DiskForecast, ...]
    segments: tuple[SegmentForecast, ...]
    made_ahead: int
    #: Deletion that is due now, and its reason.
    now: RetentionPlan
    #: Deletion at an operator's request, whatever the hour.
    on_request: RetentionPlan
    #: Deletion at the next hour for it; None if no hour is set.
    next: RetentionPlan | None
    #: Deletion that the force ratio would cause if the disk were just above it; at most one run.
    under_pressure: RetentionPlan
    groups: tuple[GroupForecast, ...]
    notes: tuple[str, ...]


def forecast(
    settings: Settings,
    given: Collection[str] = (),
    files: Files | None = None,
    clock: Clock | None = None,
) -> Forecast:
    """Look at the store below `settings.store_path`; `given` as for `StoreFiles`.

    Raises NotAStore, StoreSizeMismatch or OSError.
    """
    for _ in range(_TRIES - 1):
        try:
            return _Look(settings, given, files or Files(), clock or Clock()).forecast()
        except FileNotFoundError:
            continue
    return _Look(settings, given, files or Files(), clock or Clock()).forecast()


class _Look:
    def __init__(
        self, settings: Settings, given: Collection[str], files: Files, clock: Clock
    ) -> None:
        self._files = files
        self._settings = settings
        self._now_ms = clock.now_ms()
        self._rules = RetentionRules.of(settings)
        self._notes: list[str] = []
        self._behind_ms = self._not_counted(clock)
        self._store = StoreFiles(files, settings, given)
        self._last_stored = cache(partial(last_stored, files))
        places = [
            SegmentPlace(file.path, file.start, file.start + self._store.sizes.segment_bytes)
            for file in self._store.layout.segments
        ]
        self._places = places[: self._written(places)]
        self._made_ahead = len(places) - len(self._places)

    def forecast(self) -> Forecast:
        disks = Disks.ask(self._files, self._settings.commit_log_directories, self._queues_path())
        hour = time.localtime(self._now_ms / 1000).tm_hour
        verdict = judge(self._rules, hour, disks, manual=False)
        now = self._wave(verdict, self._now_ms)
        next_ms = next_hour_ms(self._now_ms, self._rules.delete_hours)
        # Runs follow each other for the whole hour.
        following = (
            None
            if next_ms is None
            else self._wave(Verdict((TIME,)), next_ms, until_ms=next_ms + _HOUR_MS - 1)
        )
        return Forecast(
            self._now_ms,
            self._rules,
            self._store.sizes.segment_bytes,
            tuple(_disk_forecasts(disks)),
            tuple(self._segments()),
            self._made_ahead,
            now,
            self._wave(Verdict((MANUAL,)), self._now_ms),
            following,
            self._wave(Verdict((SPACE,), True, True, 0.0), self._now_ms, most=10),
            tuple(self._groups(now, following)),
            tuple(self._notes),
        )

    def _not_counted(self, clock: Clock) -> int:
        """Milliseconds by which deletion is late against the clock: see `steady_time.py`."""
        known = OffsetsFile(self._files, self._settings.store_path).load()
        if known is None:
            return 0
        retention_ms = self._rules.retention_ms
        behind_ms = SteadyTime(clock, retention_ms, known.clock, known.last_store_ms).behind_ms
        if behind_ms:
            self._notes.append(
                f"{behind_ms / _HOUR_MS:.1f} hours do not count: the clock was set forward, or the "
                f"broker was down. They will, {self._rules.retention_ms // _HOUR_MS} hours "
                "of running later"
            )
        return behind_ms

    # --- the log ----------------------------------------------------------------------------

    def _written(self, places: Sequence[SegmentPlace]) -> int:
        """The number of segments with records; those after them were made ahead."""
        count = len(places)
        while count and not self._begins(places[count - 1]):
            count -= 1
        return count

    def _begins(self, place: SegmentPlace) -> bool:
        with self._files.opened(place.path, read_only=True) as fd:
            return any(self._files.read(fd, 0, 8))

    def _segments(self) -> Iterator[SegmentForecast]:
        for place, following in zip(self._places, self._places[1:], strict=False):
            last = self._last_stored(place, following)
            yield SegmentForecast(place, last, last.time_ms + self._rules.retention_ms)
        for place in self._places[-1:]:
            yield SegmentForecast(place, None, None)

    def _wave(
        self, verdict: Verdict, at_ms: int, *, until_ms: int | None = None, most: int = _EVERYTHING
    ) -> RetentionPlan:
        """The deletion from `at_ms` on, or up to `until_ms`."""
        now_ms = (at_ms if until_ms is None else until_ms) - self._behind_ms
        plan = choose(
            self._rules, verdict, self._places, self._last_stored, _EVERYTHING, now_ms, most
        )
        return plan._replace(now_ms=at_ms)

    # --- the groups -------------------------------------------------------------------------

    def _queues_path(self) -> str:
        return f"{self._settings.store_path}/consumequeue"

    def _groups(
        self, now: RetentionPlan, following: RetentionPlan | None
    ) -> Iterator[GroupForecast]:
        findings = Findings()
        offsets = list(self._store.tables(findings).committed())
        if "config-damaged" in findings.counts:
            self._notes.append("consumer offsets cannot be read whole: aerobee store verify")
        by_queue: dict[tuple[str, int], list[tuple[str, int]]] = {}
        for topic, group, queue_id, offset in offsets:
            by_queue.setdefault((topic, queue_id), []).append((group, offset))
        for found in self._store.layout.queues:
            groups = by_queue.get((found.topic, found.queue_id))
            if groups and found.files:
                yield from self._in_queue(found, groups, now, following)

    def _in_queue(
        self,
        found: FoundQueue,
        groups: Iterable[tuple[str, int]],
        now: RetentionPlan,
        following: RetentionPlan | None,
    ) -> Iterator[GroupForecast]:
        cache = DescriptorCache(self._files, read_only=True)
        queue = ConsumeQueue(
            cache, found.directory, found.topic, found.queue_id, self._store.sizes.queue_bytes
        )
        try:
            queue.load([file.name for file in found.files])
            queue.find_end()
            log_min = self._places[0].start if self._places else 0
            begin = queue.first_at(log_min)
            gone_now = _begin_after(now, queue.first_at, begin)
            gone_next = gone_now
            if following is not None:
                gone_next = max(gone_now, _begin_after(following, queue.first_at, begin))
        except (StoreLayoutError, StoreSizeMismatch) as error:
            self._notes.append(str(error))
            return
        finally:
            cache.close()
        for group, committed in sorted(groups):
            ends = (queue.max_offset, gone_now, gone_next)
            behind, *loses = [unconsumed(committed, begin, end) for end in ends]
            if behind:
                place = (group, found.topic, found.queue_id, committed)
                yield GroupForecast(*place, behind, *loses)


def _begin_after(wave: RetentionPlan, first_at: Callable[[int], int], begin: int) -> int:
    """The beginning of the queue after the wave."""
    return begin if wave.new_min is None else max(begin, first_at(wave.new_min))


def _disk_forecasts(disks: Disks) -> Iterator[DiskForecast]:
    for is_log, spaces in ((True, disks.logs), (False, disks.queues)):
        for path, space in spaces.items():
            if space is not None:
                yield DiskForecast(path, is_log, space)


def next_hour_ms(now_ms: int, hours: frozenset[int]) -> int | None:
    """When the next local hour of deletion begins; now, if this is such an hour; None without
    hours."""
    if time.localtime(now_ms / 1000).tm_hour in hours:
        return now_ms
    # Clocks differ from each other, and jump twice a year, by quarters of an hour.
    quarter = now_ms // _QUARTER_MS
    for step in range(1, 2 * _DAY_QUARTERS):
        at_ms = (quarter + step) * _QUARTER_MS
        if time.localtime(at_ms / 1000).tm_hour in hours:
            return at_ms
    return None
