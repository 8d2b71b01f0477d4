"""Tells a segment under the name of another from a segment whose beginning is damaged.

Every record says where in the log it begins. If a file's first record disagrees with the file's
name, either the file has a wrong name or the record a wrong bit; only the records after it can
tell. So they vote: each sound record of the file's beginning for the segment it belongs to.

A file with a single record has no others to ask. It is taken for misplaced only if that explains
the other file too: the segment that it would be is not in its own place either, or is a copy.
"""

from collections import Counter

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.record_check import CHECK_BODY, RECORD, RecordHead
from aerobee.store.inspect.store_layout import FoundFile
from aerobee.store.log.scan.segment_reader import FileReader, SegmentReader
from aerobee.store.log.scan.sources import Sources, Window

# The number of records that vote, and the bytes that are searched for them if they are damaged.
_VOTERS = 16
_ELECTION_BYTES = 64 << 20


def own_start(
    sources: Sources, reader: FileReader, others: dict[int, FoundFile], written: int
) -> int:
    """The start of the segment that a file's records belong to; the file's own start if most of
    them belong there, or none tells. `written` is the end of the written part.

    Raises OSError.
    """
    votes: Counter[int] = Counter()
    behind = reader.start
    for place in reader.magics(reader.start, reader.start + min(written, _ELECTION_BYTES)):
        if place is None or place < behind:
            continue  # in the body of a record
        start = _claimed_start(reader, place)
        if start is None:
            continue
        head = _head(reader.moved_to(start), place - reader.start)
        if head is None:
            continue
        votes[start] += 1
        behind = place + head.size
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


def _claimed_start(reader: FileReader, place: int) -> int | None:
    """The start of the file by the log offset in the record at `place`, if that is possible."""
    own = reader.own_place(place)
    start = -1 if own is None else own - (place - reader.start)
    return start if start >= 0 and start % reader.size == 0 else None


def _head(reader: SegmentReader, position: int) -> RecordHead | None:
    """The sound record at a position of the file, None without one."""
    try:
        head = reader.head(reader.start + position, CHECK_BODY)
    except CorruptRecord:
        return None
    return head if head.kind == RECORD else None


def _explains(sources: Sources, reader: FileReader, start: int, other: FoundFile | None) -> bool:
    """Whether the file of `start` is a copy of this file, or has lost its place as well."""
    if other is None:
        return False
    source = sources.own(other.path)
    try:
        there = FileReader(
            path=other.path,
            start=start,
            size=reader.size,
            file_bytes=other.size,
            window=Window(source),
        )
        head = _head(there, 0)
        if head is None:
            return True
        (one, at), (mine, mine_at) = there.at(0, head.size), reader.at(0, head.size)
        return one[at : at + head.size] == mine[mine_at : mine_at + head.size]
    finally:
        sources.give_back(source)
