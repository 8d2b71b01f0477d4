from libc.stdint cimport int64_t, uint8_t

from aerobee.native.bytes cimport Output
from aerobee.native.header cimport Header, Text
from aerobee.native.reads cimport Scan

cdef enum:
    # Fields of a pull.
    FIELDS = 12


cdef class PullRoute:
    cdef object queue, codes, group, live, subscription, model
    cdef str topic
    cdef bint any_queue
    cdef int64_t broker_id, slow_broker_id
    cdef bint holds(self) except -1


cdef class Pulls:
    cdef dict routes
    # Bytes that these take, at most.
    cdef Py_ssize_t route_bytes
    cdef object log, reader, marks, owner, pull, offsets
    cdef list json_parts, binary_parts
    cdef int64_t memory_bytes, recent_bytes, recent_count, old_bytes, old_count
    cdef int most_messages, least_entries, reply_bytes
    cdef Scan scan
    cdef bint serve(self, Header *header, Output *out) except -1
    cdef PullRoute _route(self, Text *fields, int64_t *numbers)
    cdef bint _read(self, PullRoute route, Header *header, int64_t offset, int64_t most,
                    Output *out) except -1
    cdef bint _answer(self, PullRoute route, Header *header, int64_t lowest, int64_t highest,
                      Output *answers) except -1
