from libc.stdint cimport int32_t, int64_t, uint8_t

from aerobee.native.bytes cimport Output
from aerobee.native.header cimport Header, Text

cdef enum:
    # Fields of a send, in the order of the letters of code 310.
    FIELDS = 13
    # Messages of a batch that is taken whole.
    MOST_ITEMS = 128
    MOST_PROPERTIES = 32767


cdef struct Stored:
    # Properties as they are stored, without what follows all of them, and what was read from them.
    const uint8_t *at
    int size
    int64_t tags_code
    Text unique
    Text words
    # Whether the sender waits for the sync.
    bint waits


cdef struct Item:
    const uint8_t *body
    int body_size
    int32_t flag
    Stored properties


cdef class Route:
    cdef object name
    cdef bytes field
    cdef list queues
    cdef int32_t sys_flag
    # Counted since the last `count`: by queue messages and bytes, and messages by size.
    cdef int64_t *messages
    cdef int64_t *stored_bytes
    cdef int64_t *sizes
    cdef int size_kinds
    cdef list touched
    cdef void note(self, int64_t queue_id, int64_t messages, int64_t stored_bytes, int kind)


cdef class Sends:
    cdef dict routes
    cdef object log, owner
    cdef bytes cluster, store_host, id_prefix
    cdef list json_parts, binary_parts, size_bounds, dirty
    cdef set not_plain
    cdef int64_t not_plain_flags
    cdef int max_message_bytes, safe_properties, reply_bytes
    # The properties of the request that is served: as they came, and as they are stored.
    cdef uint8_t raw[MOST_PROPERTIES]
    cdef uint8_t scratch[MOST_PROPERTIES + 512]
    # Of the send that was served last: whether its answer waits for the sync, and of which place.
    cdef bint waits
    cdef int64_t waits_for
    # Of the claim that is held:
    cdef object segment
    cdef uint8_t[::1] memory
    cdef int64_t start, wrote, end, store_ms
    cdef list pending
    cdef Item items[MOST_ITEMS]
    cdef bint claim(self) except -1
    cdef int release(self) except -1
    cdef bint serve(self, Header *header, const uint8_t *body, int size, bytes born_host,
                    Output *out) except -1
    cdef int _field(self, int code, Text *key) except -2
    cdef Route _route(self, Text *topic)
    cdef object _queue(self, Route route, int64_t queue_id)
    cdef bint _take_properties(self, Text *text, bint batch, Stored *out) except -1
    cdef bint _read(self, const uint8_t *at, int size, bint keep_wait, uint8_t *to, Stored *out) except -1
    cdef int _items(self, const uint8_t *body, int size) except -1
    cdef int _item(self, const uint8_t *body, int size, int position, Item *item) except -2
    cdef int _row(self, const uint8_t *body, int size, int position, Item *item) except -2
    cdef bint _append(self, Route route, object queue, int64_t queue_id, int count, int64_t *numbers,
                      Stored *shared, bytes born_host, int64_t *places) except -1
    cdef bint _answer(self, Header *header, int64_t *places, int count, int64_t queue_id,
                      int64_t queue_offset, Output *answers) except -1
