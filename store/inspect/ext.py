"""Looks up the extension entries of consume queues (`consume_queue_ext.py`).

RocketMQ calls these files weakly reliable, and readers cope with an entry that is missing: any
filter matches then. An entry with another message's tags is worse, because it hides its own
message.
"""

from struct import Struct

from aerobee.store.inspect.audit_report import Findings
from aerobee.store.inspect.store_layout import FoundFile, Layout
from aerobee.store.log.scan.sources import Sources

_HEAD = Struct(">hqqh")  # size, tags code, store time, size of the bit map
_BASE = -(1 << 63)
# Stays free after the last entry of a file.
_END_BYTES = 4
_I32_MIN, _I32_MAX = -(1 << 31), (1 << 31) - 1
# Entries of a queue follow each other here too, so a read serves many.
_READ_BYTES = 1 << 16


class Extensions:
    """The extension files of a store, `segment_bytes` each, read-only."""

    def __init__(self, sources: Sources, layout: Layout, segment_bytes: int) -> None:
        self._sources = sources
        self._segment_bytes = segment_bytes
        self._files = [file for _, file in layout.extensions]
        # The files that a broker would read, by topic and queue id, then by their beginnings.
        self._by_queue: dict[tuple[str, int], dict[int, FoundFile]] = {}
        for key, file in layout.extensions:
            if file.size == segment_bytes and not file.start % segment_bytes:
                self._by_queue.setdefault(key, {})[file.start] = file
        # The last read: path, position, bytes.
        self._read: tuple[str, int, bytes] = ("", 0, b"")

    def check_files(self, findings: Findings) -> None:
        """Check lengths and names."""
        size = self._segment_bytes
        for file in self._files:
            if file.start % size:
                what = f"begins at {file.start}, which is no multiple of {size}"
                findings.add("foreign-stops-rocketmq", file.path, None, what)
            elif file.size and file.size != size:
                what = f"has {file.size} bytes instead of {size}"
                findings.add("ext-file-size", file.path, None, what)

    def tags_code(self, key: tuple[str, int], address: int, *, delayed: bool) -> int | None:
        """The tags code in the extension entry at an address; None if readers take it for missing.

        Readers take a code of more than 32 bits for damage, unless the message is `delayed`.
        """
        offset = address - _BASE
        start = offset // self._segment_bytes * self._segment_bytes
        file = self._by_queue.get(key, {}).get(start)
        if file is None:
            return None
        head = self._bytes_at(file.path, offset - start)
        if len(head) < _HEAD.size:
            return None
        size, code, _, map_size = _HEAD.unpack(head)
        if not size == _HEAD.size + map_size >= _HEAD.size:
            return None
        if offset + size + _END_BYTES > start + self._segment_bytes:
            return None
        return int(code) if delayed or _I32_MIN <= code <= _I32_MAX else None

    def _bytes_at(self, path: str, position: int) -> bytes:
        read, start, data = self._read
        if read != path or not start <= position <= start + len(data) - _HEAD.size:
            start, data = position, self._sources.get(path).read(position, _READ_BYTES)
            self._read = (path, start, data)
        return data[position - start : position - start + _HEAD.size]
