# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The bulk decode of Spark's readers: stored records in, buffers of Arrow arrays and of numpy out.

The rules are those of `pipeline/decode`, which asks for one step at a time and does a step itself
where the answer here is None: something in it is not plain. Nothing of Arrow or numpy is linked:
the results are `bytes` of native numbers. The caller gives the places of fields.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc

from aerobee.native.bytes cimport c_crc32, get16, get32, get64, is_ascii

from aerobee.protocol import checksum
from aerobee.protocol.message import properties
from aerobee.protocol.message import record_layout as layout

cdef int64_t MIN_RECORD_BYTES = layout.MIN_RECORD_BYTES
cdef int MAGIC_AT = layout.MAGIC_POSITION
cdef int SYS_FLAG_AT = layout.SYS_FLAG_POSITION
cdef int LOG_OFFSET_AT = layout.LOG_OFFSET_POSITION
cdef int PROPERTIES_SIZE_BYTES = layout.PROPERTIES_LENGTH.size
cdef int BODY_SIZE_BYTES = layout.BODY_LENGTH_BYTES
cdef uint32_t CRC_MASK = checksum.CRC_MASK
cdef uint32_t HOST_BITS = layout.SYS_BORN_HOST_V6 | layout.SYS_STORE_HOST_V6
cdef int NAME_END = ord(properties.NAME_SEPARATOR)
cdef int ENTRY_END = ord(properties.PROPERTY_SEPARATOR)

# Offsets of Arrow's strings have 32 bits.
cdef int64_t MOST_BYTES = (1 << 31) - 1
# Names of properties that are told apart in one batch: a bit each, so that a repeated name shows.
cdef enum:
    MOST_NAMES = 64


cdef inline bytes room(Py_ssize_t size):
    """Bytes that the caller fills before anybody sees them."""
    return PyBytes_FromStringAndSize(NULL, size)


# --- records --------------------------------------------------------------------------------------


# Twin: pipeline/decode/record_starts.py record_starts
def record_starts(const uint8_t[::1] buffer, int64_t position, int64_t limit, tuple magics):
    """Positions of the records from `position` on that end at or before `limit` (int64 each), up to
    the first bytes that are no record, and the position after the last record."""
    cdef uint32_t magic, last = magics[0]
    cdef int64_t size
    cdef Py_ssize_t count = 0, most = 1024
    cdef int64_t *found
    cdef int64_t *more
    if position < 0 or limit > buffer.shape[0]:
        raise IndexError("records are asked for beyond the buffer")
    found = <int64_t *> PyMem_RawMalloc(most * sizeof(int64_t))
    if found == NULL:
        raise MemoryError
    try:
        while position + MIN_RECORD_BYTES <= limit:
            size = <int32_t> get32(&buffer[position])
            if size < MIN_RECORD_BYTES or size > limit - position:
                break
            magic = get32(&buffer[position + MAGIC_AT])
            if magic != last:
                if magic not in magics:
                    break
                last = magic
            if count == most:
                most *= 2
                more = <int64_t *> PyMem_RawRealloc(found, most * sizeof(int64_t))
                if more == NULL:
                    raise MemoryError
                found = more
            found[count] = position
            count += 1
            position += size
        return PyBytes_FromStringAndSize(<char *> found, count * sizeof(int64_t)), position
    finally:
        PyMem_RawFree(found)


# Twin: pipeline/decode/decode.py _by_kind
def kind(const uint8_t[::1] buffer, const int64_t[::1] starts):
    """The common magic of all records, and the bits for their hosts."""
    cdef Py_ssize_t row
    cdef int64_t start, last = buffer.shape[0] - SYS_FLAG_AT - 4
    cdef uint32_t magic = 0, bits = 0
    for row in range(starts.shape[0]):
        start = starts[row]
        if start < 0 or start > last:
            return None
        if row == 0:
            magic, bits = get32(&buffer[start + MAGIC_AT]), get32(&buffer[start + SYS_FLAG_AT])
        elif magic != get32(&buffer[start + MAGIC_AT]) or (
            (bits ^ get32(&buffer[start + SYS_FLAG_AT])) & HOST_BITS
        ):
            return None
    return magic, bits & HOST_BITS


