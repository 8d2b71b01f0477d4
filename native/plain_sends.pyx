# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Plain sends at the head of a read: SEND_MESSAGE (10) and SEND_MESSAGE_V2 (310), JSON or binary
headers, under ASYNC_FLUSH. See `native/__init__.py` for what "plain" is, and who decides it.

A frame is looked at as a whole before anything of it is stored: `_parse` finds the fields,
`_take_in` the stored properties; only then is the record written, and the marks moved.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_GetItem
from cpython.ref cimport PyObject

cdef extern from "zlib.h":
    unsigned long c_crc32 "crc32"(unsigned long crc, const unsigned char *data, unsigned int size) nogil

DEF FIELDS = 13
DEF MOST_PROPERTIES = 32767
DEF MOST_KEYS = 64

# Fields of a send, in the order of the letters of code 310.
DEF GROUP = 0
DEF TOPIC = 1
DEF QUEUE_ID = 4
DEF SYS_FLAG = 5
DEF BORN = 6
DEF USER_FLAG = 7
DEF PROPERTIES = 8
DEF TIMES = 9
DEF UNIT = 10
DEF MOST_TIMES = 11
DEF BATCH = 12

cdef struct Text:
    const uint8_t *at
    int size
    bint escaped

cdef struct Send:
    int code
    int32_t opaque
    bint binary
    Text fields[FIELDS]
    const uint8_t *body
    int body_size
    int64_t numbers[FIELDS]

cdef inline void put32(uint8_t *to, uint32_t value) noexcept nogil:
    to[0] = value >> 24
    to[1] = value >> 16
    to[2] = value >> 8
    to[3] = value

cdef inline void put64(uint8_t *to, uint64_t value) noexcept nogil:
    put32(to, <uint32_t> (value >> 32))
    put32(to + 4, <uint32_t> value)

cdef inline uint32_t get32(const uint8_t *at) noexcept nogil:
    return (<uint32_t> at[0] << 24) | (<uint32_t> at[1] << 16) | (<uint32_t> at[2] << 8) | at[3]

cdef inline int get16(const uint8_t *at) noexcept nogil:
    return (at[0] << 8) | at[1]


cdef class Route:
    """Where sends of a topic go; made by the plain path, thrown away when any topic changes."""

    cdef object name
    cdef bytes field
    cdef object stats
    cdef list queues
    cdef int32_t sys_flag
    # Counted since `flush`.
    cdef object touched

    def __init__(self, name, queues, stats, sys_flag):
        """`queues` has a ConsumeQueue for each queue id that may be sent to, or None."""
        encoded = name.encode()
        self.name = name
        self.field = bytes((len(encoded),)) + encoded
        self.queues = queues
        self.stats = stats
        self.sys_flag = sys_flag


