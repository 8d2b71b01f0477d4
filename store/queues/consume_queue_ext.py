"""Extension files of a consume queue: more about a message than its entry has room for
(store/FORMAT.md 5.6).

An entry here: its size i16, tags code i64, store time i64, size of the bit map i16, bit map. The
entry in the consume queue then holds an address instead of the tags code: the extension entry's
offset minus 2^63, which no tags code reaches. Files are named by their first byte, as the queue's
are; a entry that does not fit a file with 4 bytes to spare ends it with the size -1 and begins the
next.

The reference calls them weakly reliable, and readers have to take it so: where the entry is missing
or does not add up, the tags code is unknown and every filter matches. Worse than a missing entry is
another message's: its tags would hide the message. So an address that stands in the queue is never
given again: after a start, writing goes on behind the entry of the queue's last address, in the
next file if that entry is not on the disk. Where the queue has no address, the files begin anew.
(The reference finds the end by the sizes that entries give, and the last address after that.)

Bytes are written with pwrite, staged and then written, once for each queue in a round of dispatch;
`_next` moves when an entry is staged and goes back when the write failed. Files are synced with the
queue's, by the flush thread, which also removes those that have expired.

Threads: the store's caller; `dispose` the flush thread.
"""

import os
import struct
from typing import NamedTuple

from aerobee.store.disk.descriptors import DescriptorCache, QueueFile
from aerobee.store.disk.files import Files
from aerobee.store.disk.segment_names import is_segment_name
from aerobee.store.queues.queue_view import ENTRY, ENTRY_BYTES
from aerobee.store.segments.mapped_file_queue import check_file_size, check_is_file

#: Addresses are at most this; greater values are tags codes or delivery times.
MOST_ADDRESS = -(1 << 31) - 1
#: The answer of `stage` when it cannot store an entry; so are all values above MOST_ADDRESS.
NO_ADDRESS = 1
HEAD_BYTES = 20
MOST_ENTRY_BYTES = 32_767

_BASE = -(1 << 63)
_MOST_OFFSET = MOST_ADDRESS - _BASE
_HEAD = struct.Struct(">hqqh")
_CODE = struct.Struct(">q")
_CODE_POSITION = 12
_I32_MIN, _I32_MAX = -(1 << 31), (1 << 31) - 1
_END_MARK = struct.pack(">h", -1)
# Stays free behind the last entry of a file; the mark needs half of it.
_END_BYTES = 4
_WINDOW_BYTES = 16_384
_SIZE_KEYS = "consume_queue_ext_segment_bytes (mappedFileSizeConsumeQueueExt)"


class ExtEntry(NamedTuple):
    """One extension entry; `bit_map` is empty where no filter is known."""

    tags_code: int
    store_ms: int
    bit_map: bytes = b""

    @property
    def size(self) -> int:
        """Its bytes in the file."""
        return HEAD_BYTES + len(self.bit_map)

    def encode(self) -> bytes:
        """Its bytes in the file."""
        return _HEAD.pack(self.size, self.tags_code, self.store_ms, len(self.bit_map)) + (
            self.bit_map
        )


def is_address(code: int) -> bool:
    """Whether the last field of a consume queue entry is an address, not a tags code."""
    return code <= MOST_ADDRESS


