# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Puts the records of a large batch into their places in a segment.

They were encoded outside the put lock and lack only place and time
(`store/log/prepared_batch.py`, whose `placed` and `MappedFile.append` have the rules). Here each is
completed and copied in one go, in their order; its first word comes last, so that a killed process
leaves whole records.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from aerobee.native.bytes cimport get32, publish32, put64

from aerobee.protocol.message import record_layout as layout

cdef int QUEUE_OFFSET_AT = layout.QUEUE_OFFSET_POSITION
cdef int LOG_OFFSET_AT = layout.LOG_OFFSET_POSITION


# Twin: store/log/prepared_batch.py PreparedBatch.placed
def place(uint8_t[::1] records, list sizes, uint8_t[::1] memory, Py_ssize_t at,
          int64_t queue_offset, int64_t log_offset, int64_t store_ms, int time_at):
    """Copy records of these sizes to byte `at` of `memory`, where the first is at `log_offset`, in
    `queue_offset` of its queue. Each has its store time at its byte `time_at`."""
    cdef uint8_t *record = &records[0]
    cdef uint8_t *to = &memory[0] + at
    cdef Py_ssize_t size, left = records.shape[0]
    assert 0 <= at <= memory.shape[0] - left
    for size in sizes:
        assert time_at + 8 <= size <= left
        put64(record + QUEUE_OFFSET_AT, queue_offset)
        put64(record + LOG_OFFSET_AT, log_offset)
        put64(record + time_at, store_ms)
        memcpy(to + 4, record + 4, size - 4)
        publish32(to, get32(record))
        record += size
        to += size
        left -= size
        queue_offset += 1
        log_offset += size
    assert left == 0
