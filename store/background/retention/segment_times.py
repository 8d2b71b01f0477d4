"""Finds when the last message of a commit log segment was stored: its expiry is counted from that.

The reference counts from the file's modification time, which copying and restoring change
(store/FORMAT.md 8.6, defect 10). Here the messages decide. Store times never go back within a
segment, so the time of its last record lies between those of the segment's first record and the
next segment's. The latter, a cheap upper bound, is taken; if the clock was set back in between, the
segment's own first. If neither can be read, the modification time is taken.

A time that is still to come is from a wrong clock that was set back since. Nobody can wait for it:
a segment with the year 2040 would keep all segments after it. The log is in the order of time, so
`dated` takes the time of the next segment whose own time has come.

Threads: any; files are read through the reader's own descriptors, never through a mapping.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.record_check import RECORD, check_record
from aerobee.protocol.message.record_layout import BLANK_BYTES
from aerobee.store.disk.files import Files

#: The origin of a time: a message, or the file.
MESSAGE, FILE, LATER = "message", "file", "later message"


class SegmentPlace(NamedTuple):
    """A segment file; `end` is the log offset after its last byte."""

    path: str
    start: int
    end: int


class LastStored(NamedTuple):
    """A time in milliseconds since the epoch, and its origin (MESSAGE, FILE or LATER)."""

    time_ms: int
    source: str


def last_stored(files: Files, segment: SegmentPlace, following: SegmentPlace) -> LastStored:
    """The latest time at which the last message of a full `segment` was stored. Raises OSError."""
    times = [
        time_ms
        for time_ms in (begun_ms(files, segment), begun_ms(files, following))
        if time_ms is not None
    ]
    if times:
        return LastStored(max(times), MESSAGE)
    return LastStored(files.modified_ms(segment.path), FILE)


def dated(
    segments: Sequence[SegmentPlace],
    number: int,
    now_ms: int,
    last_stored_of: Callable[[SegmentPlace, SegmentPlace], LastStored],
) -> LastStored:
    """The time at which the last message of the full segment `number` was stored, as seen at
    `now_ms`.

    It is above `now_ms` if no segment after it tells. `last_stored_of` may raise OSError.
    """
    own = last_stored_of(segments[number], segments[number + 1])
    if own.time_ms <= now_ms:
        return own
    for segment, following in pairwise(segments[number + 1 :]):
        found = last_stored_of(segment, following)
        if found.time_ms <= now_ms:
            return LastStored(found.time_ms, LATER)
    return own


def begun_ms(files: Files, segment: SegmentPlace) -> int | None:
    """Store time of the segment's first message; None if it does not begin with a sound message."""
    with files.opened(segment.path, read_only=True) as fd:
        size = int.from_bytes(files.read(fd, 0, 4), "big")
        if not BLANK_BYTES < size <= segment.end - segment.start:
            return None
        record = files.read(fd, 0, size)
    try:
        head = check_record(record, 0, segment.start, len(record))
    except CorruptRecord:
        return None
    return head.store_timestamp_ms if head.kind == RECORD else None
