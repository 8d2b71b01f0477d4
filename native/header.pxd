"""Request headers, found but not built: where in the read each field lies (WIRE.md 1.2, 1.3).

Only what is written as all clients write it is taken: JSON without blanks, whose texts are ASCII,
and the binary form. Whatever else there is, is for `protocol/frames`.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcmp

from aerobee.native.bytes cimport get16, get32


cdef struct Text:
    const uint8_t *at
    int size
    # Has backslashes, as it stands in a JSON text.
    bint escaped


cdef struct Header:
    int code
    int32_t opaque
    bint binary
    # The fields, behind the opening brace or the length, and their bytes.
    const uint8_t *fields
    int size


cdef inline bint is_text(Text *text, const char *wanted, int size) noexcept nogil:
    return text.size == size and memcmp(text.at, wanted, size) == 0


cdef inline int scan_text(const uint8_t *at, int position, int size, Text *text) noexcept nogil:
    """The JSON text that begins at `position`; the place behind it, -1 if there is none."""
    cdef uint8_t c
    if position >= size or at[position] != 34:
        return -1
    position += 1
    text.at = at + position
    text.escaped = False
    while position < size:
        c = at[position]
        if c == 34:
            text.size = <int> (at + position - text.at)
            return position + 1
        if c == 92:
            text.escaped = True
            position += 1
        elif c < 32 or c >= 128:
            return -1
        position += 1
    return -1


cdef inline int unescape(Text *text, uint8_t *to, int most) noexcept nogil:
    """The bytes of a JSON text that escapes nothing but what separates properties; -1: it does, or
    has more than `most`."""
    cdef int position = 0, size = 0
    cdef uint8_t c
    while position < text.size:
        c = text.at[position]
        position += 1
        if c == 92:
            if text.size - position < 5 or memcmp(text.at + position, b"u000", 4) != 0:
                return -1
            c = text.at[position + 4] - 48
            if c != 1 and c != 2:
                return -1
            position += 5
        if size == most:
            return -1
        to[size] = c
        size += 1
    return size


cdef inline bint number(Text *text, int64_t *value, bint narrow) noexcept nogil:
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


cdef inline int behind_object(const uint8_t *at, int position, int size) noexcept nogil:
    """The place behind the brace that ends an object of texts, -1 if it holds anything else."""
    while position < size:
        if at[position] == 125:
            return position + 1
        if at[position] == 34:
            position += 1
            while position < size and at[position] != 34:
                position += 2 if at[position] == 92 else 1
        elif at[position] != 44 and at[position] != 58:
            return -1
        position += 1
    return -1


cdef inline bint read_json(const uint8_t *at, int size, Header *header) noexcept nogil:
    cdef int position = 1, begin
    cdef Text key, text
    cdef int64_t value
    cdef bint has_code = False, has_opaque = False, has_fields = False
    if size < 2 or at[0] != 123 or at[size - 1] != 125:
        return False
    while True:
        position = scan_text(at, position, size, &key)
        if position < 0 or key.escaped or position >= size - 1 or at[position] != 58:
            return False
        position += 1
        if is_text(&key, b"extFields", 9):
            if at[position] != 123 or has_fields:
                return False
            begin = position + 1
            position = behind_object(at, begin, size)
            if position < 0:
                return False
            has_fields = True
            header.fields = at + begin
            header.size = position - 1 - begin
        elif at[position] == 34:
            position = scan_text(at, position, size, &text)
            if position < 0 or text.escaped:
                return False
            if not (
                is_text(&key, b"language", 8) or is_text(&key, b"serializeTypeCurrentRPC", 23)
            ):
                return False
        else:
            position = scan_number(at, position, size, &value)
            if position < 0:
                return False
            if is_text(&key, b"code", 4):
                if has_code:
                    return False
                header.code = <int> value
                has_code = True
            elif is_text(&key, b"opaque", 6):
                if has_opaque:
                    return False
                header.opaque = <int32_t> value
                has_opaque = True
            elif is_text(&key, b"flag", 4):
                # An answer, or a request that wants none.
                if value != 0:
                    return False
            elif not is_text(&key, b"version", 7):
                return False
        if position >= size:
            return False
        if at[position] == 125:
            return position == size - 1 and has_code and has_opaque and has_fields
        if at[position] != 44:
            return False
        position += 1


cdef inline bint read_binary(const uint8_t *at, int size, Header *header) noexcept nogil:
    # code i16, language i8, version i16, opaque i32, flag i32, remark i32, fields i32
    if size < 21 or get32(at + 9) != 0 or get32(at + 13) != 0 or get32(at + 17) != <unsigned> size - 21:
        return False
    header.code = get16(at)
    header.opaque = <int32_t> get32(at + 5)
    header.fields = at + 21
    header.size = size - 21
    return True


cdef inline int next_field(Header *header, int position, Text *key, Text *value) noexcept nogil:
    """The field that begins at `position`; the place of the next one, -1 if it is not plain."""
    cdef const uint8_t *at = header.fields
    cdef int size = header.size, index
    if not header.binary:
        position = scan_text(at, position, size, key)
        if position < 0 or key.escaped or position >= size or at[position] != 58:
            return -1
        position = scan_text(at, position + 1, size, value)
        if position < 0 or position == size:
            return position
        # One more has to follow the comma.
        return position + 1 if at[position] == 44 and position + 1 < size else -1
    if size - position < 6:
        return -1
    key.at = at + position + 2
    key.size = get16(at + position)
    key.escaped = value.escaped = False
    if key.size > size - position - 6:
        return -1
    position += 2 + key.size
    value.size = <int32_t> get32(at + position)
    position += 4
    value.at = at + position
    if value.size < 0 or value.size > size - position:
        return -1
    for index in range(value.size):
        if value.at[index] >= 128:
            return -1
    return position + value.size
