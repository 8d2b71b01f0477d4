# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Reads, for a get, the entries of a consume queue whose records are there and name them back.

The rules are those of `QueueReader._scan` (store/reading/queue_reader.py), which goes on where this
stops: before the first other entry.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from aerobee.native.bytes cimport get32, get64

from aerobee.protocol.message import record_layout as layout
from aerobee.store.queues import consume_queue_ext, queue_view

cdef int ENTRY_BYTES = queue_view.ENTRY_BYTES
cdef int PLACE_AT, SIZE_AT, TAGS_AT
PLACE_AT, SIZE_AT, TAGS_AT = queue_view.ENTRY_POSITIONS
cdef int64_t MOST_ADDRESS = consume_queue_ext.MOST_ADDRESS
cdef int64_t MIN_RECORD_BYTES = layout.MIN_RECORD_BYTES
cdef uint32_t MAGIC = layout.MESSAGE_MAGIC
cdef int MAGIC_AT = layout.MAGIC_POSITION
cdef int QUEUE_ID_AT = layout.QUEUE_ID_POSITION
cdef int QUEUE_OFFSET_AT = layout.QUEUE_OFFSET_POSITION


# Twin: store/reading/queue_reader.py _matches
cdef bint matches(int64_t tags_code, object codes) except -1:
    """Whether an entry is wanted, by the rule of `_matches`."""
    if tags_code in codes:
        return True
    if <int32_t> tags_code == tags_code:
        return False
    if tags_code <= MOST_ADDRESS:
        return True
    return <int32_t> tags_code in codes


cdef bint begin(Scan *scan, tuple room, const uint8_t *records, int64_t base, int64_t low,
                int64_t high) except -1:
    """Set the fields that do not change; records of [low, high) need no closer look."""
    (scan.recent_bytes, scan.recent_count), (scan.old_bytes, scan.old_count) = room
    scan.records = records
    scan.base, scan.low, scan.high = base, low, high
    scan.last = 0
    scan.runs = 0
    scan.full = False
    return True


# Twin: store/reading/queue_reader.py QueueReader._scan_closely
cdef const uint8_t *look(Scan *scan, const uint8_t *at, const uint8_t *end, object codes) except? NULL:
    """Look at the entries of [at, end), up to one that is not plain, to a full answer, or to a
    table of runs that is full; return that place."""
    cdef const uint8_t *record
    cdef int64_t log_offset, size, tags_code, number
    cdef bint chosen = codes is not None and len(codes) > 0
    while end - at >= ENTRY_BYTES:
        log_offset = get64(at + PLACE_AT)
        size = <int32_t> get32(at + SIZE_AT)
        if (
            log_offset < scan.low
            or log_offset >= scan.high
            or not MIN_RECORD_BYTES <= size <= scan.high - log_offset
        ):
            break
        if scan.count:
            if log_offset < scan.old_below:
                scan.full = scan.count >= scan.old_count or scan.size + size > scan.old_bytes
            else:
                scan.full = scan.count >= scan.recent_count or scan.size + size > scan.recent_bytes
            if scan.full:
                break
        tags_code = get64(at + TAGS_AT)
        if not chosen or matches(tags_code, codes):
            record = scan.records + (log_offset - scan.base)
            number = get64(record + QUEUE_OFFSET_AT)
            if number <= 0 or get32(record) != <uint32_t> size or get32(record + MAGIC_AT) != MAGIC:
                break
            if not scan.any_queue and (
                number != scan.slot or <int32_t> get32(record + QUEUE_ID_AT) != scan.queue_id
            ):
                break
            if scan.runs and scan.ends[scan.runs - 1] == log_offset:
                scan.ends[scan.runs - 1] = log_offset + size
            elif scan.runs == MOST_RUNS:
                break
            else:
                scan.starts[scan.runs] = log_offset
                scan.ends[scan.runs] = log_offset + size
                scan.runs += 1
            scan.count += 1
            scan.size += size
        scan.last = log_offset
        scan.slot += 1
        at += ENTRY_BYTES
    return at


# Twin: store/reading/queue_reader.py QueueReader._scan_closely
def scan(bytes entries, Py_ssize_t position, int64_t slot, int32_t queue_id, bint any_queue,
         object codes, const uint8_t[::1] memory, int64_t base, int64_t low, int64_t high,
         int64_t old_below, tuple room, int64_t count, int64_t size, list runs):
    """Look at entries from byte `position` on; the first is in `slot`.

    `memory` begins at the log offset `base`; records of [low, high) need no closer look. `room` and
    `codes` as in `QueueReader`; `count` messages of `size` bytes are in the answer already.
    `any_queue`: the records are those of another queue, which they name.

    Returns the number of entries looked at, the messages and bytes in the answer now, the log
    offset of the last entry, and whether the answer is full. Found records are added to `runs`: log
    offsets [start, end) one after the other, adjoining ones joined.
    """
    cdef const uint8_t *at = <const uint8_t *> PyBytes_AS_STRING(entries)
    cdef Scan state
    cdef int index
    begin(&state, room, &memory[0], base, low, min(high, base + memory.shape[0]))
    state.slot, state.queue_id, state.any_queue = slot, queue_id, any_queue
    state.old_below, state.count, state.size = old_below, count, size
    look(&state, at + position, at + PyBytes_GET_SIZE(entries), codes)
    for index in range(state.runs):
        runs.append((state.starts[index], state.ends[index]))
    return state.slot - slot, state.count, state.size, state.last, state.full
