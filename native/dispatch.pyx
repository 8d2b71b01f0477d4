# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Entries of consume queues and of the index, from the log's list of appended messages. The bytes
equal those of `Reput._gather` and `IndexFile.put`."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from aerobee.native.bytes cimport get32, get64, java_hash, put32, put64
from aerobee.native.steps cimport step

from aerobee.store.index import layout as index_layout
from aerobee.store.queues import queue_view

cdef extern from "Python.h":
    int PyUnicode_IS_COMPACT_ASCII(object text)
    void *PyUnicode_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)

cdef int ENTRY_BYTES = queue_view.ENTRY_BYTES
cdef int PLACE_AT, SIZE_AT, TAGS_AT
PLACE_AT, SIZE_AT, TAGS_AT = queue_view.ENTRY_POSITIONS
cdef int HEADER_BYTES = index_layout.HEADER_BYTES
cdef int SLOT_BYTES = index_layout.SLOT_BYTES
cdef int INDEX_ENTRY_BYTES = index_layout.INDEX_ENTRY_BYTES
cdef int HASH_AT, OFFSET_AT, SECONDS_AT, PREVIOUS_AT
HASH_AT, OFFSET_AT, SECONDS_AT, PREVIOUS_AT = index_layout.ENTRY_POSITIONS
cdef int64_t I32_MAX = index_layout.I32_MAX
cdef int HASHED_BYTES = index_layout.HASHED_BYTES
cdef int HASHED_AT, HASHED_OFFSET_AT, HASHED_MS_AT
HASHED_AT, HASHED_OFFSET_AT, HASHED_MS_AT = index_layout.HASHED_POSITIONS


cdef struct Index:
    # An index file's memory, and the fields of its header that change with each key.
    uint8_t *memory
    int64_t slots, count, used, begin_ms, begin_offset


cdef Index index_of(uint8_t *memory, object file):
    cdef Index index
    index.memory = memory
    index.slots, index.count, index.used = file.slots, file.count, file.used_slots
    index.begin_ms, index.begin_offset = file.begin_ms, file.begin_offset
    return index


# Twin: store/index/index_file.py IndexFile.put
cdef int note_header(Index *index, object file, int64_t log_offset, int64_t store_ms) except -1:
    """Bring a file's attributes up to date with the keys put; the last key is that of this
    record."""
    file.count, file.used_slots = index.count, index.used
    file.begin_ms, file.begin_offset = index.begin_ms, index.begin_offset
    file.end_offset, file.end_ms = log_offset, store_ms
    return 0


