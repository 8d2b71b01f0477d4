# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Checks records of a log, and derives their entries for queues and index, for a recovery or a
rebuild, which read gigabytes of them.

The rules are `scan_records` (protocol/message/record_check.py) for a sound record, and
`Derivation.entries` (store/dispatch/derived.py) for its entries. A record that is taken here is
sound by all the former rules, and asks for nothing special by the latter: its properties are ASCII
without zeros, its topic and queue are known to `place_of`, it lists no further queues. The first
other record ends a run; nothing was kept of it then.

The bytes may be damaged in any way: each length is read once, and bounded before it is used.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)

from aerobee.native.bytes cimport c_crc32, get16, get32, get64, java_hash, put32, put64
from aerobee.native.steps cimport step

from aerobee.protocol import checksum
from aerobee.protocol.message import properties as names
from aerobee.protocol.message import record_check, record_layout as layout
from aerobee.store.log import compiled
from aerobee.store.index import layout as index_layout
from aerobee.store.queues import queue_view

cdef int ENTRY_BYTES = queue_view.ENTRY_BYTES
cdef int PLACE_AT, SIZE_AT, TAGS_AT
PLACE_AT, SIZE_AT, TAGS_AT = queue_view.ENTRY_POSITIONS
cdef int HASHED_BYTES = index_layout.HASHED_BYTES
cdef int HASHED_AT, HASHED_OFFSET_AT, HASHED_MS_AT
HASHED_AT, HASHED_OFFSET_AT, HASHED_MS_AT = index_layout.HASHED_POSITIONS
cdef int64_t MIN_RECORD_BYTES = layout.MIN_RECORD_BYTES
cdef uint32_t MAGIC = layout.MESSAGE_MAGIC
cdef int MAGIC_AT = layout.MAGIC_POSITION
cdef int CRC_AT = layout.BODY_CRC_POSITION
cdef uint32_t CRC_MASK = checksum.CRC_MASK
cdef int TOPIC_SIZE_BYTES = layout.TOPIC_LENGTH_BYTES
# The lengths of topic and properties, which stand after the body.
cdef int TAIL_BYTES = TOPIC_SIZE_BYTES + layout.PROPERTIES_LENGTH.size
cdef int QUEUE_ID_AT = layout.QUEUE_ID_POSITION
cdef int QUEUE_OFFSET_AT = layout.QUEUE_OFFSET_POSITION
cdef int LOG_OFFSET_AT = layout.LOG_OFFSET_POSITION
cdef int SYS_FLAG_AT = layout.SYS_FLAG_POSITION
cdef int BORN_V6 = layout.SYS_BORN_HOST_V6
cdef int STORE_V6 = layout.SYS_STORE_HOST_V6
cdef int TRANSACTION = layout.SYS_TRANSACTION_MASK
cdef int PREPARED = layout.SYS_TRANSACTION_PREPARED
cdef int ROLLBACK = layout.SYS_TRANSACTION_ROLLBACK
cdef int MOST_TOPIC = layout.MAX_TOPIC_BYTES
cdef int MOST_PROPERTIES = names.MAX_PROPERTIES_BYTES
# A run costs some microseconds for each queue in it, whatever it has there.
cdef int MOST_RECORDS = 4 * record_check.MOST_RECORDS
cdef int64_t MOST_BYTES = record_check.MOST_BYTES
cdef int NAME_SEPARATOR = ord(names.NAME_SEPARATOR)
cdef int PROPERTY_SEPARATOR = ord(names.PROPERTY_SEPARATOR)
cdef int KEY_SEPARATOR = ord(names.KEY_SEPARATOR)
cdef bytes UNIQUE_KEY = names.PROPERTY_UNIQUE_KEY.encode()
cdef bytes KEYS = names.PROPERTY_KEYS.encode()
cdef bytes TAGS = names.PROPERTY_TAGS.encode()
cdef bytes FURTHER_OFFSETS = names.PROPERTY_MULTI_QUEUE_OFFSET.encode()

# The places of the body, of its length, and of the store time, by the two bits of the hosts.
cdef int HEAD_BYTES[4]
cdef int BODY_SIZE_AT[4]
cdef int STORE_MS_AT[4]
for _bits in range(4):
    _flag = (BORN_V6 if _bits & 1 else 0) | (STORE_V6 if _bits & 2 else 0)
    HEAD_BYTES[_bits] = layout.HEADS[_flag].size
    BODY_SIZE_AT[_bits] = HEAD_BYTES[_bits] - layout.BODY_LENGTH_BYTES
    STORE_MS_AT[_bits] = layout.store_timestamp_position(_flag)

