"""A consume queue as another thread may read it: what is there now, through own descriptors.

The owner's descriptors may be closed under another thread's feet when their number is bounded, and
its lists change. A snapshot has copies; entries below the end it took are never written again
(except a wrong entry that is repaired), so it reads right entries as long as the files are there. A
file that is gone (trimmed, or its topic deleted) is a FileNotFoundError.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aerobee.store.disk.descriptors import DescriptorCache, QueueFile
from aerobee.store.disk.files import Files
from aerobee.store.queues.consume_queue import ConsumeQueue


class Snapshot(ConsumeQueue):
    """The queue at the time of the copy. Any thread; a failed read raises OSError, or calls
    `failed`, if it is given, and then yields no entries."""

    __slots__ = ("_failed",)

    def __init__(
        self,
        cache: DescriptorCache,
        queue: ConsumeQueue,
        failed: Callable[[ConsumeQueue, OSError], None] | None = None,
    ) -> None:
        """Reads through `cache`, which is read-only and the caller's to close."""
        super().__init__(cache, queue.directory, queue.topic, queue.queue_id, queue.segment_bytes)
        self._failed = failed
        # The end first: files are added before it moves.
        self.max_offset = queue.max_offset
        self.min_offset = queue.min_offset
        self.segments = tuple(
            QueueFile(queue.directory, file.start, queue.segment_bytes) for file in queue.segments
        )

    def read_entries(self, first: int, count: int) -> bytes:
        try:
            return super().read_entries(first, count)
        except OSError as error:
            if self._failed is None:
                raise
            self._failed(self, error)
            return b""


@contextmanager
def snapshot(files: Files, queue: ConsumeQueue) -> Iterator[ConsumeQueue]:
    """The queue for reading only, for a while."""
    cache = DescriptorCache(files, read_only=True)
    try:
        yield Snapshot(cache, queue)
    finally:
        cache.close()