# Twin: pipeline/decode/decode.py _Rows._cut
def places(const uint8_t[::1] buffer, const int64_t[::1] starts, int head_bytes,
           int topic_length_bytes, log_offset):
    """The places of the parts of records of one kind: after each other all beginnings of bodies,
    their ends, beginnings and ends of topics, ends of records (int64 each). The lengths of all of
    them add up, and they name their own place if `log_offset` is that of the buffer."""
    cdef Py_ssize_t row, count = starts.shape[0]
    cdef int64_t size = buffer.shape[0]
    cdef uint64_t base = 0 if log_offset is None else <int64_t> log_offset
    cdef bint has_place = log_offset is not None
    cdef int tail_bytes = topic_length_bytes + PROPERTIES_SIZE_BYTES
    cdef int64_t start, total, length, body_end, topic_end
    cdef bytes made = room(5 * count * sizeof(int64_t))
    cdef int64_t *to = <int64_t *> PyBytes_AS_STRING(made)
    if topic_length_bytes not in (1, 2) or head_bytes < LOG_OFFSET_AT + 8:
        return None
    for row in range(count):
        start = starts[row]
        if start < 0 or start > size - head_bytes - tail_bytes:
            return None
        total = <int32_t> get32(&buffer[start])
        # The last field of a head is the length of the body.
        length = <int32_t> get32(&buffer[start + head_bytes - BODY_SIZE_BYTES])
        if length < 0 or length > total - head_bytes - tail_bytes or total > size - start:
            return None
        # As numbers without a sign, which cannot overflow.
        if has_place and <uint64_t> get64(&buffer[start + LOG_OFFSET_AT]) != start + base:
            return None
        body_end = start + head_bytes + length
        topic_end = body_end + topic_length_bytes
        if topic_length_bytes == 1:
            topic_end += buffer[body_end]
        else:
            topic_end += get16(&buffer[body_end])
        if topic_end + PROPERTIES_SIZE_BYTES > start + total:
            return None
        if topic_end + PROPERTIES_SIZE_BYTES + get16(&buffer[topic_end]) != start + total:
            return None
        to[row] = start + head_bytes
        to[count + row] = body_end
        to[2 * count + row] = body_end + topic_length_bytes
        to[3 * count + row] = topic_end
        to[4 * count + row] = start + total
    return made


# Twin: pipeline/decode/decode.py numbers
def numbers(const uint8_t[::1] buffer, const int64_t[::1] starts, int position, int width):
    """The number of 4 or 8 bytes that is `position` bytes after each start."""
    cdef Py_ssize_t row, count = starts.shape[0]
    cdef int64_t last = buffer.shape[0] - position - width
    cdef bytes made
    cdef int32_t *narrow
    cdef int64_t *wide
    if position < 0 or width not in (4, 8):
        return None
    for row in range(count):
        if starts[row] < 0 or starts[row] > last:
            return None
    made = room(count * width)
    if width == 4:
        narrow = <int32_t *> PyBytes_AS_STRING(made)
        for row in range(count):
            narrow[row] = <int32_t> get32(&buffer[starts[row] + position])
    else:
        wide = <int64_t *> PyBytes_AS_STRING(made)
        for row in range(count):
            wide[row] = get64(&buffer[starts[row] + position])
    return made


# Twin: pipeline/decode/arrow_values.py times
def microseconds(const uint8_t[::1] buffer, const int64_t[::1] starts, int position, int64_t first,
                 int64_t last):
    """The time in ms after each start, in us; each is in [first, last], which times 1000 is a
    number of 64 bits."""
    cdef Py_ssize_t row
    cdef int64_t *to
    cdef object made = numbers(buffer, starts, position, 8)
    if made is None:
        return None
    to = <int64_t *> PyBytes_AS_STRING(made)
    for row in range(starts.shape[0]):
        if to[row] < first or to[row] > last:
            return None
        to[row] *= 1000
    return made


# Twin: pipeline/decode/decode.py _Rows._crcs
def crcs(const uint8_t[::1] buffer, const int64_t[::1] begin, const int64_t[::1] end):
    """The CRC of each [begin, end), without its highest bit, as an int32."""
    cdef Py_ssize_t row, count = begin.shape[0]
    cdef bytes made = room(count * sizeof(int32_t))
    cdef int32_t *to = <int32_t *> PyBytes_AS_STRING(made)
    if not are_within(buffer.shape[0], begin, end):
        return None
    for row in range(count):
        to[row] = <int32_t> (c_crc32(&buffer[0] + begin[row], end[row] - begin[row]) & CRC_MASK)
    return made


