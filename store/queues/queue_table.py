"""All consume queues of a store, by (topic, queue id).

`obtain` is on the append path: a queue that nobody wrote to yet exists in memory only, and its
numbering starts at 0. Asking for a queue never makes one: a hostile pull leaves no trace. Topic
names become directory names here, so a name that could leave the directory is refused, wherever it
came from.

Light queues (`%LMQ%...`, one queue each, no topic in any table) are made by whoever names one. So
their number is limited where messages come in (`admit`); what the log holds is always dispatched.

Threads: the store's caller changes the table (under the put lock where numbering is concerned); the
flush thread works on a snapshot of the dirty files.
"""

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator

from aerobee.protocol.names import is_light
from aerobee.store.disk.descriptors import DescriptorCache, QueueFile
from aerobee.store.disk.files import Files
from aerobee.store.errors import LmqConsumeQueueNumExceeded, MessageIllegal, StoreLayoutError
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.consume_queue_ext import ConsumeQueueExt
from aerobee.store.queues.extended_queue import ExtendedQueue
from aerobee.store.queues.kept_ends import KeptEnds
from aerobee.store.queues.queue_view import ENTRY_BYTES

log = logging.getLogger("aerobee.store")

MAX_TOPIC_BYTES = 127
#: Ends the name of a queue's directory that is being removed.
REMOVED_SUFFIX = ".removed"
_I32_MAX = 0x7FFFFFFF
_UNCOUNTED = (0, -1)
# The most queues whose files a start syncs at a time: each takes memory meanwhile.
_SYNCED_AT_A_TIME = 512


