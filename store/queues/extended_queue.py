"""Consume queues with extension files (`enableConsumeQueueExt`).

Built in the place of the plain ones when the option is on, so that without it nothing asks.
"""

from collections.abc import Sequence

from aerobee.store.disk.descriptors import DescriptorCache
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.consume_queue_ext import ConsumeQueueExt, ExtEntry, is_address
from aerobee.store.queues.queue_view import ENTRY, ENTRY_BYTES

_pack_entry = ENTRY.pack
_CHUNK_ENTRIES = 3200
_CODE_POSITION = 12


class ExtendedQueue(ConsumeQueue):
    """A consume queue whose entries hold addresses of extension entries."""

    __slots__ = ("ext",)

    def __init__(
        self,
        cache: DescriptorCache,
        directory: str,
        topic: str,
        queue_id: int,
        segment_bytes: int,
        *,
        ext: ConsumeQueueExt,
    ) -> None:
        super().__init__(cache, directory, topic, queue_id, segment_bytes)
        self.ext = ext

    def read_coded(self, first: int, count: int) -> bytes:
        return self.ext.resolve(self.read_entries(first, count), any_code=self.delayed)

    def bit_maps(self, entries: bytes, map_bytes: int) -> Sequence[int | None]:
        return self.ext.bit_maps(entries, map_bytes)

    def code_for(self, tags_code: int, store_ms: int, bit_map: bytes) -> int:
        """The field of a new entry for that tags code: the address of a staged extension entry.

        The tags code itself if no entry can be staged. Raises OSError.
        """
        address = self.ext.stage(ExtEntry(tags_code, store_ms, bit_map))
        return address if is_address(address) else tags_code

    def standing(self, offset: int, log_offset: int, size: int, tags_code: int) -> bytes | None:
        """The entry of a slot if it names the record, None if a new one is needed."""
        there = self.entry(offset)
        if (
            there is not None
            and there.is_of_record(log_offset, size)
            and (is_address(there.tags_code) or there.tags_code == tags_code)
        ):
            return _pack_entry(*there)
        return None

    def load(self, names: list[str]) -> list[str]:
        foreign = super().load(names)
        return foreign + self.ext.load(self._files.names(self.ext.directory))

    def mend_files(self) -> None:
        super().mend_files()
        self.resume_ext()

    def recovered(self) -> None:
        super().recovered()
        self.resume_ext()

    def resume_ext(self) -> None:
        """Let extension entries go on after the last entry that a slot names. Raises OSError."""
        self.ext.resume_behind(self._last_address())

    def correct_min_offset(self, log_min: int) -> None:
        super().correct_min_offset(log_min)
        self.trimmed()

    def trimmed(self) -> None:
        """Let go of extension files of messages before the queue's first one. Raises OSError."""
        if self.min_offset >= self.max_offset:
            self.ext.expire_below(self.ext.next_address)
            return
        entry = self.entry(self.min_offset)
        if entry is not None and is_address(entry.tags_code):
            self.ext.expire_below(entry.tags_code)

    def dispose(self) -> None:
        self.ext.dispose()

    def sync_further_files(self) -> None:
        self.ext.sync_and_drop_cache()

    def close(self) -> None:
        super().close()
        self.ext.close()

    def _last_address(self) -> int | None:
        """The last address in a slot, None if no slot has one."""
        end = self.max_offset
        while end > self.first_offset:
            file_entries = self.segment_bytes // ENTRY_BYTES
            start = max((end - 1) // file_entries * file_entries, end - _CHUNK_ENTRIES)
            data = self.read_entries(start, end - start)
            # The first byte of a tags code is 0 or 255, that of an address neither.
            if data[_CODE_POSITION::ENTRY_BYTES].translate(None, b"\x00\xff"):
                codes: list[int] = [code for _, _, code in ENTRY.iter_unpack(data)]
                addresses = [code for code in codes if is_address(code)]
                if addresses:
                    return addresses[-1]
            end = start
        return None