class ConsumeQueueExt:
    """The extension files of one queue, below `directory`, `segment_bytes` each."""

    __slots__ = (
        "_cache",
        "_files",
        "_first_staged",
        "_next",
        "_staged",
        "directory",
        "expired",
        "segment_bytes",
        "segments",
        "unfinished",
    )

    def __init__(
        self, files: Files, cache: DescriptorCache, directory: str, segment_bytes: int
    ) -> None:
        self._files = files
        self._cache = cache
        self.directory = directory
        self.segment_bytes = segment_bytes
        # By first byte; replaced as a whole.
        self.segments: dict[int, QueueFile] = {}
        # Where the next entry goes; staged entries begin at `_first_staged`.
        self._next = self._first_staged = 0
        self._staged: list[bytes] = []
        # For the flush thread: files to remove.
        self.expired: list[QueueFile] = []
        # Files that a crash left without length.
        self.unfinished: list[str] = []

    # --- writing ----------------------------------------------------------------------------

    @property
    def next_address(self) -> int:
        """Address of the next entry, if it fits the file."""
        return self._next + _BASE

    def stage(self, entry: ExtEntry) -> int:
        """Take an entry for the next `write`, unless `forget` comes first; its address.

        NO_ADDRESS if it cannot be stored. Raises OSError.
        """
        size = entry.size
        # The reference ends three files before it gives up; whether an entry fits one is known.
        if size > min(MOST_ENTRY_BYTES, self.segment_bytes - _END_BYTES):
            return NO_ADDRESS
        if self._next + 2 * self.segment_bytes > _MOST_OFFSET:
            return NO_ADDRESS
        within = self._next % self.segment_bytes
        if within and size > self.segment_bytes - within - _END_BYTES:
            self._staged.append(_END_MARK)
            self.write()
            self._next += self.segment_bytes - within
            self._first_staged = self._next
        if self._next % self.segment_bytes == 0 and self._next not in self.segments:
            self.write()
            self._create(self._next)
        self._staged.append(entry.encode())
        self._next += size
        return self._next - size + _BASE

    def write(self) -> None:
        """Write what is staged. Raises OSError; nothing is staged then."""
        if not self._staged:
            return
        data, first = b"".join(self._staged), self._first_staged
        file = self.segments[first // self.segment_bytes * self.segment_bytes]
        try:
            self._files.write(self._cache.fd(file), first - file.start, data)
        except OSError:
            self.forget()
            raise
        self._cache.wrote(file, first - file.start + len(data))
        self._staged = []
        self._first_staged = self._next

    def forget(self) -> None:
        """Take back what is staged and not written."""
        self._staged = []
        self._next = self._first_staged

    def _create(self, start: int) -> None:
        # Below the store's own directory, as `ConsumeQueue` below that of all queues.
        root = os.path.dirname(os.path.dirname(os.path.dirname(self.directory)))
        changed = self._files.make_directories(self.directory, below=root)
        self._cache.note_directories(changed)
        file = QueueFile(self.directory, start, self.segment_bytes)
        if self._files.exists(file.path):
            self._files.remove(file.path)  # of a queue whose own files are gone
        self._cache.create(file, self.segment_bytes)
        self.segments = {**self.segments, start: file}

    # --- reading ----------------------------------------------------------------------------

    def get(self, address: int) -> ExtEntry | None:
        """The entry at an address; None if it is not there or does not add up. Raises OSError."""
        if not is_address(address):
            return None
        offset = address - _BASE
        file = self.segments.get(offset // self.segment_bytes * self.segment_bytes)
        if file is None:
            return None
        head = self._files.read(self._cache.fd(file), offset - file.start, HEAD_BYTES)
        if len(head) < HEAD_BYTES:
            return None
        size, tags_code, store_ms, map_size = _HEAD.unpack(head)
        if not _adds_up(size, map_size) or offset + size + _END_BYTES > file.end:
            return None
        bit_map = b""
        if map_size:
            place = offset - file.start + HEAD_BYTES
            bit_map = self._files.read(self._cache.fd(file), place, map_size)
        return ExtEntry(tags_code, store_ms, bit_map)

    def resolve(self, entries: bytes, *, any_code: bool = False) -> bytes:
        """Consume queue entries with tags codes in the place of addresses. Raises OSError.

        An address whose entry is missing stays. A tags code is 32 bits wide, except with
        `any_code` (delivery times); wider numbers are addresses.
        """
        resolved: bytearray | None = None
        window, window_start = b"", 0
        for index, (_, _, code) in enumerate(ENTRY.iter_unpack(entries)):
            if code > MOST_ADDRESS:
                continue
            offset = code - _BASE
            place = offset - window_start
            if not 0 <= place <= len(window) - HEAD_BYTES:
                window, window_start, place = self._window(offset), offset, 0
                if len(window) < HEAD_BYTES:
                    continue
            size, tags_code, _, map_size = _HEAD.unpack_from(window, place)
            if _adds_up(size, map_size) and (any_code or _I32_MIN <= tags_code <= _I32_MAX):
                resolved = bytearray(entries) if resolved is None else resolved
                _CODE.pack_into(resolved, index * ENTRY_BYTES + _CODE_POSITION, tags_code)
        return entries if resolved is None else bytes(resolved)

    def bit_maps(self, entries: bytes, map_bytes: int) -> list[int | None]:
        """The bit map of each consume queue entry, as a number (`protocol/filters/bloom.py`).

        None for an entry without a map of `map_bytes`. Raises OSError.
        """
        found: list[int | None] = []
        size_wanted = HEAD_BYTES + map_bytes
        window, window_start = b"", 0
        for _, _, code in ENTRY.iter_unpack(entries):
            bits: int | None = None
            if code <= MOST_ADDRESS:
                offset = code - _BASE
                place = offset - window_start
                if not 0 <= place <= len(window) - size_wanted:
                    window = self._window(offset, max(size_wanted, _WINDOW_BYTES))
                    window_start, place = offset, 0
                if len(window) >= size_wanted:
                    size, _, _, map_size = _HEAD.unpack_from(window, place)
                    if size == size_wanted and map_size == map_bytes:
                        start = place + HEAD_BYTES
                        bits = int.from_bytes(window[start : start + map_bytes], "little")
            found.append(bits)
        return found

    def _window(self, offset: int, size: int = _WINDOW_BYTES) -> bytes:
        file = self.segments.get(offset // self.segment_bytes * self.segment_bytes)
        if file is None:
            return b""
        size = min(size, file.end - offset)
        return self._files.read(self._cache.fd(file), offset - file.start, size)

    # --- loading, cutting, expiring ---------------------------------------------------------

    def load(self, names: list[str]) -> list[str]:
        """Take the files in `names`; foreign names are returned.

        Raises StoreSizeMismatch; nothing is changed.
        """
        foreign: list[str] = []
        for name in names:
            path = os.path.join(self.directory, name)
            if not is_segment_name(name) or int(name) % self.segment_bytes:
                foreign.append(path)
                continue
            check_is_file(self._files, path)
            found = self._files.size_of(path)
            if not found:
                self.unfinished.append(path)
                continue
            check_file_size(path, found, self.segment_bytes, _SIZE_KEYS)
            file = QueueFile(self.directory, int(name), self.segment_bytes)
            self.segments[file.start] = file
        return foreign

    def resume_behind(self, last_address: int | None) -> None:
        """Go on behind the queue's last address, None if no slot has one. What is behind goes.

        Raises OSError.
        """
        for path in self.unfinished:
            self._files.remove(path)
        self.unfinished = []
        if last_address is None:
            self._cut(0)
            return
        offset = last_address - _BASE
        entry = self.get(last_address)
        if entry is not None:
            self._cut(offset + entry.size)
        else:
            self._cut((offset // self.segment_bytes + 1) * self.segment_bytes)

    def _cut(self, end: int) -> None:
        self.forget()
        kept: dict[int, QueueFile] = {}
        for start, file in sorted(self.segments.items()):
            if start < end:
                kept[start] = file
                if end < file.end:
                    fd = self._cache.fd(file)
                    if self._files.zero(fd, end - start, self.segment_bytes):
                        self._cache.wrote(file, self.segment_bytes)
            else:
                self._remove(file)
        self.segments = kept
        self._next = self._first_staged = end

    def expire_below(self, address: int) -> None:
        """Let go of files that end before an address; the flush thread removes them."""
        offset = address - _BASE
        gone = [file for file in self.segments.values() if file.end < offset]
        if gone:
            self.segments = {
                start: file for start, file in self.segments.items() if file.end >= offset
            }
            self.expired += gone

    def dispose(self) -> None:
        """Flush thread: remove the files that were let go of. Raises OSError."""
        while self.expired:
            try:
                self._remove(self.expired.pop())
            except (FileNotFoundError, IndexError):  # its queue is being removed
                return

    def _remove(self, file: QueueFile) -> None:
        self._cache.discard(file)
        self._files.remove(file.path)
        self._cache.note_directories([self.directory])

    def sync_and_drop_cache(self) -> None:
        """See MappedFile.sync_and_drop_cache; for the files that may have been written last."""
        for start in sorted(self.segments)[-2:]:
            fd = self._cache.fd(self.segments[start])
            self._files.sync(fd)
            self._files.forget_cached(fd)

    def close(self) -> None:
        """Forget the files, for a queue that is being deleted."""
        for file in (*self.segments.values(), *self.expired):
            self._cache.discard(file)
        self.segments, self.expired = {}, []


def _adds_up(size: int, map_size: int) -> bool:
    return size == HEAD_BYTES + map_size >= HEAD_BYTES
