"""Compares the entries that follow from the log with those of a queue, and yields the differences.

The use of a difference is a policy: recovery writes what is missing, the scrub has the queue's
owner look at it, the audit names it.
"""

from collections.abc import Iterator
from typing import NamedTuple

from aerobee.store.queues.queue_view import ENTRY_BYTES


class Difference(NamedTuple):
    """A queue offset whose entry is not the `expected` one; `found` is empty above the end."""

    offset: int
    expected: bytes
    found: bytes


def differences(first: int, expected: bytes, found: bytes) -> Iterator[Difference]:
    """The differences of the entries from the queue offset `first` on."""
    if expected == found:
        return
    for position in range(0, len(expected), ENTRY_BYTES):
        one = expected[position : position + ENTRY_BYTES]
        other = found[position : position + ENTRY_BYTES]
        if one != other:
            yield Difference(first + position // ENTRY_BYTES, one, other)
