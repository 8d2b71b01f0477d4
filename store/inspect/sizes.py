"""The file sizes that a store was written with: as given, or found from the files themselves.

The offsets file notes the size of a segment. Otherwise segment and queue file sizes follow from
lengths and names: every name is a multiple of the size. The length of an index file gives only 40 +
4 x slots + 20 x entries; the rest follows from the place of its last entry, whose log offset the
header knows.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from aerobee.config.model import Settings
from aerobee.store.disk.files import Files
from aerobee.store.errors import StoreSizeMismatch
from aerobee.store.index.layout import (
    HEADER,
    HEADER_BYTES,
    INDEX_ENTRY_BYTES,
    LOG_OFFSET_POSITION,
    entries_in,
    index_file_bytes,
    slots_by_entry,
    slots_in,
)
from aerobee.store.inspect.audit_report import Sizes
from aerobee.store.inspect.state import KnownMarks
from aerobee.store.inspect.store_layout import FoundFile, Layout
from aerobee.store.log.scan.sources import Source

GIVEN, NOTED, FOUND, ASSUMED = "given", "noted by the broker", "found", "assumed"
_TAIL_BYTES = 1 << 20


def find_sizes(
    files: Files, layout: Layout, marks: KnownMarks, settings: Settings, given: Collection[str]
) -> Sizes:
    """The sizes to use; `given` names the settings that somebody chose (attribute names).

    Raises StoreSizeMismatch when a chosen size fits no file at all.
    """
    segment_bytes, segment_origin = _segment_size(layout, marks, settings, given)
    queue_files = [file for queue in layout.queues for file in queue.files]
    queue_bytes, queue_origin = _size(
        queue_files, settings.consume_queue_segment_bytes, "consume_queue_segment_bytes", given,
        "the consume queues",
    )  # fmt: skip
    slots, entries, index_origin = _index_size(files, layout, settings, given)
    extension_bytes, extension_origin = _size(
        [file for _, file in layout.extensions],
        settings.consume_queue_ext_segment_bytes,
        "consume_queue_ext_segment_bytes",
        given,
        "the extension files",
    )
    origins = {
        "segment": segment_origin,
        "queue": queue_origin,
        "index": index_origin,
        "extension": extension_origin,
    }
    return Sizes(segment_bytes, queue_bytes, slots, entries, extension_bytes, origins)


def _segment_size(
    layout: Layout, marks: KnownMarks, settings: Settings, given: Collection[str]
) -> tuple[int, str]:
    """Find the segment size as for other files. But a single file does not prove its size: somebody
    may have cut or lengthened it. Then the given size counts, or the size in the offsets file."""
    name, setting = "commit_log_segment_bytes", settings.commit_log_segment_bytes
    is_alone = len(layout.segments) == 1
    if name in given and is_alone and not layout.segments[0].start % setting:
        return setting, GIVEN
    noted = marks.offsets.segment_bytes if marks.offsets is not None else 0
    if noted and name not in given and (marks.ours or is_alone):
        return noted, NOTED
    return _size(layout.segments, setting, name, given, "the commit log")


def _size(
    found: Sequence[FoundFile], setting: int, name: str, given: Collection[str], what: str
) -> tuple[int, str]:
    lengths = Counter(file.size for file in found if file.size)
    if name in given:
        if lengths and setting not in lengths:
            raise StoreSizeMismatch(
                f"no file of {what} has the {setting} bytes that {name} says; they have "
                f"{', '.join(str(length) for length, _ in lengths.most_common(3))}. A start with "
                "this setting would be refused. Leave it out to go by the files."
            )
        return setting, GIVEN
    # The most frequent length of files whose name is a multiple of it.
    fitting = Counter(file.size for file in found if file.size and file.start % file.size == 0)
    if fitting:
        return max(fitting, key=lambda length: (fitting[length], length)), FOUND
    return setting, ASSUMED


def _index_size(
    files: Files, layout: Layout, settings: Settings, given: Collection[str]
) -> tuple[int, int, str]:
    slots, entries = settings.index_slots, settings.index_entries
    lengths = Counter(file.size for file in layout.index_files)
    if not lengths:
        return slots, entries, ASSUMED
    if {"index_slots", "index_entries"} <= set(given):
        if index_file_bytes(slots, entries) not in lengths:
            raise StoreSizeMismatch(
                f"no index file has the {index_file_bytes(slots, entries)} bytes that "
                f"index_slots and index_entries make; they have {lengths.most_common(1)[0][0]}. "
                "Leave these settings out to go by the files."
            )
        return slots, entries, GIVEN
    length = lengths.most_common(1)[0][0]
    if "index_slots" in given:
        return slots, entries_in(length, slots), GIVEN
    if "index_entries" in given:
        return slots_in(length, entries), entries, GIVEN
    if index_file_bytes(slots, entries) == length:
        return slots, entries, FOUND
    for file in layout.index_files:
        found = _slots_of(files, file) if file.size == length else None
        if found is not None:
            return found, entries_in(length, found), FOUND
    return slots, entries, ASSUMED


def _slots_of(files: Files, file: FoundFile) -> int | None:
    """The number of slots that puts the last counted entry at the place of its log offset."""
    source = Source(files, file.path)
    try:
        header = source.read(0, HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return None
        fields: tuple[int, ...] = HEADER.unpack(header)
        end_offset, count = fields[3], fields[5]
        end = source.last_nonzero(HEADER_BYTES, file.size)
        start = max(HEADER_BYTES, end - _TAIL_BYTES)
        tail = source.read(start, end - start + INDEX_ENTRY_BYTES)
    finally:
        source.close()
    wanted = end_offset.to_bytes(8, "big", signed=True)
    at = len(tail)
    while end_offset > 0 and count > 1 and (at := tail.rfind(wanted, 0, at)) >= 0:
        slots = slots_by_entry(file.size, count - 1, start + at - LOG_OFFSET_POSITION)
        if slots is not None:
            return slots
    return None
