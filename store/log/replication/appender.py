"""A slave's side of replication: takes the blocks of its master into its own log.

    take_whole     a block of whole records, at the tail, is checked and written at once
    room, landed   bytes are gathered in memory (`incoming_bytes.py`), after *written*
    check          whole records are checked and written to the segment, then *written* moves
    dispatch       of what the check derived from them, or of the log, if that is too much

Blocks cut records anywhere. The bytes of a record that is not whole yet stay in memory; when the
connection ends they are forgotten, and the next one goes on from *written*. So *written* is
always where a record begins, and no failure takes a mark back.

Each record is checked by the one scanner of the log: place, lengths, CRC. One that does not check
out ends the connection (`BlockDamaged`), and the master is asked once more. When the same bytes
come again, they are damaged on the master too: they are taken as they are, as a reported gap up to
the next sound record. Nothing sound would come if they were refused for ever.

Byte 0 of a log is always 0, as the first of a record's size. A slave of RocketMQ that asks for log
offset 0 gets the newest segment only, so an empty slave asks for 1, and the first byte is there
already.

Threads: the store's caller only; there is no other writer, because a slave takes no messages.
"""

from typing import NamedTuple, Protocol

from aerobee.protocol.errors import CorruptRecord
from aerobee.store.errors import StoreError
from aerobee.store.log.commit_log import CommitLog, Copied
from aerobee.store.log.compiled import Take
from aerobee.store.log.replication.incoming_bytes import MOST_BYTES, IncomingBytes
from aerobee.store.log.scan.incoming import NO_BOUNDARIES, IncomingReader, Part
from aerobee.store.log.scan.log_scanner import LogScanner, OneSegment
from aerobee.store.log.store_core import StoreCore
from aerobee.store.segments.mapped_file import MappedFile

# A check of this many bytes takes a fraction of a millisecond.
_STEP_BYTES = 256 << 10
# The bytes of a bad record that are kept, to see whether the same bytes come again.
_COMPARED_BYTES = 1 << 20
# Damage that is longer than this is passed over at once; nobody waits for a sound record.
_MOST_DAMAGED_BYTES = 16 << 20


class BlockRefused(StoreError):
    """A block does not go on where this log ends; the connection ends."""


class BlockDamaged(StoreError):
    """A block holds what is no sound record; the connection ends, and the master is asked again."""


class Checking(NamedTuple):
    """How records are checked: one of the CHECK_ values, and the compiled form's function for it,
    which derives what dispatch needs."""

    crc_check: int
    take: Take | None


class GapReports(Protocol):
    """Remembers damage of the log (`reading/damage.py`)."""

    def note_gap(self, start: int, end: int, reason: str) -> None:
        """The log holds no usable record in [start, end)."""


class _Suspect(NamedTuple):
    """Bytes that were no sound record at a log offset."""

    log_offset: int
    data: bytes


