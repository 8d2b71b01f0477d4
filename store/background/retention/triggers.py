"""Decides when old messages go, by the settings, the hour, the disks and an operator.

Deletion runs when one of three things holds (store/FORMAT.md 10.1):
- *time*: the local hour is one of `delete_hours`, for the whole of it;
- *space*: the log's disk, or else the consume queues' disk, is fuller than `max_used_ratio`, or not
  there. Of several log directories the emptiest counts;
- *manual*: somebody asked for it.

A run deletes expired segments. It is *forced*, and deletes others too, when the disk is fuller than
`force_ratio`: the oldest messages go before their time, consumed or not, so that new ones can be
taken (docs/reliability.md B10). Two things differ from the reference, which deletes ten files in
each run until it is satisfied. Forced deletion stops as soon as the freed bytes bring the log's
disk back to `force_ratio`; if the queues' disk is full, nobody can tell how much a segment frees
there, so each run deletes one segment. And a disk so full that sends are refused (`warning_ratio`)
counts as the space trigger whatever `max_used_ratio` says: with 95 % there, sends would be refused
until the next of `delete_hours`.

It is pure: everything is passed in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from aerobee.config.model import Settings
from aerobee.store.disk.files import DiskSpace, Files

TIME, SPACE, MANUAL = "time", "space", "manual"
#: The reason for a segment that goes and has not expired.
FORCED = "forced"

_HOUR_MS = 3_600_000


class RetentionRules(NamedTuple):
    """The settings in the units that are computed with; ratios are shares from 0 to 1."""

    retention_ms: int
    delete_hours: frozenset[int]
    max_used_ratio: float
    force_ratio: float
    warning_ratio: float
    clean_forcibly: bool

    @classmethod
    def of(cls, settings: Settings) -> "RetentionRules":
        """The rules of checked settings."""
        return cls(
            settings.retention_hours * _HOUR_MS,
            parse_hours(settings.delete_hours),
            settings.disk_max_used_percent / 100,
            settings.disk_force_ratio,
            settings.disk_warning_ratio,
            settings.clean_forcibly,
        )

    @property
    def space_limit(self) -> float:
        """Ratio above which a disk triggers deletion."""
        return min(self.max_used_ratio, self.warning_ratio)

    @property
    def force_limit(self) -> float:
        """Ratio above which deletion is forced."""
        return min(self.force_ratio, self.warning_ratio)


def parse_hours(text: str) -> frozenset[int]:
    """Hours of the day in "04" or "04;16"; none in an empty text. Checked by
    config/setting_rules.py."""
    return frozenset(int(part) for part in text.split(";") if part.strip())


class Disks(NamedTuple):
    """The disks under the store by directory; None where the directory is not there."""

    logs: Mapping[str, DiskSpace | None]
    queues: Mapping[str, DiskSpace | None]

    @classmethod
    def ask(cls, files: Files, log_directories: Sequence[str], queue_directory: str) -> "Disks":
        """Ask the system. A directory that is there, and fails, is left out."""
        return cls(_ask(files, log_directories), _ask(files, (queue_directory,)))


def _ask(files: Files, directories: Sequence[str]) -> dict[str, DiskSpace | None]:
    found: dict[str, DiskSpace | None] = {}
    for directory in directories:
        try:
            found[directory] = files.disk_space(directory)
        except FileNotFoundError:
            found[directory] = None
        except OSError:
            continue
    return found


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of a moment. `triggers` are some of TIME, SPACE, MANUAL, in this order;
    without a trigger nothing goes."""

    triggers: tuple[str, ...]
    #: Whether segments that have not expired go too, until `relieved`.
    forced: bool = False
    #: The log's disk is above `force_limit`; else, if `forced`, the queues' disk is.
    log_forced: bool = False
    force_limit: float = 1.0
    logs: Mapping[str, DiskSpace | None] = field(default_factory=dict)

    def relieved(self, freed: Mapping[str, int]) -> bool:
        """Whether force is no longer needed after `freed`, bytes by log directory."""
        if not self.log_forced:
            return any(freed.values())
        return any(
            space is None or _ratio_without(space, freed.get(path, 0)) <= self.force_limit
            for path, space in self.logs.items()
        )


def judge(rules: RetentionRules, hour: int, disks: Disks, *, manual: bool) -> Verdict:
    """The verdict at the local `hour` with these disks."""
    triggers: list[str] = []
    if hour in rules.delete_hours:
        triggers.append(TIME)
    log_ratio = _emptiest(disks.logs)
    space = _triggers(log_ratio, rules.space_limit)
    log_forced = forced = log_ratio is not None and log_ratio > rules.force_limit
    if not space:
        queue_ratio = _emptiest(disks.queues)
        space = _triggers(queue_ratio, rules.space_limit)
        forced = forced or (queue_ratio is not None and queue_ratio > rules.force_limit)
    if space:
        triggers.append(SPACE)
    if manual:
        triggers.append(MANUAL)
    forced = forced and rules.clean_forcibly and bool(triggers)
    return Verdict(tuple(triggers), forced, log_forced, rules.force_limit, disks.logs)


def _emptiest(disks: Mapping[str, DiskSpace | None]) -> float | None:
    """The least ratio, -1 for a directory that is not there; None if no disk could be asked."""
    return min((-1.0 if disk is None else disk.used_ratio for disk in disks.values()), default=None)


def _triggers(ratio: float | None, limit: float) -> bool:
    return ratio is not None and (ratio < 0 or ratio > limit)


def _ratio_without(space: DiskSpace, freed: int) -> float:
    return DiskSpace(max(0, space.used_bytes - freed), space.free_bytes + freed).used_ratio
