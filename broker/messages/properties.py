"""What a client's property text becomes before it is stored.

A send carries its properties as one text (protocol/WIRE.md 6.3). The broker keeps the client's
entries in the client's order and bytes, takes out what it owns (`CLUSTER`, and `WAIT` of single
sends, protocol/WIRE.md 3.1), adds its own cluster name, and picks out what the store needs: the tag
hash and the index keys. One pass over the entries, because this runs once per message.
"""

from __future__ import annotations

import re

import msgspec

from aerobee.protocol.errors import BadRequest
from aerobee.protocol.hashing import tag_code
from aerobee.protocol.message.properties import (
    NAME_SEPARATOR,
    OF_ONE_RECORD,
    PROPERTY_CLUSTER,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_SEPARATOR,
    PROPERTY_TAGS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT,
    TIMER_PROPERTIES,
    key_words,
)
from aerobee.store.reading.delayed_messages import asked_level

_OWN = frozenset((PROPERTY_CLUSTER, PROPERTY_TIMER_OUT_MS, *OF_ONE_RECORD))
_ASKING = frozenset((PROPERTY_DELAY, PROPERTY_TRANSACTION_PREPARED, *TIMER_PROPERTIES))
#: Names of which a message with one is no plain one: it asks for more than to be stored, or has
#: what only the broker may say.
NOT_PLAIN = frozenset((*_OWN, *_ASKING, "__SHARDINGKEY", "INNER_MULTI_DISPATCH"))
_NUMBER = re.compile(r"[+-]?\d{1,20}")
_OFFSETS_MARK, _CRC_MARK = (name.encode() for name in OF_ONE_RECORD)


class StoredProperties(msgspec.Struct, gc=False):
    """Stored property text of a message, and what was read from it on the way."""

    encoded: bytes
    tags_code: int
    keys: tuple[str, ...]
    wait: bool
    delay_level: int
    transactional: bool
    #: Asks for a time of its own (store/FORMAT.md 12.4).
    timed: bool


def stored_properties(
    text: str, cluster: str, *, keep_wait: bool = False, check_delay: bool = True
) -> StoredProperties:
    """Stored text and derived values of one message's properties.

    Entries without a name or value are dropped, as every reader would (protocol/WIRE.md 6.3); what
    only the broker may say too, and a client's own CLUSTER is replaced by the broker's. `keep_wait`
    keeps WAIT (batches). Raises BadRequest for a DELAY that is no number, unless `check_delay` is
    off: for messages that stand in a batch, of which nobody asks it.
    """
    tags = keys = unique_key = ""
    wait, delay, transactional, timed = "true", "0", "", False
    kept: list[str] = []
    for entry in text.split(PROPERTY_SEPARATOR):
        name, _, value = entry.partition(NAME_SEPARATOR)
        if not value or not name:
            continue
        # In the order of how often clients send them.
        if name == PROPERTY_UNIQUE_KEY:
            unique_key = value
        elif name == PROPERTY_WAIT:
            wait = value
            if not keep_wait:
                continue
        elif name == PROPERTY_TAGS:
            tags = value
        elif name == PROPERTY_KEYS:
            keys = value
        elif name in _OWN:
            continue
        elif name in _ASKING:
            if name == PROPERTY_DELAY:
                delay = value
            elif name == PROPERTY_TRANSACTION_PREPARED:
                transactional = value
            else:
                timed = True
        kept.append(entry)
    kept.append(PROPERTY_CLUSTER + NAME_SEPARATOR + cluster)
    return StoredProperties(
        PROPERTY_SEPARATOR.join(kept).encode("utf-8", "surrogatepass"),
        tag_code(tags) if tags else 0,
        key_words(unique_key, keys),
        wait == "true" or wait.lower() == "true",
        0 if delay == "0" else _delay_level(delay, check_delay),
        transactional.lower() == "true",
        timed,
    )


def _delay_level(text: str, check: bool) -> int:
    """The level asked for. As in the reference, a sign is no fault and 32 bits are the most."""
    # int() alone would take blanks and underscores too.
    number = asked_level(text) if _NUMBER.fullmatch(text) else None
    if number is not None and -1 << 31 <= number < 1 << 31:
        return number
    if check:
        shown = text if len(text) <= 64 else text[:64] + "..."
        raise BadRequest.system_error(
            f"the property {PROPERTY_DELAY} must be a delay level, a number, got {shown!r}"
        )
    return 0


def without_own(properties: bytes) -> bytes:
    """A batch message's own properties without what only the broker may say of it."""
    if _OFFSETS_MARK not in properties and _CRC_MARK not in properties:
        return properties
    entries = properties.split(b"\x02")
    marks = (_OFFSETS_MARK + b"\x01", _CRC_MARK + b"\x01")
    return b"\x02".join([entry for entry in entries if not entry.startswith(marks)])
