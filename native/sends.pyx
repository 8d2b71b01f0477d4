# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Plain sends: SEND_MESSAGE (10), SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320).

A send is plain if its topic is there, if it asks for no more than to be stored (no delay, no
transaction, no retry), if it is ASCII but for the body, and while the store refuses nothing. The
result equals that of `broker/messages/send.py`, byte for byte; the caller gives the properties that
are not plain, the answer's template and the routes of a topic.

A send is looked at as a whole before any part of it is stored: until `_append` nothing has changed.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memchr, memcmp, memcpy, memset
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.ref cimport PyObject

from aerobee.native.bytes cimport (
    Output, append, c_crc32, decimal, get16, get32, java_hash, publish32, put32, put64, space,
)
from aerobee.native.header cimport (
    Header, Name, Text, bytes_of, is_name, name_of, read_numbers, unescape,
)
from aerobee.native.steps cimport step

from aerobee.protocol import checksum
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames import header_encode
from aerobee.protocol.headers import fields as header_fields
from aerobee.protocol.headers import send as send_headers
from aerobee.protocol.message import batch as batches
from aerobee.protocol.message import properties as names
from aerobee.protocol.message import record_layout as layout

cdef int SEND = RequestCode.SEND_MESSAGE
cdef int SEND_V2 = RequestCode.SEND_MESSAGE_V2
cdef int SEND_BATCH = RequestCode.SEND_BATCH_MESSAGE

# The fields of a send: the place of each, whether it has to be there, and how many bits its number
# has; and the place of the field that a name of one letter means.
cdef list LONG_KEYS = [key.encode() for key in send_headers.LONG_KEYS]
cdef dict _places = {
    name: at for at, name in enumerate(send_headers.SendMessageHeader.__struct_fields__)
}
cdef int TOPIC = _places["topic"], QUEUE_ID = _places["queue_id"]
cdef int SYS_FLAG = _places["sys_flag"], BORN = _places["born_timestamp"]
cdef int USER_FLAG = _places["flag"], PROPERTIES = _places["properties"]
cdef int TIMES = _places["reconsume_times"], UNIT = _places["unit_mode"], BATCH = _places["batch"]
cdef bint NEEDED[FIELDS]
cdef int BITS[FIELDS]
cdef int BY_LETTER[256]
for _at in range(256):
    BY_LETTER[_at] = -1
assert len(LONG_KEYS) == len(_places) == FIELDS
for _at, (_short, _long) in enumerate(zip(send_headers.SHORT_KEYS, send_headers.LONG_KEYS)):
    BY_LETTER[<int> ord(_short)] = _at
    NEEDED[_at] = _at < send_headers.REQUIRED_FIELDS
    BITS[_at] = send_headers.NUMBER_BITS.get(_long, 0)
cdef Name TRUE = name_of(header_fields.TRUE), FALSE = name_of(header_fields.FALSE)
cdef frozenset BATCH_MARKS = frozenset([mark.encode() for mark in send_headers.BATCH_MARKS])

cdef Name UNIQUE_KEY = name_of(names.PROPERTY_UNIQUE_KEY), WAIT = name_of(names.PROPERTY_WAIT)
cdef Name TAGS = name_of(names.PROPERTY_TAGS), KEYS = name_of(names.PROPERTY_KEYS)
cdef int NAME_END = ord(names.NAME_SEPARATOR)
cdef int ENTRY_END = ord(names.PROPERTY_SEPARATOR)
cdef int KEY_END = ord(names.KEY_SEPARATOR)
assert MOST_PROPERTIES == names.MAX_PROPERTIES_BYTES

