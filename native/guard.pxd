from libc.stdint cimport uint8_t

from aerobee.native.header cimport Header, Text
from aerobee.native.sha1 cimport Key

cdef enum:
    # A request with more bytes in its fields is for the plain path.
    FIELD_BYTES = 16384
    # Room for an account, the longest topic and the longest group; names that are longer are nobody's,
    # and the plain path says so.
    QUESTION_BYTES = 1024


cdef class Guard:
    cdef object is_white, find_signer, may
    cdef bint any_white
    # What was asked before: addresses, accounts, and who may do what.
    cdef dict white, signers, allowed
    # The last of them: most requests of a read are of one account to one topic.
    cdef bytes last_name, last_question
    cdef Key last_key
    cdef uint8_t scratch[FIELD_BYTES]
    cdef uint8_t question[QUESTION_BYTES]
    cdef bint passes(self, Header *header, const uint8_t *body, int size, bytes host) except -1
    cdef bint _is_white(self, bytes host) except -1
    cdef int _lay_out(self, Header *header, const uint8_t *order, int count) noexcept nogil
    cdef bint _find_key(self, Text *account) except -1
    cdef bint _may_do(self, int code, Text *topic, Text *group) except -1
