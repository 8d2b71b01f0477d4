from libc.stdint cimport uint8_t

from aerobee.native.header cimport Header, Text

cdef enum:
    # A request with more fields, or with more bytes in them, is for the plain path.
    MOST_FIELDS = 32
    FIELD_BYTES = 16384


cdef class Guard:
    cdef object is_white, find_signer, may
    # What was asked before: addresses, accounts, and who may do what.
    cdef dict white, signers, allowed
    cdef uint8_t scratch[FIELD_BYTES]
    cdef bint passes(self, Header *header, const uint8_t *body, int size, bytes host) except -1
    cdef bint _is_white(self, bytes host) except -1
    cdef bint _is_signed(self, bytes name, int length, const uint8_t *body, int size,
                         const uint8_t *given) except -1
    cdef bint _may_do(self, bytes name, int code, Text *topic, Text *group) except -1
