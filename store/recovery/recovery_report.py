"""The report of a recovery, for people and for the log: its findings and its changes."""

import logging
from dataclasses import dataclass, field
from typing import Protocol

from aerobee.store.disk.offsets_file import MOST_GAPS, Offsets
from aerobee.store.log.scan.sequence import Gap
from aerobee.store.queues.consume_queue import ConsumeQueue

_CUTS_NAMED = 20

log = logging.getLogger("aerobee.store.recovery")


class Progress(Protocol):
    """Called now and then with the progress of a long start."""

    def __call__(self, what: str, done_bytes: int, total_bytes: int) -> None: ...


@dataclass
class RecoveryReport:
    """The findings and changes; all of it zero or empty on the first start."""

    clean_stop: bool = True
    # The reason why reading began where it did.
    why: str = ""
    log_start: int = 0
    log_end: int = 0
    # The beginning of the log, [start, end), if somebody took it away other than by deletion.
    lost_front: tuple[int, int] | None = None
    read_from: int = 0
    records_read: int = 0
    # Bytes above the end that were not zero, and why the end is where it is.
    torn_bytes: int = 0
    torn_reason: str | None = None
    # Damage found by this recovery, and what is known from earlier ones.
    gaps: list[Gap] = field(default_factory=list)
    known_gaps: tuple[tuple[int, int], ...] = ()
    segments_removed: list[str] = field(default_factory=list)
    queues: int = 0
    entries_written: int = 0
    entry_conflicts: int = 0
    queues_cut: int = 0
    entries_cut: int = 0
    # The first queues that were cut: (directory, where it goes on, entries).
    cuts: list[tuple[str, int, int]] = field(default_factory=list)
    entries_blanked: int = 0
    # Records whose place in a queue they were multi-dispatched to is not known any more.
    further_strays: int = 0
    index_files_removed: list[str] = field(default_factory=list)
    unusable_topics: int = 0
    foreign_files: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def begins_at(self, log_start: int, known: Offsets | None) -> None:
        """Take in where the log begins now, and where it began by the offsets file."""
        self.log_start = log_start
        if known is not None and 0 <= known.log_begins < log_start:
            self.lost_front = (known.log_begins, log_start)

    def cut(self, queue: ConsumeQueue, end: int) -> None:
        """Count a queue that is about to be cut at `end`: its entries from there name nothing in
        the log."""
        entries = queue.max_offset - end
        self.queues_cut += 1
        self.entries_cut += entries
        if len(self.cuts) < _CUTS_NAMED:
            self.cuts.append((queue.directory, end, entries))

    def summary(self) -> str:
        """One line for people: how the last run ended, what was found, what was changed."""
        if not self.log_end:
            return "a new, empty store"
        parts = [
            "clean stop" if self.clean_stop else "unclean stop",
            f"log {self.log_start}..{self.log_end}",
            f"{self.queues} queues",
            f"{self.records_read} records read in {self.seconds:.2f} s",
        ]
        if self.torn_bytes:
            parts.append(f"{self.torn_bytes} torn bytes cut")
        if self.entries_cut:
            parts.append(f"{self.entries_cut} entries of {self.queues_cut} queues cut, see the log")
        if self.entries_written:
            parts.append(f"{self.entries_written} queue entries rebuilt")
        if self.lost_front:
            parts.append("LOST: the log's beginning, {}..{}".format(*self.lost_front))
        if self.gaps:
            lost = sum(gap.end - gap.start for gap in self.gaps)
            parts.append(f"DAMAGE: {len(self.gaps)} gaps of {lost} bytes, see the log")
        return ", ".join(parts)

    def write_log(self) -> None:
        """Write the report into the broker's own log."""
        log.info(
            "recovered clean_stop=%s log=%d..%d read_from=%d records=%d queues=%d "
            "units_written=%d seconds=%.3f",
            self.clean_stop,
            self.log_start,
            self.log_end,
            self.read_from,
            self.records_read,
            self.queues,
            self.entries_written,
            self.seconds,
        )
        if self.torn_bytes:
            log.warning(
                "torn tail cut at=%d bytes=%d reason=%s",
                self.log_end,
                self.torn_bytes,
                self.torn_reason,
            )
        if self.lost_front:
            log.warning(
                "the beginning of the log is gone, and no deletion took it from=%d to=%d advice=%s",
                *self.lost_front,
                "restore these segments, or do nothing: their messages are lost then",
            )
        if self.queues_cut:
            log.warning(
                "queues cut, they named messages that the log does not have units=%d queues=%d",
                self.entries_cut,
                self.queues_cut,
            )
        for directory, end, entries in self.cuts:
            log.warning(
                "queue cut path=%s units=%d numbering goes on at=%d",
                directory,
                entries,
                end,
                extra={"each": True},
            )
        self._name_gaps()
        if self.further_strays:
            log.error(
                "messages missing in queues they were dispatched to n=%d", self.further_strays
            )
        for path in self.foreign_files:
            log.warning("not a store file, left alone path=%s", path)

    def _name_gaps(self) -> None:
        """Log each gap, as far as they are remembered: somebody has to see what was lost."""
        for gap in self.gaps[:MOST_GAPS]:
            log.error(
                "damaged log from=%d to=%d reason=%s",
                gap.start,
                gap.end,
                gap.reason,
                extra={"each": True},
            )
        if len(self.gaps) > MOST_GAPS:
            log.error("more damage, not named here places=%d", len(self.gaps) - MOST_GAPS)