cdef class PlainSends:
    cdef dict routes
    cdef object find_route
    cdef object find_queue
    cdef object log
    cdef object count
    cdef bytes cluster
    cdef bytes store_host
    cdef list json_parts
    cdef list long_keys
    cdef dict asking
    cdef bytes id_prefix
    cdef int max_message_bytes
    cdef int safe_properties
    cdef uint8_t scratch[MOST_PROPERTIES + 512]
    cdef public int64_t taken

    def __init__(self, log, find_route, find_queue, count, *, cluster, store_host, json_parts, long_keys,
                 not_plain, max_message_bytes, safe_properties):
        """`json_parts`: the answer's template, cut where msgId, queueId, queueOffset and opaque go.
        `not_plain`: names of properties that ask for more than to be stored."""
        self.routes = {}
        self.log = log
        self.find_route = find_route
        self.find_queue = find_queue
        self.count = count
        self.cluster = b"CLUSTER\x01" + cluster
        self.store_host = store_host
        self.json_parts = json_parts
        self.long_keys = long_keys
        self.asking = dict.fromkeys(not_plain, True)
        self.id_prefix = store_host.hex().upper().encode()
        self.max_message_bytes = max_message_bytes
        self.safe_properties = min(safe_properties, MOST_PROPERTIES)
        self.taken = 0

    def forget_routes(self):
        self.routes.clear()

    def take(self, const uint8_t[::1] read, bytes born_host):
        """How many bytes of the read were served, and the answers to them."""
        cdef Py_ssize_t size = read.shape[0]
        cdef const uint8_t *base = &read[0]
        cdef Py_ssize_t position = 0
        cdef object log = self.log
        if size < 12 or base[4] > 1:
            return 0, None, 0
        segment = log.claim()
        if segment is None:
            return 0, None, 0
        answers = []
        cdef uint8_t[::1] memory
        cdef int64_t start, wrote, end, store_ms
        cdef Send send
        cdef int64_t total
        cdef int header
        pending = []
        wrote = segment.wrote
        try:
            memory = segment.memory
            start = segment.start
            end = segment.size
            store_ms = log.claimed_ms()
            while size - position >= 12:
                total = get32(base + position)
                if total < 4 or position + 4 + total > size:
                    break
                header = get32(base + position + 4) & 0xFFFFFF
                if header > total - 4:
                    break
                send.binary = base[position + 4] == 1
                if base[position + 4] > 1:
                    break
                send.body = base + position + 8 + header
                send.body_size = total - 4 - header
                if not self._parse(base + position + 8, header, &send):
                    break
                answer = self._store(&send, born_host, &memory[0], start, &wrote, end, store_ms, pending)
                if answer is None:
                    break
                answers.append(answer)
                position += 4 + total
        finally:
            log.release(wrote, pending)
        if not answers:
            return 0, None, 0
        self.taken += len(answers)
        return position, b"".join(answers) if len(answers) > 1 else answers[0], len(answers)

    cdef bint _parse(self, const uint8_t *at, int size, Send *send) except -1:
        cdef int index
        for index in range(FIELDS):
            send.fields[index].at = NULL
        if send.binary:
            return False
        elif not self._parse_json(at, size, send):
            return False
        for index in (GROUP, TOPIC, 2, 3, QUEUE_ID, SYS_FLAG, BORN, USER_FLAG):
            if send.fields[index].at == NULL:
                return False
        for index in range(FIELDS):
            if index != PROPERTIES and send.fields[index].at != NULL and send.fields[index].escaped:
                return False
        for index in (3, QUEUE_ID, SYS_FLAG, BORN, USER_FLAG):
            if not number(send.fields[index].at, send.fields[index].size, &send.numbers[index], index != BORN):
                return False
        send.numbers[TIMES] = 0
        if send.fields[TIMES].at != NULL and not number(
            send.fields[TIMES].at, send.fields[TIMES].size, &send.numbers[TIMES], True
        ):
            return False
        if send.fields[MOST_TIMES].at != NULL and not number(
            send.fields[MOST_TIMES].at, send.fields[MOST_TIMES].size, &send.numbers[MOST_TIMES], True
        ):
            return False
        for index in (UNIT, BATCH):
            if send.fields[index].at != NULL and not (
                send.fields[index].size == 5 and memcmp(send.fields[index].at, b"false", 5) == 0
            ):
                return False
        return True

    cdef bint _parse_binary(self, const uint8_t *at, int size, Send *send) except -1:
        cdef int position, entries_end, key, value
        cdef const uint8_t *key_at
        if size < 21:
            return False
        send.code = get16(at)
        if send.code != 310 and send.code != 10:
            return False
        send.opaque = <int32_t> get32(at + 5)
        if get32(at + 9) != 0 or get32(at + 13) != 0:
            return False
        position = 21
        entries_end = 21 + <int32_t> get32(at + 17)
        if entries_end != size:
            return False
        while position < entries_end:
            if entries_end - position < 6:
                return False
            key = get16(at + position)
            key_at = at + position + 2
            if key > entries_end - position - 6:
                return False
            position += 2 + key
            value = <int32_t> get32(at + position)
            position += 4
            if value < 0 or value > entries_end - position:
                return False
            index = self._field(send.code, key_at, key)
            if index < 0 or not value:
                return False
            send.fields[index].at = at + position
            send.fields[index].size = value
            send.fields[index].escaped = False
            position += value
        return True

    cdef int _field(self, int code, const uint8_t *key, int size) except -2:
        cdef int index
        cdef bytes known
        if code == 310:
            if size == 1 and 97 <= key[0] <= 109:
                return key[0] - 97
            return -1
        for index in range(FIELDS):
            known = self.long_keys[index]
            if len(known) == size and memcmp(PyBytes_AS_STRING(known), key, size) == 0:
                return index
        return -1

    cdef bint _parse_json(self, const uint8_t *at, int size, Send *send) except -1:
        """Objects of texts and numbers without blanks; whatever else there is, is not plain."""
        cdef int position = 1, key_size, fields_at = 0, fields_end = 0
        cdef const uint8_t *key
        cdef Text text
        cdef int64_t value
        cdef bint has_code = False, has_opaque = False
        if size < 2 or at[0] != 123 or at[size - 1] != 125:
            return False
        while True:
            position = scan_text(at, position, size, &text)
            if position < 0 or text.escaped or position >= size or at[position] != 58:
                return False
            position += 1
            key = text.at
            key_size = text.size
            if key_size == 9 and memcmp(key, b"extFields", 9) == 0:
                if at[position] != 123 or fields_at:
                    return False
                fields_at = position + 1
                position = skip_object(at, fields_at, size)
                if position < 0:
                    return False
                fields_end = position - 1
            elif at[position] == 34:
                position = scan_text(at, position, size, &text)
                if position < 0 or text.escaped:
                    return False
                if not (
                    key_size == 8 and memcmp(key, b"language", 8) == 0
                    or key_size == 24 and memcmp(key, b"serializeTypeCurrentRPC", 23) == 0
                    or key_size == 23 and memcmp(key, b"serializeTypeCurrentRPC", 23) == 0
                ):
                    return False
            else:
                position = scan_number(at, position, size, &value)
                if position < 0:
                    return False
                if key_size == 4 and memcmp(key, b"code", 4) == 0:
                    send.code = value
                    has_code = True
                elif key_size == 6 and memcmp(key, b"opaque", 6) == 0:
                    send.opaque = value
                    has_opaque = value == <int32_t> value
                elif key_size == 4 and memcmp(key, b"flag", 4) == 0:
                    if value != 0:
                        return False
                elif not (key_size == 7 and memcmp(key, b"version", 7) == 0):
                    return False
            if position >= size:
                return False
            if at[position] == 125:
                break
            if at[position] != 44:
                return False
            position += 1
        if position != size - 1 or not has_code or not has_opaque or not fields_at:
            return False
        if send.code != 310 and send.code != 10:
            return False
        position = fields_at
        while position < fields_end:
            position = scan_text(at, position, fields_end, &text)
            if position < 0 or text.escaped or position >= fields_end or at[position] != 58:
                return False
            index = self._field(send.code, text.at, text.size)
            if index < 0:
                return False
            position = scan_text(at, position + 1, fields_end, &send.fields[index])
            if position < 0:
                return False
            if position < fields_end:
                if at[position] != 44:
                    return False
                position += 1
        return True

    cdef object _store(self, Send *send, bytes born_host, uint8_t *memory, int64_t start,
                       int64_t *wrote, int64_t end, int64_t store_ms, list pending):
        cdef Route route
        cdef bytes name = PyBytes_FromStringAndSize(<char *> send.fields[TOPIC].at, send.fields[TOPIC].size)
        cdef PyObject *found = PyDict_GetItem(self.routes, name)
        if found == NULL:
            made = self.find_route(name)
            self.routes[name] = made
            if made is None:
                return None
            route = made
        elif <object> found is None:
            return None
        else:
            route = <Route> found
        cdef int64_t queue_id = send.numbers[QUEUE_ID]
        if not 0 <= queue_id < len(route.queues) or send.body_size > self.max_message_bytes:
            return None
        if send.numbers[SYS_FLAG] & 0x3C:
            return None
        queue = route.queues[queue_id]
        if queue is None:
            queue = self.find_queue(route.name, queue_id)
            if queue is None:
                return None
            route.queues[queue_id] = queue
        cdef int64_t tags_code = 0
        cdef Text unique, words
        unique.at = words.at = NULL
        cdef int stored = self._take_in(&send.fields[PROPERTIES], &tags_code, &unique, &words)
        if stored < 0 or stored > self.safe_properties:
            return None
        cdef int topic_size = len(route.field)
        cdef int hosts = len(born_host) + len(self.store_host)
        cdef int64_t size = 74 + hosts + send.body_size + topic_size + stored
        if wrote[0] + size + 8 > end or len(born_host) != 8 or hosts != 16:
            return None
        keys = keys_of(&unique, &words)
        # --- from here on nothing is refused any more
        cdef int64_t queue_offset = queue.next_offset
        cdef int64_t log_offset = start + wrote[0]
        cdef uint8_t *to = memory + wrote[0]
        # Its size comes last: until then there is no record here, if the process is killed.
        put32(to + 4, 0xDAA320A7)
        put32(to + 8, c_crc32(0, send.body, send.body_size) & 0x7FFFFFFF)
        put32(to + 12, queue_id)
        put32(to + 16, send.numbers[USER_FLAG])
        put64(to + 20, queue_offset)
        put64(to + 28, log_offset)
        put32(to + 36, (send.numbers[SYS_FLAG] | route.sys_flag))
        put64(to + 40, send.numbers[BORN])
        memcpy(to + 48, PyBytes_AS_STRING(born_host), 8)
        put64(to + 56, store_ms)
        memcpy(to + 64, PyBytes_AS_STRING(self.store_host), 8)
        put32(to + 72, send.numbers[TIMES])
        put64(to + 76, 0)
        put32(to + 84, send.body_size)
        to += 88
        memcpy(to, send.body, send.body_size)
        to += send.body_size
        memcpy(to, PyBytes_AS_STRING(route.field), topic_size)
        to += topic_size
        to[0] = stored >> 8
        to[1] = stored & 0xFF
        memcpy(to + 2, self.scratch, stored)
        put32(memory + wrote[0], size)
        pending.append((queue, queue_offset, log_offset, size, tags_code, keys, store_ms, route.name))
        queue.next_offset = queue_offset + 1
        wrote[0] += size
        self.count(route.stats, size, queue_id)
        return self._answer(send, log_offset, queue_id, queue_offset)

    cdef int _take_in(self, Text *text, int64_t *tags_code, Text *unique, Text *words) except -2:
        """The stored properties into `scratch`; how many bytes, -1 if they are not plain."""
        cdef uint8_t *to = self.scratch
        cdef uint8_t *entry
        cdef uint8_t *most = self.scratch + MOST_PROPERTIES
        cdef int position = 0, name_size, value_size
        cdef uint8_t c
        cdef uint8_t *mark
        if text.at != NULL:
            while position < text.size:
                entry = to
                mark = NULL
                while position < text.size:
                    c = text.at[position]
                    position += 1
                    if c == 92 and text.escaped:
                        if text.size - position < 5 or memcmp(text.at + position, b"u000", 4) != 0:
                            return -1
                        c = text.at[position + 4] - 48
                        if c != 1 and c != 2:
                            return -1
                        position += 5
                    elif c >= 0x80:
                        return -1
                    if to >= most:
                        return -1
                    to[0] = c
                    to += 1
                    if c == 2:
                        break
                    if c == 1 and mark == NULL:
                        mark = to - 1
                if to > entry and to[-1] == 2:
                    to -= 1
                name_size = mark - entry if mark != NULL else 0
                value_size = to - mark - 1 if mark != NULL else 0
                if name_size == 0 or value_size == 0:
                    to = entry
                    continue
                if name_size == 8 and memcmp(entry, b"UNIQ_KEY", 8) == 0:
                    unique.at = mark + 1
                    unique.size = value_size
                elif name_size == 4 and memcmp(entry, b"WAIT", 4) == 0:
                    to = entry
                    continue
                elif name_size == 4 and memcmp(entry, b"TAGS", 4) == 0:
                    tags_code[0] = java_hash(mark + 1, value_size)
                elif name_size == 4 and memcmp(entry, b"KEYS", 4) == 0:
                    words.at = mark + 1
                    words.size = value_size
                elif PyBytes_FromStringAndSize(<char *> entry, name_size) in self.asking:
                    return -1
                if to + 1 >= most:
                    return -1
                to[0] = 2
                to += 1
        cdef int cluster = len(self.cluster)
        if to + cluster >= most:
            return -1
        memcpy(to, PyBytes_AS_STRING(self.cluster), cluster)
        return to + cluster - self.scratch

    cdef bytes _answer(self, Send *send, int64_t log_offset, int64_t queue_id, int64_t queue_offset):
        cdef char out[1024]
        cdef int size = 8
        cdef int index
        if send.binary:
            return None
        size = append(out, size, self.json_parts[0])
        size = append(out, size, self.id_prefix)
        for index in range(16):
            out[size + index] = b"0123456789ABCDEF"[(log_offset >> (60 - 4 * index)) & 15]
        size += 16
        size = append(out, size, self.json_parts[1])
        size = decimal(out, size, queue_id)
        size = append(out, size, self.json_parts[2])
        size = decimal(out, size, queue_offset)
        size = append(out, size, self.json_parts[3])
        size = decimal(out, size, send.opaque)
        size = append(out, size, self.json_parts[4])
        put32(<uint8_t *> out, size - 4)
        put32(<uint8_t *> out + 4, size - 8)
        return PyBytes_FromStringAndSize(out, size)


