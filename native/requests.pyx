# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The requests at the head of a read, as far as they are plain."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy
from cpython.bytes cimport PyBytes_FromStringAndSize

from aerobee.native.bytes cimport Output, get16, get32, is_ascii, space
from aerobee.native.guard cimport Guard
from aerobee.native.header cimport (
    MOST_FIELDS, Header, Name, Text, is_name, name_of, scan_fields, scan_number, scan_text,
)
from aerobee.native.pulls cimport Pulls
from aerobee.native.sends cimport Sends
from aerobee.native.steps cimport step

from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames import header_encode

cdef int JSON = header_encode.JSON
cdef int ROCKETMQ = header_encode.ROCKETMQ
cdef int FRAME_BYTES = header_encode.FRAME_WORDS.size
cdef int TOTAL_BYTES = header_encode.TOTAL_BYTES
cdef int KIND_SHIFT = header_encode.SERIALIZATION_SHIFT
cdef int SIZE_BYTES = header_encode.LENGTH.size
cdef int KEY_SIZE_BYTES = header_encode.KEY_LENGTH.size
cdef int HEAD_BYTES = header_encode.BINARY_HEAD.size
cdef int CODE_AT, OPAQUE_AT, FLAG_AT, REMARK_SIZE_AT, FIELDS_SIZE_AT
CODE_AT, _, _, OPAQUE_AT, FLAG_AT, REMARK_SIZE_AT, FIELDS_SIZE_AT = header_encode.BINARY_POSITIONS
cdef Name CODE, EXT_FIELDS, FLAG, LANGUAGE, OPAQUE, SERIALIZATION, VERSION
_code, _fields, _flag, _language, _opaque, _, _serialization, _version = header_encode.JSON_MEMBERS
CODE, OPAQUE, FLAG, VERSION = name_of(_code), name_of(_opaque), name_of(_flag), name_of(_version)
EXT_FIELDS, LANGUAGE, SERIALIZATION = name_of(_fields), name_of(_language), name_of(_serialization)
cdef int SEND = RequestCode.SEND_MESSAGE
cdef int SEND_V2 = RequestCode.SEND_MESSAGE_V2
cdef int SEND_BATCH = RequestCode.SEND_BATCH_MESSAGE
cdef int PULL = RequestCode.PULL_MESSAGE
cdef int LITE_PULL = RequestCode.LITE_PULL_MESSAGE

cdef int[CODES] codes = [SEND_V2, SEND, SEND_BATCH, PULL, LITE_PULL]
# The codes of sends are before this place.
cdef int PULLS_FROM = 3


cdef enum:
    # Answers that there is room for at first.
    FIRST_ANSWERS = 32


cdef class HeldAnswers:
    """Answers of success to sends, which wait until the log is kept up to their ends. They were
    stored in one go, so the marks move past all of them at once."""

    def __init__(self):
        self.connections, self.sockets, self.counts = [], [], []

    def __dealloc__(self):
        free(self.frames.data)
        free(self.answers)

    def __len__(self):
        return self.count

    @property
    def end(self):
        """The log offset up to which it has to be kept for all of them."""
        return self.answers[self.count - 1].end

    def codes(self):
        """(code, number of answers) of the requests."""
        cdef dict found = {}
        cdef Py_ssize_t place
        for place in range(self.count):
            code = self.answers[place].code
            found[code] = found.get(code, 0) + 1
        return list(found.items())

    def each(self):
        """(connection, end, code, opaque, serialization, frame) of each answer."""
        cdef Py_ssize_t place, index = 0, start = 0
        cdef HeldAnswer *one
        cdef list found = []
        for place in range(self.count):
            one = &self.answers[place]
            while place >= <Py_ssize_t> self.counts[index]:
                index += 1
            frame = PyBytes_FromStringAndSize(
                <const char *> self.frames.data + start, one.frame_end - start
            )
            start = one.frame_end
            found.append(
                (self.connections[index], one.end, one.code, one.opaque, one.serialization, frame)
            )
        return found

    def leave(self):
        """Send all of them; one write a connection."""
        cdef Py_ssize_t index, start = 0, end
        if self.sender is not None:
            self.sender.send_held(self)
            return
        for index in range(len(self.connections)):
            end = self.frames_to(self.counts[index])
            connection = self.connections[index]
            if not connection.closed:
                connection.write(
                    PyBytes_FromStringAndSize(<const char *> self.frames.data + start, end - start)
                )
            start = end

    def belong_to(self, connection):
        """All that belong to nobody yet are answers to `connection`, which writes them."""
        self.belong(None, None, connection)

    cdef int belong(self, object sender, object socket, object connection) except -1:
        """All that belong to nobody yet are answers to `connection`, whose socket `sender` has."""
        self.sender = sender
        self.connections.append(connection)
        self.sockets.append(socket)
        self.counts.append(self.count)
        return 0

    cdef int add(self, int64_t end, Header *header, int serialization) except -1:
        """Note an answer whose frame is the last in `frames`."""
        cdef Py_ssize_t room
        cdef void *moved
        cdef HeldAnswer *one
        if self.count == self.room:
            room = max(FIRST_ANSWERS, 2 * self.room)
            moved = realloc(self.answers, room * sizeof(HeldAnswer))
            if moved == NULL:
                raise MemoryError
            self.answers, self.room = <HeldAnswer *> moved, room
        one = &self.answers[self.count]
        one.end, one.frame_end = end, self.frames.size
        one.code, one.opaque, one.serialization = header.code, header.opaque, serialization
        self.count += 1
        return 0

    cdef int give_up(self, Py_ssize_t count) except -1:
        """Forget all but the first `count`."""
        self.count = count
        self.frames.size = self.frames_to(count)
        return 0

    cdef Py_ssize_t frames_to(self, Py_ssize_t count) noexcept:
        """Where the frames of the first `count` end."""
        return self.answers[count - 1].frame_end if count else 0


