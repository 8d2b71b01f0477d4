"""A consume queue as another thread may read it: what is there now, through own descriptors.

The owner's descriptors may be closed under another thread's feet when their number is bounded, and
its lists change. A snapshot has copies; entries below the end it took are never written again (but
for a wrong one that is mended), so what it reads is right as long as the files are there. A file
that is gone (trimmed, or its topic deleted) is a FileNotFoundError.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from aerobee.store.disk.descriptors import DescriptorCache, QueueFile
from aerobee.store.disk.files import Files
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.segments.mapped_file import segment_name


@contextmanager
def snapshot(files: Files, queue: ConsumeQueue) -> Iterator[ConsumeQueue]:
    """The queue for reading only. Any thread; raises OSError when read."""
    cache = DescriptorCache(files, read_only=True)
    try:
        yield copy_of(files, cache, queue)
    finally:
        cache.close()


def copy_of(files: Files, cache: DescriptorCache, queue: ConsumeQueue) -> ConsumeQueue:
    """A snapshot that reads through `cache`, which is read-only and the caller's to close."""
    copy = ConsumeQueue(
        files, cache, queue.directory, queue.topic, queue.queue_id, queue.segment_bytes
    )
    # The end first: files are added before it moves.
    copy.max_offset = queue.max_offset
    copy.min_offset = queue.min_offset
    copy.segments = tuple(
        QueueFile(queue.directory, segment_name(file.start), queue.segment_bytes)
        for file in queue.segments
    )
    return copy