# Places that are found without asking a dictionary. A power of two.
cdef enum:
    QUICK_PLACES = 1024
    NO_QUEUE = -1


cdef struct Part:
    # Bytes of a record, or of its properties.
    const uint8_t *at
    Py_ssize_t size


cdef struct Record:
    int64_t log_offset, queue_offset, store_ms
    int32_t size, queue_id, sys_flag
    Part topic, unique, keys, tags


cdef struct Claim:
    # An entry of a queue, and the number of the queue's next entry, -1 after the last.
    int64_t queue_offset, log_offset, tags_code
    int32_t size, following


cdef class Place:
    """The facts of a topic and queue id: the queue, None for records that get no entry; the hash of
    `topic#`; and the queue's first and last claim in the run."""
    cdef bytes topic
    cdef int32_t queue_id
    cdef object queue
    cdef uint32_t prefix
    cdef int first, last


# Twin: protocol/message/record_check.py scan_records
cdef inline bint is_plain_text(const uint8_t *at, Py_ssize_t size) noexcept nogil:
    """Whether all bytes are ASCII, and none is zero."""
    cdef uint64_t word
    while size >= 8:
        memcpy(&word, at, 8)
        # A byte of 1 to 127 has no high bit, and still none when one is taken from it.
        if (word | (word - 0x0101010101010101ULL)) & 0x8080808080808080ULL:
            return False
        at += 8
        size -= 8
    while size:
        if at[0] == 0 or at[0] >= 128:
            return False
        at += 1
        size -= 1
    return True


cdef inline bint is_name(const uint8_t *at, Py_ssize_t size, bytes name) noexcept:
    return size == PyBytes_GET_SIZE(name) and memcmp(at, PyBytes_AS_STRING(name), size) == 0


# Twin: protocol/message/properties.py tags_and_keys
cdef bint read_properties(const uint8_t *at, Py_ssize_t size, Record *record) noexcept:
    """Find tags and keys, as `decode_properties` does; False if further queues are listed."""
    cdef const uint8_t *end = at + size
    cdef const uint8_t *stop
    cdef const uint8_t *value
    cdef Part *found
    record.unique.size = record.keys.size = record.tags.size = 0
    while at < end:
        stop = <const uint8_t *> memchr(at, PROPERTY_SEPARATOR, end - at)
        if stop == NULL:
            stop = end
        value = <const uint8_t *> memchr(at, NAME_SEPARATOR, stop - at)
        if value != NULL and value + 1 < stop:
            size = value - at
            found = NULL
            if is_name(at, size, UNIQUE_KEY):
                found = &record.unique
            elif is_name(at, size, KEYS):
                found = &record.keys
            elif is_name(at, size, TAGS):
                found = &record.tags
            elif is_name(at, size, FURTHER_OFFSETS):
                return False
            if found != NULL:
                # The last one counts.
                found.at = value + 1
                found.size = stop - value - 1
        at = stop + 1
    return True


# Twin: protocol/message/record_check.py scan_records
cdef bint read_record(const uint8_t *at, int64_t room, int64_t log_offset, bint check_body,
                      Record *record) noexcept:
    """Whether a sound and plain record of at most `room` bytes is at `at`; it is in `record`."""
    cdef int head, bits, topic_size
    cdef int32_t body_size
    cdef int64_t rest, properties_size
    cdef const uint8_t *tail
    if room < MIN_RECORD_BYTES or get32(at + MAGIC_AT) != MAGIC:
        return False
    record.size = <int32_t> get32(at)
    if not MIN_RECORD_BYTES <= record.size <= room:
        return False
    record.sys_flag = <int32_t> get32(at + SYS_FLAG_AT)
    bits = (1 if record.sys_flag & BORN_V6 else 0) | (2 if record.sys_flag & STORE_V6 else 0)
    head = HEAD_BYTES[bits]
    # The lengths of topic and properties have to fit after the body.
    if head + TAIL_BYTES > record.size:
        return False
    body_size = <int32_t> get32(at + BODY_SIZE_AT[bits])
    rest = record.size - head - <int64_t> body_size
    if body_size < 0 or rest < TAIL_BYTES:
        return False
    record.log_offset = get64(at + LOG_OFFSET_AT)
    record.queue_id = <int32_t> get32(at + QUEUE_ID_AT)
    record.queue_offset = get64(at + QUEUE_OFFSET_AT)
    if record.log_offset != log_offset or record.queue_id < 0 or record.queue_offset < 0:
        return False
    record.store_ms = get64(at + STORE_MS_AT[bits])
    tail = at + head + body_size
    topic_size = tail[0]
    properties_size = rest - TAIL_BYTES - topic_size
    if not 0 < topic_size <= MOST_TOPIC or not 0 <= properties_size <= MOST_PROPERTIES:
        return False
    record.topic.at = tail + TOPIC_SIZE_BYTES
    record.topic.size = topic_size
    if get16(record.topic.at + topic_size) != properties_size:
        return False
    tail += TAIL_BYTES + topic_size
    if not is_plain_text(tail, properties_size) or not read_properties(tail, properties_size, record):
        return False
    return not check_body or (
        <int32_t> (c_crc32(at + head, body_size) & CRC_MASK) == <int32_t> get32(at + CRC_AT)
    )


