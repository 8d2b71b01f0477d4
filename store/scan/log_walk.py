"""Reads the commit log from a position to its end, and tells damage from a torn tail.

A record that does not check out above the `floor` is where the log ends: a crash left it, nothing
behind it was promised to anybody. Below the floor, where sound records are known to follow, it is
damage: what stands behind it must not be lost with it, as it is in the reference
(docs/reliability.md B1).

Finding the next sound record (docs/reliability.md 4, step 4):
(a) where it ends by its own lengths, if all it says of itself agrees: then its content is damaged
    and nothing else. If not, where one of its lengths, the field or the sum of its parts, leads to
    the beginning of another record: one flipped bit leaves one of the two right;
(b) else the next position that a consume queue entry names and that names the entry back, or the
end
    of the segment: every segment begins with a record;
(c) and in between, records that no entry names (half messages; all, if the queues are gone): by
    their magic, if a chain of records, damaged ones taken as in (a), leads from a sound one there
    exactly to (b). A message body may hold a forged record made for its own position; a chain to a
    known boundary it cannot hold.
"""

from collections.abc import Callable, Iterator

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.record import (
    BLANK,
    MAGIC_POSITION,
    MESSAGE_MAGIC,
    Checked,
    RecordHead,
    Told,
    check_record,
    scan_records,
    told_sizes,
)
from aerobee.store.scan.sequence import Gap
from aerobee.store.segments.mapped_file import MappedFile
from aerobee.store.segments.mapped_file_queue import MappedFileQueue

# The disk reads this much while as much before it is being looked at.
_AHEAD_BYTES = 8 << 20

_MAGIC_BYTES = MESSAGE_MAGIC.to_bytes(4, "big")


def check_at(segment: MappedFile, log_offset: int, check_crc: int) -> RecordHead:
    """The head of the record or blank at `log_offset`; CorruptRecord if there is none."""
    position = log_offset - segment.start
    head = check_record(segment.view, position, log_offset, segment.size, check_crc)
    if head.kind == BLANK and position + head.size != segment.size:
        raise CorruptRecord(f"blank at {log_offset} does not end with its segment")
    return head


class LogWalk:
    """One walk. `named_after(p, limit)` gives the next boundary of (b) above p, at most `limit`.

    `lenient`: all that was ever stored is there, so a bad record above the floor that a sound one
    follows is damage as well. Only (a) counts for that, with a sound follower: up there no entry
    names a boundary, a chain to nowhere in particular a forged record could begin, too, and of the
    very last record a killed process may have stored a part.
    """

    def __init__(
        self,
        segments: MappedFileQueue,
        floor: int,
        named_after: Callable[[int, int], int],
        check_crc: int,
        *,
        lenient: bool = False,
    ) -> None:
        self._segments = segments
        self._floor = floor
        self._named_after = named_after
        self._check_crc = check_crc
        self._lenient = lenient
        self.gaps: list[Gap] = []
        # Log offset behind the last record of the last batch.
        self.position = floor
        # Where the walk ended, and why there: None for the end of the last segment.
        self.end = floor
        self.end_reason: str | None = None

    def records(self, start: int) -> Iterator[Checked]:
        """Sound records from `start` on, in order; sets `end` at last."""
        for batch in self.batches(start):
            yield from batch

    def batches(self, start: int) -> Iterator[list[Checked]]:
        """The same, many at a time; damage is met between two batches."""
        log_offset = asked = start
        while (segment := self._segments.find(log_offset)) is not None:
            position = log_offset - segment.start
            if log_offset >= asked:
                asked = log_offset + _AHEAD_BYTES
                segment.read_ahead(position, 2 * _AHEAD_BYTES)
            batch = scan_records(segment.view, position, log_offset, segment.size, self._check_crc)
            if batch:
                log_offset = self.position = batch[-1][0] + batch[-1][1]
                yield batch
                continue
            try:
                head = check_at(segment, log_offset, self._check_crc)
            except CorruptRecord as error:
                if log_offset < self._floor:
                    following = self._resynchronise(segment, log_offset)
                else:
                    behind = self._sound_follower(segment, log_offset)
                    if behind is None or not self._lenient:
                        self.end_reason = str(error)
                        break
                    following = behind
                self.gaps.append(Gap(log_offset, following, str(error)))
                log_offset = following
                continue
            assert head.kind == BLANK
            segment.forget_pages()
            log_offset = segment.end
        self.end = log_offset

    def _resynchronise(self, segment: MappedFile, bad: int) -> int:
        limit = min(self._floor, segment.end)
        behind = self._behind_itself(segment, bad, limit)
        if behind is not None:
            return behind
        known = self._named_after(bad, limit)
        position = bad
        while (position := self._next_magic(segment, position + 1, known)) >= 0:
            if self._chain_leads(segment, position, known):
                return position
        return known

    def _behind_itself(self, segment: MappedFile, bad: int, limit: int) -> int | None:
        """(a): where the record at `bad` ends, damaged as it is."""
        told = self._told(segment, bad, limit)
        if told.is_whole:
            return bad + told.by_field
        ends = [bad + size for size in (told.by_field, told.by_parts) if size]
        # Where a record begins is better than the limit, where nothing has to: a damaged length
        # may lead there by chance, over all the records in between.
        for end in ends:
            if end < limit and self._begins(segment, end, limit):
                return end
        return limit if limit in ends else None

    def _sound_follower(self, segment: MappedFile, bad: int) -> int | None:
        """(a) for what may be the torn tail: a sound record stands behind the one at `bad`."""
        told = self._told(segment, bad, segment.end)
        for size in (told.by_field, told.by_parts):
            if size and self._is_sound(segment, bad + size):
                return bad + size
        return None

    def _told(self, segment: MappedFile, log_offset: int, limit: int) -> Told:
        start = segment.start
        return told_sizes(segment.view, log_offset - start, log_offset, limit - start)

    def _begins(self, segment: MappedFile, log_offset: int, limit: int) -> bool:
        """Whether a record begins there, sound or damaged in its content."""
        return self._told(segment, log_offset, limit).is_whole or self._is_sound(
            segment, log_offset
        )

    def _is_sound(self, segment: MappedFile, log_offset: int) -> bool:
        try:
            check_at(segment, log_offset, self._check_crc)
        except CorruptRecord:
            return False
        return True

    def _next_magic(self, segment: MappedFile, start: int, end: int) -> int:
        """The next log offset in [start, end) with a record's magic in its place, or -1."""
        position = start - segment.start + MAGIC_POSITION
        found = segment.find(_MAGIC_BYTES, position, end - segment.start)
        return -1 if found < 0 else segment.start + found - MAGIC_POSITION

    def _chain_leads(self, segment: MappedFile, start: int, target: int) -> bool:
        """Whether records follow each other from a sound one at `start` exactly to `target`."""
        following: int | None = start if self._is_sound(segment, start) else None
        while following is not None and following < target:
            log_offset = following
            try:
                following = log_offset + check_at(segment, log_offset, self._check_crc).size
            except CorruptRecord:
                following = self._behind_itself(segment, log_offset, target)
        return following == target
