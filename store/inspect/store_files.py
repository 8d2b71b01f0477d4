"""A store at rest as files: its log and its queues, and how the one is scanned with the other."""

from functools import cached_property

from aerobee.config.model import Settings
from aerobee.store.disk.files import Files
from aerobee.store.inspect.layout import Layout
from aerobee.store.inspect.log_files import FileReporter, LogFiles
from aerobee.store.inspect.queue_files import QueueSet
from aerobee.store.inspect.report import Sizes
from aerobee.store.inspect.state import KnownMarks
from aerobee.store.log.encoding import crc_checks
from aerobee.store.scan.log_scanner import LogScanner
from aerobee.store.scan.sources import Sources


class StoreFiles:
    """To be closed. `left_open`: the last run did not end in order. Raises OSError."""

    def __init__(
        self,
        files: Files,
        settings: Settings,
        layout: Layout,
        sizes: Sizes,
        marks: KnownMarks,
        *,
        left_open: bool,
    ) -> None:
        self._marks = marks
        self._crc_check = crc_checks(verify_property_crc=settings.verify_property_crc)
        self._torn_above = left_open and not marks.nothing_lost
        self.sources = Sources(files)
        self.log = LogFiles(self.sources, layout.segments, sizes.segment_bytes)
        self.queue_set = QueueSet(self.sources, layout.queues, sizes.queue_bytes, self.log)
        self.queues = self.queue_set.queues

    @cached_property
    def known_end(self) -> int:
        """Up to there sound records are known to have been."""
        named_end = self.queue_set.named_end()
        return max(named_end, self.log.last_sound_start(), self._marks.flushed)

    def scanner(self, below: int = 1 << 63) -> tuple[LogScanner, FileReporter]:
        """A scan of the segments that begin `below` a log offset, and its reporter."""
        return self.log.scanner(
            self.queue_set.boundaries,
            self.known_end,
            self._crc_check,
            torn_above=self._torn_above,
            below=below,
        )

    def close(self) -> None:
        """Give all files back."""
        self.sources.close()