cdef inline int append(char *out, int size, bytes part):
    memcpy(out + size, PyBytes_AS_STRING(part), len(part))
    return size + len(part)


cdef inline int decimal(char *out, int size, int64_t value) noexcept:
    cdef char digits[24]
    cdef int count = 0
    cdef uint64_t left = value if value >= 0 else -value
    if value < 0:
        out[size] = 45
        size += 1
    while True:
        digits[count] = 48 + left % 10
        left //= 10
        count += 1
        if left == 0:
            break
    while count:
        count -= 1
        out[size] = digits[count]
        size += 1
    return size


cdef int64_t java_hash(const uint8_t *at, int size) noexcept nogil:
    cdef uint32_t value = 0
    cdef int index
    for index in range(size):
        value = value * 31 + at[index]
    return <int32_t> value


cdef tuple keys_of(Text *unique, Text *words):
    cdef int begin = 0, position
    if words.at == NULL:
        if unique.at == NULL:
            return ()
        return ((<const char *> unique.at)[:unique.size].decode("ascii"),)
    found = []
    if unique.at != NULL:
        found.append((<const char *> unique.at)[:unique.size].decode("ascii"))
    for position in range(words.size + 1):
        if position == words.size or words.at[position] == 32:
            if position > begin:
                found.append((<const char *> words.at)[begin:position].decode("ascii"))
            begin = position + 1
    return tuple(found)


