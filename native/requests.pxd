from libc.stdint cimport int64_t, uint8_t

from aerobee.native.bytes cimport Output
from aerobee.native.guard cimport Guard
from aerobee.native.header cimport Header
from aerobee.native.pulls cimport Pulls
from aerobee.native.sends cimport Sends

cdef enum:
    # Codes that are served here, by their place in `counts`.
    CODES = 5


cdef class Requests:
    cdef Guard guard
    cdef Sends sends
    cdef Pulls pulls
    cdef bint answers_wait, claimed
    # How many requests were answered since the last `take_counts`, by code.
    cdef int64_t counts[CODES]
    # Answers that have not been taken.
    cdef Output out
    # Of the read that was served last: how many requests, the code of the last one, and answers
    # that are to wait.
    cdef int done, code
    # The time or the room was over; else what is left is not plain.
    cdef bint over
    cdef list waiting
    cdef Py_ssize_t serve(self, const uint8_t *read, Py_ssize_t size, bytes born_host,
                          bint may_pull, Py_ssize_t may_wait, int64_t room, object clock,
                          double until) except -1
    cdef int settle(self) except -1
    cdef list take_counts(self)
    cdef bint _answer(self, Header *header, const uint8_t *body, int size, bytes born_host,
                      bint may_pull, Py_ssize_t may_wait) except -1
