"""The functions that compiled code may do in the store's place (`aerobee/native`).

The store is complete without it, and the rules are the store's own: the caller that has a compiled
form hands it over when a store is opened. It takes plain input, as each function says, and leaves
the rest to the plain code.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from aerobee.store.log.commit_log import Appended
    from aerobee.store.queues.consume_queue import ConsumeQueue

Made = TypeVar("Made")


class Derived(NamedTuple):
    """The values that follow from sound records side by side: their number, the log offset after
    the last one and its store time; the queues with runs of their claims, as first slot and
    entries, in the order of the log; the number of keys, and the keys to be put (`HASHED` of
    index/layout.py).
    """

    records: int
    end: int
    store_ms: int
    claims: "list[tuple[ConsumeQueue, list[tuple[int, bytes]]]]"
    keys: int
    hashed: bytes


#: Takes the plain records at a position of a buffer, which is a log offset, up to another position
#: at most; None if the first record is not plain.
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
    """The functions of a compiled form."""

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
        """A deriver for one reading of a log; nothing below `derive_from` is derived."""

    def gather(
        self, entries: "list[Appended]", arrival: Callable[[str, int, int, int], Made] | None, /
    ) -> "tuple[list[Made], int, list[tuple[ConsumeQueue, int, bytes]]]":
        """The arrivals (nothing, for None), their number, and for each queue its first slot and its
        entries."""

    def put_keys(
        self,
        entries: "list[Appended]",
        file: Any,
        prefixes: Mapping[str, int],
        prefix_of: Callable[[str], int],
        hash_of: Callable[[int, str], int],
        /,
    ) -> None:
        """Put the keys of all entries into an `IndexFile`, which has room for them."""

    def put_hashed(self, hashed: bytes, first: int, most: int, file: Any, /) -> None:
        """Put `most` of the keys in `hashed` into an `IndexFile`, which has room for them."""

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
        """Complete records like `PreparedBatch.placed`, and copy them like `MappedFile.append`; see
        `native/placing.pyx`."""