cdef int MAGIC_AT, CRC_AT, QUEUE_ID_AT, FLAG_AT, QUEUE_OFFSET_AT, LOG_OFFSET_AT, SYS_FLAG_AT
cdef int BORN_AT, BORN_HOST_AT, STORE_TIME_AT, STORE_HOST_AT, TIMES_AT, PREPARED_AT, BODY_SIZE_AT
(
    _, MAGIC_AT, CRC_AT, QUEUE_ID_AT, FLAG_AT, QUEUE_OFFSET_AT, LOG_OFFSET_AT, SYS_FLAG_AT,
    BORN_AT, BORN_HOST_AT, STORE_TIME_AT, STORE_HOST_AT, TIMES_AT, PREPARED_AT, BODY_SIZE_AT,
) = layout.V4_POSITIONS
cdef uint32_t MAGIC = layout.MESSAGE_MAGIC
cdef uint32_t CRC_MASK = checksum.CRC_MASK
cdef int HOST_BYTES = layout.V4_HOST_BYTES
cdef int BODY_AT = layout.HEADS[0].size
cdef int PROPERTIES_SIZE_BYTES = layout.PROPERTIES_LENGTH.size
# The bytes of a record without body, properties, and topic with its length.
cdef int FIXED_BYTES = layout.MIN_RECORD_BYTES - layout.TOPIC_LENGTH_BYTES
cdef int BLANK_BYTES = layout.BLANK_BYTES

cdef int ITEM_FLAG_AT, ITEM_BODY_SIZE_AT
_, _, _, ITEM_FLAG_AT, ITEM_BODY_SIZE_AT = batches.ITEM_POSITIONS
cdef int ITEM_HEAD_BYTES = batches.ITEM_HEAD_BYTES
cdef int MIN_ITEM_BYTES = batches.MIN_ITEM_BYTES

cdef int FRAME_BYTES = header_encode.FRAME_WORDS.size
cdef int TOTAL_BYTES = header_encode.TOTAL_BYTES
cdef uint32_t BINARY_KIND = header_encode.ROCKETMQ << header_encode.SERIALIZATION_SHIFT
cdef int SIZE_BYTES = header_encode.LENGTH.size
cdef int HEAD_BYTES = header_encode.BINARY_HEAD.size
cdef int OPAQUE_AT = header_encode.BINARY_POSITIONS[3]
cdef int ID_END = ord(send_headers.ID_SEPARATOR)
# The digits of a log offset in an id.
cdef enum:
    OFFSET_DIGITS = 16


cdef class Route:
    """The queues that a topic's sends go to, with counts of what was stored; thrown away when any
    topic changes."""

    def __cinit__(self, name, queues, sys_flag, size_kinds):
        """`queues` is how many queue ids take sends; `sys_flag` is added to that of each
        message."""
        encoded = name.encode()
        self.name = name
        self.field = bytes((len(encoded),)) + encoded
        self.queues = [None] * queues
        self.sys_flag = sys_flag
        self.size_kinds = size_kinds
        self.touched = []
        self.messages = <int64_t *> calloc(2 * queues + size_kinds, sizeof(int64_t))
        if self.messages == NULL:
            raise MemoryError
        self.stored_bytes = self.messages + <int> queues
        self.sizes = self.stored_bytes + <int> queues

    def __dealloc__(self):
        free(self.messages)

    # Twin: broker/broker_stats.py BrokerStats.stored
    cdef void note(self, int64_t queue_id, int64_t messages, int64_t stored_bytes, int kind):
        if not self.messages[queue_id]:
            self.touched.append(queue_id)
        self.messages[queue_id] += messages
        self.stored_bytes[queue_id] += stored_bytes
        self.sizes[kind] += messages

    # Twin: broker/broker_stats.py BrokerStats.stored
    def take_counts(self):
        """The counts since the last call: (queue id, messages, bytes) of each queue, and the
        messages by size."""
        cdef int64_t queue_id
        found = []
        for queue_id in self.touched:
            found.append((queue_id, self.messages[queue_id], self.stored_bytes[queue_id]))
            self.messages[queue_id] = self.stored_bytes[queue_id] = 0
        self.touched = []
        sizes = [self.sizes[kind] for kind in range(self.size_kinds)]
        for kind in range(self.size_kinds):
            self.sizes[kind] = 0
        return found, sizes