cdef class Requests:
    """Serves plain requests in the reads of a server's connections. Loop thread only."""

    def __init__(self, Sends sends, Pulls pulls, bint answers_wait, Guard guard=None):
        """`sends` or `pulls` is None if it is not to be served here. `answers_wait`: answers to
        sends wait. `guard` lets requests in if accounts are asked for."""
        self.guard = guard
        self.sends = sends
        self.pulls = pulls
        self.answers_wait = answers_wait

    def __dealloc__(self):
        free(self.out.data)

    def take(self, const uint8_t[::1] read, bytes born_host, bint may_pull, Py_ssize_t may_wait,
             int64_t room, object clock, double until):
        """Serve requests from the beginning of `read` on, until answers of more than `room` bytes
        are made, `may_wait` answers to sends wait, or `clock` has passed `until`.

        Returns the number of bytes served; the answers in order; those that are to wait, None
        without any; and the answered codes with their counts.
        """
        cdef Py_ssize_t taken
        try:
            taken = self.serve(
                &read[0], read.shape[0], born_host, may_pull, may_wait, room, clock, until
            )
            answers = PyBytes_FromStringAndSize(<const char *> self.out.data, self.out.size)
        finally:
            self.out.size = 0
            held = self.take_held()
            self.settle()
        return taken, answers, held, self.take_counts()

    # Twin: protocol/frames/frame.py FrameDecoder.cut
    cdef Py_ssize_t serve(self, const uint8_t *read, Py_ssize_t size, bytes born_host,
                          bint may_pull, Py_ssize_t may_wait, int64_t room, object clock,
                          double until) except -1:
        """Do `take`; the answers are appended to `out`, or are in `held`. Stored records count
        when `settle` was called."""
        cdef Py_ssize_t position = 0
        cdef const uint8_t *at
        cdef int64_t total, header_size, full = self.out.size + room
        cdef uint32_t word
        cdef int kind
        cdef Header header
        cdef int count = 0
        self.over = False
        while size - position >= FRAME_BYTES and self.out.size <= full:
            at = read + position
            total = get32(at)
            word = get32(at + TOTAL_BYTES)
            kind = <int> (word >> KIND_SHIFT)
            header_size = word & ((<uint32_t> 1 << KIND_SHIFT) - 1)
            # The second word counts in the total, the first does not.
            total -= FRAME_BYTES - TOTAL_BYTES
            if total < 0 or total > size - position - FRAME_BYTES or header_size > total:
                break
            at += FRAME_BYTES
            header.binary = kind == ROCKETMQ
            if header.binary:
                if not read_binary(at, <int> header_size, &header):
                    break
            elif kind != JSON or not read_json(at, <int> header_size, &header):
                break
            if not self._answer(
                &header, at + header_size, <int> (total - header_size), born_host, may_pull,
                may_wait,
            ):
                break
            self.code = header.code
            position += FRAME_BYTES + total
            count += 1
            if header.code == PULL or header.code == LITE_PULL or not count & 15:
                if clock() >= until:
                    self.over = True
                    break
        self.done = count
        if self.out.size > full:
            self.over = True
        return position

    # Twin: remoting/connections/serving.py Serving.commands_received
    cdef bint _answer(self, Header *header, const uint8_t *body, int size, bytes born_host,
                      bint may_pull, Py_ssize_t may_wait) except -1:
        """Serve a request; False, with nothing changed, if it is not plain."""
        cdef Output *to = &self.out
        cdef Py_ssize_t before, made
        cdef int place = 0
        while place < CODES and codes[place] != header.code:
            place += 1
        if place == CODES:
            return False
        if self.guard is not None and not self.guard.passes(header, body, size, born_host):
            return False
        if place < PULLS_FROM:
            if self.answers_wait:
                if self.held is None:
                    self.held = HeldAnswers()
                if self.held.count >= may_wait:
                    return False
                to = &self.held.frames
            if not self.claimed:
                self.claimed = self.sends is not None and self.sends.claim()
                if not self.claimed:
                    return False
            before = to.size
            if not self.sends.serve(header, body, size, born_host, to):
                return False
            step(b"answer made")
            if self.answers_wait:
                if self.sends.waits:
                    self.held.add(
                        self.sends.waits_for, header, ROCKETMQ if header.binary else JSON
                    )
                    return True
                # Its sender does not wait until it is kept.
                made = to.size - before
                memcpy(space(&self.out, made), to.data + before, made)
                self.out.size += made
                to.size = before
        else:
            if not may_pull or self.pulls is None:
                return False
            # It may ask for messages that were sent before it.
            self.settle()
            if not self.pulls.serve(header, &self.out):
                return False
            step(b"answer made")
        self.counts[place] += 1
        return True

    cdef HeldAnswers take_held(self):
        """Those that are to wait, None without any."""
        cdef HeldAnswers held = self.held
        if held is None or not held.count:
            return None
        self.held = None
        return held

    cdef int settle(self) except -1:
        """Move the marks over the stored records."""
        if self.claimed:
            self.claimed = False
            self.sends.release()
        return 0

    cdef list take_counts(self):
        """(code, number of answers at once) since the last time."""
        cdef int place
        cdef list found = []
        for place in range(CODES):
            if self.counts[place]:
                found.append((codes[place], self.counts[place]))
                self.counts[place] = 0
        return found