# Twin: store/index/index_file.py IndexFile.put
cdef int put_key(Index *index, int64_t java_hash, int64_t log_offset, int64_t store_ms) except -1:
    """Do `IndexFile.put`, for a hash that may be negative."""
    cdef int64_t key_hash = -java_hash if java_hash < 0 else java_hash
    cdef int64_t seconds = 0, previous
    cdef uint8_t *slot
    cdef uint8_t *to
    if key_hash > I32_MAX:
        key_hash = 0
    slot = index.memory + HEADER_BYTES + SLOT_BYTES * (key_hash % index.slots)
    previous = <int32_t> get32(slot)
    if previous <= 0 or previous > index.count:
        previous = 0
        index.used += 1
    if index.begin_ms > 0 and store_ms > index.begin_ms:
        seconds = min((store_ms - index.begin_ms) // 1000, I32_MAX)
    to = index.memory + HEADER_BYTES + SLOT_BYTES * index.slots + INDEX_ENTRY_BYTES * index.count
    put32(to + HASH_AT, <uint32_t> key_hash)
    put64(to + OFFSET_AT, log_offset)
    put32(to + SECONDS_AT, <uint32_t> seconds)
    put32(to + PREVIOUS_AT, <uint32_t> previous)
    step(b"index entry written")
    put32(slot, <uint32_t> index.count)
    step(b"index slot written")
    if index.count == 1:
        index.begin_offset = log_offset
        index.begin_ms = store_ms
    index.count += 1
    return 0


# Twin: store/dispatch/reput.py Reput._gather
def gather(list entries, object arrival):
    """The arrivals, made by `arrival` (empty, for None), the number of messages with a queue, and
    the entries of each touched queue: (queue, first queue offset, bytes)."""
    cdef dict places = {}
    cdef list arrivals = [], of_queue
    cdef tuple entry
    cdef bytes packed
    cdef uint8_t *to
    cdef Py_ssize_t number, count = 0
    for entry in entries:
        queue = entry[0]
        if queue is not None:
            found = places.get(queue)
            if found is None:
                places[queue] = [entry]
            else:
                (<list> found).append(entry)
            count += 1
            if arrival is not None:
                arrivals.append(arrival(queue.topic, queue.queue_id, entry[1], entry[4]))
    touched = []
    for queue, of in places.items():
        of_queue = of
        packed = PyBytes_FromStringAndSize(NULL, ENTRY_BYTES * len(of_queue))
        to = <uint8_t *> PyBytes_AS_STRING(packed)
        for number in range(len(of_queue)):
            entry = of_queue[number]
            put64(to + PLACE_AT, <int64_t> entry[2])
            put32(to + SIZE_AT, <int32_t> entry[3])
            put64(to + TAGS_AT, <int64_t> entry[4])
            to += ENTRY_BYTES
        touched.append((queue, (<tuple> of_queue[0])[1], packed))
        step(b"entries made")
    return arrivals, count, touched


# Twin: store/index/index_file.py IndexFile.put_all
def put_keys(list entries, object file, dict prefixes, object prefix_of, object hash_of):
    """Put the keys of all entries into one file, which has room for them. `prefixes` has the hash
    of `topic#`, and `hash_of(prefix hash, key)` is called for keys beyond ASCII."""
    cdef uint8_t[::1] whole = file.memory
    cdef Index index = index_of(&whole[0], file)
    cdef int64_t store_ms = 0, log_offset = 0, key_hash
    cdef tuple entry, keys
    cdef uint32_t prefix
    cdef bint any_key = False
    for entry in entries:
        keys = entry[5]
        if not keys:
            continue
        topic = entry[7]
        found = prefixes.get(topic)
        if found is None:
            found = prefix_of(topic)
        prefix = <uint32_t> (<int64_t> found)
        log_offset = entry[2]
        store_ms = entry[6]
        for key in keys:
            if PyUnicode_IS_COMPACT_ASCII(key):
                key_hash = java_hash(
                    prefix, <const uint8_t *> PyUnicode_DATA(key), PyUnicode_GET_LENGTH(key)
                )
            else:
                key_hash = hash_of(found, key)
            put_key(&index, key_hash, log_offset, store_ms)
            any_key = True
    if any_key:
        note_header(&index, file, log_offset, store_ms)


# Twin: store/index/index_file.py IndexFile.put_all
def put_hashed(bytes hashed, Py_ssize_t first, Py_ssize_t most, object file):
    """Put `most` keys from the `first` on into one file, which has room for them; `hashed` has
    their Java hashes, log offsets and store times (`HASHED`)."""
    cdef uint8_t[::1] whole = file.memory
    cdef Index index = index_of(&whole[0], file)
    cdef const uint8_t *at = <const uint8_t *> PyBytes_AS_STRING(hashed) + first * HASHED_BYTES
    cdef const uint8_t *end = at + most * HASHED_BYTES
    assert 0 <= first and 0 < most and (first + most) * HASHED_BYTES <= PyBytes_GET_SIZE(hashed)
    assert index.count + most <= file.entries
    while at < end:
        put_key(
            &index, <int32_t> get32(at + HASHED_AT), get64(at + HASHED_OFFSET_AT),
            get64(at + HASHED_MS_AT),
        )
        at += HASHED_BYTES
    at = end - HASHED_BYTES
    note_header(&index, file, get64(at + HASHED_OFFSET_AT), get64(at + HASHED_MS_AT))