cdef class Sends:
    """Serves plain sends of a store. Loop thread only."""

    def __init__(self, log, owner, *, cluster, store_host, json_parts,
                 binary_parts, not_plain, not_plain_flags, size_bounds, max_message_bytes,
                 safe_properties):
        """`log` is the CommitLog, which is claimed while records are written (`CommitLog.claim`).
        `owner` is the broker's `CompiledRequests`. Its `send_route` takes a topic's name and gives
        its Route, or None if sends to it are not plain; its `count_stored` is called after each
        claim, with a topic's name and the counts of `Route.take_counts`.

        `json_parts`, `binary_parts`: the answer's header, cut at its variable parts (`SendReply`).
        `not_plain` and `not_plain_flags`: the names of properties and the bits of a sysFlag that no
        plain message has (`protocol/message/demands.py`).
        """
        self.log, self.owner = log, owner
        self.routes = {}
        self.dirty = []
        self.cluster = cluster
        self.store_host = store_host
        self.id_prefix = store_host.hex().upper().encode()
        self.json_parts, self.binary_parts = json_parts, binary_parts
        # The most bytes of an answer, besides its ids.
        self.reply_bytes = 128 + max(sum(map(len, json_parts)), sum(map(len, binary_parts)))
        self.not_plain = set(not_plain)
        self.not_plain_flags = not_plain_flags
        self.size_bounds = list(size_bounds)
        self.max_message_bytes = max_message_bytes
        self.safe_properties = min(safe_properties, MOST_PROPERTIES)
        self.segment = None
        assert len(store_host) == HOST_BYTES

    def forget_routes(self):
        """Forget all routes: a topic has changed."""
        self.routes.clear()

    # --- the claim --------------------------------------------------------------------------

    cdef bint claim(self) except -1:
        """Take the put lock, and with it the place after the last record; False if that is not
        possible now."""
        segment = self.log.claim()
        if segment is None:
            return False
        self.segment = segment
        self.pending = []
        self.wrote = segment.wrote
        try:
            self.memory = segment.memory
            self.start, self.end = segment.start, segment.size
            self.store_ms = self.log.claimed_ms()
        except BaseException:
            self.release()
            raise
        return True

    cdef int release(self) except -1:
        """Give back the claim, with the stored records."""
        pending, self.pending = self.pending, []
        self.segment = None
        self.memory = None
        self.log.release(self.wrote, pending)
        step(b"mark moved")
        if self.dirty:
            dirty, self.dirty = self.dirty, []
            for route in dirty:
                self.owner.count_stored((<Route> route).name, *route.take_counts())
        return 0

    # --- one request ------------------------------------------------------------------------

    # Twin: broker/messages/send.py SendProcessor.handle
    cdef bint serve(self, Header *header, const uint8_t *body, int size, bytes born_host,
                    Output *out) except -1:
        """Store a send under the claim, and append its answer to `out`; False, with nothing
        changed, if it is not plain."""
        cdef Text fields[FIELDS]
        cdef int64_t numbers[FIELDS]
        cdef int64_t places[MOST_ITEMS]
        cdef Stored shared
        cdef int index, place, count = 1
        cdef bint batch
        cdef int64_t queue_id, queue_offset
        for index in range(FIELDS):
            fields[index].at = NULL
        for place in range(header.count):
            index = self._field(header.code, &header.keys[place])
            if index >= 0:
                fields[index] = header.values[place]
        if (
            not read_numbers(fields, FIELDS, NEEDED, BITS, PROPERTIES, numbers)
            or (fields[UNIT].at != NULL and not is_name(&fields[UNIT], &FALSE))
        ):
            return False
        batch = False
        if fields[BATCH].at != NULL:
            batch = not is_name(&fields[BATCH], &FALSE)
            if batch and bytes_of(&fields[BATCH]) not in BATCH_MARKS:
                return False
        if (
            (header.code == SEND_BATCH) != batch
            or numbers[SYS_FLAG] & self.not_plain_flags
            or size > self.max_message_bytes
            or PyBytes_GET_SIZE(born_host) != HOST_BYTES
        ):
            return False
        cdef Route route = self._route(&fields[TOPIC])
        if route is None:
            return False
        queue_id = numbers[QUEUE_ID]
        if not 0 <= queue_id < len(route.queues):
            return False
        queue = self._queue(route, queue_id)
        if queue is None:
            return False
        if fields[PROPERTIES].at == NULL:
            fields[PROPERTIES].size = 0
            fields[PROPERTIES].escaped = False
        if not self._take_properties(&fields[PROPERTIES], batch, &shared):
            return False
        if batch:
            if shared.tags_code or shared.unique.at != NULL or shared.words.at != NULL:
                return False
            count = self._items(body, size)
            if count < 1:
                return False
        else:
            self.items[0].body = body
            self.items[0].body_size = size
            self.items[0].flag = <int32_t> numbers[USER_FLAG]
            self.items[0].properties = shared
            self.items[0].properties.size = 0
        queue_offset = queue.next_offset
        if not self._append(route, queue, queue_id, count, numbers, &shared, born_host, places):
            return False
        self.waits = shared.waits
        self.waits_for = self.start + self.wrote
        return self._answer(header, places, count, queue_id, queue_offset, out)

    # Twin: protocol/headers/send.py SendMessageHeader.from_command
    cdef int _field(self, int code, Text *key) except -2:
        """The field of a send with this name; -1: a field that is not read."""
        cdef int index
        cdef bytes known
        if code != SEND:
            return BY_LETTER[key.at[0]] if key.size == 1 else -1
        for index in range(FIELDS):
            known = LONG_KEYS[index]
            if PyBytes_GET_SIZE(known) == key.size and (
                memcmp(PyBytes_AS_STRING(known), key.at, key.size) == 0
            ):
                return index
        return -1

    cdef Route _route(self, Text *topic):
        cdef bytes name = bytes_of(topic)
        cdef PyObject *found = PyDict_GetItem(self.routes, name)
        if found != NULL:
            return <Route> found
        made = self.owner.send_route(name)
        if made is not None:
            # A name without a route is not remembered, so names of topics that do not exist fill no
            # table.
            self.routes[name] = made
        return made

    cdef object _queue(self, Route route, int64_t queue_id):
        queue = route.queues[queue_id]
        if queue is None:
            queue = route.queues[queue_id] = self.log.known_queue(route.name, queue_id)
        return queue

    # --- properties -------------------------------------------------------------------------

    # Twin: broker/messages/stored_properties.py stored_properties
    cdef bint _take_properties(self, Text *text, bint batch, Stored *out) except -1:
        """Write the request's properties in stored form, with the cluster, into `scratch`; False if
        they are not plain."""
        cdef const uint8_t *at = text.at
        cdef int size = text.size, cluster = <int> PyBytes_GET_SIZE(self.cluster)
        if text.escaped:
            size = unescape(text, self.raw, MOST_PROPERTIES)
            at = self.raw
        if not 0 <= size <= MOST_PROPERTIES or not self._read(at, size, batch, self.scratch, out):
            return False
        if out.size + cluster > self.safe_properties:
            return False
        memcpy(self.scratch + out.size, PyBytes_AS_STRING(self.cluster), cluster)
        out.size += cluster
        return True

    # Twin: broker/messages/stored_properties.py stored_properties
    cdef bint _read(self, const uint8_t *at, int size, bint keep_wait, uint8_t *to, Stored *out) except -1:
        """Read tags, keys, UNIQ_KEY and WAIT from a message's properties; with `to`, also copy the
        properties that are stored, with their separators. False if they are not plain."""
        cdef const uint8_t *end = at + size
        cdef const uint8_t *entry
        cdef const uint8_t *mark
        cdef int length, name_size
        cdef Text name, value
        out.at = at
        out.size = size
        out.tags_code = 0
        out.unique.at = out.words.at = NULL
        out.waits = True
        cdef uint8_t *begin = to
        while at < end:
            entry = at
            at = <const uint8_t *> memchr(entry, ENTRY_END, end - entry)
            length = <int> ((end if at == NULL else at) - entry)
            at = end if at == NULL else at + 1
            mark = <const uint8_t *> memchr(entry, NAME_END, length)
            if mark == NULL or mark == entry or mark + 1 == entry + length:
                continue
            name.at = entry
            name.size = <int> (mark - entry)
            value.at = mark + 1
            value.size = length - name.size - 1
            if is_name(&name, &UNIQUE_KEY):
                out.unique = value
            elif is_name(&name, &WAIT):
                out.waits = is_name(&value, &TRUE)
                if not out.waits and not is_name(&value, &FALSE):
                    return False
                if not keep_wait:
                    continue
            elif is_name(&name, &TAGS):
                out.tags_code = java_hash(0, value.at, value.size)
            elif is_name(&name, &KEYS):
                out.words = value
            elif bytes_of(&name) in self.not_plain:
                return False
            if to != NULL:
                memcpy(to, entry, length)
                to[length] = ENTRY_END
                to += length + 1
        if to != NULL:
            out.at = begin
            out.size = <int> (to - begin)
        return True

    # Twin: protocol/message/batch.py batch_items
    cdef int _items(self, const uint8_t *body, int size) except -1:
        """Read the messages of a batch into `items`; return their number, 0 if they are not
        plain."""
        cdef int count = 0, position = 0
        while position < size:
            if count == MOST_ITEMS:
                return 0
            position = self._item(body, size, position, &self.items[count])
            if position < 0:
                return 0
            count += 1
        # The plain path takes a large batch in steps.
        return count if count < MOST_ITEMS else 0

    # Twin: protocol/message/batch.py batch_items
    cdef int _item(self, const uint8_t *body, int size, int position, Item *item) except -2:
        """Read the message of a batch that begins there; return where the next begins, -1 if this
        message is not plain."""
        cdef int own, index
        if size - position < MIN_ITEM_BYTES:
            return -1
        item.flag = <int32_t> get32(body + position + ITEM_FLAG_AT)
        item.body_size = <int32_t> get32(body + position + ITEM_BODY_SIZE_AT)
        position += ITEM_HEAD_BYTES
        if not 0 <= item.body_size <= size - position - PROPERTIES_SIZE_BYTES:
            return -1
        item.body = body + position
        position += item.body_size
        own = get16(body + position)
        position += PROPERTIES_SIZE_BYTES
        if own > size - position:
            return -1
        for index in range(own):
            if body[position + index] >= 128:
                return -1
        if not self._read(body + position, own, True, NULL, &item.properties):
            return -1
        return position + own

    # --- rows of a staged batch ---------------------------------------------------------------

    # Twin: broker/staging/rows.py ChunkCheck._check_row
    def plain_rows(self, const uint8_t[::1] body not None, int most_body, int most_properties):
        """The number of messages in a batch body; -1 if a message is not plain, or its body or its
        properties have more bytes than `most_body` or `most_properties`."""
        cdef Item item
        cdef int count = 0, position = 0, size = <int> body.shape[0]
        while position < size:
            position = self._row(&body[0], size, position, &item)
            if position < 0 or item.body_size > most_body or item.properties.size > most_properties:
                return -1
            count += 1
        return count

    # Twin: broker/staging/publish.py Publisher._put_rows
    def put_rows(self, bytes topic not None, int64_t queue_id, const uint8_t[::1] body not None,
                 int skip, int most, int64_t born_ms, bytes born_host not None):
        """Store up to `most` messages of a batch body, after the first `skip`; return their number.
        It is 0, and nothing has changed, if they are not plain or cannot be stored here now."""
        cdef int64_t numbers[FIELDS]
        cdef int64_t places[MOST_ITEMS]
        cdef Stored shared
        cdef Text name
        cdef Item passed
        cdef int count = 0, position = 0, size = <int> body.shape[0]
        while skip and 0 <= position < size:
            position = self._row(&body[0], size, position, &passed)
            skip -= 1
        while 0 <= position < size and count < min(most, MOST_ITEMS - 1):
            position = self._row(&body[0], size, position, &self.items[count])
            count += 1
        if position < 0 or not count or PyBytes_GET_SIZE(born_host) != HOST_BYTES:
            return 0
        name.at = <const uint8_t *> PyBytes_AS_STRING(topic)
        name.size = <int> PyBytes_GET_SIZE(topic)
        cdef Route route = self._route(&name)
        if route is None or route.sys_flag or not 0 <= queue_id < len(route.queues):
            return 0
        queue = self._queue(route, queue_id)
        if queue is None:
            return 0
        memset(numbers, 0, sizeof(numbers))
        numbers[BORN] = born_ms
        memset(&shared, 0, sizeof(shared))
        shared.at = <const uint8_t *> PyBytes_AS_STRING(self.cluster)
        shared.size = <int> PyBytes_GET_SIZE(self.cluster)
        if not self.claim():
            return 0
        try:
            if not self._append(route, queue, queue_id, count, numbers, &shared, born_host, places):
                return 0
        finally:
            self.release()
        return count

    # Twin: broker/staging/rows.py ChunkCheck._check_row
    cdef int _row(self, const uint8_t *body, int size, int position, Item *item) except -2:
        """Read a row as `_item` does; -1 also if its properties could not be stored as they are,
        with nothing dropped."""
        cdef Stored kept
        cdef int end = self._item(body, size, position, item)
        if end < 0 or item.properties.size > MOST_PROPERTIES:
            return -1
        self._read(item.properties.at, item.properties.size, True, self.scratch, &kept)
        if kept.size != item.properties.size + needs_separator(&item.properties):
            return -1
        return end

    # --- storing and answering --------------------------------------------------------------

    # Twin: protocol/message/record.py encode_record
    cdef bint _append(self, Route route, object queue, int64_t queue_id, int count, int64_t *numbers,
                      Stored *shared, bytes born_host, int64_t *places) except -1:
        """Write the records of `items`; False, with nothing changed, if they do not fit."""
        cdef int64_t topic_size = PyBytes_GET_SIZE(route.field), total = 0, size, properties
        cdef int64_t queue_offset = queue.next_offset, log_offset
        cdef int index, kind = 0
        cdef Item *item
        cdef uint8_t *to
        cdef uint8_t *record
        cdef list entries = []
        cdef object store_ms = self.store_ms
        for index in range(count):
            item = &self.items[index]
            properties = stored_size(&item.properties, shared)
            if properties > self.safe_properties:
                return False
            size = FIXED_BYTES + item.body_size + topic_size + properties
            places[index] = self.start + self.wrote + total
            entries.append((
                queue, queue_offset + index, places[index], size, item.properties.tags_code,
                keys_of(&item.properties.unique, &item.properties.words), store_ms, route.name,
            ))
            total += size
        if self.wrote + total + BLANK_BYTES > self.end:
            return False
        # --- from here on nothing is refused any more
        record = &self.memory[self.wrote]
        for index in range(count):
            item = &self.items[index]
            log_offset = places[index]
            properties = stored_size(&item.properties, shared)
            size = FIXED_BYTES + item.body_size + topic_size + properties
            put32(record + MAGIC_AT, MAGIC)
            put32(record + CRC_AT, c_crc32(item.body, item.body_size) & CRC_MASK)
            put32(record + QUEUE_ID_AT, <uint32_t> queue_id)
            put32(record + FLAG_AT, <uint32_t> item.flag)
            put64(record + QUEUE_OFFSET_AT, queue_offset + index)
            put64(record + LOG_OFFSET_AT, log_offset)
            put32(record + SYS_FLAG_AT, <uint32_t> (numbers[SYS_FLAG] | route.sys_flag))
            put64(record + BORN_AT, numbers[BORN])
            memcpy(record + BORN_HOST_AT, PyBytes_AS_STRING(born_host), HOST_BYTES)
            put64(record + STORE_TIME_AT, self.store_ms)
            memcpy(record + STORE_HOST_AT, PyBytes_AS_STRING(self.store_host), HOST_BYTES)
            put32(record + TIMES_AT, <uint32_t> numbers[TIMES])
            put64(record + PREPARED_AT, 0)
            put32(record + BODY_SIZE_AT, item.body_size)
            to = record + BODY_AT
            memcpy(to, item.body, item.body_size)
            step(b"body copied")
            to += item.body_size
            memcpy(to, PyBytes_AS_STRING(route.field), topic_size)
            to += topic_size
            to[0] = properties >> 8
            to[1] = properties & 0xFF
            to += PROPERTIES_SIZE_BYTES
            memcpy(to, item.properties.at, item.properties.size)
            to += item.properties.size
            if needs_separator(&item.properties):
                to[0] = ENTRY_END
                to += 1
            memcpy(to, shared.at, shared.size)
            step(b"record copied")
            # The size is written last: if the process is killed before that, no record is here.
            publish32(record, <uint32_t> size)
            step(b"size written")
            record += size
        self.pending += entries
        queue.next_offset = queue_offset + count
        self.wrote += total
        step(b"number moved")
        while kind < route.size_kinds - 1 and <double> total / count > <double> self.size_bounds[kind]:
            kind += 1
        if not route.touched:
            self.dirty.append(route)
        route.note(queue_id, count, total, kind)
        return True

    # Twin: protocol/headers/send.py SendReply.encode
    cdef bint _answer(self, Header *header, int64_t *places, int count, int64_t queue_id,
                      int64_t queue_offset, Output *answers) except -1:
        """Append the frame that names the messages' places to `answers`."""
        cdef list parts = self.binary_parts if header.binary else self.json_parts
        cdef int id_bytes = <int> PyBytes_GET_SIZE(self.id_prefix) + OFFSET_DIGITS
        cdef int ids = (id_bytes + 1) * count - 1, size = FRAME_BYTES, index, entries_at = 0
        cdef uint8_t *out = space(answers, ids + self.reply_bytes)
        cdef uint8_t digits[20]
        size = append(out, size, parts[0])
        if header.binary:
            # The entries' length is the head's last field.
            put32(out + FRAME_BYTES + OPAQUE_AT, header.opaque)
            entries_at = FRAME_BYTES + HEAD_BYTES
            put32(out + size, ids)
            size += SIZE_BYTES
        for index in range(count):
            if index:
                out[size] = ID_END
                size += 1
            size = append(out, size, self.id_prefix)
            size = hexadecimal(out, size, places[index])
        size = append(out, size, parts[1])
        if header.binary:
            put32(out + size, decimal(digits, 0, queue_id))
            size += SIZE_BYTES
        size = decimal(out, size, queue_id)
        size = append(out, size, parts[2])
        if header.binary:
            put32(out + size, decimal(digits, 0, queue_offset))
            size += SIZE_BYTES
        size = decimal(out, size, queue_offset)
        if header.binary:
            put32(out + entries_at - SIZE_BYTES, size - entries_at)
            put32(out + TOTAL_BYTES, BINARY_KIND | (size - FRAME_BYTES))
        else:
            size = append(out, size, parts[3])
            size = decimal(out, size, header.opaque)
            size = append(out, size, parts[4])
            put32(out + TOTAL_BYTES, size - FRAME_BYTES)
        put32(out, size - TOTAL_BYTES)
        answers.size += size
        return True


