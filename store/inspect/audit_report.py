"""The report of an audit: findings, counts, a summary. Values only; the command line prints them.

A finding names a place and what is there; its kind, one line of the table in
`inspect/finding_kinds.py`, adds what follows from it and what to do. Kinds are stable names for
scripts.

Three levels. *damage*: messages or bytes are lost, wrong or not found, or a start is refused.
*warning*: no message is lost and a start repairs it, or only RocketMQ would stumble over it.
*note*: worth knowing. Only damage makes a store unsound.

The first findings of each kind are kept and the rest is counted, so that the report of a million
wrong entries needs little memory.
"""

from collections.abc import Iterator
from typing import NamedTuple

from aerobee.config.model import Settings
from aerobee.store.inspect.finding_kinds import KINDS, Level
from aerobee.store.log.scan.sequence import Gap

KEPT_PER_KIND = 1000


class Finding(NamedTuple):
    """Something found at byte `position` of the file `path` (None: the file as a whole).

    `log_offset` and `queue_offset` are the place in the log and in the queue, if it has one.
    """

    kind: str
    path: str
    position: int | None
    what: str
    log_offset: int | None = None
    queue_offset: int | None = None

    @property
    def level(self) -> Level:
        """The level of its kind."""
        return KINDS[self.kind].level

    @property
    def consequence(self) -> str:
        """The consequence of a finding of its kind."""
        return KINDS[self.kind].consequence

    @property
    def remedy(self) -> str:
        """The advice for a finding of its kind."""
        return KINDS[self.kind].remedy


class Findings:
    """Collects findings; `counts` counts all of them, iteration gives those that were kept."""

    def __init__(self, kept_per_kind: int = KEPT_PER_KIND) -> None:
        self._kept_per_kind = kept_per_kind
        self._kept: dict[str, list[Finding]] = {}
        self.counts: dict[str, int] = {}

    def add(
        self,
        kind: str,
        path: str,
        position: int | None,
        what: str,
        *,
        log_offset: int | None = None,
        queue_offset: int | None = None,
    ) -> None:
        """Add a finding; `kind` is a name of `KINDS`."""
        assert kind in KINDS, kind
        seen = self.counts.get(kind, 0)
        self.counts[kind] = seen + 1
        if seen < self._kept_per_kind:
            found = Finding(kind, path, position, what, log_offset, queue_offset)
            self._kept.setdefault(kind, []).append(found)

    def __iter__(self) -> Iterator[Finding]:
        """Damage first, then warnings, then notes; within a level by kind as in the table."""
        for level in Level:
            for kind, described in KINDS.items():
                if described.level is level:
                    yield from self._kept.get(kind, ())

    def of(self, kind: str) -> list[Finding]:
        """The findings of a kind that were kept."""
        return self._kept.get(kind, [])

    def count(self, level: Level) -> int:
        """The number of findings of a level."""
        return sum(count for kind, count in self.counts.items() if KINDS[kind].level is level)


class Counts:
    """Counts of what was read, for the summary. Plain numbers, named as in the JSON report."""

    def __init__(self) -> None:
        self.segments = 0
        self.log_start = 0
        self.log_end = 0
        self.records = 0
        self.messages = 0
        self.half_messages = 0
        self.rollbacks = 0
        self.blanks = 0
        self.fillers = 0
        self.lost_bytes = 0
        self.queues = 0
        self.units = 0
        self.expired_units = 0
        self.pre_blank_units = 0
        self.index_files = 0
        self.index_entries = 0
        self.config_files = 0
        self.consumer_offsets = 0
        self.bytes_read = 0
        self.first_store_ms = 0
        self.last_store_ms = 0


class Sizes(NamedTuple):
    """The file sizes that the audit used, and for each whether it was given, found or just
    assumed."""

    segment_bytes: int
    queue_bytes: int
    index_slots: int
    index_entries: int
    extension_bytes: int
    origins: dict[str, str]

    def applied_to(self, settings: Settings) -> Settings:
        """The settings of a broker with these sizes."""
        return settings.with_changes(
            commit_log_segment_bytes=self.segment_bytes,
            consume_queue_segment_bytes=self.queue_bytes,
            index_slots=self.index_slots,
            index_entries=self.index_entries,
            consume_queue_ext_segment_bytes=self.extension_bytes,
        )


class LogFacts(NamedTuple):
    """Facts about the log that an audit learned, for a repair. Files are (path, start)."""

    gaps: list[Gap]
    # The messages that entries name in a gap, by its start: (queue, first number, end).
    lost: dict[int, list[tuple[str, int, int]]]
    # Store time of the last record before a gap in its segment, by the gap's start; 0 without one.
    times: dict[int, int]
    # Bytes above the log's end: (path, first byte, position after the last byte that is not zero).
    tail: list[tuple[str, int, int]]
    # Files that hold the records of another place: (path, start, that place).
    misplaced: list[tuple[str, int, int]]
    # Files of nothing but zeros above the log's end: (path, start).
    spare: list[tuple[str, int]]
    # Log offsets of single records that claim another record's slot.
    strays: list[int]
    # The end that the log has to reach, whether it does or not.
    end: int


NO_FACTS = LogFacts([], {}, {}, [], [], [], [], 0)


class Report(NamedTuple):
    """The outcome of an audit."""

    root: str
    sizes: Sizes
    counts: Counts
    findings: Findings
    log: LogFacts
    clean_stop: bool
    seconds: float

    @property
    def gaps(self) -> list[Gap]:
        """The damaged ranges of the log, all of them."""
        return self.log.gaps

    @property
    def sound(self) -> bool:
        """Whether there is no damage."""
        return self.findings.count(Level.DAMAGE) == 0
