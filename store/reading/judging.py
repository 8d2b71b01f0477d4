"""Judges which messages of a queue a filter over properties wants (SQL92 consumers).

Tags are decided by the entries of the consume queue, properties by the records themselves. So the
entries are looked at first, and each gets a verdict in the place of its tags code: then the scan of
`queue_reader.py` takes the wanted entries by that code, as it takes those of a tag. Entries that
cannot be judged are wanted: the scan deals with an entry that names no record of its queue, or a
record that does not add up, and repairs what it can. If the queue has bit maps of filters, a
message that did not meet this filter when it was dispatched is not wanted, whatever its record
says.

Judging takes some microseconds a message, and may be made to take a thousand: an expression of 512
operands, properties of 32 KiB. So its cost is counted by the bytes and operands that it reads, in
tenths of a microsecond on common machines, and the caller sets the limit.

Threads: the store's caller only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from typing import Final

from aerobee.protocol.filters.property_filter import MapTest, MessageFilter
from aerobee.protocol.message.record_layout import (
    MESSAGE_MAGIC,
    MIN_RECORD_BYTES,
    SLOT_FIELDS,
    properties_in,
)
from aerobee.protocol.names import is_light
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.queue_view import ENTRY, ENTRY_BYTES, PRE_BLANK_SIZE, QueueEntry
from aerobee.store.segments.mapped_file import MappedFile
from aerobee.store.segments.mapped_file_queue import MappedFileQueue
from aerobee.store.store_stats import StoreStats

_WANTED, _UNWANTED = 1, 0
#: The codes of wanted entries.
WANTED: Final = frozenset({_WANTED})

# The cost of a message besides its filter; then how many bytes cost 1: of properties, and of a
# record that is checked whole.
_MESSAGE_COST = 35
_MISSED_COST = 10
_PROPERTY_BYTES = 3
_CHECKED_BYTES = 100
_CODE = struct.Struct(">q")
_CODE_POSITION = ENTRY_BYTES - _CODE.size


class Judging:
    """Judges entries by the records that they name."""

    def __init__(
        self,
        segments: MappedFileQueue,
        is_sound: Callable[[ConsumeQueue, int, QueueEntry], bool],
        checked_below: Callable[[MappedFile], int],
        stats: StoreStats,
        map_bytes: int,
    ) -> None:
        """A bit map has `map_bytes`; 0 if there are no bit maps."""
        self._segments = segments
        self._stats = stats
        self._map_bytes = map_bytes
        self._is_sound = is_sound
        self._checked_below = checked_below
        # The cost since `judged` began.
        self._spent = 0

    def judged(
        self,
        queue: ConsumeQueue,
        first: int,
        entries: bytes,
        message_filter: MessageFilter,
        most_wanted: int,
        most_spent: int,
    ) -> tuple[bytes, int]:
        """The first of the entries, which begin at slot `first`, with verdicts; and the cost.

        It ends when `most_wanted` of them are wanted, or a little more than `most_spent` was spent;
        at least one entry is judged.
        """
        verdicts = bytearray(entries)
        self._spent = 0
        place = wanted = 0
        each, matches, pack = message_filter.cost + _MESSAGE_COST, message_filter.matches, _CODE
        missed = self._missed(queue, entries, message_filter.map_test)
        for slot, (log_offset, size, code) in enumerate(ENTRY.iter_unpack(entries), first):
            if slot - first in missed:
                self._stats.bit_map_misses += 1
                self._spent += _MISSED_COST
                place += ENTRY_BYTES
                pack.pack_into(verdicts, place - _CODE.size, _UNWANTED)
                if self._spent >= most_spent:
                    break
                continue
            self._spent += each
            properties = self.properties(queue, slot, QueueEntry(log_offset, size, code))
            verdict = _WANTED
            if properties is not None:
                self._spent += len(properties) // _PROPERTY_BYTES
                if not matches(properties):
                    verdict = _UNWANTED
            pack.pack_into(verdicts, place + _CODE_POSITION, verdict)
            place += ENTRY_BYTES
            wanted += verdict
            if wanted >= most_wanted or self._spent >= most_spent:
                break
        return bytes(verdicts[:place]), self._spent

    def _missed(self, queue: ConsumeQueue, entries: bytes, test: MapTest | None) -> Collection[int]:
        """The entries whose map says that the filter was not met."""
        if test is None or not self._map_bytes:
            return ()
        since = [log_offset >= test.since for log_offset, _, _ in ENTRY.iter_unpack(entries)]
        if not any(since):
            return ()
        mask = test.mask
        return {
            number
            for number, bits in enumerate(queue.bit_maps(entries, self._map_bytes))
            if bits is not None and since[number] and bits & mask != mask
        }

    def properties(self, queue: ConsumeQueue, slot: int, entry: QueueEntry) -> bytes | None:
        """The stored properties of the message in a slot; None if its record is not there, or is
        not the slot's."""
        log_offset, size, _ = entry
        if not MIN_RECORD_BYTES <= size < PRE_BLANK_SIZE:
            return None
        segment = self._segments.find(log_offset)
        if segment is None or log_offset + size > segment.start + segment.wrote:
            return None
        view, position = segment.view, log_offset - segment.start
        found, magic, queue_id, number = SLOT_FIELDS.unpack_from(view, position)
        is_own = number == slot and queue_id == queue.queue_id
        if (
            self._checked_below(segment) > log_offset
            or number <= 0
            or found != size
            or magic != MESSAGE_MAGIC
            or not (is_own or is_light(queue.topic))
        ):
            self._spent += size // _CHECKED_BYTES
            if not self._is_sound(queue, slot, entry):
                return None
        return properties_in(view, position, position + size)
