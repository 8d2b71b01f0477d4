# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The requests at the head of a read, as far as they are plain."""

from libc.stdint cimport int64_t, uint8_t

from aerobee.native.bytes cimport get32
from aerobee.native.header cimport Header, read_binary, read_json
from aerobee.native.sends cimport Sends

from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames import header_encode

cdef int JSON = header_encode.JSON
cdef int ROCKETMQ = header_encode.ROCKETMQ
cdef int SEND = RequestCode.SEND_MESSAGE
cdef int SEND_V2 = RequestCode.SEND_MESSAGE_V2
cdef int SEND_BATCH = RequestCode.SEND_BATCH_MESSAGE


cdef class Requests:
    """Serves what it can of the reads of a server's connections."""

    cdef Sends sends

    def __init__(self, Sends sends):
        self.sends = sends

    def take(self, const uint8_t[::1] read, bytes born_host):
        """Serve requests from the beginning of `read` on; how many bytes those were, their answers
        in order, and how often each code was served."""
        cdef Py_ssize_t size = read.shape[0], position = 0
        cdef const uint8_t *at
        cdef int64_t total, header_size
        cdef bint claimed = False
        cdef Header header
        cdef int single = 0, second = 0, batches = 0
        cdef list answers = []
        try:
            while size - position >= 8:
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
                if header.code != SEND_V2 and header.code != SEND and header.code != SEND_BATCH:
                    break
                if not claimed:
                    claimed = self.sends.claim()
                    if not claimed:
                        break
                answer = self.sends.serve(
                    &header, at + 8 + header_size, <int> (total - 4 - header_size), born_host
                )
                if answer is None:
                    break
                answers.append(answer)
                second += header.code == SEND_V2
                single += header.code == SEND
                batches += header.code == SEND_BATCH
                position += 4 + total
        finally:
            if claimed:
                self.sends.release()
        served = ((SEND_V2, second), (SEND, single), (SEND_BATCH, batches))
        return position, answers, served
