# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Entries of consume queues and of the index, from what the log says was appended. The same bytes
as `Reput._gather` and `IndexFile.put` make."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from aerobee.native.bytes cimport get32, java_hash, put32, put64
from aerobee.native.steps cimport step

from aerobee.store.index import file as index_file
from aerobee.store.queues import queue_view

cdef extern from "Python.h":
    int PyUnicode_IS_COMPACT_ASCII(object text)
    void *PyUnicode_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)

cdef int ENTRY_BYTES = queue_view.ENTRY_BYTES
cdef int HEADER_BYTES = index_file.HEADER_BYTES
cdef int SLOT_BYTES = index_file.SLOT_BYTES
cdef int INDEX_ENTRY_BYTES = index_file.INDEX_ENTRY_BYTES


def gather(list entries, object arrival):
    """What has arrived, as `arrival` makes it, and the entries of each queue that was touched:
    (queue, first queue offset, bytes)."""
    cdef dict places = {}
    cdef list arrivals = [], of_queue
    cdef tuple entry
    cdef bytes packed
    cdef uint8_t *to
    cdef Py_ssize_t number
    for entry in entries:
        queue = entry[0]
        if queue is not None:
            found = places.get(queue)
            if found is None:
                places[queue] = [entry]
            else:
                (<list> found).append(entry)
            arrivals.append(arrival(queue.topic, queue.queue_id, entry[1], entry[4]))
    touched = []
    for queue, of in places.items():
        of_queue = of
        packed = PyBytes_FromStringAndSize(NULL, ENTRY_BYTES * len(of_queue))
        to = <uint8_t *> PyBytes_AS_STRING(packed)
        for number in range(len(of_queue)):
            entry = of_queue[number]
            put64(to, <int64_t> entry[2])
            put32(to + 8, <int32_t> entry[3])
            put64(to + 12, <int64_t> entry[4])
            to += ENTRY_BYTES
        touched.append((queue, (<tuple> of_queue[0])[1], packed))
        step(b"entries made")
    return arrivals, touched


def put_keys(list entries, object file, dict prefixes, object prefix_of, object hash_of):
    """Put the keys of all entries into one file, which has room for them. `prefixes` has the hash
    of `topic#`, and `hash_of(prefix hash, key)` is asked for keys beyond ASCII."""
    cdef uint8_t[::1] whole = file.memory
    cdef uint8_t *memory = &whole[0]
    cdef int64_t slots = file.slots, count = file.count, used = file.used_slots
    cdef int64_t begin_ms = file.begin_ms, store_ms, log_offset = 0, seconds, slot_at, previous
    cdef int64_t entries_at = HEADER_BYTES + SLOT_BYTES * slots
    cdef tuple entry, keys
    cdef uint32_t prefix
    cdef int64_t signed_hash
    cdef const uint8_t *text
    cdef uint8_t *to
    cdef bint any_key = False
    store_ms = 0
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
                text = <const uint8_t *> PyUnicode_DATA(key)
                signed_hash = java_hash(prefix, text, PyUnicode_GET_LENGTH(key))
            else:
                signed_hash = hash_of(found, key)
            if signed_hash < 0:
                signed_hash = -signed_hash
                if signed_hash > 0x7FFFFFFF:
                    signed_hash = 0
            slot_at = HEADER_BYTES + SLOT_BYTES * (signed_hash % slots)
            previous = <int32_t> get32(memory + slot_at)
            if previous <= 0 or previous > count:
                previous = 0
                used += 1
            seconds = 0
            if begin_ms > 0 and store_ms > begin_ms:
                seconds = min((store_ms - begin_ms) // 1000, <int64_t> 0x7FFFFFFF)
            to = memory + entries_at + INDEX_ENTRY_BYTES * count
            put32(to, <uint32_t> signed_hash)
            put64(to + 4, log_offset)
            put32(to + 12, <uint32_t> seconds)
            put32(to + 16, <uint32_t> previous)
            step(b"index entry written")
            put32(memory + slot_at, <uint32_t> count)
            step(b"index slot written")
            if count == 1:
                file.begin_offset = log_offset
                file.begin_ms = begin_ms = store_ms
            count += 1
            any_key = True
    if any_key:
        file.count = count
        file.used_slots = used
        file.end_offset = log_offset
        file.end_ms = store_ms
