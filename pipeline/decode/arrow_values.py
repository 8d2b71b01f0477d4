"""Makes Arrow arrays of values in a buffer of messages, without a Python object for each value.

What repeats (addresses, names of hosts) is made once and taken by index.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from aerobee.pipeline.decode import compiled
from aerobee.protocol.message.record_layout import unpack_host


def slices(buffer: bytes | memoryview | np.ndarray, begin: np.ndarray, end: np.ndarray) -> pa.Array:
    """binary[n]: the bytes [begin, end) for each row; begins ascend, and no two overlap.

    Arrow needs values that follow each other, so values and the gaps between them are described in
    turn, and every second of these is taken: one copy, in C.
    """
    count = len(begin)
    steps = compiled.steps()
    made = steps.slices(buffer, begin, end) if steps is not None else None
    if made is not None:
        return of_buffers(pa.binary(), count, None, *made)
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2], offsets[1::2] = begin, end
    layout = [None, pa.py_buffer(offsets), pa.py_buffer(buffer)]
    pairs = pa.Array.from_buffers(pa.binary(), 2 * count - 1, layout)
    return pairs.take(pa.array(np.arange(0, 2 * count - 1, 2)))


def of_buffers(kind: pa.DataType, count: int, *buffers: bytes | None) -> pa.Array:
    """An array of buffers that were made for it."""
    made = [None if one is None else pa.py_buffer(one) for one in buffers]
    return pa.Array.from_buffers(kind, count, made)


# The years 1 to 9999: outside of them neither Python nor SQL has a date, and a producer may have
# written anything into its message.
FIRST_MS: Final = -62_135_596_800_000
LAST_MS: Final = 253_402_300_799_999


#: The times of all rows.
TIMESTAMP: Final = pa.timestamp("us", "UTC")


def times(milliseconds: np.ndarray) -> pa.Array:
    """timestamp[n], in UTC; null for what no calendar has."""
    found = milliseconds.astype(np.int64)
    impossible = (found < FIRST_MS) | (found > LAST_MS)
    mask = impossible if impossible.any() else None
    return pa.array(found * 1000, mask=mask).cast(TIMESTAMP)


_IPV4_BYTES: Final = 8


def hosts(packed: np.ndarray) -> pa.Array:
    """string[n] `ip:port`; each address is formatted once."""
    width = packed.dtype.itemsize
    whole = np.ascontiguousarray(packed)
    # An IPv4 address with its port has the bytes of an int64, and numbers compare more quickly.
    kind = pa.int64() if width == _IPV4_BYTES else pa.binary(width)
    layout = [None, pa.py_buffer(whole)]
    coded = pa.Array.from_buffers(kind, len(whole), layout).dictionary_encode()
    names = []
    for host in coded.dictionary.view(pa.binary(width)).to_pylist():
        ip, port = unpack_host(host)
        names.append(f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}")
    return pa.array(names, pa.string()).take(coded.indices)


# The two digits of each byte, as one number of two bytes.
_HEX: Final = np.array([f"{value:02X}".encode() for value in range(256)]).view(np.uint16)


def offset_msg_ids(store_hosts: np.ndarray, log_offsets: np.ndarray) -> pa.Array:
    """string[n]: host and log offset in hexadecimal (protocol/WIRE.md 6.6)."""
    count = len(log_offsets)
    hosts = np.ascontiguousarray(store_hosts).view(np.uint8).reshape(count, -1)
    places = np.ascontiguousarray(log_offsets).view(np.uint8).reshape(count, 8)
    text = np.take(_HEX, np.hstack([hosts, places]))
    return hex_texts(count, text.nbytes // count, text)


def hex_texts(count: int, width: int, text: bytes | np.ndarray) -> pa.Array:
    """string[n] of texts of that length, which follow each other."""
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    )