class Appender:
    """Appends the blocks of one master. Made when the store is open."""

    def __init__(
        self, core: StoreCore, commit_log: CommitLog, checking: Checking, damage: GapReports
    ) -> None:
        self._log = commit_log
        self._marks = core.marks
        self._segments = core.segments
        self._segment_bytes = core.segments.segment_bytes
        self._damage = damage
        self._crc_check, self._take = checking
        # Whether the master hears of what is durable, not of what is written.
        self._acks_durable = core.settings.ha_ack_durable
        # The first report of the connection.
        self._asked = 0
        # Bytes that have landed, from *written* on.
        self._incoming = IncomingBytes(core.marks.written)
        # The bytes of the block that are still to come.
        self._left = 0
        self._suspect: _Suspect | None = None
        # While damaged bytes of the master are passed: when to look again for what is sound.
        self._look_at = 0
        self.gaps = 0

    # --- the connection -----------------------------------------------------------------------

    @property
    def written(self) -> int:
        """Log offset from which the master is asked."""
        return self._marks.written

    @property
    def unwritten(self) -> int:
        """Bytes that have landed, and are not part of whole checked records yet."""
        return max(0, self._incoming.landed - self._marks.written)

    @property
    def report(self) -> int:
        """The offset that the master is told: up to there this log has its bytes, and has synced
        them where that is promised. Not below what it was asked for."""
        marks = self._marks
        return max(self._asked, marks.durable if self._acks_durable else marks.written)

    @property
    def may_ask(self) -> bool:
        """Whether *written*, from which the master is asked, may be reported."""
        return not self._acks_durable or self._marks.durable >= self._marks.written

    @property
    def is_empty(self) -> bool:
        """Whether the log has no segment: then it begins where the master's does."""
        return not self._segments.segments

    @property
    def expected(self) -> int:
        """The log offset of the next block."""
        return self._incoming.landed + self._left

    def connect(self, asked: int) -> None:
        """A connection begins, on which the master is asked for `asked`: *written*, or for an empty
        log the place where it begins. What was not whole is forgotten."""
        # A log that has no whole record yet goes on at 1, too: its first byte is there.
        assert asked == self.written or self.is_empty or (self.written, asked) == (0, 1)
        self._asked = asked
        self._left = self._look_at = 0
        # Byte 0 of a log is 0.
        self._incoming.begin(0, b"\0") if asked == 1 else self._incoming.begin(asked)

    def block(self, log_offset: int, size: int) -> None:
        """A block begins, or with size 0 a sign of life is there. Raises BlockRefused."""
        assert self._left == 0
        landed = self._incoming.landed
        if log_offset != landed and not (self.is_empty and landed == 0):
            raise BlockRefused(
                f"the master sends what begins at {log_offset}, and this log goes on at {landed}"
            )
        begin = log_offset - log_offset % self._segment_bytes
        if log_offset + size > begin + self._segment_bytes:
            raise BlockRefused(
                f"the block of {size} bytes at {log_offset} reaches over the end of a segment of "
                f"{self._segment_bytes} bytes: the master's segments have another size; "
                "commit_log_segment_bytes (mappedFileSizeCommitLog) has to be the master's"
            )
        if size and self.is_empty:
            self._begin_at(log_offset, begin)
        self._left = size

    def take_whole(self, log_offset: int, data: memoryview) -> bool:
        """Take a block that is nothing but whole sound records, as a master with few messages a
        turn sends it, straight from where it was received. False for any other block, of which
        nothing was done: it goes the way of `block`. Raises StoreError."""
        incoming, last, size = self._incoming, self._segments.last, len(data)
        if (
            self._take is None
            or last is None
            or not size
            or len(incoming)
            or self._left
            or self._look_at
            or log_offset != incoming.landed
            or not last.start <= log_offset <= last.end - size
        ):
            return False
        derived = self._take(data, 0, log_offset, size)
        if derived is None or derived.end != log_offset + size:
            return False
        self._log.segment_for_copy(log_offset)
        self._log.copy(last, data, Copied(derived.end, derived.records, derived.store_ms, derived))
        self._suspect = None
        incoming.skip(derived.end)
        return True

    def _begin_at(self, log_offset: int, begin: int) -> None:
        if log_offset == 1:
            return
        if log_offset != begin:
            raise BlockRefused(
                f"the master's first block begins at {log_offset}, which is no segment's beginning"
            )
        self._incoming.begin(begin)

    def room(self) -> memoryview | None:
        """Where the next bytes of the block go; None while their segment is being made. Raises
        StoreError when there is no room for it."""
        landed, last = self._incoming.landed, self._segments.last
        if last is not None and last.end <= landed:
            # Nothing more comes for the segment before: it ends with a record.
            while self.check():
                pass
        begins = self.is_empty
        segment = self._log.segment_for_copy(landed)
        if segment is None:
            return None
        if begins and segment.start:
            self._marks.begin(segment.start)
        room = self._incoming.room(self._left)
        if not len(room):
            raise BlockDamaged(f"no record ends within {MOST_BYTES} bytes after {self.written}")
        return room

    @property
    def left(self) -> int:
        """The bytes of the block that are still to come."""
        return self._left

    def landed(self, size: int) -> None:
        """Note that `size` bytes are in the room."""
        assert 0 < size <= self._left
        self._left -= size
        self._incoming.added(size)

    # --- checking -----------------------------------------------------------------------------

    def check(self) -> bool:
        """Check some of the records that are whole, and move *written* past them; whether there are
        more. Raises BlockDamaged, or StoreBroken."""
        incoming = self._incoming
        if not len(incoming) or incoming.landed < self._look_at:
            return False
        segment = self._segments.find(incoming.start)
        if segment is None:
            # Only byte 0 of a log that has no segment yet.
            return False
        if not self._look_at and self._sound(segment):
            return True
        if not len(incoming):
            return False
        return self._rest(segment, IncomingReader(segment, incoming.start, incoming.view))

    def _sound(self, segment: MappedFile) -> bool:
        """Take the sound records of a step; whether there may be more."""
        incoming = self._incoming
        before = incoming.start
        stop = before + _STEP_BYTES
        if self._take is not None:
            data = incoming.view
            derived = self._take(data, 0, before, min(len(data), _STEP_BYTES))
            if derived is not None:
                self._keep(segment, Copied(derived.end, derived.records, derived.store_ms, derived))
        if incoming.start >= stop or not len(incoming):
            return bool(len(incoming))
        scan = LogScanner(
            OneSegment(IncomingReader(segment, incoming.start, incoming.view)),
            0,
            NO_BOUNDARIES,
            self._crc_check,
            until=incoming.landed,
            step_bytes=_STEP_BYTES,
            take=self._take,
        )
        found: list[Copied] = []
        for batch in scan.batches(incoming.start):
            checked = None if batch.derived is not None else batch.records
            times = batch.size, batch.last_store_ms
            found.append(Copied(scan.end, *times, batch.derived, checked))
            if scan.end >= stop:
                break
        for copied in found:
            self._keep(segment, copied)
        return bool(found) and incoming.start >= stop and bool(len(incoming))

    def _keep(self, segment: MappedFile, copied: Copied) -> None:
        """Write the bytes up to the end of what was found there."""
        incoming = self._incoming
        if copied.records:
            self._suspect = None
        self._log.copy(segment, incoming.view[: copied.end - incoming.start], copied)
        incoming.drop(copied.end)

    def _rest(self, segment: MappedFile, reader: IncomingReader) -> bool:
        """Judge the bytes that are no whole record: a part of a record, the end of the segment, or
        damage. Whether that was passed over, and there may be more."""
        incoming = self._incoming
        part = reader.part(incoming.start)
        if part is Part.BLANK and incoming.landed == segment.end:
            self._keep(segment, Copied(segment.end))
        if part is not Part.BAD:
            return False
        return self._bad(segment, reader, incoming.start)

    def _bad(self, segment: MappedFile, reader: IncomingReader, at: int) -> bool:
        """The bytes at `at` are no sound record: ask for them once more, then pass over them."""
        try:
            reader.head(at, self._crc_check)
            reason = "the record is not sound"
        except CorruptRecord as error:
            reason = str(error)
        data = bytes(self._incoming.view[:_COMPARED_BYTES])
        suspect = self._suspect
        if suspect is None or suspect.log_offset != at:
            self._suspect = _Suspect(at, data)
            raise BlockDamaged(f"{reason}; the master is asked for it once more")
        if suspect.data[: len(data)] != data[: len(suspect.data)]:
            self._suspect = _Suspect(at, data)
            raise BlockDamaged(f"{reason}, and it was other bytes than before; asking again")
        return self._pass_over(segment, reader, at, reason)

    def _pass_over(self, segment: MappedFile, reader: IncomingReader, at: int, reason: str) -> bool:
        """The master's own bytes are damaged: go on with the next sound record; whether it is
        here."""
        incoming = self._incoming
        following = reader.following(at, self._crc_check)
        if following is None and len(incoming) > _MOST_DAMAGED_BYTES:
            # The gap goes on; what is behind it is judged on its own.
            following = incoming.landed
        if following is None:
            # Twice as far each time, so that looking costs no more than copying.
            further = max(_STEP_BYTES, len(incoming))
            self._look_at = min(segment.end, incoming.landed + further)
            return False
        self._look_at, self._suspect = 0, None
        self.gaps += 1
        self._damage.note_gap(at, following, f"damaged on the master too: {reason}")
        self._keep(segment, Copied(following))
        return True
