"""Filler records, which a repair writes in the place of lost records of the log.

A filler is a sound record that concerns nobody. It is marked as the rollback of a transaction, and
rollbacks have no place in a consume queue and no keys in the index, in this broker and in RocketMQ
alike; so both read over it and go on after it. RocketMQ would end the log at the damaged record
otherwise. Neither broker ever stores a rollback, so the mark together with the topic tells a filler
apart. Its topic is one character, so that it fits wherever any record has been.

Entries that were derived from the lost record may still lead to its place: a filler has exactly the
size that an entry gives. So each reader of a record asks `is_filler`, and takes a filler for no
message.

A range that goes up to the end of its segment needs no filler: a blank record covers it.
"""

from collections.abc import Iterator

from aerobee.protocol.message.record import StoreMessage, encode_record
from aerobee.protocol.message.record_layout import (
    MIN_RECORD_BYTES,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_ROLLBACK,
    pack_host,
)

FILLER_TOPIC = "-"
SMALLEST = MIN_RECORD_BYTES + len(FILLER_TOPIC)
_TEXT = b"records lost here, filled by aerobee store repair"
_HOST = pack_host("0.0.0.0", 0)
_LARGEST = 1 << 20


def is_filler(topic: str, sys_flag: int) -> bool:
    """Whether a record of that topic and sysFlag is a filler."""
    return topic == FILLER_TOPIC and sys_flag & SYS_TRANSACTION_MASK == SYS_TRANSACTION_ROLLBACK


def fillers(start: int, end: int, store_ms: int) -> Iterator[tuple[int, bytes]]:
    """(log offset, record) of records that fill [start, end) exactly.

    At least `SMALLEST` bytes, which every lost record leaves.
    """
    assert end - start >= SMALLEST
    position = start
    while position < end:
        size = min(_LARGEST, end - position)
        if 0 < end - position - size < SMALLEST:
            size -= SMALLEST  # leave enough for another one
        yield position, _filler(position, size, store_ms)
        position += size


def _filler(log_offset: int, size: int, store_ms: int) -> bytes:
    body_bytes = size - SMALLEST
    body = (_TEXT + bytes(max(0, body_bytes - len(_TEXT))))[:body_bytes]
    message = StoreMessage(
        FILLER_TOPIC, 0, 0, SYS_TRANSACTION_ROLLBACK, store_ms, _HOST, _HOST, 0, 0, body, b""
    )
    record = encode_record(message, 0, log_offset, store_ms)
    assert len(record) == size
    return record
