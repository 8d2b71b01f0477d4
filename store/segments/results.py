"""The store's results: plain slotted values whose offsets are what their names say."""

import enum
from typing import NamedTuple, Self

import msgspec

from aerobee.store.segments.mapped_file import MappedFile


class PutResult(msgspec.Struct, gc=False):
    """The place of an append. For a batch: its first record, the sum of sizes, the count.

    `end` is the log offset after the last record: durable once the durable mark has reached it.
    `log_offsets` has an entry for each message of a batch; it is empty for a single message, and
    for a prepared batch, which knows the sizes.
    """

    log_offset: int
    size: int
    end: int
    queue_offset: int
    store_timestamp_ms: int
    count: int = 1
    log_offsets: tuple[int, ...] = ()


class GetStatus(enum.Enum):
    """Outcome of a get; the names are also the remarks of pull answers (store/FORMAT.md 5.7)."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8


class GetResult:
    """Records of one queue, as views into the segments.

    `views` holds whole records; records that lie side by side share one view. `size` is their
    bytes, `count` their number. The views stay valid until `release`, which ends a `with` of the
    result too: it must come once they are sent or copied (a second time is harmless).

    `pending`: the entry at `next_offset` is wrong and its message is being looked for. The caller
    asks again from there, whatever was found before it.
    """

    __slots__ = (
        "_pinned",
        "count",
        "max_offset",
        "min_offset",
        "next_offset",
        "pending",
        "size",
        "status",
        "suggest_slave",
        "views",
    )

    def __init__(
        self, status: GetStatus, next_offset: int, min_offset: int, max_offset: int
    ) -> None:
        self.status = status
        self.next_offset = next_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.size = 0
        self.count = 0
        self.views: list[memoryview] = []
        self.suggest_slave = False
        self.pending = False
        self._pinned: list[MappedFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        self.release()

    def add_view(self, segment: MappedFile, start: int, end: int) -> None:
        """Take the bytes at log offsets [start, end) of `segment`, pinned until `release`."""
        self.views.append(segment.pin(start - segment.start, end - segment.start))
        self._pinned.append(segment)

    def release(self) -> None:
        """Give the views back."""
        for view in self.views:
            view.release()
        for segment in self._pinned:
            segment.unpin()
        self.views = []
        self._pinned = []


class QueryResult(NamedTuple):
    """Records that an index query found, in log order, and how far the index has got."""

    records: list[bytes]
    last_update_timestamp_ms: int
    last_update_log_offset: int


class Arrival(msgspec.Struct, gc=False):
    """A message that has become visible to consumers. Each such message makes an object."""

    topic: str
    queue_id: int
    queue_offset: int
    tags_code: int
