"""The bytes of a master's log that have arrived and are not written yet, side by side in memory.

They begin where this log ends. What was checked is written to the segment with one call and dropped
from here, so a segment holds nothing but what is below *written*, and the pages of its mapping are
not touched: to fill a file through its mapping costs a page fault for each page, eight times what
the call costs.

A record that is not whole stays until it is. The memory grows with it, up to `MOST_BYTES`; the
parts of a longer record are not taken for a record (`incoming.py`).
"""

# Room for two of our own blocks.
_FIRST_BYTES = 1 << 20
#: Longer than any record; RocketMQ's default for a message is 4 MiB at most.
MOST_BYTES = 64 << 20
# The least room that a read gets.
_LEAST_ROOM = 64 << 10


class IncomingBytes:
    """Bytes from the log offset `start` on."""

    def __init__(self, start: int) -> None:
        self._memory = memoryview(bytearray(_FIRST_BYTES))
        self._begin = self._end = 0
        #: Log offset of the first byte, and after the last one.
        self.start = self.landed = start

    def begin(self, start: int, data: bytes = b"") -> None:
        """Forget everything; `data` is known to stand at the log offset `start`."""
        if len(self._memory) > _FIRST_BYTES:
            self._memory = memoryview(bytearray(_FIRST_BYTES))
        self._memory[: len(data)] = data
        self._begin, self._end = 0, len(data)
        self.start, self.landed = start, start + len(data)

    def skip(self, log_offset: int) -> None:
        """Go on at `log_offset`; no bytes are here, and none of those below it will come."""
        assert self._begin == self._end
        self.start = self.landed = log_offset

    def __len__(self) -> int:
        return self._end - self._begin

    @property
    def view(self) -> memoryview:
        """All bytes, until more are added or some dropped."""
        return self._memory[self._begin : self._end]

    def room(self, most: int) -> memoryview:
        """Where the next bytes go, `most` at most; empty when no more fit."""
        least = min(most, _LEAST_ROOM)
        if len(self._memory) - self._end < least:
            self._make_room(least)
        return self._memory[self._end : self._end + most]

    def added(self, size: int) -> None:
        """Note that `size` bytes are in the room."""
        self._end += size
        self.landed += size

    def drop(self, log_offset: int) -> None:
        """Give up the bytes below `log_offset`."""
        self._begin += log_offset - self.start
        self.start = log_offset
        if self._begin == self._end:
            self._begin = self._end = 0

    def _make_room(self, least: int) -> None:
        kept = bytes(self.view)
        if len(kept) + least > len(self._memory):
            size = min(MOST_BYTES, max(2 * len(self._memory), len(kept) + least))
            self._memory = memoryview(bytearray(size))
        self._memory[: len(kept)] = kept
        self._begin, self._end = 0, len(kept)
