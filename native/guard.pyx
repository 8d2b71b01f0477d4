# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Who may send and pull, asked before a request is looked at any closer (WIRE.md 7.1).

It lets through what is certainly allowed: a white address, or an account whose signature fits and
that has been found to have the right. All else is the plain path's (`access/control.py`), which
refuses with a reason; so nothing is decided here that is not decided there.
"""

from libc.stdint cimport uint8_t
from libc.string cimport memcmp, memcpy
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem, PyDict_Size
from cpython.ref cimport PyObject

from aerobee.native.header cimport Header, Text, is_text, next_field, unescape

from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames import signature

cdef enum:
    DIGEST_BYTES = 20
    SIGNATURE_BYTES = 28
    MOST_KNOWN = 20_000
    PORT_BYTES = 4

cdef int SEND = RequestCode.SEND_MESSAGE
cdef int SEND_V2 = RequestCode.SEND_MESSAGE_V2
cdef int SEND_BATCH = RequestCode.SEND_BATCH_MESSAGE
cdef bytes ACCESS_KEY = signature.ACCESS_KEY.encode()
cdef bytes SIGNATURE = signature.SIGNATURE.encode()
cdef bytes NOT_ALWAYS_SIGNED = signature.UNIQUE_KEY_QUERY.encode()
# Where a send or a pull names what it reaches.
cdef bytes TOPIC = b"topic", SHORT_TOPIC = b"b", GROUP = b"consumerGroup"
cdef const uint8_t *LETTERS = (
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
)


cdef class Guard:
    """The accounts of one broker. Loop thread only."""

    def __init__(self, is_white, find_signer, may):
        """`is_white` is asked with an address's bytes. `find_signer` gives the two states of the
        secret key of an access key (`Signer`), None where the plain path has to look. `may` is
        asked with access key, code, topic and group ("" where a request has none)."""
        self.is_white, self.find_signer, self.may = is_white, find_signer, may
        self.forget()

    def forget(self):
        """The accounts have changed."""
        self.white, self.signers, self.allowed = {}, {}, {}

    cdef bint passes(self, Header *header, const uint8_t *body, int size, bytes host) except -1:
        """Whether a request is certainly allowed; `host` is its sender, packed with the port."""
        cdef Text keys[MOST_FIELDS]
        cdef Text values[MOST_FIELDS]
        cdef Text key, value, account, given, topic, group
        cdef int count = 0, position = 0, place, length = 0, text_size
        cdef bytes topic_key, name
        cdef bint sends = header.code == SEND or header.code == SEND_V2 or header.code == SEND_BATCH
        if self._is_white(host):
            return True
        account.at = given.at = NULL
        topic_key = SHORT_TOPIC if sends and header.code != SEND else TOPIC
        topic.at = group.at = b""
        topic.size = group.size = 0
        topic.escaped = group.escaped = False
        while position < header.size:
            position = next_field(header, position, &key, &value)
            if position < 0 or count == MOST_FIELDS or is_bytes(&key, NOT_ALWAYS_SIGNED):
                return False
            if is_bytes(&key, SIGNATURE):
                if given.at != NULL or value.escaped:
                    return False
                given = value
                continue
            # In the order of the keys; one that is there twice is the plain path's.
            place = count
            while place and compare(&key, &keys[place - 1]) < 0:
                keys[place], values[place] = keys[place - 1], values[place - 1]
                place -= 1
            if place and compare(&key, &keys[place - 1]) == 0:
                return False
            keys[place], values[place] = key, value
            count += 1
        for place in range(count):
            if is_bytes(&keys[place], ACCESS_KEY):
                account = values[place]
            elif is_bytes(&keys[place], topic_key):
                topic = values[place]
            elif not sends and is_bytes(&keys[place], GROUP):
                group = values[place]
            if length + values[place].size > FIELD_BYTES:
                return False
            if values[place].escaped:
                text_size = unescape(&values[place], self.scratch + length, FIELD_BYTES - length)
                if text_size < 0:
                    return False
                length += text_size
            else:
                memcpy(self.scratch + length, values[place].at, values[place].size)
                length += values[place].size
        if (
            account.at == NULL or not account.size or account.escaped or given.at == NULL
            or given.size != SIGNATURE_BYTES or topic.escaped or group.escaped
        ):
            return False
        name = bytes_of(&account)
        if not self._is_signed(name, length, body, size, given.at):
            return False
        return self._may_do(name, header.code, &topic, &group)

    cdef bint _is_white(self, bytes host) except -1:
        cdef bytes address
        cdef PyObject *known
        if PyBytes_GET_SIZE(host) <= PORT_BYTES:
            return False
        address = PyBytes_FromStringAndSize(
            PyBytes_AS_STRING(host), PyBytes_GET_SIZE(host) - PORT_BYTES
        )
        known = PyDict_GetItem(self.white, address)
        if known != NULL:
            return <object> known is True
        if PyDict_Size(self.white) >= MOST_KNOWN:
            self.white.clear()
        found = self.white[address] = bool(self.is_white(address))
        return found

    cdef bint _is_signed(self, bytes name, int length, const uint8_t *body, int size,
                         const uint8_t *given) except -1:
        """Whether what `scratch` has, and the body, have this signature."""
        cdef PyObject *known = PyDict_GetItem(self.signers, name)
        cdef uint8_t expected[SIGNATURE_BYTES]
        cdef bytes content, digest
        cdef int index
        cdef uint8_t differs = 0
        if known != NULL:
            states = <object> known
        else:
            states = self.find_signer(name)
            # An account that is not there is asked for again: names from outside fill no table.
            if states is None:
                return False
            self.signers[name] = states
        content = PyBytes_FromStringAndSize(NULL, length + size)
        memcpy(PyBytes_AS_STRING(content), self.scratch, length)
        memcpy(PyBytes_AS_STRING(content) + length, body, size)
        inner = (<tuple> states)[0].copy()
        inner.update(content)
        outer = (<tuple> states)[1].copy()
        outer.update(inner.digest())
        digest = outer.digest()
        base64(<const uint8_t *> PyBytes_AS_STRING(digest), expected)
        for index in range(SIGNATURE_BYTES):
            differs |= expected[index] ^ given[index]
        return differs == 0

    cdef bint _may_do(self, bytes name, int code, Text *topic, Text *group) except -1:
        """Whether an account has the right, remembered when it has."""
        cdef bytes question = b"%d\0%b\0%b\0%b" % (code, name, bytes_of(topic), bytes_of(group))
        if PyDict_GetItem(self.allowed, question) != NULL:
            return True
        if not self.may(name, code, bytes_of(topic).decode(), bytes_of(group).decode()):
            return False
        if PyDict_Size(self.allowed) >= MOST_KNOWN:
            self.allowed.clear()
        self.allowed[question] = True
        return True


cdef inline bytes bytes_of(Text *text):
    return PyBytes_FromStringAndSize(<const char *> text.at, text.size)


cdef inline bint is_bytes(Text *text, bytes wanted):
    return is_text(text, PyBytes_AS_STRING(wanted), <int> PyBytes_GET_SIZE(wanted))


cdef inline int compare(Text *left, Text *right) noexcept nogil:
    cdef int size = left.size if left.size < right.size else right.size
    cdef int found = memcmp(left.at, right.at, size)
    return found if found else left.size - right.size


cdef inline void base64(const uint8_t *digest, uint8_t *out) noexcept nogil:
    """The 28 characters of a digest of 20 bytes."""
    cdef int group, three
    for group in range(7):
        three = digest[3 * group] << 16 | digest[3 * group + 1] << 8
        if group < 6:
            three |= digest[3 * group + 2]
        out[4 * group] = LETTERS[three >> 18]
        out[4 * group + 1] = LETTERS[(three >> 12) & 63]
        out[4 * group + 2] = LETTERS[(three >> 6) & 63]
        out[4 * group + 3] = LETTERS[three & 63] if group < 6 else 61
