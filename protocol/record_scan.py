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

#: Of one call: enough to be quick, few enough to tell progress and to keep memory small.
MOST_RECORDS = 4096
MOST_BYTES = 16 << 20


def scan_records(
    buffer: bytes | bytearray | memoryview,
    position: int,
    log_offset: int,
    limit: int,
    check_crc: int = CHECK_BODY,
) -> list[Checked]:
    """The sound records from `position` on; parameters as of `check_record`.

    At most MOST_RECORDS, and none that begins MOST_BYTES or more behind the first.

    Ends before the first thing that is not a sound record; `check_record` tells what it is.
    """
    found: list[Checked] = []
    unpack = SIZE_AND_MAGIC.unpack_from
    end = min(limit - BLANK_BYTES + 1, position + MOST_BYTES)
    while position < end and len(found) < MOST_RECORDS:
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
