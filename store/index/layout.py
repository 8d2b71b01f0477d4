"""The layout of an index file and the hashes in it (store/FORMAT.md 6). No other plain module knows
where the parts lie or how a key is hashed; the compiled form takes the numbers from here.

    header 40 bytes   begin time i64, end time i64, begin log offset i64, end log offset i64,
                      slots in use i32, number of the next entry i32 (starts at 1)
    slots             i32 each: number of the newest entry of the slot, 0 for none
    entries           20 bytes each: key hash i32, log offset i64, seconds since the begin time i32,
                      number of the previous entry in the same slot i32
"""

import struct
from collections.abc import Iterable
from typing import Final

from aerobee.protocol.hashing import java_hash, java_hash_with_prefix
from aerobee.protocol.layouts import positions

HEADER: Final = struct.Struct(">qqqqii")
SLOT: Final = struct.Struct(">i")
ENTRY: Final = struct.Struct(">iqii")
#: Where key hash, log offset, seconds and the number of the previous entry lie in an entry.
ENTRY_POSITIONS: Final = positions(ENTRY)
LOG_OFFSET_POSITION, SECONDS_POSITION, PREVIOUS_POSITION = ENTRY_POSITIONS[1:]
HEADER_BYTES: Final = HEADER.size
SLOT_BYTES: Final = SLOT.size
INDEX_ENTRY_BYTES: Final = ENTRY.size
I32_MAX: Final = 0x7FFFFFFF
#: Java hash, log offset and store time (ms) of one key, as a compiled form gives them.
HASHED: Final = struct.Struct(">iqq")
HASHED_BYTES: Final = HASHED.size
HASHED_POSITIONS: Final = positions(HASHED)
#: The hash of a key, going on from that of `topic#`.
hash_key: Final = java_hash_with_prefix
_PREFIXES_KEPT: Final = 4096


def index_file_bytes(slots: int, entries: int) -> int:
    """Length of an index file with that many slots and entries."""
    return entry_at(slots, entries)


def slot_at(slot: int) -> int:
    """The position of a slot in the file."""
    return HEADER_BYTES + SLOT_BYTES * slot


def entry_at(slots: int, number: int) -> int:
    """The position of an entry in a file of `slots`."""
    return slot_at(slots) + INDEX_ENTRY_BYTES * number


def entries_in(length: int, slots: int) -> int:
    """The number of entries in a file of that length and that many slots."""
    return (length - slot_at(slots)) // INDEX_ENTRY_BYTES


def slots_in(length: int, entries: int) -> int:
    """The number of slots in a file of that length and that many entries."""
    return (length - index_file_bytes(0, entries)) // SLOT_BYTES


def slots_by_entry(length: int, number: int, position: int) -> int | None:
    """The number of slots of a file of that length whose entry `number` is at `position`; None if
    no such file has an entry there."""
    slot_bytes = position - entry_at(0, number)
    fits = slot_bytes > 0 and slot_bytes % SLOT_BYTES == 0
    slots = slot_bytes // SLOT_BYTES
    return slots if fits and (length - slot_at(slots)) % INDEX_ENTRY_BYTES == 0 else None


def slot_hash(java_hash: int) -> int:
    """The non-negative hash that is stored: |hash|, and 0 for the hash without a positive form."""
    positive = -java_hash if java_hash < 0 else java_hash
    return positive if positive <= I32_MAX else 0


def seconds_since(begin_ms: int, store_ms: int) -> int:
    """The seconds in an entry of a record of that time, in a file that begins at `begin_ms`."""
    if begin_ms > 0 and store_ms > begin_ms:
        return min((store_ms - begin_ms) // 1000, I32_MAX)
    return 0


class KeyHashes:
    """The hashes that are stored for the keys of messages. A key is hashed as `topic#key`;
    `prefixes` keeps the hashes of `topic#`, by topic."""

    def __init__(self) -> None:
        self.prefixes: dict[str, int] = {}

    def of(self, topic: str, keys: Iterable[str]) -> list[int]:
        """The stored hash of each key of a message."""
        prefix = self.prefixes.get(topic)
        if prefix is None:
            prefix = self.prefix(topic)
        return [
            key_hash if (key_hash := hash_key(prefix, key)) > 0 else slot_hash(key_hash)
            for key in keys
        ]

    def prefix(self, topic: str) -> int:
        """The hash of `topic#`, from which the hashes of its keys go on."""
        prefix = self.prefixes.get(topic)
        if prefix is None:
            if len(self.prefixes) >= _PREFIXES_KEPT:
                self.prefixes.clear()
            prefix = self.prefixes[topic] = java_hash(topic + "#")
        return prefix