# Twin: protocol/message/batch.py join_properties
cdef inline bint needs_separator(Stored *own) noexcept nogil:
    return own.size > 0 and own.at[own.size - 1] != ENTRY_END


# Twin: protocol/message/record.py record_size
cdef inline int64_t stored_size(Stored *own, Stored *shared) noexcept nogil:
    return own.size + needs_separator(own) + shared.size


# Twin: protocol/message/ids.py offset_msg_id
cdef inline int hexadecimal(uint8_t *out, int size, int64_t value) noexcept nogil:
    """Write `value` in 16 digits to `out`."""
    cdef int shift = 4 * (OFFSET_DIGITS - 1), digit
    while shift >= 0:
        digit = (value >> shift) & 15
        out[size] = digit + (48 if digit < 10 else 55)
        size += 1
        shift -= 4
    return size


# Twin: protocol/message/properties.py key_words
cdef tuple keys_of(Text *unique, Text *words):
    """The words by which a message is found, see `key_words` (protocol/message/properties.py)."""
    cdef int begin = 0, position
    cdef list found
    if words.at == NULL:
        return () if unique.at == NULL else (text_of(unique.at, unique.size),)
    found = [] if unique.at == NULL else [text_of(unique.at, unique.size)]
    for position in range(words.size + 1):
        if position == words.size or words.at[position] == KEY_END:
            if position > begin:
                found.append(text_of(words.at + begin, position - begin))
            begin = position + 1
    return tuple(found)


cdef inline str text_of(const uint8_t *at, int size):
    return (<const char *> at)[:size].decode("ascii")
