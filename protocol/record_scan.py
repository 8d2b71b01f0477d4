"""Reads stored records in bulk, for rebuilds: each checked as by `check_record`, none in an object.

A rebuild of consume queues and index costs microseconds for each record, so there is one loop in
one function, and plain tuples come out of it.
"""

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.record_check import CHECK_BODY, Checked, check_fields
from aerobee.protocol.record_layout import (
    BLANK_BYTES,
    MESSAGE_MAGIC,
    MIN_RECORD_BYTES,
    SIZE_AND_MAGIC,
)


def scan_records(
    buffer: bytes | bytearray | memoryview,
    position: int,
    log_offset: int,
    limit: int,
    check_crc: int = CHECK_BODY,
    most: int = 4096,
) -> list[Checked]:
    """The sound records from `position` on, at most `most`; parameters as of `check_record`.

    Ends before the first thing that is not a sound record; `check_record` tells what it is.
    """
    found: list[Checked] = []
    unpack = SIZE_AND_MAGIC.unpack_from
    while limit - position >= BLANK_BYTES and len(found) < most:
        size, magic = unpack(buffer, position)
        if magic != MESSAGE_MAGIC or not MIN_RECORD_BYTES <= size <= limit - position:
            break
        try:
            found.append(check_fields(buffer, position, log_offset, size, check_crc))
        except CorruptRecord:
            break
        position += size
        log_offset += size
    return found
