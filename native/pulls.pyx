# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Plain pulls: PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361) that find messages.

A pull is plain if it goes by tags, if its group, topic, queue and subscription are in order, which
the plain path (`broker/messages/pull.py`) has found when it was asked for a route, and if its
messages lie in one segment and need no closer look. An empty answer is never plain: it may have to
wait.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp, memcpy
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.ref cimport PyObject

from aerobee.native.bytes cimport Output, append, decimal, get64, put32, space
from aerobee.native.header cimport Header, Text, read_numbers
from aerobee.native.reads cimport Scan, begin, look

from aerobee.protocol.frames import header_encode
from aerobee.protocol.headers import client as pull_headers
from aerobee.protocol.headers import fields as header_fields

cdef enum:
    KEY_BYTES = 1024
    MOST_ROUTES = 20_000
    # All routes together have no more bytes: another version makes another pull, and each may have
    # 300 other tags, or keep a subscription of 1,000 tags that the group has no longer.
    MOST_ROUTE_BYTES = 32 << 20
    # The bytes of a route's objects, and at most those of a tag in a subscription.
    ROUTE_BYTES = 600
    TAG_BYTES = 256

cdef int COMMITS = pull_headers.PULL_COMMIT_OFFSET
cdef int FRAME_BYTES = header_encode.FRAME_WORDS.size
cdef int TOTAL_BYTES = header_encode.TOTAL_BYTES
cdef int KIND_SHIFT = header_encode.SERIALIZATION_SHIFT
cdef int SIZE_BYTES = header_encode.LENGTH.size
cdef int OPAQUE_AT = header_encode.BINARY_POSITIONS[3]

# The fields of a pull: their places, whether each has to be there, and how wide numbers are.
cdef list NAMES = [one.key.encode() for one in header_fields.fields_of(pull_headers.PullMessageHeader)]
cdef dict _places = {name: at for at, name in enumerate(pull_headers.PullMessageHeader.__struct_fields__)}
cdef int GROUP = _places["consumer_group"], TOPIC = _places["topic"]
cdef int QUEUE_ID = _places["queue_id"], QUEUE_OFFSET = _places["queue_offset"]
cdef int MOST = _places["max_msg_nums"], SYS_FLAG = _places["sys_flag"]
cdef int COMMIT_OFFSET = _places["commit_offset"], MOST_BYTES = _places["max_msg_bytes"]
cdef bint NEEDED[FIELDS]
cdef int BITS[FIELDS]
# The fields that tell one route from another.
cdef enum:
    ROUTE_FIELDS = 7
cdef int[ROUTE_FIELDS] ROUTE = [
    GROUP, TOPIC, QUEUE_ID, SYS_FLAG, _places["sub_version"], _places["subscription"],
    _places["expression_type"],
]
assert len(NAMES) == FIELDS
for _at, _field in enumerate(header_fields.fields_of(pull_headers.PullMessageHeader)):
    NEEDED[_at], BITS[_at] = _field.required, _field.bits


cdef class PullRoute:
    """The way of a group's pulls from a queue, whose other fields are equal."""

    def __init__(self, queue, any_queue, codes, group, live, subscription, broker_id,
                 slow_broker_id):
        """`live` is the group with its members and `subscription` its subscription to the topic, as
        far as they count; `codes` are the hashes of the wanted tags."""
        self.queue, self.any_queue, self.codes, self.group = queue, any_queue, codes, group
        self.live, self.subscription = live, subscription
        self.model = None if live is None else live.message_model
        self.topic = queue.topic
        self.broker_id, self.slow_broker_id = broker_id, slow_broker_id

    # Twin: broker/messages/pull.py PullProcessor._live_subscription
    cdef bint holds(self) except -1:
        """Whether the group still has this subscription."""
        live = self.live
        if live is None:
            return True
        return (
            len(live.members) > 0
            and live.subscriptions.get(self.topic) is self.subscription
            and live.message_model == self.model
        )