class ConsumeQueueTable:
    """The queues below `directory`, their files `segment_bytes` each.

    At most `light_limit` light queues are admitted; with None `%LMQ%` names are like any other.
    With `ext_segment_bytes` they have extension files of that length.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        segment_bytes: int,
        light_limit: int | None = None,
        ext_segment_bytes: int | None = None,
    ) -> None:
        self._files = files
        self.directory = directory
        # Directory of extension files, which may hold some from a time when the option was on.
        self.ext_directory = directory + "_ext"
        self._segment_bytes = segment_bytes
        self._ext_segment_bytes = ext_segment_bytes
        self.cache = DescriptorCache(files)
        self.queues: dict[tuple[str, int], ConsumeQueue] = {}
        #: Counts queues that have left the table: whoever keeps a queue looks whether it has moved.
        self.removed = 0
        self._removal_lock = threading.Lock()
        self._light_limit = light_limit
        # Light queues, and the size of the table when they were counted.
        self._light = _UNCOUNTED
        # Foreign names found at load, and unfinished files.
        self.foreign: list[str] = []
        # Directories of queues that were being removed when a crash came.
        self.leftovers: list[str] = []

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(list(self.queues.values()))

    def entries(self) -> int:
        """The sum of all queues' ends: how many entries there are and were."""
        return sum([queue.max_offset for queue in self])

    def beginnings(self) -> int:
        """The sum of the queues' first slots that have a file: more at a start than was noted means
        that somebody took first files away."""
        return sum([queue.first_offset for queue in self])

    def entries_below(self, log_offset: int) -> int:
        """The `entries` when the records below `log_offset` had been dispatched. Raises OSError.

        Less than that means that entries are missing.
        """
        return sum([queue.entries_below(log_offset) for queue in self])

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, None if nothing was ever put into it."""
        return self.queues.get((topic, queue_id))

    def obtain(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made in memory if need be. MessageIllegal when the name cannot be a path."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            check_topic(topic)
            if not 0 <= queue_id <= _I32_MAX:
                raise MessageIllegal(f"queue id {queue_id} is out of range")
            queue = self.queues[topic, queue_id] = self._make(topic, queue_id)
            light, counted_of = self._light
            known = counted_of == len(self.queues) - 1
            self._light = (light + is_light(topic), len(self.queues)) if known else _UNCOUNTED
        return queue

    def admit(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Obtain a queue (see `obtain`); raises LmqConsumeQueueNumExceeded when one light queue
        more would be too many."""
        limit = self._light_limit
        if limit is None or not is_light(topic) or (topic, queue_id) in self.queues:
            return self.obtain(topic, queue_id)
        if self._light[1] != len(self.queues):
            light = sum([is_light(name) for name, _ in self.queues])
            self._light = (light, len(self.queues))
        if self._light[0] >= limit:
            raise LmqConsumeQueueNumExceeded(
                "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED] there are as many light queues (%LMQ%) as "
                f"lmq_max_queues (maxLmqConsumeQueueNum) allows: {limit}"
            )
        return self.obtain(topic, queue_id)

    def listed_id(self, name: str, queue_id: int) -> int:
        """Queue id of a queue that a message of queue `queue_id` lists by name only."""
        return 0 if self._light_limit is not None and is_light(name) else queue_id

    def load(self) -> None:
        """Read the directory: topics, queues, their files. Raises as ConsumeQueue.load."""
        for topic in self._files.names(self.directory):
            topic_directory = os.path.join(self.directory, topic)
            if not self._files.is_directory(topic_directory):
                self._check_link(topic_directory)
                self.foreign.append(topic_directory)
                continue
            for name in self._files.names(topic_directory):
                path = os.path.join(topic_directory, name)
                is_directory = self._files.is_directory(path)
                if is_directory and name.endswith(REMOVED_SUFFIX):
                    self.leftovers.append(path)
                    continue
                if not name.isdecimal() or not is_directory:
                    self._check_link(path)
                    self.foreign.append(path)
                    continue
                queue = self.queues[topic, int(name)] = self._make(topic, int(name))
                self.foreign += queue.load(self._files.names(path))
        kept = KeptEnds(len(self.queues))
        for queue in self:
            queue.find_end(kept)
        self._judge_sizes()
        self.leftovers += self._extension_leftovers()

    def _check_link(self, path: str) -> None:
        """Refuse a link to nothing: numbers of the queues there would begin at 0 again."""
        if not self._files.exists(path):
            raise StoreLayoutError(
                f"{path} is a link to nothing. Is its volume not mounted? If it is gone for good, "
                "remove the link; 'aerobee store rebuild' makes consume queues again."
            )

    def _judge_sizes(self) -> None:
        """Raise StoreSizeMismatch if most files have another size than the setting: they were made
        with it. Otherwise files of another size were damaged, and are made again."""
        odd = [queue for queue in self if queue.odd_sizes]
        sizes = Counter([size for queue in odd for size in queue.odd_sizes.values()])
        made = sum([len(queue.segments) - len(queue.unmade) for queue in self])
        most = max([count for size, count in sizes.items() if not size % ENTRY_BYTES], default=0)
        for queue in odd:
            if most > made or not made:
                queue.refuse_sizes()
            for file, size in queue.odd_sizes.items():
                log.warning(
                    "queue file made again, it has another size path=%s bytes=%d expected=%d",
                    file.path,
                    size,
                    self._segment_bytes,
                )

    def _extension_leftovers(self) -> list[str]:
        found = []
        for topic in self._files.names(self.ext_directory):
            directory = os.path.join(self.ext_directory, topic)
            if self._files.is_directory(directory):
                paths = [os.path.join(directory, name) for name in self._files.names(directory)]
                found += [path for path in paths if path.endswith(REMOVED_SUFFIX)]
        return found

    def take_out(self, queue: ConsumeQueue) -> list[str]:
        """Forget a queue; returns its directories, whose names are now those of no queue.

        Raises OSError; then the queue is still there.
        """
        extension = os.path.join(self.ext_directory, queue.topic, str(queue.queue_id))
        with self._removal_lock:
            # They go first: without extension files a queue is whole, without its own it is gone.
            gone = [*self._renamed(extension), *self._renamed(queue.directory)]
            del self.queues[queue.topic, queue.queue_id]
            self.removed += 1
        queue.close()
        return gone

    def _renamed(self, directory: str) -> list[str]:
        """Give a queue's directory, if it is there, a name by which it is being removed."""
        if not self._files.exists(directory):
            return []
        target = directory + REMOVED_SUFFIX
        while self._files.exists(target):
            target += REMOVED_SUFFIX
        self._files.rename(directory, target)
        return [target]

    def remove_leftovers(self) -> None:
        """Remove what a crash left of queues that were being removed. Raises OSError."""
        for path in self.leftovers:
            self._files.remove_tree(path)
            self._files.sync_directory(os.path.dirname(path))
        self.leftovers.clear()

    def unlink(self, queue: ConsumeQueue, file: QueueFile) -> bool:
        """Remove the name of a file that `queue` has given up; False if it is gone. Any thread.

        The file of another queue that has taken the name since stays: the lock keeps a topic's
        directory from being taken out, and made anew, in between. Raises OSError.
        """
        with self._removal_lock:
            if self.get(queue.topic, queue.queue_id) is not queue:
                return False
            try:
                self._files.remove(file.path)
            except FileNotFoundError:
                return False
            return True

    def flush(self, least_pages: int) -> int:
        """Flush thread: sync the files with that many new pages (0: all); returns their number.

        Names of new files are made durable first. A file with a mended entry does not wait for
        pages: a start looks for what was not synced among the newest entries, not among those of
        long ago. Raises OSError.
        """
        self._sync_directories()
        synced = 0
        for file in list(self.cache.dirty):
            pages = (file.high >> 12) - (file.synced_high >> 12)
            if (
                least_pages == 0
                or pages >= least_pages
                or file.high == self._segment_bytes
                or file in self.cache.rewritten
            ):
                synced += self.cache.sync(file)
        self.cache.wait_evicted()
        return synced

    def _sync_directories(self) -> None:
        if self._ext_segment_bytes is not None:
            for queue in self:
                queue.dispose()
        taken = self.cache.take_directories()
        try:
            for directory in dict.fromkeys(taken):
                try:
                    self._files.sync_directory(directory)
                except FileNotFoundError:  # its topic has been deleted meanwhile
                    continue
        except OSError:
            self.cache.note_directories(taken)
            raise

    def sync_and_drop_caches(
        self, log_offset: int, is_synced: Callable[[ConsumeQueue], bool]
    ) -> None:
        """Before a recovery: sync the files with entries of records at or above `log_offset`, and
        see them as the disk has them; but for queues that `is_synced`. Raises OSError."""
        if self._files.exists(self.directory):
            # A topic's directory may be new and empty: no file in it has its name synced.
            self._files.sync_directory(self.directory)
        kept = KeptEnds(len(self.queues))
        queues = list(self.queues.values())
        for start in range(0, len(queues), _SYNCED_AT_A_TIME):
            unsynced = {
                queue: queue.unsynced_files(log_offset)
                for queue in queues[start : start + _SYNCED_AT_A_TIME]
                if not is_synced(queue)
            }
            files = [file for one in unsynced.values() for file in one]
            paths = [file.path for file in files]
            ends = self._files.synced_ends(paths, self._segment_bytes)
            found = dict(zip(files, ends, strict=True))
            for queue in unsynced:
                queue.dropped_caches(kept, found)
        for queue in self:
            queue.sync_further_files()

    def close(self) -> None:
        """Close all files; what is unsynced stays with the kernel."""
        self.cache.close()

    def _make(self, topic: str, queue_id: int) -> ConsumeQueue:
        place = os.path.join(topic, str(queue_id))
        directory = os.path.join(self.directory, place)
        parts = (self.cache, directory, topic, queue_id, self._segment_bytes)
        if self._ext_segment_bytes is None:
            return ConsumeQueue(*parts)
        directory = os.path.join(self.ext_directory, place)
        ext = ConsumeQueueExt(self._files, self.cache, directory, self._ext_segment_bytes)
        return ExtendedQueue(*parts, ext=ext)


def check_topic(topic: str) -> None:
    """Raise MessageIllegal unless the topic can be a record's topic and a directory's name."""
    if not topic or topic in (".", "..") or "/" in topic or "\0" in topic:
        raise MessageIllegal(f"the topic name {topic!r} is not allowed")
    size = len(topic.encode("utf-8", "surrogatepass"))
    if size > MAX_TOPIC_BYTES:
        raise MessageIllegal(f"the topic name has {size} bytes, {MAX_TOPIC_BYTES} are allowed")
