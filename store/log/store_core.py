"""The parts that nearly everything in an open store works on, as one value.

The store makes it once, when recovery is done (`message_store.py`). A class takes it where it needs
most of it; a class that needs two or three of the parts takes those.
"""

from dataclasses import dataclass

from aerobee.config.model import Settings
from aerobee.store.disk.checkpoint import Checkpoint
from aerobee.store.disk.files import Clock, Files
from aerobee.store.disk.store_health import Health
from aerobee.store.log.marks import Marks
from aerobee.store.queues.delay_levels import DelayLevels
from aerobee.store.queues.queue_table import ConsumeQueueTable
from aerobee.store.segments.mapped_file_queue import MappedFileQueue
from aerobee.store.store_stats import StoreStats


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCore:
    """The core of one open store."""

    settings: Settings
    files: Files
    clock: Clock
    stats: StoreStats
    health: Health
    checkpoint: Checkpoint
    levels: DelayLevels
    segments: MappedFileQueue
    queues: ConsumeQueueTable
    marks: Marks