cdef class Pulls:
    """Serves plain pulls of a store. Loop thread only."""

    def __init__(self, store, owner, pull, offsets, *, json_parts, binary_parts, memory_bytes,
                 recent, old, most_messages, least_entries):
        """`owner` is the broker's `CompiledRequests`, whose `pull_route` takes the fields of a pull
        and gives its PullRoute, or None: not plain. `pull` is the broker's `PullProcessor`, whose
        `plain_served` counts what was given; `offsets` takes the groups' next offsets.

        `json_parts`, `binary_parts`: the answer's header, cut at its variable parts (`PullReply`).
        `recent` and `old`: bytes and messages that an answer holds.
        """
        self.log, self.reader = store.log, store.reader
        self.marks = self.log.marks
        self.owner, self.pull, self.offsets = owner, pull, offsets
        self.forget_routes()
        self.json_parts, self.binary_parts = json_parts, binary_parts
        self.reply_bytes = 160 + max(sum(map(len, json_parts)), sum(map(len, binary_parts)))
        self.memory_bytes = memory_bytes
        self.recent_bytes, self.recent_count = recent
        self.old_bytes, self.old_count = old
        self.most_messages, self.least_entries = most_messages, least_entries

    def forget_routes(self):
        """Forget all routes: a topic, a group or a queue has changed."""
        self.routes = {}
        self.route_bytes = 0

    # Twin: broker/messages/pull.py PullProcessor.handle
    cdef bint serve(self, Header *header, Output *out) except -1:
        """Append the answer to a pull to `out`; False, with nothing changed, if it is not plain."""
        cdef Text fields[FIELDS]
        cdef int64_t numbers[FIELDS]
        cdef Text *key
        cdef int index, place
        cdef int64_t offset, most
        cdef bytes name
        cdef bint served
        for index in range(FIELDS):
            fields[index].at = NULL
        for place in range(header.count):
            key = &header.keys[place]
            for index in range(FIELDS):
                name = NAMES[index]
                if PyBytes_GET_SIZE(name) == key.size and (
                    memcmp(PyBytes_AS_STRING(name), key.at, key.size) == 0
                ):
                    fields[index] = header.values[place]
                    break
        if fields[MOST_BYTES].at != NULL or not read_numbers(
            fields, FIELDS, NEEDED, BITS, -1, numbers
        ):
            return False
        cdef PullRoute route = self._route(fields, numbers)
        if route is None:
            return False
        most = min(max(numbers[MOST], 1), self.most_messages)
        served = self._read(route, header, numbers[QUEUE_OFFSET], most, out)
        if served and numbers[SYS_FLAG] & COMMITS:
            self.offsets.try_commit(
                text_of(&fields[GROUP]), route.topic, numbers[QUEUE_ID], numbers[COMMIT_OFFSET]
            )
        return served

    cdef PullRoute _route(self, Text *fields, int64_t *numbers):
        """The route for these fields, found anew if it does not hold any more."""
        cdef uint8_t key[KEY_BYTES]
        cdef int size = 0, index
        cdef uint32_t field_size
        cdef Text *field
        for index in range(ROUTE_FIELDS):
            field = &fields[ROUTE[index]]
            # An absent text differs from an empty one, and no text runs into the next one.
            if size + <int> sizeof(field_size) > KEY_BYTES:
                return None
            field_size = 0xFFFFFFFF if field.at == NULL else <uint32_t> field.size
            memcpy(key + size, &field_size, sizeof(field_size))
            size += sizeof(field_size)
            if field.at != NULL:
                if field.size > KEY_BYTES - size:
                    return None
                memcpy(key + size, field.at, field.size)
                size += field.size
        cdef bytes found_by = PyBytes_FromStringAndSize(<const char *> key, size)
        cdef PyObject *found = PyDict_GetItem(self.routes, found_by)
        if found != NULL and (<PullRoute> found).holds():
            return <PullRoute> found
        ext = {}
        for index in range(FIELDS):
            if fields[index].at != NULL:
                ext[(<bytes> NAMES[index]).decode()] = text_of(&fields[index])
        cdef PullRoute made = self.owner.pull_route(ext)
        if made is not None:
            if len(self.routes) >= MOST_ROUTES or self.route_bytes >= MOST_ROUTE_BYTES:
                self.forget_routes()
            self.routes[found_by] = made
            self.route_bytes += ROUTE_BYTES + size
            if made.codes is not None:
                self.route_bytes += TAG_BYTES * len(made.codes)
        return made

    # Twin: store/reading/queue_reader.py QueueReader.get
    cdef bint _read(self, PullRoute route, Header *header, int64_t offset, int64_t most,
                    Output *out) except -1:
        """Answer with messages from `offset` on; False if they are not plain."""
        cdef Scan *scan = &self.scan
        cdef timespec began, ended
        cdef const uint8_t *at
        cdef const uint8_t *end
        cdef const uint8_t[::1] memory
        cdef int64_t lowest, highest, base, limit
        cdef bytes entries
        cdef tuple room
        queue = route.queue
        lowest, highest = queue.min_offset, queue.max_offset
        if not lowest <= offset < highest:
            return False
        clock_gettime(CLOCK_MONOTONIC, &began)
        if route.codes is None:
            entries = queue.read_entries(offset, most)
        else:
            entries = queue.read_coded(offset, max(self.least_entries, most))
        if PyBytes_GET_SIZE(entries) == 0:
            return False
        at = <const uint8_t *> PyBytes_AS_STRING(entries)
        end = at + PyBytes_GET_SIZE(entries)
        segment = self.log.segments.find(get64(at))
        if segment is None:
            return False
        room = (
            (self.recent_bytes, min(self.recent_count, most)),
            (self.old_bytes, min(self.old_count, most)),
        )
        base = segment.start
        limit = self.marks.written
        scan.old_below = limit - self.memory_bytes
        scan.slot, scan.queue_id, scan.any_queue = offset, queue.queue_id, route.any_queue
        scan.count = scan.size = 0
        # The mapping has to stay, whatever else the interpreter does.
        segment.pins += 1
        try:
            memory = segment.view
            limit = min(base + segment.wrote, base + memory.shape[0])
            begin(scan, room, &memory[0], base, max(base, self.reader.checked_below(segment)), limit)
            at = look(scan, at, end, route.codes)
            if not scan.count or (at != end and not scan.full):
                return False
            if not self._answer(route, header, lowest, highest, out):
                return False
        finally:
            memory = None
            segment.pins -= 1
        clock_gettime(CLOCK_MONOTONIC, &ended)
        self.pull.plain_served(
            route.group, route.topic, queue.queue_id, scan.slot, scan.count, scan.size,
            ended.tv_sec - began.tv_sec + 1e-9 * (ended.tv_nsec - began.tv_nsec),
        )
        return True

    # Twin: broker/messages/pull.py PullProcessor._answer
    cdef bint _answer(self, PullRoute route, Header *header, int64_t lowest, int64_t highest,
                      Output *answers) except -1:
        """Append the frame with the found messages to `answers`."""
        cdef Scan *scan = &self.scan
        cdef list parts = self.binary_parts if header.binary else self.json_parts
        cdef uint8_t head[4096]
        cdef uint8_t digits[20]
        cdef int size, index, entries_at = 0
        cdef int64_t values[4]
        cdef int64_t run
        cdef uint8_t *out
        if self.reply_bytes > 4096:
            return False
        values[0], values[1], values[2] = highest, lowest, scan.slot
        values[3] = route.slow_broker_id if scan.last < scan.old_below else route.broker_id
        size = append(head, FRAME_BYTES, parts[0])
        if header.binary:
            put32(head + FRAME_BYTES + OPAQUE_AT, header.opaque)
            size += SIZE_BYTES
            entries_at = size
            size = append(head, size, parts[1])
        for index in range(4):
            if header.binary:
                put32(head + size, decimal(digits, 0, values[index]))
                size += SIZE_BYTES
            size = decimal(head, size, values[index])
            if not header.binary:
                size = append(head, size, parts[index + 1])
            elif index < 3:
                size = append(head, size, parts[index + 2])
        if header.binary:
            put32(head + entries_at - SIZE_BYTES, size - entries_at)
        else:
            size = decimal(head, size, header.opaque)
            size = append(head, size, parts[5])
        put32(head + TOTAL_BYTES, header.binary << KIND_SHIFT | (size - FRAME_BYTES))
        put32(head, <int32_t> (size - TOTAL_BYTES + scan.size))
        out = space(answers, size + scan.size)
        memcpy(out, head, size)
        out += size
        for index in range(scan.runs):
            run = scan.ends[index] - scan.starts[index]
            memcpy(out, scan.records + (scan.starts[index] - scan.base), run)
            out += run
        answers.size += size + scan.size
        return True


cdef inline str text_of(Text *text):
    return (<const char *> text.at)[:text.size].decode("ascii")
