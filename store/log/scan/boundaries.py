"""Places where records are known to begin: consume queues name them, and the records name the
queue's slot back.

Neither a queue nor the log is believed alone: an entry may be wrong, and a message body may hold a
forged record. Where both agree, a record begins, though its content may be damaged.
"""

from collections.abc import Callable, Generator, Iterable
from heapq import heappop, heappush

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.record_check import CHECK_NOTHING, RECORD, RecordHead
from aerobee.protocol.message.record_layout import SYS_TRANSACTION_PREPARED
from aerobee.store.log.scan.segment_reader import SegmentReader
from aerobee.store.queues.queue_view import NamedRecord, QueueView
from aerobee.store.queues.slots import names_slot

#: Says whether a record is at a log offset with that size and is that queue's message of that queue
#: offset: (queue, queue offset, log offset, size).
NamesBack = Callable[[QueueView, int, int, int], bool]


def named_back(
    reader: SegmentReader,
    queue: QueueView,
    offset: int,
    log_offset: int,
    size: int,
    check_crc: int = CHECK_NOTHING,
) -> RecordHead:
    """The record that an entry of the queue names, if it is in its place and names the entry back.

    Raises CorruptRecord, which says why it is not the queue's message of that offset.
    """
    head = reader.head(log_offset, check_crc)
    if head.kind != RECORD:
        raise CorruptRecord(f"the rest of the segment at {log_offset} is blank")
    if head.size != size:
        raise CorruptRecord(
            f"the record at {log_offset} has {head.size} bytes, the unit says {size}"
        )
    if head.sys_flag & SYS_TRANSACTION_PREPARED:
        raise CorruptRecord(f"the record at {log_offset} says it is a half message")
    buffer, index = reader.record_bytes(log_offset, size)
    if not names_slot(buffer, index, head, queue.topic, queue.queue_id, offset):
        raise CorruptRecord(
            f"the record at {log_offset} says it is message {head.queue_offset} of "
            f"{head.topic}/{head.queue_id}"
        )
    return head


class Boundaries:
    """The boundaries that `queues` name. If a scan asks with growing log offsets, it seldom looks
    at each queue."""

    def __init__(self, queues: Callable[[], Iterable[QueueView]], names_back: NamesBack) -> None:
        self._queues = queues
        self._names_back = names_back
        # The next entry of each queue that names a record after the last question, nearest first:
        # (log offset, number of the queue, queue offset, size).
        self._ahead: list[tuple[int, int, int, int]] | None = None
        self._in_order: list[QueueView] = []
        self._asked = 0

    def after(self, log_offset: int, limit: int) -> Generator[None, None, int]:
        """The next boundary in (log_offset, limit), `limit` without one; in small steps.

        Raises OSError.
        """
        if self._ahead is None or log_offset < self._asked:
            self._ahead = []
            self._in_order = list(self._queues())
            for number, queue in enumerate(self._in_order):
                self._look_ahead(number, queue.first_at(log_offset + 1))
                yield
        self._asked = log_offset
        ahead = self._ahead
        while ahead and ahead[0][0] < limit:
            place, number, offset, size = ahead[0]
            queue = self._in_order[number]
            is_behind = place <= log_offset
            if not is_behind and self._names_back(queue, offset, place, size):
                return place
            heappop(ahead)
            following = queue.first_at(log_offset + 1) if is_behind else offset + 1
            self._look_ahead(number, max(following, offset + 1))
            yield
        return limit

    def _look_ahead(self, number: int, offset: int) -> None:
        """Remember the next entry of a queue, from a queue offset on, that names a record."""
        queue = self._in_order[number]
        named = queue.first_named(offset, queue.max_offset)
        if named is not None and self._ahead is not None:
            heappush(self._ahead, (named.log_offset, number, named.queue_offset, named.size))


def last_boundary(
    queues: Iterable[QueueView], names_back: NamesBack, least: int
) -> tuple[int, tuple[QueueView, int] | None]:
    """(log offset after the last record that an entry names and that names it back, that entry's
    queue and queue offset); `least` and None if no such record ends above `least`. Raises
    OSError."""
    last = [(one, queue) for queue in queues if (one := queue.last_named(queue.max_offset))]
    best, entry = least, None
    # Youngest first: the first entry that is named back mostly decides.
    for newest, queue in sorted(last, key=lambda item: -item[0].log_offset):
        named: NamedRecord | None = newest
        while named is not None and named.log_offset >= best:
            offset, log_offset, size = named
            if names_back(queue, offset, log_offset, size):
                best, entry = log_offset + size, (queue, offset)
                break
            named = queue.last_named(offset)
    return best, entry
