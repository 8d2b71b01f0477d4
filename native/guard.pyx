# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Judges who may send and pull, before a request is looked at any closer (WIRE.md 7.1).

It lets requests through that are certainly allowed: from a white address, or an account whose
signature fits and that has been found to have the right. The plain path (`access/control.py`)
judges all others, and refuses with a reason; so this module decides nothing that the plain path
does not decide.
"""

from libc.stdint cimport uint8_t
from libc.string cimport memcmp, memcpy
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem, PyDict_Size
from cpython.ref cimport PyObject

from aerobee.native.header cimport (
    MOST_FIELDS, Header, Name, Text, bytes_of, is_name, name_of, unescape,
)
from aerobee.native.sha1 cimport DIGEST_BYTES, Key

from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames import signature
from aerobee.protocol.headers import fields as header_fields, send as send_headers
from aerobee.protocol.headers.client import PullMessageHeader
from aerobee.protocol.message import record_layout as layout

cdef enum:
    SIGNATURE_BYTES = 28
    MOST_KNOWN = 20_000

cdef int PORT_BYTES = layout.PORT_BYTES
cdef int SEND = RequestCode.SEND_MESSAGE
cdef int SEND_V2 = RequestCode.SEND_MESSAGE_V2
cdef int SEND_BATCH = RequestCode.SEND_BATCH_MESSAGE
cdef Name ACCESS_KEY = name_of(signature.ACCESS_KEY)
cdef Name SIGNATURE = name_of(signature.SIGNATURE)
cdef Name NOT_ALWAYS_SIGNED = name_of(signature.UNIQUE_KEY_QUERY)
# The fields in which a send or a pull names topic and group.
cdef dict _keys = {one.attribute: one.key for one in header_fields.fields_of(PullMessageHeader)}
cdef Name TOPIC = name_of(_keys["topic"]), GROUP = name_of(_keys["consumer_group"])
cdef Name SHORT_TOPIC = name_of(
    send_headers.SHORT_KEYS[send_headers.LONG_KEYS.index(_keys["topic"])]
)
cdef const uint8_t *LETTERS = (
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
)


cdef class Guard:
    """The accounts of a broker. Loop thread only."""

    def __init__(self, is_white, find_signer, may):
        """`is_white` is called with an address's bytes. `find_signer` gives the two blocks of the
        secret key of an access key (`Signer`), None if the plain path has to look. `may` is called
        with access key, code, topic and group ("" where a request has none)."""
        self.is_white, self.find_signer, self.may = is_white, find_signer, may
        self.forget()

    def forget(self, bint any_white=True):
        """Forget all accounts, which have changed; without `any_white` no address is white."""
        self.any_white = any_white
        self.white, self.signers, self.allowed = {}, {}, {}
        self.last_name = self.last_question = b""
        self.last_key = None

    # Twin: access/control.py AccessControl._judge
    cdef bint passes(self, Header *header, const uint8_t *body, int size, bytes host) except -1:
        """Whether a request is certainly allowed; `host` is its sender, packed with the port."""
        cdef uint8_t order[MOST_FIELDS]
        cdef Text topic, group
        cdef Text *key
        cdef Text *account = NULL
        cdef Text *given = NULL
        cdef int field, length, count = 0
        cdef bint sends = header.code == SEND or header.code == SEND_V2 or header.code == SEND_BATCH
        cdef const Name *topic_key = &SHORT_TOPIC if sends and header.code != SEND else &TOPIC
        if self.any_white and self._is_white(host):
            return True
        topic.at = group.at = b""
        topic.size = group.size = 0
        topic.escaped = group.escaped = False
        for field in range(header.count):
            key = &header.keys[field]
            if is_name(key, &SIGNATURE):
                if given != NULL:
                    return False
                given = &header.values[field]
                continue
            if is_name(key, &NOT_ALWAYS_SIGNED) or not put_in_order(header, field, order, count):
                return False
            count += 1
            if is_name(key, topic_key):
                topic = header.values[field]
            elif is_name(key, &ACCESS_KEY):
                account = &header.values[field]
            elif not sends and is_name(key, &GROUP):
                group = header.values[field]
        if (
            account == NULL or not account.size or account.escaped or given == NULL
            or given.size != SIGNATURE_BYTES or given.escaped or topic.escaped or group.escaped
        ):
            return False
        length = self._lay_out(header, order, count)
        if length < 0 or not self._find_key(account):
            return False
        if not has_signature(self.last_key, self.scratch, length, body, size, given.at):
            return False
        return self._may_do(header.code, &topic, &group)

    # Twin: protocol/frames/signature.py signed_values
    cdef int _lay_out(self, Header *header, const uint8_t *order, int count) noexcept nogil:
        """Copy the values in the order of their keys into `scratch`; return the bytes, -1: not
        plain."""
        cdef int place, text_size, length = 0
        cdef Text *value
        for place in range(count):
            value = &header.values[order[place]]
            if value.size > FIELD_BYTES - length:
                return -1
            if value.escaped:
                text_size = unescape(value, self.scratch + length, FIELD_BYTES - length)
                if text_size < 0:
                    return -1
                length += text_size
            else:
                memcpy(self.scratch + length, value.at, value.size)
                length += value.size
        return length

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

    cdef bint _find_key(self, Text *account) except -1:
        """Whether the account's key is known: it is `last_key` then, and `last_name` its name."""
        cdef PyObject *known
        cdef bytes name
        cdef Key key
        if (
            self.last_key is not None
            and account.size == PyBytes_GET_SIZE(self.last_name)
            and memcmp(account.at, PyBytes_AS_STRING(self.last_name), account.size) == 0
        ):
            return True
        name = bytes_of(account)
        known = PyDict_GetItem(self.signers, name)
        if known != NULL:
            key = <Key> known
        else:
            blocks = self.find_signer(name)
            # An account that is not there is looked up again: names from outside fill no table.
            if blocks is None:
                return False
            key = self.signers[name] = Key(*blocks)
        self.last_name, self.last_key = name, key
        return True

    # Twin: access/control.py AccessControl.may
    cdef bint _may_do(self, int code, Text *topic, Text *group) except -1:
        """Whether the account has the right, remembered when it has."""
        # The sizes are added, so that no two questions have the same bytes.
        cdef int[3] head = [code, <int> PyBytes_GET_SIZE(self.last_name), topic.size]
        cdef int size = sizeof(head) + head[1] + topic.size + group.size
        cdef uint8_t *to = self.question
        cdef bytes question
        if size > QUESTION_BYTES:
            return False
        memcpy(to, head, sizeof(head))
        to += sizeof(head)
        memcpy(to, PyBytes_AS_STRING(self.last_name), head[1])
        memcpy(to + head[1], topic.at, topic.size)
        memcpy(to + head[1] + topic.size, group.at, group.size)
        if (
            PyBytes_GET_SIZE(self.last_question) == size
            and memcmp(PyBytes_AS_STRING(self.last_question), self.question, size) == 0
        ):
            return True
        question = PyBytes_FromStringAndSize(<const char *> self.question, size)
        if PyDict_GetItem(self.allowed, question) == NULL:
            topic_name, group_name = bytes_of(topic).decode(), bytes_of(group).decode()
            if not self.may(self.last_name, code, topic_name, group_name):
                return False
            if PyDict_Size(self.allowed) >= MOST_KNOWN:
                self.allowed.clear()
            self.allowed[question] = True
        self.last_question = question
        return True