cdef class Deriver:
    """Takes runs of records. `place_of(topic, queue id)` gives their queue and the hash of
    `topic#`, None for records that are not plain; the queue id is -1 for records that get no entry.
    With `check_body` bodies match their CRC; records below `derive_from` are checked and that is
    all.
    """
    cdef object place_of
    cdef bint check_body, with_keys
    cdef int64_t derive_from
    cdef dict places
    cdef list quick
    # The state of the run that is being taken:
    cdef list touched
    cdef Claim *claims
    cdef int count
    cdef uint8_t *hashed
    cdef Py_ssize_t hashed_size, hashed_room

    def __cinit__(self, object place_of, bint check_body, bint with_keys, int64_t derive_from):
        self.place_of = place_of
        self.check_body, self.with_keys, self.derive_from = check_body, with_keys, derive_from
        self.places = {}
        self.quick = [None] * QUICK_PLACES
        self.touched = []
        self.claims = <Claim *> malloc(MOST_RECORDS * sizeof(Claim))
        if self.claims == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.claims)
        free(self.hashed)

    # Twin: store/dispatch/derived.py Derivation.entries
    def take(self, const uint8_t[::1] buffer, Py_ssize_t position, int64_t log_offset,
             Py_ssize_t stop, int64_t passed_below, int64_t asked_up_to):
        """Take the run that begins at `position` of `buffer`, which is `log_offset`, and ends at or
        before `stop`; a `Derived`, None if its first record is not plain.

        Keys of records below the log offset `passed_below` are indexed; whether those of other
        records up to `asked_up_to` are is not known: such records are not plain.
        """
        cdef int64_t first = log_offset, store_ms = 0, keys = 0, words
        cdef int records = 0
        cdef Record record
        cdef Place place
        self.count = 0
        self.hashed_size = 0
        stop = min(stop, buffer.shape[0])
        if position < 0:
            return None
        while (
            records < MOST_RECORDS
            and log_offset - first < MOST_BYTES
            and position < stop
            and read_record(&buffer[position], stop - position, log_offset, self.check_body, &record)
        ):
            words = self._words(&record)
            if words and passed_below <= log_offset <= asked_up_to:
                break
            place = self._place(&record)
            if place is None:
                break
            if log_offset >= self.derive_from:
                if place.queue is not None:
                    self._claim(place, &record)
                keys += words
                if words and log_offset > asked_up_to:
                    self._put_keys(place.prefix, &record, words)
            store_ms = record.store_ms
            records += 1
            position += record.size
            log_offset += record.size
        if not records:
            return None
        hashed = PyBytes_FromStringAndSize(<const char *> self.hashed, self.hashed_size)
        step(b"run derived")
        return compiled.Derived(records, log_offset, store_ms, self._claimed(), keys, hashed)

    # Twin: store/dispatch/derived.py keys_of
    cdef int64_t _words(self, Record *record) noexcept:
        """The number of keys under which a record is indexed; 0 below `derive_from`."""
        cdef int64_t found = 1 if record.unique.size else 0
        cdef Py_ssize_t index
        cdef bint inside = False
        if (
            not self.with_keys
            or record.log_offset < self.derive_from
            or record.sys_flag & TRANSACTION == ROLLBACK
        ):
            return 0
        for index in range(record.keys.size):
            if record.keys.at[index] == KEY_SEPARATOR:
                inside = False
            elif not inside:
                inside = True
                found += 1
        return found

    cdef Place _place(self, Record *record):
        """The place of a record, None if it is not plain."""
        cdef int32_t queue_id = record.queue_id
        cdef uint32_t number
        cdef Place place
        if record.sys_flag & PREPARED or record.log_offset < self.derive_from:
            queue_id = NO_QUEUE
        number = <uint32_t> java_hash(<uint32_t> queue_id, record.topic.at, record.topic.size)
        number = (number ^ (number >> 10)) & (QUICK_PLACES - 1)
        found = self.quick[number]
        if found is not None:
            place = <Place> found
            if place.queue_id == queue_id and is_name(
                record.topic.at, record.topic.size, place.topic
            ):
                return place
        place = self._asked(record, queue_id)
        if place is not None:
            self.quick[number] = place
        return place

    cdef Place _asked(self, Record *record, int32_t queue_id):
        cdef Place place
        topic = PyBytes_FromStringAndSize(<const char *> record.topic.at, record.topic.size)
        found = self.places.get((topic, queue_id))
        if found is not None:
            return <Place> found
        found = self.place_of(topic, queue_id)
        if found is None:
            return None
        place = Place.__new__(Place)
        place.topic, place.queue_id, place.first = topic, queue_id, -1
        place.queue, prefix = found
        place.prefix = <uint32_t> <int64_t> prefix
        self.places[topic, queue_id] = place
        return place

    # Twin: store/dispatch/derived.py Derivation.entries
    cdef int _claim(self, Place place, Record *record) except -1:
        cdef Claim *claim = self.claims + self.count
        claim.queue_offset = record.queue_offset
        claim.log_offset = record.log_offset
        claim.size = record.size
        claim.tags_code = java_hash(0, record.tags.at, record.tags.size)
        claim.following = -1
        if place.first < 0:
            place.first = self.count
            self.touched.append(place)
        else:
            self.claims[place.last].following = self.count
        place.last = self.count
        self.count += 1
        return 0

    # Twin: store/dispatch/derived.py keys_of
    cdef int _put_keys(self, uint32_t prefix, Record *record, int64_t words) except -1:
        """Hash the record's keys: UNIQ_KEY first, then each word of KEYS."""
        cdef Py_ssize_t wanted = self.hashed_size + words * HASHED_BYTES
        cdef Py_ssize_t position = 0, begin
        cdef uint8_t *grown
        if wanted > self.hashed_room:
            grown = <uint8_t *> realloc(self.hashed, 2 * wanted)
            if grown == NULL:
                raise MemoryError
            self.hashed, self.hashed_room = grown, 2 * wanted
        if record.unique.size:
            self._put_key(java_hash(prefix, record.unique.at, record.unique.size), record)
        while position < record.keys.size:
            begin = position
            while position < record.keys.size and record.keys.at[position] != KEY_SEPARATOR:
                position += 1
            if position > begin:
                self._put_key(java_hash(prefix, record.keys.at + begin, position - begin), record)
            position += 1
        assert self.hashed_size == wanted
        return 0

    # Twin: store/dispatch/derived.py keys_of
    cdef void _put_key(self, int32_t key_hash, Record *record) noexcept:
        cdef uint8_t *to = self.hashed + self.hashed_size
        put32(to + HASHED_AT, <uint32_t> key_hash)
        put64(to + HASHED_OFFSET_AT, record.log_offset)
        put64(to + HASHED_MS_AT, record.store_ms)
        self.hashed_size += HASHED_BYTES

    # Twin: store/dispatch/derived.py by_queue
    cdef list _claimed(self):
        """Queues with their runs of claims: first slots, and the entries from there on."""
        cdef Place place
        cdef list found = [], runs
        cdef int number
        for place in self.touched:
            runs = []
            number = place.first
            while number >= 0:
                number = self._add_run(number, runs)
            found.append((place.queue, runs))
            place.first = -1
        self.touched = []
        return found

    # Twin: store/dispatch/derived.py by_queue
    cdef int _add_run(self, int number, list runs) except -2:
        """Add the run that begins with a claim; return the number of the claim after it."""
        cdef int64_t first = self.claims[number].queue_offset
        cdef int64_t count = 0
        cdef int behind = number
        cdef bytes packed
        cdef uint8_t *to
        while behind >= 0 and self.claims[behind].queue_offset - first == count:
            behind = self.claims[behind].following
            count += 1
        packed = PyBytes_FromStringAndSize(NULL, count * ENTRY_BYTES)
        to = <uint8_t *> PyBytes_AS_STRING(packed)
        while number != behind:
            put64(to + PLACE_AT, self.claims[number].log_offset)
            put32(to + SIZE_AT, self.claims[number].size)
            put64(to + TAGS_AT, self.claims[number].tags_code)
            to += ENTRY_BYTES
            number = self.claims[number].following
        runs.append((first, packed))
        return behind
