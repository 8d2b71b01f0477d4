# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The requests at the head of a read, as far as they are plain."""

from libc.stdint cimport int64_t, uint8_t
from cpython.bytes cimport PyBytes_GET_SIZE

from aerobee.native.bytes cimport get32
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


cdef class Requests:
    """Serves what it can of the reads of a server's connections. Loop thread only."""

    cdef Sends sends
    cdef Pulls pulls
    cdef bint syncs

    def __init__(self, Sends sends, Pulls pulls, bint syncs):
        """None for what is not to be served here. `syncs`: answers to sends wait for the sync."""
        self.sends = sends
        self.pulls = pulls
        self.syncs = syncs

    def take(self, const uint8_t[::1] read, bytes born_host, bint may_pull, Py_ssize_t may_wait,
             int64_t room, object clock, double until):
        """Serve requests from the beginning of `read` on, until answers of more than `room` bytes
        are made, `may_wait` sends wait for the sync, or `clock` has passed `until`.

        How many bytes of it were served; the answers in order; those that are to wait, as
        `Acks.wait_made` takes them; and the codes that were answered with how often.
        """
        cdef Py_ssize_t size = read.shape[0], position = 0
        cdef const uint8_t *at
        cdef int64_t total, header_size
        cdef bint claimed = False
        cdef Header header
        cdef int count = 0
        cdef dict served = {}
        cdef list answers = [], waiting = []
        cdef bytes answer
        try:
            while size - position >= 8 and room >= 0:
                at = &read[position]
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
                answer = None
                if header.code == SEND_V2 or header.code == SEND or header.code == SEND_BATCH:
                    if self.syncs and len(waiting) == may_wait:
                        break
                    if not claimed:
                        claimed = self.sends is not None and self.sends.claim()
                        if not claimed:
                            break
                    answer = self.sends.serve(
                        &header, at + 8 + header_size, <int> (total - 4 - header_size), born_host
                    )
                elif (header.code == PULL or header.code == LITE_PULL) and may_pull:
                    # What was sent before it may be what it asks for.
                    if claimed:
                        claimed = False
                        self.sends.release()
                    if self.pulls is not None:
                        answer = self.pulls.serve(&header)
                if answer is None:
                    break
                step(b"answer made")
                if self.syncs and header.code != PULL and header.code != LITE_PULL and self.sends.waits:
                    waiting.append((
                        self.sends.waits_for, header.code, header.opaque,
                        ROCKETMQ if header.binary else JSON, answer,
                    ))
                else:
                    answers.append(answer)
                    served[header.code] = served.get(header.code, 0) + 1
                    room -= PyBytes_GET_SIZE(answer)
                position += 4 + total
                count += 1
                if header.code == PULL or header.code == LITE_PULL or not count & 15:
                    if clock() >= until:
                        break
        finally:
            if claimed:
                self.sends.release()
        return position, answers, waiting, list(served.items())