# Twin: pipeline/decode/arrow_values.py slices
def slices(const uint8_t[::1] buffer, const int64_t[::1] begin, const int64_t[::1] end):
    """Offsets and data of an Arrow array of the bytes [begin, end)."""
    cdef Py_ssize_t row, count = begin.shape[0]
    cdef int64_t total = 0
    cdef int32_t *offset
    cdef uint8_t *to
    cdef bytes offsets, data
    if not are_within(buffer.shape[0], begin, end):
        return None
    for row in range(count):
        total += end[row] - begin[row]
        if total > MOST_BYTES:
            return None
    offsets, data = room((count + 1) * sizeof(int32_t)), room(total)
    offset = <int32_t *> PyBytes_AS_STRING(offsets)
    to = <uint8_t *> PyBytes_AS_STRING(data)
    total = 0
    for row in range(count):
        offset[row] = <int32_t> total
        memcpy(to + total, &buffer[0] + begin[row], end[row] - begin[row])
        total += end[row] - begin[row]
    offset[count] = <int32_t> total
    return offsets, data


# Twin: pipeline/decode/arrow_values.py slices
cdef bint are_within(int64_t size, const int64_t[::1] begin, const int64_t[::1] end):
    """Whether each [begin, end) lies in a buffer of that size, and has a length of 31 bits."""
    cdef Py_ssize_t row
    if begin.shape[0] != end.shape[0] or size == 0:
        return False
    for row in range(begin.shape[0]):
        if not 0 <= begin[row] <= end[row] <= size or end[row] - begin[row] > MOST_BYTES:
            return False
    return True


# Twin: pipeline/decode/arrow_values.py hex_texts
def hexadecimal(const uint8_t[::1] buffer, const int64_t[::1] starts, tuple fields):
    """Data of an Arrow array of strings of the same length: the bytes of some fields of each
    record, (position, width) each, in digits."""
    cdef int64_t at[8]
    cdef int64_t widths[8]
    cdef int64_t total = 0, start
    cdef Py_ssize_t row, field, count = starts.shape[0], parts = len(fields)
    cdef int64_t index
    cdef uint8_t value
    cdef bytes made
    cdef uint8_t *to
    cdef const uint8_t *digits = b"0123456789ABCDEF"
    if parts > 8:
        return None
    for field in range(parts):
        at[field], widths[field] = fields[field]
        if not 0 <= at[field] <= 1024 or not 0 <= widths[field] <= 64:
            return None
        total += 2 * widths[field]
        for row in range(count):
            if not 0 <= starts[row] <= buffer.shape[0] - at[field] - widths[field]:
                return None
    if count * total > MOST_BYTES:
        return None
    made = room(count * total)
    to = <uint8_t *> PyBytes_AS_STRING(made)
    for row in range(count):
        for field in range(parts):
            start = starts[row] + at[field]
            for index in range(widths[field]):
                value = buffer[start + index]
                to[0] = digits[value >> 4]
                to[1] = digits[value & 15]
                to += 2
    return made


# --- properties -----------------------------------------------------------------------------------


# Twin: pipeline/decode/properties.py _cut
cdef inline int64_t cut_entry(
    const uint8_t *text, int64_t begin, int64_t end, int64_t *middle
) noexcept:
    """The end of the entry that begins there. `middle` is the end of its name, or `begin`: without
    a name or a value it does not count."""
    cdef const uint8_t *mark = <const uint8_t *> memchr(text + begin, ENTRY_END, end - begin)
    cdef int64_t stop = end if mark == NULL else mark - text
    mark = <const uint8_t *> memchr(text + begin, NAME_END, stop - begin)
    middle[0] = begin if mark == NULL or mark - text + 1 >= stop else mark - text
    return stop


cdef struct Entry:
    # The number of its text; where name and value begin, and where the value ends.
    int32_t row, name, value, end
    # The number of its name among the different ones.
    int32_t kind


cdef struct Name:
    const uint8_t *at
    Py_ssize_t size


