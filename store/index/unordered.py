"""Looks a key up in index files without relying on times that only grow.

They do not where the clock was set back: the times in a file's header do not enclose those of its
entries then, and an entry that is older than what is asked for may have younger ones behind it.
`IndexService.find` stops in both cases, as the reference does. This goes through the whole chain of
the key's slot in every file, for queries that have found nothing otherwise. Not without end: a slot
may have millions of entries, so what is further back than that is not found.

Threads: the store's caller only.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from aerobee.store.index.file import I32_MAX, IndexFile

# Entries that are looked at: some ten milliseconds.
_WALK_MOST = 8192


def candidates(
    files: Sequence[IndexFile], key_hash: int, begin_ms: int, end_ms: int
) -> Iterator[int]:
    """Log offsets with that stored hash whose time may be in the range, newest first."""
    walks = (_chain(file, key_hash, begin_ms, end_ms) for file in reversed(files))
    for log_offset in islice(chain.from_iterable(walks), _WALK_MOST):
        if log_offset is not None:
            yield log_offset


def _chain(file: IndexFile, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
    """One item for each entry of the slot: its log offset, None if it cannot be meant.

    An entry has the seconds since the file's first message. They say nothing of the very first
    (store/FORMAT.md 6.2), of messages stored before that one, or more than 68 years after it.
    """
    number = file.slot(key_hash % file.slots)
    while 0 < number < file.count:
        entry_hash, log_offset, seconds, previous = file.entry(number)
        time_ms = file.begin_ms + seconds * 1000
        fits = begin_ms < time_ms + 1000 and time_ms <= end_ms
        unknown = number == 1 or seconds <= 0 or seconds == I32_MAX
        yield log_offset if entry_hash == key_hash and (fits or unknown) else None
        if previous >= number:
            return
        number = previous
