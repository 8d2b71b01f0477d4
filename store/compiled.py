"""What may be done in the store's place by code that was compiled (`aerobee/native`).

The store is complete without it, and the rules are the store's own: whoever has a compiled form
hands it over when a store is opened. It takes what is plain, as each function says, and leaves the
rest to the code that is read here.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from aerobee.store.log.commit_log import Appended
    from aerobee.store.queues.consume_queue import ConsumeQueue

Made = TypeVar("Made")


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

    def gather(
        self, entries: "list[Appended]", arrival: Callable[[str, int, int, int], Made], /
    ) -> "tuple[list[Made], list[tuple[ConsumeQueue, int, bytes]]]":
        """What has arrived, and of each queue its first slot and the entries for it."""

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