cdef bint number(const uint8_t *at, int size, int64_t *value, bint narrow) noexcept nogil:
    cdef int position = 0
    cdef int64_t found = 0
    cdef bint negative = size > 1 and at[0] == 45
    if negative:
        position = 1
    if size - position < 1 or size - position > 18:
        return False
    while position < size:
        if not 48 <= at[position] <= 57:
            return False
        found = found * 10 + at[position] - 48
        position += 1
    value[0] = -found if negative else found
    return not narrow or value[0] == <int32_t> value[0]


cdef int scan_number(const uint8_t *at, int position, int size, int64_t *value) noexcept nogil:
    cdef int begin = position
    if position < size and at[position] == 45:
        position += 1
    while position < size and 48 <= at[position] <= 57:
        position += 1
    if position - begin > 1 and at[begin] == 48:
        return -1
    return position if number(at + begin, position - begin, value, True) else -1


cdef int scan_text(const uint8_t *at, int position, int size, Text *text) noexcept nogil:
    """The text that begins with a quote at `position`; the place behind it, -1 if there is none."""
    cdef uint8_t c
    if position >= size or at[position] != 34:
        return -1
    position += 1
    text.at = at + position
    text.escaped = False
    while position < size:
        c = at[position]
        if c == 34:
            text.size = at + position - text.at
            return position + 1
        if c == 92:
            text.escaped = True
            position += 1
        elif c < 32 or c >= 0x80:
            return -1
        position += 1
    return -1


cdef int skip_object(const uint8_t *at, int position, int size) noexcept nogil:
    """The place behind the brace that ends an object of texts."""
    while position < size:
        if at[position] == 125:
            return position + 1
        if at[position] == 34:
            position += 1
            while position < size and at[position] != 34:
                position += 2 if at[position] == 92 else 1
        elif at[position] == 123 or at[position] == 91:
            return -1
        position += 1
    return -1
