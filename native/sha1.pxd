from libc.stdint cimport uint8_t

cdef enum:
    DIGEST_BYTES = 20
    # Of a state: OpenSSL's has 96 bytes, as have those of its relatives.
    STATE_BYTES = 256


cdef class Key:
    # Either the states, or without SHA-1 of libcrypto's own two objects of hashlib.
    cdef uint8_t inner[STATE_BYTES]
    cdef uint8_t outer[STATE_BYTES]
    cdef object inner_object, outer_object
    cdef int sign(self, const uint8_t *head, int head_size, const uint8_t *body, int body_size,
                  uint8_t *digest) except -1
    cdef int _sign_by_objects(self, bytes text, uint8_t *digest) except -1