# Twin: protocol/frames/signature.py signed_values
cdef inline bint put_in_order(Header *header, int field, uint8_t *order, int count) noexcept nogil:
    """Put a field among the `count` that `order` has by their keys; False if its key is there."""
    cdef int found
    while count:
        found = compare(&header.keys[field], &header.keys[order[count - 1]])
        if found == 0:
            return False
        if found > 0:
            break
        order[count] = order[count - 1]
        count -= 1
    order[count] = <uint8_t> field
    return True


# Twin: protocol/frames/signature.py Signer.has_signed
cdef inline bint has_signature(Key key, const uint8_t *fields, int length, const uint8_t *body,
                               int size, const uint8_t *given) except -1:
    """Whether the fields' values and the body have this signature by that key."""
    cdef uint8_t digest[DIGEST_BYTES]
    cdef uint8_t expected[SIGNATURE_BYTES]
    cdef uint8_t differs = 0
    cdef int index
    key.sign(fields, length, body, size, digest)
    base64(digest, expected)
    for index in range(SIGNATURE_BYTES):
        differs |= expected[index] ^ given[index]
    return differs == 0


# Twin: protocol/frames/signature.py signed_values
cdef inline int compare(Text *left, Text *right) noexcept nogil:
    cdef int size = left.size if left.size < right.size else right.size
    cdef int found = memcmp(left.at, right.at, size)
    return found if found else left.size - right.size


# Twin: protocol/frames/signature.py Signer.sign
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
