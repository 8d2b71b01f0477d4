# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What a get gives for entries of a consume queue whose records are there and name them back.

The rules are those of `Reader._scan` (store/reading/reader.py), and it goes on where this stops:
before the first entry that is anything else.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from aerobee.native.bytes cimport get32, get64

from aerobee.protocol.message import record_layout as layout
from aerobee.store.queues import consume_queue_ext, queue_view

cdef int ENTRY_BYTES = queue_view.ENTRY_BYTES
cdef int64_t MOST_ADDRESS = consume_queue_ext.MOST_ADDRESS
cdef int64_t MIN_RECORD_BYTES = layout.MIN_RECORD_BYTES
cdef uint32_t MAGIC = layout.MESSAGE_MAGIC
cdef int MAGIC_AT = layout.MAGIC_POSITION
cdef int QUEUE_ID_AT = layout.QUEUE_ID_POSITION
cdef int QUEUE_OFFSET_AT = layout.QUEUE_OFFSET_POSITION


cdef bint matches(int64_t tags_code, object codes) except -1:
    """Whether an entry is one that is asked for, as `_matches` says."""
    if tags_code in codes:
        return True
    if <int32_t> tags_code == tags_code:
        return False
    if tags_code <= MOST_ADDRESS:
        return True
    return <int32_t> tags_code in codes


def scan(bytes entries, Py_ssize_t position, int64_t slot, int32_t queue_id, bint any_queue,
         object codes, const uint8_t[::1] memory, int64_t base, int64_t low, int64_t high,
         int64_t old_below, tuple room, int64_t count, int64_t size_sum, list runs):
    """Look at entries from byte `position` on, of which the first is in `slot`.

    `memory` begins at the log offset `base`; records of [low, high) need no closer look. `room` and
    `codes` as `Reader` has them; `count` messages of `size_sum` bytes are in the answer already.
    `any_queue`: the records are those of another queue, which they name.

    Gives how many entries were looked at, the messages and bytes that are in the answer now, the
    log offset of the last entry, and whether the answer is full. What is to be given is added to
    `runs`: log offsets [start, end) one after the other, those side by side as one.
    """
    cdef const uint8_t *at = <const uint8_t *> PyBytes_AS_STRING(entries) + position
    cdef const uint8_t *end = <const uint8_t *> PyBytes_AS_STRING(entries) + PyBytes_GET_SIZE(entries)
    cdef const uint8_t *records = &memory[0]
    cdef const uint8_t *record
    cdef int64_t recent_bytes, recent_count, old_bytes, old_count
    cdef int64_t log_offset, size, tags_code, number, last = 0, first_slot = slot
    cdef int64_t run_start = 0, run_end = 0
    cdef bint full = False, chosen = codes is not None and len(codes) > 0
    (recent_bytes, recent_count), (old_bytes, old_count) = room
    high = min(high, base + memory.shape[0])
    while end - at >= ENTRY_BYTES:
        log_offset = get64(at)
        size = <int32_t> get32(at + 8)
        if log_offset < low or log_offset >= high or not MIN_RECORD_BYTES <= size <= high - log_offset:
            break
        if count:
            if log_offset < old_below:
                full = count >= old_count or size_sum + size > old_bytes
            else:
                full = count >= recent_count or size_sum + size > recent_bytes
            if full:
                break
        tags_code = get64(at + 12)
        if not chosen or matches(tags_code, codes):
            record = records + (log_offset - base)
            number = get64(record + QUEUE_OFFSET_AT)
            if number <= 0 or get32(record) != <uint32_t> size or get32(record + MAGIC_AT) != MAGIC:
                break
            if not any_queue and (
                number != slot or <int32_t> get32(record + QUEUE_ID_AT) != queue_id
            ):
                break
            if log_offset != run_end:
                if run_end > run_start:
                    runs.append((run_start, run_end))
                run_start = log_offset
            run_end = log_offset + size
            count += 1
            size_sum += size
        last = log_offset
        slot += 1
        at += ENTRY_BYTES
    if run_end > run_start:
        runs.append((run_start, run_end))
    return slot - first_slot, count, size_sum, last, full
