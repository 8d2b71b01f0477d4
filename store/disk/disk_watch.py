"""How full the disks are, and what follows from it for sends.

Sends are refused while no directory of the log has its disk at or below `warning_ratio` (with
several log directories the emptiest counts, store/FORMAT.md 10.2), or while the disk of the consume
queues is above it. They resume by themselves. The ratio is that of `df`; the reference rounds it up
to whole percents, which is the same for limits in whole percents.

Threads: any; two looks at once do no harm.
"""

import logging
from collections.abc import Sequence

from aerobee.store.disk.files import Clock, Files
from aerobee.store.disk.store_health import Health

log = logging.getLogger("aerobee.store")

#: The kind of refusal this watch sets and lifts (`Health.refuse`).
DISK_USED = "disk used"
_LOOK_S = 10.0


class DiskWatch:
    """Watches the disks of `log_directories` and of `queue_directory`."""

    def __init__(
        self,
        *,
        files: Files,
        clock: Clock,
        health: Health,
        log_directories: Sequence[str],
        queue_directory: str,
        warning_ratio: float,
    ) -> None:
        self._files = files
        self._clock = clock
        self._health = health
        self._log_directories = tuple(log_directories)
        self._queue_directory = queue_directory
        self._warning_ratio = warning_ratio
        self._looked_at: float | None = None
        # Used share by directory as last seen; a directory that could not be asked is missing here.
        self.ratios: dict[str, float] = {}

    def look(self, *, at_once: bool = False) -> None:
        """Ask the system, if the last time is ten seconds ago or `at_once`."""
        now = self._clock.monotonic()
        if not at_once and self._looked_at is not None and now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        self.ratios = self._measure()
        full = full_directories(
            self.ratios, self._log_directories, self._queue_directory, self._warning_ratio
        )
        if full:
            is_slave = self._health.copies_only
            text = refusal_text(full, self._warning_ratio, is_slave=is_slave)
            self._health.refuse(DISK_USED, text)
        elif self.ratios:
            self._health.allow(DISK_USED)

    def _measure(self) -> dict[str, float]:
        ratios: dict[str, float] = {}
        for directory in (*self._log_directories, self._queue_directory):
            try:
                ratios[directory] = self._files.used_ratio(directory)
            except OSError as error:
                log.warning("cannot tell how full the disk is path=%s %s", directory, error)
        return ratios


def full_directories(
    ratios: dict[str, float],
    log_directories: Sequence[str],
    queue_directory: str,
    warning_ratio: float,
) -> dict[str, float]:
    """The directories for whose sake sends are refused, with their ratios; empty when none are."""
    logs = {path: ratios[path] for path in log_directories if path in ratios}
    if logs and min(logs.values()) > warning_ratio:
        return logs
    ratio = ratios.get(queue_directory, 0.0)
    return {queue_directory: ratio} if ratio > warning_ratio else {}


def refusal_text(full: dict[str, float], warning_ratio: float, *, is_slave: bool) -> str:
    """The refusal of a send: which path, how full, which setting. A slave refuses none."""
    paths = ", ".join(f"the disk of {path} is {ratio:.1%} full" for path, ratio in full.items())
    if is_slave:
        return (
            f"{paths}, above {warning_ratio:.0%} (disk_warning_ratio, diskSpaceWarningLevelRatio): "
            "this slave takes its master's log until there is no room, and deletes its own oldest "
            "segments meanwhile; as a master it would refuse sends"
        )
    return (
        f"{paths}; sends are refused above {warning_ratio:.0%} (disk_warning_ratio, "
        "diskSpaceWarningLevelRatio) and resume by themselves below"
    )
