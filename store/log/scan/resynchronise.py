"""Finds where the log goes on after a record that does not check out; nothing else does.

Up to some log offset, the floor, there were sound records once. A bad record below it is damage,
and the records after it must not be lost with it, as they are in the reference (docs/reliability.md
B1). The next record is found (docs/reliability.md 4, step 4)

(a) where the bad record ends by its own lengths, if all that it says of itself agrees: then its
    content is damaged and nothing else. If not, where one of its lengths, the field or the sum of
    its parts, leads to the beginning of another record, no further than (b), and to the nearer
    record if both do: one flipped bit leaves one of them right, and the other may lead further by
    chance;
(b) else at the next boundary (`boundaries.py`), or at the end of the segment: every segment begins
    with a record;
(c) and in between, for records that no entry names (half messages; all, if the queues are gone): by
    their magic, if a chain of records, damaged ones taken as in (a), leads from a sound one there
    exactly to (b). A message body may hold a forged record made for its own position; a chain to a
    known boundary it cannot hold.

At or above the floor nothing is known to follow, and a crash may have left a part of the last
record. There only sound records count: a sound record by (a), and, for a caller that asks which
records could still be read, a chain of sound records that ends with the written bytes or with the
segment, or is long.

All of it runs in small steps, because a scrub must not keep others from the interpreter.
"""

from collections.abc import Generator
from typing import NamedTuple

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.record_check import BLANK
from aerobee.store.log.scan.boundaries import Boundaries
from aerobee.store.log.scan.segment_reader import ClaimedSizes, SegmentReader

# Sound records in a row that are believed without a known place to lead to.
_LONG_CHAIN = 16


class Resynchroniser(NamedTuple):
    """The search in one segment. A chain of `long_chain` sound records is believed whatever it
    leads to."""

    reader: SegmentReader
    boundaries: Boundaries
    check_crc: int
    long_chain: int = _LONG_CHAIN

    def below_floor(self, bad: int, limit: int) -> Generator[None, None, int]:
        """The place where the log goes on after `bad`, at most `limit`: the floor, or the segment's
        end."""
        claimed = self.reader.claimed_sizes(bad, limit)
        if claimed.agree:
            return bad + claimed.by_field
        known = yield from self.boundaries.after(bad, limit)
        behind = self._behind_itself(bad, known)
        if behind is not None:
            return behind
        for candidate in self.reader.magics(bad + 1, known):
            yield
            if candidate is not None and (yield from self._leads(candidate, known)):
                return candidate
        return known

    def sound_follower(self, bad: int) -> int | None:
        """(a) for a possible torn tail: the place of a sound record after the one at `bad`."""
        for end in _claimed_ends(bad, self.reader.claimed_sizes(bad, self.reader.end)):
            if self._is_sound(end):
                return end
        return None

    def anything_sound(self, bad: int) -> int | None:
        """The place where a chain of sound records begins that need not lead to a known place."""
        written = self.reader.start + self.reader.written_end(bad - self.reader.start)
        failed: set[int] = set()
        for candidate in self.reader.magics(bad + 1, written):
            if candidate is not None and self._is_chain(candidate, written, failed):
                return candidate
        return None

    def _behind_itself(self, bad: int, limit: int) -> int | None:
        """(a): the place where the record at `bad` ends, damaged as it is."""
        claimed = self.reader.claimed_sizes(bad, limit)
        if claimed.agree:
            return bad + claimed.by_field
        ends = _claimed_ends(bad, claimed)
        # A place where a record begins is better than the limit, where none has to begin.
        for end in ends:
            if end < limit and self._begins(end, limit):
                return end
        return limit if limit in ends else None

    def _begins(self, log_offset: int, limit: int) -> bool:
        """Whether a record begins there, sound or damaged in its content."""
        claimed = self.reader.claimed_sizes(log_offset, limit)
        return claimed.agree or self._is_sound(log_offset)

    def _is_sound(self, log_offset: int) -> bool:
        return self.reader.is_sound(log_offset, self.check_crc)

    def _leads(self, start: int, target: int) -> Generator[None, None, bool]:
        """(c): whether records follow each other from a sound one at `start` to `target`."""
        following: int | None = start if self._is_sound(start) else None
        while following is not None and following < target:
            log_offset = following
            try:
                following = log_offset + self.reader.head(log_offset, self.check_crc).size
            except CorruptRecord:
                following = self._behind_itself(log_offset, target)
            yield
        return following == target

    def _is_chain(self, start: int, written: int, failed: set[int]) -> bool:
        """Whether sound records follow each other from `start` far enough; `failed`: not there."""
        log_offset = start
        seen: list[int] = []
        while log_offset not in failed:
            seen.append(log_offset)
            if log_offset >= written and len(seen) > 1:
                return True
            try:
                head = self.reader.head(log_offset, self.check_crc)
            except CorruptRecord:
                break
            if head.kind == BLANK or len(seen) >= self.long_chain:
                return True
            log_offset += head.size
        failed.update(seen)
        return False


def _claimed_ends(bad: int, claimed: ClaimedSizes) -> list[int]:
    """The places where the record at `bad` may end, the nearer first: a damaged length may lead to
    a later record by chance, over all those in between."""
    return sorted([bad + size for size in (claimed.by_field, claimed.by_parts) if size])
