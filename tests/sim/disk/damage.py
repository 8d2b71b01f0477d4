"""Damage on top of a crash: something in the log that was on the disk is not as it was written.

Only below the flushed offset that the state's own offsets file knows: what is promised there is
that k damaged records cost those k and nothing else (I8). Damage of bytes that no checksum covers
(topic, queue id, queue offset) is the damaged-file suite's affair, so bodies, sizes and magics are
hit here, and whole sectors.
"""

import random
from typing import NamedTuple

from tests.sim.disk.crash_model import SECTOR, State
from tests.sim.storage.history import Expected, Sent
from tests.sim.storage.raw_store import offsets_file
from tests.sim.storage.recovered import ROOT

_BODY_AT = 88  # with IPv4 hosts, as the tests' messages have


class Hurt(NamedTuple):
    """A damaged state, and the records it hit: log offset to that of the next record."""

    state: State
    damaged: dict[int, int]


def hurt(state: State, expected: Expected, segment_bytes: int, seed: str) -> Hurt | None:
    """Damage one place of the log; None where nothing is known to be flushed yet."""
    offsets = offsets_file(state, ROOT)
    if offsets is None:
        return None
    safe = [sent for sent in expected.records if sent.end <= offsets["flushed"]]
    if len(safe) < 2:
        return None
    rng = random.Random(seed)
    victim = rng.choice(safe)
    start, end = _place(rng, victim)
    if rng.random() < 0.3:
        start = victim.log_offset // SECTOR * SECTOR
        end = start + SECTOR
    hit = {
        sent.log_offset: sent.end
        for sent in expected.records
        if sent.log_offset < end and start < sent.end
    }
    last = max(hit.values())
    following = [sent.log_offset for sent in expected.records if sent.log_offset >= last]
    if following and following[0] > last and end > last:
        hit[last] = following[0]  # the blank that ends the segment is hit as well
    if max(hit.values()) > offsets["flushed"]:
        return None
    return Hurt(_scribble(state, start, end, segment_bytes, rng), hit)


def _place(rng: random.Random, sent: Sent) -> tuple[int, int]:
    """A byte of the record's size, magic or body."""
    body_bytes = int.from_bytes(sent.record[_BODY_AT - 4 : _BODY_AT], "big")
    at = sent.log_offset + rng.choice((3, 5, _BODY_AT + rng.randrange(body_bytes)))
    return at, at + 1


def _scribble(state: State, start: int, end: int, segment_bytes: int, rng: random.Random) -> State:
    """Other bytes in [start, end) of the log: flipped, or zero where more than one is meant."""
    begin = start // segment_bytes * segment_bytes
    path = f"{ROOT}/commitlog/{begin:020d}"
    data = bytearray(state[path] or b"")
    if end - start == 1:
        data[start - begin] ^= 1 << rng.randrange(8)
    else:
        data[start - begin : end - begin] = bytes(end - start)
    return state | {path: bytes(data)}
