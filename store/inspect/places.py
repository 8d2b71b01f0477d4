"""Whose segment is it? Tells a file under the name of another from one whose beginning is damaged.

Every record says where in the log it begins. Where the first one of a file says something else than
the file's name, either the file has a wrong name or the record a wrong bit; only the records behind
it know. So they vote: each sound record of the file's beginning for the segment it belongs to.

A file that holds one record only has no others to ask. It is taken for misplaced only if that
explains the other file too: the segment it would be is not in its own place either, or is the same.
"""

from collections import Counter
from collections.abc import Iterator

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.record_check import CHECK_BODY, RECORD, RecordHead
from aerobee.protocol.message.record_layout import (
    LOG_OFFSET_POSITION,
    MAGIC_POSITION,
    MESSAGE_MAGIC,
)
from aerobee.store.inspect.layout import FoundFile
from aerobee.store.inspect.reader import SegmentReader
from aerobee.store.inspect.sources import Sources, Window

MAGIC_BYTES = MESSAGE_MAGIC.to_bytes(4, "big")
_SEARCH_BYTES = 4 << 20
# Records that are asked, and bytes that are searched for them where they are damaged.
_VOTERS = 16
_ELECTION_BYTES = 64 << 20


def magic_places(reader: SegmentReader, start: int, end: int) -> Iterator[int]:
    """Positions in [start, end) that have a record's magic in its place."""
    source = reader.window.source
    position = start + MAGIC_POSITION
    while position < end:
        data = source.read(position, min(_SEARCH_BYTES, end - position) + len(MAGIC_BYTES) - 1)
        found = data.find(MAGIC_BYTES)
        while found >= 0:
            yield position + found - MAGIC_POSITION
            found = data.find(MAGIC_BYTES, found + 1)
        if len(data) < len(MAGIC_BYTES):
            return
        position += min(_SEARCH_BYTES, end - position)


def own_start(
    sources: Sources, reader: SegmentReader, others: dict[int, FoundFile], nonzero: int
) -> int:
    """Where the segment begins that the records of a file belong to; the file's own start if most
    of them do, or if none says anything. `nonzero` is how far the file was written.

    Raises OSError.
    """
    votes: Counter[int] = Counter()
    behind, limit = 0, min(nonzero, _ELECTION_BYTES)
    for position in magic_places(reader, 0, limit):
        if position < behind:
            continue  # in the body of a record
        start = _told_start(reader, position)
        if start is None:
            continue
        head = _head(reader, start, position)
        if head is None:
            continue
        votes[start] += 1
        behind = position + head.size
        if votes.total() == _VOTERS:
            break
    if not votes:
        return reader.start
    (winner, count), *_ = votes.most_common(1)
    if winner == reader.start or count <= votes[reader.start]:
        return reader.start
    alone = votes.total() == 1
    if alone and not _explains(sources, reader, winner, others.get(winner)):
        return reader.start
    return winner


def _told_start(reader: SegmentReader, position: int) -> int | None:
    """Where the file begins by the log offset in the record at `position`, if that can be."""
    window = reader.window
    index = window.locate(position, LOG_OFFSET_POSITION + 8)
    field = window.buffer[index + LOG_OFFSET_POSITION : index + LOG_OFFSET_POSITION + 8]
    if len(field) < 8:
        return None
    start = int.from_bytes(field, "big", signed=True) - position
    return start if start >= 0 and start % (reader.end - reader.start) == 0 else None


def _head(reader: SegmentReader, start: int, position: int) -> RecordHead | None:
    """The sound record at `position`, were the file's start `start`."""
    moved = FoundFile(reader.path, start, reader.limit)
    size = reader.end - reader.start
    try:
        head, _ = SegmentReader(moved, size, reader.window).head_at(position, CHECK_BODY)
    except CorruptRecord:
        return None
    return head if head.kind == RECORD else None


def _explains(sources: Sources, reader: SegmentReader, start: int, other: FoundFile | None) -> bool:
    """Whether the file of `start` is the same file again, or has lost its place as well."""
    if other is None:
        return False
    size = reader.end - reader.start
    source = sources.own(other.path)
    try:
        there = SegmentReader(other, size, Window(source))
        head = _head(there, start, 0)
        if head is None:
            return True
        index = there.window.locate(0, head.size)
        mine = reader.window.locate(0, head.size)
        one = there.window.buffer[index : index + head.size]
        return one == reader.window.buffer[mine : mine + head.size]
    finally:
        sources.give_back(source)
