from libc.stdint cimport int32_t, int64_t, uint8_t

from aerobee.native.bytes cimport Output
from aerobee.native.guard cimport Guard
from aerobee.native.header cimport Header
from aerobee.native.pulls cimport Pulls
from aerobee.native.sends cimport Sends

cdef enum:
    # Codes that are served here, by their place in `counts`.
    CODES = 5


cdef struct HeldAnswer:
    # Up to where the log has to be kept, and where its frame ends in `frames`.
    int64_t end
    Py_ssize_t frame_end
    int32_t code, opaque, serialization


cdef class HeldAnswers:
    cdef Output frames
    cdef HeldAnswer *answers
    cdef Py_ssize_t count, room
    # Whose answers they are: connections, their sockets (None: the connection writes), and how many
    # answers there are up to each one's last.
    cdef list connections, sockets, counts
    cdef object sender
    cdef int add(self, int64_t end, Header *header, int serialization) except -1
    cdef int belong(self, object sender, object socket, object connection) except -1
    cdef int give_up(self, Py_ssize_t count) except -1
    cdef Py_ssize_t frames_to(self, Py_ssize_t count) noexcept


cdef class Requests:
    cdef Guard guard
    cdef Sends sends
    cdef Pulls pulls
    cdef bint answers_wait, claimed
    # How many requests were answered since the last `take_counts`, by code.
    cdef int64_t counts[CODES]
    # Answers that have not been taken.
    cdef Output out
    # Answers that are to wait until the log is kept; None before the first.
    cdef HeldAnswers held
    # Of the read that was served last: how many requests, and the code of the last one.
    cdef int done, code
    # The time or the room was over; else what is left is not plain.
    cdef bint over
    cdef HeldAnswers take_held(self)
    cdef Py_ssize_t serve(self, const uint8_t *read, Py_ssize_t size, bytes born_host,
                          bint may_pull, Py_ssize_t may_wait, int64_t room, object clock,
                          double until) except -1
    cdef int settle(self) except -1
    cdef list take_counts(self)
    cdef bint _answer(self, Header *header, const uint8_t *body, int size, bytes born_host,
                      bint may_pull, Py_ssize_t may_wait) except -1