cdef class Entries:
    """The entries of texts that are cut by `entries`."""

    cdef const uint8_t[::1] text
    cdef Py_ssize_t rows, count, most
    cdef Entry *found
    cdef int kinds
    cdef Name names[MOST_NAMES]

    def __dealloc__(self):
        PyMem_RawFree(self.found)

    cdef bint add(self, int32_t row, int64_t name, int64_t value, int64_t end, int kind) except -1:
        """Take in an entry."""
        cdef Entry *entry
        cdef Entry *more
        if self.count == self.most:
            self.most *= 2
            more = <Entry *> PyMem_RawRealloc(self.found, self.most * sizeof(Entry))
            if more == NULL:
                raise MemoryError
            self.found = more
        entry = self.found + self.count
        entry.row, entry.name = row, <int32_t> name
        entry.value, entry.end, entry.kind = <int32_t> value, <int32_t> end, kind
        self.count += 1
        return True

    # Twin: pipeline/decode/properties.py _cut
    cdef int kind_of(self, const uint8_t *at, Py_ssize_t size, int guess) noexcept:
        """The number of a name; -1 if there are too many."""
        cdef int kind
        if guess < self.kinds and self.names[guess].size == size:
            if memcmp(self.names[guess].at, at, size) == 0:
                return guess
        for kind in range(self.kinds):
            if self.names[kind].size == size and memcmp(self.names[kind].at, at, size) == 0:
                return kind
        if self.kinds == MOST_NAMES:
            return -1
        self.names[self.kinds].at, self.names[self.kinds].size = at, size
        self.kinds += 1
        return self.kinds - 1

    # Twin: pipeline/decode/properties.py _cut
    cdef bint cut(self, int32_t row, int64_t begin, int64_t end) except -1:
        """Take in the entries of a text; False: it is not plain."""
        cdef const uint8_t *text = &self.text[0]
        cdef int64_t stop, middle
        cdef uint64_t seen = 0
        cdef int kind = -1
        while begin < end:
            stop = cut_entry(text, begin, end, &middle)
            if begin < middle:
                # Names mostly come in the same order.
                kind = self.kind_of(text + begin, middle - begin, kind + 1)
                if kind < 0 or seen >> kind & 1:
                    return False
                seen |= <uint64_t> 1 << kind
                self.add(row, begin, middle + 1, stop, kind)
            begin = stop + 1
        return True

    # Twin: pipeline/decode/properties.py Properties.as_map
    def map(self, dropped):
        """Offsets of an Arrow map, then offsets and data of its names, and those of its values;
        without the names that are `dropped` (a set of bytes)."""
        cdef bint kept[MOST_NAMES]
        cdef Entry *entry
        cdef Py_ssize_t index, row = 0, count = 0
        cdef int64_t names_bytes = 0, values_bytes = 0
        cdef bytes lists = room((self.rows + 1) * sizeof(int32_t))
        cdef int32_t *to = <int32_t *> PyBytes_AS_STRING(lists)
        for index in range(self.kinds):
            kept[index] = self.names[index].at[: self.names[index].size] not in dropped
        for index in range(self.count):
            entry = self.found + index
            while row <= entry.row:
                to[row] = <int32_t> count
                row += 1
            if kept[entry.kind]:
                count += 1
                names_bytes += entry.value - 1 - entry.name
                values_bytes += entry.end - entry.value
        while row <= self.rows:
            to[row] = <int32_t> count
            row += 1
        return lists, count, *self.copied(kept, count, names_bytes, values_bytes)

    # Twin: pipeline/decode/properties.py Properties.as_map
    cdef tuple copied(self, bint *kept, Py_ssize_t count, int64_t names_bytes, int64_t values_bytes):
        cdef bytes name_offsets = room((count + 1) * sizeof(int32_t))
        cdef bytes value_offsets = room((count + 1) * sizeof(int32_t))
        cdef bytes names = room(names_bytes), values = room(values_bytes)
        cdef int32_t *name_offset = <int32_t *> PyBytes_AS_STRING(name_offsets)
        cdef int32_t *value_offset = <int32_t *> PyBytes_AS_STRING(value_offsets)
        cdef char *name = PyBytes_AS_STRING(names)
        cdef char *value = PyBytes_AS_STRING(values)
        cdef int32_t names_size = 0, values_size = 0, size
        cdef Entry *entry
        cdef Py_ssize_t index
        name_offset[0] = value_offset[0] = 0
        for index in range(self.count):
            entry = self.found + index
            if not kept[entry.kind]:
                continue
            size = entry.value - 1 - entry.name
            memcpy(name + names_size, &self.text[0] + entry.name, size)
            names_size += size
            size = entry.end - entry.value
            memcpy(value + values_size, &self.text[0] + entry.value, size)
            values_size += size
            name_offset += 1
            value_offset += 1
            name_offset[0], value_offset[0] = names_size, values_size
        return name_offsets, names, value_offsets, values

    # Twin: pipeline/decode/properties.py Properties.value
    def value(self, tuple alternatives):
        """The value of the first of these names (bytes) that each text has, in the form of
        `value_array`."""
        cdef Py_ssize_t index
        cdef int kind, wanted
        cdef Entry *entry
        cdef bytes name, made = room(2 * self.rows * sizeof(int32_t))
        cdef int32_t *at = <int32_t *> PyBytes_AS_STRING(made)
        cdef int32_t *until = at + self.rows
        memset(at, 0, 2 * self.rows * sizeof(int32_t))
        for name in reversed(alternatives):
            wanted = -1
            for kind in range(self.kinds):
                if self.names[kind].at[: self.names[kind].size] == name:
                    wanted = kind
            for index in range(self.count):
                entry = self.found + index
                if entry.kind == wanted:
                    at[entry.row], until[entry.row] = entry.value, entry.end
        return value_array(&self.text[0], at, until, self.rows)


