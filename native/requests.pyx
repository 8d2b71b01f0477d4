# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The requests at the head of a read, as far as they are plain."""

from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free
from cpython.bytes cimport PyBytes_FromStringAndSize

from aerobee.native.bytes cimport get32
from aerobee.native.guard cimport Guard
from aerobee.native.header cimport Header, read_binary, read_json
from aerobee.native.pulls cimport Pulls
from aerobee.native.sends cimport Sends
from aerobee.native.steps cimport step

from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames import header_encode

cdef int JSON = header_encode.JSON
cdef int ROCKETMQ = header_encode.ROCKETMQ
cdef int SEND = RequestCode.SEND_MESSAGE
cdef int SEND_V2 = RequestCode.SEND_MESSAGE_V2
cdef int SEND_BATCH = RequestCode.SEND_BATCH_MESSAGE
cdef int PULL = RequestCode.PULL_MESSAGE
cdef int LITE_PULL = RequestCode.LITE_PULL_MESSAGE

cdef int[CODES] codes = [SEND_V2, SEND, SEND_BATCH, PULL, LITE_PULL]
# Before this place are the codes of sends.
cdef int PULLS_FROM = 3


cdef class Requests:
    """Serves what it can of the reads of a server's connections. Loop thread only."""

    def __init__(self, Sends sends, Pulls pulls, bint answers_wait, Guard guard=None):
        """None for what is not to be served here. `answers_wait`: those to sends do.
        `guard` lets requests in where accounts are asked for."""
        self.guard = guard
        self.sends = sends
        self.pulls = pulls
        self.answers_wait = answers_wait
        self.waiting = []

    def __dealloc__(self):
        free(self.out.data)

    def take(self, const uint8_t[::1] read, bytes born_host, bint may_pull, Py_ssize_t may_wait,
             int64_t room, object clock, double until):
        """Serve requests from the beginning of `read` on, until answers of more than `room` bytes
        are made, `may_wait` answers to sends wait, or `clock` has passed `until`.

        How many bytes of it were served; the answers in order; those that are to wait, as
        `WhenKept.wait_made` takes them; and the codes that were answered with how often.
        """
        cdef Py_ssize_t taken
        try:
            taken = self.serve(
                &read[0], read.shape[0], born_host, may_pull, may_wait, room, clock, until
            )
            answers = PyBytes_FromStringAndSize(<const char *> self.out.data, self.out.size)
        finally:
            self.out.size = 0
            waiting, self.waiting = self.waiting, []
            self.settle()
        return taken, answers, waiting, self.take_counts()

    cdef Py_ssize_t serve(self, const uint8_t *read, Py_ssize_t size, bytes born_host,
                          bint may_pull, Py_ssize_t may_wait, int64_t room, object clock,
                          double until) except -1:
        """As `take`; the answers are behind what `out` has, and in `waiting`. What was stored is in
        place when `settle` was called."""
        cdef Py_ssize_t position = 0
        cdef const uint8_t *at
        cdef int64_t total, header_size, full = self.out.size + room
        cdef Header header
        cdef int count = 0
        self.over = False
        while size - position >= 8 and self.out.size <= full:
            at = read + position
            total = get32(at)
            header_size = get32(at + 4) & 0xFFFFFF
            if total < 4 or total > size - position - 4 or header_size > total - 4:
                break
            header.binary = at[4] == ROCKETMQ
            if header.binary:
                if not read_binary(at + 8, <int> header_size, &header):
                    break
            elif at[4] != JSON or not read_json(at + 8, <int> header_size, &header):
                break
            if not self._answer(
                &header, at + 8 + header_size, <int> (total - 4 - header_size), born_host,
                may_pull, may_wait,
            ):
                break
            self.code = header.code
            position += 4 + total
            count += 1
            if header.code == PULL or header.code == LITE_PULL or not count & 15:
                if clock() >= until:
                    self.over = True
                    break
        self.done = count
        if self.out.size > full:
            self.over = True
        return position

    cdef bint _answer(self, Header *header, const uint8_t *body, int size, bytes born_host,
                      bint may_pull, Py_ssize_t may_wait) except -1:
        """Serve one request; False if it is not plain, and nothing changed."""
        cdef Py_ssize_t before = self.out.size
        cdef int place = 0
        while place < CODES and codes[place] != header.code:
            place += 1
        if place == CODES:
            return False
        if self.guard is not None and not self.guard.passes(header, body, size, born_host):
            return False
        if place < PULLS_FROM:
            if self.answers_wait and len(self.waiting) >= may_wait:
                return False
            if not self.claimed:
                self.claimed = self.sends is not None and self.sends.claim()
                if not self.claimed:
                    return False
            if not self.sends.serve(header, body, size, born_host, &self.out):
                return False
            step(b"answer made")
            if self.answers_wait and self.sends.waits:
                self.waiting.append((
                    self.sends.waits_for, header.code, header.opaque,
                    ROCKETMQ if header.binary else JSON,
                    PyBytes_FromStringAndSize(
                        <const char *> self.out.data + before, self.out.size - before
                    ),
                ))
                self.out.size = before
                return True
        else:
            if not may_pull or self.pulls is None:
                return False
            # What was sent before it may be what it asks for.
            self.settle()
            if not self.pulls.serve(header, &self.out):
                return False
            step(b"answer made")
        self.counts[place] += 1
        return True

    cdef int settle(self) except -1:
        """Move the marks over what was stored."""
        if self.claimed:
            self.claimed = False
            self.sends.release()
        return 0

    cdef list take_counts(self):
        """(code, how often it was answered at once) since the last time."""
        cdef int place
        cdef list found = []
        for place in range(CODES):
            if self.counts[place]:
                found.append((codes[place], self.counts[place]))
                self.counts[place] = 0
        return found
