"""Removes whole queues: of deleted topics, of unknown topics, of messages long gone.

A queue leaves in three steps. A worker notes that nobody will miss its entries; on the owner's
thread the queue leaves the table and its directory is renamed, `0` to `0.removed`, so that the
topic may be used again at once; the worker removes the renamed directory. Such a name is no
queue's, neither here nor in RocketMQ; the next start removes what a crash has left of it.

Expired queues (all messages gone with their segments): the reference removes their files and
starts numbering at 0 again, so that a group which has committed 1,000 skips the next 1,000
messages. Here a queue that its topic still has gives up its files too, but begins its next file,
empty, whose name keeps the numbering: no offset is ever given twice. Only queues that no topic has
any more leave wholly.

Threads: the public methods run on a worker, one at a time, and reach the owner's thread through the
call that they get.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from aerobee.protocol.names import WAITING_TOPICS
from aerobee.store.background.retention.queue_trim import QueueTrim
from aerobee.store.background.retention.retention import Retention
from aerobee.store.disk.descriptors import QueueFile
from aerobee.store.disk.owner import OnOwner
from aerobee.store.dispatch.reput import Reput
from aerobee.store.errors import StoreClosed
from aerobee.store.flush.offsets_keeper import OffsetsKeeper
from aerobee.store.log.commit_log import CommitLog
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.queue_view import ENTRY_BYTES
from aerobee.store.queues.snapshot import snapshot

log = logging.getLogger("aerobee.store.background.retention")


class Expired(NamedTuple):
    """A queue without a message left, and its end when that was found out."""

    queue: ConsumeQueue
    end: int


class Left(NamedTuple):
    """A queue that has left the table, and the directories to be removed."""

    queue: ConsumeQueue
    paths: list[str]


class QueueCleaner:
    """Removes queues of an open store, whose `retention` shares trimmer and removal with it.

    `dispatch`, called on the owner's thread, dispatches what is pending, and its arrivals are not
    lost.
    """

    def __init__(
        self,
        retention: Retention,
        commit_log: CommitLog,
        offsets: OffsetsKeeper,
        reput: Reput,
        dispatch: Callable[[], None],
    ) -> None:
        self._retention = retention
        self._store = retention.store
        self._log = commit_log
        self._offsets = offsets
        self._reput = reput
        self._dispatch = dispatch
        self._one_at_a_time = threading.Lock()

    def remove_topics(
        self,
        topics: Iterable[str],
        on_owner: OnOwner,
        confirm: Callable[[str], bool] = lambda _topic: True,
    ) -> int:
        """Remove all queues of the topics; return their number. Their messages stay in the log,
        unseen, and numbering begins at 0 if a topic is used again.

        `confirm` is called on the owner's thread, in the step in which the queues leave. Raises
        OSError; a queue whose files could not be taken away is still there then.
        """
        wanted = frozenset(topics)
        with self._one_at_a_time:
            self._check_open()
            self._forget([queue for queue in self._store.queues if queue.topic in wanted])
            return self._remove(partial(self._topics_leave, wanted, confirm), on_owner)

    def remove_older(self, deletions: Mapping[str, int], on_owner: OnOwner) -> int:
        """Remove the queues that have messages from before the deletion of their topic alone;
        return their number. `deletions` has the log offset of each topic's deletion. Raises
        OSError."""
        with self._one_at_a_time:
            self._check_open()
            older = [one for one in list(self._store.queues) if _is_older(one, deletions)]
            if not older:
                return 0
            self._forget(older)
            return self._remove(partial(self._older_leave, older, deletions), on_owner)

    def clean_expired(self, on_owner: OnOwner, in_use: Callable[[str, int], bool]) -> int:
        """Free the files of all queues without a message left, but the delay queues'; return how
        many.

        `in_use(topic, queue id)` says on the owner's thread whether a topic has such a queue.
        Raises OSError.
        """
        with self._one_at_a_time, self._retention.busy:
            self._check_open()
            expired = self._expired()
            unused = on_owner(
                lambda: [one for one in expired if not in_use(one.queue.topic, one.queue.queue_id)]
            )
            self._forget([one.queue for one in unused])
            removed = self._remove(partial(self._queues_leave, unused), on_owner)
            used = [one for one in expired if one not in unused]
            return removed + self._begin_anew(used, on_owner)

    def close(self) -> None:
        """Wait for the removal under way; refuse all later ones. `removal` was stopped before."""
        with self._one_at_a_time:
            return

    def _check_open(self) -> None:
        if self._store.health.broken is not None:
            raise self._store.health.broken
        if self._retention.removal.stopping:
            raise StoreClosed("the store is closed")

    # --- leaving ----------------------------------------------------------------------------

    def _forget(self, queues: Sequence[ConsumeQueue]) -> None:
        """Worker: write down, before they go, that the entries of these queues are no loss."""
        offsets = self._offsets
        offsets.leaving = sum([queue.max_offset for queue in queues])
        with ExitStack() as stack:
            offsets.forget_queues(
                [stack.enter_context(snapshot(self._store.files, queue)) for queue in queues],
                self._log.marks.written,
            )

    def _remove(self, leave: Callable[[], list[Left]], on_owner: OnOwner) -> int:
        store, removal = self._store, self._retention.removal
        try:
            gone = on_owner(leave)
        finally:
            on_owner(self._left)
        paths = [path for one in gone for path in one.paths]
        topics = sorted({os.path.dirname(path) for path in paths})
        for directory in topics:
            removal.sync_directory(directory)
        for path in paths:
            store.files.remove_tree(path)
        for directory in topics:
            on_owner(partial(self._remove_if_empty, directory))
        for directory in sorted({os.path.dirname(directory) for directory in topics}):
            removal.sync_directory(directory)
        if gone:
            self._retention.save_offsets()
        for one in gone:
            log.info("queue removed topic=%s queue=%d", one.queue.topic, one.queue.queue_id)
        return len(gone)

    def _topics_leave(self, topics: frozenset[str], confirm: Callable[[str], bool]) -> list[Left]:
        """Owner: take the queues of the topics out of the table; their files are no queue's any
        more."""
        self._dispatch()
        confirmed = {topic for topic in topics if confirm(topic)}
        for topic in confirmed:
            self._log.forget_queue_of(topic)
        return self._leave([queue for queue in self._store.queues if queue.topic in confirmed])

    def _older_leave(
        self, older: Sequence[ConsumeQueue], deletions: Mapping[str, int]
    ) -> list[Left]:
        """Owner: take queues out that have not got a message of the new topic meanwhile."""
        self._dispatch()
        still = [one for one in older if _is_older(one, deletions)]
        for topic in {one.topic for one in still}:
            self._log.forget_queue_of(topic)
        return self._leave(still)

    def _queues_leave(self, expired: Sequence[Expired]) -> list[Left]:
        """Owner: take queues out that have not got a message meanwhile."""
        return self._leave([one.queue for one in expired if self._is_idle(one)])

    def _leave(self, queues: Sequence[ConsumeQueue]) -> list[Left]:
        self._log.forget_copies()
        return [Left(queue, self._store.queues.take_out(queue)) for queue in queues]

    def _left(self) -> None:
        """Owner: let the marks count the queues that are there now."""
        self._reput.count_again()
        self._offsets.leaving = 0

    def _remove_if_empty(self, directory: str) -> None:
        """Owner, which alone makes directories: remove the directory of a topic without queues."""
        if not self._store.files.names(directory):
            self._store.files.remove_tree(directory)

    # --- expired ----------------------------------------------------------------------------

    def _expired(self) -> list[Expired]:
        """Worker: queues with files whose messages have all gone from the log."""
        log_min = self._log.min_offset
        found = []
        for queue in self._store.queues:
            if queue.topic in WAITING_TOPICS or _holds_a_number_only(queue):
                continue
            try:
                with snapshot(self._store.files, queue) as copy:
                    if copy.segments and copy.first_at(log_min) == copy.max_offset:
                        found.append(Expired(queue, copy.max_offset))
            except FileNotFoundError:  # its topic has been deleted meanwhile
                continue
        return found

    def _is_idle(self, one: Expired) -> bool:
        """Owner: whether nothing has come, or is on its way, since the queue was found expired."""
        queue, end = one
        known = self._store.queues.get(queue.topic, queue.queue_id)
        return known is queue and queue.max_offset == queue.next_offset == end

    def _begin_anew(self, used: Sequence[Expired], on_owner: OnOwner) -> int:
        store, trimmer = self._store, self._retention.trimmer
        trims = on_owner(partial(self._begin_next_files, used))
        for trim in trims:
            # Its length and its name hold the numbering: on the disk before the others go.
            with store.files.opened(trim.queue.segments[-1].path, read_only=True) as fd:
                store.files.sync(fd)
            self._retention.removal.sync_directory(trim.queue.directory)
        on_owner(partial(trimmer.apply, trims))
        if trims:
            self._retention.save_offsets()
        trimmer.dispose(at_once=True)
        return len(trims)

    def _begin_next_files(self, used: Sequence[Expired]) -> list[QueueTrim]:
        """Owner: let idle queues go on in their next file, which is empty; return what they give
        up."""
        trims = []
        for one in used:
            if self._is_idle(one):
                trims.append(self._begin_next_file(one.queue))
        self._reput.count_again()
        return trims

    def _begin_next_file(self, queue: ConsumeQueue) -> QueueTrim:
        before = queue.segments
        start = before[-1].end
        file = QueueFile(queue.directory, start, queue.segment_bytes)
        self._store.queues.cache.create(file, queue.segment_bytes)
        queue.segments = (*before, file)
        first = start // ENTRY_BYTES
        queue.next_offset = queue.max_offset = queue.min_offset = first
        return QueueTrim(queue, before, first)


def _is_older(queue: ConsumeQueue, deletions: Mapping[str, int]) -> bool:
    """Whether the newest message is from before the deletion of its topic. A queue without messages
    stays: they may have been either topic's."""
    deleted_at = deletions.get(queue.topic)
    if deleted_at is None or not queue.max_offset:
        return False
    entry = queue.entry(queue.max_offset - 1)
    return entry is not None and entry.log_offset < deleted_at


def _holds_a_number_only(queue: ConsumeQueue) -> bool:
    """Whether the queue was emptied before, and nothing has come since."""
    segments = queue.segments
    return len(segments) == 1 and segments[0].start == queue.max_offset * ENTRY_BYTES
