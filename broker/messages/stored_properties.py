"""Turns a client's property text into the text that is stored.

A send carries its properties as one text (protocol/WIRE.md 6.3). The broker keeps the client's
entries in the client's order and bytes, takes out what it owns (the table of
`protocol/message/demands.py`, and `WAIT` of single sends, protocol/WIRE.md 3.1), adds its own
cluster name, and picks out the tag hash, the index keys and the demands. One pass over the entries,
because this runs once per message.
"""

from __future__ import annotations

import msgspec

from aerobee.protocol.hashing import tag_code
from aerobee.protocol.message.demands import ACTED_ON, ONE_RECORD, Carrier, Demand, judged
from aerobee.protocol.message.properties import (
    NAME_SEPARATOR,
    PROPERTY_CLUSTER,
    PROPERTY_KEYS,
    PROPERTY_SEPARATOR,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT,
    key_words,
)

_OF_ONE_RECORD = tuple(name.encode() for name in ONE_RECORD.names)


class StoredProperties(msgspec.Struct, gc=False):
    """Stored property text of a message, and what was read from it on the way."""

    encoded: bytes
    tags_code: int
    keys: tuple[str, ...]
    wait: bool
    #: Demands of the message besides being stored; empty for replies and staged rows, whose
    #: demands nobody reads here.
    demands: tuple[Demand, ...] = ()


def stored_properties(
    text: str, cluster: str, carrier: Carrier, *, keep_wait: bool = True
) -> StoredProperties:
    """Stored text and derived values of one message's properties.

    Entries without a name or value are dropped, as every reader would (protocol/WIRE.md 6.3); what
    only the broker may say too, and a client's own CLUSTER is replaced by the broker's. `keep_wait`
    is off for single sends. Raises BadRequest for a demand that the carrier may not make.
    """
    tags = keys = unique_key = ""
    wait = "true"
    acted_on = ACTED_ON[carrier]
    asked: dict[Demand, str] | None = None
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
        elif name in acted_on:
            demand = acted_on[name]
            if demand is None:
                continue
            if asked is None:
                asked = {}
            asked[demand] = value
        kept.append(entry)
    kept.append(PROPERTY_CLUSTER + NAME_SEPARATOR + cluster)
    return StoredProperties(
        PROPERTY_SEPARATOR.join(kept).encode("utf-8", "surrogatepass"),
        tag_code(tags) if tags else 0,
        key_words(unique_key, keys),
        wait == "true" or wait.lower() == "true",
        () if asked is None else judged(asked, carrier),
    )


def without_own(properties: bytes) -> bytes:
    """A batch message's own properties without what only the broker may say of it."""
    offsets, crc = _OF_ONE_RECORD
    if offsets not in properties and crc not in properties:
        return properties
    entries = properties.split(b"\x02")
    marks = (offsets + b"\x01", crc + b"\x01")
    return b"\x02".join([entry for entry in entries if not entry.startswith(marks)])
