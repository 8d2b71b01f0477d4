# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""HMAC-SHA1 (RFC 2104) of a key that signs again and again.

The hash is that of the libcrypto that Python's own hashlib has loaded, called without Python
objects between: they take two thirds of the 2.5 us that `hashlib` needs for a request of 400 bytes.
If it cannot be called so (a Python with libcrypto inside of it), hashlib is used.
"""

from libc.stdint cimport uint8_t
from libc.string cimport memcpy
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

import hashlib
import hmac

cdef extern from "<dlfcn.h>":
    int RTLD_NOW
    void *dlopen(const char *path, int flags)
    void *dlsym(void *library, const char *name)

ctypedef int (*Begin)(void *state) noexcept nogil
ctypedef int (*Update)(void *state, const void *text, size_t size) noexcept nogil
ctypedef int (*Final)(uint8_t *digest, void *state) noexcept nogil

cdef enum:
    BLOCK_BYTES = 64

cdef Begin begin = NULL
cdef Update update = NULL
cdef Final final = NULL
cdef bint direct = False


cdef class Key:
    """A secret key."""

    def __init__(self, bytes inner not None, bytes outer not None):
        """The two blocks that RFC 2104 makes of a key. Raises ValueError for others."""
        if PyBytes_GET_SIZE(inner) != BLOCK_BYTES or PyBytes_GET_SIZE(outer) != BLOCK_BYTES:
            raise ValueError(f"a block has {BLOCK_BYTES} bytes")
        self.inner_object = self.outer_object = None
        if not direct:
            self.inner_object = hashlib.sha1(inner, usedforsecurity=False)
            self.outer_object = hashlib.sha1(outer, usedforsecurity=False)
            return
        begin(self.inner)
        update(self.inner, PyBytes_AS_STRING(inner), BLOCK_BYTES)
        begin(self.outer)
        update(self.outer, PyBytes_AS_STRING(outer), BLOCK_BYTES)

    # Twin: protocol/frames/signature.py Signer.sign
    cdef int sign(self, const uint8_t *head, int head_size, const uint8_t *body, int body_size,
                  uint8_t *digest) except -1:
        """Write the code of `head`, then `body`, into DIGEST_BYTES at `digest`."""
        cdef uint8_t state[STATE_BYTES]
        if self.inner_object is not None:
            return self._sign_by_objects(head[:head_size] + body[:body_size], digest)
        memcpy(state, self.inner, STATE_BYTES)
        update(state, head, head_size)
        update(state, body, body_size)
        final(digest, state)
        memcpy(state, self.outer, STATE_BYTES)
        update(state, digest, DIGEST_BYTES)
        final(digest, state)
        return 0

    # Twin: protocol/frames/signature.py Signer.sign
    cdef int _sign_by_objects(self, bytes text, uint8_t *digest) except -1:
        inner, outer = self.inner_object.copy(), self.outer_object.copy()
        inner.update(text)
        outer.update(inner.digest())
        cdef bytes found = outer.digest()
        memcpy(digest, PyBytes_AS_STRING(found), DIGEST_BYTES)
        return 0

    def signature(self, bytes head not None, bytes body not None):
        """The code as bytes, for tests."""
        cdef uint8_t digest[DIGEST_BYTES]
        self.sign(
            <const uint8_t *> PyBytes_AS_STRING(head), <int> PyBytes_GET_SIZE(head),
            <const uint8_t *> PyBytes_AS_STRING(body), <int> PyBytes_GET_SIZE(body), digest,
        )
        return (<const char *> digest)[:DIGEST_BYTES]


def is_direct():
    """Whether new keys call libcrypto without hashlib."""
    return direct


def use_hashlib():
    """Let new keys use hashlib from now on; for tests."""
    global direct
    direct = False


def use_libcrypto():
    """Let new keys use libcrypto itself from now on, if it can be had and agrees with hashlib."""
    global direct
    direct = _find() and _agrees()


cdef bint _find():
    global begin, update, final
    cdef void *library
    try:
        # Its libraries are searched as well.
        from _hashlib import __file__ as path
    except ImportError:
        return False
    library = dlopen(path.encode(), RTLD_NOW)
    if library == NULL:
        return False
    begin = <Begin> dlsym(library, "SHA1_Init")
    update = <Update> dlsym(library, "SHA1_Update")
    final = <Final> dlsym(library, "SHA1_Final")
    return begin != NULL and update != NULL and final != NULL


def _agrees():
    global direct
    direct = True
    key, text = bytes(range(1, 1 + BLOCK_BYTES)), bytes(range(256)) * 2
    inner, outer = (bytes([byte ^ mask for byte in key]) for mask in (0x36, 0x5C))
    return Key(inner, outer).signature(text[:300], text[300:]) == hmac.digest(key, text, "sha1")


use_libcrypto()
