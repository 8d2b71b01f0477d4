"""How messages become records: plainly, or sealed with a CRC of the whole record at their end.

Chosen once, when the store is opened (`enabledAppendPropCRC`); the append path calls whatever it
was given. Sizes and limits belong to the choice, because a seal takes room of the properties.
"""

from collections.abc import Callable
from typing import NamedTuple

from aerobee.protocol.message.properties import MAX_PROPERTIES_BYTES
from aerobee.protocol.message.record import (
    StoreMessage,
    encode_record,
    encode_sealed_record,
    record_size,
    sealed_record_size,
)
from aerobee.protocol.message.record_check import CHECK_BODY, CHECK_NOTHING, CHECK_WHOLE
from aerobee.protocol.message.record_seal import MOST_SEALED_PROPERTIES, SEAL_BYTES, sealable


class Encoding(NamedTuple):
    """One way to encode.

    `encode` takes (message, queue offset, log offset, store time in ms); `size` says how many bytes
    that will be; `properties_size` how long the stored properties of a text will be, which is at
    most 32,767 whenever the text is not longer than `safe_properties`.
    """

    encode: Callable[[StoreMessage, int, int, int], bytes]
    size: Callable[[StoreMessage], int]
    properties_size: Callable[[bytes], int]
    safe_properties: int


def _sealed_properties_size(properties: bytes) -> int:
    return len(sealable(properties)) + SEAL_BYTES


PLAIN = Encoding(encode_record, record_size, len, MAX_PROPERTIES_BYTES)
SEALED = Encoding(
    encode_sealed_record, sealed_record_size, _sealed_properties_size, MOST_SEALED_PROPERTIES
)


def encoding_for(*, append_property_crc: bool) -> Encoding:
    """The way to encode that the settings ask for."""
    return SEALED if append_property_crc else PLAIN


def crc_checks(*, verify_property_crc: bool, check_crc: bool = True) -> int:
    """What `check_record` is to check where CRCs are to be checked at all."""
    if verify_property_crc:
        return CHECK_WHOLE
    return CHECK_BODY if check_crc else CHECK_NOTHING
