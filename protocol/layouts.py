"""Where the fields of a packed struct lie, for code that reads and writes them one by one."""

import re
import struct

_FIELD = re.compile(r"\d*[a-z]", re.IGNORECASE)


def positions(layout: struct.Struct) -> tuple[int, ...]:
    """The byte position of each field, without padding; texts have one position each."""
    order, found, position = layout.format[0], [], 0
    for field in _FIELD.findall(layout.format):
        if not field.endswith("x"):
            found.append(position)
        position += struct.calcsize(order + field)
    return tuple(found)
