"""Java's string hash of many texts at once, as consume queues and index files hold it.

For ASCII texts of one length the hash is a matrix of bytes times powers of 31, with 32-bit
wrap-around; texts are grouped by length for that. Others, which are rare, go one by one through
`protocol/hashing.py`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from aerobee.protocol.hashing import java_hash

# A group's bytes are widened to 32 bits; this many of them at a time.
_MOST_BYTES = 16 << 20
_I32_MIN = -(1 << 31)


def java_hashes(texts: pa.Array) -> np.ndarray:
    """int32[n]: the hash of each text; 0 for null and for the empty one."""
    hashes = np.zeros(len(texts), np.int32)
    starts, lengths, data = _layout(texts)
    for length in np.unique(lengths).tolist():
        if not length:
            continue
        rows = np.flatnonzero(lengths == length)
        step = max(1, _MOST_BYTES // length)
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            _hash_alike(data, starts[part], length, part, hashes)
    return hashes


def distinct_hashes(texts: pa.Array) -> np.ndarray:
    """The same for texts that repeat, such as tags: each is hashed once."""
    if not len(texts):
        return np.zeros(0, np.int32)
    coded = texts.fill_null("").dictionary_encode()
    found: np.ndarray = java_hashes(coded.dictionary)[coded.indices.to_numpy()]
    return found


def slot_hashes(hashes: np.ndarray) -> np.ndarray:
    """The non-negative hashes that index files hold: |hash|, 0 for the one without a positive."""
    return np.where(hashes == _I32_MIN, 0, np.abs(hashes.astype(np.int64))).astype(np.int32)


def _layout(texts: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the texts begin, their lengths in bytes, and the bytes."""
    plain = pa.concat_arrays([texts.fill_null("").cast(pa.string())])
    _, offsets_buffer, data_buffer = plain.buffers()
    if not len(plain):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint8)
    offsets = np.frombuffer(offsets_buffer, np.int32)[plain.offset : plain.offset + len(plain) + 1]
    data = np.frombuffer(data_buffer or b"", np.uint8)
    offsets = offsets.astype(np.int64)
    return offsets[:-1], np.diff(offsets), data


def _hash_alike(
    data: np.ndarray, starts: np.ndarray, length: int, rows: np.ndarray, hashes: np.ndarray
) -> None:
    """The hashes of texts that have `length` bytes each, into `hashes` at `rows`."""
    items = np.ndarray(len(data) - length + 1, f"V{length}", data, strides=(1,))
    letters = items[starts].view(np.uint8).reshape(-1, length)
    powers = np.ones(length, np.uint32)
    if length > 1:
        powers[:-1] = np.cumprod(np.full(length - 1, 31, np.uint32), dtype=np.uint32)[::-1]
    hashes[rows] = (letters.astype(np.uint32) @ powers).view(np.int32)
    for place in np.flatnonzero((letters >= 128).any(axis=1)).tolist():
        hashes[rows[place]] = java_hash(letters[place].tobytes().decode())
