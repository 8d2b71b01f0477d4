"""Request headers, found but not built: where in the read each field lies (WIRE.md 1.2, 1.3).

`requests.pyx` goes through a header once; the guard and the processors look at what it found. Here
is the part of JSON that all clients write: no blanks, texts in ASCII. `protocol/frames` reads any
other header.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

cdef extern from "<endian.h>" nogil:
    uint64_t le64toh(uint64_t word)

cdef extern from * nogil:
    int lowest_bit "__builtin_ctzll"(unsigned long long word)

cdef enum:
    # A request with more fields is for the plain path.
    MOST_FIELDS = 32


cdef struct Text:
    const uint8_t *at
    int size
    # Has backslashes, as it stands in a JSON text.
    bint escaped


cdef struct Name:
    # A name of the wire or the files, copied at the import from the module that owns it: comparing
    # with it touches no object.
    int size
    char at[32]


cdef struct Header:
    int code
    int32_t opaque
    bint binary
    # The fields, in their order. The keys have no backslashes.
    Text keys[MOST_FIELDS]
    Text values[MOST_FIELDS]
    int count


cdef inline bytes bytes_of(const Text *text):
    return PyBytes_FromStringAndSize(<const char *> text.at, text.size)


cdef inline Name name_of(str text):
    cdef Name name
    cdef bytes encoded = text.encode()
    name.size = <int> PyBytes_GET_SIZE(encoded)
    assert name.size <= <int> sizeof(name.at)
    memcpy(name.at, PyBytes_AS_STRING(encoded), name.size)
    return name


cdef inline bint same_word(const uint8_t *left, const uint8_t *right) noexcept nogil:
    cdef uint64_t one, other
    memcpy(&one, left, 8)
    memcpy(&other, right, 8)
    return one == other


cdef inline bint same_half(const uint8_t *left, const uint8_t *right) noexcept nogil:
    cdef uint32_t one, other
    memcpy(&one, left, 4)
    memcpy(&other, right, 4)
    return one == other


cdef inline bint is_name(const Text *text, const Name *name) noexcept nogil:
    # A call of memcmp takes longer than the few bytes that names have. The last word may overlap
    # the one before it.
    cdef const uint8_t *own = text.at
    cdef const uint8_t *wanted = <const uint8_t *> name.at
    cdef int at = 0, size = name.size
    if text.size != size:
        return False
    if size >= 8:
        while size - at > 8:
            if not same_word(own + at, wanted + at):
                return False
            at += 8
        return same_word(own + size - 8, wanted + size - 8)
    if size >= 4:
        return same_half(own, wanted) and same_half(own + size - 4, wanted + size - 4)
    while at < size and own[at] == wanted[at]:
        at += 1
    return at == size


# Twin: protocol/frames/header_decode.py _decode_json
cdef inline int plain_end(const uint8_t *at, int position, int size) noexcept nogil:
    """The next place, from `position` on, of what does not stand for itself in a JSON text of ASCII:
    a quote, a backslash, a control character, more than ASCII; `size` if there is none."""
    cdef uint64_t word, quotes, backslashes, found
    # Eight bytes at once. Taking one from each byte borrows where it was none; above such a byte the
    # next ones may be found wrongly, so only the lowest counts.
    while size - position >= 8:
        memcpy(&word, at + position, 8)
        word = le64toh(word)
        quotes = word ^ 0x2222222222222222ULL
        backslashes = word ^ 0x5C5C5C5C5C5C5C5CULL
        found = (
            word
            | ((word - 0x2020202020202020ULL) & ~word)
            | ((quotes - 0x0101010101010101ULL) & ~quotes)
            | ((backslashes - 0x0101010101010101ULL) & ~backslashes)
        ) & 0x8080808080808080ULL
        if found:
            return position + (lowest_bit(found) >> 3)
        position += 8
    while position < size and 32 <= at[position] < 128 and at[position] != 34 and at[position] != 92:
        position += 1
    return position


# Twin: protocol/frames/header_decode.py _decode_json
cdef inline int scan_text(const uint8_t *at, int position, int size, Text *text) noexcept nogil:
    """The JSON text that begins at `position`; the place behind it, -1 if there is none, or if it
    escapes anything but what separates properties, U+0001 and U+0002: nothing else is known of
    escapes here, so a wrong one would pass."""
    if position >= size or at[position] != 34:
        return -1
    position += 1
    text.at = at + position
    text.escaped = False
    while True:
        position = plain_end(at, position, size)
        if position >= size:
            return -1
        if at[position] == 34:
            text.size = <int> (at + position - text.at)
            return position + 1
        if at[position] != 92 or size - position < 6 or memcmp(at + position + 1, b"u000", 4) != 0:
            return -1
        if not 49 <= at[position + 5] <= 50:
            return -1
        text.escaped = True
        position += 6


# Twin: protocol/frames/header_decode.py _decode_json
cdef inline int unescape(Text *text, uint8_t *to, int most) noexcept nogil:
    """The bytes of a JSON text, as `scan_text` takes it; -1: it has more than `most`."""
    cdef int position = 0, size = 0
    cdef uint8_t c
    while position < text.size:
        c = text.at[position]
        position += 1
        if c == 92:
            c = text.at[position + 4] - 48
            position += 5
        if size == most:
            return -1
        to[size] = c
        size += 1
    return size


# Twin: protocol/headers/fields.py parse_int
cdef inline bint number(const Text *text, int64_t *value, bint narrow) noexcept nogil:
    """A decimal number without sign `+`, of 32 bits if `narrow`."""
    cdef int position = 0
    cdef int64_t found = 0
    cdef bint negative = text.size > 1 and text.at[0] == 45
    if negative:
        position = 1
    if text.size - position < 1 or text.size - position > 18:
        return False
    while position < text.size:
        if not 48 <= text.at[position] <= 57:
            return False
        found = found * 10 + text.at[position] - 48
        position += 1
    value[0] = -found if negative else found
    return not narrow or value[0] == <int32_t> value[0]


# Twin: protocol/headers/fields.py parse_int
cdef inline bint read_numbers(
    const Text *fields, int count, const bint *needed, const int *bits, int text, int64_t *numbers
) noexcept nogil:
    """Whether the `count` fields that are needed are there, and those with `bits` are plain numbers;
    none but the field `text` has escapes. A field that is absent is 0."""
    cdef int index
    for index in range(count):
        numbers[index] = 0
        if fields[index].at == NULL:
            if needed[index]:
                return False
            continue
        if index != text and fields[index].escaped:
            return False
        if bits[index] and not number(&fields[index], &numbers[index], bits[index] == 32):
            return False
    return True


# Twin: protocol/frames/header_decode.py _decode_json
cdef inline int scan_number(const uint8_t *at, int position, int size, int64_t *value) noexcept nogil:
    """The JSON number of 32 bits that begins at `position`; the place behind it, or -1."""
    cdef Text text
    text.at = at + position
    if position < size and at[position] == 45:
        position += 1
    if position + 1 < size and at[position] == 48 and 48 <= at[position + 1] <= 57:
        return -1
    while position < size and 48 <= at[position] <= 57:
        position += 1
    text.size = <int> (at + position - text.at)
    return position if number(&text, value, True) else -1


# Twin: protocol/frames/header_decode.py _decode_json
cdef inline int scan_fields(const uint8_t *at, int position, int size, Header *header) noexcept nogil:
    """The fields from behind their opening brace on; the place behind the closing one, -1 if they
    are not plain."""
    cdef int count = 0
    if position < size and at[position] == 125:
        header.count = 0
        return position + 1
    while count < MOST_FIELDS:
        position = scan_text(at, position, size, &header.keys[count])
        if position < 0 or header.keys[count].escaped or position >= size or at[position] != 58:
            return -1
        position = scan_text(at, position + 1, size, &header.values[count])
        if position < 0 or position >= size:
            return -1
        count += 1
        if at[position] == 125:
            header.count = count
            return position + 1
        if at[position] != 44:
            return -1
        position += 1
    return -1
