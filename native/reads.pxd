from libc.stdint cimport int32_t, int64_t, uint8_t

cdef enum:
    MOST_RUNS = 512


cdef struct Scan:
    # Where it is: the slot of the next entry, messages and bytes in the answer.
    int64_t slot, count, size
    # The log offset of the last entry that was looked at.
    int64_t last
    bint full
    # Which records: of what queue, in what memory.
    int32_t queue_id
    bint any_queue
    const uint8_t *records
    int64_t base, low, high
    # What an answer may hold: of records below `old_below`, and of others.
    int64_t old_below, recent_bytes, recent_count, old_bytes, old_count
    # Log offsets [start, end) of what is given.
    int runs
    int64_t starts[MOST_RUNS]
    int64_t ends[MOST_RUNS]


cdef bint begin(Scan *scan, tuple room, const uint8_t *records, int64_t base, int64_t low,
                int64_t high) except -1
cdef const uint8_t *look(Scan *scan, const uint8_t *at, const uint8_t *end, object codes) except? NULL