# Twin: protocol/frames/header_decode.py _decode_json
cdef bint read_json(const uint8_t *at, int size, Header *header) noexcept nogil:
    cdef int position = 1
    cdef Text key, text
    cdef int64_t value
    cdef bint has_code = False, has_opaque = False, has_fields = False
    if size < 2 or at[0] != 123 or at[size - 1] != 125:
        return False
    while True:
        position = scan_text(at, position, size, &key)
        if position < 0 or key.escaped or position >= size - 1 or at[position] != 58:
            return False
        position += 1
        if is_name(&key, &EXT_FIELDS):
            if at[position] != 123 or has_fields:
                return False
            position = scan_fields(at, position + 1, size, header)
            if position < 0:
                return False
            has_fields = True
        elif at[position] == 34:
            position = scan_text(at, position, size, &text)
            if position < 0 or text.escaped:
                return False
            if not (is_name(&key, &LANGUAGE) or is_name(&key, &SERIALIZATION)):
                return False
        else:
            position = scan_number(at, position, size, &value)
            if position < 0:
                return False
            if is_name(&key, &CODE):
                if has_code:
                    return False
                header.code = <int> value
                has_code = True
            elif is_name(&key, &OPAQUE):
                if has_opaque:
                    return False
                header.opaque = <int32_t> value
                has_opaque = True
            elif is_name(&key, &FLAG):
                # An answer, or a oneway request.
                if value != 0:
                    return False
            elif not is_name(&key, &VERSION):
                return False
        if position >= size:
            return False
        if at[position] == 125:
            return position == size - 1 and has_code and has_opaque and has_fields
        if at[position] != 44:
            return False
        position += 1


# Twin: protocol/frames/header_decode.py _read_binary
cdef bint read_binary(const uint8_t *at, int size, Header *header) noexcept nogil:
    cdef int position = HEAD_BYTES, count = 0
    cdef Text *key
    cdef Text *value
    # An answer, a oneway request, and a remark are not plain.
    if (
        size < HEAD_BYTES or get32(at + FLAG_AT) != 0 or get32(at + REMARK_SIZE_AT) != 0
        or get32(at + FIELDS_SIZE_AT) != <uint32_t> (size - HEAD_BYTES)
    ):
        return False
    header.code = get16(at + CODE_AT)
    header.opaque = <int32_t> get32(at + OPAQUE_AT)
    while position < size:
        if size - position < KEY_SIZE_BYTES + SIZE_BYTES or count == MOST_FIELDS:
            return False
        key, value = &header.keys[count], &header.values[count]
        key.at = at + position + KEY_SIZE_BYTES
        key.size = get16(at + position)
        key.escaped = value.escaped = False
        if key.size > size - position - KEY_SIZE_BYTES - SIZE_BYTES:
            return False
        position += KEY_SIZE_BYTES + key.size
        value.size = <int32_t> get32(at + position)
        position += SIZE_BYTES
        value.at = at + position
        if value.size < 0 or value.size > size - position or not is_ascii(value.at, value.size):
            return False
        position += value.size
        count += 1
    header.count = count
    return True
