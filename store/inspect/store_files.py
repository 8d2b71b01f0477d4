"""A store at rest as files: their names and sizes, the known end; its log and its queues, and the
scan of the log by the queues.

The constructor reads names, lengths and the small files; the log and the queues are opened when
they are asked for.
"""

from collections.abc import Collection
from functools import cached_property

from aerobee.config.model import Settings
from aerobee.store.disk.files import Files
from aerobee.store.index.view import IndexView
from aerobee.store.inspect.audit_report import Counts, Findings
from aerobee.store.inspect.config import Tables
from aerobee.store.inspect.ext import Extensions
from aerobee.store.inspect.log_files import FileReporter, LogFiles
from aerobee.store.inspect.queue_files import QueueFiles
from aerobee.store.inspect.sizes import find_sizes
from aerobee.store.inspect.start_checks import tables_read
from aerobee.store.inspect.state import read_marks, was_left_open
from aerobee.store.inspect.store_layout import survey
from aerobee.store.log.encoding import crc_checks
from aerobee.store.log.scan.boundaries import Boundaries, last_boundary
from aerobee.store.log.scan.log_scanner import LogScanner
from aerobee.store.log.scan.sources import Sources


class StoreFiles:
    """The store below `settings.store_path`, to be closed; it may be asked again after that.

    `given` names the settings that somebody chose (attribute names): sizes that nobody chose are
    found from the files, and `settings` has all of them then. `left_open`: the last run did not end
    in order. Raises NotAStore, StoreSizeMismatch or OSError.
    """

    def __init__(self, files: Files, settings: Settings, given: Collection[str] = ()) -> None:
        self.files = files
        self.given = given
        self.root = settings.store_path
        self.layout = survey(files, settings)
        self.marks = read_marks(files, self.root)
        self.sizes = find_sizes(files, self.layout, self.marks, settings, given)
        self.settings = self.sizes.applied_to(settings)
        self.left_open = was_left_open(files, self.root)
        self.sources = Sources(files)

    @cached_property
    def log(self) -> LogFiles:
        """The commit log."""
        return LogFiles(self.sources, self.layout.segments, self.sizes.segment_bytes)

    @cached_property
    def queues(self) -> dict[tuple[str, int], QueueFiles]:
        """All consume queues, by topic and queue id. Raises OSError."""
        return {
            (found.topic, found.queue_id): QueueFiles(self.sources, found, self.sizes.queue_bytes)
            for found in self.layout.queues
        }

    @cached_property
    def extensions(self) -> Extensions:
        """The queues' extension files."""
        return Extensions(self.sources, self.layout, self.sizes.extension_bytes)

    def index_view(self, path: str) -> IndexView:
        """An index file, read-only."""
        return IndexView(
            lambda position, size: self.sources.get(path).read(position, size),
            self.sizes.index_slots,
        )

    @cached_property
    def boundaries(self) -> Boundaries:
        """The places where records begin by the queues."""
        return Boundaries(self.queues.values, self.log.names_back)

    @cached_property
    def known_end(self) -> int:
        """The log offset up to which there were sound records once."""
        named_end, _ = last_boundary(self.queues.values(), self.log.names_back, 0)
        return max(named_end, self.log.last_sound_start(), self.marks.flushed)

    def queue_end(self, key: tuple[str, int]) -> int | None:
        """The end of a queue, None if there is no such queue."""
        queue = self.queues.get(key)
        return None if queue is None else queue.max_offset

    def name_anything(self) -> bool:
        """Whether any entry of any queue names a record."""
        return any(queue.last_named(queue.max_offset) for queue in self.queues.values())

    def scanner(self, below: int = 1 << 63) -> tuple[LogScanner, FileReporter]:
        """A scan of the segments that begin `below` a log offset, and its reporter."""
        return self.log.scanner(
            self.boundaries,
            self.known_end,
            crc_checks(verify_property_crc=self.settings.verify_property_crc),
            torn_above=self.left_open and not self.marks.nothing_lost,
            below=below,
        )

    def tables(self, findings: Findings | None = None, counts: Counts | None = None) -> Tables:
        """The broker's tables as they are now; their faults go to `findings`."""
        read = tables_read(self.files, self.settings)
        return Tables(self.files, self.layout, read, findings or Findings(), counts or Counts())

    def close(self) -> None:
        """Give all files back."""
        self.sources.close()
