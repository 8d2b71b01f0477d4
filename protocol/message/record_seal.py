"""The CRC of a whole record, kept as its last property (`__CRC32#`, RocketMQ 5.2's appendPropCRC).

A record's own CRC covers its body only: a flipped bit in its topic, queue id or queue offset goes
unseen. A sealed record ends with 20 bytes, a property that older readers take for any other:

    __CRC32# U+0001, ten digits, U+0002

The digits are the CRC-32 of all bytes before those 20, masked to 31 bits, the LEAST significant
digit first, filled up with zeros (store/FORMAT.md 2.10). Other properties before it end in U+0002.

Whether a record counts as sealed must not depend on a single byte, which may be damaged. So the ten
bytes of the seal that never vary are counted: if eight of them are in place, the record is sealed,
and its whole seal has to be right. If more than two of them are damaged, that is a torn page, whose
zeros `record_check.py` finds anyway. If fewer than eight were enough, other text might pass for a
seal.
"""

import zlib

from aerobee.protocol.message.properties import MAX_PROPERTIES_BYTES, PROPERTY_CRC

_NAME = PROPERTY_CRC.encode() + b"\x01"
_END = b"\x02"
_DIGITS = 10
# How many of the ten constant bytes have to be in place for a seal.
_FIXED_ENOUGH = 8
SEAL_BYTES = len(_NAME) + _DIGITS + len(_END)
#: Properties of that length can always be sealed; one byte more only if they end in U+0002.
MOST_SEALED_PROPERTIES = MAX_PROPERTIES_BYTES - SEAL_BYTES - len(_END)

_crc32 = zlib.crc32


def seal(record_before_it: bytes | memoryview) -> bytes:
    """The 20 bytes that close a record, made from all bytes before them."""
    crc = _crc32(record_before_it) & 0x7FFFFFFF
    return _NAME + f"{crc:010d}"[::-1].encode() + _END


def sealable(properties: bytes) -> bytes:
    """The properties as they stand before a seal: without an older seal, with U+0002 at their
    end."""
    if _NAME in properties:
        # A message that is sent back or copied brings the seal of the record it was read from.
        kept = [entry for entry in properties.split(_END) if not entry.startswith(_NAME)]
        properties = _END.join(kept)
    if properties and not properties.endswith(_END):
        return properties + _END
    return properties


def is_sealed(record: bytes | memoryview) -> bool:
    """Whether a record was closed with a seal, even if it was damaged since."""
    tail = bytes(record[-SEAL_BYTES:])
    fixed = tail[: len(_NAME)] + tail[-len(_END) :]
    expected = _NAME + _END
    in_place = sum([found == wanted for found, wanted in zip(fixed, expected, strict=False)])
    return in_place >= _FIXED_ENOUGH


def is_intact(record: bytes | memoryview) -> bool:
    """Whether the seal of a sealed record fits the bytes before it."""
    return bytes(record[-SEAL_BYTES:]) == seal(record[:-SEAL_BYTES])
