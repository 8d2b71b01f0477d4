"""What may be done in the store's place by code that was compiled (`aerobee/native`).

The store is complete without it, and the rules are the store's own: whoever has a compiled form
hands it over when a store is opened. It takes what is plain, as each function says, and leaves the
rest to the code that is read here.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from aerobee.store.log.commit_log import Appended
    from aerobee.store.queues.consume_queue import ConsumeQueue

Made = TypeVar("Made")


class Derived(NamedTuple):
    """What follows from sound records side by side: how many they are, the log offset behind the
    last one and its store time; the queues with runs of their claims, as first slot and entries, in
    the order of the log; how many keys there are, and those to be put (`HASHED` of
    index/index_file.py).
    """

    records: int
    end: int
    store_ms: int
    claims: "list[tuple[ConsumeQueue, list[tuple[int, bytes]]]]"
    keys: int
    hashed: bytes


#: Takes the plain records at a position of a buffer, which is a log offset, up to another position
#: at most; None if the first one is not plain.
Take: TypeAlias = Callable[[bytes | memoryview, int, int, int], Derived | None]

#: The queue of a record's topic and queue id, -1 for a record without an entry, and the hash of
#: `topic#`; None if such records are not plain.
PlaceOf: TypeAlias = "Callable[[bytes, int], tuple[ConsumeQueue | None, int] | None]"


class Deriver(Protocol):
    """Reads a log for a recovery or a rebuild; see `native/derive.pyx`."""

    def take(
        self,
        buffer: bytes | memoryview,
        position: int,
        log_offset: int,
        stop: int,
        passed_below: int,
        asked_up_to: int,
        /,
    ) -> Derived | None:
        """The plain records from `position` on that end at or before `stop`."""


class Compiled(Protocol):
    """The functions of one compiled form."""

    def scan(
        self,
        entries: bytes,
        position: int,
        slot: int,
        queue_id: int,
        any_queue: bool,
        codes: frozenset[int] | None,
        memory: memoryview,
        base: int,
        low: int,
        high: int,
        old_below: int,
        room: tuple[tuple[int, int], tuple[int, int]],
        count: int,
        size_sum: int,
        runs: list[tuple[int, int]],
        /,
    ) -> tuple[int, int, int, int, bool]:
        """The part of `Reader._scan_closely` that needs no second look; see `native/reads.pyx`."""

    def deriver(
        self, place_of: PlaceOf, check_body: bool, with_keys: bool, derive_from: int, /
    ) -> Deriver:
        """For one reading of a log, of which nothing below `derive_from` is derived."""

    def gather(
        self, entries: "list[Appended]", arrival: Callable[[str, int, int, int], Made] | None, /
    ) -> "tuple[list[Made], int, list[tuple[ConsumeQueue, int, bytes]]]":
        """What has arrived (nothing, for None), how many that were, and of each queue its first
        slot and the entries for it."""

    def put_keys(
        self,
        entries: "list[Appended]",
        file: Any,
        prefixes: Mapping[str, int],
        prefix_of: Callable[[str], int],
        hash_of: Callable[[int, str], int],
        /,
    ) -> None:
        """Put the keys of all entries into one `IndexFile`, which has room for them."""

    def put_hashed(self, hashed: bytes, first: int, most: int, file: Any, /) -> None:
        """Put `most` of the keys in `hashed` into one `IndexFile`, which has room for them."""

    def place(
        self,
        records: bytearray,
        sizes: list[int],
        memory: memoryview,
        at: int,
        queue_offset: int,
        log_offset: int,
        store_ms: int,
        time_at: int,
        /,
    ) -> None:
        """What `PreparedBatch.placed` completes, copied as `MappedFile.append` does; see
        `native/placing.pyx`."""
