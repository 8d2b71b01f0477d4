"""Big-endian numbers, decimal text, and room for answers, for all of `native/`."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE


cdef extern from *:
    """
    #include <arpa/inet.h>
    #include <stdint.h>
    #include <string.h>

    static inline void aerobee_publish32(uint8_t *to, uint32_t value) {
        uint32_t word = htonl(value);
        __atomic_thread_fence(__ATOMIC_RELEASE);
        memcpy(to, &word, sizeof word);
    }
    """
    # Behind all that was written before, and in one store: what a killed process leaves is a whole
    # record or none.
    void publish32 "aerobee_publish32"(uint8_t *to, uint32_t value) noexcept nogil

cdef extern from *:
    """
    #ifdef AEROBEE_LIBDEFLATE
    #include <libdeflate.h>
    #define aerobee_crc32(data, size) libdeflate_crc32(0, data, size)
    #else
    #include <zlib.h>
    #define aerobee_crc32(data, size) ((uint32_t) crc32(0, data, (uInt) (size)))
    #endif
    """
    # The CRC-32 of zlib, by whichever library the build found (`hatch_build.py`).
    uint32_t c_crc32 "aerobee_crc32"(const unsigned char *data, size_t size) noexcept nogil


cdef inline void put32(uint8_t *to, uint32_t value) noexcept nogil:
    to[0] = value >> 24
    to[1] = value >> 16
    to[2] = value >> 8
    to[3] = value


cdef inline void put64(uint8_t *to, uint64_t value) noexcept nogil:
    put32(to, <uint32_t> (value >> 32))
    put32(to + 4, <uint32_t> value)


cdef inline int get16(const uint8_t *at) noexcept nogil:
    return (at[0] << 8) | at[1]


cdef inline uint32_t get32(const uint8_t *at) noexcept nogil:
    return (<uint32_t> at[0] << 24) | (<uint32_t> at[1] << 16) | (<uint32_t> at[2] << 8) | at[3]


cdef inline int64_t get64(const uint8_t *at) noexcept nogil:
    return <int64_t> ((<uint64_t> get32(at) << 32) | get32(at + 4))


cdef struct Output:
    # Answers one behind the other; `data` is moved when it grows.
    uint8_t *data
    Py_ssize_t size
    Py_ssize_t room


cdef inline uint8_t *space(Output *out, Py_ssize_t more) except NULL:
    """Where the next `more` bytes go; whoever writes them there moves `size`."""
    cdef Py_ssize_t room = out.room
    cdef void *moved
    if more > room - out.size:
        room = max(2 * room, out.size + more)
        moved = realloc(out.data, room)
        if moved == NULL:
            raise MemoryError
        out.data = <uint8_t *> moved
        out.room = room
    return out.data + out.size


cdef inline int append(uint8_t *out, int size, bytes part) noexcept:
    """`part` behind what `out` has; the size then."""
    memcpy(out + size, PyBytes_AS_STRING(part), PyBytes_GET_SIZE(part))
    return size + <int> PyBytes_GET_SIZE(part)


cdef inline int decimal(uint8_t *out, int size, int64_t value) noexcept nogil:
    """`value` in digits behind what `out` has, at most 20 bytes; the size then."""
    cdef uint8_t digits[20]
    cdef int count = 0
    # The least number has no positive one.
    cdef uint64_t left = <uint64_t> value if value >= 0 else ~<uint64_t> value + 1
    if value < 0:
        out[size] = 45
        size += 1
    while True:
        digits[count] = <uint8_t> (48 + left % 10)
        left //= 10
        count += 1
        if left == 0:
            break
    while count:
        count -= 1
        out[size] = digits[count]
        size += 1
    return size


# Twin: protocol/hashing.py java_hash
cdef inline int32_t java_hash(uint32_t value, const uint8_t *at, Py_ssize_t size) noexcept nogil:
    """Java's hash of ASCII text behind a text with the hash `value`."""
    cdef Py_ssize_t index
    for index in range(size):
        value = value * 31 + at[index]
    return <int32_t> value


cdef inline bint is_ascii(const uint8_t *text, int64_t size) noexcept nogil:
    cdef uint64_t word, high = 0
    cdef int64_t place = 0
    while place + 8 <= size:
        memcpy(&word, text + place, 8)
        high |= word
        place += 8
    while place < size:
        high |= text[place]
        place += 1
    return high & <uint64_t> 0x8080808080808080 == 0
