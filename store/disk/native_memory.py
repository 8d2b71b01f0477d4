"""Memory calls that Python's mmap does not have, made through the C library.

All of them let other Python threads run meanwhile: locking a buffer of 1 GiB takes about as long as
filling it with zeros, more than a second.

A mapping given here must be writable (its address is not to be had otherwise) and stays open during
the call by the reference that is held on it.
"""

import ctypes
import mmap
import os

_libc = ctypes.CDLL(None, use_errno=True)
for _name in ("mlock", "munlock"):
    getattr(_libc, _name).argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    getattr(_libc, _name).restype = ctypes.c_int
_libc.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
_libc.memset.restype = ctypes.c_void_p


def lock(memory: mmap.mmap) -> None:
    """Keep the pages in memory. OSError (ENOMEM, EPERM) where RLIMIT_MEMLOCK does not allow it."""
    _call("mlock", memory)


def unlock(memory: mmap.mmap) -> None:
    """Let the pages be swapped or dropped again. Raises OSError."""
    _call("munlock", memory)


def zero(memory: mmap.mmap, position: int, length: int) -> None:
    """Store zeros into [position, position + length), which brings every page of it in."""
    assert position >= 0
    assert 0 <= length <= len(memory) - position
    held = ctypes.c_char.from_buffer(memory)
    _libc.memset(ctypes.addressof(held) + position, 0, length)


def _call(name: str, memory: mmap.mmap) -> None:
    held = ctypes.c_char.from_buffer(memory)
    if getattr(_libc, name)(ctypes.addressof(held), len(memory)):
        code = ctypes.get_errno()
        raise OSError(code, f"{name} of {len(memory)} bytes: {os.strerror(code)}")