# Twin: pipeline/decode/properties.py Properties.value
cdef tuple value_array(
    const uint8_t *text, const int32_t *at, const int32_t *until, Py_ssize_t rows
):
    """Bits, offsets and data of an Arrow array of the values [at, until); a value that ends at 0 is
    null. The number of nulls comes first."""
    cdef Py_ssize_t row, missing = 0
    cdef int64_t total = 0
    cdef bytes bits = room((rows + 7) // 8), offsets = room((rows + 1) * sizeof(int32_t)), values
    cdef uint8_t *bit = <uint8_t *> PyBytes_AS_STRING(bits)
    cdef int32_t *offset = <int32_t *> PyBytes_AS_STRING(offsets)
    cdef char *to
    memset(bit, 0, (rows + 7) // 8)
    for row in range(rows):
        offset[row] = <int32_t> total
        total += until[row] - at[row]
        if until[row]:
            bit[row >> 3] |= 1 << (row & 7)
        else:
            missing += 1
    offset[rows] = <int32_t> total
    values = room(total)
    to = PyBytes_AS_STRING(values)
    for row in range(rows):
        memcpy(to + offset[row], text + at[row], until[row] - at[row])
    return missing, bits, offsets, values


# Twin: pipeline/decode/properties.py Properties.value
def values(
    const uint8_t[::1] buffer, const int64_t[::1] begin, const int64_t[::1] end, tuple names
):
    """The values of each of some names (bytes) in the texts [begin, end), in the form of
    `value_array`. All texts are ASCII."""
    cdef Py_ssize_t row, rows = begin.shape[0]
    cdef int number, count = len(names)
    cdef Name wanted[MOST_NAMES]
    cdef int32_t *found
    if not 0 < count <= MOST_NAMES or buffer.shape[0] > MOST_BYTES:
        return None
    if not are_within(buffer.shape[0], begin, end):
        return None
    for number in range(count):
        wanted[number].at = <const uint8_t *> PyBytes_AS_STRING(names[number])
        wanted[number].size = len(names[number])
    found = <int32_t *> PyMem_RawCalloc(2 * count * rows + 1, sizeof(int32_t))
    if found == NULL:
        raise MemoryError
    try:
        for row in range(rows):
            if not find_values(&buffer[0], begin[row], end[row], wanted, count, found + row, rows):
                return None
        return [
            value_array(
                &buffer[0], found + 2 * number * rows, found + (2 * number + 1) * rows, rows
            )
            for number in range(count)
        ]
    finally:
        PyMem_RawFree(found)


# Twin: pipeline/decode/properties.py Properties.value
cdef bint find_values(
    const uint8_t *text, int64_t begin, int64_t end, const Name *wanted, int count, int32_t *found,
    Py_ssize_t step
) noexcept:
    """The places of the values in a text: at `found`, and its `step`s on, begin and end of each;
    the last value of a repeated name counts. False: it is not ASCII."""
    cdef int64_t stop, middle
    cdef int number
    if not is_ascii(text + begin, end - begin):
        return False
    while begin < end:
        stop = cut_entry(text, begin, end, &middle)
        if begin < middle:
            for number in range(count):
                if wanted[number].size == middle - begin and (
                    memcmp(wanted[number].at, text + begin, middle - begin) == 0
                ):
                    found[2 * number * step] = <int32_t> (middle + 1)
                    found[(2 * number + 1) * step] = <int32_t> stop
        begin = stop + 1
    return True


# Twin: pipeline/decode/properties.py _cut
def entries(const uint8_t[::1] text, const int32_t[::1] offsets):
    """The properties in texts, [offsets[n], offsets[n + 1]) each."""
    cdef Py_ssize_t row, count = offsets.shape[0] - 1
    cdef Entries made = Entries()
    if count < 1 or text.shape[0] == 0 or text.shape[0] > MOST_BYTES or offsets[0] < 0:
        return None
    made.text, made.rows, made.most = text, count, 4 * count
    made.found = <Entry *> PyMem_RawMalloc(made.most * sizeof(Entry))
    if made.found == NULL:
        raise MemoryError
    for row in range(count):
        if not offsets[row] <= offsets[row + 1] <= text.shape[0]:
            return None
        if not made.cut(<int32_t> row, offsets[row], offsets[row + 1]):
            return None
    return made
