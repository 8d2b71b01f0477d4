"""Reads a commit log from its files, whatever state they are in, and names what it cannot read.

Works on any set of segment files: with some missing, cut short, too long. Sound records are found
as recovery finds them (`log_walk.py` has the reasons): behind a damaged record by (a) the record's
own lengths, (b) the next record that a queue entry names, (c) a chain of sound records that leads
there. Unlike recovery an audit may stand before a log whose queues are gone, and wants to know what
could still be read; so where no entry names anything more, a chain is believed too if it reaches
the end of what was written, or is long.

What lies between two sound records is a gap. What lies behind the last one is the tail: nothing, a
torn write, or damage, which the caller judges.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.record import (
    BLANK,
    BLANK_BYTES,
    CHECK_BODY,
    CHECK_NOTHING,
    Checked,
    scan_records,
)
from aerobee.store.inspect.layout import FoundFile
from aerobee.store.inspect.places import magic_places, own_start
from aerobee.store.inspect.reader import SegmentReader
from aerobee.store.inspect.sources import Sources, Window
from aerobee.store.scan.sequence import Gap


class Batch(NamedTuple):
    """Sound records side by side, and the bytes they are in: the first begins at `at`."""

    records: list[Checked]
    buffer: bytes
    at: int


# Sound records in a row that are believed without a known place to lead to.
_LONG_CHAIN = 16


def nothing_named(_log_offset: int, limit: int) -> int:
    """For logs without queues: no entry names anything."""
    return limit


class LogScan:
    """One reading of a log. `named_after(p, limit)` gives the next place above p, at most `limit`,
    at which a queue entry names a record that names it back.

    Up to `known_end` the log is known to reach. With `torn_above` a bad record from there on is a
    torn tail, as recovery takes it after a crash; otherwise sound records behind it are looked for.
    """

    def __init__(
        self,
        sources: Sources,
        segments: Sequence[FoundFile],
        segment_bytes: int,
        *,
        named_after: Callable[[int, int], int] = nothing_named,
        known_end: int = 0,
        torn_above: bool = False,
        check_crc: int = CHECK_BODY,
    ) -> None:
        self._sources = sources
        self._segments = segments
        self._segment_bytes = segment_bytes
        self._named_after = named_after
        self._known_end = known_end
        self._torn_above = torn_above
        self._check_crc = check_crc
        self.gaps: list[Gap] = []
        # The end of what is sound so far; at last the log's end.
        self.end = segments[0].start if segments else 0
        # Why nothing sound was found at `end`, None as long as nobody has looked there.
        self.end_reason: str | None = None
        self.blanks = 0
        # Segments that hold nothing but zeros, behind the end.
        self.spare: list[FoundFile] = []
        # Behind the end: (file, first position, position behind the last byte that is not zero).
        self.tail: list[tuple[FoundFile, int, int]] = []
        # Segments whose last record is not followed by a blank.
        self.not_closed: list[FoundFile] = []
        # (file, where it belongs) of files that hold another place's records.
        self.misplaced: list[tuple[FoundFile, int]] = []

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Sound records in order, from `start` on (a place where one begins; 0: all).

        Gaps are noted before the batch that follows them is given.
        """
        self.end = max(self.end, start)
        for file in self._segments:
            if file.start + self._segment_bytes <= start:
                continue
            source = self._sources.own(file.path)
            try:
                reader = SegmentReader(file, self._segment_bytes, Window(source))
                yield from self._segment(file, reader, max(0, start - file.start))
            finally:
                self._sources.give_back(source)
        if self._segments:
            self._lose_up_to(min(self._known_end, self._limit))

    def records(self, start: int = 0) -> Iterator[tuple[Checked, bytes]]:
        """The same, one by one, each with its bytes."""
        for batch in self.batches(start):
            shift = batch.at - batch.records[0][0]
            for record in batch.records:
                index = record[0] + shift
                yield record, batch.buffer[index : index + record[1]]

    @property
    def _limit(self) -> int:
        """Where the last file ends."""
        return self._segments[-1].start + self._segment_bytes

    def lose_all_up_to(self, known: int) -> None:
        """When all is read: the log is known to have gone on to `known`, behind its last file too.
        What is lost of the files and what is lost with missing ones are two gaps."""
        self._lose_up_to(min(known, self._limit))
        self._lose_up_to(known)

    def _lose_up_to(self, known: int) -> None:
        """What is known to have been there and is not sound is a gap; the log goes on behind it."""
        if known > self.end:
            tail = self.tail
            self._note_gap(known)
            self.end = known
            self.tail = [
                (file, max(position, known - file.start), high)
                for file, position, high in tail
                if file.start + high > known
            ]

    def _segment(self, file: FoundFile, reader: SegmentReader, position: int) -> Iterator[Batch]:
        window, limit = reader.window, reader.limit
        nonzero = -1
        while position <= self._segment_bytes - BLANK_BYTES:
            log_offset = reader.start + position
            try:
                head, index = reader.head_at(position, self._check_crc)
            except CorruptRecord as error:
                if nonzero < 0:
                    nonzero = window.source.last_nonzero(position, limit)
                following = self._after(reader, position, nonzero, error)
                if following is None:
                    self._note_tail(file, position, nonzero)
                    return
                position = following
                continue
            if log_offset != self.end:
                self._note_gap(log_offset)
            if head.kind == BLANK:
                self.blanks += 1
                self.end = reader.end
                return
            # All that lie whole in the window, this one at least.
            end = min(len(window.buffer), index + limit - position)
            records = scan_records(window.buffer, index, log_offset, end, self._check_crc)
            position += records[-1][0] + records[-1][1] - log_offset
            self.end = reader.start + position
            yield Batch(records, window.buffer, index)
        self.end = reader.end
        self.not_closed.append(file)

    def _note_gap(self, log_offset: int) -> None:
        reason = self.end_reason
        if reason is None:
            reason = "the file that held this part is missing"
        self.gaps.append(Gap(self.end, log_offset, reason))
        self.end_reason = None
        self.tail = []
        self.spare = []

    def _note_tail(self, file: FoundFile, position: int, nonzero: int) -> None:
        """Nothing sound follows in this file."""
        if nonzero > position:
            self.tail.append((file, position, nonzero))
        elif position == 0:
            self.spare.append(file)

    # --- behind a bad record ----------------------------------------------------------------

    def _after(
        self, reader: SegmentReader, bad: int, nonzero: int, error: CorruptRecord
    ) -> int | None:
        """Position of the next sound record or blank behind `bad`, None if there is none."""
        if self.end_reason is None:
            self.end_reason = str(error)
        if nonzero <= bad or (bad == 0 and self._is_misplaced(reader, nonzero)):
            return None
        if self._torn_above and reader.start + bad >= self._known_end:
            return None
        behind = self._behind_itself(reader, bad)
        if behind is not None:
            return behind
        limit = self._named_after(reader.start + bad, reader.end)
        known = limit - reader.start if limit < reader.end else None
        failed: set[int] = set()
        end = nonzero if known is None else known
        for candidate in magic_places(reader, bad + 1, end):
            if self._chain_leads(reader, candidate, known, nonzero, failed):
                return candidate
        return known

    def _is_misplaced(self, reader: SegmentReader, nonzero: int) -> bool:
        """Whether the file holds the records of another place."""
        others = {file.start: file for file in self._segments if file.path != reader.path}
        own = own_start(self._sources, reader, others, nonzero)
        if own == reader.start:
            return False
        self.misplaced.append((FoundFile(reader.path, reader.start, reader.limit), own))
        return True

    def _behind_itself(self, reader: SegmentReader, bad: int) -> int | None:
        """(a): where the next record begins if only this one's body is damaged."""
        try:
            following = bad + reader.head_at(bad, CHECK_NOTHING)[0].size
            if reader.start + following == self._known_end:
                return following
            reader.head_at(following, self._check_crc)
        except CorruptRecord:
            return None
        return following

    def _chain_leads(
        self,
        reader: SegmentReader,
        candidate: int,
        known: int | None,
        nonzero: int,
        failed: set[int],
    ) -> bool:
        """Whether sound records follow each other from `candidate` to a place that is known."""
        position = candidate
        seen: list[int] = []
        while position not in failed:
            seen.append(position)
            if position == known or (known is None and position >= nonzero and len(seen) > 1):
                return True
            if known is not None and position > known:
                break
            try:
                head, _ = reader.head_at(position, self._check_crc)
            except CorruptRecord:
                break
            if known is None and (head.kind == BLANK or len(seen) >= _LONG_CHAIN):
                return True
            position += head.size
        failed.update(seen)
        return False


def first_store_ms(sources: Sources, file: FoundFile, segment_bytes: int) -> int:
    """Store time of a segment's first record, 0 if it does not begin with a sound one."""
    source = sources.own(file.path)
    try:
        head, _ = SegmentReader(file, segment_bytes, Window(source)).head_at(0, CHECK_NOTHING)
    except CorruptRecord:
        return 0
    finally:
        sources.give_back(source)
    return head.store_timestamp_ms
