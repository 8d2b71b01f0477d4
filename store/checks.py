"""The parts that look for damage while the store is open, and how they hang together.

    get -> Reader -> (does not check out) -> DamageReports -> log, counters, offsets file
    Scrub (own thread) -> Findings -> Healer (store's caller) -> consume queues, DamageReports

Without a scrub (`scrub_bytes_per_second` 0) damage is found by reads only, and nobody mends
entries.
"""

import threading
from collections.abc import Callable

from aerobee.config.model import Settings
from aerobee.store.flush.offsets_keeper import OffsetsKeeper
from aerobee.store.log.commit_log import CommitLog
from aerobee.store.log.commits import CommitMark
from aerobee.store.log.encoding import crc_checks
from aerobee.store.opening import StoreParts
from aerobee.store.reading.damage import DamageReports, Judge, Kind, Verdict
from aerobee.store.reading.reader import CHECKED_BELOW, Reader, ReadLimits
from aerobee.store.recovery.soundness import Soundness
from aerobee.store.scan.log_scanner import LogScanner, MappedSegments
from aerobee.store.scrub.heal import Healer
from aerobee.store.scrub.scrub import Scrub


class Checks:
    """Of one store; `settled()` is the log offset below which all is durable and dispatched."""

    def __init__(
        self,
        settings: Settings,
        parts: StoreParts,
        log: CommitLog,
        mark: CommitMark,
        offsets: OffsetsKeeper,
        settled: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._parts = parts
        self._log = log
        self._mark = mark
        self._offsets = offsets
        self._limits = ReadLimits.of(settings)
        self._crc_check = crc_checks(verify_property_crc=settings.verify_property_crc)
        judge = Judge(parts.segments, parts.queues, self._crc_check)
        self._damage = DamageReports(judge, parts.segments, parts.stats, offsets.add_gap)
        self._healer = Healer(
            parts.segments,
            parts.queues,
            self._damage,
            parts.health,
            parts.stats,
            parts.clock,
            lambda: offsets.gaps,
        )
        # Closing and mending may come from two threads.
        self._heal_lock = threading.Lock()
        self._stopped = False
        self._scrub = self._make_scrub(settled) if settings.scrub_bytes_per_second else None
        if self._scrub is not None:
            self._damage.ask_scrub = self._healer.ask_scrub = self._scrub.ask
            self._healer.ask_pass = self._scrub.ask_pass

    def _make_scrub(self, settled: Callable[[], int]) -> Scrub:
        parts, settings = self._parts, self._settings
        return Scrub(
            parts.files,
            parts.clock,
            parts.segments,
            parts.queues,
            parts.levels,
            self._damage,
            self._healer,
            parts.health,
            parts.stats,
            settled,
            lambda: self._log.written - self._limits.memory_bytes,
            self._crc_check,
            settings.scrub_bytes_per_second,
            settings.scrub_interval_hours,
            parts.index,
        )

    def make_reader(self) -> Reader:
        """The store's reader, which checks as `check_reads` says."""
        parts = self._parts
        return Reader(
            self._log,
            self._mark,
            parts.queues,
            parts.stats,
            self._limits,
            self._crc_check,
            self._damage,
            CHECKED_BELOW[self._settings.check_reads],
        )

    def start(self) -> None:
        """Begin to scrub."""
        if self._scrub is not None:
            self._scrub.start()

    def stop(self) -> None:
        """End the scrub's thread; mend nothing more."""
        if self._scrub is not None:
            self._scrub.stop()
        with self._heal_lock:
            self._stopped = True

    def heal(self) -> int:
        """Settle what the scrub found, for a few milliseconds; how many queue entries were mended.

        To be called about once a second by the store's caller; see `Healer.heal`.
        """
        with self._heal_lock:
            return 0 if self._stopped else self._healer.heal()

    def look_for_damage(self, log_offset: int) -> None:
        """Check every record from `log_offset` on, some 200 MB/s on the caller's thread. What is
        damaged is said, counted, and from now on one of `known_gaps`."""
        segments, queues = self._parts.segments, self._parts.queues
        boundaries = Soundness(segments, queues).boundaries
        scan = LogScanner(MappedSegments(segments), self._log.written, boundaries, self._crc_check)
        for _ in scan.batches(log_offset):
            pass
        known = self.known_gaps
        for gap in scan.gaps:
            if not any(start <= gap.start and gap.end <= end for start, end in known):
                self._damage.note(Verdict(Kind.RECORD, *gap), None)

    @property
    def unchecked_bytes(self) -> int:
        """Bytes of the log that were not checked since the store was opened, or are damaged."""
        return sum([segment.unchecked_below for segment in self._parts.segments.segments])

    @property
    def known_gaps(self) -> tuple[tuple[int, int], ...]:
        """Log offsets [start, end) known to hold no usable record, found now or before."""
        first = self._log.min_offset
        return tuple([gap for gap in self._offsets.gaps if gap[1] > first])
